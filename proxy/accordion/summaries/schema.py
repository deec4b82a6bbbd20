"""The lines of a model's summary: the sections, the schema of an answer, and the reader of answers.

A line has a section, a text and sources, which are the client's indexes of the messages that support it. It is stored
as text, `Goal: mend the login [0, 3-5]`, and a model may write it so, or as an entry of JSON.

The reader takes what is whole of any answer, because weak models keep to no form: JSON of any nesting, complete or cut
off, in fences or between other text; else lines of text with their citations in any common form. It decides nothing:
the checks (checks.py) drop lines that their messages do not support.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

import msgspec

from accordion.model.budget import CompactionKind

MAX_ANSWER_LENGTH: Final = 100_000
"""Characters. A longer answer is not parsed."""

_MAX_LINES: Final = 200
_MAX_JSON_TEXTS: Final = 50
_MAX_DEPTH: Final = 8
_MAX_INDEX: Final = 10_000_000
_MAX_RANGE: Final = 2_000
"""The number of messages in a range of citations that are read."""
_MAX_CITATIONS_LENGTH: Final = 8_000
"""Characters of the citations of a line that are read."""
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]+")
_CITED_AT_END = re.compile(r"(?:\s*\[\d+(?:\s*[-–,]\s*\d+)*\])+(?=\.?$)")


class SummarySection(msgspec.Struct, frozen=True):
    """A kind of lines: its name in JSON, its label in text, and its treatment.

    Lines with the highest `rank` are dropped first. `is_user_claim`: they are about the user's wishes.
    `is_instruction`: the agent will act on them. `limits`: they repeat the user's instructions, which the block lists
    verbatim.
    """

    name: str
    label: str
    rank: int
    is_user_claim: bool = False
    is_instruction: bool = False
    limits: bool = False


CONVERSATION_SECTIONS: Final = (
    SummarySection("overview", "Overview", 0),
    SummarySection("primary", "Goal", 0, is_user_claim=True),
    SummarySection("secondary", "Also wanted", 1, is_user_claim=True, limits=True),
    SummarySection("completed", "Done", 1),
    SummarySection("partial", "Partly done", 1),
    SummarySection("discoveries", "Found", 2),
    SummarySection("technologies", "Uses", 5),
    SummarySection("configuration", "Configuration", 3),
    SummarySection("issues", "Issue", 3),
    SummarySection("solutions", "Solution", 3),
    SummarySection("artifacts", "Artifact", 4),
    SummarySection("phases", "Phase", 7),
    SummarySection("decisions", "Decision", 2, is_instruction=True),
    SummarySection("shifts", "Topic shift", 6),
    SummarySection("state", "State", 0),
    SummarySection("next_steps", "Next", 1, is_instruction=True),
    SummarySection("important", "Important", 1),
)
GENERATION_SECTIONS: Final = (
    SummarySection("gist", "Gist", 0),
    SummarySection("intent", "Intent", 0, is_user_claim=True),
    SummarySection("constraints", "Constraint", 1, limits=True),
    SummarySection("decisions", "Decision", 1, is_instruction=True),
    SummarySection("open_questions", "Open question", 2),
    SummarySection("next_steps", "Next", 1, is_instruction=True),
    SummarySection("artifacts", "Finding", 3),
)
_UNLABELLED: Final = {"conversation": "discoveries", "generation": "artifacts"}
"""The sections of lines without a label."""


class SummaryLine(msgspec.Struct, frozen=True):
    """A line of a summary. `sources` are sorted and distinct. `is_tool_report`: only tool results support it."""

    section: SummarySection
    text: str
    sources: tuple[int, ...]
    is_tool_report: bool = False

    def __str__(self) -> str:
        by = " (reported by a tool)" if self.is_tool_report else ""
        return f"{self.section.label}{by}: {self.text} {format_citations(self.sources)}"


def sections_for(kind: CompactionKind) -> tuple[SummarySection, ...]:
    """Returns the sections of a kind of summary, in order."""
    return CONVERSATION_SECTIONS if kind == "conversation" else GENERATION_SECTIONS


def answer_schema(kind: CompactionKind) -> dict[str, Any]:
    """Returns the JSON schema of an answer, with only what all providers of structured output accept."""
    fields = {
        "section": {"type": "string", "enum": [section.label for section in sections_for(kind)]},
        "text": {"type": "string"},
        "sources": {"type": "array", "items": {"type": "integer"}},
    }
    return _object_schema({"lines": {"type": "array", "items": _object_schema(fields)}})


def _object_schema(fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


# -- reading an answer -------------------------------------------------------------------------------------------------

_JSON_START = re.compile(r"[{\[]\s*(?=[\"{\[])")
_JSON_ROW = re.compile(r"\s*(?:[{}\"\]]|\[\s*[\"{])")
_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+"?|[{}\[\],]', re.DOTALL)
_CLOSERS: Final = {"{": "}", "[": "]"}
_SOURCE_KEYS: Final = ("sources", "source", "citations", "messages", "message")
_SECTION_KEYS: Final = ("section", "label")
_NOT_LETTERS = re.compile(r"[\W\d_]+")
_NUMBERS: Final = r"#?\d+(?:\s*(?:[-–—,;&]|and|to)+\s*(?:messages?|m|#)?\.?\s*\d+)*"
_NAMED: Final = r"(?:messages?|msgs?\.?|m|sources?:?)\s*"
# Before a bracket with numbers alone stands a space; in `items[0]` it is no citation. Other forms need a word.
_CITATION = re.compile(
    rf"(?:(?<=\s)|^)\[\s*(?:{_NAMED})?{_NUMBERS}\s*\]|[\[(]\s*{_NAMED}{_NUMBERS}\s*[\])]"
    rf"|(?:(?<=\s)\(\s*{_NUMBERS}\s*\)|,?\s*\b(?:see |from |in )?(?:messages?|msgs?)\s+{_NUMBERS})(?=[\s.]*$)",
    re.IGNORECASE,
)
_RANGE = re.compile(r"(\d+)(?:\s*(?:-|–|—|to)\s*(?:messages?|m|#)?\s*(\d+))?", re.IGNORECASE)
_BULLET = re.compile(r"^(?:(?:[-*•+>#]+|\d{1,3}[.)])\s+)+")
_BOLD = re.compile(r"\*\*([^*]+)\*\*")
_LABEL = re.compile(r"([A-Za-z][A-Za-z _]{1,24}?)\s*(?:\([^)]{0,40}\))?\s*[:：]\s*")


def decode_answer(answer: str, kind: CompactionKind) -> list[SummaryLine]:
    """Reads the lines of a model's answer, each with its text on one line.

    Raises ValueError with a message for the model if there is none.
    """
    if len(answer) > MAX_ANSWER_LENGTH:
        raise ValueError(f"the answer is too long: {len(answer):,} characters")
    reader = _AnswerReader(kind)
    lines = list(islice(reader.read_json(answer), _MAX_LINES)) or list(islice(reader.read_text(answer), _MAX_LINES))
    if not lines:
        raise ValueError("the answer contains no line with a text and its sources")
    return lines


class _AnswerReader:
    """Reads the lines of an answer for one kind of summary."""

    def __init__(self, kind: CompactionKind) -> None:
        sections = sections_for(kind)
        self._sections = {_normalize_name(name): each for each in sections for name in (each.name, each.label)}
        self._unlabelled = self._sections[_normalize_name(_UNLABELLED[kind])]

    def read_json(self, answer: str) -> Iterator[SummaryLine]:
        """Yields the lines of all JSON in an answer; of incomplete JSON those that are whole."""
        position = 0
        for _ in range(_MAX_JSON_TEXTS):
            start = _JSON_START.search(answer, position)
            if start is None:
                return
            text, position = _complete_json(answer, start.start())
            try:
                value = json.loads(text, strict=False)
            except (ValueError, RecursionError):
                position = start.end()
                continue
            yield from self._read_value(value, None, _MAX_DEPTH)

    def read_text(self, answer: str) -> Iterator[SummaryLine]:
        """Yields the lines of text that cite messages. A line with a label alone is a heading."""
        heading: SummarySection | None = None
        for row in answer.splitlines():
            if _JSON_ROW.match(row):
                continue
            section, text, sources = self._split_line(row)
            if not sources and section is not None and not text:
                heading = section
            elif sources and text:
                yield SummaryLine(section or heading or self._unlabelled, text, sources)

    def _read_value(self, value: Any, section: SummarySection | None, depth: int) -> Iterator[SummaryLine]:
        if isinstance(value, str):
            own_section, text, sources = self._split_line(value)
            if text and sources:
                yield SummaryLine(own_section or section or self._unlabelled, text, sources)
        elif isinstance(value, list) and depth:
            for each in value:
                yield from self._read_value(each, section, depth - 1)
        elif isinstance(value, dict) and depth:
            if (line := self._read_entry(value, section)) is not None:
                yield line
            else:
                for key, each in value.items():
                    yield from self._read_value(each, self._sections.get(_normalize_name(key), section), depth - 1)

    def _read_entry(self, value: dict[str, Any], section: SummarySection | None) -> SummaryLine | None:
        """Reads an object with a text and sources; None for another object."""
        texts = [each for key, each in value.items() if isinstance(each, str) and key not in _SECTION_KEYS]
        names = (value[key] for key in _SECTION_KEYS if isinstance(value.get(key), str))
        section = next((self._sections.get(_normalize_name(name)) for name in names), None) or section
        cited = next((value[key] for key in _SOURCE_KEYS if key in value), None)
        text = value.get("text")
        if not isinstance(text, str):
            text = max(texts, key=len, default="") if cited is not None else ""
        if not text:
            return None
        own_section, text, sources = self._split_line(text)
        listed = cited if isinstance(cited, list) else [cited]
        indexes = " ".join(str(each) for each in listed if isinstance(each, str) or (type(each) is int and each >= 0))
        sources = _read_indexes(indexes) or sources
        return SummaryLine(section or own_section or self._unlabelled, text, sources)

    def _split_line(self, row: str) -> tuple[SummarySection | None, str, tuple[int, ...]]:
        """Splits a line of text into its section, its text and its sources."""
        row = _BULLET.sub("", clean_text(row), count=1)
        row = _BOLD.sub(r"\1", row, count=1) if row.startswith("**") else row
        sources = _read_indexes(" ".join(_CITATION.findall(row)))
        text = " ".join(_CITATION.sub(" ", row).split()).removesuffix(" .")
        label = _LABEL.match(f"{text}:" if _normalize_name(text) in self._sections else text)
        section = self._sections.get(_normalize_name(label[1])) if label is not None else None
        if label is not None and section is not None:
            text = text[label.end() :].strip()
        return section, text, sources


def _normalize_name(name: str) -> str:
    """Returns the letters of a section's name, without the sign of a plural."""
    return _NOT_LETTERS.sub("", name.lower()).removesuffix("s")


def _read_indexes(text: str) -> tuple[int, ...]:
    """Reads message indexes such as `12`, `m12` and `3-5`."""
    indexes: set[int] = set()
    for first, last in _RANGE.findall(text[:_MAX_CITATIONS_LENGTH]):
        if len(first) < 9 and len(last) < 9:
            start = int(first)
            indexes.update(range(start, min(int(last or first), start + _MAX_RANGE) + 1))
    return tuple(sorted(index for index in indexes if index <= _MAX_INDEX))


def _complete_json(text: str, start: int) -> tuple[str, int]:
    """Returns the JSON text that begins at `start`, and its end.

    Incomplete JSON is cut behind its last whole value, and what is open there is closed.
    """
    open_brackets: list[str] = []
    end, closers = start, ""
    for token in _JSON_TOKEN.finditer(text, start):
        sign = token[0]
        if sign in _CLOSERS:
            open_brackets.append(sign)
            if len(open_brackets) > _MAX_DEPTH:
                break
        elif sign in ("}", "]"):
            open_brackets.pop()
            if not open_brackets:
                return text[start : token.end()], token.end()
            end = token.end()
            closers = "".join(_CLOSERS[each] for each in reversed(open_brackets))
        elif sign == "," and open_brackets[-1] == "[":
            end = token.start()
            closers = "".join(_CLOSERS[each] for each in reversed(open_brackets))
    return text[start:end] + closers, len(text)


# -- lines as text ----------------------------------------------------------------------------------------------------


def render_lines(lines: Iterable[SummaryLine]) -> str:
    """Renders lines as text, each with its citations at the end."""
    return "\n".join(map(str, lines))


def format_citations(sources: Sequence[int]) -> str:
    """Formats citations: `[12]`, `[3, 12-14]`, with runs of three or more as ranges."""
    runs: list[list[int]] = []
    for index in sources:
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    texts = (f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)
    return f"[{', '.join(texts)}]"


def find_citations(text: str) -> frozenset[int]:
    """Returns the indexes of the messages that a rendered summary cites."""
    indexes: set[int] = set()
    for line in text.splitlines():
        position = line.rfind("[")
        content = line[position + 1 : -1] if position >= 0 and line.endswith("]") else ""
        for piece in content.split(",") if content else ():
            first, _, last = piece.strip().partition("-")
            if first.isdecimal() and (not last or last.isdecimal()):
                indexes.update(range(int(first), min(int(last or first), int(first) + 100_000) + 1))
    return frozenset(indexes)


def strip_citations(text: str) -> str:
    """Removes the citations from a rendered summary."""
    return "\n".join(_CITED_AT_END.sub("", line) for line in text.splitlines())


def clean_text(text: str) -> str:
    """Puts a text on one line, without control characters."""
    return " ".join(_CONTROL.sub(" ", text).encode("utf-8", "replace").decode().split())
