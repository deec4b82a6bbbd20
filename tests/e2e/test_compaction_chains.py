"""Agents that say only what is new, behind the id of the last reply (`previous_response_id`): compacted like any
other."""

import json
from collections.abc import Sequence
from typing import Any

from tests.agents import connected
from tests.conftest import Start
from tests.e2e.reading_agent import ReadingAgent, start_reading_agent
from tests.e2e.small_window import WINDOW, Proxies, compacted_requests, config
from tests.e2e.storing_provider import StoringProvider
from tests.proxy_process import Proxy

CHAIN: dict[str, Any] = {"reader": StoringProvider, "chained": True, "more": {"store": True}}


def bodies(one: ReadingAgent) -> list[dict[str, Any]]:
    """What the provider was sent for each of the client's requests."""
    return [json.loads(one.behind.requests[at].body) for at in one.starts]


def well(one: ReadingAgent) -> None:
    assert 2 <= len(compacted_requests(one.run)) <= 16
    assert max(each.tokens for each in one.provider.taken) <= WINDOW
    assert len({head["x-accordion-session"] for head in one.run.answers}) == 1


async def test_an_agent_of_many_requests_is_compacted_in_time(proxies: Proxies):
    async with start_reading_agent(proxies["responses"], "responses", "chain", ways=(), **CHAIN) as one:
        await one.rounds(60)
        one.whole()
        well(one)
        first, sent = compacted_requests(one.run)[0], bodies(one)
        # Until the first compaction all goes on as it came; from there on each request says all that is left.
        assert [("previous_response_id" in body) for body in sent] == [0 < at < first for at in range(60)]
        assert all(len(body["input"]) <= 2 for body in sent[1:first])


async def test_what_began_elsewhere_is_read_from_the_provider_to_be_compacted(start: Start):
    proxy = start(config("responses"))
    async with start_reading_agent(proxy, "responses", "chain elsewhere", ways=(), **CHAIN) as one:
        await one.rounds(1)
        # The reply is known to the provider alone.
        one.provider.held["resp_of_old"] = one.provider.held.pop(one.run.reply)
        one.run.reply = "resp_of_old"
        await one.rounds(45)
        assert one.provider.problems == []
        assert len(compacted_requests(one.run)) > 1
        assert len(one.provider.asked) == 2, "the provider is asked once: for the response, and for its items"


async def hopping(one: ReadingAgent, proxies: Sequence[Proxy], count: int) -> None:
    """So many requests, each with a connection of its own, at one proxy after the other."""
    for number in range(count):
        async with connected(proxies[number % len(proxies)].url, "responses", one.witness) as client:
            one.run.client = client
            await one.rounds(1)


async def test_workers_take_turns_with_it(start: Start):
    proxy = start(config("responses"), "--workers", "2", ACCORDION_STORE="sqlite:///workers.db")
    await proxy.says("startup complete", 2)
    async with start_reading_agent(proxy, "responses", "chain workers", ways=("o", "wot"), **CHAIN) as one:
        await hopping(one, [proxy], 70)
        one.whole()
        well(one)
