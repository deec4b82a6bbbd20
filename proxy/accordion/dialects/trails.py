"""What is remembered of bodies read before, so that the unchanged beginning of the next one is only compared."""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from accordion.core.conversation import Message, Part
from accordion.dialects.base import Dialect

# A trail is filed under the beginning of its body, at each of these lengths that it covers.
_HEADS = (16_384, 2_048)
SHORTEST = _HEADS[-1]
"""Shorter beginnings are not worth remembering."""
_CANDIDATES = 8
# What a remembered message costs beside its bytes: objects, keys, the parsed text.
_OBJECTS = 700
# So many entries are compared at once: a copy of them costs less than to go through them one by one.
_BLOCK = 16


class Trail(msgspec.Struct, eq=False):
    """What was read of one body: its beginning, its list entry by entry, and what was made of it."""

    head: bytes
    before: dict[str, bytes]
    pieces: tuple[bytes, ...]
    """What stands before each entry (commas, white space), and the entry as it came, in turn."""
    end: int
    """Where the last entry ends."""
    entries: tuple[Message, ...]
    lead: int
    chain: tuple[bytes, ...]
    fields: dict[str, bytes]
    preamble: tuple[Part, ...]
    tools: tuple[str, ...]
    overhead_key: bytes
    held: int = 0
    """What all of it is reckoned to take while it is remembered."""
    filed: list[tuple[object, ...]] = []

    def match(self, body: bytes) -> tuple[int, int]:
        """How many entries `body` begins with, and where the last of them ends."""
        if not body.startswith(self.head):
            return 0, 0
        at, done, pieces = len(self.head), 0, self.pieces
        for size in (2 * _BLOCK, 2):
            while done < len(pieces):
                block = b"".join(pieces[done : done + size])
                if not body.startswith(block, at):
                    break
                at += len(block)
                done += size
        return min(done, len(pieces)) // 2, at


class Trails:
    """The trails of one worker within `budget` bytes; the least recently used go first."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._trails: OrderedDict[int, Trail] = OrderedDict()
        self._filed: dict[tuple[object, ...], list[Trail]] = {}
        self.spent = 0

    def recall(self, dialect: Dialect, body: bytes, space: bytes) -> tuple[Trail | None, int, int]:
        """The trail that shares the longest beginning with `body`, how many entries of it, and where they end."""
        best: Trail | None = None
        count = at = 0
        for length in _HEADS:
            if len(body) < length:
                continue
            for trail in reversed(self._filed.get((space, dialect.name, body[:length]), ())):
                matched, end = trail.match(body)
                if end > at:
                    best, count, at = trail, matched, end
            if best is not None:
                self._trails.move_to_end(id(best))
                break
        return best, count, at

    def remember(self, dialect: Dialect, body: bytes, space: bytes, trail: Trail) -> None:
        """Keeps a trail whose head and entries `body` begins with; one that is too large is not kept."""
        # Each entry is held twice: its bytes, and what was parsed of them.
        entries = 2 * trail.end - len(trail.head) + _OBJECTS * len(trail.entries)
        trail.held = entries + sum(map(len, trail.fields.values())) + 1024
        if trail.held > self._budget // 2:
            return
        for length in _HEADS:
            if trail.end >= length:
                filed = (space, dialect.name, body[:length])
                trail.filed.append(filed)
                trail.held += length
                bucket = self._filed.setdefault(filed, [])
                bucket.append(trail)
                if len(bucket) > _CANDIDATES:
                    self.forget(bucket[0])
        if trail.filed:
            self._trails[id(trail)] = trail
            self.spent += trail.held
            while self.spent > self._budget:
                self.forget(next(iter(self._trails.values())))

    def forget(self, trail: Trail) -> None:
        """Lets go of a trail; one that is not kept is none of our business."""
        if self._trails.pop(id(trail), None) is None:
            return
        self.spent -= trail.held
        for filed in trail.filed:
            bucket = self._filed[filed]
            bucket.remove(trail)
            if not bucket:
                del self._filed[filed]
