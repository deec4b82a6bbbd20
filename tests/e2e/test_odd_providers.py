"""A provider whose answers are odd but legal HTTP is passed on rightly, and costs nobody the connection."""

import pytest

from tests.e2e.protocol_samples import CHAT
from tests.e2e.raw_client import connected
from tests.loopback import replies_bytes
from tests.proxy_process import Proxy

JSON = b"Content-Type: application/json\r\n"


@pytest.mark.parametrize("status", [418, 299, 600, 999])
@pytest.mark.parametrize("target", [CHAT.path, "/v1/files"])
async def test_a_status_that_nobody_knows_is_passed_on(proxy: Proxy, status: int, target: str):
    raw = b"HTTP/1.1 %d Odd\r\n" % status + JSON + b"Content-Length: 2\r\n\r\n{}"
    async with proxy.provider(replies_bytes(raw)), connected(proxy) as client:
        for _ in range(2):
            await client.ask("POST", target, (), CHAT.body("Status?"))
            reply = await client.reply()
            assert (reply.status, reply.body, reply.ended) == (status, b"{}", True)


@pytest.mark.parametrize("code", [0x01, 0x08, 0x0B, 0x1F, 0x7F])
@pytest.mark.parametrize("target", [CHAT.path, "/v1/files"])
async def test_a_character_that_may_not_stand_in_a_header_becomes_a_space(proxy: Proxy, code: int, target: str):
    raw = b"HTTP/1.1 200 OK\r\n" + JSON + b"X-Odd: a%cb\r\nX-Fine: \xe9\tc\r\nContent-Length: 2\r\n\r\n{}" % code
    async with proxy.provider(replies_bytes(raw)), connected(proxy) as client:
        for _ in range(2):
            await client.ask("POST", target, (), CHAT.body("Header?"))
            reply = await client.reply()
            assert (reply.status, reply.body, reply.ended) == (200, b"{}", True)
            assert (reply.header("x-odd"), reply.header("x-fine")) == ("a b", "\xe9\tc")


@pytest.mark.parametrize(
    "line", [b"X-Odd: a\0b", b"X-Odd: a\rb", b"X Odd: 1", b"X(Odd: 1", b"X\x01: 1", b"X\xe9: 1", b": 1"]
)
async def test_a_header_that_no_one_could_read_is_a_502(proxy: Proxy, line: bytes):
    raw = b"HTTP/1.1 200 OK\r\n" + JSON + line + b"\r\nContent-Length: 2\r\n\r\n{}"
    async with proxy.provider(replies_bytes(raw)), connected(proxy) as client:
        await client.ask("POST", CHAT.path, (), CHAT.body("Unreadable?"))
        reply = await client.reply()
        assert (reply.status, reply.ended) == (502, True)
