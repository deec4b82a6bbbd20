"""Words of texts in many languages: those that carry a text's subject, and the characters that words consist of."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from typing import Final

EAST_ASIA: Final = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
"""Chinese, Japanese and Korean characters, in the syntax of a character class."""

LETTERS = "\u00c0-\u024f\u0370-\u04ff"
"""Letters outside ASCII, in the syntax of a character class."""
_WORD = re.compile(r"[^\W_]+")
_EAST_ASIAN_RUN = re.compile(f"[{EAST_ASIA}]+")
_IDENTIFIER = re.compile(r"\w+")
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
"""A word in an identifier: in `parse_config`, `parseConfig` or `HTTPServer`."""
_SPACES: Final = "".join(chr(c) if chr(c).isalnum() or chr(c) == "_" else " " for c in range(128))
"""The translation of each ASCII character."""
_MAX_WORD: Final = 64
"""Characters of a word; longer ones are data."""
_MAX_CACHED_WORDS: Final = 50_000
_MIN_STEM: Final = 3
_VOWELS: Final = frozenset("aeiouy")
_SHORT = re.compile(r"[^aeiou][aeiouy][^aeiouwxy]")
"""What is left of `hiking` and `moved`, which end in an `e` alone."""
_STOP_TEXT: Final = (
    "a an the and or for to of in on at by with that this it there he she they we i is are be from was has have had "
    "not but you your our its all any use used using please must should shall will would can never always only when "
    "then than into onto over under also now new who what which s t d m ll re ve do does don no me my if as so go "
    "ahead yes sure like need want thank thanks help how much these those them here ok okay just get der die das den "
    "dem ein eine einen und oder für von zu im am mit ist sind wir ich du es auf nicht nie niemals kein keine bitte "
    "le la les un une des de et ou pour dans en sur avec est ne pas il jamais el los las una y o por para con son del "
    "al nunca siempre sin que se os um uma não e di non het een не и в на для 不要 必须 禁止 请使 使用 不能 只能"
)
_STOP_WORDS: Final = frozenset(_STOP_TEXT.split())
_UNSEARCHED_TEXT: Final = (
    "about after again anything been before being between both cannot could did doing down during each else few got "
    "hello her hers hey hi him his let long may might mine more most oh once one other ours out own really same some "
    "something still such thing their theirs things too until up very way well were where while whom whose why wow "
    "yeah yours"
)
UNSEARCHED: Final = _STOP_WORDS.union(_UNSEARCHED_TEXT.split())
"""Words by which nothing is searched."""


def words_of(text: str) -> frozenset[str]:
    """Returns the words of a text in lower case, without stop words.

    Chinese, Japanese and Korean text is split into pairs of characters.
    """
    if text.isascii():
        return frozenset(_WORD.findall(text.lower())) - _STOP_WORDS
    words: set[str] = set()
    for word in map(str.lower, _WORD.findall(text)):
        if word.isascii():
            words.add(word)
            continue
        for run in _EAST_ASIAN_RUN.findall(word):
            words.update(run[start : start + 2] for start in range(max(1, len(run) - 1)))
        words.update(_WORD.findall(_EAST_ASIAN_RUN.sub(" ", word)))
    return frozenset(words) - _STOP_WORDS


def search_terms(text: str) -> list[str]:
    """Returns the terms by which a text is searched, in its order, without stop words.

    A word is its stem in lower case. An identifier is one term, and so is each word in it. Chinese, Japanese and Korean
    text is split into pairs of characters.
    """
    words = text.translate(_SPACES).split() if text.isascii() else _split_wide(text)
    return [*chain.from_iterable(map(_TERMS.__getitem__, words))]


def _split_wide(text: str) -> Iterator[str]:
    """Yields the words of a text that is not ASCII, identifiers whole."""
    for word in _IDENTIFIER.findall(text):
        if word.isascii():
            yield word
            continue
        for run in _EAST_ASIAN_RUN.findall(word):
            yield from (run[start : start + 2] for start in range(max(1, len(run) - 1)))
        yield from _EAST_ASIAN_RUN.sub(" ", word).split()


class _WordTerms(dict[str, tuple[str, ...]]):
    """The terms of each word, found at its first use."""

    def __missing__(self, word: str) -> tuple[str, ...]:
        if len(self) >= _MAX_CACHED_WORDS:
            self.clear()
        terms = self[word] = _find_terms(word)
        return terms


_TERMS = _WordTerms()


def _find_terms(word: str) -> tuple[str, ...]:
    if len(word) > _MAX_WORD or (len(word) == 1 and word.isascii()):
        return ()
    parts = _PART.findall(word) if word.isascii() else ()
    forms = [word.lower(), *(part.lower() for part in parts if len(parts) > 1 and len(part) > 2)]
    return tuple(dict.fromkeys(_stem(form) for form in forms if form not in UNSEARCHED))


def _stem(word: str) -> str:
    """Returns an English word without its plural, and without `ing`, `ed` or `ly` (roughly Porter's first step)."""
    if not (word.isascii() and word.isalpha()):
        return word
    if word.endswith(("sses", "xes", "ches", "shes")) or (word.endswith("ies") and len(word) > _MIN_STEM + 1):
        word = word[:-2]
    elif word.endswith("s") and not word.endswith(("ss", "us", "is")) and len(word) > _MIN_STEM:
        word = word[:-1]
    ending = next((each for each in ("ing", "ed", "ly") if word.endswith(each)), "")
    stem = word[: len(word) - len(ending)]
    is_doubled = stem[-1:] == stem[-2:-1]
    if ending == "ly" and len(stem) > _MIN_STEM and not is_doubled and stem[-1] not in _VOWELS:
        word = stem
    elif ending and ending != "ly" and len(stem) >= _MIN_STEM and _VOWELS.intersection(stem):
        if is_doubled and stem[-1] not in "aeiouls":
            stem = stem[:-1]
        elif _SHORT.fullmatch(stem):
            stem += "e"
        word = stem
    if len(word) > _MIN_STEM + 1 and word[-1] == "e":
        return word[:-1]
    return f"{word[:-1]}i" if len(word) > _MIN_STEM and word[-1] == "y" and word[-2] not in _VOWELS else word
