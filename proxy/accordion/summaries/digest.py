"""Shortens a long tool result or a sub-agent's answer whose whole text is archived. The pieces are verbatim."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import accumulate, islice
from typing import Any, Final

import msgspec

from accordion.summaries.facts import TROUBLE_WORDS

_MAX_LINE_LENGTH: Final = 400
"""Characters; a longer line is cut, at a space if possible."""
_MAX_CANDIDATE_LENGTH: Final = 160
_MAX_SCAN_LENGTH: Final = 1_000_000
_MAX_JSON_LENGTH: Final = 2_000_000
_MAX_SCALARS: Final = 5_000
_EMPTY_VALUES: Final = ("", "null", "false", "0", "[]", "{}")
_SUCCESS_KEYS: Final = frozenset({"ok", "success", "successful", "passed", "valid"})
_FAILURE_KEYS: Final = frozenset({"error", "errors", "failure", "exception", "stderr"})
_DIGITS: Final = re.compile(r"[0-9a-f]*\d[0-9a-f]*")
_FINDING: Final = re.compile(r"[ \t]{0,8}(?:[-*+•]|\d{1,3}[.)]|\|)[ \t]+\S.*", re.ASCII)
_MAX_FINDINGS: Final = 200
"""The largest number of findings."""
_KEYWORD_LENGTH: Final = 80
"""Characters of a finding to search for."""
_COUNT_WORDS: Final = ("total", "passed", "found", "match", "summary", "warning")


def make_digest(text: str, budget_chars: int, *, keywords: Collection[str] = ()) -> str:
    """Shortens a text to its most informative parts, by its kind, within `budget_chars` characters.

    A diff, search output, a file listing, source code or prose become an overview with counts and places
    (`detect_kind`). JSON becomes its scalars by key, errors preferred, and the sizes of its lists and objects. Of
    other text, mostly logs, the head and the tail stay, and between them lines with a keyword, then errors, each kind
    once, then matches and counts. Gaps are marked. A text that fits is returned unchanged; without space the result is
    "".
    """
    if len(text) <= budget_chars:
        return text
    if budget_chars < 40:
        return ""
    if text.lstrip()[:1] in ("{", "["):
        outline = _digest_json(text, budget_chars)
        if outline:
            return outline
    filled_keywords = [keyword for keyword in keywords if keyword]
    lines = text.split("\n")
    kind = detect_kind(lines) if not filled_keywords and len(lines) > 1 else None
    if kind is not None and (digest := _render_candidates(kind[1], budget_chars)):
        return digest
    return _digest_lines(text, lines, budget_chars, filled_keywords)


def _render_candidates(candidates: _DigestCandidates, budget: int) -> str:
    """Renders as many candidates as fit; "" if none does."""
    head, lines = candidates
    rows = [head] if head else []
    available, remaining = budget - len(head) - 30, len(lines)
    for line in lines:
        piece = line if len(line) <= _MAX_CANDIDATE_LENGTH else line[: _MAX_CANDIDATE_LENGTH - 1] + "…"
        if len(piece) < available:
            rows.append(piece)
            available -= len(piece) + 1
            remaining -= 1
        elif available < _MAX_CANDIDATE_LENGTH // 2:
            break
    if remaining == len(lines):
        return ""
    return "\n".join([*rows, f"… {remaining} more left out …"] if remaining else rows)


def _digest_lines(text: str, lines: list[str], budget: int, keywords: list[str]) -> str:
    if len(lines) == 1:
        return _digest_single_line(text, budget)
    values = _rate_lines(text, lines, keywords)
    # Head and tail get a third and a sixth of the budget; then come the most valuable lines, earlier ones first.
    available = budget - 40
    selected_lines: dict[int, str] = {}
    for order, share in ((range(len(lines)), available // 3), (range(len(lines) - 1, -1, -1), available // 6)):
        remaining = share
        for number in order:
            piece = _shorten_line(lines[number])
            if number in selected_lines or len(piece) + 1 > remaining:
                break
            selected_lines[number] = piece
            remaining -= len(piece) + 1
            available -= len(piece) + 1
    for number in sorted(values, key=lambda n: (-values[n], n)):
        piece = _shorten_line(lines[number])
        # A line on its own also needs a mark for the gap before it.
        if number not in selected_lines and len(piece) + 32 <= available:
            selected_lines[number] = piece
            available -= len(piece) + 32
    return _join_lines(selected_lines, len(lines), budget)


def _rate_lines(text: str, lines: list[str], keywords: list[str]) -> dict[int, int]:
    """Rates the lines in the middle; ordinary lines have no rating."""
    text = text[:_MAX_SCAN_LENGTH]
    lowercase_text = text.lower()
    if len(lowercase_text) != len(text):
        # A few letters change their length in lower case, but the offsets must match the lines.
        lowercase_text = text
    starts = list(accumulate((len(line) + 1 for line in lines), initial=0))
    ratings = dict.fromkeys(_find_lines_with(text, starts, keywords), 4)
    for words, value in ((TROUBLE_WORDS, 2), (_COUNT_WORDS, 1)):
        for number in _find_lines_with(lowercase_text, starts, words):
            ratings[number] = ratings.get(number, 0) + value
    shapes: set[str] = set()
    for number in sorted(ratings):
        line = lines[number][:_MAX_LINE_LENGTH]
        if ratings[number] > 1 and (shape := _DIGITS.sub("0", line)) not in shapes:
            # Each error once before any is repeated, and lines with text before banners.
            shapes.add(shape)
            ratings[number] += 1 + (sum(map(str.isalnum, line)) > 0.6 * len(line))
    return ratings


def _find_lines_with(text: str, starts: list[int], words: Iterable[str]) -> set[int]:
    """Returns the numbers of the lines with one of the words near the line's beginning."""
    numbers: set[int] = set()
    for word in words:
        position = text.find(word)
        while position >= 0:
            number = bisect_right(starts, position) - 1
            if position - starts[number] < _MAX_LINE_LENGTH:
                numbers.add(number)
            position = text.find(word, starts[number + 1])
    return numbers


def _shorten_line(line: str) -> str:
    if len(line) <= _MAX_LINE_LENGTH:
        return line
    end = line.rfind(" ", 0, _MAX_LINE_LENGTH - 40)
    end = end if end > 0 else _MAX_LINE_LENGTH - 40
    return f"{line[:end]} … {len(line) - end} characters left out …"


def _digest_single_line(text: str, budget: int) -> str:
    available = budget - 40
    if available < 20:
        return ""
    head = text.rfind(" ", 0, available * 2 // 3) if " " in text[: available * 2 // 3] else available * 2 // 3
    tail = len(text) - available // 3
    tail = text.find(" ", tail) if " " in text[tail:-1] else tail
    return f"{text[:head]} … {tail - head} characters left out … {text[tail:].lstrip()}"


def _join_lines(selected_lines: dict[int, str], total: int, budget: int) -> str:
    while True:
        rows: list[str] = []
        previous = -1
        for number in sorted(selected_lines):
            if number - previous > 1:
                rows.append(f"… {number - previous - 1} lines left out …")
            rows.append(selected_lines[number])
            previous = number
        if total - previous > 1:
            rows.append(f"… {total - previous - 1} lines left out …")
        text = "\n".join(rows)
        if len(text) <= budget:
            return text
        if not selected_lines:
            return ""
        # Drops the middle before head and tail.
        middle = sorted(selected_lines)
        del selected_lines[middle[len(middle) // 2]]


def _digest_json(text: str, budget: int) -> str:
    """Outlines a JSON text with its scalars; "" for other text."""
    if len(text) > _MAX_JSON_LENGTH:
        return ""
    try:
        value = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(value, dict | list):
        return ""
    # Without errors the beginning is enough.
    lowercase_text = text.lower()
    max_rows = _MAX_SCALARS if any(t in lowercase_text for t in (*TROUBLE_WORDS, "false", "stderr")) else budget // 4
    rows = list(islice(_outline_json(value, "$", 6), max_rows))
    # The beginning gets half of the budget; errors come next, then the rest.
    order = sorted(range(len(rows)), key=lambda n: (not _is_trouble(rows[n]), n))
    selected_numbers: set[int] = set()
    remaining = budget - 40
    for numbers, least in ((range(len(rows)), remaining // 2), (order, 0)):
        for number in numbers:
            cost = len(rows[number]) + 1
            if number in selected_numbers:
                continue
            if remaining - cost < least:
                break
            selected_numbers.add(number)
            remaining -= cost
    selected_rows = [rows[number] for number in sorted(selected_numbers)]
    return "\n".join([*selected_rows, "… more left out …"] if len(selected_numbers) < len(rows) else selected_rows)


def _is_trouble(row: str) -> bool:
    """Whether a scalar is about an error, by its value or its key."""
    path, _, value = row.partition(": ")
    name = path.rsplit(".", 1)[-1].lower()
    if value in _EMPTY_VALUES or value.startswith(("object, ", "array, ")):
        return value == "false" and name in _SUCCESS_KEYS
    lowercase_value = value[:_MAX_LINE_LENGTH].lower()
    return name in _FAILURE_KEYS or any(t in lowercase_value for t in TROUBLE_WORDS)


def _outline_json(value: Any, location: str, depth: int) -> Iterator[str]:
    """Yields a line `path: value` for each scalar, and the number of entries for each list and object."""
    if isinstance(value, dict):
        yield f"{location}: object, {len(value)} keys"
        entries = ((f"{location}.{k}", v) for k, v in value.items())
    elif isinstance(value, list):
        yield f"{location}: array, {len(value)} items"
        entries = ((f"{location}[{n}]", v) for n, v in enumerate(value))
    else:
        yield f"{location}: {_shorten_line(value) if isinstance(value, str) else msgspec.json.encode(value).decode()}"
        return
    if depth:
        for path, entry in entries:
            yield from _outline_json(entry, path, depth - 1)


def digest_return(text: str, budget_chars: int) -> str:
    """Shortens a sub-agent's answer to its head, its tail, and the entries of its lists.

    The entries usually are its findings. An answer without lists is shortened like any text.
    """
    list_entries = (line for line in text.split("\n") if _FINDING.match(line))
    findings = dict.fromkeys(line.strip()[:_KEYWORD_LENGTH] for line in islice(list_entries, _MAX_FINDINGS))
    return make_digest(text, budget_chars, keywords=findings)


# -- kinds of texts ----------------------------------------------------------------------------------------------------

# A kind needs many matching lines, never one; doubtful text has no kind. Candidate lines come in the order of their
# value. Counts cover all scanned lines; everything else is verbatim.

_MAX_LINES: Final = 20_000
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

_DigestCandidates = tuple[str, Sequence[str]]
"""A heading, and the lines that may follow, most valuable first."""


def detect_kind(lines: Sequence[str]) -> tuple[str, _DigestCandidates] | None:
    """Returns the kind of a text and its candidates; None if it has no kind."""
    scanned = lines[:_MAX_LINES]
    for name, digest in _KINDS:
        candidates = digest(scanned)
        if candidates is not None:
            return name, candidates
    return None


def _digest_diff(lines: Sequence[str]) -> _DigestCandidates | None:
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


def _digest_search(lines: Sequence[str]) -> _DigestCandidates | None:
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


def _digest_listing(lines: Sequence[str]) -> _DigestCandidates | None:
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


def _digest_code(lines: Sequence[str]) -> _DigestCandidates | None:
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


def _digest_prose(lines: Sequence[str]) -> _DigestCandidates | None:
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


_KINDS: Final[tuple[tuple[str, Callable[[Sequence[str]], _DigestCandidates | None]], ...]] = (
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
