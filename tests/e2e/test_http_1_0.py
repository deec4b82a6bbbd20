"""HTTP/1.0 knows neither chunks nor kept-alive connections; what such a client asks for, it can read.

tests/server/test_responses.py has what is written to it.
"""

import asyncio

import pytest

from tests.e2e.protocol_samples import CHAT
from tests.loopback import replies_events
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


@pytest.mark.parametrize("keep", [(), ("Connection: keep-alive",)], ids=["", "keep-alive"])
async def test_a_stream_ends_where_the_connection_does(proxy: Proxy, keep: tuple[str, ...]):
    async with proxy.provider(replies_events(CHAT.stream(), at=range(5, 100, 9))):
        head, body = await old(proxy, "POST", CHAT.path, CHAT.body("Old.", stream=True), *keep)
    assert body == CHAT.stream()
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head


async def test_a_client_that_waits_to_be_told_to_go_on_is_told_nothing(proxy: Proxy):
    # RFC 9110 10.1.1: an expectation of HTTP/1.0 is ignored.
    async with proxy.provider(replies_events(CHAT.stream(), at=range(5, 100, 9))):
        head, body = await old(proxy, "POST", CHAT.path, CHAT.body("Old.", stream=True), "Expect: 100-continue")
    assert (head.split(b"\r\n")[0].split()[1], body) == (b"200", CHAT.stream())
