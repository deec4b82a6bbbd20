"""Reading what is archived in parts: by page, by pattern, by JSON path, as a difference.

Pure functions over a text, each within a number of characters. Every part says what of how much it is, and where the
next one begins. Lines are numbered from 1; a text with very long lines is counted in characters, from 1 too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final, TypeVar

import msgspec

from accordion.archive.differences import difference
from accordion.archive.patterns import PATTERN_MOST, BadPattern, Hit, compiled, hits, spots
from accordion.archive.structure import chosen
from accordion.core.values import dataclass

SEARCHED_MOST: Final = 64_000_000
COMPARED_MOST: Final = 8_000_000
"""Characters of a text that is searched, and of one that is compared."""
_LONGEST: Final = 4_000
"""Characters of a line; where one is longer, the text is counted in characters."""
_AROUND: Final = 2
"""Lines before and behind one that matches."""
_SHOWN: Final = 400
"""Characters of a line beside a match."""
_COUNTED: Final = 10_000
_SPECIAL: Final = frozenset("\\.^$*+?{}[]|()")

T = TypeVar("T")


class BadRequest(ValueError):
    """What was asked for cannot be had; says why, and what to do instead."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What part is asked for. An offset below 0 counts from the end; 0 and "" are the same as not given. `other` is the
    id of what it is to be compared with."""

    id: str
    offset: int = 0
    limit: int = 0
    pattern: str = ""
    path: str = ""
    other: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a text. `shown` says what of how much it is, `next` the offset at which the next part begins (0 where
    this is the last)."""

    text: str
    shown: str
    next: int = 0


def read(text: str, wish: Wish, most: int, other: str | None = None) -> Part:
    """The part of a text that is asked for, of at most `most` characters: what stands at the path, of that the
    difference from the same of `other`, of that the lines that match, or a page. Raises BadRequest, BadPath."""
    told = []
    if wish.path:
        text, about = chosen(text, wish.path)
        told.append(about)
    if other is not None:
        if wish.path:
            other, _ = chosen(other, wish.path)
        if len(text) + len(other) > COMPARED_MOST:
            raise BadRequest("They are too large to be compared.")
        text, about = difference(other, text)
        told.append(f"compared with {wish.other}: {about}")
        if not text:
            return Part("", "; ".join(told))
    if wish.pattern:
        part = matches(text, wish.pattern, wish.offset, wish.limit, most)
    else:
        part = page(text, wish.offset, wish.limit, most)
    return Part(part.text, "; ".join([*told, part.shown]), part.next)


def page(text: str, offset: int, limit: int, most: int) -> Part:
    """A page from line (or character) `offset` on: `limit` of them (0: as many as there is room for), and `most`
    characters at the most. Raises BadRequest for an offset behind the end."""
    lines = text.split("\n")
    if counted_in_characters(lines):
        first = _first(offset, len(text), "characters")
        last = min(len(text), first + min(most, limit or most))
        shown = _span("character", first, last, len(text)) + " (lines are long: offset and limit count characters)"
        return Part(text[first:last], shown, last + 1 if last < len(text) else 0)
    total = len(lines)
    first = last = _first(offset, total, "lines")
    room, stop = most, min(total, first + limit) if limit else total
    while last < stop and len(lines[last]) <= room:
        room -= len(lines[last]) + 1
        last += 1
    if last == first:
        shown = f"line {first + 1:,} of {total:,}, its first {most:,} characters of {len(lines[first]):,}"
        return Part(lines[first][:most], shown, first + 2 if first + 1 < total else 0)
    return Part("\n".join(lines[first:last]), _span("line", first, last, total), last + 1 if last < total else 0)


def matches(text: str, pattern: str, offset: int, limit: int, most: int) -> Part:
    """The lines that match a pattern, with their numbers and the lines around them as grep shows them, from line
    `offset` on: `limit` of them (0: as many as there is room for) and `most` characters at the most. Of a text with
    very long lines what stands around each match.

    What is no pattern, or matches nowhere, is looked for as it stands, then in any case of letters; the part says so.
    Raises BadRequest.
    """
    if len(text) > SEARCHED_MOST:
        raise BadRequest("It is too large to be searched; read it by offset.")
    lines = text.split("\n")
    wide = counted_in_characters(lines)
    total, noun = (len(text), "characters") if wide else (len(lines), "lines")
    first = _first(offset, total, noun)
    if wide:
        spotted, way = _found(pattern, partial(spots, text, offset=first))
        shown, body = _beside(text, spotted[: limit or None], most)
        number, following = len(spotted), spotted[shown][0] + 1 if shown < len(spotted) else 0
    else:
        hit, way = _found(pattern, partial(hits, text, offset=first))
        shown, body = _context(lines, hit[: limit or None], most)
        number, following = len(hit), hit[shown].line + 1 if shown < len(hit) else 0
    counted = f"{number:,} or more" if number == _COUNTED else f"{number:,}"
    if wide:
        counted += f" match{'' if number == 1 else 'es'} in {total:,} characters"
    else:
        counted += f" matching line{'' if number == 1 else 's'} of {total:,}"
    behind = f" from {noun[:-1]} {first + 1:,} on" if first else ""
    more = f"; the first {shown:,} of them" if following else ""
    return Part(body, f"{counted}{behind} for {_named(pattern)}{way}{more}", following)


def counted_in_characters(lines: Sequence[str]) -> bool:
    """Whether the lines of a text are too long for pages of whole lines."""
    return max(map(len, lines)) > _LONGEST


def _first(offset: int, total: int, noun: str) -> int:
    """The place, from 0, that an offset means."""
    if offset > max(1, total):
        raise BadRequest(f"It has {total:,} {noun}; nothing is at offset {offset:,}.")
    return max(0, total + offset) if offset < 0 else max(0, offset - 1)


def _span(noun: str, first: int, last: int, total: int) -> str:
    if first == 0 and last >= total:
        return f"whole, {total:,} {noun}{'s' if total != 1 else ''}"
    return f"{noun}s {first + 1:,}-{last:,} of {total:,}"


# -- matches -----------------------------------------------------------------------------------------------------------


def _found(pattern: str, look: Callable[[Any], Iterator[T]]) -> tuple[list[T], str]:
    """What a pattern, or the text that it is, finds; and what is said of how it was taken."""
    try:
        for way, made in _ways(pattern):
            found = list(islice(look(made), _COUNTED))
            if found:
                return found, way
    except BadPattern as error:
        raise BadRequest(f"The pattern cannot be used: {error}.") from error
    return [], ""


def _ways(pattern: str) -> Iterator[tuple[str, Any]]:
    """What a pattern may mean, in the order in which it is tried."""
    try:
        made = compiled(pattern)
    except BadPattern as error:
        if not 0 < len(pattern) <= PATTERN_MOST:
            raise
        yield " (taken as plain text, since it is no RE2 pattern)", compiled(pattern, literal=True)
        raise BadPattern(f"{error} (RE2 is used, without look-around); as plain text it is not there") from error
    yield "", made
    if _SPECIAL.intersection(pattern):
        yield " (taken as plain text)", compiled(pattern, literal=True)
    yield " (in any case of letters)", compiled(pattern, any_case=True)


def _context(lines: Sequence[str], found: Sequence[Hit], most: int) -> tuple[int, str]:
    """As many matches as there is room for, at least one, with the lines around them."""
    rows: dict[int, str] = {}
    room, shown = most, 0
    for hit in found:
        near = range(max(0, hit.line - _AROUND), min(len(lines), hit.line + _AROUND + 1))
        new = {n: f"{n + 1}-{lines[n][:_SHOWN]}" for n in near if n not in rows}
        new[hit.line] = f"{hit.line + 1}:{_window(lines[hit.line], hit)}"
        room -= sum(len(row) + 1 for row in new.values()) + 3
        if room < 0 and shown:
            break
        rows.update(new)
        shown += 1
    out: list[str] = []
    last = -1
    for number in sorted(rows):
        if out and number > last + 1:
            out.append("--")
        out.append(rows[number])
        last = number
    return shown, "\n".join(out)[:most]


def _window(line: str, hit: Hit) -> str:
    """A line, or what stands around the match where it is long."""
    if len(line) <= _SHOWN:
        return line
    first = max(0, min(hit.start - _SHOWN // 4, len(line) - _SHOWN))
    last = min(len(line), first + _SHOWN)
    return ("…" if first else "") + line[first:last] + ("…" if last < len(line) else "")


def _beside(text: str, found: Sequence[tuple[int, int]], most: int) -> tuple[int, str]:
    """As many matches as there is room for, at least one, each with the characters around it."""
    out: list[str] = []
    room = most
    for start, end in found:
        first, last = max(0, start - _SHOWN // 4), min(len(text), min(end, start + _SHOWN) + _SHOWN // 2)
        row = f"{start + 1}: …{text[first:last]}…"
        room -= len(row) + 1
        if room < 0 and out:
            break
        out.append(row)
    return len(out), "\n".join(out)[:most]


def _named(pattern: str) -> str:
    return msgspec.json.encode(pattern if len(pattern) <= 80 else pattern[:79] + "…").decode()
