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

from accordion.accounting.overflow import Overflow
from accordion.core.errors import UpstreamCut, UpstreamTimeout
from accordion.core.ports import Headers, UpstreamReply, UpstreamRequest
from accordion.core.records import ReplySeen
from accordion.dialects.base import Dialect
from accordion.dialects.chat import ChatCompletions
from accordion.dialects.messages import Messages
from accordion.dialects.responses import Responses
from accordion.opening import MOST_IDLE, SMALL, Opened, opened
from accordion.relay import Course, relay
from accordion.upstream.client import HttpUpstream
from accordion.upstream.transport import AiohttpTransport
from tests.accounting.test_overflow import OPENAI_RESPONSES, ORDINARY, OVERFLOWS, anthropic
from tests.fakes import FakeClock, FakeReply
from tests.loopback import Answer, Loopback, Recorded
from tests.replies import CHAT, DIALECTS, MESSAGES, RESPONSES, chunk, sse

JSON: Headers = ((b"content-type", b"application/json"),)
EVENTS: Headers = ((b"Content-Type", b"text/event-stream; charset=utf-8"),)
TOO_LONG = "prompt is too long: 208310 tokens > 200000 maximum"
NAMED = Overflow(200_000, 208_310)
FULL = "model_context_window_exceeded"
NAMES = [dialect.name for dialect in DIALECTS]

CREATED, IN_PROGRESS, QUEUED = (
    {"type": f"response.{kind}", "response": {"id": "resp_1", "model": "m", "status": kind, "error": None}}
    for kind in ("created", "in_progress", "queued")
)
START, PING = MESSAGES[0], {"type": "ping"}
STREAMED = {"type": "error", "sequence_number": 2, "error": OPENAI_RESPONSES}
FAILED = {"type": "response.failed", "response": {"id": "resp_1", "status": "failed", "error": OPENAI_RESPONSES}}
ENDED = {"type": "message_delta", "delta": {"stop_reason": FULL}, "usage": {"output_tokens": 0}}
COMMENT = b": OPENROUTER PROCESSING\n\n"

STREAMS: list[tuple[str, Dialect, bytes, Overflow]] = [
    ("chat, error first", ChatCompletions(), sse({"error": {"message": TOO_LONG, "code": 400}}), NAMED),
    ("chat, after comments", ChatCompletions(), COMMENT * 2 + sse({"error": {"message": TOO_LONG}}), NAMED),
    ("chat, in an array", ChatCompletions(), sse([{"error": {"message": TOO_LONG}}]), NAMED),
    ("chat, as a string", ChatCompletions(), sse({"error": json.dumps({"error": {"message": TOO_LONG}})}), NAMED),
    ("chat, flat", ChatCompletions(), sse({"object": "error", "message": TOO_LONG, "code": 400}, "[DONE]"), NAMED),
    ("chat, as text", ChatCompletions(), b"event:error\ndata:" + TOO_LONG.encode() + b"\n\n", NAMED),
    ("chat, finish", ChatCompletions(), sse(chunk({"role": "assistant", "content": ""}, FULL)), Overflow()),
    ("responses, error first", Responses(), sse(STREAMED, named=True), Overflow()),
    ("responses, after its opening", Responses(), sse(CREATED, QUEUED, IN_PROGRESS, STREAMED, named=True), Overflow()),
    ("responses, failed", Responses(), sse(CREATED, IN_PROGRESS, FAILED), Overflow()),
    (
        "responses, flat",
        Responses(),
        sse(CREATED, {"type": "error", "code": "context_length_exceeded", "message": "No.", "param": None}),
        Overflow(),
    ),
    ("responses, by name", Responses(), b'event: error\ndata: {"message": "' + TOO_LONG.encode() + b'"}\n\n', NAMED),
    ("messages, by name", Messages(), b'event:error\ndata: "' + TOO_LONG.encode() + b'"\n\n', NAMED),
    ("messages, error first", Messages(), sse(anthropic(TOO_LONG), named=True), NAMED),
    ("messages, after its opening", Messages(), sse(START, PING, anthropic(TOO_LONG), named=True), NAMED),
    ("messages, stop reason", Messages(), sse(START, PING, ENDED, {"type": "message_stop"}), Overflow()),
    ("lines ended by CR LF", Messages(), sse(START, anthropic(TOO_LONG), named=True, end="\r\n"), NAMED),
    ("the last event not ended", Messages(), sse(START, anthropic(TOO_LONG)).rstrip(), NAMED),
]

BEGUN: list[tuple[str, Dialect, bytes]] = [
    ("chat", ChatCompletions(), sse(*CHAT)),
    ("responses", Responses(), sse(CREATED, IN_PROGRESS, *RESPONSES[1:])),
    ("messages", Messages(), sse(*MESSAGES)),
    ("another error", Messages(), sse(START, anthropic("Overloaded", "overloaded_error"))),
    ("a rate limit", ChatCompletions(), sse({"error": {"message": f"rate limit: {TOO_LONG}", "code": 429}})),
    ("an error behind content", Messages(), sse(*MESSAGES[:4], anthropic(TOO_LONG))),
    ("full behind content", Messages(), sse(*MESSAGES[:4], ENDED)),
    ("full with content", ChatCompletions(), sse(chunk({"content": "So "}, FULL))),
    ("full with a call", ChatCompletions(), sse(chunk({"tool_calls": [{"id": "c", "function": {"name": "n"}}]}, FULL))),
    ("content that speaks of it", ChatCompletions(), sse(chunk({"content": TOO_LONG}))),
    ("an error behind the first chunk", ChatCompletions(), sse(chunk({"role": "assistant"}), {"error": TOO_LONG})),
    ("nothing", Responses(), b""),
    ("no events", ChatCompletions(), b"\x00\xff\r\r\n data: [[["),
    ("odd data", Messages(), b"data: [1\n\ndata: 7\n\n"),
]


def reply_of(body: bytes, headers: Headers = EVENTS, status: int = 200, cuts: tuple[int, ...] = ()) -> FakeReply:
    at = [0, *sorted({cut % (len(body) + 1) for cut in cuts}), len(body)]
    return FakeReply(status, headers, tuple(body[a:b] for a, b in pairwise(at)))


async def given_on(reply: UpstreamReply) -> list[bytes]:
    return [piece async for piece in reply.chunks()]


async def passes(reply: FakeReply, dialect: Dialect, *, near: bool = True) -> Opened:
    """Opens a reply that must go on as it came."""
    found = await opened(reply, dialect, near=near)
    assert (found.reply.status, found.reply.headers, found.reply.delimited) == (
        reply.status,
        reply.headers,
        reply.delimited,
    )
    assert await given_on(found.reply) == list(reply.pieces)
    assert not reply.closed
    await found.reply.close()
    assert reply.closed
    return found


@dataclass
class Stalled:
    """A reply that stalls behind its pieces until it is let go on."""

    pieces: list[bytes]
    headers: Headers = EVENTS
    status: int = 200
    delimited: bool = True
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
    delimited: bool = True
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
@pytest.mark.parametrize("dialect", DIALECTS, ids=NAMES)
@pytest.mark.parametrize(
    ("status", "body", "limit", "asked"),
    [each[1:] for each in OVERFLOWS if each[1] >= 400],
    ids=[each[0] for each in OVERFLOWS if each[1] >= 400],
)
async def test_an_overflow_is_found_in_every_shape_and_still_given_on(
    dialect: Dialect, near: bool, status: int, body: object, limit: int | None, asked: int | None
) -> None:
    reply = reply_of(json.dumps(body).encode(), JSON, status, (7, 40))
    assert (await passes(reply, dialect, near=near)).overflow == Overflow(limit, asked)


@pytest.mark.parametrize(("status", "body"), ORDINARY)
async def test_an_error_that_is_no_overflow_goes_on_as_it_came(status: int, body: object) -> None:
    raw = (body if isinstance(body, str) else json.dumps(body)).encode()
    reply = reply_of(raw, (*JSON, (b"X-Request-Id", b"r1"), (b"Content-Length", b"%d" % len(raw))), status, (3,))
    reply.delimited = False
    assert (await passes(reply, ChatCompletions(), near=False)).overflow is None


@pytest.mark.parametrize("encode", [gzip.compress, brotli.compress], ids=["gzip", "br"])
async def test_an_encoded_error_is_read_and_goes_on_encoded(encode: Any) -> None:
    raw = encode(json.dumps(anthropic(TOO_LONG)).encode())
    coding = b"gzip" if encode is gzip.compress else b"br"
    reply = reply_of(raw, (*JSON, (b"Content-Encoding", coding)), 400, (5, 20))
    assert (await passes(reply, Messages())).overflow == NAMED


@pytest.mark.parametrize("raw", [b"no gzip at all", gzip.compress(b" " * (3 << 20) + TOO_LONG.encode())])
async def test_an_encoding_that_cannot_be_undone_goes_on_unread(raw: bytes) -> None:
    reply = reply_of(raw, (*JSON, (b"content-encoding", b"gzip")), 400)
    assert (await passes(reply, Messages())).overflow is None


@pytest.mark.parametrize("status", [400, 413])
async def test_a_bare_refusal_is_an_overflow_only_near_the_window(status: int) -> None:
    bare = FakeReply(status, ((b"content-length", b"0"),), ())
    assert (await passes(bare, ChatCompletions())).overflow == Overflow(guessed=True)
    bare = FakeReply(status, ((b"content-length", b"0"),), ())
    assert (await passes(bare, ChatCompletions(), near=False)).overflow is None


async def test_an_endless_error_is_read_only_so_far_and_goes_on() -> None:
    reply = Endless(b'{"message": "' + TOO_LONG.encode() + b'"} ')
    found = await opened(reply, ChatCompletions(), near=True, max_bytes=1000)
    assert found.overflow is None
    assert reply.read <= 1000 + len(reply.piece)
    pieces = found.reply.chunks()
    assert b"".join([await anext(pieces) for _ in range(100)]) == reply.piece * 100
    await found.reply.close()
    assert reply.closed


@pytest.mark.parametrize(
    ("status", "length"), [(400, b"2000000"), (429, b"100"), (401, b"100"), (503, b"100"), (301, b"100")]
)
async def test_what_cannot_be_an_overflow_or_is_too_long_is_not_read(status: int, length: bytes) -> None:
    reply = Endless(b"x", status, (*JSON, (b"content-length", length)))
    assert await opened(reply, ChatCompletions(), near=True) == Opened(reply, None)
    assert reply.read == 0


@pytest.mark.parametrize("error", [UpstreamCut("gone"), UpstreamTimeout("slow")])
@pytest.mark.parametrize("status", [200, 400])
async def test_what_goes_wrong_while_reading_is_raised_in_its_place(status: int, error: Exception) -> None:
    body = json.dumps(anthropic(TOO_LONG)).encode() if status == 400 else sse(START)
    reply = FakeReply(status, EVENTS, (body[:30], body[30:]), error)  # type: ignore[arg-type]
    found = await opened(reply, Messages(), near=True)
    assert found.overflow is None
    out = []
    with pytest.raises(type(error)) as raised:
        async for piece in found.reply.chunks():
            out.append(piece)
    assert raised.value is error
    assert out == list(reply.pieces)


# -- streams ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dialect", "body", "overflow"), [each[1:] for each in STREAMS], ids=[each[0] for each in STREAMS]
)
async def test_an_overflow_is_found_at_the_beginning_of_a_stream(
    dialect: Dialect, body: bytes, overflow: Overflow
) -> None:
    assert (await passes(reply_of(body), dialect)).overflow == overflow
    encoded = reply_of(gzip.compress(body), (*EVENTS, (b"content-encoding", b"gzip")), cuts=(10, 30))
    assert (await passes(encoded, dialect)).overflow == overflow


@pytest.mark.parametrize(("dialect", "body"), [each[1:] for each in BEGUN], ids=[each[0] for each in BEGUN])
async def test_a_stream_that_tells_of_no_overflow_goes_on_as_it_came(dialect: Dialect, body: bytes) -> None:
    assert (await passes(reply_of(body), dialect)).overflow is None
    assert (await passes(reply_of(body, cuts=tuple(range(0, len(body), 5))), dialect)).overflow is None


@given(st.sampled_from(STREAMS), st.lists(st.integers(0, 2000), max_size=12).map(tuple))
def test_however_a_stream_is_cut_an_overflow_is_found_and_every_byte_goes_on(
    stream: tuple[str, Dialect, bytes, Overflow], cuts: tuple[int, ...]
) -> None:
    found = asyncio.run(passes(reply_of(stream[2], cuts=cuts), stream[1]))
    assert found.overflow == stream[3]


@given(st.sampled_from(BEGUN), st.lists(st.integers(0, 2000), max_size=12).map(tuple))
def test_however_a_stream_is_cut_an_answer_goes_on_byte_by_byte(
    stream: tuple[str, Dialect, bytes], cuts: tuple[int, ...]
) -> None:
    assert asyncio.run(passes(reply_of(stream[2], cuts=cuts), stream[1])).overflow is None


@given(st.lists(st.binary(max_size=40), max_size=8), st.sampled_from(DIALECTS), st.sampled_from([200, 400, 413]))
def test_no_bytes_however_odd_are_lost(pieces: list[bytes], dialect: Dialect, status: int) -> None:
    asyncio.run(passes(FakeReply(status, EVENTS, tuple(pieces)), dialect))


@pytest.mark.parametrize(
    ("dialect", "held", "decisive"),
    [
        (ChatCompletions(), [COMMENT], sse(chunk({"role": "assistant", "content": ""}))),
        (Responses(), [sse(CREATED), sse(IN_PROGRESS)], sse(*RESPONSES[1:2])),
        (Messages(), [sse(START), sse(PING)], sse(MESSAGES[1])),
    ],
    ids=NAMES,
)
async def test_only_the_beginning_of_a_stream_is_held(dialect: Dialect, held: list[bytes], decisive: bytes) -> None:
    waiting = Stalled(list(held))
    task = asyncio.create_task(opened(waiting, dialect, near=True))
    await waiting.stalled.wait()
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    begun = Stalled([*held, decisive, b"data: more\n\n"])
    found = await opened(begun, dialect, near=True)
    assert found.overflow is None
    assert begun.read == len(held) + 1
    pieces = found.reply.chunks()
    assert [await anext(pieces) for _ in range(len(held) + 2)] == begun.pieces


async def test_a_stream_is_not_touched_far_from_the_window() -> None:
    for reply in (
        Endless(sse(anthropic(TOO_LONG)), 200, EVENTS),
        Endless(b"{}", 200, (*JSON, (b"content-length", b"2"))),
    ):
        assert await opened(reply, Messages(), near=False) == Opened(reply, None)
        assert reply.read == 0


@pytest.mark.parametrize(
    "piece", [COMMENT, sse(PING), sse({"type": "keepalive", "sequence_number": 1}), b"retry: 5\n\n"]
)
async def test_a_stream_that_is_only_kept_alive_is_not_held_for_long(piece: bytes) -> None:
    reply = Stalled([piece] * (MOST_IDLE + 1))
    found = await opened(reply, Messages(), near=True)
    assert found.overflow is None
    assert reply.read == MOST_IDLE + 1
    pieces = found.reply.chunks()
    assert [await anext(pieces) for _ in reply.pieces] == reply.pieces


async def test_what_opens_a_stream_begins_the_wait_anew() -> None:
    body = sse(PING) * MOST_IDLE + sse(START) + sse(PING) * MOST_IDLE + sse(anthropic(TOO_LONG))
    assert (await passes(reply_of(body), Messages())).overflow == NAMED


async def test_an_encoded_stream_that_cannot_be_read_is_not_held() -> None:
    coded: Headers = (*EVENTS, (b"content-encoding", b"gzip"))
    reply = Stalled([gzip.compress(b"")[:10], b"\xff" * 20, b"more"], coded)
    found = await opened(reply, Messages(), near=True)
    assert (found.overflow, reply.read) == (None, 2)


async def test_a_body_read_in_two_goes_is_given_once() -> None:
    reply = reply_of(sse(START, MESSAGES[1], PING), cuts=(10, 20, 200))
    found = await opened(reply, Messages(), near=True)
    async with aclosing(found.reply.chunks()) as pieces:
        first = await anext(pieces)
    assert [first, *await given_on(found.reply)] == list(reply.pieces)


@pytest.mark.parametrize("piece", [b"data: " + b"x" * 100, sse(CREATED), b"\n"], ids=["one event", "many", "none"])
async def test_no_more_of_a_stream_is_held_than_may_be(piece: bytes) -> None:
    reply = Endless(piece, 200, EVENTS)
    found = await opened(reply, Responses(), near=True, max_bytes=5000)
    assert found.overflow is None
    assert reply.read <= 5000 + len(piece)
    pieces = found.reply.chunks()
    assert b"".join([await anext(pieces) for _ in range(200)]) == piece * 200


async def test_an_opening_that_repeats_long_instructions_is_held_through() -> None:
    told = {**CREATED, "response": {**CREATED["response"], "instructions": f"x{TOO_LONG}" * 2000}}
    assert (await passes(reply_of(sse(told, told, STREAMED)), Responses())).overflow == Overflow()
    failed = {**FAILED, "response": {**FAILED["response"], "instructions": f"x{TOO_LONG}" * 2000}}
    assert (await passes(reply_of(sse(told, failed)), Responses())).overflow == Overflow()


async def test_cancelling_while_it_is_held_lets_go_of_the_reply() -> None:
    reply = Stalled([sse(START)])
    task = asyncio.create_task(opened(reply, Messages(), near=True))
    await reply.stalled.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert reply.closed


async def test_closing_while_a_piece_is_waited_for_lets_go_of_the_reply() -> None:
    reply = Stalled([sse(START, MESSAGES[1])])
    found = await opened(reply, Messages(), near=True)
    reading = asyncio.create_task(given_on(found.reply))
    await reply.stalled.wait()
    await found.reply.close()
    assert reply.closed
    reply.go_on.set()
    assert await reading == reply.pieces


async def test_a_reply_that_was_opened_and_never_read_can_be_closed() -> None:
    reply = reply_of(sse(anthropic(TOO_LONG), PING), cuts=(5, 50))
    found = await opened(reply, Messages(), near=True)
    await found.reply.close()
    await found.reply.close()
    assert reply.closed


async def test_a_dialect_that_fails_to_listen_holds_up_nothing() -> None:
    class Deaf(Messages):
        def tap(self, stream: bool) -> Any:
            raise KeyError("broken")

    assert (await passes(reply_of(sse(*MESSAGES), cuts=(40, 90)), Deaf())).overflow is None


async def test_the_relay_gives_on_an_opened_reply_as_it_gives_the_reply() -> None:
    for _, dialect, body in BEGUN[:3]:
        found = await opened(reply_of(body, cuts=tuple(range(0, len(body), 7))), dialect, near=True)
        seen: list[ReplySeen] = []
        out = relay(found.reply, dialect, Course(0.0), FakeClock(), "r1", seen.append)
        assert b"".join([piece async for piece in out]) == body
        plain = dialect.tap(stream=True)
        plain.feed(body)
        assert seen == [plain.seen()]


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
        task = asyncio.create_task(opened(reply, Messages(), near=True))
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
    ("dialect", "value", "overflow"),
    [
        (Messages(), MESSAGE, Overflow()),
        (ChatCompletions(), COMPLETION, Overflow()),
        (Responses(), FAILURE, Overflow()),
        (ChatCompletions(), {"error": {"message": TOO_LONG, "code": 400}}, NAMED),
    ],
    ids=["messages", "chat", "responses", "an error with a 200"],
)
async def test_a_small_document_with_nothing_in_it_is_an_overflow(
    dialect: Dialect, value: object, overflow: Overflow, encoding: bytes
) -> None:
    assert (await passes(document(value, encoding), dialect)).overflow == overflow


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
    assert (await passes(document(value), Messages())).overflow is None


async def test_a_document_that_is_long_or_of_unknown_length_is_not_read() -> None:
    for headers in (JSON, (*JSON, (b"content-length", b"%d" % SMALL)), (*JSON, (b"content-length", b"1e3"))):
        reply = Endless(json.dumps(MESSAGE).encode(), 200, headers)
        assert await opened(reply, Messages(), near=True) == Opened(reply, None)
        assert reply.read == 0


async def test_a_document_of_another_kind_is_not_read() -> None:
    reply = Endless(b"x", 200, ((b"content-type", b"audio/mpeg"), (b"content-length", b"5")))
    assert await opened(reply, Messages(), near=True) == Opened(reply, None)
