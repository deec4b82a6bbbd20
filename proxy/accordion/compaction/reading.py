"""Messages that a fold wrote, read back from their JSON, and remembered."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock

from accordion.core.conversation import Message
from accordion.dialects.base import Dialect
from accordion.dialects.keys import breakpoints, message_key

_ENTRY = 200
"""Bytes that an entry takes beside its message."""


class WrittenReader:
    """Reads written JSON; remembers within `capacity` bytes, the oldest go first. Safe to use from
    several threads."""

    def __init__(self, capacity: int = 32 * 2**20) -> None:
        self._capacity = capacity
        self._known: OrderedDict[tuple[bytes, bytes, str], Message] = OrderedDict()
        self._size = 0
        self._lock = Lock()

    def of(self, dialect: Dialect, space: bytes) -> Callable[[bytes], Message]:
        """What makes a Message of one dialect's JSON for the tenant whose key is `space`. Raises ValueError where the
        JSON cannot be decoded."""
        name = dialect.name

        def read(wire: bytes) -> Message:
            known = self._known.get((wire, space, name))
            return known if known is not None else self._read(dialect, space, wire)

        return read

    def _read(self, dialect: Dialect, space: bytes, wire: bytes) -> Message:
        read = dialect.message(wire)
        message = Message(
            message_key(read.canonical, space, dialect.name), read.role, read.parts, wire, breakpoints(wire)
        )
        with self._lock:
            if (wire, space, dialect.name) not in self._known:
                self._known[wire, space, dialect.name] = message
                self._size += message.size + _ENTRY
            while self._size > self._capacity and len(self._known) > 1:
                _, old = self._known.popitem(last=False)
                self._size -= old.size + _ENTRY
        return message
