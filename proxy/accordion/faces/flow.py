"""A client that is made to wait is looked after, too.

What a system knows of a connection (its end, a reset) it tells to who reads it, and nobody reads while the provider
takes a body more slowly than it comes: then the connection is asked instead. Of an end that lies behind bytes for which
there is no room here yet nobody can know: TCP delivers in order.
"""

from __future__ import annotations

import asyncio
import fcntl
import select
import sys
import termios
from collections.abc import Callable

from uvicorn.protocols.http.flow_control import FlowControl

from accordion.core.deadlines import Deadline

# A client that is made to wait is looked after once in so many seconds.
_EVERY = 0.5


class Flow(FlowControl):
    """Says when to read and to write. While nothing is read, `ended` is told of a client that has ended the connection:
    whether that is more than the end of what it sends, and how many bytes of that are left to read."""

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, ended: Callable[[bool, int], object]
    ) -> None:
        super().__init__(transport)
        self._ended = ended
        self._deadline = Deadline(loop, self._look)

    def pause_reading(self) -> None:
        """Takes nothing more for now."""
        if not self.read_paused:
            self.read_paused = True
            self._transport.pause_reading()
            self._deadline.put_off(_EVERY)

    def resume_reading(self) -> None:
        """Takes what comes."""
        if self.read_paused:
            self.read_paused = False
            self._transport.resume_reading()
            self._deadline.lift()

    def close(self) -> None:
        """Nobody is there any more. Who was to be told is let go of, since that is who holds this."""
        self._deadline.close()
        self._ended = _nothing

    def _look(self) -> None:
        if self._transport.is_closing():
            return
        self._deadline.put_off(_EVERY)
        seen = _end_of(self._transport.get_extra_info("socket").fileno())
        if seen is not None:
            self._ended(*seen)


def _end_of(descriptor: int) -> tuple[bool, int] | None:
    """Whether a connection was reset or closed both ways, and how many bytes are left to read on it; None where its
    other side goes on. Without POLLRDHUP, which Linux and FreeBSD have, that is not known."""
    poll, half = select.poll(), getattr(select, "POLLRDHUP", 0)
    poll.register(descriptor, half)
    found = poll.poll(0) if half else []
    if not found:
        return None
    unread = fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4))
    return bool(found[0][1] & (select.POLLHUP | select.POLLERR)), int.from_bytes(unread, sys.byteorder)


def _nothing(reset: bool, unread: int) -> None:
    """Tells nobody."""
