"""A proxy whose disk is full: it goes on compacting, its archive can be erased, and then it stores everything."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

from tests.conftest import Start
from tests.disks import fill, small_disk
from tests.e2e.proxy_api import get_page, wait_until
from tests.e2e.small_window import WINDOW, agent, compacted_requests, config, rounds
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
