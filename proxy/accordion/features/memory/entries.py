"""Memories before they are stored: limits, cleaning, ids, and the lines of an export.

Every memory that is written goes through `finish_memory`, whoever writes it.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from accordion.features.memory.memories import Memory
from accordion.model.errors import BadRequest, RequestError

CONTENT_MOST, CONTEXT_MOST, NAME_MOST, NAMES_MOST = 20_000, 4_000, 200, 50
"""Characters of a content (a session memory may have ten times as many); characters of a context; characters of a
topic, tag, entity, author or project; number of topics, tags or entities of one memory."""
_SESSION_TIMES = 10

Line = Memory | tuple[str, bytes]
"""One line of an export. The pair is a marker's name and value."""


class _Marker(msgspec.Struct):
    name: str
    value: bytes


_KINDS: Final[dict[str, type[Memory | _Marker]]] = {
    "memory": Memory,
    "marker": _Marker,
}


class ConcurrentWrite(RequestError):
    """Another caller wrote the same record at the same time. Nothing was written."""

    status = 409
    code = "conflict"


_SPACES = re.compile(r"\s+")
_ID_DIGITS: Final = 20


def make_memory_id(*pieces: str) -> str:
    """Returns an id derived from these pieces: equal pieces give equal ids."""
    digest = hashlib.sha256()
    for piece in pieces:
        data = piece.encode("utf-8", "replace")
        digest.update(len(data).to_bytes(8, "big") + data)
    return "mem-" + digest.hexdigest()[:_ID_DIGITS]


def finish_memory(memory: Memory, *, now: float) -> Memory:
    """Returns a memory ready to be written: cleaned texts, normalised names, revision, times and an id.

    The id is derived from the content and its origin, so the same memory written twice is one record. Raises
    BadRequest (`memory_empty`, `memory_too_long`, `memory_bad_name`, `memory_bad_range`).
    """
    content = clean_text(memory.content).strip()
    if not content:
        raise BadRequest("A memory needs `content`: the text to remember.", code="memory_empty")
    limit = CONTENT_MOST * (_SESSION_TIMES if memory.type == "session" else 1)
    if len(content) > limit:
        raise BadRequest(
            f"A memory has at most {limit:,} characters; this one has {len(content):,}. Split it.",
            code="memory_too_long",
        )
    if (memory.first < 0) != (memory.last < 0) or memory.first > memory.last:
        raise BadRequest(
            "The messages of a memory must be a range [first, last], counted from 0.", code="memory_bad_range"
        )
    clean_memory = replace(
        memory,
        content=content,
        context=clean_text(memory.context)[-CONTEXT_MOST:],
        topics=clean_names(memory.topics, lower=True),
        macro_topics=clean_names(memory.macro_topics, lower=True),
        entities=clean_names(memory.entities),
        tags=clean_names(memory.tags, lower=True),
        author=clean_name(memory.author),
        project=clean_name(memory.project),
        description=clean_text(memory.description)[:CONTEXT_MOST],
        created=memory.created or now,
        updated=now,
        revision=revision(content),
    )
    if clean_memory.id:
        return clean_memory
    origin = (
        clean_memory.type,
        clean_memory.project,
        clean_memory.conversation,
        f"{clean_memory.first}-{clean_memory.last}",
        clean_memory.author,
        *clean_memory.topics,
    )
    return replace(clean_memory, id=make_memory_id(*origin, content))


def revision(content: str) -> str:
    """Returns a digest of a content. It changes when the content changes."""
    return hashlib.sha256(content.encode("utf-8", "replace")).hexdigest()[:16]


def clean_names(values: Iterable[str], *, lower: bool = False) -> tuple[str, ...]:
    """Returns names without duplicates, in their first spelling or in lower case. Raises BadRequest."""
    by_key: dict[str, str] = {}
    for value in values:
        name = clean_name(value)
        if name:
            by_key.setdefault(name.casefold(), name.lower() if lower else name)
    if len(by_key) > NAMES_MOST:
        raise BadRequest(
            f"A memory has at most {NAMES_MOST} topics, tags or entities; this one has {len(by_key)}.",
            code="memory_bad_name",
        )
    return tuple(by_key.values())


def clean_name(value: str) -> str:
    """Returns a name with single spaces. Raises BadRequest if it is too long."""
    name = _SPACES.sub(" ", clean_text(value)).strip()
    if len(name) > NAME_MOST:
        raise BadRequest(f"A name has at most {NAME_MOST} characters: {name[:40]}…", code="memory_bad_name")
    return name


def clean_text(text: str) -> str:
    """Returns a text that every store accepts: without lone surrogates and NUL."""
    return text.encode("utf-8", "replace").decode("utf-8").replace("\x00", "")


def export_line(entry: Line) -> bytes:
    """Returns a line of an export, without its line end: `{"memory": …}` or
    `{"marker": {"name": …, "value": base64}}`."""
    if isinstance(entry, tuple):
        return msgspec.json.encode({"marker": {"name": entry[0], "value": base64.b64encode(entry[1]).decode("ascii")}})
    return msgspec.json.encode({"memory": entry})


def parse_line(text: bytes) -> Line:
    """Parses a line of an export. Raises BadRequest (`bad_line`)."""
    try:
        document: dict[str, Any] = msgspec.json.decode(text, type=dict[str, Any])
        kind, value = next(iter(document.items()), ("", None))
        if kind not in _KINDS or len(document) > 1:
            raise msgspec.ValidationError(f"Expected an object with one key, of {', '.join(_KINDS)}")
        parsed = msgspec.convert(value, _KINDS[kind])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        reason = "It is not UTF-8" if isinstance(error, UnicodeDecodeError) else error
        raise BadRequest(f"This is not a line of a memory export: {reason}.", code="bad_line") from error
    return (parsed.name, parsed.value) if isinstance(parsed, _Marker) else parsed


def format_time(at: float) -> str:
    """Formats a time in UTC, as in ISO 8601."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%SZ}"


def preview(text: str, max_length: int = 50) -> str:
    """Returns the beginning of a text on one line."""
    line = _SPACES.sub(" ", text[: max_length * 4]).strip()
    return line if len(line) <= max_length and len(text) <= max_length * 4 else line[: max_length - 1].rstrip() + "…"
