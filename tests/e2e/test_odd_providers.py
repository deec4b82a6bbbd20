"""A provider whose answers are odd but legal HTTP is passed on rightly, and costs nobody the connection."""

import pytest

from tests.e2e.protocol_samples import CHAT
from tests.e2e.raw_client import connected
from tests.loopback import Answer, Recorded, replies_bytes
from tests.proxy_process import Proxy

JSON = b"Content-Type: application/json\r\n"
CHUNKS = b"1\r\n{\r\n1;ext=1\r\n}\r\n0\r\n"
MODELS = "/v1/models"


@pytest.mark.parametrize(
    ("raw", "closes"),
    [
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n" + JSON + b"Content-Length: 2\r\n\r\n{}", False),
        (
            b"HTTP/1.1 102 Processing\r\nX: 1\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
            b"HTTP/1.1 200 OK\r\n" + JSON + b"Content-Length: 2\r\n\r\n{}",
            False,
        ),
        (
            b"HTTP/1.1 200 OK\r\n" + JSON + b"Trailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKS + b"\r\n",
            False,
        ),
        (
            b"HTTP/1.1 200 OK\r\n"
            + JSON
            + b"Trailer: X-Sum, Set-Cookie\r\nTransfer-Encoding: chunked\r\n\r\n"
            + CHUNKS
            + b"X-Sum: abc\r\nSet-Cookie: late=1\r\n\r\n",
            False,
        ),
        (b"HTTP/1.1 200 OK\r\n" + JSON + b"Transfer-Encoding: CHUNKED\r\n\r\n" + CHUNKS + b"\r\n", False),
        (b"HTTP/1.1 200\r\n" + JSON + b"Content-Length: 2\r\n\r\n{}", False),
        (b"HTTP/1.1 200 \r\n" + JSON + b"content-LENGTH:2\r\n\r\n{}", False),
        (b"HTTP/1.1 200 OK\r\n" + JSON + b"\r\n{}", True),
        (b"HTTP/1.1 200 OK\r\n" + JSON + b"Connection: close\r\nContent-Length: 2\r\n\r\n{}", True),
        (b"HTTP/1.0 200 OK\r\n" + JSON + b"\r\n{}", True),
        (b"HTTP/1.0 200 OK\r\n" + JSON + b"Content-Length: 2\r\n\r\n{}", True),
        (b"HTTP/1.0 200 OK\r\n" + JSON + b"Connection: keep-alive\r\nContent-Length: 2\r\n\r\n{}", False),
        (b"HTTP/1.1 200 OK\r\n" + JSON + b"X-Long: " + b"l" * 60_000 + b"\r\nContent-Length: 2\r\n\r\n{}", False),
        (b"HTTP/1.1 200 OK\r\n" + JSON + b"X: y\r\n" * 300 + b"Content-Length: 2\r\n\r\n{}", False),
    ],
    ids=str,
)
async def test_the_body_comes_back_whole_twice_over_one_connection(proxy: Proxy, raw: bytes, closes: bool):
    async with proxy.provider(replies_bytes(raw, close=closes)) as provider, connected(proxy) as client:
        for _ in range(2):
            await client.ask("POST", CHAT.path, (), CHAT.body("Odd?"))
            reply = await client.reply()
            assert (reply.status, reply.body, reply.ended) == (200, b"{}", True)
            assert reply.trailers == []
            assert reply.header("trailer") is None
            assert (reply.header("set-cookie"), reply.header("link")) == (None, None)
    assert provider.connections == (2 if closes else 1)


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


@pytest.mark.parametrize(
    ("method", "raw", "status"),
    [
        ("GET", b"HTTP/1.1 204 No Content\r\nX: y\r\n\r\n", 204),
        ("DELETE", b"HTTP/1.1 204 No Content\r\nX: y\r\nContent-Length: 0\r\n\r\n", 204),
        ("GET", b"HTTP/1.1 304 Not Modified\r\nX: y\r\nETag: x\r\n\r\n", 304),
        ("GET", b"HTTP/1.1 304 Not Modified\r\nX: y\r\nETag: x\r\nContent-Length: 99\r\n\r\n", 304),
        ("HEAD", b"HTTP/1.1 200 OK\r\nX: y\r\nContent-Length: 1234\r\n\r\n", 200),
        ("HEAD", b"HTTP/1.1 200 OK\r\nX: y\r\nTransfer-Encoding: chunked\r\n\r\n", 200),
        ("HEAD", b"HTTP/1.1 404 Not Found\r\nX: y\r\nContent-Length: 7\r\n\r\n", 404),
        ("GET", b"HTTP/1.1 205 Reset Content\r\nX: y\r\nContent-Length: 0\r\n\r\n", 205),
    ],
    ids=str,
)
async def test_an_answer_without_a_body_ends_with_its_head(proxy: Proxy, method: str, raw: bytes, status: int):
    async with proxy.provider(replies_bytes(raw)) as provider, connected(proxy) as client:
        for _ in range(2):
            await client.ask(method, MODELS)
            reply = await client.reply()
            assert (reply.status, reply.body, reply.ended, reply.header("x")) == (status, b"", True, "y")
            # Of a body that is never sent, HEAD alone may ask the length.
            length = next((line[16:].decode() for line in raw.split(b"\r\n") if line[:8] == b"Content-"), None)
            assert reply.header("content-length") == (None if status in (204, 304) else length)
    assert provider.connections == 1


@pytest.mark.parametrize(
    ("framing", "body"),
    [
        (b"Content-Length: 9\r\nTransfer-Encoding: chunked\r\n", CHUNKS + b"\r\n"),
        (b"Content-Length: 2\r\nContent-Length: 3\r\n", b"{}"),
        (b"Content-Length: 2\r\nContent-Length: 2\r\n", b"{}"),
        (b"Content-Length: -2\r\n", b"{}"),
    ],
)
async def test_an_answer_whose_length_could_be_taken_two_ways_is_refused(proxy: Proxy, framing: bytes, body: bytes):
    """RFC 9112 6.3 and RFC 9110 8.6: who reads it otherwise than we do could be led to read another's answer."""
    raw = b"HTTP/1.1 200 OK\r\n" + JSON + framing + b"\r\n" + body
    async with proxy.provider(replies_bytes(raw)) as provider, connected(proxy) as client:
        for _ in range(2):
            await client.ask("POST", CHAT.path, (), CHAT.body("Which?"))
            reply = await client.reply()
            assert (reply.status, reply.ended) == (502, True)
            assert CHAT.error_of(reply.body)
    assert provider.connections == 2


async def test_a_provider_that_closes_idle_connections_is_reached_each_time(proxy: Proxy):
    async def script(request: Recorded, answer: Answer) -> None:
        await answer.head(200, [("Content-Type", "application/json")], length=2)
        await answer.send(b"{}")
        await answer.close()

    async with proxy.provider(script) as provider, connected(proxy) as client:
        for _ in range(4):
            await client.ask("POST", CHAT.path, (), CHAT.body("Again?"))
            assert (await client.reply()).body == b"{}"
            await provider.all_gone()
    assert len(provider.requests) == 4
