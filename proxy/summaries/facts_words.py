"""The words of a text that an agent may need again, verbatim: paths, identifiers, ids, numbers, addresses.

One pass of the C-coded `bytes.translate` and `split` makes the words; each distinct word is judged once and remembered.
No pattern here can backtrack over more than one word, and a word has at most `LONGEST` characters.
"""

from __future__ import annotations

import re
from typing import Final

from proxy.core.spelling import spelled
from proxy.core.values import dataclass

LONGEST: Final = 200
"""Characters. What is longer is a blob, not a word."""
_MEMORY: Final = 200_000
_MOST: Final = 4_000
_HEAD, _TAIL = 160_000, 80_000

_KEPT = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./@+~-\\"
_SPACED: Final = bytes(c if bytes((c,)) in _KEPT else 32 for c in range(256))
_URL = re.compile(r"https?://[^\s\"'<>()\[\]{}|\\^`\x00-\x1f]{4,400}")
_WINDOWS = re.compile(r"(?<![A-Za-z])[A-Za-z]:\\[^\s\"'<>|*?:\x00-\x1f]{3,200}")
_IDENTIFIER = re.compile(
    r"_*[A-Za-z]+(?:_[A-Za-z0-9_]{2,}|[a-z0-9]*[A-Z][A-Za-z0-9]*)|[A-Z]?[a-z0-9]+[A-Z][A-Za-z0-9]*"
)
_SMALL = re.compile(r"[a-z]")
_GREP = re.compile(r"(.+\.[A-Za-z]\w{0,5})-\d+(?:-.*)?")  # the line number that grep puts behind a file in its context
_RANGE = re.compile(r"\d+-(?:\d+|[A-Za-z_.]+)")
_FILE = re.compile(r"[\w-]{2,}\.[a-z][a-z0-9]{0,3}")
_NOISE: Final = frozenset({"/dev/null", "/dev/stderr", "/dev/stdout", "/bin/bash", "/bin/sh", "/usr/bin/env", "and/or"})

Verdict = tuple[str, tuple[str, ...]]
"""A path or id (kind, and the word itself), or the identifiers within a word; kind "" for nothing."""
_NOTHING: Final[Verdict] = ("", ())


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


class Judge(dict[bytes, Verdict]):
    """What kind each word is; remembers. Equal words get equal answers, so threads may race here without harm."""

    def __missing__(self, word: bytes) -> Verdict:
        if len(self) > _MEMORY:
            self.clear()
        verdict = self[word] = _verdict(word)
        return verdict

    def words(self, text: str, numbers: bool = False) -> Words:
        """The words of a text. What comes after the first thousands of distinct ones is left out.

        Numbers of four digits, and words that end in a digit, count only where `numbers` is set: in results most are
        line numbers and variables.
        """
        text = clipped(text)
        if not text:
            return NO_WORDS
        found: dict[str, dict[str, None]] = {"path": {}, "id": {}, "name": {}, "number": {}}
        names = found["name"]
        if numbers:
            found["number"] = found["id"]
        distinct = dict.fromkeys(_bytes(spelled(text)).translate(_SPACED).split())
        # Most are plain words, about which nothing needs to be remembered.
        telling = [word for word in distinct if not (word.isalpha() and word.islower())]
        for kind, words in map(self.__getitem__, telling):
            if not words:
                continue
            if kind:
                found[kind][words[0]] = None
            else:
                for word in words:
                    names[word] = None
        paths, ids = tuple(found["path"])[:_MOST], tuple(found["id"])[:_MOST]
        return Words(paths, ids, tuple(names)[:_MOST], _links(text))


def _bytes(text: str) -> bytes:
    # A letter outside ASCII becomes a backslash escape, and words with a backslash are left out whole.
    return text.encode("ascii", "backslashreplace")


def _links(text: str) -> tuple[str, ...]:
    found: dict[str, None] = {}
    if "://" in text:
        found.update((m.group().rstrip(".,;:!?*"), None) for m in _URL.finditer(text))
    if ":\\" in text:
        found.update((m.group().rstrip(".,;"), None) for m in _WINDOWS.finditer(text))
    return tuple(found)[:500]


def _verdict(raw: bytes) -> Verdict:
    if not 4 <= len(raw) <= LONGEST or b"\\" in raw:
        return _NOTHING
    bare = raw.rstrip(b".-+~@/")
    if bare.isalpha() and (bare.islower() or bare.istitle() or bare.isupper()):
        # Most words are plain ones.
        return _NOTHING
    word = bare.decode("ascii").lstrip("+@")
    if len(word) < 4:
        return _NOTHING
    if "/" in word:
        return _path(word)
    if any(map(str.isdigit, word)) and (verdict := _id(word)) is not None:
        return verdict
    if "@" in word:
        return ("id", (word,)) if "." in word else _NOTHING
    if word.isalpha() and (word.islower() or word.istitle() or word.isupper()):
        return _NOTHING
    parts = _names(word)
    return "", (word,) if parts and _FILE.fullmatch(word) else parts


def _path(word: str) -> Verdict:
    word = word.lstrip("-")
    if (context := _GREP.fullmatch(word)) is not None:
        word = context.group(1)
    name = word.rsplit("/", 1)[-1]
    if word in _NOISE or word.startswith("//") or "//" in word or len(word) < 5 or not _SMALL.search(word):
        return _NOTHING
    if word[0] in "/~." or word.count("/") >= 2 or "." in name or "_" in word:
        return "path", (word,)
    return "name", (word,)


def _id(word: str) -> Verdict | None:
    """An id mixes letters and digits, or is a long number, date or version."""
    bare = word.strip("-._~+")
    if bare.isdigit():
        return ("number" if len(bare) < 5 else "id", (bare,)) if 4 <= len(bare) <= 40 else _NOTHING
    if _RANGE.fullmatch(bare):
        return _NOTHING
    digits = sum(map(str.isdigit, bare))
    if len(bare) < 6:
        return None
    if not any(map(str.isalpha, bare)):
        return ("id", (bare,)) if digits >= 4 else _NOTHING
    if "." in bare and "@" not in bare and "-" not in bare:
        return None
    if digits >= 2 or (bare.isupper() and bare.isalnum()):
        return "id", (bare,)
    return ("number", (bare,)) if bare.isalnum() else None


def _names(word: str) -> tuple[str, ...]:
    out = []
    for dotted in word.split("."):
        for part in dotted.replace("~", "-").replace("+", "-").replace("@", "-").split("-"):
            if len(part) >= 5 and not (part.isalpha() and part.isupper()) and _IDENTIFIER.fullmatch(part):
                out.append(part)
    return tuple(out)
