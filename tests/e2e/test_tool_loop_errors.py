"""What goes wrong between two rounds of a reply is told as what goes wrong in a reply; nothing of it stays."""

import asyncio
import gzip
import json
from collections.abc import Awaitable, Callable
from typing import Any

import anthropic
import openai
import pytest

from tests import reply_parts, strict_provider
from tests.agent_replies import Json, streamed_error
from tests.agents import GeminiError
from tests.conftest import Start
from tests.e2e.reading_agent import ReadingAgent, prepare_way, start_reading_agent
from tests.e2e.small_window import EACH, PROTOCOL_NAMES, STREAMS, WINDOW, Proxies, config, fetch_session
from tests.loopback import Answer
from tests.reading_provider import ProviderExchange
from tests.strict_provider import overflow_error

FAILURES = (openai.OpenAIError, anthropic.AnthropicError, GeminiError)
Does = Callable[[ProviderExchange, Answer], Awaitable[None]]


def busy(protocol_name: str) -> Json:
    """The provider's own words for too many requests."""
    said = "Try again in a moment, says the provider."
    if protocol_name == "gemini":
        return {"error": {"code": 429, "message": said, "status": "RESOURCE_EXHAUSTED"}}
    inner = {"type": "rate_limit_error", "message": said}
    if protocol_name == "messages":
        return {"type": "error", "error": inner, "request_id": "req_busy"}
    return {"error": {**inner, "code": "rate_limit_exceeded", "param": None}}


async def fails(one: ReadingAgent, does: Does) -> Any:
    """One request whose second round is answered by `does`; what the client is told."""

    async def instead(exchange: ProviderExchange, answer: Answer) -> bool:
        if exchange.continues is None:
            return False
        await does(exchange, answer)
        return True

    before, one.provider.instead = list(one.run.history), instead
    with pytest.raises(FAILURES) as raised:
        await one.run.step()
    one.provider.instead = None
    assert one.run.history == before
    return raised.value


async def works_again(one: ReadingAgent) -> None:
    """The client asks again: the very same goes out, and what is read back then stays."""
    first = len(one.provider.taken)
    one.provider.ways = ("wo",)
    await one.run.step()
    one.provider.ways = ()
    assert one.provider.exchanges[first].way == "wo"
    await one.run.step()
    await one.run.step()
    assert one.provider.problems == []
    taken = one.provider.taken
    attempts = [each for each in taken[: first + 1] if each.request.body == taken[first].request.body]
    assert len(attempts) == 2, "the second attempt is the first one, to the letter"
    assert one.provider.broke == one.compactions


@STREAMS
async def test_an_error_in_the_second_round(proxies: Proxies, protocol_name: str, stream: bool):
    """Streamed, it is an event of the protocol's; else the provider's own answer."""
    proxy = proxies[protocol_name]

    async def says(exchange: ProviderExchange, answer: Answer) -> None:
        body = json.dumps(busy(protocol_name)).encode()
        headers = [("Content-Type", "application/json"), ("Retry-After", "7"), ("X-Own", "yes")]
        await answer.head(429, headers, length=len(body))
        await answer.send(body)

    async with start_reading_agent(proxy, protocol_name, f"error {stream}", stream=stream) as one:
        await prepare_way(one)
        error = await fails(one, says)
        heard = one.witness.heard[-1]
        if stream:
            assert heard.status == 200
            assert "Step" in heard.body.decode(), "what was said before went on at once"
            said = heard.events[-1]
            assert said["error"] == busy(protocol_name)["error"]
            assert "Try again in a moment, says the provider." in str(error)
            if protocol_name == "responses":
                assert (said["type"], said["code"]) == ("error", "rate_limit_exceeded")
                assert [each["sequence_number"] for each in heard.events] == list(range(len(heard.events)))
            assert b'finish_reason":"' not in heard.body
            assert b"message_stop" not in heard.body
        else:
            assert (heard.status, error.response.headers["retry-after"]) == (429, "7")
            assert json.loads(heard.body) == busy(protocol_name)
            assert error.response.headers["x-own"] == "yes"
        await works_again(one)
        known = await fetch_session(proxy, one.run.answers[-1]["x-accordion-session"], len(one.run.answers))
    failed = [each for each in known["exchanges"] if each["error"]]
    assert len(failed) == 1


@EACH
async def test_a_second_round_without_a_provider_error_body_is_reported_by_its_status(
    proxies: Proxies, protocol_name: str
):
    proxy = proxies[protocol_name]

    async def says(exchange: ProviderExchange, answer: Answer) -> None:
        await answer.head(502, [("Content-Type", "text/html")], length=15)
        await answer.send(b"<h1>Gateway</h1"[:15])

    async with start_reading_agent(proxy, protocol_name, "html", stream=True) as one:
        await prepare_way(one)
        await fails(one, says)
        heard = one.witness.heard[-1]
        assert "the provider answered 502 after a read-back." in json.dumps(heard.events[-1])
        if protocol_name == "responses":
            assert [each["sequence_number"] for each in heard.events] == list(range(len(heard.events)))
        await works_again(one)


@STREAMS
@pytest.mark.parametrize("how", ["before the head", "in the middle"])
async def test_a_connection_that_is_lost_in_the_second_round(
    proxies: Proxies, protocol_name: str, stream: bool, how: str
):
    proxy = proxies[protocol_name]

    async def cuts(exchange: ProviderExchange, answer: Answer) -> None:
        if how == "in the middle":
            if stream:
                await answer.head(200, [("Content-Type", "text/event-stream")], chunked=True)
                for event in reply_parts.reply_events(protocol_name, exchange.said, exchange.body)[:4]:
                    await answer.chunk(event)
            else:
                await answer.head(200, [("Content-Type", "application/json")], length=1000)
                await answer.send(b'{"id": "x", ')
            await asyncio.sleep(0.05)
        await answer.cut()

    async with start_reading_agent(proxy, protocol_name, f"lost {stream} {how}", stream=stream) as one:
        await prepare_way(one)
        await fails(one, cuts)
        heard = one.witness.heard[-1]
        assert heard.status == (200 if stream else 502)
        if stream:
            assert "error" in heard.events[-1]
        assert b"Connection lost" in heard.body
        await works_again(one)


@EACH
async def test_an_error_event_in_the_second_round_goes_on_as_it_came(proxies: Proxies, protocol_name: str):
    proxy = proxies[protocol_name]

    async def says(exchange: ProviderExchange, answer: Answer) -> None:
        await strict_provider.send_events(answer, streamed_error(protocol_name, busy(protocol_name)))

    async with start_reading_agent(proxy, protocol_name, "event", stream=True) as one:
        await prepare_way(one)
        await fails(one, says)
        assert "says the provider" in json.dumps(one.witness.heard[-1].events[-1])
        await works_again(one)


@STREAMS
async def test_an_answer_that_the_provider_has_no_room_for_is_taken_back(
    proxies: Proxies, protocol_name: str, stream: bool
):
    """The model is told so, and goes on without it."""
    proxy = proxies[protocol_name]
    tried: list[ProviderExchange] = []

    async def once(exchange: ProviderExchange, answer: Answer) -> bool:
        if exchange.continues is None or tried:
            return False
        tried.append(exchange)
        one.provider.answers.clear()
        # The model said nothing to it.
        one.provider.taken.pop()
        one.provider.exchanges.pop()
        one.provider.exchanges[-1].wanted = dict.fromkeys(one.provider.exchanges[-1].wanted, "not enough free space")
        await strict_provider.send_json(answer, 400, overflow_error(protocol_name, 9_000, 8_000))
        return True

    async with start_reading_agent(proxy, protocol_name, f"room {stream}", stream=stream) as one:
        await prepare_way(one, "woo t")
        one.provider.instead = once
        await one.rounds(1)
        one.provider.instead, one.provider.ways = None, ()
        await one.rounds(3)
    assert len(tried) == 1
    assert one.provider.problems == []
    assert one.witness.problems(protocol_name) == []
    assert len(set(one.provider.answers.values())) == 1
    one.stable()
    one.counted()


@EACH
async def test_an_answer_is_never_larger_than_what_there_is_room_for(start: Start, protocol_name: str):
    """However large an artifact is, the request that hands it over fits the window."""
    proxy = start(config(protocol_name))
    options = {"words": 1_200, "whole": False}
    ways = ("l", "ll", "wl l l w", "ll ll t")
    async with start_reading_agent(
        proxy, protocol_name, "large", ways=ways, every=1, provider=options, words=1_200
    ) as one:
        one.provider.brief = True
        await one.until_offered()
        await one.rounds(12)
    assert one.provider.problems == []
    # What is new is counted, not reported: the provider may refuse it by a hair, and the model is told so.
    assert all(one.provider.count(request) < 1.02 * WINDOW for request in one.provider.refusals)
    assert one.witness.problems(protocol_name) == []
    assert one.provider.done >= set(ways)
    assert max(len(told) for told in one.provider.answers.values()) > 4_000


@STREAMS
async def test_a_provider_that_compresses_all_the_same_is_understood(
    proxies: Proxies, protocol_name: str, stream: bool
):
    """The client is given it plain, as the head says."""
    proxy = proxies[protocol_name]

    async def packs(exchange: ProviderExchange, answer: Answer) -> bool:
        if exchange.tool:
            assert one.provider.taken[-1].request.header("accept-encoding") == "identity"
        if stream:
            data, kind = (
                b"".join(reply_parts.reply_events(protocol_name, exchange.said, exchange.body)),
                "text/event-stream",
            )
        else:
            data, kind = (
                json.dumps(reply_parts.reply_document(protocol_name, exchange.said, exchange.body)).encode(),
                "application/json",
            )
        packed = gzip.compress(data, mtime=0)
        await answer.head(200, [("Content-Type", kind), ("Content-Encoding", "gzip")], length=len(packed))
        for at in range(0, len(packed), 97):
            await answer.send(packed[at : at + 97])
        return True

    async with start_reading_agent(proxy, protocol_name, f"packed {stream}", stream=stream) as one:
        await prepare_way(one, "wo ot")
        heard = len(one.witness.heard)
        one.provider.instead = packs
        await one.rounds(3)
        one.provider.instead = None
        await one.rounds(2)
    assert len(one.witness.heard) > heard
    one.whole("wo ot")


def test_proxies_have_logs(proxies: Proxies):
    """Nothing failed inside, unseen."""
    for protocol_name in PROTOCOL_NAMES:
        assert "could not be" not in proxies[protocol_name].log
        assert "internal error" not in proxies[protocol_name].log
