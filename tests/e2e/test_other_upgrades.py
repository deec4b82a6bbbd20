"""Who offers another protocol than a WebSocket, or a WebSocket with what is not the opening of one, is answered in
HTTP/1.1, as if it had not (RFC 9110 7.8). Java's own client offers HTTP/2 with every request that is not encrypted,
whatever its body."""

import asyncio
import itertools

import pytest

from tests.e2e.protocol_samples import CHAT
from tests.e2e.raw_client import connected
from tests.loopback import replies_json
from tests.proxy_process import Proxy

OFFER = [("Connection", "Upgrade, HTTP2-Settings"), ("Upgrade", "h2c"), ("HTTP2-Settings", "AAMAAABkAAQAAAAAAAIAAAAA")]


WEBSOCKET = [
    ("Connection", "Upgrade"),
    ("Upgrade", "websocket"),
    ("Sec-WebSocket-Version", "13"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
]


def chunked(body: bytes, size: int) -> bytes:
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


@pytest.mark.parametrize("more", [[], [("Connection", "keep-alive")]], ids=["", "keep-alive on a line by itself"])
async def test_its_request_arrives_whole(proxy: Proxy, more: list[tuple[str, str]]):
    body = CHAT.body("Offered.")
    async with proxy.provider(replies_json(CHAT.json())) as provider, connected(proxy) as client:
        await client.ask("POST", CHAT.path, [*OFFER, *more], body)
        async with asyncio.timeout(30):
            assert (await client.reply()).status == 200
    (request,) = provider.requests
    assert (request.body, request.header("upgrade"), request.header("http2-settings")) == (body, None, None)


@pytest.mark.parametrize("framing", ["length", "chunks"])
async def test_wherever_it_is_split(proxy: Proxy, framing: str):
    body = CHAT.body("Offered in pieces.")
    async with proxy.provider(replies_json(CHAT.json())) as provider, connected(proxy) as client:
        for size in (1, 7, 100, 300):
            if framing == "chunks":
                head = client.head_of("POST", CHAT.path, [*OFFER, ("Transfer-Encoding", "chunked")])
                raw = head + chunked(body, 11)
            else:
                raw = client.head_of("POST", CHAT.path, OFFER, len(body)) + body
            for start, end in itertools.pairwise([*range(0, len(raw), size), len(raw)]):
                await client.send(raw[start:end])
                await asyncio.sleep(0)
            assert (await client.reply()).status == 200
    assert [request.body for request in provider.requests] == [body] * 4


async def test_what_it_sends_behind_it_is_answered_in_order(proxy: Proxy):
    first, second = CHAT.body("Offered first."), CHAT.body("Behind it.")
    async with proxy.provider(replies_json(CHAT.json())) as provider, connected(proxy) as client:
        offered = client.head_of("POST", CHAT.path, OFFER, len(first)) + first
        plain = client.head_of("POST", CHAT.path, (), len(second)) + second
        bare = client.head_of("GET", "/v1/models", OFFER)
        await client.send(offered + plain + bare + offered)
        for _ in range(4):
            assert (await client.reply()).status == 200
    assert [request.body for request in provider.requests] == [first, second, b"", first]


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "GET"])
@pytest.mark.parametrize("framing", ["length", "chunks"])
async def test_a_websocket_that_is_asked_for_with_a_body_is_a_request_like_any_other(
    proxy: Proxy, method: str, framing: str
):
    body = CHAT.body("A WebSocket?")
    async with proxy.provider(replies_json(CHAT.json())) as provider, connected(proxy) as client:
        for _ in range(2):
            if framing == "chunks":
                head = client.head_of(method, CHAT.path, [*WEBSOCKET, ("Transfer-Encoding", "chunked")])
                await client.send(head + chunked(body, 11))
            else:
                await client.ask(method, CHAT.path, WEBSOCKET, body)
            async with asyncio.timeout(30):
                assert (await client.reply()).status == 200
    assert [(seen.method, seen.body, seen.header("upgrade")) for seen in provider.requests] == [
        (method, body, None)
    ] * 2


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
async def test_a_websocket_is_opened_by_get_alone(proxy: Proxy, method: str):
    async with proxy.provider(replies_json(CHAT.json())) as provider, connected(proxy) as client:
        await client.ask(method, "/v1/files/f", WEBSOCKET)
        async with asyncio.timeout(30):
            assert (await client.reply()).status == 200
    assert [seen.method for seen in provider.requests] == [method]


async def test_a_thousand_in_one_piece_are_all_answered(proxy: Proxy):
    async with connected(proxy) as client:
        await client.send(client.head_of("GET", "/no/such", [("Connection", "upgrade"), ("Upgrade", "h2c")]) * 1_000)
        for _ in range(1_000):
            assert (await client.reply()).status == 404


@pytest.mark.parametrize("headers", [[], OFFER], ids=["", "offered"])
async def test_a_tunnel_is_refused(proxy: Proxy, headers: list[tuple[str, str]]):
    async with connected(proxy) as client:
        await client.send(client.head_of("CONNECT", "api.test:443", headers))
        assert (await client.reply()).status in (400, 404)
