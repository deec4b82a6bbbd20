"""The store is away when a compaction is needed: requests are answered, what left the window is kept here, and goes
there."""

from pathlib import Path

from tests.agents import Run, connected
from tests.conftest import Start
from tests.e2e.proxy_api import get_page, wait_until
from tests.e2e.small_window import WINDOW, agent, broken_prefixes, compacted_requests, config, rounds
from tests.proxy_process import Proxy
from tests.strict_provider import StrictProvider
from tests.valkey import running_valkey

PATIENT = "store: {timeout_seconds: 0.25}\n"


async def test_a_necessary_compaction_is_published_when_the_store_is_back(start: Start, tmp_path: Path):
    provider = StrictProvider("messages", WINDOW, rounds=1_000, thinks=True)
    with running_valkey(tmp_path, appendonly="yes") as valkey:
        text = config("messages") + PATIENT
        proxy = start(text, ACCORDION_STORE=valkey.url)
        other = start(text.replace("{upstream}", f"http://127.0.0.1:{proxy.upstream_port}"), ACCORDION_STORE=valkey.url)
        async with proxy.provider(provider), agent(proxy, "messages") as run:
            await rounds(run, 10)
            valkey.kill()
            while not compacted_requests(run):
                await rounds(run, 1)
            # Below the hard limit what cannot be archived stays where it is; at it, a compaction is made all the same.
            made = len(run.answers) - 1
            tried = [said for said in run.compactions[:made] if said is not None]
            assert {said["state"] for said in tried} <= {"failed"}
            assert run.answers[made]["x-accordion-store"] == "spooled"
            await rounds(run, 3)
            assert {head.get("x-accordion-store") for head in run.answers[made + 1 :]} == {"unavailable"}
            assert run.compactions[-1] is not None
            valkey.start()

            async def back() -> bool:
                page = (await get_page(proxy, "/readyz")).json()
                return page["store"] == "ok" and valkey.command("EXISTS", "nothing") == b":0\r\n"

            await wait_until(back)

            async def published() -> bool:
                return b"compaction/" in valkey.command("KEYS", "*compaction/*")

            await wait_until(published)

            async def noticed() -> bool:
                return (await get_page(other, "/accordion/sessions")).status_code == 200

            await wait_until(noticed)
            # Another proxy, which never heard of the compaction, goes on with it.
            async with connected(other.url, "messages") as client:
                run.client = client
                await rounds(run, 3)
    assert provider.problems == []
    assert broken_prefixes(provider.taken) == compacted_requests(run) == [made]
    assert run.answers[-1].get("x-accordion-store") is None


async def list_artifacts(proxy: Proxy, run: Run) -> list[dict[str, str]]:
    """Waits until the store has the artifacts of the run's session, and returns them.

    A busy machine's store may be too slow for a compaction, which is then published a moment later.
    """
    session = run.answers[-1]["x-accordion-session"]

    async def read_list() -> list[dict[str, str]]:
        page = await get_page(proxy, f"/accordion/artifacts?session={session}")
        found: list[dict[str, str]] = page.json()["artifacts"]
        return found

    return await wait_until(read_list)


async def compacted_anew(proxy: Proxy, run: Run) -> None:
    """Once both workers have noticed, what was compacted is compacted again, and all of it can be read."""
    first = set(compacted_requests(run))
    await proxy.says("the store was emptied or replaced", 2)
    # On other connections, so that either worker may be asked.
    for _ in range(6):
        async with connected(proxy.url, "chat") as client:
            run.client = client
            await rounds(run, 1)
    artifacts = await list_artifacts(proxy, run)
    texts = [(await get_page(proxy, f"/accordion/artifacts/{artifact['id']}")).status_code for artifact in artifacts]
    assert set(compacted_requests(run)) - first
    assert set(texts) == {200}
    assert len({head["x-accordion-session"] for head in run.answers[-6:]}) == 1
    assert proxy.log.count("the store was emptied or replaced") == 2


async def test_after_the_store_was_emptied_a_history_is_compacted_and_archived_anew(start: Start, tmp_path: Path):
    provider = StrictProvider("chat", WINDOW, rounds=1_000)
    with running_valkey(tmp_path) as server:
        proxy = start(config("chat"), "--workers", "2", ACCORDION_STORE=server.url)
        await proxy.says("startup complete", 2)
        async with proxy.provider(provider), agent(proxy, "chat") as run:
            while not compacted_requests(run):
                await rounds(run, 1)
            await list_artifacts(proxy, run)
            server.command("FLUSHALL")
            await compacted_anew(proxy, run)
    assert provider.problems == []
