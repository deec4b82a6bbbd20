"""Compares two texts line by line, at a bounded cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import takewhile
from typing import Final

LINES_MOST: Final = 1_000
"""Lines on either side that are compared in their order; matching them takes time that grows with their square."""
_AROUND: Final = 3


def find_difference(old: str, new: str) -> tuple[str, str]:
    """Returns a unified diff from `old` to `new`, and its size in words.

    If too much differs, it has only the lines that one side has and the other has not, in their order.
    """
    old_lines, new_lines = old.split("\n"), new.split("\n")
    head = count_common_prefix(old_lines, new_lines)
    tail = count_common_prefix(old_lines[head:][::-1], new_lines[head:][::-1])
    if head == len(old_lines) == len(new_lines):
        return "", "no differences"
    # Some equal lines stay, as context around the others.
    start, stop = max(0, head - _AROUND), max(0, tail - _AROUND)
    one, other = old_lines[start : len(old_lines) - stop], new_lines[start : len(new_lines) - stop]
    if max(len(one), len(other)) - 2 * _AROUND > LINES_MOST:
        lines, note = list(_unordered_diff(one, other)), ", too many to align: only lines that one side lacks"
    else:
        lines, note = list(_unified_diff(one, other, start)), ""
    removed_count, added_count = (sum(line.startswith(sign) for line in lines) for sign in "-+")
    size = f"{removed_count:,} line{'' if removed_count == 1 else 's'} removed, {added_count:,} added{note}"
    return "\n".join(lines), size


def count_common_prefix(one: Sequence[object], other: Sequence[object]) -> int:
    """Returns how many items at the beginning are the same."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _unified_diff(one: Sequence[str], other: Sequence[str], start: int) -> Iterator[str]:
    for group in SequenceMatcher(None, one, other).get_grouped_opcodes(_AROUND):
        _, i, _, j, _ = group[0]
        _, _, i_end, _, j_end = group[-1]
        yield f"@@ -{start + i + 1},{i_end - i} +{start + j + 1},{j_end - j} @@"
        for tag, first, last, new_first, new_last in group:
            if tag == "equal":
                yield from (" " + line for line in one[first:last])
            else:
                yield from ("-" + line for line in one[first:last])
                yield from ("+" + line for line in other[new_first:new_last])


def _unordered_diff(one: Sequence[str], other: Sequence[str]) -> Iterator[str]:
    for sign, lines, against in (("-", one, other), ("+", other, one)):
        counts = Counter(against)
        for line in lines:
            if counts[line]:
                counts[line] -= 1
            else:
                yield sign + line
