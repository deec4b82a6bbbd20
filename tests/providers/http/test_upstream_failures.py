"""What goes wrong on the way: cuts at every place, silence, refusals, those who go away, those who read slowly."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest

from accordion.model.errors import Unreachable, UpstreamDisconnected, UpstreamTimeout
from accordion.model.ports import UpstreamRequest
from tests.loopback import Answer, Loopback, Recorded, full_queue, replies_bytes, replies_json, wait_until_still

OK = replies_json({"ok": True})
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
MIB = 1024 * 1024


def ask(url, body=b"{}", method="POST", headers=()):
    return UpstreamRequest(method, url, tuple(headers), body)


async def drain(reply, into):
    async for piece in reply.chunks():
        into.append(piece)


async def fetch(upstream, request):
    reply = await upstream.send(request)
    try:
        return b"".join([piece async for piece in reply.chunks()])
    finally:
        await reply.close()


def ends_after(raw, how):
    async def script(request: Recorded, answer: Answer) -> None:
        await answer.send(raw)
        await asyncio.sleep(0.02)
        await (answer.cut() if how == "reset" else answer.close())

    return script


@pytest.mark.parametrize("how", ["reset", "closed"])
@pytest.mark.parametrize("raw", [b"", b"HTT", b"HTTP/1.1 200 OK\r\n", HEAD, HEAD + b"Content-Length: 3\r\n"])
async def test_a_connection_that_ends_within_the_head_is_not_retried(build, raw, how):
    upstream = build(attempts=3)
    async with Loopback(ends_after(raw, how)) as server:
        with pytest.raises(UpstreamDisconnected) as caught:
            await upstream.send(ask(server.url + "/v1/x?key=secret", headers=[(b"Authorization", b"Bearer sk-1")]))
    assert len(server.requests) == 1
    assert server.host in caught.value.message
    assert "secret" not in caught.value.message
    assert "sk-1" not in caught.value.message


BODIES = {
    "nothing of a counted body": (b"Content-Length: 9\r\n\r\n", b""),
    "half of a counted body": (b"Content-Length: 9\r\n\r\ndata: ", b"data: "),
    "nothing of a chunked body": (b"Transfer-Encoding: chunked\r\n\r\n", b""),
    "half a chunk size": (b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n1", b"abc"),
    "half a chunk": (b"Transfer-Encoding: chunked\r\n\r\n9\r\ndata: ", b"data: "),
    "all chunks but the last": (b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", b"abc"),
    "half the last chunk": (b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n", b"abc"),
}


@pytest.mark.parametrize("how", ["reset", "closed"])
@pytest.mark.parametrize("place", BODIES)
async def test_a_cut_body_gives_what_arrived_and_then_an_error(upstream, place, how):
    raw, arrived = BODIES[place]
    async with Loopback(ends_after(HEAD + raw, how)) as server:
        reply = await upstream.send(ask(server.url))
        seen: list[bytes] = []
        with pytest.raises(UpstreamDisconnected):
            await drain(reply, seen)
        await reply.close()
    assert b"".join(seen) == arrived


async def test_what_arrived_before_a_cut_is_not_lost_on_a_reader_who_comes_late(upstream):
    async with Loopback(ends_after(HEAD + b"Content-Length: 9\r\n\r\ndata: 1", "reset")) as server:
        reply = await upstream.send(ask(server.url))
        await server.all_gone()
        await asyncio.sleep(0.05)
        seen: list[bytes] = []
        with pytest.raises(UpstreamDisconnected):
            await drain(reply, seen)
    assert b"".join(seen) == b"data: 1"


async def test_a_reset_is_a_cut_even_where_the_body_has_no_marked_end(upstream):
    async with Loopback(ends_after(HEAD + b"\r\ndata: 1", "reset")) as server:
        reply = await upstream.send(ask(server.url))
        seen: list[bytes] = []
        with pytest.raises(UpstreamDisconnected):
            await drain(reply, seen)
    assert seen == [b"data: 1"]


@pytest.mark.parametrize(
    "raw",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    ],
)
async def test_an_answer_that_is_not_http_is_a_cut(upstream, raw):
    async with Loopback(replies_bytes(raw)) as server:
        with pytest.raises(UpstreamDisconnected):
            await upstream.send(ask(server.url))


async def test_malformed_chunks_end_the_body_with_an_error_at_once(upstream):
    async def script(request: Recorded, answer: Answer) -> None:
        await answer.head(chunked=True)
        await answer.chunk(b"good")
        await asyncio.sleep(0.02)
        await answer.send(b"zz\r\nbad\r\n")
        await answer.until_gone()

    async with Loopback(script) as server:
        with pytest.raises(UpstreamDisconnected):
            await fetch(upstream, ask(server.url))


async def silent(request: Recorded, answer: Answer) -> None:
    await answer.until_gone()


async def half_an_event(request: Recorded, answer: Answer) -> None:
    await answer.head(chunked=True)
    await answer.chunk(b"data: ")
    await answer.until_gone()


async def two_pieces():
    yield b"one"
    yield b"two"


@pytest.mark.parametrize("body", [lambda: b"{}", lambda: bytes(2 * MIB), two_pieces])
async def test_silence_before_the_head_is_a_timeout_and_closes_the_connection(build, body):
    upstream = build(read=0.1, attempts=3)
    async with Loopback(silent) as server:
        with pytest.raises(UpstreamTimeout) as caught:
            await upstream.send(ask(server.url, body()))
        await server.until(lambda: server.requests)
        await server.all_gone()
    assert server.host in caught.value.message
    assert len(server.requests) == 1


async def test_silence_within_a_body_is_a_timeout(build):
    upstream = build(read=1)
    async with Loopback(half_an_event) as server:
        reply = await upstream.send(ask(server.url))
        seen: list[bytes] = []
        with pytest.raises(UpstreamTimeout):
            await drain(reply, seen)
    assert seen == [b"data: "]


async def test_a_reply_may_take_longer_than_the_read_timeout_as_long_as_something_arrives(build):
    # Far above the time for which a busy machine may stop the test.
    async def script(request: Recorded, answer: Answer) -> None:
        await answer.head(chunked=True)
        for _ in range(11):
            await asyncio.sleep(0.5)
            await answer.chunk(b".")
        await answer.last_chunk()

    async with Loopback(script) as server:
        assert await fetch(build(read=5), ask(server.url)) == b"." * 11


async def test_an_upload_that_is_not_taken_is_a_timeout(build):
    async def deaf(request: Recorded, answer: Answer) -> None:
        await asyncio.Event().wait()

    async with Loopback(deaf, eager=True) as server:
        with pytest.raises(UpstreamTimeout, match=r"taken for 0\.1 s"):
            await build(write=0.1).send(ask(server.url, bytes(64 * MIB)))


async def test_an_upstream_that_cannot_be_connected_to_in_time_is_unreachable(build):
    with full_queue() as port, pytest.raises(Unreachable) as caught:
        await build(connect=0.1).send(ask(f"http://127.0.0.1:{port}/"))
    assert "0.1 s" in caught.value.message
    assert "Nothing was sent" in caught.value.message


async def test_a_refused_connection_is_tried_again_and_then_unreachable(build, unused_tcp_port):
    upstream = build(attempts=3)
    with pytest.raises(Unreachable) as caught:
        await upstream.send(ask(f"http://127.0.0.1:{unused_tcp_port}/v1?key=secret"))
    assert f"127.0.0.1:{unused_tcp_port}" in caught.value.message
    assert "refused" in caught.value.message
    assert "secret" not in caught.value.message


async def test_an_upstream_that_comes_up_between_two_attempts_is_reached_once(build, unused_tcp_port):
    upstream = build(attempts=50, backoff=0.000_000_001)
    server = Loopback(OK, port=unused_tcp_port)
    sending = asyncio.create_task(fetch(upstream, ask(f"http://127.0.0.1:{unused_tcp_port}/")))
    await asyncio.sleep(0)
    async with server:
        assert await sending == b'{"ok": true}'
    assert server.connections == 1
    assert len(server.requests) == 1


async def test_an_unknown_name_is_unreachable(upstream):
    with pytest.raises(Unreachable) as caught:
        await upstream.send(ask("http://no-such-host.invalid/v1"))
    assert "no-such-host.invalid" in caught.value.message
    assert "resolved" in caught.value.message


async def answers_once_then_hangs_up(request: Recorded, answer: Answer) -> None:
    """Keeps the connection, and closes it without an answer when the next request comes."""
    if request.target == "/first":
        await answer.head(200, length=2)
        await answer.send(b"ok")
    elif request.connection == 1:
        await answer.close()
    else:
        await answer.head(200, length=5)
        await answer.send(b"again")


async def test_an_idempotent_request_on_a_dead_kept_connection_is_sent_again(upstream):
    async with Loopback(answers_once_then_hangs_up) as server:
        await fetch(upstream, ask(server.url + "/first"))
        assert await fetch(upstream, ask(server.url + "/second", b"", "GET")) == b"again"
    assert server.connections == 2


async def test_a_post_on_a_dead_kept_connection_is_not_sent_again(upstream):
    async with Loopback(answers_once_then_hangs_up) as server:
        await fetch(upstream, ask(server.url + "/first"))
        with pytest.raises(UpstreamDisconnected):
            await upstream.send(ask(server.url + "/second"))
    assert [request.target for request in server.requests] == ["/first", "/second"]


async def test_an_idempotent_request_that_dies_on_a_fresh_connection_is_not_sent_again(upstream):
    async with Loopback(ends_after(b"", "closed")) as server:
        with pytest.raises(UpstreamDisconnected):
            await upstream.send(ask(server.url, b"", "GET"))
    assert server.connections == 1


async def test_a_connection_that_the_server_has_closed_is_not_used_again(upstream):
    async def script(request: Recorded, answer: Answer) -> None:
        await answer.head(200, length=2)
        await answer.send(b"ok")
        await answer.close()

    async with Loopback(script) as server:
        for _ in range(5):
            assert await fetch(upstream, ask(server.url)) == b"ok"
            await server.all_gone()
    assert server.connections == 5


async def test_a_closed_connection_is_noticed_even_before_the_loop_has_seen_its_end(upstream):
    loop = asyncio.get_running_loop()
    released, closed = threading.Event(), threading.Event()
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(2)

        def serve() -> list[bytes]:
            seen = []
            for _ in range(2):
                connection, _ = listening.accept()
                with connection:
                    seen.append(connection.recv(65536))
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                    if len(seen) == 1:
                        released.wait()
                        connection.shutdown(socket.SHUT_RDWR)
                        closed.set()
            return seen

        served = loop.run_in_executor(None, serve)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        assert await fetch(upstream, ask(url)) == b"ok"
        released.set()
        closed.wait()  # the loop stands still meanwhile, on purpose
        assert await fetch(upstream, ask(url)) == b"ok"
        assert len(await served) == 2


async def test_an_idle_connection_is_let_go_before_the_server_would_close_it(build):
    upstream = build(keepalive=0.05)
    async with Loopback(OK) as server:
        await fetch(upstream, ask(server.url))
        await asyncio.sleep(0.2)
        await fetch(upstream, ask(server.url))
    assert server.connections == 2


async def test_a_sender_that_is_cancelled_while_waiting_closes_the_connection(upstream):
    async with Loopback(silent) as server:
        sending = asyncio.create_task(upstream.send(ask(server.url)))
        await server.until(lambda: server.answers)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await server.until(lambda: server.answers[0].gone)


@pytest.mark.parametrize("reading", [True, False])
async def test_a_reply_that_is_closed_before_its_end_is_noticed_by_the_provider_at_once(build, reading):
    upstream = build(read=None)
    async with Loopback(half_an_event) as server:
        reply = await upstream.send(ask(server.url))
        if reading:
            chunks = reply.chunks()
            assert await anext(chunks) == b"data: "
            await chunks.aclose()
        await reply.close()
        await server.until(lambda: server.answers[0].gone)
        await reply.close()
        with pytest.raises(UpstreamDisconnected):
            await anext(reply.chunks())


async def test_closing_a_reply_wakes_who_reads_it(upstream):
    async with Loopback(half_an_event) as server:
        reply = await upstream.send(ask(server.url))
        chunks = reply.chunks()
        await anext(chunks)
        reading = asyncio.create_task(anext(chunks))
        await asyncio.sleep(0.01)
        await reply.close()
        with pytest.raises(UpstreamDisconnected):
            await reading


async def test_a_finished_reply_that_nobody_read_leaves_its_connection_for_the_next(upstream):
    async with Loopback(OK) as server:
        for _ in range(3):
            reply = await upstream.send(ask(server.url))
            await reply.close()
    assert server.connections == 1


async def test_what_the_body_raises_comes_out_as_it_is_and_the_provider_sees_no_end(upstream):
    class ClientGone(Exception):
        pass

    async def body():
        yield b"half"
        raise ClientGone

    async with Loopback(OK) as server:
        with pytest.raises(ClientGone):
            await upstream.send(ask(server.url, body()))
        await server.all_gone()
    assert not server.requests[0].complete


@pytest.mark.parametrize("parts", [[b"abc"], [b"abc", b"defgh"]])
async def test_a_body_that_is_not_as_long_as_it_says_is_never_completed(upstream, parts):
    async def body():
        for part in parts:
            yield part

    async with Loopback(OK) as server:
        with pytest.raises(UpstreamDisconnected) as caught:
            await upstream.send(ask(server.url, body(), headers=[(b"Content-Length", b"5")]))
    assert "Content-Length" in caught.value.message
    assert not any(request.complete for request in server.requests)


async def test_an_early_answer_counts_and_ends_the_upload(build):
    upstream = build(keepalive=60)
    dropped = asyncio.Event()

    async def too_large(request: Recorded, answer: Answer) -> None:
        await answer.head(413, length=2)
        await answer.send(b"no")
        await answer.until_gone()

    async def body():
        try:
            yield b"x"
            await asyncio.Event().wait()
        finally:
            dropped.set()

    async with Loopback(too_large, eager=True) as server:
        for _ in range(2):
            reply = await upstream.send(ask(server.url, body()))
            assert reply.status == 413
            assert b"".join([piece async for piece in reply.chunks()]) == b"no"
            await server.all_gone()
            await dropped.wait()
            dropped.clear()
    assert server.connections == 2


@pytest.mark.parametrize("chunked", [True, False])
async def test_a_slow_reader_makes_the_provider_wait_and_loses_nothing(upstream, chunked):
    size = 64 * MIB

    async def script(request: Recorded, answer: Answer) -> None:
        await answer.head(chunked=chunked, length=None if chunked else size)
        for _ in range(size // 65536):
            await (answer.chunk if chunked else answer.send)(b"x" * 65536)
        if chunked:
            await answer.last_chunk()

    async with Loopback(script) as server:
        reply = await upstream.send(ask(server.url))
        answer = server.answers[0]
        await answer.blocked.wait()
        await wait_until_still(lambda: answer.sent, 0.05)
        assert answer.sent < size / 2  # what the kernel's buffers and one read buffer of ours take
        got = 0
        chunks = reply.chunks()
        largest = 0
        async for piece in chunks:
            got += len(piece)
            largest = max(largest, len(piece))
        await reply.close()
    assert got == size
    assert largest < MIB


async def test_a_slow_provider_makes_the_body_wait(upstream):
    drawn = 0

    async def body():
        nonlocal drawn
        for _ in range(64 * 16):
            drawn += 65536
            yield b"x" * 65536

    may_read = asyncio.Event()

    async def script(request: Recorded, answer: Answer) -> None:
        await may_read.wait()
        await answer.body()
        await answer.head(200, length=0)

    async with Loopback(script, eager=True) as server:
        sending = asyncio.create_task(fetch(upstream, ask(server.url, body())))
        await wait_until_still(lambda: drawn, 0.05)
        assert drawn < 32 * MIB
        may_read.set()
        await sending
        assert len(server.requests[0].body) == 64 * MIB
