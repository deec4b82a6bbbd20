"""Agents that say only what is new, behind the id of the last reply (`previous_response_id`): compacted like any
other."""

import json
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from tests.agents import connected
from tests.conftest import Start
from tests.e2e.proxy_api import get_page, wait_until
from tests.e2e.reading_agent import ReadingAgent, start_reading_agent
from tests.e2e.small_window import STREAMED, WINDOW, Proxies, compacted_requests, config, fetch_session
from tests.e2e.storing_provider import StoringProvider
from tests.proxy_process import PATIENT, Proxy
from tests.reading_provider import WAYS
from tests.strict_provider import result_of
from tests.valkey import Valkey

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


@STREAMED
async def test_what_it_reads_back_stays_where_it_was_read(proxies: Proxies, stream: bool):
    async with start_reading_agent(
        proxies["responses"], "responses", f"read {stream}", ways=WAYS, stream=stream, **CHAIN
    ) as one:
        await one.rounds(2 * len(WAYS) + 20)
        one.whole("o", "wo", "ot", "wot", "wo wop o")
        well(one)


async def test_turns_of_a_user_are_compacted_at_their_beginning(proxies: Proxies):
    async with start_reading_agent(
        proxies["responses"], "responses", "chain turns", ways=(), provider={"rounds": 6}, **CHAIN
    ) as one:
        await one.rounds(100)
        one.whole()
        well(one)
        assert "conversation" in {said["kind"] for said in one.run.compactions if said is not None}


async def test_an_overflow_is_compacted_before_the_client_learns_of_it(proxies: Proxies):
    async with start_reading_agent(proxies["responses"], "responses", "chain over", ways=(), **CHAIN) as one:
        one.provider.window = 3_000
        await one.rounds(30)
        assert one.provider.problems == []
        assert one.provider.refusals
        assert {said["cause"] for said in one.run.compactions if said is not None} >= {"overflow"}
        assert max(each.tokens for each in one.provider.taken) <= 3_000


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


async def test_what_began_elsewhere_passes_as_it_came_if_the_provider_lists_no_items(start: Start):
    proxy = start(config("responses"))
    async with start_reading_agent(proxy, "responses", "chain unlisted", ways=(), **CHAIN) as one:
        one.provider.lists = False
        await one.rounds(1)
        one.provider.held["resp_of_old"] = one.provider.held.pop(one.run.reply)
        one.run.reply = "resp_of_old"
        await one.rounds(20)
        assert one.provider.problems == []
        assert not compacted_requests(one.run)
        posted = [json.loads(each.body) for each in one.behind.requests if each.method == "POST"]
        assert all("previous_response_id" in body for body in posted[1:])
        assert len(one.provider.asked) == 1, "it is asked once in a session"
        shown = await fetch_session(proxy, one.run.answers[-1]["x-accordion-session"], 20)
    assert "the history that the provider keeps is not completely on record" in shown["exchanges"][-1]["decision"]


@pytest.mark.parametrize("word", ["off", "observe"])
async def test_who_wants_no_compaction_has_none(proxies: Proxies, word: str):
    async with start_reading_agent(proxies["responses"], "responses", f"chain {word}", ways=(), **CHAIN) as one:
        one.run.headers = {"x-accordion-compact": word}
        await one.rounds(25)
        assert not compacted_requests(one.run)
        assert all("previous_response_id" in body for body in bodies(one)[1:])


async def test_a_compaction_may_be_asked_for(proxies: Proxies):
    async with start_reading_agent(proxies["responses"], "responses", "chain now", ways=(), **CHAIN) as one:
        await one.rounds(8)
        one.run.headers = {"x-accordion-compact": "now"}
        await one.rounds(1)
        assert compacted_requests(one.run) == [8]
        assert one.run.compactions[8]["cause"] == "manual"  # type: ignore[index]


async def hopping(one: ReadingAgent, proxies: Sequence[Proxy], count: int) -> None:
    """So many requests, each with a connection of its own, at one proxy after the other."""
    for number in range(count):
        async with connected(proxies[number % len(proxies)].url, "responses", one.witness) as client:
            one.run.client = client
            await one.rounds(1)


async def test_another_process_goes_on_with_it(start: Start):
    """What was sent before it began is in the store."""
    proxy = start(config("responses"), ACCORDION_STORE="sqlite:///chain.db")
    async with start_reading_agent(proxy, "responses", "chain restart", ways=(), **CHAIN) as one:
        await one.rounds(12)
        proxy.stop()
        proxy.start()
        await hopping(one, [proxy], 60)
        one.whole()
        well(one)


async def test_workers_take_turns_with_it(start: Start):
    proxy = start(config("responses"), "--workers", "2", ACCORDION_STORE="sqlite:///workers.db")
    await proxy.says("startup complete", 2)
    async with start_reading_agent(proxy, "responses", "chain workers", ways=("o", "wot"), **CHAIN) as one:
        await hopping(one, [proxy], 70)
        one.whole()
        well(one)


async def test_proxies_of_several_machines_take_turns_with_it(start: Start, valkey_server: Valkey):
    text = config("responses")
    first = start(text, ACCORDION_STORE=valkey_server.url)
    upstream = f"http://127.0.0.1:{first.upstream_port}"
    second = start(text.replace("{upstream}", upstream), ACCORDION_STORE=valkey_server.url)
    async with start_reading_agent(first, "responses", "chain machines", ways=("o", "wot"), **CHAIN) as one:
        await hopping(one, [first, second], 70)
        one.whole()
        well(one)


async def test_workers_take_turns_with_a_chain_that_begins_with_replies(start: Start):
    """As where an agent is resumed: its first request brings a list, and the next go on by the id."""
    proxy = start(config("responses") + PATIENT, "--workers", "2", ACCORDION_STORE="sqlite:///workers.db")
    await proxy.says("startup complete", 2)
    async with start_reading_agent(proxy, "responses", "chain resumed", ways=(), **CHAIN) as one:
        # The first replies came straight from the provider.
        async with connected(f"http://127.0.0.1:{proxy.upstream_port}", "responses", one.witness) as client:
            one.run.client = client
            await one.rounds(5)
        one.run.reply, one.run._told, one.run.answers[:] = "", 0, []
        behind = len(one.provider.taken)
        await hopping(one, [proxy], 60)
        assert one.provider.problems == []
        assert not one.provider.refusals
        assert len(compacted_requests(one.run)) >= 1
        assert max(each.tokens for each in one.provider.taken[behind:]) <= WINDOW


async def test_all_of_it_is_in_its_history_and_its_export_and_is_erased(start: Start):
    proxy = start(config("responses"), ACCORDION_STORE="sqlite:///kept.db")
    async with start_reading_agent(proxy, "responses", "chain kept", ways=(), **CHAIN) as one:
        await one.rounds(40)
        name = one.run.answers[-1]["x-accordion-session"]
        calls = [each.said.calls[0].id for each in one.provider.exchanges[:35]]

        async def known() -> bool:
            text = (await get_page(proxy, f"/accordion/sessions/{name}/original")).text
            return all(result_of(call) in text for call in calls)

        await wait_until(known)
        lines = (await get_page(proxy, f"/accordion/sessions/{name}/export")).text.splitlines()
        links = [line["link"] for line in map(json.loads, lines) if line["type"] == "link"]
        assert {None, "resp_1", "resp_2", "resp_38"} <= {link["previous"] for link in links}
        assert all(any(result_of(call) in json.dumps(link["given"]) for link in links) for call in calls)
        headers = {"x-accordion-token": proxy.token}
        async with httpx.AsyncClient(trust_env=False, timeout=30, headers=headers) as client:
            erased = (await client.delete(f"{proxy.url}/accordion/sessions/{name}")).json()
        assert erased["verified"]
        assert (await get_page(proxy, f"/accordion/sessions/{name}/export")).status_code == 404
        # What went before is not on record any more: the agent goes on with what its provider keeps.
        await one.rounds(3)
        assert one.provider.problems == []
        assert all("previous_response_id" in body for body in bodies(one)[-3:])
