"""A reply comes back as the provider sent it: status, headers, every byte, every event as soon as it is whole."""

import asyncio
import json
import zlib
from collections.abc import Callable

import brotli
import pytest
import zstandard

from tests.e2e.protocol_samples import CHAT, PROTOCOLS, ProtocolSamples
from tests.e2e.proxy_api import get_session
from tests.e2e.raw_client import connected, post
from tests.loopback import Answer, Recorded, compress, replies_bytes
from tests.proxy_process import Proxy

SSE = ("Content-Type", "text/event-stream; charset=utf-8")


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


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_an_encoded_reply_is_the_same_bytes_and_its_usage_is_read(proxy: Proxy, encoding: str, stream: bool):
    plain = CHAT.stream(given=123) if stream else json.dumps(CHAT.json(given=123)).encode()
    body = pack(plain, encoding)
    kind = "text/event-stream" if stream else "application/json"
    named = f"Content-Type: {kind}\r\nContent-Encoding: {encoding}\r\nContent-Length: {len(body)}\r\n\r\n"
    async with proxy.provider(replies_bytes(b"HTTP/1.1 200 OK\r\n" + named.encode() + body)) as provider:
        asked = CHAT.body(f"Reply in {encoding}, {stream}.", stream=stream)
        reply = await post(proxy, CHAT.path, asked, ("Accept-Encoding", f"{encoding}, x-odd"))
    assert provider.requests[0].header("accept-encoding") == f"{encoding}, x-odd"
    assert (reply.body, reply.header("content-encoding")) == (body, encoding)
    assert (await get_session(proxy, reply.header("x-accordion-session")))["totals"]["input"] == 123


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


@pytest.mark.parametrize(
    ("protocol", "encoding"),
    [*((protocol, "") for protocol in PROTOCOLS), *((CHAT, encoding) for encoding in ("gzip", "br", "zstd"))],
)
async def test_each_event_arrives_before_the_next_is_sent(proxy: Proxy, protocol: ProtocolSamples, encoding: str):
    await in_step(proxy, protocol, protocol.events("one two three"), encoding)


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
