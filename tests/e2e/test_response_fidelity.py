"""A reply comes back as the provider sent it: status, headers, every byte, every event as soon as it is whole."""

import asyncio
import gzip
import zlib
from collections.abc import Callable

import brotli
import httpx
import pytest
import zstandard

from tests.e2e.protocol_samples import CHAT, EACH, RESPONSES, ProtocolSamples
from tests.e2e.proxy_api import get_session
from tests.e2e.raw_client import connected, post
from tests.loopback import Answer, Recorded, compress, replies_bytes, replies_events, replies_json
from tests.proxy_process import Proxy

SSE = ("Content-Type", "text/event-stream; charset=utf-8")


async def totals(proxy: Proxy, session_id: str) -> dict[str, int]:
    found: dict[str, int] = (await get_session(proxy, session_id))["totals"]
    return found


def pack(data: bytes, encoding: str) -> bytes:
    return brotli.compress(data) if encoding == "br" else compress(data, encoding)


async def test_status_and_headers_come_back_in_their_order_and_as_often_as_they_were_sent(proxy: Proxy):
    own = [
        (b"Content-Type", b"application/json"),
        (b"Set-Cookie", b"a=1; Path=/"),
        (b"x-request-id", b"up-1"),
        (b"Set-Cookie", b"b=2"),
        (b"X-RateLimit-Remaining-Tokens", b"149,984"),
        (b"openai-processing-ms", b"17"),
        (b"X-Odd", b"caf\xe9"),
        (b"x-empty", b""),
        (b"Date", b"Tue, 15 Nov 1994 08:12:31 GMT"),
        (b"Server", b"upstream"),
        (b"Content-Length", b"2"),
    ]
    hop = b"Connection: keep-alive, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\nProxy-Authenticate: Basic\r\n"
    raw = b"HTTP/1.1 203 Strange Words\r\n" + hop + b"".join(b"%b: %b\r\n" % pair for pair in own) + b"\r\n{}"
    async with proxy.provider(replies_bytes(raw)):
        reply = await post(proxy, CHAT.path, CHAT.body("Headers."))
    assert reply.status == 203
    assert [(n.lower(), v) for n, v in reply.foreign] == [(n.lower(), v) for n, v in own]
    assert reply.body == b"{}"


async def test_what_another_proxy_behind_this_one_says_of_itself_is_not_said_twice(proxy: Proxy):
    theirs = [("X-Accordion-Window", "7"), ("x-accordion-compaction", "{}"), ("X-Request-Id", "up-1")]
    async with proxy.provider(replies_json(CHAT.json(), 200, theirs)):
        reply = await post(proxy, CHAT.path, CHAT.body("Which window?"))
    own = [(name, value) for name, value in reply.headers if name.lower().startswith(b"x-accordion-")]
    assert [name for name, _ in own if name.lower() == b"x-accordion-window"] == [b"x-accordion-window"]
    assert reply.header("x-accordion-window") == "128000"
    assert reply.header("x-accordion-compaction") is None
    assert reply.header("x-request-id") == "up-1"


@EACH
@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_an_encoded_reply_is_the_same_bytes_and_its_usage_is_read(
    proxy: Proxy, protocol: ProtocolSamples, encoding: str, stream: bool
):
    plain = protocol.stream(given=123) if stream else httpx.Response(200, json=protocol.json(given=123)).content
    body = pack(plain, encoding)
    kind = "text/event-stream" if stream else "application/json"
    named = f"Content-Type: {kind}\r\nContent-Encoding: {encoding}\r\nContent-Length: {len(body)}\r\n\r\n"
    async with proxy.provider(replies_bytes(b"HTTP/1.1 200 OK\r\n" + named.encode() + body)) as provider:
        asked = protocol.body(f"Reply in {encoding}, {stream}.", stream=stream)
        reply = await post(proxy, protocol.target(stream=stream), asked, ("Accept-Encoding", f"{encoding}, x-odd"))
    assert provider.requests[0].header("accept-encoding") == f"{encoding}, x-odd"
    assert (reply.body, reply.header("content-encoding")) == (body, encoding)
    assert (await totals(proxy, reply.header("x-accordion-session") or ""))["input"] == 123


@EACH
@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
async def test_a_stream_split_at_every_byte_is_the_same_bytes_and_its_usage_is_read(
    proxy: Proxy, protocol: ProtocolSamples, newline: bytes
):
    stream = (b": hello\n\n" + protocol.stream("é €.", given=77)).replace(b"\n", newline)
    async with proxy.provider(replies_events(stream, range(len(stream)))):
        reply = await post(proxy, protocol.target(stream=True), protocol.body(f"Split by {newline!r}.", stream=True))
    assert reply.body == stream
    assert reply.ended
    assert (await totals(proxy, reply.header("x-accordion-session") or ""))["input"] == 77


async def test_a_stream_split_at_any_one_byte_is_the_same_bytes(proxy: Proxy):
    stream = b": c\r\n\r\n" + b"data: {}\n\n\n" + b"event: x\rdata: 1\r\r" + b"data: [DONE]\n\n"
    for at in range(1, len(stream)):
        async with proxy.provider(replies_events(stream, [at])):
            reply = await post(proxy, CHAT.path, CHAT.body("Once.", stream=True))
        assert (reply.body, reply.ended) == (stream, True), at


async def test_a_stream_whose_last_event_is_not_ended_by_an_empty_line_arrives_whole(proxy: Proxy):
    stream = b"data: {}\n\ndata: [DONE]"
    async with proxy.provider(replies_events(stream)):
        reply = await post(proxy, CHAT.path, CHAT.body("No end.", stream=True))
    assert (reply.body, reply.ended) == (stream, True)


@pytest.mark.parametrize(
    "stream", [b"\n\n\n", b"nonsense", b"data: {not json\n\ndata: [DONE]\n\n", b"\xff\xfe\n\n" * 9]
)
async def test_a_stream_that_is_none_arrives_as_it_is(proxy: Proxy, stream: bytes):
    async with proxy.provider(replies_events(stream)):
        reply = await post(proxy, CHAT.path, CHAT.body("Odd.", stream=True))
    assert (reply.body, reply.ended) == (stream, True)


async def test_one_event_of_megabytes_arrives_whole(proxy: Proxy):
    stream = b'data: {"a": "' + b"x" * 5_000_000 + b'"}\n\n' + CHAT.stream(given=55)
    async with proxy.provider(replies_events(stream)):
        reply = await post(proxy, CHAT.path, CHAT.body("Large.", stream=True))
    assert reply.body == stream
    assert (await totals(proxy, reply.header("x-accordion-session") or ""))["input"] == 55


# -- in step ---------------------------------------------------------------------------------------------------------


def flushing(encoding: str) -> Callable[[bytes], bytes]:
    """Encodes piece by piece, each so that what came so far can be read."""
    if encoding == "gzip":
        packer = zlib.compressobj(wbits=31)
        return lambda data: packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH)
    if encoding == "zstd":
        maker = zstandard.ZstdCompressor().compressobj()
        return lambda data: maker.compress(data) + maker.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    if encoding == "br":
        maker = brotli.Compressor()
        return lambda data: maker.process(data) + maker.flush()
    return bytes


async def in_step(proxy: Proxy, protocol: ProtocolSamples, events: list[bytes], encoding: str = "") -> None:
    """The provider sends each event only when the client has the one before."""
    arrived = [asyncio.Event() for _ in events]
    packed = list(map(flushing(encoding), events))

    async def script(request: Recorded, answer: Answer) -> None:
        await answer.head(200, [SSE, *([("Content-Encoding", encoding)] if encoding else [])], chunked=True)
        for piece, seen in zip(packed, arrived, strict=True):
            await answer.chunk(piece)
            await seen.wait()
        await answer.last_chunk()

    async with proxy.provider(script), connected(proxy) as client:
        await client.ask("POST", protocol.target(stream=True), [], protocol.body("In step.", stream=True))
        reply = await client.head()
        have, due = b"", b""
        pieces = client.pieces(reply)
        for piece, seen in zip(packed, arrived, strict=True):
            due += piece
            while len(have) < len(due):
                have += await anext(pieces)
            assert have == due
            seen.set()
        assert [rest async for rest in pieces] == []
        assert reply.ended


@EACH
@pytest.mark.parametrize("encoding", ["", "gzip", "br", "zstd"])
async def test_each_event_arrives_before_the_next_is_sent(proxy: Proxy, protocol: ProtocolSamples, encoding: str):
    await in_step(proxy, protocol, protocol.events("one two three"), encoding)


@pytest.mark.parametrize("newline", [b"\r\n", b"\r"], ids=["CRLF", "CR"])
async def test_each_event_arrives_at_once_whatever_ends_its_lines(proxy: Proxy, newline: bytes):
    events = [event.replace(b"\n", newline) for event in CHAT.events("one two")]
    await in_step(proxy, CHAT, events)


async def test_comments_and_pings_pass_at_once(proxy: Proxy):
    ping = b'event: ping\ndata: {"type": "ping"}\n\n'
    await in_step(proxy, RESPONSES, [b": keep-alive\n\n", ping, b":\n\n", ping, *RESPONSES.events()])


async def test_a_reply_that_is_no_event_stream_passes_piece_by_piece(proxy: Proxy):
    """Piece by piece means every piece: nothing waits for an end that only event streams have."""
    pieces, arrived = [b'{"a', b'": [', b"1, 2", b"]}"], asyncio.Queue[bytes]()

    async def script(request: Recorded, answer: Answer) -> None:
        await answer.head(200, [("Content-Type", "application/json")], chunked=True)
        for piece in pieces:
            await answer.chunk(piece)
            assert await arrived.get() == piece
        await answer.last_chunk()

    async with proxy.provider(script), connected(proxy) as client:
        await client.ask("POST", CHAT.path, [], CHAT.body("Pieces."))
        async for piece in client.pieces(await client.head()):
            arrived.put_nowait(piece)


async def test_the_head_arrives_before_the_body_begins(proxy: Proxy):
    seen = asyncio.Event()

    async def script(request: Recorded, answer: Answer) -> None:
        await answer.head(200, [SSE], chunked=True)
        await seen.wait()
        await answer.chunk(CHAT.stream())
        await answer.last_chunk()

    async with proxy.provider(script), connected(proxy) as client:
        await client.ask("POST", CHAT.path, [], CHAT.body("Head.", stream=True))
        reply = await client.head()
        seen.set()
        assert b"".join([piece async for piece in client.pieces(reply)]) == CHAT.stream()


async def test_several_gzip_members_are_the_same_bytes(proxy: Proxy):
    body = gzip.compress(b'{"a": 1', mtime=0) + gzip.compress(b"}", mtime=0)
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    async with proxy.provider(replies_bytes(head + body)):
        assert (await post(proxy, CHAT.path, CHAT.body("Members."))).body == body
