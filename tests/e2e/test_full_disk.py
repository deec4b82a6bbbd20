"""A proxy whose disk is full: it goes on compacting, its archive can be erased, and then it stores everything."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from accordion.composition.configured_store import find_memory_folder
from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Key
from tests.conftest import Start
from tests.disks import fill, memory_files, small_disk
from tests.e2e.proxy_api import get_page, wait_until
from tests.e2e.small_window import WINDOW, agent, compacted_requests, config, rounds
from tests.e2e.store_workers import api, ask, request_with_name, workers
from tests.proxy_process import Proxy
from tests.strict_provider import StrictProvider

pytestmark = pytest.mark.rest  # each test starts processes, or waits for real time


ARTIFACT = re.compile(r"art_[0-9a-f]{12}")


async def delete(proxy: Proxy, path: str) -> httpx.Response:
    async with httpx.AsyncClient(base_url=proxy.url, timeout=60) as client:
        return await client.delete(path, headers={"x-accordion-token": proxy.token})


async def waiting(proxy: Proxy) -> int:
    page = (await get_page(proxy, "/readyz")).json()
    return int(page.get("in_memory_only_bytes", 0))


async def readable(proxy: Proxy, artifacts: set[str]) -> set[str]:
    """Those that can be read."""
    replies = {each: await get_page(proxy, f"/accordion/artifacts/{each}") for each in artifacts}
    return {each for each, reply in replies.items() if reply.status_code == 200}


@pytest.mark.parametrize("whole", [False, True], ids=["session", "tenant"])
async def test_compaction_goes_on_and_erasing_works_while_the_disk_is_full(start: Start, tmp_path: Path, whole: bool):
    provider = StrictProvider("chat", WINDOW, rounds=1_000, words=400)
    with small_disk(tmp_path / "disk") as disk:
        proxy = start(config("chat"), ACCORDION_STORE=f"sqlite:///{disk}/store.db")
        async with proxy.provider(provider), agent(proxy, "chat", words=400) as run:
            while len(compacted_requests(run)) < 2:
                await rounds(run, 1)
            session = run.answers[-1]["x-accordion-session"]
            others = fill(disk)
            before = len(compacted_requests(run))
            while len(compacted_requests(run)) < before + 3:
                await rounds(run, 1)
            await proxy.says("the disk of the store is full")
            assert (await get_page(proxy, "/readyz")).json()["store"] == "unavailable"
            assert await waiting(proxy) > 0
            await proxy.says("is kept in memory only")
            path = "/accordion/archive" if whole else f"/accordion/sessions/{session}"
            former = set(ARTIFACT.findall(repr(provider.taken[-1].request.body)))
            reply = await delete(proxy, path)
            assert (reply.status_code, reply.json()["verified"]) == (200, True)
            assert reply.json()["entries"] > 0
            assert reply.json()["sessions"] == 1
            assert await readable(proxy, former) == set()
            others.unlink()

            async def stored() -> bool:
                return (await get_page(proxy, "/readyz")).json()["store"] == "ok" and await waiting(proxy) == 0

            await wait_until(stored)
            assert (await get_page(proxy, "/accordion/sessions")).json()["sessions"] == []
            assert await readable(proxy, former) == set()
            for _ in range(30):
                await rounds(run, 1)
                sent = set(ARTIFACT.findall(repr(provider.taken[-1].request.body)))
                assert await readable(proxy, sent) == sent
            assert sent
    assert provider.problems == []


async def test_what_was_removed_while_the_disk_was_full_survives_a_kill(start: Start, tmp_path: Path):
    if find_memory_folder() is None:
        pytest.skip("there is no disk in memory here")
    provider = StrictProvider("chat", WINDOW, rounds=1_000, words=400)
    with small_disk(tmp_path / "disk") as disk:
        proxy = start(config("chat"), ACCORDION_STORE=f"sqlite:///{disk}/store.db")
        async with proxy.provider(provider), agent(proxy, "chat", words=400) as run:
            await rounds(run, 1)
            others = fill(disk)
            while len(compacted_requests(run)) < 3:
                await rounds(run, 1)
            assert await waiting(proxy) > 0
        await proxy.says("it is lost if this machine restarts")
        sent = {found for each in provider.taken for found in ARTIFACT.findall(repr(each.request.body))}
        assert sent
        proxy.kill()
        proxy.start()
        assert await readable(proxy, sent) == sent
        others.unlink()

        async def stored() -> bool:
            return memory_files(disk / "store.db.spool") == []

        await wait_until(stored)
        proxy.kill()
        proxy.start()
        assert await readable(proxy, sent) == sent
    assert provider.problems == []


async def test_no_worker_records_a_session_that_was_erased_while_the_disk_was_full(tmp_path: Path):
    with small_disk(tmp_path / "disk") as disk:
        async with workers(disk, "", "") as [one, other]:
            session = (await ask(other, request_with_name(1)))["x-accordion-session"]
            await other.outbox.flush()
            filling = fill(disk)
            with pytest.raises(StoreUnavailable):
                for number in range(100):
                    await other.store.put(Key("", f"other {number}"), os.urandom(100_000))
            assert (await ask(other, request_with_name(2)))["x-accordion-session"] == session
            await other.outbox.flush()
            assert (await api(one, "DELETE", f"/accordion/sessions/{session}")).json()["verified"]
            filling.unlink()

            async def writes() -> bool:
                with suppress(StoreUnavailable):
                    await other.outbox.flush()
                    return True
                return False

            await wait_until(writes)
            assert (await api(one, "GET", "/accordion/sessions")).json()["sessions"] == []
