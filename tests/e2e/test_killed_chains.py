"""A worker is killed right behind a reply that `previous_response_id` goes on from: nothing that is needed is lost."""

from typing import Any

import pytest

from tests.agents import connected
from tests.conftest import Start
from tests.e2e.folds import STREAMED, WINDOW, config
from tests.e2e.keeping import Keeper
from tests.e2e.unfolds import Watched, ready, watched
from tests.proxying import PATIENT, Proxy

CHAIN: dict[str, Any] = {"reader": Keeper, "chained": True, "more": {"store": True}}


async def killed_behind_the_reply(one: Watched, proxy: Proxy) -> None:
    """One request; the proxy is killed as soon as its reply has ended, and started again."""
    async with connected(proxy.url, "responses", one.witness) as client:
        one.run.client = client
        await one.rounds(1)
        proxy.kill()
    proxy.start()


async def goes_on(one: Watched, proxy: Proxy, count: int) -> None:
    async with connected(proxy.url, "responses", one.witness) as client:
        one.run.client = client
        await one.rounds(count)


@STREAMED
@pytest.mark.parametrize("way", ["o", "ot"])
async def test_a_kill_behind_a_reply_that_read_back_loses_nothing(start: Start, way: str, stream: bool):
    proxy = start(config("responses") + PATIENT, ACCORDION_STORE="sqlite:///chain.db")
    async with watched(proxy, "responses", f"killed {way} {stream}", stream=stream, **CHAIN) as one:
        await ready(one, way)
        for _ in range(2):
            await killed_behind_the_reply(one, proxy)
        one.provider.ways = ()
        await goes_on(one, proxy, 12)
        assert one.provider.problems == []
        assert one.provider.refusals == []
        assert way in one.provider.done
        assert max(each.tokens for each in one.provider.taken) <= WINDOW


@STREAMED
async def test_a_kill_behind_any_reply_keeps_the_chain_foldable(start: Start, stream: bool):
    proxy = start(config("responses") + PATIENT, ACCORDION_STORE="sqlite:///chain.db")
    async with watched(proxy, "responses", f"killed early {stream}", ways=(), stream=stream, **CHAIN) as one:
        for _ in range(3):
            await killed_behind_the_reply(one, proxy)
        await goes_on(one, proxy, 40)
        assert one.provider.problems == []
        assert one.provider.refusals == []
        assert len({head["x-accordion-session"] for head in one.run.answers}) == 1
