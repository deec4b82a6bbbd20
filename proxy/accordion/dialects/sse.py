"""Event streams (text/event-stream), taken apart as they arrive.

The grammar is that of the HTML standard, section 9.2.6: lines end in LF, CR LF or CR, in any mixture; an empty line
ends an event; the stream may begin with a byte order mark.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

HOLD = 64 * 1024
"""How much of an incomplete event is held back at most, in bytes."""

_BOM = b"\xef\xbb\xbf"
# One line end and at least one more: the empty line that ends an event, and those that follow it.
_EMPTY_LINE = re.compile(rb"(?:\r\n|\n|\r(?!\n))[\r\n]+")
_LINE_END = re.compile(rb"\r\n?")


class Event(NamedTuple):
    """One event. `name` is empty where the stream gives none; lines of data are joined by LF."""

    name: bytes
    data: bytes


class Events:
    """Lets whole events through and holds back the beginning of the next, at most `hold` bytes of it.

    An event that grows larger is let through piece by piece.
    """

    def __init__(self, hold: int = HOLD) -> None:
        self._hold = hold
        self._rest = bytearray()
        # The last bytes of an event that is let through piece by piece: its end may be split.
        self._before = b""

    @property
    def rest(self) -> bytes:
        """What is held back: the beginning of an event."""
        return bytes(self._rest)

    @property
    def mid_event(self) -> bool:
        """Whether what was let through ends within an event, so that nothing can follow but its rest."""
        return bool(self._before)

    @property
    def unfinished(self) -> bool:
        """Whether a stream that ended now would have lost the end of an event."""
        return self.mid_event or bool(self._rest.strip(b"\r\n"))

    def feed(self, data: bytes) -> bytes:
        """Takes what arrived; returns what may go on: whole events, or the next piece of a very large one."""
        rest = self._rest
        if not rest and data.endswith((b"\n\n", b"\r\n\r\n")):
            self._before = b""
            return data
        if self._before:
            return self._feed_large(data)
        # An end that spans the old and the new has at most three bytes in the old.
        start = max(0, len(rest) - 3)
        rest += data
        end = _last_end(rest, start)
        if end == 0 and len(rest) <= self._hold:
            return b""
        if len(rest) - end > self._hold:
            end = len(rest)
            self._before = bytes(rest[-3:])
        out = bytes(rest[:end])
        del rest[:end]
        return out

    def flush(self) -> bytes:
        """What is held back, at the end of the stream; empty afterwards."""
        out = bytes(self._rest)
        self._rest.clear()
        return out

    def _feed_large(self, data: bytes) -> bytes:
        """Within an event that is let through as it comes: looks for its end only."""
        if b"\n" not in data and b"\r" not in data:
            self._before = (self._before + data)[-3:]
            return data
        seam = len(self._before)
        joined = self._before + data
        first = _EMPTY_LINE.search(joined)
        if first is None or first.end() <= seam:
            self._before = joined[-3:]
            return data
        self._before = b""
        end = first.end()
        return joined[seam:end] + self.feed(joined[end:]) if end < len(joined) else data


def events(block: bytes) -> Iterator[Event]:
    """The events of whole `block`s. What has no data (a comment, a bare name) is left out, as the standard says."""
    for piece in pieces(block):
        event = parse(piece)
        if event is not None:
            yield event


def pieces(block: bytes) -> list[bytes]:
    """The events of `block`, each as it stood, lines ended by LF."""
    return lines_of(block).split(b"\n\n")


def lines_of(block: bytes) -> bytes:
    """`block` with lines ended by LF."""
    return _LINE_END.sub(b"\n", block) if b"\r" in block else block


def parse(piece: bytes) -> Event | None:
    """Reads one event whose lines end in LF; None where it has no data."""
    if piece.startswith(_BOM):
        piece = piece[3:]
    name, data = b"", None
    for line in piece.split(b"\n"):
        field, _, value = line.partition(b":")
        if field == b"data":
            value = value.removeprefix(b" ")
            data = value if data is None else data + b"\n" + value
        elif field == b"event":
            name = value.removeprefix(b" ")
    return None if data is None else Event(name, data)


def _last_end(buffer: bytearray, start: int) -> int:
    """Where the last whole event in `buffer` ends, looking from `start` on; 0 if none does."""
    if buffer.find(b"\r", start) < 0:
        at = buffer.rfind(b"\n\n", start)
        return at + 2 if at >= 0 else 0
    end = 0
    for found in _EMPTY_LINE.finditer(buffer, start):
        run = found.group()
        if found.end() < len(buffer) or run[-1:] != b"\r" or b"\n" not in run:
            end = found.end()
        elif _EMPTY_LINE.fullmatch(run[:-1]):
            # The CR at the very end may be half of a CR LF: it waits, the event before it does not.
            end = found.end() - 1
    return end
