"""Counts the meaningful tokens of a text: its tokens without padding.

Padding is invisible characters, punctuation without words, repeated lines and phrases, and words that are repeated too
often. The given counter counts the rest.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from typing import Final

_SPLIT: Final = re.compile(r"\n+|(?<=[.!?。！？])\s*")
_UNIT: Final = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|\S+")
"""A word; in scripts without spaces a character."""
_PHRASE: Final = 4
"""Words of a phrase, which counts once."""
_RUN: Final = re.compile(r"(.)\1{3,}")
_WORD: Final = 80
"""Characters of a word that count. The rest of a longer word is data."""
_SHARE: Final = 16
"""A word counts at most once in so many words."""
_REPETITION_DISTANCE: Final = 6


def remove_padding(text: str) -> str:
    """Returns a text without padding. It serves counting, not reading."""
    words = _unique_words(_unique_sentences(_remove_invisible(text)))
    max_repeats = max(_REPETITION_DISTANCE, len(words) // _SHARE)
    counts: Counter[str] = Counter()
    result: list[str] = []
    for word in words:
        key = word.strip("\"'`()[]{}<>,;:!?.*_#|-").lower()
        counts[key] += 1
        if any(map(str.isalnum, key)) and counts[key] <= max_repeats:
            result.append(_RUN.sub(r"\1\1\1", word)[:_WORD])
    return " ".join(result)


def count_meaningful_tokens(text: str, count: Callable[[str], int]) -> int:
    """Counts the tokens of a text without padding."""
    return count(remove_padding(text))


def _remove_invisible(text: str) -> str:
    """Removes invisible characters: format, control, unassigned, private and filler characters, and stacked marks."""
    result: list[str] = []
    mark_count = 0
    for character in unicodedata.normalize("NFKC", text):
        category = unicodedata.category(character)
        mark_count = mark_count + 1 if category in {"Mn", "Me"} else 0
        if character == "\n" or category == "Zs":
            result.append("\n" if character == "\n" else " ")
        elif category[0] != "C" and mark_count < 3 and character not in "\u115f\u1160\u3164\uffa0\u2800":
            result.append(character)
        elif category == "Cc":
            result.append(" ")
    return "".join(result)


def _unique_sentences(text: str) -> list[str]:
    """Returns each sentence or line once, compared without case, punctuation and numbers."""
    by_key: dict[str, str] = {}
    for sentence in _SPLIT.split(text):
        key = " ".join(re.findall(r"\w+", re.sub(r"\d+", "0", sentence.lower())))
        if key:
            by_key.setdefault(key, sentence)
    return list(by_key.values())


def _unique_words(sentences: list[str]) -> list[str]:
    """Returns all words in order, without those that end a repeated phrase."""
    words = [word for sentence in sentences for word in _UNIT.findall(sentence)]
    phrases: set[tuple[str, ...]] = set()
    result: list[str] = []
    for index, word in enumerate(words):
        phrase = tuple(part.lower() for part in words[max(0, index - _PHRASE + 1) : index + 1])
        if len(phrase) < _PHRASE or phrase not in phrases:
            result.append(word)
        phrases.add(phrase)
    return result
