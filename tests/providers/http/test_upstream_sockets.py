"""The provider's side of a relayed WebSocket."""

from __future__ import annotations

import asyncio
import base64
import logging
import ssl

import pytest
from websockets.asyncio.server import ServerConnection, serve

from accordion.model.errors import Unreachable, UpstreamDisconnected, UpstreamTimeout
from accordion.model.ports import UpstreamRequest
from accordion.providers.http.websockets import ProviderSocket, SocketClosed, open_socket
from tests.loopback import Answer, Loopback, Recorded, replies_bytes
from tests.outbound_network import tunnel

CLIENT = (
    (b"host", b"127.0.0.1:8787"),
    (b"connection", b"Upgrade"),
    (b"upgrade", b"websocket"),
    (b"sec-websocket-key", b"AAAAAAAAAAAAAAAAAAAAAA=="),
    (b"sec-websocket-version", b"13"),
    (b"sec-websocket-protocol", b"realtime, other"),
    (b"user-agent", b"codex/1"),
    (b"authorization", b"Bearer sk-1"),
    (b"x-odd", b"caf\xc3\xa9 \xe9"),
)


def ask(url, headers=CLIENT):
    return UpstreamRequest("GET", url, headers)


class Provider:
    """A WebSocket server that runs `script` for each connection."""

    def __init__(self, script, **options):
        self._script, self._options = script, options

    async def __aenter__(self):
        self._server = await serve(self._script, "127.0.0.1", 0, **self._options)
        self.host = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        self.url = f"http://{self.host}/v1/responses?model=a%2Fb"
        return self

    async def __aexit__(self, *_):
        self._server.close()
        await self._server.wait_closed()


async def opened(url, subprotocols=(), **options) -> ProviderSocket:
    socket = await open_socket(ask(url, options.pop("headers", CLIENT)), subprotocols, **options)
    assert isinstance(socket, ProviderSocket)
    return socket


async def echo(connection: ServerConnection) -> None:
    async for message in connection:
        await connection.send(message)


async def test_messages_go_both_ways_as_text_and_binary_whatever_their_size():
    async with Provider(echo, max_size=None) as provider:
        socket = await opened(provider.url)
        for message in ("héllo", b"\x00\xff", "", b"", "x" * 3_000_000, bytes(3_000_000)):
            await socket.send(message)
            answer = await socket.receive()
            assert type(answer) is type(message)
            assert answer == message
        await socket.close()


async def test_the_providers_handshake_sees_the_clients_headers_and_no_others():
    seen = []

    async def script(connection: ServerConnection) -> None:
        seen.append(connection.request)

    async with Provider(script, subprotocols=["other"]) as provider:
        socket = await opened(provider.url, ["realtime", "other"])
        assert socket.subprotocol == "other"
    request = seen[0]
    assert request.path == "/v1/responses?model=a%2Fb"
    assert request.headers["Host"] == provider.host
    assert request.headers["User-Agent"] == "codex/1"
    assert request.headers["Authorization"] == "Bearer sk-1"
    assert request.headers["Sec-WebSocket-Key"] != "AAAAAAAAAAAAAAAAAAAAAA=="
    assert request.headers["X-Odd"].encode("latin-1") == b"caf\xc3\xa9 \xe9"
    assert sorted(name.lower() for name, _ in request.headers.raw_items()) == [
        "authorization",
        "connection",
        "host",
        "sec-websocket-key",
        "sec-websocket-protocol",
        "sec-websocket-version",
        "upgrade",
        "user-agent",
        "x-odd",
    ]


async def test_a_client_without_user_agent_gets_none():
    async with Loopback(replies_bytes(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")) as server:
        await open_socket(ask(server.url, headers=((b"x", b"y"),)))
    assert server.requests[0].header("user-agent") is None
    assert server.requests[0].header("x") == "y"


async def test_compression_is_offered_where_the_client_offers_it():
    seen = []

    async def script(connection: ServerConnection) -> None:
        seen.append(connection.request.headers.get("Sec-WebSocket-Extensions"))
        await connection.send("x" * 1000)

    offering = (*CLIENT, (b"sec-websocket-extensions", b"permessage-deflate; client_max_window_bits"))
    async with Provider(script) as provider:
        for headers in (CLIENT, offering):
            socket = await opened(provider.url, headers=headers)
            assert await socket.receive() == "x" * 1000
    assert seen[0] is None
    assert seen[1].startswith("permessage-deflate")


async def test_headers_of_an_accepting_answer_are_there_without_the_handshakes_own():
    def process(connection, request, response):
        response.headers["X-Request-Id"] = "req_1"

    async with Provider(echo, process_response=process, server_header=None) as provider:
        socket = await opened(provider.url)
        assert (b"X-Request-Id", b"req_1") in socket.headers
        assert {name.lower() for name, _ in socket.headers} == {b"x-request-id", b"date"}
        await socket.close()


@pytest.mark.parametrize(("code", "reason"), [(1000, ""), (1013, "try later"), (4001, "grüße")])
async def test_the_providers_close_code_and_reason_come_through(code, reason):
    async def script(connection: ServerConnection) -> None:
        await connection.send("last")
        await connection.close(code, reason)

    async with Provider(script) as provider:
        socket = await opened(provider.url)
        assert await socket.receive() == "last"
        with pytest.raises(SocketClosed) as caught:
            await socket.receive()
        assert (caught.value.code, caught.value.reason) == (code, reason)
        with pytest.raises(SocketClosed):
            await socket.send("too late")


@pytest.mark.parametrize(
    ("given", "seen"), [(1000, 1000), (4242, 4242), (1001, 1001), (1005, 1000), (1006, 1001), (1015, 1011), (0, 1011)]
)
async def test_our_close_code_reaches_the_provider_or_the_nearest_that_may_be_sent(given, seen):
    closed = asyncio.get_running_loop().create_future()

    async def script(connection: ServerConnection) -> None:
        await connection.wait_closed()
        closed.set_result((connection.close_code, connection.close_reason))

    async with Provider(script) as provider:
        socket = await opened(provider.url)
        await socket.close(given, "why")
        assert await closed == (seen, "why")


async def test_a_provider_that_vanishes_is_closed_with_1006():
    async def script(connection: ServerConnection) -> None:
        connection.transport.abort()

    async with Provider(script) as provider:
        socket = await opened(provider.url)
        with pytest.raises(SocketClosed) as caught:
            await socket.receive()
    assert caught.value.code == 1006


async def test_a_message_beyond_the_limit_closes_with_1009():
    codes = asyncio.get_running_loop().create_future()

    async def script(connection: ServerConnection) -> None:
        await connection.send("x" * 101)
        await connection.wait_closed()
        codes.set_result(connection.close_code)

    async with Provider(script) as provider:
        socket = await opened(provider.url, max_size=100)
        with pytest.raises(SocketClosed) as caught:
            await socket.receive()
        assert caught.value.code == 1009
        assert await codes == 1009


@pytest.mark.parametrize("status", [200, 301, 401, 404, 426, 500, 503])
async def test_a_refusal_comes_back_as_the_providers_own_answer(status):
    async def script(request: Recorded, answer: Answer) -> None:
        headers = [("Content-Type", "application/json"), ("Location", "/x"), ("X-Case", "1"), ("x-case", "2")]
        await answer.head(status, [*headers, ("Connection", "close")], length=13)
        await answer.send(b'{"error": 1 }')

    async with Loopback(script) as server:
        reply = await open_socket(ask(server.url + "/v1/responses"))
    assert not isinstance(reply, ProviderSocket)
    assert reply.status == status
    assert reply.headers == (
        (b"Content-Type", b"application/json"),
        (b"Location", b"/x"),
        (b"X-Case", b"1"),
        (b"x-case", b"2"),
        (b"Content-Length", b"13"),
    )
    assert [piece async for piece in reply.chunks()] == [b'{"error": 1 }']
    await reply.close()
    assert len(server.requests) == 1


async def test_a_chunked_refusal_comes_back_whole_and_without_its_framing():
    raw = b"HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    async with Loopback(replies_bytes(raw)) as server:
        reply = await open_socket(ask(server.url))
    assert not isinstance(reply, ProviderSocket)
    assert reply.headers == ()
    assert [piece async for piece in reply.chunks()] == [b"abcde"]


async def test_an_unanswered_handshake_has_its_own_error(unused_tcp_port):
    async def silent(request: Recorded, answer: Answer) -> None:
        await answer.until_gone()

    secret = "/v1?key=secret"
    with pytest.raises(Unreachable) as refused:
        await open_socket(ask(f"http://127.0.0.1:{unused_tcp_port}{secret}"))
    async with Loopback(silent) as server:
        with pytest.raises(UpstreamTimeout) as slow:
            await open_socket(ask(server.url + secret), timeout=0.1)
    async with Loopback(replies_bytes(b"nonsense\r\n\r\n")) as server:
        with pytest.raises(UpstreamDisconnected) as odd:
            await open_socket(ask(server.url + secret))
    for caught in (refused, slow, odd):
        assert "127.0.0.1" in caught.value.message
        assert "secret" not in caught.value.message


async def test_a_wrong_handshake_is_a_cut():
    raw = b"HTTP/1.1 101 OK\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: wrong\r\n\r\n"
    async with Loopback(replies_bytes(raw)) as server:
        with pytest.raises(UpstreamDisconnected):
            await open_socket(ask(server.url))


async def test_no_credential_is_logged_even_in_debug_mode(caplog):
    caplog.set_level(logging.DEBUG)
    async with Provider(echo, logger=logging.Logger("quiet", logging.CRITICAL)) as provider:
        socket = await opened(provider.url)
        await socket.send("private words")
        await socket.receive()
        await socket.close()
    assert "sk-1" not in caplog.text
    assert "private words" not in caplog.text


async def test_a_slow_reader_makes_the_provider_wait():
    sent = 0
    blocked = asyncio.Event()

    async def script(connection: ServerConnection) -> None:
        nonlocal sent
        for _ in range(1000):
            sending = asyncio.ensure_future(connection.send(b"x" * 65536))
            done, _ = await asyncio.wait([sending], timeout=0.5)
            if not done:
                blocked.set()
            await sending
            sent += 1

    async with Provider(script) as provider:
        socket = await opened(provider.url)
        await blocked.wait()
        assert sent < 500
        for _ in range(1000):
            assert len(await socket.receive()) == 65536
        await socket.close()


async def test_an_untrusted_certificate_is_told_as_over_http(server_tls):
    async with Provider(echo, ssl=server_tls) as provider:
        with pytest.raises(Unreachable) as caught:
            await open_socket(ask(provider.url.replace("http://127.0.0.1", "https://localhost")))
    assert "its certificate is not trusted: " in caught.value.message
    assert "SSL_CERT_FILE" in caught.value.message


async def test_tls_that_fails_behind_a_proxy_is_told_once_and_not_by_the_loop(monkeypatch, server_tls):
    untold = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: untold.append(context))
    async with Provider(echo, ssl=server_tls) as provider, Loopback(tunnel) as relay:
        monkeypatch.setenv("https_proxy", relay.url)
        with pytest.raises(Unreachable, match="not trusted"):
            await open_socket(ask(provider.url.replace("http://127.0.0.1", "https://localhost")))
        await relay.all_gone()
    assert [context for context in untold if isinstance(context.get("exception"), AttributeError)] == []


async def test_tls_to_a_server_without_tls_is_told_as_that():
    async def speaks_first(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with await asyncio.start_server(speaks_first, "127.0.0.1", 0) as server:
        with pytest.raises(Unreachable, match="TLS failed"):
            await open_socket(ask(f"https://localhost:{server.sockets[0].getsockname()[1]}/v1"))


async def test_an_unknown_name_is_told_as_over_http():
    with pytest.raises(Unreachable, match="its name could not be resolved"):
        await open_socket(ask("http://no-such-host.invalid/v1"))


@pytest.mark.parametrize("variable", ["all_proxy", "https_proxy"])
@pytest.mark.parametrize("written", ["{url}", "{host}", "http://us%40er:a%2540b@{host}", "http://user@{host}"])
async def test_the_proxy_that_http_would_take_is_taken(monkeypatch, server_tls, pem, variable, written):
    trusting = ssl.create_default_context(cafile=pem)
    async with Provider(echo, ssl=server_tls) as provider, Loopback(tunnel) as relay:
        monkeypatch.setenv(variable, written.format(url=relay.url, host=relay.host))
        port = provider.host.partition(":")[2]
        socket = await opened(f"https://localhost:{port}/v1", ssl=trusting)
        await socket.send("hello")
        assert await socket.receive() == "hello"
        await socket.close()
    assert relay.requests[0].target == f"localhost:{port}"
    credentials = (relay.requests[0].header("proxy-authorization") or "").removeprefix("Basic ")
    assert base64.b64decode(credentials) in ([b""] if "@" not in written else [b"us@er:a%40b", b"user:"])


async def test_a_plain_socket_is_opened_past_the_proxy_for_https(monkeypatch, unused_tcp_port):
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{unused_tcp_port}")
    async with Provider(echo) as provider:
        socket = await opened(provider.url)
        await socket.close()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("socks5h://user:PXSECRET@127.0.0.1:1080", "a socks5h proxy is not supported"),
        ("http://user:PXSECRET/x@127.0.0.1:1080", "the HTTP proxy in the environment is not valid"),
        ("http://a..b:1080", "the HTTP proxy: the name of a host is not valid"),
        ("http://user:PXSECRET@127.0.0.1:{port}", "the HTTP proxy: connection refused"),
        ("http://user:PXSECRET@no-such-proxy.invalid:80", "the HTTP proxy: its name could not be resolved"),
    ],
)
async def test_a_proxy_that_cannot_be_used_is_told_apart_from_the_provider(monkeypatch, unused_tcp_port, given, said):
    monkeypatch.setenv("http_proxy", given.format(port=unused_tcp_port))
    with pytest.raises(Unreachable) as caught:
        await open_socket(ask("http://provider.invalid/v1"))
    assert said in caught.value.message
    assert "PXSECRET" not in caught.value.message
