"""What a long tool result is, by the look of its lines, and what of each kind tells most: what is in it, and where.

Each kind is told by many of its lines, never by one; what is in doubt is none of them. Candidates are in the order of
their worth. Counts are made over all lines that are looked at; everything else is verbatim.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from accordion.summaries.facts import TROUBLE

LINES_MOST: Final = 20_000
"""Lines of a text that are looked at."""
_LOOKED: Final = 120
"""Lines by which a kind is told."""
_ENOUGH: Final = 8
_HUNK = re.compile(r"@@ -\d+(?:,\d+)? \+\d+(?:,\d+)? @@ ?(.*)")
_FOUND = re.compile(r"([^\s:][^:\n]{0,200}?)[:-](\d{1,7})[:-]")
_LISTED = re.compile(r"[-dlbcps][-rwxsStT]{9}[.+@]?\s.*?(\S+)\s*\Z")
_PATH = re.compile(r"[\w.@~+-]*(?:/[\w.@+ -]+)*/?\Z")
_GUTTER = r"(?: {0,8}\d{1,7}[→|:\t] ?)?"
_OPENS = re.compile(
    _GUTTER + r"(?:(?:export|default|public|private|protected|static|abstract|final|async|pub(?:\(\w+\))?|unsafe) )*"
    r"(?:(?:class|def|fn|func|function\*?|struct|trait|impl|interface|enum|module|namespace|type) \(?[\w&*]"
    r"|(?:const|let|var) \w+ = (?:async )?(?:function|\())"
)
_METHOD = re.compile(_GUTTER + r" {2,8}(?:async )?(?:def|fn|func|function) \w")
_HEADING = re.compile(r"#{1,6} \S")
_SENTENCE = re.compile(r".{20,400}?[.!?](?=\s|\Z)")

Candidates = tuple[str, Sequence[str]]
"""A line that says what there is, and lines that may follow, those worth most first."""


def kind_of(lines: Sequence[str]) -> tuple[str, Candidates] | None:
    """The kind of a text, given its lines, with what may be said of it; None where it is of none of them."""
    looked = lines[:LINES_MOST]
    for name, made in _KINDS:
        found = made(looked)
        if found is not None:
            return name, found
    return None


def _diff(lines: Sequence[str]) -> Candidates | None:
    """A unified diff: its files with how much changed in each, then where."""
    if not any(_HUNK.match(line) for line in lines[:_LOOKED]):
        return None
    files: dict[str, list[int]] = {}
    places: dict[str, str] = {}
    at = ""
    for number, line in enumerate(lines):
        if line.startswith("+++ ") and number and lines[number - 1].startswith("--- "):
            name = line[4:].split("\t")[0]
            at = lines[number - 1][4:].split("\t")[0] if name == "/dev/null" else name
            at = at.removeprefix("b/").removeprefix("a/")
            files.setdefault(at, [0, 0])
        elif at and line[:1] in "+-" and line and not line.startswith(("+++", "---")):
            files[at][line[0] == "-"] += 1
        elif at and (hunk := _HUNK.match(line)) and hunk[1]:
            places[f"{at}: {hunk[1]}"] = ""
    if not files:
        return None
    more, less = (sum(each[index] for each in files.values()) for index in (0, 1))
    told = [f"{name} +{counts[0]} -{counts[1]}" for name, counts in files.items()]
    return f"A diff of {_many(len(files), 'file')}, +{more} -{less}:", [*told, *places]


def _search(lines: Sequence[str]) -> Candidates | None:
    """What a search found: how much in which file, then the lines themselves, one of each file first."""
    looked = [line for line in lines[:_LOOKED] if line.strip() and line != "--"]
    if len(looked) < _ENOUGH or sum(_is_found(line) for line in looked) < 0.8 * len(looked):
        return None
    files: dict[str, list[int]] = {}
    firsts: dict[str, str] = {}
    for line in lines:
        found = _FOUND.match(line)
        if found is not None:
            files.setdefault(found[1], []).append(int(found[2]))
            firsts.setdefault(found[1], line)
    told = [f"{name}: {_many(len(found), 'line')}, {_span(found)}" for name, found in files.items()]
    if len(files) == 1:
        told = []
    total = sum(map(len, files.values()))
    return f"{_many(total, 'line')} found in {_many(len(files), 'file')}:", [*told, *firsts.values()]


def _listing(lines: Sequence[str]) -> Candidates | None:
    """Files, one a line: how many of which type and where, then the names."""
    looked = [line.strip() for line in lines[:_LOOKED] if line.strip()]
    if len(looked) < _ENOUGH:
        return None
    if sum(_LISTED.match(line) is not None for line in looked) >= 0.7 * len(looked):
        long = (_LISTED.match(line) for line in lines)
        names = [found[1] + ("/" if found[0][0] == "d" else "") for found in long if found is not None]
    elif sum(_is_path(line) for line in looked) >= 0.9 * len(looked):
        names = [line.strip() for line in lines if line.strip()]
    else:
        return None
    types = Counter(_type(name) for name in names)
    places = Counter(name.rsplit("/", 1)[0] for name in names if "/" in name.rstrip("/"))
    told = ", ".join(f"{count} {kind}" for kind, count in types.most_common(6))
    where = [f"{place}/: {count}" for place, count in places.most_common(8)] if len(places) > 1 else []
    return f"A list of {len(names)}: {told}.", [*where[:4], *names]


def _code(lines: Sequence[str]) -> Candidates | None:
    """Source code: what it defines, the outermost first."""
    likely = lines[:_LOOKED]
    if sum(_OPENS.match(line) is not None or _METHOD.match(line) is not None for line in likely) < len(likely) // 60:
        return None
    outer = [line.rstrip() for line in lines if _OPENS.match(line)]
    inner = [line.rstrip() for line in lines if _METHOD.match(line) and not _OPENS.match(line)]
    filled = sum(map(bool, map(str.strip, lines)))
    if len(outer) + len(inner) < 3 or 60 * (len(outer) + len(inner)) < filled:
        return None
    return f"Source code, {_many(len(lines), 'line')}:", [*outer, *inner]


def _prose(lines: Sequence[str]) -> Candidates | None:
    """Text for people: its headings, then how each paragraph begins."""
    filled = [line.strip() for line in lines if line.strip()]
    likely = filled[:_LOOKED]
    if 2 * sum(line.count(" ") >= 5 and "." in line for line in likely) < 0.4 * len(likely):
        return None
    if 4 * sum(any(t in line.lower() for t in TROUBLE) for line in likely) > len(likely):
        # A compiler's output ends in full stops too.
        return None
    headings = [line for line in filled if _HEADING.match(line)]
    sentences = [found[0] for line in filled if (found := _SENTENCE.match(line)) and line.count(" ") >= 5]
    if len(filled) < 3 or len(sentences) < 0.4 * len(filled) or len(headings) + len(sentences) < 0.7 * len(filled):
        return None
    if sum(len(line) for line in filled) < 60 * len(sentences):
        return None
    return "", [*headings[:1], *sentences[:1], *headings[1:], *sentences[1:]]


_KINDS: Final[tuple[tuple[str, Callable[[Sequence[str]], Candidates | None]], ...]] = (
    ("diff", _diff),
    ("search", _search),
    ("listing", _listing),
    ("code", _code),
    ("prose", _prose),
)


def _span(numbers: Sequence[int]) -> str:
    return f"{numbers[0]} to {numbers[-1]}" if numbers[0] != numbers[-1] else str(numbers[0])


def _is_found(line: str) -> bool:
    """Whether a line is of a file; times of day look alike."""
    found = _FOUND.match(line)
    return found is not None and ("." in found[1] or "/" in found[1]) and found[1].count(" ") < 3


def _is_path(line: str) -> bool:
    return len(line) < 300 and ("/" in line or "." in line) and line.count(" ") < 2 and _PATH.match(line) is not None


def _type(name: str) -> str:
    if name.endswith("/"):
        return "directories"
    last = name.rsplit("/", 1)[-1]
    return "." + last.rsplit(".", 1)[1] if "." in last[1:] else "others"


def _many(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
