import asyncio
import gzip
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import brotli
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.accounting.overflow import WindowOverflow
from accordion.model.errors import UpstreamDisconnected, UpstreamTimeout
from accordion.model.ports import Headers, UpstreamRequest, UpstreamResponse
from accordion.model.records import ObservedResponse
from accordion.pipeline.overflow_probe import (
    MAX_KEEPALIVES,
    MAX_SMALL_DOCUMENT,
    ProbedResponse,
    hold_until,
    probe_overflow,
)
from accordion.pipeline.relay import ExchangeProgress, relay
from accordion.protocols.anthropic_messages.protocol import AnthropicMessages
from accordion.protocols.anthropic_messages.response import MessagesParser
from accordion.protocols.base import WireProtocol
from accordion.protocols.openai_chat.protocol import OpenAIChat
from accordion.protocols.openai_responses.protocol import OpenAIResponses
from accordion.protocols.registry import PROTOCOLS
from accordion.providers.http.client import HttpUpstream
from accordion.providers.http.transport import AiohttpTransport
from tests.accounting.test_overflow import OPENAI_RESPONSES, ORDINARY, OVERFLOWS, anthropic
from tests.fakes import FakeClock, FakeReply
from tests.loopback import Answer, Loopback, Recorded
from tests.sample_responses import CHAT, GEMINI, MESSAGES, RESPONSES, SSE_PROTOCOLS, chunk, sse
from tests.strict_provider import request_error

JSON: Headers = ((b"content-type", b"application/json"),)
EVENTS: Headers = ((b"Content-Type", b"text/event-stream; charset=utf-8"),)
TOO_LONG = "prompt is too long: 208310 tokens > 200000 maximum"
NAMED = WindowOverflow(200_000, 208_310)
FULL = "model_context_window_exceeded"
NAMES = [protocol.name for protocol in SSE_PROTOCOLS]

CREATED, IN_PROGRESS, QUEUED = (
    {"type": f"response.{kind}", "response": {"id": "resp_1", "model": "m", "status": kind, "error": None}}
    for kind in ("created", "in_progress", "queued")
)
START, PING = MESSAGES[0], {"type": "ping"}
STREAMED = {"type": "error", "sequence_number": 2, "error": OPENAI_RESPONSES}
FAILED = {"type": "response.failed", "response": {"id": "resp_1", "status": "failed", "error": OPENAI_RESPONSES}}
ENDED = {"type": "message_delta", "delta": {"stop_reason": FULL}, "usage": {"output_tokens": 0}}
COMMENT = b": OPENROUTER PROCESSING\n\n"

STREAMS: list[tuple[str, WireProtocol, bytes, WindowOverflow]] = [
    ("chat, error first", OpenAIChat(), sse({"error": {"message": TOO_LONG, "code": 400}}), NAMED),
    ("chat, after comments", OpenAIChat(), COMMENT * 2 + sse({"error": {"message": TOO_LONG}}), NAMED),
    ("chat, in an array", OpenAIChat(), sse([{"error": {"message": TOO_LONG}}]), NAMED),
    ("chat, as a string", OpenAIChat(), sse({"error": json.dumps({"error": {"message": TOO_LONG}})}), NAMED),
    ("chat, flat", OpenAIChat(), sse({"object": "error", "message": TOO_LONG, "code": 400}, "[DONE]"), NAMED),
    ("chat, as text", OpenAIChat(), b"event:error\ndata:" + TOO_LONG.encode() + b"\n\n", NAMED),
    ("chat, finish", OpenAIChat(), sse(chunk({"role": "assistant", "content": ""}, FULL)), WindowOverflow()),
    ("responses, error first", OpenAIResponses(), sse(STREAMED, named=True), WindowOverflow()),
    (
        "responses, after its opening",
        OpenAIResponses(),
        sse(CREATED, QUEUED, IN_PROGRESS, STREAMED, named=True),
        WindowOverflow(),
    ),
    ("responses, failed", OpenAIResponses(), sse(CREATED, IN_PROGRESS, FAILED), WindowOverflow()),
    (
        "responses, flat",
        OpenAIResponses(),
        sse(CREATED, {"type": "error", "code": "context_length_exceeded", "message": "No.", "param": None}),
        WindowOverflow(),
    ),
    (
        "responses, by name",
        OpenAIResponses(),
        b'event: error\ndata: {"message": "' + TOO_LONG.encode() + b'"}\n\n',
        NAMED,
    ),
    ("messages, by name", AnthropicMessages(), b'event:error\ndata: "' + TOO_LONG.encode() + b'"\n\n', NAMED),
    ("messages, error first", AnthropicMessages(), sse(anthropic(TOO_LONG), named=True), NAMED),
    ("messages, after its opening", AnthropicMessages(), sse(START, PING, anthropic(TOO_LONG), named=True), NAMED),
    ("messages, stop reason", AnthropicMessages(), sse(START, PING, ENDED, {"type": "message_stop"}), WindowOverflow()),
    ("lines ended by CR LF", AnthropicMessages(), sse(START, anthropic(TOO_LONG), named=True, end="\r\n"), NAMED),
    ("the last event not ended", AnthropicMessages(), sse(START, anthropic(TOO_LONG)).rstrip(), NAMED),
]

BEGUN: list[tuple[str, WireProtocol, bytes]] = [
    ("chat", OpenAIChat(), sse(*CHAT)),
    ("responses", OpenAIResponses(), sse(CREATED, IN_PROGRESS, *RESPONSES[1:])),
    ("messages", AnthropicMessages(), sse(*MESSAGES)),
    ("another error", AnthropicMessages(), sse(START, anthropic("Overloaded", "overloaded_error"))),
    ("a rate limit", OpenAIChat(), sse({"error": {"message": f"rate limit: {TOO_LONG}", "code": 429}})),
    ("an error behind content", AnthropicMessages(), sse(*MESSAGES[:4], anthropic(TOO_LONG))),
    ("full behind content", AnthropicMessages(), sse(*MESSAGES[:4], ENDED)),
    ("full with content", OpenAIChat(), sse(chunk({"content": "So "}, FULL))),
    ("full with a call", OpenAIChat(), sse(chunk({"tool_calls": [{"id": "c", "function": {"name": "n"}}]}, FULL))),
    ("content that speaks of it", OpenAIChat(), sse(chunk({"content": TOO_LONG}))),
    ("an error behind the first chunk", OpenAIChat(), sse(chunk({"role": "assistant"}), {"error": TOO_LONG})),
    ("nothing", OpenAIResponses(), b""),
    ("no events", OpenAIChat(), b"\x00\xff\r\r\n data: [[["),
    ("odd data", AnthropicMessages(), b"data: [1\n\ndata: 7\n\n"),
]


def reply_of(body: bytes, headers: Headers = EVENTS, status: int = 200, cuts: tuple[int, ...] = ()) -> FakeReply:
    at = [0, *sorted({cut % (len(body) + 1) for cut in cuts}), len(body)]
    return FakeReply(status, headers, tuple(body[a:b] for a, b in pairwise(at)))


async def given_on(reply: UpstreamResponse) -> list[bytes]:
    return [piece async for piece in reply.chunks()]


async def passes(reply: FakeReply, protocol: WireProtocol, *, near: bool = True) -> ProbedResponse:
    """Opens a reply that must go on as it came."""
    found = await probe_overflow(reply, protocol, is_near_window=near, reads_start=near)
    assert (found.response.status, found.response.headers, found.response.is_delimited) == (
        reply.status,
        reply.headers,
        reply.is_delimited,
    )
    assert await given_on(found.response) == list(reply.pieces)
    assert not reply.closed
    await found.response.close()
    assert reply.closed
    return found


@dataclass
class Stalled:
    """A reply that stalls behind its pieces until it is let go on."""

    pieces: list[bytes]
    headers: Headers = EVENTS
    status: int = 200
    is_delimited: bool = True
    read: int = 0
    closed: bool = False
    stalled: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        for piece in self.pieces:
            self.read += 1
            yield piece
        self.stalled.set()
        await self.go_on.wait()

    async def close(self) -> None:
        self.closed = True


@dataclass
class Endless:
    """A body that never ends."""

    piece: bytes
    status: int = 400
    headers: Headers = JSON
    is_delimited: bool = True
    read: int = 0
    closed: bool = False

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        while True:
            self.read += len(self.piece)
            yield self.piece

    async def close(self) -> None:
        self.closed = True


# -- errors by their status ----------------------------------------------------------


@pytest.mark.parametrize("near", [True, False])
@pytest.mark.parametrize(("status", "body", "overflow"), [each for each in OVERFLOWS if each.values[0] >= 400])
async def test_an_overflow_is_found_in_every_shape_and_still_given_on(
    near: bool, status: int, body: object, overflow: WindowOverflow
) -> None:
    raw = json.dumps(body).encode()
    assert (await passes(reply_of(raw, JSON, status, (7, 40)), OpenAIChat(), near=near)).overflow == overflow


@pytest.mark.parametrize(("status", "body"), ORDINARY)
async def test_an_error_that_is_no_overflow_goes_on_as_it_came(status: int, body: object) -> None:
    raw = (body if isinstance(body, str) else json.dumps(body)).encode()
    reply = reply_of(raw, (*JSON, (b"X-Request-Id", b"r1"), (b"Content-Length", b"%d" % len(raw))), status, (3,))
    reply.is_delimited = False
    assert (await passes(reply, OpenAIChat(), near=False)).overflow is None


@pytest.mark.parametrize("encode", [gzip.compress, brotli.compress], ids=["gzip", "br"])
async def test_an_encoded_error_is_read_and_goes_on_encoded(encode: Any) -> None:
    raw = encode(json.dumps(anthropic(TOO_LONG)).encode())
    coding = b"gzip" if encode is gzip.compress else b"br"
    reply = reply_of(raw, (*JSON, (b"Content-Encoding", coding)), 400, (5, 20))
    assert (await passes(reply, AnthropicMessages())).overflow == NAMED


@pytest.mark.parametrize("raw", [b"no gzip at all", gzip.compress(b" " * (3 << 20) + TOO_LONG.encode())])
async def test_an_encoding_that_cannot_be_undone_goes_on_unread(raw: bytes) -> None:
    reply = reply_of(raw, (*JSON, (b"content-encoding", b"gzip")), 400)
    assert (await passes(reply, AnthropicMessages())).overflow is None


@pytest.mark.parametrize("status", [400, 413])
async def test_a_bare_refusal_is_an_overflow_only_near_the_window(status: int) -> None:
    bare = FakeReply(status, ((b"content-length", b"0"),), ())
    assert (await passes(bare, OpenAIChat())).overflow == WindowOverflow(is_guessed=True)
    bare = FakeReply(status, ((b"content-length", b"0"),), ())
    assert (await passes(bare, OpenAIChat(), near=False)).overflow is None


async def test_an_endless_error_is_read_only_so_far_and_goes_on() -> None:
    reply = Endless(b'{"message": "' + TOO_LONG.encode() + b'"} ')
    found = await probe_overflow(reply, OpenAIChat(), is_near_window=True, max_bytes=1000)
    assert found.overflow is None
    assert reply.read <= 1000 + len(reply.piece)
    pieces = found.response.chunks()
    assert b"".join([await anext(pieces) for _ in range(100)]) == reply.piece * 100
    await found.response.close()
    assert reply.closed


@pytest.mark.parametrize(
    ("status", "headers", "options"),
    [
        *((status, (*JSON, (b"content-length", b"100")), {}) for status in (429, 401, 503, 301)),
        (400, (*JSON, (b"content-length", b"2000000")), {}),
        (200, EVENTS, {"is_near_window": False}),
        (200, (*JSON, (b"content-length", b"2")), {"is_near_window": False}),
        (200, (*JSON, (b"content-length", b"%d" % (MAX_SMALL_DOCUMENT + 1))), {}),
        (200, JSON, {}),
        (200, ((b"content-type", b"audio/mpeg"), (b"content-length", b"5")), {"reads_start": True}),
    ],
    ids=[
        "429",
        "401",
        "503",
        "301",
        "too long an error",
        "a stream far from the window",
        "a document far from the window",
        "too long a document",
        "a document of unknown length without a compaction",
        "no text",
    ],
)
async def test_what_cannot_tell_of_an_overflow_or_is_too_long_is_not_read(
    status: int, headers: Headers, options: dict[str, bool]
) -> None:
    reply = Endless(sse(anthropic(TOO_LONG)), status, headers)
    probed = await probe_overflow(reply, AnthropicMessages(), **{"is_near_window": True, **options})
    assert (probed, reply.read) == (ProbedResponse(reply, None), 0)


@pytest.mark.parametrize("error", [UpstreamDisconnected("gone"), UpstreamTimeout("slow")])
@pytest.mark.parametrize("status", [200, 400])
async def test_an_error_while_reading_is_raised_at_its_position(status: int, error: Exception) -> None:
    body = json.dumps(anthropic(TOO_LONG)).encode() if status == 400 else sse(START)
    reply = FakeReply(status, EVENTS, (body[:30], body[30:]), error)  # type: ignore[arg-type]
    found = await probe_overflow(reply, AnthropicMessages(), is_near_window=True)
    assert found.overflow is None
    out = []
    with pytest.raises(type(error)) as raised:
        async for piece in found.response.chunks():
            out.append(piece)
    assert raised.value is error
    assert out == list(reply.pieces)


# -- streams ------------------------------------------------------------------------


CUTS = st.lists(st.integers(0, 2000), max_size=12).map(tuple)


@pytest.mark.parametrize(
    ("protocol", "body", "overflow"), [each[1:] for each in STREAMS], ids=[each[0] for each in STREAMS]
)
@given(cuts=CUTS)
def test_an_overflow_is_found_at_the_beginning_of_a_stream_however_it_is_cut(
    protocol: WireProtocol, body: bytes, overflow: WindowOverflow, cuts: tuple[int, ...]
) -> None:
    assert asyncio.run(passes(reply_of(body, cuts=cuts), protocol)).overflow == overflow
    encoded = reply_of(gzip.compress(body), (*EVENTS, (b"content-encoding", b"gzip")), cuts=cuts)
    assert asyncio.run(passes(encoded, protocol)).overflow == overflow


@pytest.mark.parametrize(("protocol", "body"), [each[1:] for each in BEGUN], ids=[each[0] for each in BEGUN])
@given(cuts=CUTS)
def test_a_stream_that_tells_of_no_overflow_goes_on_as_it_came(
    protocol: WireProtocol, body: bytes, cuts: tuple[int, ...]
) -> None:
    assert asyncio.run(passes(reply_of(body, cuts=cuts), protocol)).overflow is None


@given(st.lists(st.binary(max_size=40), max_size=8), st.sampled_from(SSE_PROTOCOLS), st.sampled_from([200, 400, 413]))
def test_no_bytes_however_odd_are_lost(pieces: list[bytes], protocol: WireProtocol, status: int) -> None:
    asyncio.run(passes(FakeReply(status, EVENTS, tuple(pieces)), protocol))


@pytest.mark.parametrize(
    ("protocol", "held", "decisive"),
    [
        (OpenAIChat(), [COMMENT], sse(chunk({"role": "assistant", "content": ""}))),
        (OpenAIResponses(), [sse(CREATED), sse(IN_PROGRESS)], sse(*RESPONSES[1:2])),
        (AnthropicMessages(), [sse(START), sse(PING)], sse(MESSAGES[1])),
        (PROTOCOLS["gemini"], [COMMENT], sse(GEMINI[1])),
    ],
    ids=NAMES,
)
async def test_only_the_beginning_of_a_stream_is_held(
    protocol: WireProtocol, held: list[bytes], decisive: bytes
) -> None:
    waiting = Stalled(list(held))
    task = asyncio.create_task(probe_overflow(waiting, protocol, is_near_window=True))
    await waiting.stalled.wait()
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    begun = Stalled([*held, decisive, b"data: more\n\n"])
    found = await probe_overflow(begun, protocol, is_near_window=True)
    assert found.overflow is None
    assert begun.read == len(held) + 1
    pieces = found.response.chunks()
    assert [await anext(pieces) for _ in range(len(held) + 2)] == begun.pieces


@pytest.mark.parametrize(
    "piece", [COMMENT, sse(PING), sse({"type": "keepalive", "sequence_number": 1}), b"retry: 5\n\n"]
)
async def test_a_stream_that_is_only_kept_alive_is_not_held_for_long(piece: bytes) -> None:
    reply = Stalled([piece] * (MAX_KEEPALIVES + 1))
    found = await probe_overflow(reply, AnthropicMessages(), is_near_window=True)
    assert found.overflow is None
    assert reply.read == MAX_KEEPALIVES + 1
    pieces = found.response.chunks()
    assert [await anext(pieces) for _ in reply.pieces] == reply.pieces


async def test_what_opens_a_stream_begins_the_wait_anew() -> None:
    body = sse(PING) * MAX_KEEPALIVES + sse(START) + sse(PING) * MAX_KEEPALIVES + sse(anthropic(TOO_LONG))
    assert (await passes(reply_of(body), AnthropicMessages())).overflow == NAMED


async def test_an_encoded_stream_that_cannot_be_read_is_not_held() -> None:
    coded: Headers = (*EVENTS, (b"content-encoding", b"gzip"))
    reply = Stalled([gzip.compress(b"")[:10], b"\xff" * 20, b"more"], coded)
    found = await probe_overflow(reply, AnthropicMessages(), is_near_window=True)
    assert (found.overflow, reply.read) == (None, 2)


async def test_a_body_read_in_two_goes_is_given_once() -> None:
    reply = reply_of(sse(START, MESSAGES[1], PING), cuts=(10, 20, 200))
    found = await probe_overflow(reply, AnthropicMessages(), is_near_window=True)
    async with aclosing(found.response.chunks()) as pieces:
        first = await anext(pieces)
    assert [first, *await given_on(found.response)] == list(reply.pieces)


@pytest.mark.parametrize("piece", [b"data: " + b"x" * 100, sse(CREATED), b"\n"], ids=["one event", "many", "none"])
async def test_no_more_of_a_stream_is_held_than_may_be(piece: bytes) -> None:
    reply = Endless(piece, 200, EVENTS)
    found = await probe_overflow(reply, OpenAIResponses(), is_near_window=True, max_bytes=5000)
    assert found.overflow is None
    assert reply.read <= 5000 + len(piece)
    pieces = found.response.chunks()
    assert b"".join([await anext(pieces) for _ in range(200)]) == piece * 200


async def test_an_opening_that_repeats_long_instructions_is_held_through() -> None:
    told = {**CREATED, "response": {**CREATED["response"], "instructions": f"x{TOO_LONG}" * 2000}}
    assert (await passes(reply_of(sse(told, told, STREAMED)), OpenAIResponses())).overflow == WindowOverflow()
    failed = {**FAILED, "response": {**FAILED["response"], "instructions": f"x{TOO_LONG}" * 2000}}
    assert (await passes(reply_of(sse(told, failed)), OpenAIResponses())).overflow == WindowOverflow()


@pytest.mark.parametrize("awaits_word", [False, True])
async def test_cancelling_while_it_is_held_lets_go_of_the_reply(awaits_word: bool) -> None:
    reply = Stalled([sse(START)])
    held = (
        hold_until(reply, b"word") if awaits_word else probe_overflow(reply, AnthropicMessages(), is_near_window=True)
    )
    task = asyncio.create_task(held)  # type: ignore[arg-type]
    await reply.stalled.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert reply.closed


@pytest.mark.parametrize("cut", range(1, 12))
async def test_a_word_in_two_pieces_is_found(cut: int) -> None:
    word = b'"compaction"'
    reply = Stalled([b"data: " + word[:cut], word[cut:]])
    response, body = await hold_until(reply, word)
    assert body == b""
    pieces = response.chunks()
    assert [await anext(pieces) for _ in reply.pieces] == reply.pieces


async def test_a_response_without_the_word_is_held_up_to_a_limit() -> None:
    reply = Endless(b"x" * 100, 200, EVENTS)
    response, body = await hold_until(reply, b"word", max_bytes=1_000)
    assert (reply.read, body) == (1_100, b"")
    await response.close()


async def test_closing_while_a_piece_is_waited_for_lets_go_of_the_reply() -> None:
    reply = Stalled([sse(START, MESSAGES[1])])
    found = await probe_overflow(reply, AnthropicMessages(), is_near_window=True)
    reading = asyncio.create_task(given_on(found.response))
    await reply.stalled.wait()
    await found.response.close()
    assert reply.closed
    reply.go_on.set()
    assert await reading == reply.pieces


async def test_a_reply_that_was_opened_and_never_read_can_be_closed() -> None:
    reply = reply_of(sse(anthropic(TOO_LONG), PING), cuts=(5, 50))
    found = await probe_overflow(reply, AnthropicMessages(), is_near_window=True)
    await found.response.close()
    await found.response.close()
    assert reply.closed


async def test_a_parser_that_fails_holds_up_nothing() -> None:
    class BrokenParser(MessagesParser):
        def feed(self, data: bytes) -> Any:
            raise KeyError("broken")

    class BrokenProtocol(AnthropicMessages):
        def parser(self, stream: bool, *, reads_content: bool = False) -> MessagesParser:
            return BrokenParser(is_stream=stream)

    assert (await passes(reply_of(sse(*MESSAGES), cuts=(40, 90)), BrokenProtocol())).overflow is None


async def test_the_relay_gives_on_an_opened_reply_as_it_gives_the_reply() -> None:
    for _, protocol, body in BEGUN[:3]:
        found = await probe_overflow(reply_of(body, cuts=tuple(range(0, len(body), 7))), protocol, is_near_window=True)
        seen: list[ObservedResponse] = []
        out = relay(found.response, protocol, ExchangeProgress(0.0), FakeClock(), "r1", seen.append)
        assert b"".join([piece async for piece in out]) == body
        plain = protocol.observer(stream=True)
        plain.feed(body)
        assert seen == [plain.observation()]


async def test_cancelling_while_it_is_held_is_noticed_by_the_provider() -> None:
    async def script(request: Recorded, answer: Answer) -> None:
        await answer.head(200, [("Content-Type", "text/event-stream")], chunked=True)
        await answer.chunk(sse(START))
        held.set()
        await answer.until_gone()
        gone.set()

    held, gone = asyncio.Event(), asyncio.Event()
    upstream = HttpUpstream(AiohttpTransport())
    async with Loopback(script) as server:
        reply = await upstream.send(UpstreamRequest("POST", server.url, (), b"{}"))
        task = asyncio.create_task(probe_overflow(reply, AnthropicMessages(), is_near_window=True))
        await held.wait()
        await asyncio.sleep(0)  # the task must have begun
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await gone.wait()
    await upstream.close()


# -- whole documents ------------------------------------------------------------------

MESSAGE = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": FULL}
COMPLETION = {
    "id": "c1",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": None}, "finish_reason": FULL}],
}
FAILURE = {"id": "resp_1", "object": "response", "status": "failed", "error": OPENAI_RESPONSES, "output": []}


def document(value: object, encoding: bytes = b"") -> FakeReply:
    raw = json.dumps(value).encode()
    raw = gzip.compress(raw) if encoding else raw
    length = (b"Content-Length", b"%d" % len(raw))
    coding: Headers = ((b"content-encoding", encoding),) if encoding else ()
    return reply_of(raw, (*JSON, length, *coding), cuts=(4, 40))


@pytest.mark.parametrize("encoding", [b"", b"gzip"])
@pytest.mark.parametrize(
    ("protocol", "value", "overflow"),
    [
        (AnthropicMessages(), MESSAGE, WindowOverflow()),
        (OpenAIChat(), COMPLETION, WindowOverflow()),
        (OpenAIResponses(), FAILURE, WindowOverflow()),
        (OpenAIChat(), {"error": {"message": TOO_LONG, "code": 400}}, NAMED),
    ],
    ids=["messages", "chat", "responses", "an error with a 200"],
)
async def test_a_small_document_with_nothing_in_it_is_an_overflow(
    protocol: WireProtocol, value: object, overflow: WindowOverflow, encoding: bytes
) -> None:
    assert (await passes(document(value, encoding), protocol)).overflow == overflow


@pytest.mark.parametrize(
    "value",
    [
        {**MESSAGE, "content": [{"type": "text", "text": "So far."}]},
        {**MESSAGE, "content": [{"type": "tool_use", "id": "t", "name": "read", "input": {}}]},
        {**MESSAGE, "stop_reason": "end_turn"},
        {**MESSAGE, "content": [{"type": "text", "text": TOO_LONG}], "stop_reason": "end_turn"},
        {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
        [],
        7,
    ],
)
async def test_a_small_document_that_says_something_goes_on(value: object) -> None:
    assert (await passes(document(value), AnthropicMessages())).overflow is None


async def test_a_document_of_unknown_length_is_read_while_it_is_small() -> None:
    error = json.dumps(anthropic(TOO_LONG)).encode()
    for headers in (JSON, (*JSON, (b"content-length", b"1e3"))):
        found = await passes(reply_of(error, headers, cuts=(9, 30)), AnthropicMessages())
        assert found.overflow == NAMED
        endless = Endless(b'{"content": "more and more"} ', 200, headers)
        found = await probe_overflow(endless, AnthropicMessages(), is_near_window=True, reads_start=True)
        assert (found.overflow, found.refusal) == (None, b"")
        assert endless.read <= MAX_SMALL_DOCUMENT + len(endless.piece)


async def test_blank_pieces_before_a_document_are_held_no_longer_than_pings() -> None:
    reply = Endless(b"\n", 200, JSON)
    found = await probe_overflow(reply, AnthropicMessages(), is_near_window=True, reads_start=True)
    assert (found.overflow, reply.read) == (None, MAX_KEEPALIVES + 1)


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize("kind", [b"application/json", b"text/event-stream", b"text/plain", b""])
async def test_an_error_in_a_document_is_a_refusal_whatever_its_headers_and_form(name: str, kind: bytes) -> None:
    headers: Headers = ((b"content-type", kind),) if kind else ()
    for error in (request_error(name, "No."), {"error": "No."}, {"detail": "No."}, {"message": "No.", "code": 7}):
        body = json.dumps(error).encode()
        for encoding, raw in ((b"", body), (b"gzip", gzip.compress(body)), (b"", b"\n\n" + body)):
            coding: Headers = ((b"content-encoding", encoding),) if encoding else ()
            found = await passes(reply_of(raw, (*headers, *coding), cuts=(5, 20)), PROTOCOLS[name])
            assert (found.overflow, found.refusal) == (None, body)


async def test_a_list_of_responses_is_held_until_the_first_one_is_whole() -> None:
    answers, error = json.dumps([GEMINI[1], GEMINI[1]]).encode(), request_error("gemini", TOO_LONG)
    at = answers.index(b"}, {")
    begun = Stalled([answers[:9], answers[9:at], answers[at : at + 3]], JSON)
    found = await probe_overflow(begun, PROTOCOLS["gemini"], is_near_window=True, reads_start=True)
    assert (found.overflow, found.refusal, begun.read) == (None, b"", 3)
    refused = Stalled([b"[" + json.dumps(error).encode()], JSON)
    assert (await probe_overflow(refused, PROTOCOLS["gemini"], is_near_window=True, reads_start=True)).overflow == NAMED


@pytest.mark.parametrize("body", [b"plain words", b"data: {}\n\n"])
async def test_what_begins_like_no_document_is_not_held(body: bytes) -> None:
    begun = Stalled([body], ((b"content-type", b"text/plain"),))
    assert (await probe_overflow(begun, OpenAIChat(), is_near_window=True, reads_start=True)).refusal == b""
