"""A short form of one long tool result, for places where the whole of it is archived. Pieces are verbatim."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator
from itertools import accumulate, islice
from typing import Any, Final

import msgspec

from accordion.summaries.digest_kinds import Candidates, kind_of
from accordion.summaries.facts import TROUBLE

_LONG: Final = 400
"""Characters; a longer line is cut at a space where there is one."""
_CANDIDATE: Final = 160
_SCANNED: Final = 1_000_000
_JSON_MOST: Final = 2_000_000
_SCALARS: Final = 5_000
_NOTHING: Final = ("", "null", "false", "0", "[]", "{}")
_GOOD: Final = frozenset({"ok", "success", "successful", "passed", "valid"})
_BAD: Final = frozenset({"error", "errors", "failure", "exception", "stderr"})
_DIGITS: Final = re.compile(r"[0-9a-f]*\d[0-9a-f]*")
_COUNTS: Final = ("total", "passed", "found", "match", "summary", "warning")


def digest(text: str, budget_chars: int, *, wanted: Collection[str] = ()) -> str:
    """What tells most of a text, by its kind; at most `budget_chars` characters.

    Of a diff, what a search found, a listing, source code or prose: what there is and how much, and where (see
    digest_kinds.py). JSON keeps its scalars by key, errors and failures in it too, and says how much its lists and
    objects hold. Of anything else, logs above all, the head and the tail, and between them lines with a `wanted` string
    first, then errors and failures, each of its kind once, then matches and counts. What is left out is said where it
    was. A text that fits comes back as it is; with no room at all the answer is "".
    """
    if len(text) <= budget_chars:
        return text
    if budget_chars < 40:
        return ""
    if text.lstrip()[:1] in ("{", "["):
        outlined = _json(text, budget_chars)
        if outlined:
            return outlined
    asked = [w for w in wanted if w]
    lines = text.split("\n")
    found = kind_of(lines) if not asked and len(lines) > 1 else None
    if found is not None and (told := _told(found[1], budget_chars)):
        return told
    return _lines(text, lines, budget_chars, asked)


def _told(candidates: Candidates, budget: int) -> str:
    """As many candidates as there is room for; "" where there is room for none."""
    head, lines = candidates
    out = [head] if head else []
    room, left = budget - len(head) - 30, len(lines)
    for line in lines:
        piece = line if len(line) <= _CANDIDATE else line[: _CANDIDATE - 1] + "…"
        if len(piece) < room:
            out.append(piece)
            room -= len(piece) + 1
            left -= 1
        elif room < _CANDIDATE // 2:
            break
    if left == len(lines):
        return ""
    return "\n".join([*out, f"… {left} more left out …"] if left else out)


def _lines(text: str, lines: list[str], budget: int, wanted: list[str]) -> str:
    if len(lines) == 1:
        return _one(text, budget)
    worth = _worth(text, lines, wanted)
    # Head and tail have a third and a sixth of the room; then come the lines worth most, first ones first.
    room = budget - 40
    chosen: dict[int, str] = {}
    for order, share in ((range(len(lines)), room // 3), (range(len(lines) - 1, -1, -1), room // 6)):
        left = share
        for number in order:
            piece = _short(lines[number])
            if number in chosen or len(piece) + 1 > left:
                break
            chosen[number] = piece
            left -= len(piece) + 1
            room -= len(piece) + 1
    for number in sorted(worth, key=lambda n: (-worth[n], n)):
        piece = _short(lines[number])
        # A line that stands alone brings a note on the gap before it.
        if number not in chosen and len(piece) + 32 <= room:
            chosen[number] = piece
            room -= len(piece) + 32
    return _joined(chosen, len(lines), budget)


def _worth(text: str, lines: list[str], wanted: list[str]) -> dict[int, int]:
    """What lines in the middle are worth; those that say nothing special are not in it."""
    text = text[:_SCANNED]
    low = text.lower()
    if len(low) != len(text):
        # Few letters change their length; the places must be those of the lines.
        low = text
    starts = list(accumulate((len(line) + 1 for line in lines), initial=0))
    out = dict.fromkeys(_lines_with(text, starts, wanted), 4)
    for words, value in ((TROUBLE, 2), (_COUNTS, 1)):
        for number in _lines_with(low, starts, words):
            out[number] = out.get(number, 0) + value
    seen: set[str] = set()
    for number in sorted(out):
        line = lines[number][:_LONG]
        if out[number] > 1 and (shape := _DIGITS.sub("0", line)) not in seen:
            # Every error once before any of them twice, and a line that says something before a banner.
            seen.add(shape)
            out[number] += 1 + (sum(map(str.isalnum, line)) > 0.6 * len(line))
    return out


def _lines_with(text: str, starts: list[int], words: Iterable[str]) -> set[int]:
    """The numbers of the lines in which one of the words stands, near the line's beginning."""
    out: set[int] = set()
    for word in words:
        at = text.find(word)
        while at >= 0:
            number = bisect_right(starts, at) - 1
            if at - starts[number] < _LONG:
                out.add(number)
            at = text.find(word, starts[number + 1])
    return out


def _short(line: str) -> str:
    if len(line) <= _LONG:
        return line
    end = line.rfind(" ", 0, _LONG - 40)
    end = end if end > 0 else _LONG - 40
    return f"{line[:end]} … {len(line) - end} characters left out …"


def _one(text: str, budget: int) -> str:
    room = budget - 40
    if room < 20:
        return ""
    head = text.rfind(" ", 0, room * 2 // 3) if " " in text[: room * 2 // 3] else room * 2 // 3
    tail = len(text) - room // 3
    tail = text.find(" ", tail) if " " in text[tail:-1] else tail
    return f"{text[:head]} … {tail - head} characters left out … {text[tail:].lstrip()}"


def _joined(chosen: dict[int, str], total: int, budget: int) -> str:
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
        # The middle goes before head and tail.
        middle = sorted(chosen)
        del chosen[middle[len(middle) // 2]]


def _json(text: str, budget: int) -> str:
    """The structure of a JSON text with its scalars; "" where it is none."""
    if len(text) > _JSON_MOST:
        return ""
    try:
        value = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(value, dict | list):
        return ""
    # Where nothing tells of trouble the beginning is enough.
    low = text.lower()
    many = _SCALARS if any(t in low for t in (*TROUBLE, "false", "stderr")) else budget // 4
    rows = list(islice(_outline(value, "$", 6), many))
    # The beginning has half of the room; what tells of trouble comes next, then the rest.
    order = sorted(range(len(rows)), key=lambda n: (not _troubled(rows[n]), n))
    chosen: set[int] = set()
    left = budget - 40
    for numbers, least in ((range(len(rows)), left // 2), (order, 0)):
        for number in numbers:
            cost = len(rows[number]) + 1
            if number in chosen:
                continue
            if left - cost < least:
                break
            chosen.add(number)
            left -= cost
    out = [rows[number] for number in sorted(chosen)]
    return "\n".join([*out, "… more left out …"] if len(chosen) < len(rows) else out)


def _troubled(row: str) -> bool:
    """Whether a scalar tells of an error: by its value, or by its key where it has one."""
    path, _, value = row.partition(": ")
    name = path.rsplit(".", 1)[-1].lower()
    if value in _NOTHING or value.startswith(("object, ", "array, ")):
        return value == "false" and name in _GOOD
    low = value[:_LONG].lower()
    return name in _BAD or any(t in low for t in TROUBLE)


def _outline(value: Any, at: str, depth: int) -> Iterator[str]:
    """One line for each scalar: `path: value`; lists and objects say how many entries they hold."""
    if isinstance(value, dict):
        yield f"{at}: object, {len(value)} keys"
        entries = ((f"{at}.{k}", v) for k, v in value.items())
    elif isinstance(value, list):
        yield f"{at}: array, {len(value)} items"
        entries = ((f"{at}[{n}]", v) for n, v in enumerate(value))
    else:
        yield f"{at}: {_short(value) if isinstance(value, str) else msgspec.json.encode(value).decode()}"
        return
    if depth:
        for path, inner in entries:
            yield from _outline(inner, path, depth - 1)
