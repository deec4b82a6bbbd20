"""A cache of request bodies already read, so that the unchanged beginning of the next body is only compared."""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from accordion.model.conversation import Message, Part
from accordion.model.tenant import TenantScope
from accordion.protocols.base import WireProtocol

# A prefix is indexed by the beginning of its body, at each of these lengths that it covers.
_INDEX_LENGTHS = (16_384, 2_048)
MIN_LENGTH = _INDEX_LENGTHS[-1]
"""Shorter bodies are not worth caching."""
_CANDIDATES = 8
# The memory of a cached message beside its bytes: objects, keys, the parsed text.
_OBJECTS = 700
# So many messages are compared at once: joining them costs less than comparing them one by one.
_BLOCK = 16


class BodyPrefix(msgspec.Struct, eq=False):
    """One body as it was read: its beginning, its list message by message, and the values computed from it."""

    head: bytes
    """The body up to the list's opening bracket, inclusive."""
    leading_fields: dict[str, bytes]
    """The fields in `head`."""
    pieces: tuple[bytes, ...]
    """In turn: the bytes before each message (commas, white space), and the message as it came."""
    end: int
    """The offset at which the last message ends."""
    entries: tuple[Message, ...]
    lead: int
    """How many of the entries belong to the preamble."""
    chain: tuple[bytes, ...]
    fields: dict[str, bytes]
    preamble: tuple[Part, ...]
    tools: tuple[str, ...]
    overhead_key: bytes
    size: int = 0
    """Estimated memory while it is cached, in bytes."""
    index_keys: list[tuple[object, ...]] = []

    def match(self, body: bytes) -> tuple[int, int]:
        """Returns how many of the messages `body` begins with, and the offset at which the last of them ends."""
        if not body.startswith(self.head):
            return 0, 0
        position, done, pieces = len(self.head), 0, self.pieces
        for size in (2 * _BLOCK, 2):
            while done < len(pieces):
                block = b"".join(pieces[done : done + size])
                if not body.startswith(block, position):
                    break
                position += len(block)
                done += size
        return min(done, len(pieces)) // 2, position


class PrefixCache:
    """The cached prefixes of one worker, within `budget` bytes; evicts the least recently used first."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._prefixes: OrderedDict[int, BodyPrefix] = OrderedDict()
        self._index: dict[tuple[object, ...], list[BodyPrefix]] = {}
        self.size = 0

    def find(self, protocol: WireProtocol, body: bytes, tenant: TenantScope) -> tuple[BodyPrefix | None, int, int]:
        """Returns the prefix that shares the longest beginning with `body`, how many messages, and their end."""
        best: BodyPrefix | None = None
        count = position = 0
        for length in _INDEX_LENGTHS:
            if len(body) < length:
                continue
            for prefix in reversed(self._index.get((tenant, protocol.name, body[:length]), ())):
                matched, end = prefix.match(body)
                if end > position:
                    best, count, position = prefix, matched, end
            if best is not None:
                self._prefixes.move_to_end(id(best))
                break
        return best, count, position

    def store(self, protocol: WireProtocol, body: bytes, tenant: TenantScope, prefix: BodyPrefix) -> None:
        """Caches a prefix whose head and entries `body` begins with, unless it is too large."""
        # Each message counts twice: its bytes, and its parsed parts.
        entries = 2 * prefix.end - len(prefix.head) + _OBJECTS * len(prefix.entries)
        prefix.size = entries + sum(map(len, prefix.fields.values())) + 1024
        if prefix.size > self._budget // 2:
            return
        for length in _INDEX_LENGTHS:
            if prefix.end >= length:
                index_key = (tenant, protocol.name, body[:length])
                prefix.index_keys.append(index_key)
                prefix.size += length
                bucket = self._index.setdefault(index_key, [])
                bucket.append(prefix)
                if len(bucket) > _CANDIDATES:
                    self.remove(bucket[0])
        if prefix.index_keys:
            self._prefixes[id(prefix)] = prefix
            self.size += prefix.size
            while self.size > self._budget:
                self.remove(next(iter(self._prefixes.values())))

    def remove(self, prefix: BodyPrefix) -> None:
        """Removes a prefix if it is cached."""
        if self._prefixes.pop(id(prefix), None) is None:
            return
        self.size -= prefix.size
        for index_key in prefix.index_keys:
            bucket = self._index[index_key]
            bucket.remove(prefix)
            if not bucket:
                del self._index[index_key]
