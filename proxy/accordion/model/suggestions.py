"""Suggestions for words that a person has probably mistyped."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def find_nearest(word: str, known: Iterable[str], likeness: float = 0.6) -> str:
    """Returns the known word that is most like `word`; empty if none reaches `likeness` (1.0: the same word)."""
    return next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=likeness)), "")


def describe_choices(value: object, choices: Iterable[str]) -> str:
    """Returns "one of auto, off; did you mean `auto`?": the choices, and the one that is most like `value`, if any."""
    words = list(choices)
    nearest = find_nearest(value.strip().lower(), words) if isinstance(value, str) else ""
    return f"one of {', '.join(words)}" + (f"; did you mean `{nearest}`?" if nearest else "")
