"""Detects the kind of a long tool result from its lines, and makes an overview of it: contents, counts and places.

A kind needs many matching lines, never one; doubtful text has no kind. Candidate lines come in the order of their
value. Counts cover all scanned lines; everything else is verbatim.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from accordion.summaries.facts import TROUBLE_WORDS

MAX_LINES: Final = 20_000
"""The number of scanned lines."""
_MAX_DETECTION_LINES: Final = 120
"""The number of lines that decide the kind."""
_MIN_MATCHES: Final = 8
_HUNK = re.compile(r"@@ -\d+(?:,\d+)? \+\d+(?:,\d+)? @@ ?(.*)")
_SEARCH_HIT = re.compile(r"([^\s:][^:\n]{0,200}?)[:-](\d{1,7})[:-]")
_LISTED_FILE = re.compile(r"[-dlbcps][-rwxsStT]{9}[.+@]?\s.*?(\S+)\s*\Z")
_PATH = re.compile(r"[\w.@~+-]*(?:/[\w.@+ -]+)*/?\Z")
_GUTTER = r"(?: {0,8}\d{1,7}[→|:\t] ?)?"
_DEFINITION = re.compile(
    _GUTTER + r"(?:(?:export|default|public|private|protected|static|abstract|final|async|pub(?:\(\w+\))?|unsafe) )*"
    r"(?:(?:class|def|fn|func|function\*?|struct|trait|impl|interface|enum|module|namespace|type) \(?[\w&*]"
    r"|(?:const|let|var) \w+ = (?:async )?(?:function|\())"
)
_METHOD = re.compile(_GUTTER + r" {2,8}(?:async )?(?:def|fn|func|function) \w")
_HEADING = re.compile(r"#{1,6} \S")
_SENTENCE = re.compile(r".{20,400}?[.!?](?=\s|\Z)")

DigestCandidates = tuple[str, Sequence[str]]
"""A heading, and the lines that may follow, most valuable first."""


def detect_kind(lines: Sequence[str]) -> tuple[str, DigestCandidates] | None:
    """Returns the kind of a text and its candidates; None if it has no kind."""
    scanned = lines[:MAX_LINES]
    for name, digest in _KINDS:
        candidates = digest(scanned)
        if candidates is not None:
            return name, candidates
    return None


def _digest_diff(lines: Sequence[str]) -> DigestCandidates | None:
    """Digests a unified diff: its files with the number of changed lines, then the changed functions."""
    if not any(_HUNK.match(line) for line in lines[:_MAX_DETECTION_LINES]):
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
    added, removed = (sum(each[index] for each in files.values()) for index in (0, 1))
    rows = [f"{name} +{counts[0]} -{counts[1]}" for name, counts in files.items()]
    return f"A diff of {_pluralize(len(files), 'file')}, +{added} -{removed}:", [*rows, *places]


def _digest_search(lines: Sequence[str]) -> DigestCandidates | None:
    """Digests search output: the number of lines in each file, then the first line of each file."""
    sample = [line for line in lines[:_MAX_DETECTION_LINES] if line.strip() and line != "--"]
    if len(sample) < _MIN_MATCHES or sum(_is_search_hit(line) for line in sample) < 0.8 * len(sample):
        return None
    files: dict[str, list[int]] = {}
    firsts: dict[str, str] = {}
    for line in lines:
        hit = _SEARCH_HIT.match(line)
        if hit is not None:
            files.setdefault(hit[1], []).append(int(hit[2]))
            firsts.setdefault(hit[1], line)
    rows = [f"{name}: {_pluralize(len(numbers), 'line')}, {_format_span(numbers)}" for name, numbers in files.items()]
    if len(files) == 1:
        rows = []
    total = sum(map(len, files.values()))
    return f"{_pluralize(total, 'line')} found in {_pluralize(len(files), 'file')}:", [*rows, *firsts.values()]


def _digest_listing(lines: Sequence[str]) -> DigestCandidates | None:
    """Digests a file listing: the number of files by type and directory, then the names."""
    sample = [line.strip() for line in lines[:_MAX_DETECTION_LINES] if line.strip()]
    if len(sample) < _MIN_MATCHES:
        return None
    if sum(_LISTED_FILE.match(line) is not None for line in sample) >= 0.7 * len(sample):
        long = (_LISTED_FILE.match(line) for line in lines)
        names = [match[1] + ("/" if match[0][0] == "d" else "") for match in long if match is not None]
    elif sum(_is_path(line) for line in sample) >= 0.9 * len(sample):
        names = [line.strip() for line in lines if line.strip()]
    else:
        return None
    types = Counter(_file_type(name) for name in names)
    places = Counter(name.rsplit("/", 1)[0] for name in names if "/" in name.rstrip("/"))
    type_counts = ", ".join(f"{count} {kind}" for kind, count in types.most_common(6))
    directories = [f"{place}/: {count}" for place, count in places.most_common(8)] if len(places) > 1 else []
    return f"A list of {len(names)}: {type_counts}.", [*directories[:4], *names]


def _digest_code(lines: Sequence[str]) -> DigestCandidates | None:
    """Digests source code: its definitions, the outermost first."""
    sample = lines[:_MAX_DETECTION_LINES]
    if (
        sum(_DEFINITION.match(line) is not None or _METHOD.match(line) is not None for line in sample)
        < len(sample) // 60
    ):
        return None
    outer = [line.rstrip() for line in lines if _DEFINITION.match(line)]
    inner = [line.rstrip() for line in lines if _METHOD.match(line) and not _DEFINITION.match(line)]
    filled = sum(map(bool, map(str.strip, lines)))
    if len(outer) + len(inner) < 3 or 60 * (len(outer) + len(inner)) < filled:
        return None
    return f"Source code, {_pluralize(len(lines), 'line')}:", [*outer, *inner]


def _digest_prose(lines: Sequence[str]) -> DigestCandidates | None:
    """Digests prose: its headings, then the first sentence of each paragraph."""
    filled = [line.strip() for line in lines if line.strip()]
    sample = filled[:_MAX_DETECTION_LINES]
    if 2 * sum(line.count(" ") >= 5 and "." in line for line in sample) < 0.4 * len(sample):
        return None
    if 4 * sum(any(t in line.lower() for t in TROUBLE_WORDS) for line in sample) > len(sample):
        # A compiler's output has full stops, too.
        return None
    headings = [line for line in filled if _HEADING.match(line)]
    sentences = [match[0] for line in filled if (match := _SENTENCE.match(line)) and line.count(" ") >= 5]
    if len(filled) < 3 or len(sentences) < 0.4 * len(filled) or len(headings) + len(sentences) < 0.7 * len(filled):
        return None
    if sum(len(line) for line in filled) < 60 * len(sentences):
        return None
    return "", [*headings[:1], *sentences[:1], *headings[1:], *sentences[1:]]


_KINDS: Final[tuple[tuple[str, Callable[[Sequence[str]], DigestCandidates | None]], ...]] = (
    ("diff", _digest_diff),
    ("search", _digest_search),
    ("listing", _digest_listing),
    ("code", _digest_code),
    ("prose", _digest_prose),
)


def _format_span(numbers: Sequence[int]) -> str:
    return f"{numbers[0]} to {numbers[-1]}" if numbers[0] != numbers[-1] else str(numbers[0])


def _is_search_hit(line: str) -> bool:
    """Whether a line is a search hit in a file; times of day look similar."""
    hit = _SEARCH_HIT.match(line)
    return hit is not None and ("." in hit[1] or "/" in hit[1]) and hit[1].count(" ") < 3


def _is_path(line: str) -> bool:
    return len(line) < 300 and ("/" in line or "." in line) and line.count(" ") < 2 and _PATH.match(line) is not None


def _file_type(name: str) -> str:
    if name.endswith("/"):
        return "directories"
    last = name.rsplit("/", 1)[-1]
    return "." + last.rsplit(".", 1)[1] if "." in last[1:] else "others"


def _pluralize(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
