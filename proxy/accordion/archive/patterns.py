"""Searching by pattern in linear time, line by line (RE2: no look-around, no back-references)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final, Protocol

import msgspec
import re2

PATTERN_MOST: Final = 500
"""Characters of a pattern."""
_MEMORY: Final = 512 * 1024
_MAX_WORK: Final = 300_000_000
"""The product of a pattern's size and a text's bytes is bounded: about half a second at the worst."""


class CompiledPattern(Protocol):
    """A pattern as RE2 compiled it; `programsize` says how much each byte of a text costs."""

    programsize: int

    def search(self, text: bytes, pos: int = 0) -> Any:
        """Returns the first match, or None."""

    def fullmatch(self, text: bytes) -> Any:
        """Returns the match of the whole text, or None."""


class InvalidPattern(ValueError):
    """A pattern is not valid, or would cost too much; the message says why."""


class LineMatch(msgspec.Struct, frozen=True):
    """A line with a match: its number from 0, and the start and end of the first match in it, in characters."""

    line: int
    start: int
    end: int


def compile_pattern(pattern: str, *, literal: bool = False, any_case: bool = False) -> CompiledPattern:
    """Compiles a pattern that matches within lines. Raises InvalidPattern."""
    if not pattern or len(pattern) > PATTERN_MOST:
        raise InvalidPattern(f"it must have 1 to {PATTERN_MOST} characters")
    options = re2.Options()
    options.max_mem, options.log_errors, options.never_capture = _MEMORY, False, True
    options.never_nl, options.literal, options.case_sensitive = True, literal, not any_case
    try:
        data = pattern.encode("utf-8", "replace")
        compiled: CompiledPattern = re2.compile(data if literal else b"(?m)" + data, options)
    except re2.error as error:
        reason = error.args[0] if error.args else b""
        message = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        raise InvalidPattern(message[:200]) from error
    return compiled


def find_lines(text: str, pattern: CompiledPattern, offset: int = 0) -> Iterator[LineMatch]:
    """Yields the lines that match, in order, from line `offset` on, each once.

    Raises InvalidPattern if it would take too long.
    """
    data = text.encode("utf-8", "replace")
    _check_cost(pattern, data)
    at = line = 0
    while line < offset:
        at = data.find(b"\n", at) + 1
        line += 1
        if not at:
            return
    counted_to = at
    while at <= len(data) and (match := pattern.search(data, at)) is not None:
        start, end = match.span()
        line += data.count(b"\n", counted_to, start)
        first, stop = data.rfind(b"\n", 0, start) + 1, data.find(b"\n", start)
        counted_to, stop = start, stop if stop >= 0 else len(data)
        column = partial(_count_characters, data, first)
        yield LineMatch(line, column(start), column(end))
        at = stop + 1


def find_spans(text: str, pattern: CompiledPattern, offset: int = 0) -> Iterator[tuple[int, int]]:
    """Yields the matches in a text of few, very long lines, by start and end character, from `offset` on.

    Raises InvalidPattern if it would take too long; yields only as many as can be found in time.
    """
    data = text.encode("utf-8", "replace")
    _check_cost(pattern, data)
    remaining = max(20, _MAX_WORK // 4 // max(1, len(data)))
    at = len(text[:offset].encode("utf-8", "replace"))
    characters, counted_to = offset, at
    while remaining and at <= len(data) and (match := pattern.search(data, at)) is not None:
        start, end = match.span()
        characters += _count_characters(data, counted_to, start)
        counted_to = start
        yield characters, characters + _count_characters(data, start, end)
        at = max(end, start + 1)
        while data[at : at + 1] and data[at] & 0xC0 == 0x80:
            # Behind an empty match: skip to the next whole character.
            at += 1
        remaining -= 1


def _count_characters(data: bytes, first: int, last: int) -> int:
    return len(data[first:last].decode("utf-8", "replace"))


def _check_cost(pattern: CompiledPattern, data: bytes) -> None:
    if pattern.programsize * len(data) > _MAX_WORK:
        raise InvalidPattern(
            "it would take too long on a text of this length; use a simpler one (fewer or smaller repetitions)"
        )
