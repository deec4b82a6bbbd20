"""Making memories: what they may be, and their lines in an export."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from accordion.core.errors import BadRequest, RequestError
from accordion.core.memories import Entity, Memory, MemoryType, Relation
from accordion.core.values import replace
from accordion.memory.naming import memory_id

GRAIN: Final[tuple[MemoryType, ...]] = ("fact", "decision", "preference", "solution", "question")
"""The types of single memories: what a summary is written of."""
EVERY: Final[tuple[MemoryType, ...]] = (*GRAIN, "summary", "summary_archived", "session")

CONTENT_MOST, CONTEXT_MOST, NAME_MOST, NAMES_MOST = 20_000, 4_000, 200, 50
"""Characters of a content (a session memory may have ten times as many), of a context, of a topic, tag, entity, author
or project; and how many topics, tags or entities one memory may have."""
_SESSION_TIMES = 10

Line = Memory | Entity | Relation | tuple[str, bytes]
"""What an export has in a line; the pair is a marker with its value."""


class _Marker(msgspec.Struct):
    name: str
    value: bytes


_KINDS: Final[dict[str, type[Memory | Entity | Relation | _Marker]]] = {
    "memory": Memory,
    "entity": Entity,
    "relation": Relation,
    "marker": _Marker,
}


class Overtaken(RequestError):
    """Somebody else wrote the same in the meantime. Nothing was written."""

    status = 409
    code = "conflict"


_SPACES = re.compile(r"\s+")


def finished(memory: Memory, *, now: float) -> Memory:
    """A memory as it is written: texts cleaned, names normalised, with its revision, its times and an id.

    The id is made of what the memory says and where it comes from: the same memory made twice is one. Raises
    BadRequest (`memory_empty`, `memory_too_long`, `memory_bad_name`, `memory_bad_range`).
    """
    content = clean(memory.content).strip()
    if not content:
        raise BadRequest("A memory needs `content`: the text to remember.", code="memory_empty")
    most = CONTENT_MOST * (_SESSION_TIMES if memory.type == "session" else 1)
    if len(content) > most:
        raise BadRequest(
            f"A memory has at most {most:,} characters; this one has {len(content):,}. Split it.",
            code="memory_too_long",
        )
    if (memory.first < 0) != (memory.last < 0) or memory.first > memory.last:
        raise BadRequest(
            "The messages of a memory must be a range [first, last], counted from 0.", code="memory_bad_range"
        )
    made = replace(
        memory,
        content=content,
        context=clean(memory.context)[-CONTEXT_MOST:],
        topics=names(memory.topics, lower=True),
        macro_topics=names(memory.macro_topics, lower=True),
        entities=names(memory.entities),
        tags=names(memory.tags, lower=True),
        author=name(memory.author),
        project=name(memory.project),
        description=clean(memory.description)[:CONTEXT_MOST],
        created=memory.created or now,
        updated=now,
        revision=revision(content),
    )
    if made.id:
        return made
    told = (made.type, made.project, made.conversation, f"{made.first}-{made.last}", made.author, *made.topics)
    return replace(made, id=memory_id(*told, content))


def revision(content: str) -> str:
    """A digest of a content: it changes when the content does."""
    return hashlib.sha256(content.encode("utf-8", "replace")).hexdigest()[:16]


def names(values: Iterable[str], *, lower: bool = False) -> tuple[str, ...]:
    """Topics, tags or entities, each once in its first spelling, or in lower case. Raises BadRequest."""
    found: dict[str, str] = {}
    for value in values:
        one = name(value)
        if one:
            found.setdefault(one.casefold(), one.lower() if lower else one)
    if len(found) > NAMES_MOST:
        raise BadRequest(
            f"A memory has at most {NAMES_MOST} topics, tags or entities; this one has {len(found)}.",
            code="memory_bad_name",
        )
    return tuple(found.values())


def name(value: str) -> str:
    """One name: cleaned, its white space made single. Raises BadRequest for one that is too long."""
    one = _SPACES.sub(" ", clean(value)).strip()
    if len(one) > NAME_MOST:
        raise BadRequest(f"A name has at most {NAME_MOST} characters: {one[:40]}…", code="memory_bad_name")
    return one


def clean(text: str) -> str:
    """A text that every store can keep: without lone surrogates and NUL."""
    return text.encode("utf-8", "replace").decode("utf-8").replace("\x00", "")


def line(entry: Line) -> bytes:
    """A line of an export, without its end: `{"memory": …}`, `{"entity": …}`, `{"relation": …}` or
    `{"marker": {"name": …, "value": base64}}`."""
    if isinstance(entry, tuple):
        return msgspec.json.encode({"marker": {"name": entry[0], "value": base64.b64encode(entry[1]).decode("ascii")}})
    return msgspec.json.encode({type(entry).__name__.lower(): entry})


def parsed(text: bytes) -> Line:
    """What a line of an export holds. Raises BadRequest (`bad_line`)."""
    try:
        document: dict[str, Any] = msgspec.json.decode(text, type=dict[str, Any])
        kind, value = next(iter(document.items()), ("", None))
        if kind not in _KINDS or len(document) > 1:
            raise msgspec.ValidationError(f"Expected an object with one key, of {', '.join(_KINDS)}")
        found = msgspec.convert(value, _KINDS[kind])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        why = "It is not UTF-8" if isinstance(error, UnicodeDecodeError) else error
        raise BadRequest(f"This is not a line of a memory export: {why}.", code="bad_line") from error
    return (found.name, found.value) if isinstance(found, _Marker) else found


def time_of(at: float) -> str:
    """A time: UTC, as in ISO 8601."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%SZ}"


def preview(text: str, most: int = 50) -> str:
    """The beginning of a text, in one line."""
    flat = _SPACES.sub(" ", text[: most * 4]).strip()
    return flat if len(flat) <= most and len(text) <= most * 4 else flat[: most - 1].rstrip() + "…"
