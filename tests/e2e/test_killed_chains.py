"""A worker is killed right behind a reply that `previous_response_id` goes on from: nothing that is needed is lost."""

from typing import Any

import pytest

from tests.agents import connected
from tests.conftest import Start
from tests.e2e.reading_agent import ReadingAgent, prepare_way, start_reading_agent
from tests.e2e.small_window import WINDOW, config
from tests.e2e.storing_provider import StoringProvider
from tests.proxy_process import PATIENT, Proxy

CHAIN: dict[str, Any] = {"reader": StoringProvider, "chained": True, "more": {"store": True}}


async def killed_behind_the_reply(one: ReadingAgent, proxy: Proxy) -> None:
    """One request; the proxy is killed as soon as its reply has ended, and started again."""
    async with connected(proxy.url, "responses", one.witness) as client:
        one.run.client = client
        await one.rounds(1)
        proxy.kill()
    proxy.start()


async def goes_on(one: ReadingAgent, proxy: Proxy, count: int) -> None:
    async with connected(proxy.url, "responses", one.witness) as client:
        one.run.client = client
        await one.rounds(count)


@pytest.mark.parametrize(("way", "stream"), [("o", False), ("ot", True)])
async def test_a_kill_behind_a_reply_that_read_back_loses_nothing(start: Start, way: str, stream: bool):
    proxy = start(config("responses") + PATIENT, ACCORDION_STORE="sqlite:///chain.db")
    async with start_reading_agent(proxy, "responses", f"killed {way} {stream}", stream=stream, **CHAIN) as one:
        await prepare_way(one, way)
        for _ in range(2):
            await killed_behind_the_reply(one, proxy)
        one.provider.ways = ()
        await goes_on(one, proxy, 12)
        assert one.provider.problems == []
        assert one.provider.refusals == []
        assert way in one.provider.done
        assert max(each.tokens for each in one.provider.taken) <= WINDOW
