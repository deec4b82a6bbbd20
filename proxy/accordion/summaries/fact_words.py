"""Finds the words of a text that an agent may need again verbatim: paths, identifiers, ids, numbers, addresses.

One pass of a pattern finds the words that are not plain language; each distinct word is classified once and cached.
No pattern here can backtrack over more than one word, and a word has at most `MAX_WORD_LENGTH` characters.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import Final

import msgspec

from accordion.model.spelling import LETTERS

MAX_WORD_LENGTH: Final = 200
"""Characters. Anything longer is encoded data, not a word."""
_WORD_CLASS_SIZE: Final = 300
"""Bytes of a cached word besides its letters."""
_MAX_WORDS: Final = 4_000
_MAX_LINKS: Final = 500
_HEAD, _TAIL = 160_000, 80_000

# The characters of words. A word with a letter outside ASCII or a backslash is left out as a whole.
_WORD_CHARACTERS = rf"{LETTERS}A-Za-z0-9_./@+~\\-"
# Most words are plain language: a match skips them up to a word that may be more. The match cannot fail; otherwise the
# engine would retry from each letter of the skipped words.
_NOT_PLAIN_WORD = re.compile(f"(?:[A-Z]?+[a-z]*+[.~+@/-]*+[^{_WORD_CHARACTERS}]++)*+([{_WORD_CHARACTERS}]*+)")
_URL = re.compile(r"https?://[^\s\"'<>()\[\]{}|\\^`\x00-\x1f]{4,400}")
_WINDOWS = re.compile(r"(?<![A-Za-z])[A-Za-z]:\\[^\s\"'<>|*?:\x00-\x1f]{3,200}")
_IDENTIFIER = re.compile(
    r"_*+(?:[A-Za-z]++_[A-Za-z0-9_]{2,}+|[A-Za-z][a-z0-9]*+[A-Z][A-Za-z0-9]*+)|[0-9][a-z0-9]*+[A-Z][A-Za-z0-9]*+"
)
_DIGIT = re.compile(r"[0-9]")
_LETTER = re.compile(r"[A-Za-z]")
_TWO_DIGITS = re.compile(r"[0-9][^0-9]*[0-9]")  # two digits
_CODE = re.compile(r"[A-Z0-9-]*(?:[A-Z][0-9]|[0-9][A-Z])[A-Z0-9-]*")  # capitals with a digit among them
_IDENTIFIER_SIGN = re.compile(r"_|[A-Za-z0-9][A-Z]")  # every identifier matches
_SEPARATOR = re.compile(r"[.~+@-]")
_GREP = re.compile(r"(.+\.[A-Za-z]\w{0,5})-\d+(?:-.*)?")  # a file with the line number of grep's context output
_RANGE = re.compile(r"\d+-(?:\d+|[A-Za-z_.]+)")
_FILE = re.compile(r"[\w-]{2,}\.[a-z][a-z0-9]{0,3}")
_NOISE: Final = frozenset({"/dev/null", "/dev/stderr", "/dev/stdout", "/bin/bash", "/bin/sh", "/usr/bin/env", "and/or"})

WordClass = tuple[str, tuple[str, ...]]
"""The kind of a path or id and the word itself; or "" and the identifiers within a word."""
_PLAIN_WORD: Final[WordClass] = ("", ())
_WordSet = dict[str, None]
"""Distinct words of one kind, in order."""


class ExtractedWords(msgspec.Struct, frozen=True):
    """The distinct words of a text, in the order of their first occurrence."""

    paths: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    links: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """The approximate size in bytes."""
        return 200 + 70 * (len(self.paths) + len(self.ids) + len(self.names) + 2 * len(self.links))


NO_EXTRACTED_WORDS: Final = ExtractedWords()


def clip_text(text: str) -> str:
    """Returns the part of a text that is scanned: head and tail of a huge one, cut at line ends if possible."""
    if len(text) <= _HEAD + _TAIL:
        return text
    head, tail = text[:_HEAD], text[-_TAIL:]
    return f"{head[: head.rfind(chr(10)) + 1] or ''}\n{tail[tail.find(chr(10)) + 1 :]}"


class WordClassifier(dict[str, WordClass]):
    """Classifies words, with a cache of `capacity` bytes. Equal words get equal results, so threads may race.

    It is a dict, cleared as a whole when it is full, because a summary looks up thousands of words: a hit must not call
    a method.
    """

    def __init__(self, capacity: int = 8 * 2**20) -> None:
        super().__init__()
        self._capacity, self._size = capacity, 0

    def __missing__(self, word: str) -> WordClass:
        if len(word) > MAX_WORD_LENGTH:
            return _PLAIN_WORD
        word_class = _classify(word)
        size = _WORD_CLASS_SIZE + 2 * len(word)
        if self._size + size > self._capacity:
            self.clear()
            self._size = 0
        self[word] = word_class
        self._size += size
        return word_class

    def find_words(self, text: str, numbers: bool = False) -> ExtractedWords:
        """Finds the words of a text, up to some thousands of distinct ones.

        Numbers of four digits and words that end in a digit count only with `numbers`: in tool results most are line
        numbers and variables.
        """
        text = clip_text(text)
        if not text:
            return NO_EXTRACTED_WORDS
        paths, ids, names, links = self._scan(text, numbers)
        return ExtractedWords(
            tuple(paths)[:_MAX_WORDS], tuple(ids)[:_MAX_WORDS], tuple(names)[:_MAX_WORDS], tuple(links)[:_MAX_LINKS]
        )

    def find_claims(self, text: str) -> list[str]:
        """Finds all words of a text, numbers included, grouped by kind."""
        paths, ids, names, links = self._scan(text, numbers=True)
        return [*paths, *ids, *names, *islice(links, _MAX_LINKS)]

    def _scan(self, text: str, numbers: bool) -> tuple[_WordSet, _WordSet, _WordSet, _WordSet]:
        """Returns paths, ids, names and links."""
        paths: _WordSet = {}
        ids: _WordSet = {}
        names: _WordSet = {}
        words_by_kind = {"path": paths, "id": ids, "name": names, "number": ids if numbers else {}}
        for kind, words in map(self.__getitem__, dict.fromkeys(_NOT_PLAIN_WORD.findall(text))):
            if kind:
                words_by_kind[kind][words[0]] = None
            else:
                for word in words:
                    names[word] = None
        return paths, ids, names, _find_links(text) if "://" in text or ":\\" in text else {}


def _find_links(text: str) -> _WordSet:
    words_by_kind: _WordSet = {}
    if "://" in text:
        words_by_kind.update((m.group().rstrip(".,;:!?*"), None) for m in _URL.finditer(text))
    if ":\\" in text:
        words_by_kind.update((m.group().rstrip(".,;"), None) for m in _WINDOWS.finditer(text))
    return words_by_kind


def _classify(raw: str) -> WordClass:
    if len(raw) < 4 or "\\" in raw or not raw.isascii():
        return _PLAIN_WORD
    word = raw.rstrip(".-+~@/").lstrip("+@")
    if len(word) < 4:
        return _PLAIN_WORD
    if "/" in word:
        return _classify_path(word)
    if _DIGIT.search(word) and (word_class := _classify_id(word)) is not None:
        return word_class
    if "@" in word:
        return ("id", (word,)) if "." in word else _PLAIN_WORD
    names = _find_identifiers(word)
    return "", (word,) if names and "." in word and _FILE.fullmatch(word) else names


def _classify_path(word: str) -> WordClass:
    word = word.lstrip("-")
    if "-" in word and (context := _GREP.fullmatch(word)) is not None:
        word = context.group(1)
    if word in _NOISE or "//" in word or len(word) < 5 or word == word.upper():
        return _PLAIN_WORD
    if word[0] in "/~." or "_" in word or word.count("/") >= 2 or "." in word.rsplit("/", 1)[-1]:
        return "path", (word,)
    return "name", (word,)


def _classify_id(word: str) -> WordClass | None:
    """Classifies a word with digits. An id mixes letters and digits, or is a long number, date or version."""
    core = word.strip("-._~+")
    if core.isdigit():
        return ("number" if len(core) < 5 else "id", (core,)) if 4 <= len(core) <= 40 else _PLAIN_WORD
    if _RANGE.fullmatch(core):
        return _PLAIN_WORD
    if len(core) < 6:
        return None
    if not _LETTER.search(core):
        return ("id", (core,)) if len(_DIGIT.findall(core)) >= 4 else _PLAIN_WORD
    if "." in core and "@" not in core and "-" not in core:
        return None
    if _TWO_DIGITS.search(core) or _CODE.fullmatch(core):
        return "id", (core,)
    return ("number", (core,)) if core.isalnum() else None


def _find_identifiers(word: str) -> tuple[str, ...]:
    if not _IDENTIFIER_SIGN.search(word):
        return ()
    parts = [part for part in _SEPARATOR.split(word) if len(part) >= 5 and not (part.isalpha() and part.isupper())]
    return tuple(filter(_IDENTIFIER.fullmatch, parts))
