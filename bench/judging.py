"""Judges answers by their expected literal or letter, and gives shares with intervals by conversation."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import Final

from bench.question_sets import ReaderQuestion
from bench.questions import words_of

DRAWS: Final = 2_000
"""How often conversations are drawn for an interval."""
_UNKNOWN = re.compile(r"\bunknown\b|\bnot? (?:mentioned|said|stated|specified|available|information)\b", re.IGNORECASE)
_LETTER = re.compile(r"\b([AB])\b")


def is_right(question: ReaderQuestion, reply: str) -> bool:
    """Whether a reply has the expected letter, value, or all words of the expected answer; for a control: none."""
    if question.form == "unknown":
        return _UNKNOWN.search(reply) is not None
    if question.form == "letter":
        letter = _LETTER.search(reply)
        return letter is not None and letter[1] == question.expected
    if question.form == "value":
        return re.search(rf"(?<![\w.]){re.escape(question.expected)}(?!\w)", reply, re.IGNORECASE) is not None
    return set(words_of(question.expected)) <= set(words_of(reply))


def interval(figures: Mapping[str, Sequence[float]], seed: int = 1) -> tuple[float, float, float]:
    """Returns the mean of all figures and its 95 % interval, by drawing conversations with replacement.

    `figures` are by conversation: those of one conversation are not independent of each other.
    """
    groups = [each for each in figures.values() if each]
    if not groups:
        return 0.0, 0.0, 0.0
    chance = random.Random(seed)
    means = sorted(_mean(chance.choices(groups, k=len(groups))) for _ in range(DRAWS))
    return _mean(groups), means[DRAWS * 25 // 1000], means[DRAWS * 975 // 1000 - 1]


def _mean(groups: Sequence[Sequence[float]]) -> float:
    return sum(map(sum, groups)) / sum(map(len, groups))


def show_interval(figures: Mapping[str, Sequence[float]], *, is_difference: bool = False) -> str | None:
    """Formats shares in per cent, or differences in points; None where there are no figures."""
    if not any(figures.values()):
        return None
    mean, low, high = (100 * each for each in interval(figures))
    return f"{mean:+.0f} ({low:+.0f} to {high:+.0f})" if is_difference else f"{mean:.0f} ({low:.0f}-{high:.0f})"
