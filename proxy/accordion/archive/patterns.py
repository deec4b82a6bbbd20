"""Searching by pattern in linear time, line by line (RE2: no look-around, no back-references)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

import re2

from accordion.core.values import dataclass

PATTERN_MOST: Final = 500
"""Characters of a pattern."""
_MEMORY: Final = 512 * 1024
_WORK: Final = 300_000_000
"""The product of a pattern's size and a text's bytes is bounded: about half a second at the worst."""


class BadPattern(ValueError):
    """A pattern that is none, or that asks for too much; says why."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A line in which a pattern was found: its number from 0, and the first match's place in it, in characters."""

    line: int
    start: int
    end: int


def compiled(pattern: str, *, literal: bool = False, any_case: bool = False) -> re2._Regexp:
    """A pattern made ready; it matches within lines. Raises BadPattern."""
    if not pattern or len(pattern) > PATTERN_MOST:
        raise BadPattern(f"a pattern has 1 to {PATTERN_MOST} characters")
    options = re2.Options()
    options.max_mem, options.log_errors, options.never_capture = _MEMORY, False, True
    options.never_nl, options.literal, options.case_sensitive = True, literal, not any_case
    try:
        data = pattern.encode("utf-8", "replace")
        return re2.compile(data if literal else b"(?m)" + data, options)
    except re2.error as error:
        reason = error.args[0] if error.args else b""
        told = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        raise BadPattern(told[:200]) from error


def hits(text: str, pattern: re2._Regexp, offset: int = 0) -> Iterator[Hit]:
    """The lines that match, in order, from line `offset` on, each once. Raises BadPattern where it would take too
    long."""
    data = text.encode("utf-8", "replace")
    _afford(pattern, data)
    at = line = 0
    while line < offset:
        at = data.find(b"\n", at) + 1
        line += 1
        if not at:
            return
    counted = at
    while at <= len(data) and (found := pattern.search(data, at)) is not None:
        start, end = found.span()
        line += data.count(b"\n", counted, start)
        first, stop = data.rfind(b"\n", 0, start) + 1, data.find(b"\n", start)
        counted, stop = start, stop if stop >= 0 else len(data)
        place = partial(_characters, data, first)
        yield Hit(line, place(start), place(end))
        at = stop + 1


def spots(text: str, pattern: re2._Regexp, offset: int = 0) -> Iterator[tuple[int, int]]:
    """The matches in a text of few, very long lines, by first and last character (not inclusive), from character
    `offset` on. Raises BadPattern where it would take too long; gives so many only as can be had in time."""
    data = text.encode("utf-8", "replace")
    _afford(pattern, data)
    left = max(20, _WORK // 4 // max(1, len(data)))
    at = len(text[:offset].encode("utf-8", "replace"))
    known, counted = offset, at
    while left and at <= len(data) and (found := pattern.search(data, at)) is not None:
        start, end = found.span()
        known += _characters(data, counted, start)
        counted = start
        yield known, known + _characters(data, start, end)
        at = max(end, start + 1)
        while data[at : at + 1] and data[at] & 0xC0 == 0x80:
            # Behind an empty match: not within a character.
            at += 1
        left -= 1


def _characters(data: bytes, first: int, last: int) -> int:
    return len(data[first:last].decode("utf-8", "replace"))


def _afford(pattern: re2._Regexp, data: bytes) -> None:
    if pattern.programsize * len(data) > _WORK:
        raise BadPattern("it would take too long on so long a text; use a simpler one (fewer or smaller repetitions)")
