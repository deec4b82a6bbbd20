"""HTTP/1.0 knows neither chunks nor kept-alive connections; what such a client asks for, it can read."""

import asyncio

import pytest

from tests.e2e.protocol_samples import CHAT, EACH, ProtocolSamples
from tests.loopback import Answer, Recorded, replies_events
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


async def test_errors_of_ours_can_be_read_too(proxy: Proxy):
    head, body = await old(proxy, "POST", CHAT.path, CHAT.body("Nobody."))
    assert b" 502 " in head
    assert CHAT.error_of(body)["code"] == "upstream_unreachable"
