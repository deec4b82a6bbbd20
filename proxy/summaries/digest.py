"""A short form of one long tool result, for places where the whole of it is archived. Pieces are verbatim."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Final

import msgspec

from proxy.summaries.facts import TROUBLE

_LONG: Final = 400
"""Characters; a longer line is cut at a space where there is one."""
_SCANNED: Final = 200_000
_JSON_MOST: Final = 2_000_000
_COUNTS: Final = ("total", "passed", "found", "match", "summary", "warning")


def digest(text: str, budget_chars: int, *, wanted: Collection[str] = ()) -> str:
    """The head and the tail of a text, and between them what tells most; at most `budget_chars` characters.

    Lines with a `wanted` string come first, then errors and failures, then matches and counts. What is left out is
    said where it was. JSON keeps its scalars by key and says how much its lists and objects hold. A text that fits
    comes back as it is; with no room at all the answer is "".
    """
    if len(text) <= budget_chars:
        return text
    if budget_chars < 40:
        return ""
    if text.lstrip()[:1] in ("{", "["):
        outlined = _json(text, budget_chars)
        if outlined:
            return outlined
    return _lines(text, budget_chars, [w for w in wanted if w])


def _lines(text: str, budget: int, wanted: list[str]) -> str:
    lines = text.split("\n")
    if len(lines) == 1:
        return _one(text, budget)
    worth = _worth(lines, wanted)
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


def _worth(lines: list[str], wanted: list[str]) -> dict[int, int]:
    """What lines in the middle are worth; those that say nothing special are not in it."""
    out: dict[int, int] = {}
    scanned = 0
    for number, line in enumerate(lines):
        scanned += len(line)
        if scanned > 5 * _SCANNED:
            break
        low = line[:_LONG].lower()
        value = 4 * any(w in line for w in wanted) if wanted else 0
        value += 2 * any(t in low for t in TROUBLE)
        value += any(t in low for t in _COUNTS)
        if value:
            out[number] = value
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
    out: list[str] = []
    left = budget - 40
    for line in _outline(value, "$", 6):
        if len(line) + 1 > left:
            out.append("… more left out …")
            break
        out.append(line)
        left -= len(line) + 1
    return "\n".join(out)


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
