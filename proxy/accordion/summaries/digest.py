"""Shortens a long tool result or a sub-agent's answer whose whole text is archived. The pieces are verbatim."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator
from itertools import accumulate, islice
from typing import Any, Final

import msgspec

from accordion.summaries.digest_kinds import DigestCandidates, detect_kind
from accordion.summaries.facts import TROUBLE_WORDS

_MAX_LINE_LENGTH: Final = 400
"""Characters; a longer line is cut, at a space if possible."""
_MAX_CANDIDATE_LENGTH: Final = 160
_MAX_SCAN_LENGTH: Final = 1_000_000
_MAX_JSON_LENGTH: Final = 2_000_000
_MAX_SCALARS: Final = 5_000
_EMPTY_VALUES: Final = ("", "null", "false", "0", "[]", "{}")
_SUCCESS_KEYS: Final = frozenset({"ok", "success", "successful", "passed", "valid"})
_FAILURE_KEYS: Final = frozenset({"error", "errors", "failure", "exception", "stderr"})
_DIGITS: Final = re.compile(r"[0-9a-f]*\d[0-9a-f]*")
_FINDING: Final = re.compile(r"[ \t]{0,8}(?:[-*+•]|\d{1,3}[.)]|\|)[ \t]+\S.*", re.ASCII)
_MAX_FINDINGS: Final = 200
"""The largest number of findings."""
_KEYWORD_LENGTH: Final = 80
"""Characters of a finding to search for."""
_COUNT_WORDS: Final = ("total", "passed", "found", "match", "summary", "warning")


def make_digest(text: str, budget_chars: int, *, keywords: Collection[str] = ()) -> str:
    """Shortens a text to its most informative parts, by its kind, within `budget_chars` characters.

    A diff, search output, a file listing, source code or prose become an overview with counts and places
    (digest_kinds.py). JSON becomes its scalars by key, errors preferred, and the sizes of its lists and objects. Of
    other text, mostly logs, the head and the tail stay, and between them lines with a keyword, then errors, each kind
    once, then matches and counts. Gaps are marked. A text that fits is returned unchanged; without space the result is
    "".
    """
    if len(text) <= budget_chars:
        return text
    if budget_chars < 40:
        return ""
    if text.lstrip()[:1] in ("{", "["):
        outline = _digest_json(text, budget_chars)
        if outline:
            return outline
    filled_keywords = [keyword for keyword in keywords if keyword]
    lines = text.split("\n")
    kind = detect_kind(lines) if not filled_keywords and len(lines) > 1 else None
    if kind is not None and (digest := _render_candidates(kind[1], budget_chars)):
        return digest
    return _digest_lines(text, lines, budget_chars, filled_keywords)


def _render_candidates(candidates: DigestCandidates, budget: int) -> str:
    """Renders as many candidates as fit; "" if none does."""
    head, lines = candidates
    out = [head] if head else []
    available, remaining = budget - len(head) - 30, len(lines)
    for line in lines:
        piece = line if len(line) <= _MAX_CANDIDATE_LENGTH else line[: _MAX_CANDIDATE_LENGTH - 1] + "…"
        if len(piece) < available:
            out.append(piece)
            available -= len(piece) + 1
            remaining -= 1
        elif available < _MAX_CANDIDATE_LENGTH // 2:
            break
    if remaining == len(lines):
        return ""
    return "\n".join([*out, f"… {remaining} more left out …"] if remaining else out)


def _digest_lines(text: str, lines: list[str], budget: int, keywords: list[str]) -> str:
    if len(lines) == 1:
        return _digest_single_line(text, budget)
    values = _rate_lines(text, lines, keywords)
    # Head and tail get a third and a sixth of the budget; then come the most valuable lines, earlier ones first.
    available = budget - 40
    chosen: dict[int, str] = {}
    for order, share in ((range(len(lines)), available // 3), (range(len(lines) - 1, -1, -1), available // 6)):
        remaining = share
        for number in order:
            piece = _shorten_line(lines[number])
            if number in chosen or len(piece) + 1 > remaining:
                break
            chosen[number] = piece
            remaining -= len(piece) + 1
            available -= len(piece) + 1
    for number in sorted(values, key=lambda n: (-values[n], n)):
        piece = _shorten_line(lines[number])
        # A line on its own also needs a mark for the gap before it.
        if number not in chosen and len(piece) + 32 <= available:
            chosen[number] = piece
            available -= len(piece) + 32
    return _join_lines(chosen, len(lines), budget)


def _rate_lines(text: str, lines: list[str], keywords: list[str]) -> dict[int, int]:
    """Rates the lines in the middle; ordinary lines have no rating."""
    text = text[:_MAX_SCAN_LENGTH]
    low = text.lower()
    if len(low) != len(text):
        # A few letters change their length in lower case, but the offsets must match the lines.
        low = text
    starts = list(accumulate((len(line) + 1 for line in lines), initial=0))
    out = dict.fromkeys(_find_lines_with(text, starts, keywords), 4)
    for words, value in ((TROUBLE_WORDS, 2), (_COUNT_WORDS, 1)):
        for number in _find_lines_with(low, starts, words):
            out[number] = out.get(number, 0) + value
    shapes: set[str] = set()
    for number in sorted(out):
        line = lines[number][:_MAX_LINE_LENGTH]
        if out[number] > 1 and (shape := _DIGITS.sub("0", line)) not in shapes:
            # Each error once before any is repeated, and lines with text before banners.
            shapes.add(shape)
            out[number] += 1 + (sum(map(str.isalnum, line)) > 0.6 * len(line))
    return out


def _find_lines_with(text: str, starts: list[int], words: Iterable[str]) -> set[int]:
    """Returns the numbers of the lines with one of the words near the line's beginning."""
    out: set[int] = set()
    for word in words:
        at = text.find(word)
        while at >= 0:
            number = bisect_right(starts, at) - 1
            if at - starts[number] < _MAX_LINE_LENGTH:
                out.add(number)
            at = text.find(word, starts[number + 1])
    return out


def _shorten_line(line: str) -> str:
    if len(line) <= _MAX_LINE_LENGTH:
        return line
    end = line.rfind(" ", 0, _MAX_LINE_LENGTH - 40)
    end = end if end > 0 else _MAX_LINE_LENGTH - 40
    return f"{line[:end]} … {len(line) - end} characters left out …"


def _digest_single_line(text: str, budget: int) -> str:
    available = budget - 40
    if available < 20:
        return ""
    head = text.rfind(" ", 0, available * 2 // 3) if " " in text[: available * 2 // 3] else available * 2 // 3
    tail = len(text) - available // 3
    tail = text.find(" ", tail) if " " in text[tail:-1] else tail
    return f"{text[:head]} … {tail - head} characters left out … {text[tail:].lstrip()}"


def _join_lines(chosen: dict[int, str], total: int, budget: int) -> str:
    while True:
        out: list[str] = []
        last = -1
        for number in sorted(chosen):
            if number - last > 1:
                out.append(f"… {number - last - 1} lines left out …")
            out.append(chosen[number])
            last = number
        if total - last > 1:
            out.append(f"… {total - last - 1} lines left out …")
        text = "\n".join(out)
        if len(text) <= budget:
            return text
        if not chosen:
            return ""
        # Drops the middle before head and tail.
        middle = sorted(chosen)
        del chosen[middle[len(middle) // 2]]


def _digest_json(text: str, budget: int) -> str:
    """Outlines a JSON text with its scalars; "" for other text."""
    if len(text) > _MAX_JSON_LENGTH:
        return ""
    try:
        value = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(value, dict | list):
        return ""
    # Without errors the beginning is enough.
    low = text.lower()
    many = _MAX_SCALARS if any(t in low for t in (*TROUBLE_WORDS, "false", "stderr")) else budget // 4
    rows = list(islice(_outline_json(value, "$", 6), many))
    # The beginning gets half of the budget; errors come next, then the rest.
    order = sorted(range(len(rows)), key=lambda n: (not _is_trouble(rows[n]), n))
    chosen: set[int] = set()
    remaining = budget - 40
    for numbers, least in ((range(len(rows)), remaining // 2), (order, 0)):
        for number in numbers:
            cost = len(rows[number]) + 1
            if number in chosen:
                continue
            if remaining - cost < least:
                break
            chosen.add(number)
            remaining -= cost
    out = [rows[number] for number in sorted(chosen)]
    return "\n".join([*out, "… more left out …"] if len(chosen) < len(rows) else out)


def _is_trouble(row: str) -> bool:
    """Whether a scalar is about an error, by its value or its key."""
    path, _, value = row.partition(": ")
    name = path.rsplit(".", 1)[-1].lower()
    if value in _EMPTY_VALUES or value.startswith(("object, ", "array, ")):
        return value == "false" and name in _SUCCESS_KEYS
    low = value[:_MAX_LINE_LENGTH].lower()
    return name in _FAILURE_KEYS or any(t in low for t in TROUBLE_WORDS)


def _outline_json(value: Any, at: str, depth: int) -> Iterator[str]:
    """Yields a line `path: value` for each scalar, and the number of entries for each list and object."""
    if isinstance(value, dict):
        yield f"{at}: object, {len(value)} keys"
        entries = ((f"{at}.{k}", v) for k, v in value.items())
    elif isinstance(value, list):
        yield f"{at}: array, {len(value)} items"
        entries = ((f"{at}[{n}]", v) for n, v in enumerate(value))
    else:
        yield f"{at}: {_shorten_line(value) if isinstance(value, str) else msgspec.json.encode(value).decode()}"
        return
    if depth:
        for path, inner in entries:
            yield from _outline_json(inner, path, depth - 1)


def digest_return(text: str, budget_chars: int) -> str:
    """Shortens a sub-agent's answer to its head, its tail, and the entries of its lists.

    The entries usually are its findings. An answer without lists is shortened like any text.
    """
    list_entries = (line for line in text.split("\n") if _FINDING.match(line))
    findings = dict.fromkeys(line.strip()[:_KEYWORD_LENGTH] for line in islice(list_entries, _MAX_FINDINGS))
    return make_digest(text, budget_chars, keywords=findings)
