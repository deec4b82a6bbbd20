"""Reads messages that Accordion wrote back from their JSON, with a cache."""

from __future__ import annotations

from collections.abc import Callable

from accordion.model.cache import BoundedCache
from accordion.model.conversation import Message, copy_wide_texts
from accordion.model.tenant import TenantScope
from accordion.protocols.base import WireProtocol
from accordion.protocols.message_keys import content_key, message_key

_ENTRY_OVERHEAD = 200
"""Memory of a cache entry beside its message, in bytes."""


class WrittenMessageReader:
    """Reads messages from JSON, with a cache of `capacity` bytes. Safe to use from several threads."""

    def __init__(self, capacity: int = 32 * 2**20) -> None:
        self._messages: BoundedCache[tuple[bytes, TenantScope, str], Message] = BoundedCache(capacity)

    def reader_for(self, protocol: WireProtocol, tenant: TenantScope) -> Callable[[bytes], Message]:
        """Returns a function that reads a message's JSON for one protocol and tenant. It raises ValueError where the
        JSON cannot be decoded."""
        name = protocol.name

        def read(wire: bytes) -> Message:
            cached = self._messages.get((wire, tenant, name))
            return cached if cached is not None else self._read_message(protocol, tenant, wire)

        return read

    def _read_message(self, protocol: WireProtocol, tenant: TenantScope, wire: bytes) -> Message:
        message = read_written_message(protocol, tenant, wire)
        self._messages.put((wire, tenant, protocol.name), message, message.size + _ENTRY_OVERHEAD)
        return message


def read_written_message(protocol: WireProtocol, tenant: TenantScope, wire: bytes) -> Message:
    """Reads a message from JSON that Accordion wrote. Raises ValueError where it cannot be decoded."""
    read = protocol.read_message(wire)
    key, own_content_key = (make(read.canonical, tenant, protocol.name) for make in (message_key, content_key))
    # The keys were made of the same texts, so each has its UTF-8 form by now.
    parts = copy_wide_texts(read.parts)
    return Message(key, read.role, parts, wire, protocol.count_breakpoints(wire), own_content_key)
