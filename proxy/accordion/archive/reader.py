"""Reads an archived text in parts: by page, by pattern, by JSON path, or as a difference.

Pure functions over a text, each within a number of characters. Every part states its position in the whole and the
offset of the next part. Lines are numbered from 1; a text with very long lines is counted in characters, from 1 too. Of
a JSON text, the values at a path and the structure can be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final, TypeVar

import msgspec

from accordion.archive.differences import find_difference
from accordion.archive.patterns import PATTERN_MOST, InvalidPattern, LineMatch, compile_pattern, find_lines, find_spans
from accordion.archive.references import describe, describe_size
from accordion.model.errors import InvalidPath

DOCUMENT_MOST: Final = 4_000_000
"""Maximum number of characters of a text that can be read by JSON path."""
_VALUES: Final = 2_000
_KEYS: Final = 20


def select_text(text: str, path: str) -> tuple[str, str]:
    """Returns the values at a JSON path as text, and a phrase that says how many were found.

    A string is returned as it is, any other value as indented JSON, several values one a line with their paths. Raises
    InvalidPath.
    """
    # The JSONPath library takes some hundredths of a second to import, so it is imported at its first use.
    from accordion.archive.path_walk import select  # noqa: PLC0415

    selection = select(parse_document(text), path, _VALUES)
    values, complete = selection.values, selection.complete
    if not values:
        shape = outline(text)
        raise InvalidPath(f"There is nothing at {path[:200]}." + (f" {shape}" if shape else ""))
    if len(values) == 1 and complete:
        value_path, value = values[0]
        return render_value(value), f"the value at {value_path}"
    more = "" if complete else " or more"
    return "\n".join(f"{value_path}: {_compact(value)}" for value_path, value in values), (
        f"{len(values):,}{more} values at {path[:200]}"
    )


def parse_document(text: str) -> Any:
    """Parses a text as JSON; one object or array a line becomes a list. Raises InvalidPath."""
    if len(text) > DOCUMENT_MOST:
        raise InvalidPath("The text is too large for `path`; use `offset` or `pattern`.")
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        pass
    lines = [line for line in text.split("\n") if line.strip()]
    if len(lines) > 1 and all(line.lstrip()[:1] in ("{", "[") for line in lines):
        try:
            return [msgspec.json.decode(line) for line in lines]
        except (ValueError, RecursionError):
            pass
    raise InvalidPath("The text is not JSON, so `path` cannot be used; use `offset` or `pattern`.")


def render_value(value: Any) -> str:
    """Renders a JSON value for reading: a string as it is, any other value as indented JSON."""
    if isinstance(value, str):
        return value
    return msgspec.json.format(msgspec.json.encode(value), indent=1).decode()


def outline(text: str) -> str:
    """Describes a text's structure in one or two lines: the fields of JSON, else characters and lines."""
    description = describe(text)
    if not description:
        return f"It has {describe_size(text)}."
    value = msgspec.json.decode(text)
    inner: Any = value
    subject = "It"
    if isinstance(value, list):
        inner, subject = value[0] if value else None, "Its first entry"
    if isinstance(inner, dict) and inner:
        kinds = ", ".join(f"{key[:60]} ({_kind(entry)})" for key, entry in islice(inner.items(), _KEYS))
        more = ", …" if len(inner) > _KEYS else ""
        description += f" {subject} has {kinds}{more}."
    return description


def _compact(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _kind(value: Any) -> str:
    if isinstance(value, dict):
        return f"object of {len(value):,}"
    if isinstance(value, list):
        return f"array of {len(value):,}"
    if isinstance(value, str):
        return f"text of {len(value):,}" if len(value) > 80 else "text"
    return "null" if value is None else "true or false" if isinstance(value, bool) else "number"


SEARCHED_MOST: Final = 64_000_000
COMPARED_MOST: Final = 8_000_000
"""Characters of a text that can be searched, and of two that can be compared."""
_LONGEST: Final = 4_000
"""Characters of a line; if one is longer, the text is counted in characters."""
_AROUND: Final = 2
"""Lines before and after a matching line."""
_MAX_LINE_SHOWN: Final = 400
"""Characters of a line beside a match."""
_MAX_COUNTED: Final = 10_000
_SPECIAL: Final = frozenset("\\.^$*+?{}[]|()")

T = TypeVar("T")


class UnanswerableRequest(ValueError):
    """A request cannot be answered; the message says why, and what to do instead."""


class ReadRequest(msgspec.Struct, frozen=True):
    """A request for a part of an artifact.

    An offset below 0 counts from the end; 0 and "" mean not given. `other` is the id of the artifact to compare with.
    Without an id, `search` are words to find in all that was removed.
    """

    id: str
    offset: int = 0
    limit: int = 0
    pattern: str = ""
    path: str = ""
    other: str = ""
    search: str = ""


class TextPart(msgspec.Struct, frozen=True):
    """A part of a text. `shown` describes its position in the whole; `next` is the offset of the next part, or 0."""

    text: str
    shown: str
    next: int = 0


def read(text: str, request: ReadRequest, max_characters: int, other: str | None = None) -> TextPart:
    """Returns the requested part of a text, of at most `max_characters` characters.

    It applies the path first, then the comparison with `other` (at the same path), then the pattern or the page. Raises
    UnanswerableRequest and InvalidPath.
    """
    notes = []
    if request.path:
        text, note = select_text(text, request.path)
        notes.append(note)
    if other is not None:
        if request.path:
            other, _ = select_text(other, request.path)
        if len(text) + len(other) > COMPARED_MOST:
            raise UnanswerableRequest("The two texts are too large to compare; read them with `offset` or `pattern`.")
        text, note = find_difference(other, text)
        notes.append(f"diff from {request.other}: {note}")
        if not text:
            return TextPart("", "; ".join(notes))
    if request.pattern:
        part = read_matches(text, request.pattern, request.offset, request.limit, max_characters)
    else:
        part = read_page(text, request.offset, request.limit, max_characters)
    return TextPart(part.text, "; ".join([*notes, part.shown]), part.next)


def read_page(text: str, offset: int, limit: int, max_characters: int) -> TextPart:
    """Returns a page from line (or character) `offset` on: `limit` (0: as many as fit), at most `max_characters`
    characters.

    Raises UnanswerableRequest for an offset after the end.
    """
    lines = text.split("\n")
    if has_long_lines(lines):
        first = _resolve_offset(offset, len(text), "characters")
        last = min(len(text), first + min(max_characters, limit or max_characters))
        shown = _span("character", first, last, len(text)) + " (long lines: offset and limit count characters)"
        return TextPart(text[first:last], shown, last + 1 if last < len(text) else 0)
    total = len(lines)
    first = last = _resolve_offset(offset, total, "lines")
    available, stop = max_characters, min(total, first + limit) if limit else total
    while last < stop and len(lines[last]) <= available:
        available -= len(lines[last]) + 1
        last += 1
    if last == first:
        shown = f"line {first + 1:,} of {total:,}, its first {max_characters:,} of {len(lines[first]):,} characters"
        return TextPart(lines[first][:max_characters], shown, first + 2 if first + 1 < total else 0)
    return TextPart("\n".join(lines[first:last]), _span("line", first, last, total), last + 1 if last < total else 0)


def read_matches(text: str, pattern: str, offset: int, limit: int, max_characters: int) -> TextPart:
    """Returns the lines that match a pattern from line `offset` on, in the format of grep, with the lines around them.

    These are `limit` matches (0: as many as fit) in at most `max_characters` characters; in a text with very long
    lines, the characters around each match. A text that is no valid pattern, or matches nowhere, is searched as plain
    text, then ignoring case; the part says so. Raises UnanswerableRequest.
    """
    if len(text) > SEARCHED_MOST:
        raise UnanswerableRequest("The text is too large to search; read it with `offset` and `limit`.")
    lines = text.split("\n")
    has_wide_lines = has_long_lines(lines)
    total, noun = (len(text), "characters") if has_wide_lines else (len(lines), "lines")
    first = _resolve_offset(offset, total, noun)
    if has_wide_lines:
        spans, note = _search(pattern, partial(find_spans, text, offset=first))
        shown_count, body = _character_context(text, spans[: limit or None], max_characters)
        number, next_offset = len(spans), spans[shown_count][0] + 1 if shown_count < len(spans) else 0
    else:
        matches, note = _search(pattern, partial(find_lines, text, offset=first))
        shown_count, body = _context(lines, matches[: limit or None], max_characters)
        number, next_offset = len(matches), matches[shown_count].line + 1 if shown_count < len(matches) else 0
    count_text = f"{number:,} or more" if number == _MAX_COUNTED else f"{number:,}"
    quoted_pattern = f"{_describe_pattern(pattern)}{note}"
    if has_wide_lines:
        found = f"{count_text} match{'' if number == 1 else 'es'} for {quoted_pattern} in {total:,} characters"
    else:
        found = f"{count_text} of {total:,} lines match{'es' if number == 1 else ''} {quoted_pattern}"
    start_text = f" from {noun[:-1]} {first + 1:,} on" if first else ""
    limit_text = f"; the first {shown_count:,} shown" if next_offset else ""
    return TextPart(body, f"{found}{start_text}{limit_text}", next_offset)


def has_long_lines(lines: Sequence[str]) -> bool:
    """Whether the lines of a text are too long for pages of whole lines."""
    return max(map(len, lines)) > _LONGEST


def _resolve_offset(offset: int, total: int, noun: str) -> int:
    """Converts an offset to an index from 0."""
    if offset > max(1, total):
        raise UnanswerableRequest(f"The text has {total:,} {noun}, so there is nothing at offset {offset:,}.")
    return max(0, total + offset) if offset < 0 else max(0, offset - 1)


def _span(noun: str, first: int, last: int, total: int) -> str:
    if first == 0 and last >= total:
        return f"complete, {total:,} {noun}{'s' if total != 1 else ''}"
    return f"{noun}s {first + 1:,}-{last:,} of {total:,}"


# -- matches -----------------------------------------------------------------------------------------------------------


def _search(pattern: str, find: Callable[[Any], Iterator[T]]) -> tuple[list[T], str]:
    """Returns the matches of a pattern by the first interpretation with any, and a note on that interpretation."""
    try:
        for note, compiled in _interpretations(pattern):
            matches = list(islice(find(compiled), _MAX_COUNTED))
            if matches:
                return matches, note
    except InvalidPattern as error:
        raise UnanswerableRequest(f"The pattern cannot be used: {error}.") from error
    return [], ""


def _interpretations(pattern: str) -> Iterator[tuple[str, Any]]:
    """Yields the interpretations of a pattern, with a note on each, in the order in which they are tried."""
    try:
        compiled = compile_pattern(pattern)
    except InvalidPattern as error:
        if not 0 < len(pattern) <= PATTERN_MOST:
            raise
        yield " (as plain text, because it is no valid RE2 pattern)", compile_pattern(pattern, literal=True)
        raise InvalidPattern(f"{error} (RE2 syntax, without look-around); not found as plain text either") from error
    yield "", compiled
    if _SPECIAL.intersection(pattern):
        yield " (as plain text)", compile_pattern(pattern, literal=True)
    yield " (ignoring case)", compile_pattern(pattern, any_case=True)


def _context(lines: Sequence[str], matches: Sequence[LineMatch], max_characters: int) -> tuple[int, str]:
    """Renders as many matches as fit, at least one, with the lines around them."""
    rows: dict[int, str] = {}
    available, shown_count = max_characters, 0
    for match in matches:
        nearby = range(max(0, match.line - _AROUND), min(len(lines), match.line + _AROUND + 1))
        new_rows = {n: f"{n + 1}-{lines[n][:_MAX_LINE_SHOWN]}" for n in nearby if n not in rows}
        new_rows[match.line] = f"{match.line + 1}:{_window(lines[match.line], match)}"
        available -= sum(len(row) + 1 for row in new_rows.values()) + 3
        if available < 0 and shown_count:
            break
        rows.update(new_rows)
        shown_count += 1
    rendered: list[str] = []
    last = -1
    for number in sorted(rows):
        if rendered and number > last + 1:
            rendered.append("--")
        rendered.append(rows[number])
        last = number
    return shown_count, "\n".join(rendered)[:max_characters]


def _window(line: str, match: LineMatch) -> str:
    """Returns a line; of a long one the characters around the match."""
    if len(line) <= _MAX_LINE_SHOWN:
        return line
    first = max(0, min(match.start - _MAX_LINE_SHOWN // 4, len(line) - _MAX_LINE_SHOWN))
    last = min(len(line), first + _MAX_LINE_SHOWN)
    return ("…" if first else "") + line[first:last] + ("…" if last < len(line) else "")


def _character_context(text: str, spans: Sequence[tuple[int, int]], max_characters: int) -> tuple[int, str]:
    """Renders as many matches as fit, at least one, each with the characters around it."""
    rows: list[str] = []
    available = max_characters
    for start, end in spans:
        first, last = (
            max(0, start - _MAX_LINE_SHOWN // 4),
            min(len(text), min(end, start + _MAX_LINE_SHOWN) + _MAX_LINE_SHOWN // 2),
        )
        row = f"{start + 1}: …{text[first:last]}…"
        available -= len(row) + 1
        if available < 0 and rows:
            break
        rows.append(row)
    return len(rows), "\n".join(rows)[:max_characters]


def _describe_pattern(pattern: str) -> str:
    return msgspec.json.encode(pattern if len(pattern) <= 80 else pattern[:79] + "…").decode()
