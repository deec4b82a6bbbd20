"""How long silence is borne on a connection that serves one request after the other."""

from __future__ import annotations

import asyncio

import pytest

from accordion.providers.http.aiohttp_compat import TimedHandler
from accordion.providers.http.transport import AiohttpTransport, TransportTimeouts
from accordion.providers.http.transport_errors import TransferTimeout
from tests.loopback import Answer, Loopback, Recorded


async def test_a_request_on_a_kept_connection_has_its_own_time_out() -> None:
    transport = AiohttpTransport(TransportTimeouts(60.0, 60.0, 60.0), keepalive=60.0)

    async def once(request: Recorded, answer: Answer) -> None:
        if len(server.requests) > 1:
            await answer.until_gone()
            return
        await answer.head(200, length=2)
        await answer.send(b"ok")

    async with Loopback(once) as server:
        origin, target = transport.locate(server.url)
        headers = ((b"Host", b"localhost"),)
        incoming = await transport.open(origin, "POST", target, headers)
        assert await incoming.read() == b"ok"
        idle = [each for connections in transport._idle._connections.values() for each in connections]
        assert {type(connection.protocol) for connection in idle} == {TimedHandler}
        transport._timeouts = TransportTimeouts(60.0, 0.1, 60.0)
        with pytest.raises(TransferTimeout):
            await transport.open(origin, "POST", target, headers)
        assert server.connections == 1
    await transport.close()


async def test_a_connection_that_is_lost_waits_for_nothing() -> None:
    handler = TimedHandler(asyncio.get_running_loop())
    handler.read_timeout = 60.0
    handler.start_timeout()
    assert handler._read_deadline._timer is not None
    handler.connection_lost(None)
    assert handler._read_deadline._timer is None


async def test_without_a_time_out_nothing_is_waited_for() -> None:
    handler = TimedHandler(asyncio.get_running_loop())
    handler.read_timeout = 0.01
    handler.start_timeout()
    handler.read_timeout = None
    handler.start_timeout()
    await asyncio.sleep(0.05)
    assert handler.exception() is None
