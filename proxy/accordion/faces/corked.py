"""A transport on which the head of a response leaves in one packet with what follows at once."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

# A socket that does not linger is closed by a reset (POSIX, `close`; the system has what was written by then).
_NOT_LINGERING = struct.pack("ii", 1, 0)


class Corked(asyncio.Transport):
    """A transport that holds back the head of a response until the next write, or the next turn of the loop. A write
    costs more than anything else that a small request does, and uvicorn writes head and body each by itself."""

    __slots__ = ("_held", "_loop", "_transport", "open_ended")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held = b""
        self.open_ended = False
        """Whether a body is under way whose end is that of the connection, and has not come."""

    def hold(self, head: bytes) -> None:
        """Takes a head to write."""
        self._held += head
        self._loop.call_soon(self.flush)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Writes at once, together with the head before it."""
        if self._held:
            data, self._held = self._held + data, b""
        self._transport.write(data)

    def flush(self) -> None:
        """Writes what is held back."""
        held, self._held = self._held, b""
        if held and not self._transport.is_closing():
            self._transport.write(held)

    def close(self) -> None:
        """Closes once all is written; by a reset where a clean end would say that a body had come to its own."""
        self.flush()
        if self.open_ended and not self._transport.is_closing():
            sock = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NOT_LINGERING)
        self._transport.close()

    def abort(self) -> None:
        """Closes at once; what is not written yet never will be."""
        self._held = b""
        self._transport.abort()

    def write_eof(self) -> None:
        """Ends what is written, once all of it is."""
        self.flush()
        self._transport.write_eof()

    def is_closing(self) -> bool:
        """Whether nothing more can be written."""
        return self._transport.is_closing()

    # A `__getattr__` for the rest of what uvicorn asks would slow each use of an attribute down, those of `write` too.

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """As the transport has it."""
        return self._transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        """As the transport has it."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """As the transport has it."""
        self._transport.resume_reading()

    def uncorked(self) -> asyncio.Transport:
        """The transport itself."""
        self.flush()
        return self._transport
