"""The Upstream port over real sockets: what goes out and what comes back, byte for byte."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accordion.model.errors import BadRequest, Unreachable
from accordion.model.ports import UpstreamRequest
from accordion.providers.http.client import HttpUpstream
from accordion.providers.http.transport import AiohttpTransport
from tests.loopback import (
    Answer,
    Loopback,
    Recorded,
    compress,
    events,
    replies_bytes,
    replies_events,
    replies_json,
    split,
)
from tests.tiers import examples

OK = replies_json({"ok": True})


def ask(url, body=b"{}", method="POST", headers=()):
    return UpstreamRequest(method, url, tuple(headers), body)


async def read(reply):
    try:
        return b"".join([piece async for piece in reply.chunks()])
    finally:
        await reply.close()


async def fetch(upstream, request):
    reply = await upstream.send(request)
    return reply, await read(reply)


async def pieces(*parts):
    for part in parts:
        await asyncio.sleep(0)
        yield part


async def test_a_connection_is_free_again_with_the_last_piece_of_a_body(upstream):
    async with Loopback(OK) as server:
        reply = await upstream.send(ask(server.url))
        body = reply.chunks()
        assert json.loads(await anext(body)) == {"ok": True}
        _, again = await fetch(upstream, ask(server.url))
        assert json.loads(again) == {"ok": True}
        assert [piece async for piece in body] == []
        await reply.close()
        assert server.connections == 1


async def test_a_request_goes_out_exactly_as_given_but_for_its_host(upstream):
    body = b'{"a": 1,  "a":2, "\\ud800": 1e999}\xff\x00'
    headers = (
        (b"host", b"127.0.0.1:8787"),
        (b"AUTHORIZATION", b"Bearer sk-1"),
        (b"x-Odd-Case", b"caf\xc3\xa9 \xe9"),
        (b"accept", b"*/*"),
        (b"X-Twice", b"1"),
        (b"content-length", b"%d" % len(body)),
        (b"X-Twice", b"2"),
        (b"x-empty", b""),
    )
    target = "/v1/a%2Fb//../c;x=%7e?q=%20&q=a+b&&z=%C3%A9"
    async with Loopback(OK) as server:
        await fetch(upstream, ask(server.url + target, body, headers=headers))
    expected = b"POST " + target.encode() + b" HTTP/1.1\r\nhost: " + server.host.encode() + b"\r\n"
    expected += b"".join(n + b": " + v + b"\r\n" for n, v in headers[1:]) + b"\r\n" + body
    assert server.requests[0].raw == expected


async def test_a_request_without_headers_gets_only_host_and_length(upstream):
    async with Loopback(OK) as server:
        await fetch(upstream, ask(server.url + "/x", b"abc"))
        await fetch(upstream, ask(server.url, b"", "GET"))
    assert server.requests[0].names == ["Host", "Content-Length"]
    assert server.requests[1].names == ["Host"]
    assert server.requests[1].target == "/"


@settings(
    max_examples=examples(30),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(st.binary(max_size=3000), max_size=6))
def test_any_body_arrives_whole_or_in_pieces(parts):
    body = b"".join(parts)

    async def run():
        upstream = HttpUpstream(AiohttpTransport())
        async with Loopback(OK) as server:
            await fetch(upstream, ask(server.url, body))
            await fetch(upstream, ask(server.url, pieces(*parts)))
            await fetch(upstream, ask(server.url, pieces(*parts), headers=[(b"Content-Length", b"%d" % len(body))]))
        await upstream.close()
        return server.requests

    whole, chunked, counted = asyncio.run(run())
    assert whole.body == chunked.body == counted.body == body
    assert chunked.header("transfer-encoding") == "chunked"
    assert chunked.header("content-length") is None
    assert counted.raw.endswith(b"\r\n\r\n" + body)


@pytest.mark.parametrize("size", [1 << 16, (1 << 16) + 1, 800_000, 1 << 20, (1 << 20) + 1, 10_000_000])
async def test_a_large_body_arrives(upstream, size):
    body = (bytes(range(251)) * (size // 251 + 1))[:size]
    async with Loopback(OK) as server:
        await fetch(upstream, ask(server.url, body))
        assert server.requests[0].body == body
        await fetch(upstream, ask(server.url, body))
    assert server.connections == 1


async def test_status_headers_and_body_come_back_as_they_are(upstream):
    raw = (
        b"HTTP/1.1 429 Slow Down\r\nX-Request-ID: req_1\r\nset-cookie: a=1; Path=/\r\nServer: x\r\nSet-Cookie: b=2\r\n"
        b"Connection: keep-alive, x-hop\r\nX-Hop: gone\r\nKeep-Alive: timeout=5\r\nx-latin: \xe9\r\nretry-after: 3\r\n"
        b"Content-Type: application/json\r\ncontent-length: 9\r\n\r\n{ 'odd' }"
    )
    async with Loopback(replies_bytes(raw)) as server:
        reply, body = await fetch(upstream, ask(server.url))
    assert (reply.status, body) == (429, b"{ 'odd' }")
    assert reply.headers == (
        (b"X-Request-ID", b"req_1"),
        (b"set-cookie", b"a=1; Path=/"),
        (b"Server", b"x"),
        (b"Set-Cookie", b"b=2"),
        (b"x-latin", b"\xe9"),
        (b"retry-after", b"3"),
        (b"Content-Type", b"application/json"),
        (b"content-length", b"9"),
    )


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd"])
async def test_content_encodings_are_left_alone(upstream, encoding):
    async with Loopback(replies_json({"text": "x" * 500}, encoding=encoding)) as server:
        reply, body = await fetch(upstream, ask(server.url, headers=[(b"Accept-Encoding", encoding.encode())]))
    assert (b"Content-Encoding", encoding.encode()) in reply.headers
    assert body == compress(json.dumps({"text": "x" * 500}).encode(), encoding)


async def test_a_redirect_is_an_answer_like_any_other(upstream):
    raw = b"HTTP/1.1 307 Temporary Redirect\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n"
    async with Loopback(replies_bytes(raw)) as server:
        reply, _ = await fetch(upstream, ask(server.url))
    assert reply.status == 307
    assert (b"Location", b"/elsewhere") in reply.headers
    assert len(server.requests) == 1


async def test_a_cookie_is_never_sent_to_the_provider_that_set_it(upstream):
    async with Loopback(replies_json({}, headers=[("Set-Cookie", "session=other-tenant; Path=/")])) as server:
        for _ in range(3):
            await fetch(upstream, ask(server.url))
    assert server.connections == 1
    assert [request.header("cookie") for request in server.requests] == [None] * 3


async def test_informational_answers_are_skipped(upstream):
    raw = (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    )
    async with Loopback(replies_bytes(raw)) as server:
        reply, body = await fetch(upstream, ask(server.url))
        assert (reply.status, body) == (200, b"ok")
        await fetch(upstream, ask(server.url))
    assert server.connections == 1


async def test_expect_is_forwarded_and_the_body_does_not_wait_for_continue_forever(upstream):
    async with Loopback(OK) as server:
        await fetch(upstream, ask(server.url, b"abc", headers=[(b"Expect", b"100-continue")]))
    assert server.requests[0].header("expect") == "100-continue"
    assert server.requests[0].body == b"abc"


@pytest.mark.parametrize(
    ("method", "raw"),
    [
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n"),
        ("GET", b"HTTP/1.1 204 No Content\r\nX: y\r\n\r\n"),
        ("GET", b"HTTP/1.1 304 Not Modified\r\nETag: x\r\nContent-Length: 99\r\n\r\n"),
        ("GET", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
        ("GET", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    ],
)
async def test_an_answer_without_a_body_ends_at_once_and_its_connection_is_used_again(upstream, method, raw):
    async with Loopback(replies_bytes(raw)) as server:
        for _ in range(2):
            reply, body = await fetch(upstream, ask(server.url, b"", method))
            assert body == b""
            assert reply.is_delimited
    assert server.connections == 1


async def test_a_body_without_a_length_ends_with_its_connection(upstream):
    async with Loopback(replies_bytes(b"HTTP/1.0 200 OK\r\nX: y\r\n\r\nall of it", close=True)) as server:
        reply, body = await fetch(upstream, ask(server.url))
    assert body == b"all of it"
    assert not reply.is_delimited


async def test_trailers_are_discarded_and_so_is_the_header_that_announces_them(upstream):
    async def script(request: Recorded, answer: Answer) -> None:
        await answer.head(200, [("Trailer", "X-Sum"), ("X", "y")], chunked=True)
        await answer.chunk(b"abc")
        await answer.last_chunk([("X-Sum", "1")])

    async with Loopback(script) as server:
        for _ in range(2):
            reply, body = await fetch(upstream, ask(server.url))
            assert body == b"abc"
            assert reply.headers == ((b"X", b"y"),)
            assert reply.is_delimited
    assert server.connections == 1


async def test_large_headers_come_through(upstream):
    async with Loopback(replies_json({}, headers=[("X-Large", "v" * 60_000)] * 3)) as server:
        reply, _ = await fetch(upstream, ask(server.url, headers=[(b"X-Large", b"w" * 60_000)]))
    assert [len(value) for name, value in reply.headers if name == b"X-Large"] == [60_000] * 3
    assert len(server.requests[0].header("x-large")) == 60_000


async def test_each_piece_of_a_stream_is_there_before_the_next_one_is_sent(upstream):
    received: asyncio.Queue[bytes] = asyncio.Queue()
    stream = events({"n": 1}, {"n": 2}, {"n": 3})
    cuts = (1, 5, 14, 15, 20)

    async def script(request: Recorded, answer: Answer) -> None:
        await answer.head(200, [("Content-Type", "text/event-stream")], chunked=True)
        for piece in split(stream, cuts):
            await answer.chunk(piece)
            assert await received.get() == piece
        await answer.last_chunk()

    async with Loopback(script) as server:
        reply = await upstream.send(ask(server.url))
        async for piece in reply.chunks():
            received.put_nowait(piece)
        await reply.close()


@settings(max_examples=examples(25), deadline=None)
@given(st.sets(st.integers(0, 90), max_size=12))
def test_an_event_stream_split_anywhere_is_the_same_stream(cuts):
    stream = events({"delta": "héllo"}, {"delta": "wörld"}, {"usage": {"total": 3}})

    async def run():
        upstream = HttpUpstream(AiohttpTransport())
        async with Loopback(replies_events(stream, cuts)) as server:
            _, body = await fetch(upstream, ask(server.url))
        await upstream.close()
        return body

    assert asyncio.run(run()) == stream


async def test_many_requests_at_once_get_their_own_answers(upstream):
    async def script(request: Recorded, answer: Answer) -> None:
        await asyncio.sleep(0)
        await answer.head(200, length=len(request.body))
        await answer.send(request.body)

    async with Loopback(script) as server:
        bodies = [b"request %d" % n for n in range(200)]
        answers = await asyncio.gather(*(fetch(upstream, ask(server.url, body)) for body in bodies))
    assert [body for _, body in answers] == bodies


async def test_unrequested_bytes_never_answer_the_next_request(upstream):
    answered = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nmine"
    extra = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nothers"
    async with Loopback(replies_bytes(answered + extra)) as server:
        for _ in range(3):
            _, body = await fetch(upstream, ask(server.url))
            assert body == b"mine"
    assert server.connections == 3


async def test_what_a_provider_sends_on_an_idle_connection_never_answers_the_next_request(upstream):
    extra = asyncio.Event()

    async def script(request: Recorded, answer: Answer) -> None:
        await answer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nmine")
        await extra.wait()
        await answer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nothers")

    async with Loopback(script) as server:
        assert (await fetch(upstream, ask(server.url)))[1] == b"mine"
        extra.set()
        await asyncio.sleep(0.05)
        assert (await fetch(upstream, ask(server.url)))[1] == b"mine"
    assert server.connections == 2


@pytest.mark.parametrize(
    ("target", "headers"),
    [
        ("/a b", ()),
        ("/a\r\nX: y", ()),
        ("/\N{SNOWMAN}", ()),
        ("/", ((b"X", b"a\r\nX-Injected: 1"),)),
        ("/", ((b"X\n", b"a"),)),
        ("/", ((b"X", b"a\r"),)),
        ("/", ((b"X", b"\na"),)),
        ("/", ((b"X", b"a"), (b"\nY", b"b"))),
        ("/", ((b"\rX", b"a\n\r"),)),
        ("/a\r", ()),
        ("/", ((b"X", b"a\0"),)),
    ],
)
async def test_bytes_that_are_not_exactly_one_request_are_never_sent(upstream, target, headers):
    async with Loopback(OK) as server:
        with pytest.raises(BadRequest):
            await upstream.send(ask(server.url + target, headers=headers))
    assert server.requests == []


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("ftp://example.com/", "http"),
        ("example.com/v1", "http"),
        ("http:///v1", "host"),
        ("http://a:x/", "port"),
        ("http://sk-secret:pw@127.0.0.1:1/v1", "credentials"),
        ("http://sk-secret@127.0.0.1:1/v1", "credentials"),
    ],
)
async def test_an_unusable_url_is_unreachable_and_never_quoted(upstream, url, reason):
    with pytest.raises(Unreachable) as caught:
        await upstream.send(ask(url))
    assert "sk-secret" not in caught.value.message
    assert reason in caught.value.message
    assert "base URL" in caught.value.message
