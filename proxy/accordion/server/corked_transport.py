"""A transport that sends the head of a response in one packet with the first piece of its body."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

# Closing a socket with a linger time of 0 sends a reset (POSIX, `close`).
_NO_LINGER = struct.pack("ii", 1, 0)


class CorkedTransport(asyncio.Transport):
    """Delays the head of a response until the next write, or the next iteration of the event loop.

    A system call to write is the most expensive step of a small request, and uvicorn makes one for the head and one for
    the body. bench/README.md (`overrides`) has the figures.
    """

    __slots__ = ("_head", "_loop", "_transport", "open_ended")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""
        self.open_ended = False
        """Whether a body is being sent whose end is the end of the connection (HTTP/1.0)."""

    def hold(self, head: bytes) -> None:
        """Buffers a head for the next write."""
        self._head += head
        self._loop.call_soon(self.flush)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Writes `data` at once, after the buffered head."""
        if self._head:
            data, self._head = self._head + data, b""
        self._transport.write(data)

    def flush(self) -> None:
        """Writes the buffered head."""
        head, self._head = self._head, b""
        if head and not self._transport.is_closing():
            self._transport.write(head)

    def close(self) -> None:
        """Closes after all writes. Resets the connection if a clean end would make a cut body look complete."""
        self.flush()
        if self.open_ended and not self._transport.is_closing():
            sock = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self._transport.close()

    def abort(self) -> None:
        """Closes at once and drops buffered bytes."""
        self._head = b""
        self._transport.abort()

    def write_eof(self) -> None:
        """Ends the output after all writes."""
        self.flush()
        self._transport.write_eof()

    def is_closing(self) -> bool:
        """Whether nothing more can be written."""
        return self._transport.is_closing()

    # Uvicorn uses these three as well. A `__getattr__` would slow down every attribute access, those of `write` too.

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Returns the transport's information."""
        return self._transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        """Pauses the transport."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Resumes the transport."""
        self._transport.resume_reading()

    def inner_transport(self) -> asyncio.Transport:
        """Returns the wrapped transport, with no head left in the buffer."""
        self.flush()
        return self._transport
