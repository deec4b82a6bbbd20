"""The end of a transport; TLS; the HTTP proxies that the environment names."""

from __future__ import annotations

import base64
import ssl
import traceback

import pytest

from accordion.model.errors import Unreachable
from accordion.model.ports import UpstreamRequest
from accordion.providers.http.client import HttpUpstream
from accordion.providers.http.transport import AiohttpTransport, TransportTimeouts
from accordion.providers.http.transport_errors import ConnectError
from tests.loopback import Answer, Loopback, Recorded, replies_json
from tests.outbound_network import tunnel

OK = replies_json({"ok": True})


async def test_a_closed_transport_connects_no_more():
    transport = AiohttpTransport()
    async with Loopback(OK) as server:
        origin, target = transport.locate(server.url)
        await (await transport.open(origin, "GET", target, ((b"Host", b"x"),))).close()
        await transport.close()
        with pytest.raises(ConnectError):
            await transport.open(origin, "GET", target, ((b"Host", b"x"),))
    assert server.connections == 1


@pytest.fixture
async def trusting(pem):
    upstream = HttpUpstream(AiohttpTransport(ssl=ssl.create_default_context(cafile=pem)), attempts=1)
    yield upstream
    await upstream.close()


def ask(url, body=b"{}", headers=()):
    return UpstreamRequest("POST", url, tuple(headers), body)


async def fetch(upstream, request):
    reply = await upstream.send(request)
    body = b"".join([piece async for piece in reply.chunks()])
    await reply.close()
    return body


async def test_tls_works_and_keeps_its_connection(trusting, server_tls):
    body = bytes(3_000_000)
    async with Loopback(OK, tls=server_tls) as server:
        for _ in range(3):
            assert await fetch(trusting, ask(server.url, body)) == b'{"ok": true}'
    assert server.connections == 1
    assert [request.body for request in server.requests] == [body] * 3
    assert server.requests[0].header("host") == f"localhost:{server.port}"


async def test_a_closed_reply_over_tls_is_noticed_by_the_provider_at_once(trusting, server_tls):
    async def endless(request: Recorded, answer: Answer) -> None:
        await answer.head(200, chunked=True)
        await answer.chunk(b"x")
        await answer.until_gone()

    async with Loopback(endless, tls=server_tls) as server:
        reply = await trusting.send(ask(server.url))
        await reply.close()
        await server.until(lambda: server.answers[0].gone)


async def test_an_untrusted_certificate_is_unreachable_and_the_message_says_what_to_set(upstream, server_tls):
    async with Loopback(OK, tls=server_tls) as server:
        with pytest.raises(Unreachable) as caught:
            await upstream.send(ask(server.url))
    assert "SSL_CERT_FILE" in caught.value.message
    assert server.requests == []


async def test_tls_to_a_server_without_tls_is_unreachable(build):
    async with Loopback(OK) as server:
        with pytest.raises(Unreachable):
            await build(connect=0.1).send(ask(server.url.replace("http:", "https:")))


async def test_a_plain_request_goes_to_the_environments_http_proxy_with_its_whole_url(monkeypatch, build):
    async with Loopback(OK) as relay:
        monkeypatch.setenv("http_proxy", relay.url.replace("//", "//us%40er:pw@"))
        upstream = build()
        for _ in range(2):
            await fetch(upstream, ask("http://provider.invalid/v1/x?q=1", headers=[(b"Authorization", b"Bearer 1")]))
    first = relay.requests[0]
    assert first.target == "http://provider.invalid/v1/x?q=1"
    assert first.header("host") == "provider.invalid"
    assert first.header("authorization") == "Bearer 1"
    assert first.header("proxy-authorization") == "Basic " + base64.b64encode(b"us@er:pw").decode()
    assert relay.connections == 1


async def test_no_proxy_names_what_is_reached_directly(monkeypatch, build, unused_tcp_port):
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{unused_tcp_port}")
    monkeypatch.setenv("no_proxy", "example.com,127.0.0.1")
    async with Loopback(OK) as server:
        assert await fetch(build(), ask(server.url)) == b'{"ok": true}'


async def test_without_trust_in_the_environment_no_proxy_is_used(monkeypatch, unused_tcp_port):
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{unused_tcp_port}")
    upstream = HttpUpstream(AiohttpTransport(TransportTimeouts(), trust_env=False))
    async with Loopback(OK) as server:
        assert await fetch(upstream, ask(server.url)) == b'{"ok": true}'
    await upstream.close()


async def test_a_tls_request_goes_through_a_tunnel_of_the_http_proxy(monkeypatch, trusting, server_tls):
    async with Loopback(OK, tls=server_tls) as server, Loopback(tunnel) as relay:
        monkeypatch.setenv("https_proxy", relay.url.replace("//", "//user:pw@"))
        for _ in range(2):
            assert await fetch(trusting, ask(server.url + "/v1")) == b'{"ok": true}'
        await trusting.close()
    connect = relay.requests[0]
    assert (connect.method, connect.target) == ("CONNECT", server.host)
    assert connect.header("proxy-authorization") == "Basic " + base64.b64encode(b"user:pw").decode()
    assert server.requests[0].header("proxy-authorization") is None
    assert (server.requests[0].target, server.connections, relay.connections) == ("/v1", 1, 1)


async def test_a_proxy_that_refuses_the_tunnel_is_unreachable(monkeypatch, build):
    async with Loopback(replies_json({}, status=407)) as relay:
        monkeypatch.setenv("https_proxy", relay.url)
        with pytest.raises(Unreachable) as caught:
            await build().send(ask("https://provider.invalid/v1"))
    assert "407" in caught.value.message


async def test_a_proxy_that_is_not_an_http_proxy_is_said_to_be_unsupported(monkeypatch, build):
    monkeypatch.setenv("all_proxy", "socks5://user:secret@127.0.0.1:1080")
    with pytest.raises(Unreachable) as caught:
        await build().send(ask("http://provider.invalid/v1"))
    assert "socks5" in caught.value.message
    assert "secret" not in caught.value.message


@pytest.mark.parametrize(
    "given",
    [
        "http://user:PXSECRET/x@127.0.0.1:1080",
        "http://user:PXSECRET#x@127.0.0.1:1080",
        "http://user:123/PXSECRET@127.0.0.1:1080",
        "http://127.0.0.1:PXSECRET",
        "http://user:PXSECRET@",
    ],
)
async def test_an_invalid_proxy_url_is_reported_without_its_content(monkeypatch, build, given):
    monkeypatch.setenv("http_proxy", given)
    with pytest.raises(Unreachable) as caught:
        await build().send(ask("http://provider.invalid/v1"))
    assert "the HTTP proxy in the environment is not valid" in caught.value.message
    assert "PXSECRET" not in "".join(traceback.format_exception(caught.value))


async def test_a_proxy_whose_name_can_be_none_is_unreachable(monkeypatch, build):
    monkeypatch.setenv("http_proxy", "http://a..b:1080")
    with pytest.raises(Unreachable, match="the name of a host is not valid"):
        await build().send(ask("http://provider.invalid/v1"))


async def test_a_percent_sign_in_a_proxys_password_is_decoded_once(monkeypatch, build):
    async with Loopback(OK) as relay:
        monkeypatch.setenv("http_proxy", relay.url.replace("//", "//us%40er:a%2540b%25@"))
        await fetch(build(), ask("http://provider.invalid/v1"))
    sent = relay.requests[0].header("proxy-authorization")
    assert sent == "Basic " + base64.b64encode(b"us@er:a%40b%").decode()
