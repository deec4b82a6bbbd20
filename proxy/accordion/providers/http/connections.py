"""Connections to providers, and the pool of idle ones. A connection carries one request after the other."""

from __future__ import annotations

import asyncio
import select
from collections import deque
from collections.abc import Callable
from functools import partial
from time import monotonic

import aiohttp

from accordion.providers.http.aiohttp_compat import Connection, ResponseHandler, StreamReader
from accordion.providers.http.origin import ServerOrigin


class IdleConnections:
    """The idle connections to each server. Each waits up to `keepalive` seconds for its next request.

    aiohttp's connector has a pool too, but that takes many times as long. Here the connector only opens connections; it
    considers all of them in use until they are closed.
    """

    def __init__(self, keepalive: float) -> None:
        self._keepalive = keepalive
        self._connections: dict[ServerOrigin, deque[ProviderConnection]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def take(self, origin: ServerOrigin) -> ProviderConnection | None:
        """Removes and returns the connection that was used last, if one is usable. So the surplus ones expire."""
        connections = self._connections.get(origin)
        while connections:
            connection = connections.pop()
            if monotonic() - connection.since <= self._keepalive and connection.is_usable:
                return connection
            connection.close()
        return None

    def put(self, connection: ProviderConnection) -> None:
        """Adds a connection whose response has ended."""
        connection.since = monotonic()
        connections = self._connections.get(connection.origin)
        if connections is None:
            connections = self._connections[connection.origin] = deque()
        connections.append(connection)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._keepalive, self._sweep)

    def close(self) -> None:
        """Closes all idle connections."""
        if self._timer is not None:
            self._timer.cancel()
        for connections in self._connections.values():
            for connection in connections:
                connection.close()
        self._connections.clear()

    def _sweep(self) -> None:
        expiry = monotonic() - self._keepalive
        for origin, connections in list(self._connections.items()):
            while connections and connections[0].since <= expiry:
                connections.popleft().close()
            if not connections:
                del self._connections[origin]
        again = bool(self._connections)
        self._timer = asyncio.get_running_loop().call_later(self._keepalive, self._sweep) if again else None


class ProviderConnection:
    """An open connection. `body` is that of the current or last response; `since` is when it ended (monotonic)."""

    __slots__ = ("_connection", "_has_input", "_idle", "body", "origin", "protocol", "since")

    def __init__(
        self, connection: Connection, protocol: ResponseHandler, origin: ServerOrigin, idle: IdleConnections
    ) -> None:
        self.protocol = protocol
        self.origin = origin
        self.body: StreamReader | None = None
        self.since = 0.0
        self._connection = connection
        self._idle = idle
        self._has_input: Callable[[], object] | None = None
        if (closed := protocol.closed) is not None:
            closed.add_done_callback(self._on_lost)

    @property
    def is_usable(self) -> bool:
        """Whether another request can be sent. Input on an idle connection is its end, or data without a request."""
        if self._has_input is None or self.protocol.should_close or not self.protocol.is_connected():
            return False
        return not self._has_input()

    def release(self) -> None:
        """Puts the connection among the idle ones after its response, or closes it if it cannot be used again."""
        transport = self.protocol.transport
        if self.protocol.should_close or transport is None or transport.is_closing():
            self.close()
            return
        if self._has_input is None:
            # Not earlier: a connection that is lost right after it was made has no socket.
            self._has_input = _readable_probe(transport)
        self._idle.put(self)

    def close(self) -> None:
        """Closes the connection after all buffered bytes are sent."""
        self._connection.close()

    def abort(self) -> None:
        """Closes the connection at once, without sending what is buffered."""
        self.protocol.abort()
        self._connection.close()

    def _on_lost(self, closed: asyncio.Future[None]) -> None:
        """Ends a pending read of the body with an error; aiohttp does not after malformed chunks."""
        if not closed.cancelled():
            closed.exception()
        body, self.body = self.body, None
        if body is not None and not body.is_eof() and body.exception() is None:
            body.set_exception(aiohttp.ClientPayloadError(str(self.protocol.exception() or "connection lost")))


def _readable_probe(transport: asyncio.Transport) -> Callable[[], object]:
    """Returns a function whose result is true if the socket has bytes to read."""
    descriptor = transport.get_extra_info("socket").fileno()
    if not hasattr(select, "poll"):
        return lambda: select.select([descriptor], [], [], 0)[0]
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return partial(poll.poll, 0)
