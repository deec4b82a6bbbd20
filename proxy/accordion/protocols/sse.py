"""Splits event streams (text/event-stream) into events as they arrive.

The grammar is that of the HTML standard, section 9.2.6: lines end in LF, CR LF or CR, in any mixture; an empty line
ends an event; the stream may begin with a byte order mark.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

MAX_PENDING = 64 * 1024
"""Limit of an incomplete event that is kept back, in bytes."""

_BOM = b"\xef\xbb\xbf"
# One line end and at least one more: the empty line that ends an event, and those that follow it.
_EMPTY_LINE = re.compile(rb"(?:\r\n|\n|\r(?!\n))[\r\n]+")
_LINE_END = re.compile(rb"\r\n?")
_EVENT = re.compile(rb".*?(?:(?:\r\n|\n|\r(?!\n))[\r\n]+|\Z)", re.DOTALL)


class SseEvent(NamedTuple):
    """One event. `name` is empty where the event has none; lines of data are joined by LF."""

    name: bytes
    data: bytes


class SseBuffer:
    """Returns whole events and keeps back the beginning of the next, up to `max_pending` bytes.

    A larger event is returned in pieces.
    """

    def __init__(self, max_pending: int = MAX_PENDING) -> None:
        self._max_pending = max_pending
        self._pending = bytearray()
        # The last bytes of an event that is returned in pieces: its end may be split.
        self._before = b""

    @property
    def pending(self) -> bytes:
        """The bytes that are kept back: the beginning of an event."""
        return bytes(self._pending)

    @property
    def is_mid_event(self) -> bool:
        """Whether the bytes returned so far end within an event."""
        return bool(self._before)

    def feed(self, data: bytes) -> bytes:
        """Takes bytes as they arrive; returns whole events, or the next piece of a very large one."""
        pending = self._pending
        if not pending and data.endswith((b"\n\n", b"\r\n\r\n")):
            self._before = b""
            return data
        if self._before:
            return self._feed_large(data)
        # An event end that spans the old bytes and the new has at most three bytes in the old.
        start = max(0, len(pending) - 3)
        pending += data
        end = _last_end(pending, start)
        if end == 0 and len(pending) <= self._max_pending:
            return b""
        if len(pending) - end > self._max_pending:
            end = len(pending)
            self._before = bytes(pending[-3:])
        out = bytes(pending[:end])
        del pending[:end]
        return out

    def flush(self) -> bytes:
        """Returns the bytes that are kept back, at the end of the stream; empty afterwards."""
        out = bytes(self._pending)
        self._pending.clear()
        return out

    def _feed_large(self, data: bytes) -> bytes:
        """Takes bytes within an event that is returned in pieces: looks only for its end."""
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


def read_events(block: bytes) -> Iterator[SseEvent]:
    """Yields the events of a block of whole events. Those without data (a comment, a bare name) are skipped, as the
    standard says."""
    for piece in split_events(block):
        event = parse(piece)
        if event is not None:
            yield event


def split_events(block: bytes) -> list[bytes]:
    """Splits a block of whole events into events, each with its end, without changing a byte."""
    if b"\r" in block:
        return [match.group() for match in _EVENT.finditer(block) if match.group()]
    if block.find(b"\n\n") == len(block) - 2:
        return [block]
    parts = block.split(b"\n\n")
    out = [part + b"\n\n" for part in parts[:-1]]
    return [*out, parts[-1]] if parts[-1] else out


def event_end(block: bytes, at: int) -> int:
    """Returns the end of the event that begins at `at` of a block of whole events."""
    end = block.find(b"\n\n", at) + 2
    end = end if end > 1 else len(block)
    if block.find(b"\r", at, end) < 0:
        return end
    match = _EVENT.match(block, at)
    return match.end() if match is not None else len(block)


def lines_of(block: bytes) -> bytes:
    """Returns the block with lines ended by LF."""
    return _LINE_END.sub(b"\n", block) if b"\r" in block else block


def parse(piece: bytes) -> SseEvent | None:
    """Reads one event; None where it has no data."""
    name, data = b"", None
    for line in lines_of(piece.removeprefix(_BOM)).split(b"\n"):
        field, _, value = line.partition(b":")
        if field == b"data":
            value = value.removeprefix(b" ")
            data = value if data is None else data + b"\n" + value
        elif field == b"event":
            name = value.removeprefix(b" ")
    return None if data is None else SseEvent(name, data)


def _last_end(buffer: bytearray, start: int) -> int:
    """Returns the end of the last whole event in `buffer`, searched from `start` on; 0 if there is none."""
    if buffer.find(b"\r", start) < 0:
        position = buffer.rfind(b"\n\n", start)
        return position + 2 if position >= 0 else 0
    end = 0
    for match in _EMPTY_LINE.finditer(buffer, start):
        run = match.group()
        if match.end() < len(buffer) or run[-1:] != b"\r" or b"\n" not in run:
            end = match.end()
        elif _EMPTY_LINE.fullmatch(run[:-1]):
            # The CR at the very end may be half of a CR LF: only the event before it is returned.
            end = match.end() - 1
    return end
