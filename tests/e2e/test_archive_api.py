"""What people have of the archive of a started proxy: artifacts, histories, exports; and that erased is erased."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import httpx

from tests.agents import Run
from tests.conftest import Start
from tests.e2e.proxy_api import get_page, wait_until
from tests.e2e.small_window import agent, compacted_requests, config, rounds, strict_provider
from tests.proxy_process import PATIENT, Proxy
from tests.strict_provider import result_of

ROOMY: dict[str, str] = {"ACCORDION_ARCHIVE_KEY": "00" * 32}


async def until_compacted(run: Run) -> str:
    """Goes on until there was a compaction, and a request behind it; gives the session."""
    while not compacted_requests(run):
        await rounds(run, 1)
    await rounds(run, 1)
    return run.answers[-1]["x-accordion-session"]


async def ask(proxy: Proxy, method: str, path: str, **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        return await client.request(method, f"{proxy.url}{path}", headers={"x-accordion-token": proxy.token, **headers})


async def listed(proxy: Proxy, session: str, **headers: str) -> list[dict[str, Any]]:
    reply = await get_page(proxy, f"/accordion/artifacts?session={session}&limit=1000", **headers)
    assert reply.status_code == 200, reply.text
    found: list[dict[str, Any]] = reply.json()["artifacts"]
    return found


async def recorded(proxy: Proxy, session: str, **headers: str) -> None:
    """Waits until what was said stands in the store, which is a moment behind the reply."""

    async def there() -> bool | None:
        return (await get_page(proxy, f"/accordion/sessions/{session}/original", **headers)).status_code == 200 or None

    await wait_until(there)


async def test_an_export_holds_all_and_an_erased_session_nothing_while_its_agent_goes_on(start: Start):
    proxy, provider = start(config("messages")), strict_provider("messages", "erased")
    async with proxy.provider(provider), agent(proxy, "messages", name="erased") as run:
        session = await until_compacted(run)
        artifacts = await listed(proxy, session)
        await recorded(proxy, session)
        lines = (await get_page(proxy, f"/accordion/sessions/{session}/export")).text.splitlines()
        exported = [json.loads(line) for line in lines]
        assert exported[-1]["type"] == "end"
        assert {"compaction", "artifact", "row", "transcript"} <= {line["type"] for line in exported}
        assert {line["artifact"]["id"] for line in exported if line["type"] == "artifact"} == {
            each["id"] for each in artifacts
        }

        reply = await ask(proxy, "DELETE", f"/accordion/sessions/{session}")
        assert (reply.status_code, reply.json()["verified"]) == (200, True)
        assert reply.json()["values"] > len(artifacts)
        for each in artifacts:
            assert (await get_page(proxy, f"/accordion/artifacts/{each['id']}")).status_code == 404
        for path in (f"/accordion/sessions/{session}/{page}" for page in ("original", "export")):
            assert (await get_page(proxy, path)).status_code == 404
        await rounds(run, 2)
    assert provider.problems == []
    assert run.answers[-1]["x-accordion-session"]


async def accordion(proxy: Proxy, *args: str, **environ: str) -> tuple[int, str]:
    """The command line, with the proxy's own config and store."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "accordion", *args, "--config", str(proxy.config),
        stdout=asyncio.subprocess.PIPE, cwd=proxy.folder, env={**proxy.environ, **environ, "HOME": str(proxy.folder)},
    )  # fmt: skip
    out, _ = await process.communicate()
    return process.returncode or 0, out.decode()


async def test_the_command_line_reads_and_erases_what_a_running_proxy_keeps(start: Start, tmp_path: Path):
    store = {"ACCORDION_STORE": f"sqlite:///{tmp_path}/kept.db", **ROOMY}
    proxy = start(PATIENT + config("chat"), **store)
    provider = strict_provider("chat", "command line")
    async with proxy.provider(provider), agent(proxy, "chat", name="command line") as run:
        session = await until_compacted(run)
    artifacts = await listed(proxy, session)
    code, out = await accordion(proxy, "artifacts", "--session", session, "--json")
    assert code == 0
    assert [json.loads(line) for line in out.splitlines()] == artifacts
    assert [each["messages"] for each in artifacts] == sorted(each["messages"] for each in artifacts)
    some = next(each for each in artifacts if each["call_id"])
    assert await accordion(proxy, "artifacts", some["id"]) == (0, result_of(some["call_id"]) + "\n")
    code, out = await accordion(proxy, "erase", "--session", session, "--yes")
    assert (code, out[:16]) == (0, "erased: 1 sessio")
    assert (await get_page(proxy, f"/accordion/artifacts/{some['id']}")).status_code == 404
    # Without its key the archive cannot be read, and nothing of it is shown.
    provider = strict_provider("chat", "sealed")
    async with proxy.provider(provider), agent(proxy, "chat", name="sealed") as run:
        session = await until_compacted(run)
    artifact = (await listed(proxy, session))[0]["id"]
    assert (await accordion(proxy, "artifacts", artifact, ACCORDION_ARCHIVE_KEY=""))[0] == 1
    assert (await accordion(proxy, "artifacts", artifact))[0] == 0


async def test_the_address_that_the_proxy_prints_and_its_file_give_the_owners_token(start: Start) -> None:
    """With two workers: both know the token."""
    proxy = start("server: {workers: 2}\n", ACCORDION_STORE="sqlite:///accordion.db")
    path = "/accordion/sign-in?token="
    assert f"http://127.0.0.1:{proxy.port}{path}{proxy.token}" in proxy.log
    for _ in range(8):
        assert (await ask(proxy, "GET", "/accordion/export")).status_code == 200
        assert (await ask(proxy, "GET", "/accordion/export", **{"x-accordion-token": "other"})).status_code == 401
        assert "set-cookie" in (await ask(proxy, "GET", f"{path}{proxy.token}")).headers
    token = proxy.token
    proxy.stop()
    proxy.start()
    assert proxy.token == token


async def test_no_token_is_printed_where_proxy_keys_tell_callers_apart(start: Start) -> None:
    proxy = start("proxy_keys: [{id: one, key: acc-one-5fKq72LmZ}]\n")
    assert "token=" not in proxy.log
    assert proxy.token not in proxy.log
    assert (await ask(proxy, "GET", "/accordion/export")).status_code == 401
