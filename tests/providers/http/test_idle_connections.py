"""Connections that wait for their next request: which is taken, how long they wait, when they are closed."""

import asyncio

from yarl import URL

from accordion.model.ports import UpstreamRequest
from accordion.providers.http.transport import IdleConnections, ProviderConnection, ServerOrigin
from tests.loopback import Answer, Loopback, Recorded


def ask(url):
    return UpstreamRequest("POST", url, (), b"{}")


async def fetch(upstream, request):
    reply = await upstream.send(request)
    return b"".join([piece async for piece in reply.chunks()])


async def script(request: Recorded, answer: Answer) -> None:
    await answer.head(200, length=2)
    await answer.send(b"ok")


async def both_at_once(upstream, server):
    """Makes two connections."""
    replies = [await upstream.send(ask(server.url)) for _ in range(2)]
    for reply in replies:
        assert b"".join([piece async for piece in reply.chunks()]) == b"ok"


async def test_the_connection_that_was_used_last_is_used_next(upstream):
    async with Loopback(script) as server:
        await both_at_once(upstream, server)
        for _ in range(3):
            await fetch(upstream, ask(server.url))
    assert [request.connection for request in server.requests] == [1, 2, 2, 2, 2]


async def test_idle_connections_are_closed_in_time_without_another_request(build):
    upstream = build(keepalive=0.05)
    async with Loopback(script) as server:
        await both_at_once(upstream, server)
        await server.all_gone()
        assert server.connections == 2


async def test_a_connection_that_is_used_again_waits_its_whole_time_again(build):
    upstream = build(keepalive=0.5)
    async with Loopback(script) as server:
        for _ in range(4):
            await fetch(upstream, ask(server.url))
            await asyncio.sleep(0.2)
        assert server.connections == 1
        await server.all_gone()


async def test_closing_the_upstream_closes_the_idle_connections_too(upstream):
    async with Loopback(script) as server:
        await both_at_once(upstream, server)
        assert server.open == 2
        await upstream.close()
        await server.all_gone()


async def test_a_connection_that_the_provider_is_about_to_close_is_not_kept(upstream):
    async def closing(request: Recorded, answer: Answer) -> None:
        await answer.send(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok")
        await answer.until_gone()

    async with Loopback(closing) as server:
        assert await fetch(upstream, ask(server.url)) == b"ok"
        await server.all_gone()


async def test_a_connection_on_which_more_came_than_was_asked_for_is_not_kept(upstream):
    async def twice(request: Recorded, answer: Answer) -> None:
        await answer.send(2 * b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await answer.until_gone()

    async with Loopback(twice) as server:
        assert await fetch(upstream, ask(server.url)) == b"ok"
        await server.all_gone()


async def test_a_connection_that_was_lost_as_soon_as_it_stood_is_no_error_of_ours():
    # TLS tells its loss a turn of the loop after its socket has gone.
    class Lost:
        closed = None

        def get_extra_info(self, name: str) -> None:
            return None

        def is_connected(self) -> bool:
            return False

        def close(self) -> None:
            self.closed = True

    lost = Lost()
    lost.transport = lost
    line = ProviderConnection(lost, lost, ServerOrigin(URL("https://localhost"), None), IdleConnections(1.0))
    assert not line.is_usable


async def test_connections_to_two_providers_are_never_mixed_up(upstream):
    async with Loopback(script) as one, Loopback(script) as other:
        for _ in range(2):
            for server in (one, other):
                await fetch(upstream, ask(server.url))
        assert (one.connections, len(one.requests), other.connections, len(other.requests)) == (1, 2, 1, 2)


async def test_a_body_that_came_in_pieces_before_anybody_read_is_given_whole(upstream):
    ended = asyncio.Event()

    async def slowly(request: Recorded, answer: Answer) -> None:
        await answer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for piece in (b"2\r\nab\r\n", b"3\r\ncde\r\n", b"0\r\n\r\n"):
            await asyncio.sleep(0.01)
            await answer.send(piece)
        ended.set()

    async with Loopback(slowly) as server:
        for _ in range(2):
            ended.clear()
            reply = await upstream.send(ask(server.url))
            await ended.wait()
            await asyncio.sleep(0.02)
            assert [piece async for piece in reply.chunks()] == [b"abcde"]
        assert server.connections == 1
