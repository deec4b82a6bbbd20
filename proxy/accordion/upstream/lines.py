"""Connections to providers, each for all the requests that it serves one after the other."""

from __future__ import annotations

import asyncio
import select
from collections import deque
from collections.abc import Callable
from functools import partial
from time import monotonic

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.streams import StreamReader

from accordion.upstream.origin import Origin


class Idle:
    """Lines on which an answer has ended, by server: for their next request, `keepalive` seconds long.

    aiohttp's connector has the like of it, which takes many times as long. Here it only makes the connections; to it
    all of them are in use until they are closed.
    """

    def __init__(self, keepalive: float) -> None:
        self._keepalive = keepalive
        self._lines: dict[Origin, deque[Line]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def take(self, origin: Origin) -> Line | None:
        """The line that was used last, if any can be used; so those that are not needed any more grow old."""
        lines = self._lines.get(origin)
        while lines:
            line = lines.pop()
            if monotonic() - line.since <= self._keepalive and line.usable:
                return line
            line.close()
        return None

    def put(self, line: Line) -> None:
        """Keeps a line whose answer has ended."""
        line.since = monotonic()
        lines = self._lines.get(line.origin)
        if lines is None:
            lines = self._lines[line.origin] = deque()
        lines.append(line)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._keepalive, self._sweep)

    def close(self) -> None:
        """Closes all."""
        if self._timer is not None:
            self._timer.cancel()
        for lines in self._lines.values():
            for line in lines:
                line.close()
        self._lines.clear()

    def _sweep(self) -> None:
        old = monotonic() - self._keepalive
        for origin, lines in list(self._lines.items()):
            while lines and lines[0].since <= old:
                lines.popleft().close()
            if not lines:
                del self._lines[origin]
        again = bool(self._lines)
        self._timer = asyncio.get_running_loop().call_later(self._keepalive, self._sweep) if again else None


class Line:
    """A connection that stands. `body` is that of the answer that is coming in, or came last; `since` tells when that
    was over, by the monotonic clock."""

    __slots__ = ("_connection", "_idle", "_waiting", "body", "origin", "protocol", "since")

    def __init__(self, connection: Connection, protocol: ResponseHandler, origin: Origin, idle: Idle) -> None:
        self.protocol = protocol
        self.origin = origin
        self.body: StreamReader | None = None
        self.since = 0.0
        self._connection = connection
        self._idle = idle
        self._waiting: Callable[[], object] | None = None
        if (closed := protocol.closed) is not None:
            closed.add_done_callback(self._lost)

    @property
    def usable(self) -> bool:
        """Whether another request can go out. What waits to be read on an idle connection is its end, or what nobody
        asked for."""
        if self._waiting is None or self.protocol.should_close or not self.protocol.is_connected():
            return False
        return not self._waiting()

    def release(self) -> None:
        """Its answer has ended: on to the next request, where there can be one."""
        transport = self.protocol.transport
        if self.protocol.should_close or transport is None or transport.is_closing():
            self.close()
            return
        if self._waiting is None:
            # Not before: a connection that is lost as soon as it stands has no socket.
            self._waiting = _watch(transport)
        self._idle.put(self)

    def close(self) -> None:
        """Closes it, as soon as what is still buffered has gone out."""
        self._connection.close()

    def abort(self) -> None:
        """Closes it at once; nothing that is still buffered goes out first."""
        self.protocol.abort()
        self._connection.close()

    def _lost(self, closed: asyncio.Future[None]) -> None:
        """Wakes who waits for a body that can no longer come: aiohttp forgets it after malformed chunks."""
        if not closed.cancelled():
            closed.exception()
        body, self.body = self.body, None
        if body is not None and not body.is_eof() and body.exception() is None:
            body.set_exception(aiohttp.ClientPayloadError(str(self.protocol.exception() or "connection lost")))


def _watch(transport: asyncio.Transport) -> Callable[[], object]:
    """Tells, in what it gives, whether something waits to be read."""
    descriptor = transport.get_extra_info("socket").fileno()
    if not hasattr(select, "poll"):
        return lambda: select.select([descriptor], [], [], 0)[0]
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return partial(poll.poll, 0)
