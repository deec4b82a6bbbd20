"""Extracts the facts of one message that may be needed again. Each fact is a verbatim piece of the message."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

import msgspec

from accordion.model.conversation import Media, Message, Opaque, Text, ToolCall, ToolResult
from accordion.summaries.fact_words import NO_EXTRACTED_WORDS, ExtractedWords, WordClassifier, clip_text
from accordion.summaries.instructions import Instruction, find_instructions, find_promises

JsonField = tuple[str, str]
"""The key and the value of a scalar in JSON; key "" if there is none."""

_MAX_JSON_LENGTH: Final = 1_000_000
_MAX_FIELDS: Final = 600
_MAX_DEPTH: Final = 12
# A line of source code as file readers and grep print it, not an error message.
_GUTTER = re.compile(r"\d+\s*[→|:\t-]|[^\s:]+[:-]\d+[:-](?!\d+:)")
_NUMBERED = re.compile(r"(?:[^\n]{0,300}\n){0,4}? {0,8}\d{1,7}([→|:\t])")
_TAG = re.compile(r"</?[\w:-]{1,40}>")
TROUBLE_WORDS: Final = (
    "error",
    "fail",
    "exception",
    "traceback",
    "panic",
    "fatal",
    "not found",
    "no such",
    "denied",
    "cannot",
    "invalid",
)


class CallFacts(msgspec.Struct, frozen=True):
    """A tool call: its scalar arguments in order, and their words."""

    call_id: str
    name: str
    fields: tuple[JsonField, ...]
    words: ExtractedWords


class ResultFacts(msgspec.Struct, frozen=True):
    """A tool result. `trouble` are lines about errors, `outline` the numbered lines of source code that begin a block,
    `fields` the scalars of a JSON result."""

    call_id: str
    error: bool
    size: int
    lines: int
    first: str
    last: str
    trouble: tuple[str, ...]
    outline: tuple[str, ...]
    fields: tuple[JsonField, ...]
    words: ExtractedWords


class MessageFacts(msgspec.Struct, frozen=True):
    """A message: its author's text, its calls, its results, and a user's instructions or an assistant's promises."""

    role: str
    text: str
    words: ExtractedWords
    calls: tuple[CallFacts, ...]
    results: tuple[ResultFacts, ...]
    media: tuple[str, ...]
    instructions: tuple[Instruction, ...] = ()

    @property
    def size(self) -> int:
        """The approximate size in bytes, without `text`, which is shared with the message."""
        content_size = sum(c.words.size + 150 * len(c.fields) for c in self.calls)
        content_size += sum(
            r.words.size + 400 + 150 * (len(r.fields) + len(r.trouble) + len(r.outline)) for r in self.results
        )
        content_size += sum(instruction.size for instruction in self.instructions)
        return 400 + self.words.size + content_size


def extract_facts(message: Message, classifier: WordClassifier) -> MessageFacts:
    """Extracts the facts of a message, without reasoning. Never raises on odd content."""
    text = author_text(message)
    calls = tuple(_extract_call(p, classifier) for p in message.parts if isinstance(p, ToolCall))
    results = tuple(_extract_result(p, classifier) for p in message.parts if isinstance(p, ToolResult))
    media = tuple(_media_label(p) for p in message.parts if isinstance(p, Media | Opaque))
    words = classifier.find_words(text, numbers=True) if text else NO_EXTRACTED_WORDS
    return MessageFacts(message.role, text, words, calls, results, media, _find_stated(message, text))


def _find_stated(message: Message, text: str) -> tuple[Instruction, ...]:
    """Finds a user's instructions, or an assistant's promises, in the text of a message."""
    if message.role == "user":
        return find_instructions(text)
    # Text before a call announces that call, so it is no promise.
    if message.role == "assistant" and not any(isinstance(part, ToolCall) for part in message.parts):
        return find_promises(text)
    return ()


def author_text(message: Message) -> str:
    """Returns the author's text: the text parts, joined by line breaks."""
    return "\n".join(part.text for part in message.parts if isinstance(part, Text))


def result_text(result: ToolResult) -> str:
    """Returns the readable text of a tool result."""
    return "\n".join(p.text for p in result.parts if isinstance(p, Text))


def _media_label(part: Media | Opaque) -> str:
    return part.kind if isinstance(part, Opaque) else part.media_type or part.kind


def _extract_call(part: ToolCall, classifier: WordClassifier) -> CallFacts:
    fields = _decode_scalars(part.arguments)
    if fields is None:
        fields = (("", part.arguments),) if part.arguments else ()
    return CallFacts(
        part.call_id, part.name, fields, classifier.find_words("\n".join(v for _, v in fields), numbers=True)
    )


def _extract_result(part: ToolResult, classifier: WordClassifier) -> ResultFacts:
    text = result_text(part)
    fields = _decode_scalars(text, only_short=True) if text[:1] in "{[" else ()
    scanned_text = clip_text(text)
    return ResultFacts(
        part.call_id,
        part.error,
        len(text),
        text.count("\n") + 1 if text else 0,
        _first_meaningful_line(iter(scanned_text[:2000].split("\n"))),
        _first_meaningful_line(reversed(scanned_text[-2000:].split("\n"))),
        () if fields else tuple(dict.fromkeys(find_trouble(scanned_text))),
        () if fields else find_outline(scanned_text),
        fields or (),
        classifier.find_words(scanned_text),
    )


def _first_meaningful_line(candidates: Iterator[str]) -> str:
    """Returns the first line with content: not empty, no lone tag, no ruler."""
    for line in islice(map(str.strip, candidates), 8):
        if 2 < len(line) <= 300 and any(map(str.isalnum, line)) and not _TAG.fullmatch(line):
            return line
    return ""


def _line_at(text: str, start: int, max_length: int = 300) -> str:
    end = text.find("\n", start)
    line = text[start:] if end < 0 else text[start:end]
    return line.strip() if len(line) <= max_length else ""


def find_trouble(text: str, max_lines: int = 6) -> Iterator[str]:
    """Yields up to `max_lines` lines about errors, last ones first, none longer than 300 characters."""
    lowercase_text = text.lower()
    if len(lowercase_text) != len(text):
        return
    hits: set[int] = set()
    for word in TROUBLE_WORDS:
        position = len(lowercase_text)
        for _ in range(8):
            position = lowercase_text.rfind(word, 0, position)
            if position < 0:
                break
            position = lowercase_text.rfind("\n", 0, position) + 1
            hits.add(position)
            if not position:
                break
    for start in sorted(hits, reverse=True)[:max_lines]:
        line = _line_at(text, start)
        if line and not _GUTTER.match(line):
            yield line


def find_outline(text: str, max_lines: int = 80) -> tuple[str, ...]:
    """Finds the unindented lines, and those after a gap, in source code with line numbers."""
    numbered = _NUMBERED.match(text)
    if numbered is None:
        return ()
    sign, rows, has_gap = numbered.group(1), [], False
    for line in text.split("\n"):
        number, separator, code = line.partition(sign)
        if not separator or len(number) > 12:
            continue
        if (has_gap or code[:1].isalpha()) and 8 <= len(code) <= 160 and number.strip().isdigit():
            rows.append(line.strip())
            if len(rows) == max_lines:
                break
        has_gap = not code or code.isspace()
    return tuple(rows)


def _decode_scalars(text: str, only_short: bool = False) -> tuple[JsonField, ...] | None:
    """Lists the scalars of a JSON text; None for other text. `only_short` leaves out long and multi-line strings."""
    if len(text) > _MAX_JSON_LENGTH:
        return None
    try:
        value = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict | list):
        return None if only_short else (("", text),)
    scalars: list[JsonField] = []
    for field in _list_scalars(value, "", _MAX_DEPTH):
        if only_short and (len(field[1]) > 200 or "\n" in field[1]):
            continue
        scalars.append(field)
        if len(scalars) >= _MAX_FIELDS:
            break
    return tuple(scalars)


def _list_scalars(value: Any, key: str, depth: int) -> Iterable[JsonField]:
    if isinstance(value, str):
        if value:
            yield key, value
    elif isinstance(value, bool) or value is None:
        return
    elif isinstance(value, int | float):
        yield key, str(value)
    elif depth and isinstance(value, dict):
        for k, v in value.items():
            yield from _list_scalars(v, k, depth - 1)
    elif depth and isinstance(value, list):
        for v in value:
            yield from _list_scalars(v, key, depth - 1)
