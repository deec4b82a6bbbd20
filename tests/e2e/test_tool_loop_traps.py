"""What others fell into when they put archived text back: streams that were held up, readings that were archived again,
empty answers."""

import asyncio
import json

import anthropic
import openai
import pytest

from tests import reply_parts
from tests.agents import GeminiError
from tests.e2e.proxy_api import get_page
from tests.e2e.reading_agent import prepare_way, start_reading_agent
from tests.e2e.small_window import EACH, STREAMS, Proxies
from tests.loopback import Answer
from tests.reading_provider import OURS, ProviderExchange
from tests.reply_parts import ReplyText

ENDS = (b"message_stop", b"[DONE]", b"response.completed", b'"finishReason"')
"""What the last event of a reply holds. Gemini's may hold words too: it waits for the end of the stream."""


@EACH
@pytest.mark.parametrize("way", ["w", "wt", "wo w", "wot"])
async def test_what_is_not_our_call_goes_on_at_once(proxies: Proxies, protocol_name: str, way: str):
    """The provider says nothing more until the client has heard what it said, in every round."""
    proxy, rounds = proxies[protocol_name], 0
    async with start_reading_agent(proxy, protocol_name, f"at once {way}", ways=(), stream=True) as one:
        await prepare_way(one, way)

        async def slowly(exchange: ProviderExchange, answer: Answer) -> bool:
            nonlocal rounds
            rounds += 1
            text = next(piece.text for piece in exchange.said.pieces if isinstance(piece, ReplyText))
            known = len(one.witness.heard) - (exchange.continues is not None)
            await answer.head(200, [("Content-Type", "text/event-stream")], chunked=True)
            for event in reply_parts.reply_events(protocol_name, exchange.said, exchange.body):
                await answer.chunk(event)
                if any(end in event for end in ENDS):
                    break
                for words in (text[6:10].encode(), text[-8:].encode()):
                    if words in event:
                        await asyncio.wait_for(heard(known, words), 30)
            await answer.last_chunk()
            return True

        async def heard(known: int, text: bytes) -> None:
            while len(one.witness.heard) <= known or text not in one.witness.heard[known].body:
                await asyncio.sleep(0.001)

        one.provider.instead = slowly
        await one.rounds(1)
        one.provider.instead = None
    assert rounds == len(way.split())
    assert one.witness.problems(protocol_name) == []


@EACH
async def test_what_was_read_back_is_not_archived_again(proxies: Proxies, protocol_name: str):
    proxy = proxies[protocol_name]
    async with start_reading_agent(proxy, protocol_name, "again", ways=("wo w", "o t", "wop t"), every=1) as one:
        await one.until_offered()
        while len(one.compactions) < 3:
            await one.rounds(4)
        session = one.run.answers[-1]["x-accordion-session"]
    kept = (await get_page(proxy, f"/accordion/artifacts?session={session}&limit=1000")).json()
    assert kept["next"] is None
    artifacts = kept["artifacts"]
    assert {each["tool"] for each in artifacts} <= {"", "read_file"}
    for each in artifacts:
        text = (await get_page(proxy, f"/accordion/artifacts/{each['id']}")).text
        assert OURS not in text
    assert one.provider.answers


@STREAMS
@pytest.mark.parametrize("round_", ["first", "second"])
async def test_an_answer_that_is_empty_is_told_as_an_error(
    proxies: Proxies, protocol_name: str, stream: bool, round_: str
):
    """A connection that is closed looks like the end of an answer."""
    proxy = proxies[protocol_name]

    async def empty(exchange: ProviderExchange, answer: Answer) -> bool:
        if (exchange.continues is None) == (round_ == "second"):
            return False
        await answer.head(200, [("Content-Type", "text/event-stream" if stream else "application/json")])
        await answer.close()
        return True

    async with start_reading_agent(proxy, protocol_name, f"empty {stream} {round_}", ways=(), stream=stream) as one:
        await prepare_way(one, "wo w")
        before, one.provider.instead = list(one.run.history), empty
        with pytest.raises((openai.OpenAIError, anthropic.AnthropicError, GeminiError, ValueError)):
            await one.run.step()
    assert one.run.history == before


@STREAMS
async def test_a_reply_that_is_no_utf_8_shows_nothing_of_our_tool(proxies: Proxies, protocol_name: str, stream: bool):
    """Servers that cut a token in the middle of a character send such replies."""
    proxy, broken = proxies[protocol_name], 0
    async with start_reading_agent(proxy, protocol_name, f"no utf-8 {stream}", ways=(), stream=stream) as one:
        await prepare_way(one, "wo w")

        async def odd(exchange: ProviderExchange, answer: Answer) -> bool:
            nonlocal broken
            text = next(piece.text for piece in exchange.said.pieces if isinstance(piece, ReplyText))
            if stream:
                told, kind = (
                    b"".join(reply_parts.reply_events(protocol_name, exchange.said, exchange.body)),
                    "text/event-stream",
                )
            else:
                told, kind = (
                    json.dumps(reply_parts.reply_document(protocol_name, exchange.said, exchange.body)).encode(),
                    "application/json",
                )
            told = told.replace(text[-4:].encode(), b"\xff" + text[-3:].encode())
            broken += b"\xff" in told
            await answer.head(200, [("Content-Type", kind)], length=len(told))
            await answer.send(told)
            return True

        one.provider.instead = odd
        await one.rounds(1)
        one.provider.instead = None
        heard = one.witness.heard[-1]
    assert broken == 2
    assert b"read_artifact" not in heard.body
    assert OURS.encode() not in heard.body
