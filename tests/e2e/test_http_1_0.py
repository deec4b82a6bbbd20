"""HTTP/1.0 knows neither chunks nor kept-alive connections; what such a client asks for, it can read."""

import asyncio
import json

import pytest

from tests.e2e.protocol_samples import CHAT, EACH, ProtocolSamples
from tests.e2e.raw_client import ask
from tests.loopback import Answer, Recorded, replies_bytes, replies_events, replies_json
from tests.proxy_process import Proxy


async def old(proxy: Proxy, method: str, target: str, body: bytes = b"", *headers: str) -> tuple[bytes, bytes]:
    """Head and body of an answer, read until the connection closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    lines = [f"{method} {target} HTTP/1.0", f"Content-Length: {len(body)}", *headers, "\r\n"]
    writer.write("\r\n".join(lines).encode() + body)
    try:
        head, _, answer = (await reader.read(-1)).partition(b"\r\n\r\n")
    finally:
        writer.close()
    return head.lower(), answer


@EACH
@pytest.mark.parametrize("keep", [(), ("Connection: keep-alive",)], ids=["", "keep-alive"])
async def test_a_stream_ends_where_the_connection_does(proxy: Proxy, protocol: ProtocolSamples, keep: tuple[str, ...]):
    async with proxy.provider(replies_events(protocol.stream(), at=range(5, 100, 9))):
        head, body = await old(proxy, "POST", protocol.target(stream=True), protocol.body("Old.", stream=True), *keep)
    assert body == protocol.stream()
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head


async def test_a_client_that_waits_to_be_told_to_go_on_is_told_nothing(proxy: Proxy):
    # RFC 9110 10.1.1: an expectation of HTTP/1.0 is ignored.
    async with proxy.provider(replies_events(CHAT.stream(), at=range(5, 100, 9))):
        head, body = await old(proxy, "POST", CHAT.path, CHAT.body("Old.", stream=True), "Expect: 100-continue")
    assert (head.split(b"\r\n")[0].split()[1], body) == (b"200", CHAT.stream())


async def test_a_reply_without_a_length_ends_where_the_connection_does(proxy: Proxy):
    async def script(request: Recorded, answer: Answer) -> None:
        await answer.head(200, [("Content-Type", "application/json")], chunked=True)
        await answer.chunk(b'{"a":')
        await answer.chunk(b" 1}\r\n")
        await answer.last_chunk()

    async with proxy.provider(script):
        assert (await old(proxy, "GET", "/v1/models"))[1] == b'{"a": 1}\r\n'


@pytest.mark.parametrize("kind", ["audio/mpeg", "text/event-stream"])
async def test_a_reply_that_was_cut_ends_in_a_reset(proxy: Proxy, kind: str):
    """A clean end of the connection would be that of the reply (RFC 9112 8)."""

    async def script(request: Recorded, answer: Answer) -> None:
        await answer.head(200, [("Content-Type", kind)], chunked=True)
        await answer.chunk(b"data: {}\n\n")
        await asyncio.sleep(0.2)
        await answer.cut()

    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    async with proxy.provider(script):
        writer.write(b"POST /v1/audio/speech HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}")
        assert await reader.readuntil(b"data: {}\n\n")
        with pytest.raises(ConnectionResetError):
            await reader.read(-1)
    writer.close()


@EACH
async def test_a_stream_that_was_cut_says_so_before(proxy: Proxy, protocol: ProtocolSamples):
    async def script(request: Recorded, answer: Answer) -> None:
        await answer.head(200, [("Content-Type", "text/event-stream")], chunked=True)
        await answer.chunk(protocol.events()[0])
        await asyncio.sleep(0.2)
        await answer.cut()

    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    async with proxy.provider(script):
        body, target = protocol.body("Old and cut.", stream=True), protocol.target(stream=True).encode()
        head = b"POST %b HTTP/1.0\r\nAuthorization: Bearer key\r\nContent-Length: %d\r\n\r\n"
        writer.write(head % (target, len(body)) + body)
        assert await reader.readuntil(b"Connection lost")
        with pytest.raises(ConnectionResetError):
            await reader.read(-1)
    writer.close()


async def test_a_reply_with_a_length_has_it_still(proxy: Proxy):
    async with proxy.provider(replies_json(CHAT.json())):
        head, body = await old(proxy, "POST", CHAT.path, CHAT.body("Old."))
    assert json.loads(body) == CHAT.json()
    assert b"content-length: %d" % len(body) in head


@pytest.mark.parametrize("raw", [b"HTTP/1.1 204 Nothing\r\n\r\n", b"HTTP/1.1 304 Same\r\n\r\n"])
async def test_a_reply_without_a_body_stays_one(proxy: Proxy, raw: bytes):
    async with proxy.provider(replies_bytes(raw)):
        head, body = await old(proxy, "GET", "/v1/files/f")
    assert (body, b"transfer-encoding" in head) == (b"", False)


async def test_a_reply_to_head_has_no_body(proxy: Proxy):
    async with proxy.provider(replies_bytes(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")):
        head, body = await old(proxy, "HEAD", "/v1/files/f")
    assert (body, b"content-length: 5" in head) == (b"", True)


async def test_errors_of_ours_can_be_read_too(proxy: Proxy):
    head, body = await old(proxy, "POST", CHAT.path, CHAT.body("Nobody."))
    assert b" 502 " in head
    assert CHAT.error_of(body)["code"] == "upstream_unreachable"


@pytest.mark.parametrize("target", ["/v1/models?", "/v1/models?limit=2", "/v1/models", "/v1/files/a%3F"])
async def test_the_target_goes_on_as_it_came(proxy: Proxy, target: str):
    async with proxy.provider(replies_json({})) as provider:
        await ask(proxy, "GET", target)
    assert provider.requests[0].target == target
