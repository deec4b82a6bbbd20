"""What is no HTTP gets an answer that a client of its protocol can read, and says what is wrong with it."""

import asyncio
import contextlib
import json

import pytest

from tests.e2e.protocol_samples import CHAT, MESSAGES, PROTOCOLS, ProtocolSamples
from tests.e2e.resident_memory import warm_up
from tests.loopback import Answer, Recorded, replies_json
from tests.proxy_process import Proxy


async def send_pieces(proxy: Proxy, *pieces: bytes) -> bytes:
    """All that comes back on a connection for these pieces, until it closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.2)
        return await asyncio.wait_for(reader.read(-1), 10)
    finally:
        writer.close()


def parts(answer: bytes) -> tuple[int, bytes, dict]:
    """Status, head in small letters, and the error."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-length: %d" % len(body) in head
    return int(head.split()[1]), head.lower(), json.loads(body)


def assert_refused(protocol: ProtocolSamples, error: dict) -> None:
    """The error says in the protocol's words that the request is at fault."""
    inner = protocol.error_of(json.dumps(error).encode())
    assert inner.get("type", inner.get("status")) in ("invalid_request_error", "INVALID_ARGUMENT")


def post(protocol: ProtocolSamples, *lines: bytes) -> bytes:
    return b"\r\n".join([b"POST %b HTTP/1.1" % protocol.path.encode(), b"Host: a", *lines, b"\r\n"])


BROKEN = {
    "two hosts": (b"Host: a",),
    "a header's name": (b"x y: 1",),
    "a header's value": (b"x: a\x00b",),
    "two lengths": (b"Content-Length: 4", b"Content-Length: 5"),
}


@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        (b"http://localhost:80/healthz", b"LOCALHOST", 200),
        (b"http://localhost/healthz?a", b"localhost", 200),
        (b"http://evil.example/healthz", b"localhost", 400),
        (b"http://localhost@evil.example/healthz", b"localhost", 400),
        (b"/healthz?u=http://evil.example/", b"localhost", 200),
    ],
)
async def test_a_target_that_names_another_host_is_refused(proxy: Proxy, target: bytes, host: bytes, status: int):
    answer = await send_pieces(proxy, b"GET %b HTTP/1.1\r\nHost: %b\r\nConnection: close\r\n\r\n" % (target, host))
    found, _, body = parts(answer)
    assert found == status
    assert status == 200 or "names another host" in body["error"]["message"]


@pytest.mark.parametrize(
    ("protocol", "lines"),
    [*((CHAT, lines) for lines in BROKEN.values()), *((protocol, BROKEN["two hosts"]) for protocol in PROTOCOLS[1:])],
)
async def test_a_head_that_cannot_be_read_is_refused_in_the_protocols_shape(proxy, protocol, lines):
    status, head, error = parts(await send_pieces(proxy, post(protocol, *lines)))
    assert status == 400
    assert_refused(protocol, error)
    assert "not valid HTTP" in error["error"]["message"]
    assert ("request_id" in error) == (protocol is MESSAGES)
    named = b"request-id: req_" if protocol is MESSAGES else b"x-request-id: req_"
    assert b"\r\n" + named in head
    assert b"connection: close" in head


@pytest.mark.parametrize(
    ("request_line", "shape"),
    [
        (b"POST /v1/messages/caf\xc3\xa9 HTTP/1.1\r\nHost: a\r\n\r\n", "anthropic"),
        (b"GET /v1/models/caf\xc3\xa9 HTTP/1.1\r\nHost: a\r\nAnthropic-Version: 2023-06-01\r\n\r\n", "anthropic"),
        (b"GET /v1/models/caf\xc3\xa9 HTTP/1.1\r\nHost: a\r\n\r\n", "openai"),
    ],
)
async def test_a_path_that_is_not_ascii_is_refused_and_told_to_be_encoded(proxy, request_line, shape):
    status, _, error = parts(await send_pieces(proxy, request_line))
    assert status == 400
    assert "percent-encode" in error["error"]["message"]
    assert ("type" in error, "code" in error["error"]) == ((True, False) if shape == "anthropic" else (False, True))


async def test_a_client_that_speaks_tls_is_told_of_in_the_log(proxy):
    answer = await send_pieces(proxy, bytes.fromhex("16030100c8010000c40303"))
    assert "https://" in parts(answer)[2]["error"]["message"]
    assert "https://" in proxy.log


async def test_a_body_that_breaks_off_in_its_chunks_is_refused(proxy):
    head = post(CHAT, b"Content-Type: application/json", b"Transfer-Encoding: chunked")
    async with proxy.provider(replies_json(CHAT.json())) as provider:
        status, _, error = parts(await send_pieces(proxy, head, b"zz\r\n"))
    assert (status, provider.requests) == (400, [])
    assert "not valid HTTP" in error["error"]["message"]


@pytest.mark.parametrize("protocol", [CHAT, MESSAGES])
async def test_a_head_without_an_end_is_refused_and_no_more_of_it_is_taken(proxy, protocol):
    before = await warm_up(proxy)
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    with contextlib.suppress(ConnectionError):
        writer.write(post(protocol)[:-2] + b"X-Long: ")
        for _ in range(1_000):
            writer.write(b"x" * 50_000)
            await writer.drain()
            if reader.at_eof():
                break
    status, head, error = parts(await asyncio.wait_for(reader.read(-1), 30))
    writer.close()
    assert status == 431
    assert_refused(protocol, error)
    assert "head of the request" in error["error"]["message"]
    assert ("request_id" in error) == (protocol is MESSAGES)
    assert b"connection: close" in head
    assert proxy.resident - before < 20 << 20


async def test_a_head_without_an_end_behind_a_request_leaves_its_answer_whole(proxy):
    async with proxy.provider(late):
        answer = await send_pieces(proxy, good(), b"GET /v1/models HTTP/1.1\r\nX-Long: ", b"x" * 900_000)
    head, _, rest = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert json.loads(rest) == CHAT.json()


async def test_a_head_that_is_long_and_ends_is_taken_however_often_it_comes(proxy):
    body = CHAT.body("A long head.")
    lines = [b"X-Long-%d: %b" % (n, b"x" * 10_000) for n in range(20)]
    whole = post(CHAT, *lines, b"Content-Length: %d" % len(body)) + body
    long = post(CHAT, b"Content-Length: 3000000") + b"{" + b" " * 2_999_998 + b"}"
    async with proxy.provider(replies_json(CHAT.json())) as provider:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        for _ in range(2):
            for request in (whole, long):
                for at in range(0, len(request), 30_000):
                    writer.write(request[at : at + 30_000])
                    await writer.drain()
                    await asyncio.sleep(0)
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 200")
                await reader.readexactly(len(json.dumps(CHAT.json())))
        writer.close()
    assert len(provider.requests) == 4


UPLOAD = b"POST /v1/files HTTP/1.1\r\nHost: a\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"


def good() -> bytes:
    """A request that can be read, whole."""
    body = CHAT.body("First.")
    return post(CHAT, b"Content-Type: application/json", b"Content-Length: %d" % len(body)) + body


async def late(request: Recorded, answer: Answer) -> None:
    """A provider that takes its time."""
    await asyncio.sleep(0.5)
    await replies_json(CHAT.json())(request, answer)


async def test_trailers_without_an_end_are_not_taken_for_ever(proxy):
    before = await warm_up(proxy)
    async with proxy.provider(late):
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        sent = 0
        with contextlib.suppress(ConnectionError):
            writer.write(UPLOAD + b"5\r\nfirst\r\n0\r\nX-Long: ")
            for _ in range(1_000):
                writer.write(b"x" * 50_000)
                await writer.drain()
                sent += 50_000
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(-1), 30) == b""
        writer.close()
    assert sent < 50_000_000
    assert proxy.resident - before < 20 << 20


async def test_what_comes_behind_a_request_and_is_no_http_leaves_its_answer_whole(proxy):
    async with proxy.provider(late):
        answer = await send_pieces(proxy, good(), b"no http at all\r\n\r\n", b"and more\r\n\r\n")
    head, _, rest = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert json.loads(rest) == CHAT.json()


async def test_nothing_is_said_into_an_answer_that_begins_before_its_request_is_over(proxy):
    async def early(request: Recorded, answer: Answer) -> None:
        await answer.head(200, [("Content-Type", "text/plain")], length=100)
        await answer.send(b"so far")
        await asyncio.sleep(5)

    async with proxy.provider(early, eager=True):
        answer = await send_pieces(proxy, UPLOAD + b"5\r\nfirst\r\n", b"1\r\nx\r\n", b"zz\r\n")
    assert answer.endswith(b"\r\n\r\nso far")


async def test_a_request_that_cannot_be_read_waits_for_its_turn(proxy):
    bad = post(CHAT, b"Content-Type: application/json", b"Transfer-Encoding: chunked")
    async with proxy.provider(late):
        for pieces in ([good() + bad + b"zz\r\n"], [good(), bad, b"zz\r\n"]):
            answer = await send_pieces(proxy, *pieces)
            first, found, second = answer.partition(b"HTTP/1.1 400")
            assert first.startswith(b"HTTP/1.1 200")
            assert json.loads(first.partition(b"\r\n\r\n")[2]) == CHAT.json()
            assert "not valid HTTP" in parts(found + second)[2]["error"]["message"]


async def test_a_target_that_cannot_be_read_is_told_so(proxy):
    answer = await send_pieces(proxy, b"GET http://h:999999/v1/models HTTP/1.1\r\nHost: a\r\n\r\n")
    assert "target" in parts(answer)[2]["error"]["message"]


async def test_what_comes_behind_an_early_answer_is_refused_like_any_other(proxy):
    async def early(request: Recorded, answer: Answer) -> None:
        await answer.head(200, [("Content-Type", "text/plain")], length=2)
        await answer.send(b"ok")

    async with proxy.provider(early, eager=True):
        answer = await send_pieces(proxy, UPLOAD + b"5\r\nfirst\r\n", b"1\r\nx\r\n", b"0\r\n\r\n", b"no http\r\n\r\n")
    first, found, second = answer.partition(b"HTTP/1.1 400")
    assert first.endswith(b"\r\n\r\nok")
    assert parts(found + second)[0] == 400
