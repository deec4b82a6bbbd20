"""From a folded list to the bytes that are sent: the same bytes every time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from operator import attrgetter, itemgetter

from accordion.core.cache import Cache
from accordion.core.conversation import Conversation
from accordion.core.edits import Folded
from accordion.core.plan import OURS
from accordion.core.values import dataclass
from accordion.dialects import writing
from accordion.dialects.base import Dialect
from accordion.dialects.keys import breakpoints
from accordion.dialects.spans import is_text

_MOST_MARKS = 4
"""Cache breakpoints that a provider takes in one request (wire notes, Caching)."""
_AUTOMATIC = "cache_control"
_SHORT = 16
"""Bytes of a field that is too short to hold a breakpoint."""
_LONG = b'"1h"'
"""A breakpoint that lasts an hour must not stand behind one of five minutes."""
_WIRE = attrgetter("wire")


@dataclass(frozen=True, slots=True)
class _Head:
    wires: list[bytes]
    written: tuple[bytes, ...]


class Rendering:
    """Renders requests; remembers what a fold's part of them looks like within `capacity` bytes."""

    def __init__(self, capacity: int = 32 * 2**20) -> None:
        self._heads = Cache[tuple[str, str, bool], _Head](capacity)

    def body(self, dialect: Dialect, folded: Folded, behind: Sequence[bytes] = ()) -> bytes:
        """The whole request, with the entries `behind` after its own. The list stands at its end, so that what is
        before it stays where it is."""
        entries = self.entries(dialect, folded)
        return writing.body(folded.conversation, dialect.listing, [*entries, *behind] if behind else entries)

    def entries(self, dialect: Dialect, folded: Folded) -> list[bytes]:
        """The entries of the list as they are sent. Where the dialect has cache breakpoints and the request has fewer
        than four, one stands at the end of the last message that was written."""
        wires = list(map(_WIRE, folded.conversation.messages))
        if folded.compaction is None:
            if wires and is_text(wires[0]):
                # What was put in stands beside what was no list: the one text that Responses takes in its place.
                wires[:1] = dialect.joined(wires[:1], ())
            return wires
        # A written block may become a part of the client's message behind it, so that one belongs to the fold's part.
        covered = _covered(folded)
        end = min(covered + 1, len(wires))
        place = _last_written(folded, covered) if dialect.marks else -1
        marked = place >= 0 and _may_mark(folded.conversation, place)
        wires[:end] = self._head(dialect, folded, wires[:end], place if marked else -1)
        return wires

    def _head(self, dialect: Dialect, folded: Folded, wires: list[bytes], place: int) -> Sequence[bytes]:
        key = (folded.compaction.id if folded.compaction else "", dialect.name, place >= 0)
        known = self._heads.get(key)
        if known is not None and known.wires == wires:
            return known.written
        parts = wires.copy()
        if place >= 0:
            parts[place] = dialect.marked(parts[place])
        ours = {index for index, origin in enumerate(folded.origins[: len(wires)]) if origin == OURS}
        written = tuple(dialect.joined(parts, ours))
        self._heads.put(key, _Head(wires, written), 500 + 2 * sum(map(len, written)))
        return written


def _covered(folded: Folded) -> int:
    """How many messages of the folded list stand for what the compaction covers. Behind them are the client's own, and
    what was woven in between."""
    compaction = folded.compaction
    return bisect_left(folded.spans, compaction.covered if compaction is not None else 0, key=itemgetter(0))


def _last_written(folded: Folded, end: int) -> int:
    """The place of the last message before `end` that a fold wrote; -1 where there is none."""
    for index in range(end - 1, -1, -1):
        if folded.origins[index] == OURS or folded.spans[index][2]:
            return index
    return -1


def _may_mark(conversation: Conversation, place: int) -> bool:
    messages, envelope = conversation.messages, conversation.envelope
    if messages[place].marks:
        return False
    automatic = envelope.get(_AUTOMATIC)
    if automatic is not None and _LONG in automatic:
        return False
    marked = [index for index, message in enumerate(messages) if message.marks]
    fields = sum([breakpoints(value) for value in envelope.values() if len(value) > _SHORT])
    listed = sum([message.marks for message in conversation.lead]) + sum([messages[index].marks for index in marked])
    if fields + (automatic is not None) + listed >= _MOST_MARKS:
        return False
    return not any(_LONG in messages[index].wire for index in marked if index >= place)
