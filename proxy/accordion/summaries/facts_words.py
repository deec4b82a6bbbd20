"""The words of a text that an agent may need again, verbatim: paths, identifiers, ids, numbers, addresses.

One pass of a pattern finds the words that are no plain ones; each distinct word is judged once and remembered.
No pattern here can backtrack over more than one word, and a word has at most `LONGEST` characters.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import Final

from accordion.core.spelling import LETTERS
from accordion.core.values import dataclass

LONGEST: Final = 200
"""Characters. What is longer is a blob, not a word."""
_VERDICT: Final = 300
"""Bytes that a remembered word takes beside its letters."""
_MOST: Final = 4_000
_LINKS: Final = 500
_HEAD, _TAIL = 160_000, 80_000

# What words are made of. Those with a letter outside ASCII or a backslash are left out whole.
_KEPT = rf"{LETTERS}A-Za-z0-9_./@+~\\-"
# Most words are plain ones, about which nothing needs to be remembered: a match passes over them up to one that may be
# more. It cannot fail, or it would be tried again from each letter of the words that it passed over.
_TELLING = re.compile(f"(?:[A-Z]?+[a-z]*+[.~+@/-]*+[^{_KEPT}]++)*+([{_KEPT}]*+)")
_URL = re.compile(r"https?://[^\s\"'<>()\[\]{}|\\^`\x00-\x1f]{4,400}")
_WINDOWS = re.compile(r"(?<![A-Za-z])[A-Za-z]:\\[^\s\"'<>|*?:\x00-\x1f]{3,200}")
_IDENTIFIER = re.compile(
    r"_*+(?:[A-Za-z]++_[A-Za-z0-9_]{2,}+|[A-Za-z][a-z0-9]*+[A-Z][A-Za-z0-9]*+)|[0-9][a-z0-9]*+[A-Z][A-Za-z0-9]*+"
)
_DIGIT = re.compile(r"[0-9]")
_LETTER = re.compile(r"[A-Za-z]")
_TWICE = re.compile(r"[0-9][^0-9]*[0-9]")  # two digits
_CODE = re.compile(r"[A-Z0-9-]*(?:[A-Z][0-9]|[0-9][A-Z])[A-Z0-9-]*")  # capitals with a digit among them
_WITHIN = re.compile(r"_|[A-Za-z0-9][A-Z]")  # what every identifier has
_BETWEEN = re.compile(r"[.~+@-]")
_GREP = re.compile(r"(.+\.[A-Za-z]\w{0,5})-\d+(?:-.*)?")  # the line number that grep puts behind a file in its context
_RANGE = re.compile(r"\d+-(?:\d+|[A-Za-z_.]+)")
_FILE = re.compile(r"[\w-]{2,}\.[a-z][a-z0-9]{0,3}")
_NOISE: Final = frozenset({"/dev/null", "/dev/stderr", "/dev/stdout", "/bin/bash", "/bin/sh", "/usr/bin/env", "and/or"})

Verdict = tuple[str, tuple[str, ...]]
"""A path or id (kind, and the word itself), or the identifiers within a word; kind "" for nothing."""
_NOTHING: Final[Verdict] = ("", ())
_Found = dict[str, None]
"""Distinct words of one kind, in order."""


@dataclass(frozen=True, slots=True)
class Words:
    """Distinct words of one text in the order in which they first occur."""

    paths: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    links: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """About how many bytes this holds."""
        return 200 + 70 * (len(self.paths) + len(self.ids) + len(self.names) + 2 * len(self.links))


NO_WORDS: Final = Words()


def clipped(text: str) -> str:
    """The text as far as it is looked through: head and tail of a huge one, cut at line ends where there are any."""
    if len(text) <= _HEAD + _TAIL:
        return text
    head, tail = text[:_HEAD], text[-_TAIL:]
    return f"{head[: head.rfind(chr(10)) + 1] or ''}\n{tail[tail.find(chr(10)) + 1 :]}"


class Judge(dict[str, Verdict]):
    """What kind each word is; remembers, within `capacity` bytes. Equal words get equal answers, so threads may race
    here without harm.

    It is a dict, and forgets everything at once when it is full, because a summary asks it for thousands of words: the
    look-up of one that is known must not call a method.
    """

    def __init__(self, capacity: int = 8 * 2**20) -> None:
        super().__init__()
        self._capacity, self._size = capacity, 0

    def __missing__(self, word: str) -> Verdict:
        if len(word) > LONGEST:
            return _NOTHING
        verdict = _verdict(word)
        size = _VERDICT + 2 * len(word)
        if self._size + size > self._capacity:
            self.clear()
            self._size = 0
        self[word] = verdict
        self._size += size
        return verdict

    def words(self, text: str, numbers: bool = False) -> Words:
        """The words of a text. What comes after the first thousands of distinct ones is left out.

        Numbers of four digits, and words that end in a digit, count only where `numbers` is set: in results most are
        line numbers and variables.
        """
        text = clipped(text)
        if not text:
            return NO_WORDS
        paths, ids, names, links = self._found(text, numbers)
        return Words(tuple(paths)[:_MOST], tuple(ids)[:_MOST], tuple(names)[:_MOST], tuple(links)[:_LINKS])

    def claims(self, text: str) -> list[str]:
        """All words of a text in which numbers count, kind after kind."""
        paths, ids, names, links = self._found(text, numbers=True)
        return [*paths, *ids, *names, *islice(links, _LINKS)]

    def _found(self, text: str, numbers: bool) -> tuple[_Found, _Found, _Found, _Found]:
        """Paths, ids, names and links."""
        paths: _Found = {}
        ids: _Found = {}
        names: _Found = {}
        found = {"path": paths, "id": ids, "name": names, "number": ids if numbers else {}}
        for kind, words in map(self.__getitem__, dict.fromkeys(_TELLING.findall(text))):
            if kind:
                found[kind][words[0]] = None
            else:
                for word in words:
                    names[word] = None
        return paths, ids, names, _links(text) if "://" in text or ":\\" in text else {}


def _links(text: str) -> _Found:
    found: _Found = {}
    if "://" in text:
        found.update((m.group().rstrip(".,;:!?*"), None) for m in _URL.finditer(text))
    if ":\\" in text:
        found.update((m.group().rstrip(".,;"), None) for m in _WINDOWS.finditer(text))
    return found


def _verdict(raw: str) -> Verdict:
    if len(raw) < 4 or "\\" in raw or not raw.isascii():
        return _NOTHING
    word = raw.rstrip(".-+~@/").lstrip("+@")
    if len(word) < 4:
        return _NOTHING
    if "/" in word:
        return _path(word)
    if _DIGIT.search(word) and (verdict := _id(word)) is not None:
        return verdict
    if "@" in word:
        return ("id", (word,)) if "." in word else _NOTHING
    names = _names(word)
    return "", (word,) if names and "." in word and _FILE.fullmatch(word) else names


def _path(word: str) -> Verdict:
    word = word.lstrip("-")
    if "-" in word and (context := _GREP.fullmatch(word)) is not None:
        word = context.group(1)
    if word in _NOISE or "//" in word or len(word) < 5 or word == word.upper():
        return _NOTHING
    if word[0] in "/~." or "_" in word or word.count("/") >= 2 or "." in word.rsplit("/", 1)[-1]:
        return "path", (word,)
    return "name", (word,)


def _id(word: str) -> Verdict | None:
    """An id mixes letters and digits, or is a long number, date or version."""
    bare = word.strip("-._~+")
    if bare.isdigit():
        return ("number" if len(bare) < 5 else "id", (bare,)) if 4 <= len(bare) <= 40 else _NOTHING
    if _RANGE.fullmatch(bare):
        return _NOTHING
    if len(bare) < 6:
        return None
    if not _LETTER.search(bare):
        return ("id", (bare,)) if len(_DIGIT.findall(bare)) >= 4 else _NOTHING
    if "." in bare and "@" not in bare and "-" not in bare:
        return None
    if _TWICE.search(bare) or _CODE.fullmatch(bare):
        return "id", (bare,)
    return ("number", (bare,)) if bare.isalnum() else None


def _names(word: str) -> tuple[str, ...]:
    if not _WITHIN.search(word):
        return ()
    parts = [part for part in _BETWEEN.split(word) if len(part) >= 5 and not (part.isalpha() and part.isupper())]
    return tuple(filter(_IDENTIFIER.fullmatch, parts))
