"""A worker is killed right behind a reply that `previous_response_id` goes on from: nothing that is needed is lost."""

from typing import Any

import pytest

from tests.agents import Run, connected
from tests.conftest import Start
from tests.e2e.proxy_api import get_page
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


def is_own(entry: dict[str, Any]) -> bool:
    """Whether the agent itself sends an entry of its history."""
    return entry.get("role") == "user" or entry.get("type") == "function_call_output"


async def missing(proxy: Proxy, run: Run) -> list[Any]:
    """What of an agent's answered requests is in none of its transcripts."""
    recorded, answered = list[Any](), list(run.history)
    for name in {head["x-accordion-session"] for head in run.answers}:
        recorded += (await get_page(proxy, f"/accordion/sessions/{name}/original")).json().get("input", [])
    while is_own(answered[-1]):
        answered.pop()
    return [entry for entry in answered if is_own(entry) and entry not in recorded]


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


async def test_a_kill_behind_any_reply_keeps_the_chain_compactable(start: Start):
    proxy = start(config("responses") + PATIENT, ACCORDION_STORE="sqlite:///chain.db")
    async with start_reading_agent(proxy, "responses", "killed early", ways=(), stream=True, **CHAIN) as one:
        for _ in range(3):
            await killed_behind_the_reply(one, proxy)
        await goes_on(one, proxy, 40)
        assert one.provider.problems == []
        assert one.provider.refusals == []
        assert len({head["x-accordion-session"] for head in one.run.answers}) == 1


async def test_a_kill_behind_any_reply_loses_nothing_of_the_transcript(start: Start):
    proxy = start(config("responses") + PATIENT, ACCORDION_STORE="sqlite:///chain.db")
    async with start_reading_agent(proxy, "responses", "killed late", ways=(), stream=True, **CHAIN) as one:
        await prepare_way(one, "o")
        for _ in range(3):
            await killed_behind_the_reply(one, proxy)
            assert await missing(proxy, one.run) == []


@pytest.mark.parametrize("way", ["", "o", "t"])
async def test_a_chain_goes_on_after_its_store_was_replaced(start: Start, way: str):
    """Only the provider has the history then, with the proxy's own calls in it."""
    proxy = start(config("responses") + PATIENT, ACCORDION_STORE="sqlite:///chain.db")
    async with start_reading_agent(proxy, "responses", f"replaced store {way}", stream=False, **CHAIN) as one:
        if way:
            await prepare_way(one, way)
        one.provider.ways = ()
        await goes_on(one, proxy, 14 if not way else 1)
        proxy.kill()
        for file in proxy.folder.glob("chain.db*"):
            file.unlink()
        proxy.start()
        await goes_on(one, proxy, 12)
        assert one.provider.problems == []
        assert one.provider.refusals == []
        assert max(each.tokens for each in one.provider.taken) <= WINDOW
