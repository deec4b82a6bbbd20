"""What goes wrong between two rounds of a reply is told as what goes wrong in a reply; nothing of it stays."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import anthropic
import openai
import pytest

from tests import reply_parts
from tests.agent_replies import Json
from tests.agents import GeminiError
from tests.e2e.reading_agent import ReadingAgent, prepare_way, start_reading_agent
from tests.e2e.small_window import STREAMS, Proxies, fetch_session
from tests.loopback import Answer
from tests.reading_provider import ProviderExchange

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
