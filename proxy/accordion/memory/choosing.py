"""Which of the candidates become memories: what nobody took before, the best of it first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from accordion.memory.extraction import Candidate
from accordion.memory.log import Entry
from accordion.memory.sentences import Sentence
from accordion.memory.standing import about
from accordion.memory.stretches import Stretch

_FEWEST: Final = 12
_MOST: Final = 40
"""Memories of one compaction at most: one for every three messages within these bounds."""
_CONTEXT: Final = 300
"""Characters that are kept of each of the two turns before, for search alone."""


def same(done: Sequence[Entry], stretch: Stretch, focus: Sequence[str]) -> int:
    """The number of the compaction of this very range; -1 where there is none. A history that was taken back and went
    on otherwise is another range."""
    for number, each in enumerate(done):
        asked = (each.first, each.last, tuple(each.focus), tuple(each.keys))
        if asked == (stretch.first, stretch.last, tuple(focus), stretch.keys):
            return number
    return -1


def fresh(found: Sequence[Candidate], done: Sequence[Entry], stretch: Stretch, focus: Sequence[str]) -> list[Candidate]:
    """The candidates with a message that no compaction covers. One for certain topics covers messages for these topics
    only: what it left out may be wanted for others."""
    covered = {key for each in done if tuple(each.focus) == tuple(focus) for key in each.keys}
    new = {stretch.first + at for at, key in enumerate(stretch.keys) if key not in covered}
    return [each for each in found if any(at in new for at in range(each.first, each.last + 1))]


def chosen(new: Sequence[tuple[str, Candidate]], focus: Sequence[str], messages: int) -> list[tuple[str, Candidate]]:
    """What matters most, in the order in which it was said: what is about the topics first, then the rest by worth.
    What says little is taken only where it is asked for."""
    most = min(_MOST, max(_FEWEST, messages // 3))
    wanted = [(any(about(each.text, topic) for topic in focus), name, each) for name, each in new]
    ranked = sorted(
        (entry for entry in wanted if entry[0] or not entry[2].weak), key=lambda entry: (not entry[0], -entry[2].worth)
    )
    return [(name, each) for _, name, each in sorted(ranked[:most], key=lambda entry: (entry[2].last, entry[2].first))]


def context_of(first: int, said: Sequence[Sentence]) -> str:
    """The beginning of the two turns before, for search."""
    turns: dict[int, str] = {}
    for each in said:
        if each.at >= first:
            break
        turns[each.at] = f"{turns.get(each.at, '')} {each.text}".strip()
    return "\n".join(text[:_CONTEXT] for text in list(turns.values())[-2:])
