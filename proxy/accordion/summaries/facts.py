"""What one message holds that may be needed again: pure extraction, made once for each message and kept.

Nothing is reworded here: every fact is a piece of the message's own text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

import msgspec

from accordion.core.conversation import Media, Message, Opaque, Text, ToolCall, ToolResult
from accordion.core.values import dataclass
from accordion.summaries.facts_words import NO_WORDS, Judge, Words, clipped
from accordion.summaries.instructions import Instruction, instructions_of

Field = tuple[str, str]
"""The key and the value of a scalar in JSON; key "" where there is none."""

_JSON_MOST: Final = 1_000_000
_FIELDS: Final = 600
_DEPTH: Final = 12
_GUTTER = re.compile(
    r"\d+\s*[→|:\t-]|[^\s:]+[:-]\d+[:-](?!\d+:)"
)  # source code as readers and grep show it, not a message
_NUMBERED = re.compile(r"(?:[^\n]{0,300}\n){0,4}? {0,8}\d{1,7}([→|:\t])")
_TAG = re.compile(r"</?[\w:-]{1,40}>")
TROUBLE: Final = (
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


@dataclass(frozen=True, slots=True)
class CallFacts:
    """One tool call: its scalar arguments in order, and the words within them."""

    call_id: str
    name: str
    fields: tuple[Field, ...]
    words: Words


@dataclass(frozen=True, slots=True)
class ResultFacts:
    """One tool result. `trouble` are lines that tell of an error, `outline` the numbered lines of
    source code that open something, `fields` the scalars of a JSON result."""

    call_id: str
    error: bool
    size: int
    lines: int
    first: str
    last: str
    trouble: tuple[str, ...]
    outline: tuple[str, ...]
    fields: tuple[Field, ...]
    words: Words


@dataclass(frozen=True, slots=True)
class Facts:
    """One message: what its author said, the calls it makes, the results it brings, and a user's instructions."""

    role: str
    said: str
    words: Words
    calls: tuple[CallFacts, ...]
    results: tuple[ResultFacts, ...]
    media: tuple[str, ...]
    instructions: tuple[Instruction, ...] = ()

    @property
    def size(self) -> int:
        """About how many bytes this holds; `said` is shared with the message."""
        inner = sum(c.words.size + 150 * len(c.fields) for c in self.calls)
        inner += sum(r.words.size + 400 + 150 * (len(r.fields) + len(r.trouble) + len(r.outline)) for r in self.results)
        inner += sum(instruction.size for instruction in self.instructions)
        return 400 + self.words.size + inner


def facts_of(message: Message, judge: Judge) -> Facts:
    """Extracts the facts of one message. Never raises on odd content; reasoning is left out."""
    said = said_in(message)
    calls = tuple(_call(p, judge) for p in message.parts if isinstance(p, ToolCall))
    results = tuple(_result(p, judge) for p in message.parts if isinstance(p, ToolResult))
    media = tuple(_media(p) for p in message.parts if isinstance(p, Media | Opaque))
    words = judge.words(said, numbers=True) if said else NO_WORDS
    instructions = instructions_of(said) if said and message.role == "user" else ()
    return Facts(message.role, said, words, calls, results, media, instructions)


def said_in(message: Message) -> str:
    """What a message's author wrote: its texts, joined by line breaks."""
    return "\n".join(part.text for part in message.parts if isinstance(part, Text))


def text_of(result: ToolResult) -> str:
    """The readable text of a tool result."""
    return "\n".join(p.text for p in result.parts if isinstance(p, Text))


def _media(part: Media | Opaque) -> str:
    return part.kind if isinstance(part, Opaque) else part.media_type or part.kind


def _call(part: ToolCall, judge: Judge) -> CallFacts:
    fields = _decoded(part.arguments)
    if fields is None:
        fields = (("", part.arguments),) if part.arguments else ()
    return CallFacts(part.call_id, part.name, fields, judge.words("\n".join(v for _, v in fields), numbers=True))


def _result(part: ToolResult, judge: Judge) -> ResultFacts:
    text = text_of(part)
    fields = _decoded(text, short=True) if text[:1] in "{[" else ()
    seen = clipped(text)
    return ResultFacts(
        part.call_id,
        part.error,
        len(text),
        text.count("\n") + 1 if text else 0,
        _telling(iter(seen[:2000].split("\n"))),
        _telling(reversed(seen[-2000:].split("\n"))),
        () if fields else tuple(dict.fromkeys(trouble(seen))),
        () if fields else outline(seen),
        fields or (),
        judge.words(seen),
    )


def _telling(candidates: Iterator[str]) -> str:
    """The first line that says something: not empty, not a lone tag, not a rule of signs."""
    for line in islice(map(str.strip, candidates), 8):
        if 2 < len(line) <= 300 and any(map(str.isalnum, line)) and not _TAG.fullmatch(line):
            return line
    return ""


def _line(text: str, start: int, most: int = 300) -> str:
    end = text.find("\n", start)
    line = text[start:] if end < 0 else text[start:end]
    return line.strip() if len(line) <= most else ""


def trouble(text: str, most: int = 6) -> Iterator[str]:
    """Lines that tell of an error, the last ones first come; at most `most`, none longer than 300 characters."""
    low = text.lower()
    if len(low) != len(text):
        return
    hits: set[int] = set()
    for word in TROUBLE:
        at = len(low)
        for _ in range(8):
            at = low.rfind(word, 0, at)
            if at < 0:
                break
            at = low.rfind("\n", 0, at) + 1
            hits.add(at)
            if not at:
                break
    for start in sorted(hits, reverse=True)[:most]:
        line = _line(text, start)
        if line and not _GUTTER.match(line):
            yield line


def outline(text: str, most: int = 80) -> tuple[str, ...]:
    """Of source code shown with line numbers, the lines that stand at the margin or open a block after a gap."""
    shown = _NUMBERED.match(text)
    if shown is None:
        return ()
    sign, out, gap = shown.group(1), [], False
    for line in text.split("\n"):
        number, found, code = line.partition(sign)
        if not found or len(number) > 12:
            continue
        if (gap or code[:1].isalpha()) and 8 <= len(code) <= 160 and number.strip().isdigit():
            out.append(line.strip())
            if len(out) == most:
                break
        gap = not code or code.isspace()
    return tuple(out)


def _decoded(text: str, short: bool = False) -> tuple[Field, ...] | None:
    """The scalars of a JSON text; None where it is none. `short` leaves out long and many-line strings."""
    if len(text) > _JSON_MOST:
        return None
    try:
        value = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict | list):
        return None if short else (("", text),)
    out: list[Field] = []
    for field in _scalars(value, "", _DEPTH):
        if short and (len(field[1]) > 200 or "\n" in field[1]):
            continue
        out.append(field)
        if len(out) >= _FIELDS:
            break
    return tuple(out)


def _scalars(value: Any, key: str, depth: int) -> Iterable[Field]:
    if isinstance(value, str):
        if value:
            yield key, value
    elif isinstance(value, bool) or value is None:
        return
    elif isinstance(value, int | float):
        yield key, str(value)
    elif depth and isinstance(value, dict):
        for k, v in value.items():
            yield from _scalars(v, k, depth - 1)
    elif depth and isinstance(value, list):
        for v in value:
            yield from _scalars(v, key, depth - 1)
