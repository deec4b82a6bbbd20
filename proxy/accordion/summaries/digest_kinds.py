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
    functions: dict[str, str] = {}
    current_file = ""
    for number, line in enumerate(lines):
        if line.startswith("+++ ") and number and lines[number - 1].startswith("--- "):
            name = line[4:].split("\t")[0]
            current_file = lines[number - 1][4:].split("\t")[0] if name == "/dev/null" else name
            current_file = current_file.removeprefix("b/").removeprefix("a/")
            files.setdefault(current_file, [0, 0])
        elif current_file and line[:1] in "+-" and line and not line.startswith(("+++", "---")):
            files[current_file][line[0] == "-"] += 1
        elif current_file and (hunk := _HUNK.match(line)) and hunk[1]:
            functions[f"{current_file}: {hunk[1]}"] = ""
    if not files:
        return None
    added, removed = (sum(each[index] for each in files.values()) for index in (0, 1))
    rows = [f"{name} +{counts[0]} -{counts[1]}" for name, counts in files.items()]
    return f"A diff of {_pluralize(len(files), 'file')}, +{added} -{removed}:", [*rows, *functions]


def _digest_search(lines: Sequence[str]) -> DigestCandidates | None:
    """Digests search output: the number of lines in each file, then the first line of each file."""
    sample = [line for line in lines[:_MAX_DETECTION_LINES] if line.strip() and line != "--"]
    if len(sample) < _MIN_MATCHES or sum(_is_search_hit(line) for line in sample) < 0.8 * len(sample):
        return None
    files: dict[str, list[int]] = {}
    first_lines: dict[str, str] = {}
    for line in lines:
        match = _SEARCH_HIT.match(line)
        if match is not None:
            files.setdefault(match[1], []).append(int(match[2]))
            first_lines.setdefault(match[1], line)
    rows = [f"{name}: {_pluralize(len(numbers), 'line')}, {_format_span(numbers)}" for name, numbers in files.items()]
    if len(files) == 1:
        rows = []
    total = sum(map(len, files.values()))
    return f"{_pluralize(total, 'line')} found in {_pluralize(len(files), 'file')}:", [*rows, *first_lines.values()]


def _digest_listing(lines: Sequence[str]) -> DigestCandidates | None:
    """Digests a file listing: the number of files by type and directory, then the names."""
    sample = [line.strip() for line in lines[:_MAX_DETECTION_LINES] if line.strip()]
    if len(sample) < _MIN_MATCHES:
        return None
    if sum(_LISTED_FILE.match(line) is not None for line in sample) >= 0.7 * len(sample):
        matches = (_LISTED_FILE.match(line) for line in lines)
        names = [match[1] + ("/" if match[0][0] == "d" else "") for match in matches if match is not None]
    elif sum(_is_path(line) for line in sample) >= 0.9 * len(sample):
        names = [line.strip() for line in lines if line.strip()]
    else:
        return None
    types = Counter(_file_type(name) for name in names)
    directory_counts = Counter(name.rsplit("/", 1)[0] for name in names if "/" in name.rstrip("/"))
    type_counts = ", ".join(f"{count} {kind}" for kind, count in types.most_common(6))
    directories = (
        [f"{directory}/: {count}" for directory, count in directory_counts.most_common(8)]
        if len(directory_counts) > 1
        else []
    )
    return f"A list of {len(names)}: {type_counts}.", [*directories[:4], *names]


def _digest_code(lines: Sequence[str]) -> DigestCandidates | None:
    """Digests source code: its definitions, the outermost first."""
    sample = lines[:_MAX_DETECTION_LINES]
    if (
        sum(_DEFINITION.match(line) is not None or _METHOD.match(line) is not None for line in sample)
        < len(sample) // 60
    ):
        return None
    definitions = [line.rstrip() for line in lines if _DEFINITION.match(line)]
    methods = [line.rstrip() for line in lines if _METHOD.match(line) and not _DEFINITION.match(line)]
    filled_count = sum(map(bool, map(str.strip, lines)))
    if len(definitions) + len(methods) < 3 or 60 * (len(definitions) + len(methods)) < filled_count:
        return None
    return f"Source code, {_pluralize(len(lines), 'line')}:", [*definitions, *methods]


def _digest_prose(lines: Sequence[str]) -> DigestCandidates | None:
    """Digests prose: its headings, then the first sentence of each paragraph."""
    filled_lines = [line.strip() for line in lines if line.strip()]
    sample = filled_lines[:_MAX_DETECTION_LINES]
    if 2 * sum(line.count(" ") >= 5 and "." in line for line in sample) < 0.4 * len(sample):
        return None
    if 4 * sum(any(t in line.lower() for t in TROUBLE_WORDS) for line in sample) > len(sample):
        # A compiler's output has full stops, too.
        return None
    headings = [line for line in filled_lines if _HEADING.match(line)]
    sentences = [match[0] for line in filled_lines if (match := _SENTENCE.match(line)) and line.count(" ") >= 5]
    if (
        len(filled_lines) < 3
        or len(sentences) < 0.4 * len(filled_lines)
        or len(headings) + len(sentences) < 0.7 * len(filled_lines)
    ):
        return None
    if sum(len(line) for line in filled_lines) < 60 * len(sentences):
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
    match = _SEARCH_HIT.match(line)
    return match is not None and ("." in match[1] or "/" in match[1]) and match[1].count(" ") < 3


def _is_path(line: str) -> bool:
    return len(line) < 300 and ("/" in line or "." in line) and line.count(" ") < 2 and _PATH.match(line) is not None


def _file_type(name: str) -> str:
    if name.endswith("/"):
        return "directories"
    last = name.rsplit("/", 1)[-1]
    return "." + last.rsplit(".", 1)[1] if "." in last[1:] else "others"


def _pluralize(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
