"""How much a text says: its tokens without what only makes it longer.

Invisible characters, signs without words, lines and phrases that come again, and words that come again and again do
not count. What is left is counted by the real counter.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from typing import Final

_SPLIT: Final = re.compile(r"\n+|(?<=[.!?。！？])\s*")
_UNIT: Final = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|\S+")
"""A word; of scripts without spaces a sign."""
_PHRASE: Final = 4
"""Words in a row that count once."""
_RUN: Final = re.compile(r"(.)\1{3,}")
_WORD: Final = 80
"""Characters of a word that count: of what is longer, the rest is data."""
_SHARE: Final = 16
"""No word is more than one in so many of all."""
_LEAST: Final = 6


def substance(text: str) -> str:
    """A text without its padding: for counting, not for reading."""
    words = _once(_sentences(_visible(text)))
    most = max(_LEAST, len(words) // _SHARE)
    seen: Counter[str] = Counter()
    out: list[str] = []
    for word in words:
        bare = word.strip("\"'`()[]{}<>,;:!?.*_#|-").lower()
        seen[bare] += 1
        if any(map(str.isalnum, bare)) and seen[bare] <= most:
            out.append(_RUN.sub(r"\1\1\1", word)[:_WORD])
    return " ".join(out)


def honest_tokens(text: str, count: Callable[[str], int]) -> int:
    """Tokens of what a text says."""
    return count(substance(text))


def _visible(text: str) -> str:
    """Without characters that nobody sees: formats, controls, unassigned and private ones, fillers, marks in heaps."""
    out: list[str] = []
    marks = 0
    for sign in unicodedata.normalize("NFKC", text):
        kind = unicodedata.category(sign)
        marks = marks + 1 if kind in {"Mn", "Me"} else 0
        if sign == "\n" or kind == "Zs":
            out.append("\n" if sign == "\n" else " ")
        elif kind[0] != "C" and marks < 3 and sign not in "\u115f\u1160\u3164\uffa0\u2800":
            out.append(sign)
        elif kind == "Cc":
            out.append(" ")
    return "".join(out)


def _sentences(text: str) -> list[str]:
    """Each sentence or line once, whatever its case, punctuation and numbering."""
    found: dict[str, str] = {}
    for piece in _SPLIT.split(text):
        bare = " ".join(re.findall(r"\w+", re.sub(r"\d+", "0", piece.lower())))
        if bare:
            found.setdefault(bare, piece)
    return list(found.values())


def _once(sentences: list[str]) -> list[str]:
    """All words in order, without those that end a phrase which stood before."""
    words = [word for sentence in sentences for word in _UNIT.findall(sentence)]
    seen: set[tuple[str, ...]] = set()
    out: list[str] = []
    for at, word in enumerate(words):
        phrase = tuple(each.lower() for each in words[max(0, at - _PHRASE + 1) : at + 1])
        if len(phrase) < _PHRASE or phrase not in seen:
            out.append(word)
        seen.add(phrase)
    return out
