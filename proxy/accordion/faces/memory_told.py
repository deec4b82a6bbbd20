"""What the calls of the memories answer: the fields of every answer, the same for REST, MCP and the command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from accordion.core.memories import Memory
from accordion.memory.answers import Done
from accordion.memory.core_answers import preview as session_preview
from accordion.memory.entries import preview, time_of
from accordion.memory.search import Result


class Told(msgspec.Struct, frozen=True, omit_defaults=True):
    """An answer. What is empty in a memory is left out: models read these."""


class Range(Told, frozen=True):
    """Messages of a recorded conversation, first and last inclusive, counted from 0 with the system prompt."""

    conversation_id: str
    start_index: int
    end_index: int


class Link(Told, frozen=True):
    """A memory that a summary was written of, and its revision then."""

    id: str
    revision: str


class Preview(Told, frozen=True, kw_only=True):
    """A memory in a list: its beginning only."""

    id: str
    type: str
    preview: str
    source_type: str
    created_at: str
    topics: list[str] = []
    tags: list[str] = []
    project: str = ""


class Scored(Preview, frozen=True, kw_only=True):
    """A memory that a search found. `warning` says why a summary may be out of date; `scores` how it came to stand
    where it does, where that was asked for."""

    score: float
    warning: str = ""
    scores: dict[str, float] | None = None


class Whole(Told, frozen=True, kw_only=True):
    """A memory in full. `source` are the messages that it was made of, `sources` the memories that a summary was
    written of, `counted` how many its topic had then, `former_topic` what an archived summary was the summary of.
    `originals` are the messages of `source` as the client sent them, null for one that is not kept any more."""

    id: str
    type: str
    content: str
    source_type: str
    revision: str
    created_at: str
    updated_at: str
    topics: list[str] = []
    macro_topics: list[str] = []
    entities: list[str] = []
    tags: list[str] = []
    project: str = ""
    author: str = ""
    description: str = ""
    source: Range | None = None
    sources: list[Link] = []
    counted: int = 0
    former_topic: str = ""
    warning: str = ""
    originals: list[msgspec.Raw] | None = None


class Added(Told, frozen=True):
    """A memory was written. `is_new` is false where the same was remembered already; what it is about was added to."""

    id: str
    is_new: bool
    revision: str


class Results(Told, frozen=True):
    """What a search found, the best first, of how many candidates, and the proof of it."""

    results: list[Scored]
    candidates: int
    proof: str
    compactions: list[Done] | None = None


class Reading(Told, frozen=True):
    """Memories in full, the ids that lead nowhere, and the proof that they were read."""

    memories: list[Whole]
    missing: list[str]
    proof: str


class Page(Told, frozen=True):
    """Memories, newest first, and how many there are in all. `next` is where the next page begins."""

    memories: list[Preview]
    total: int
    next: str | None


class Deleted(Told, frozen=True):
    """What was deleted, and the ids that led nowhere."""

    deleted: list[str]
    missing: list[str]


class Summary(Told, frozen=True):
    """A topic's summary was written. `archived` is the id of the one before it; empty where there was none."""

    id: str
    topic: str
    tokens: int
    memories: int
    sources: int
    archived: str


class Drafted(Told, frozen=True):
    """A draft of a summary. `summary` is the id of the present one, to be read and extended; empty for none."""

    topic: str
    text: str
    tokens: int
    memories: int
    sources: list[str]
    summary: str


class Lent(Told, frozen=True):
    """A part of an artifact. `shown` says what of how much it is, `next` the offset at which the next part begins."""

    id: str
    what: str
    shown: str
    text: str
    next: int | None


class Held(Told, frozen=True):
    """How much there is of a tenant."""

    memories: int
    entities: int
    relations: int


class Erased(Told, frozen=True):
    """What there was before and what there is after; `verified` says that nothing is left."""

    before: Held
    after: Held
    verified: bool


class Brought(Told, frozen=True):
    """What an import wrote (of relations: what it was given), and how many memories it left as they are because their
    ids are taken."""

    memories: int
    entities: int
    relations: int
    markers: int
    kept: int


def told_range(memory: Memory) -> Range | None:
    """Where a memory comes from."""
    if not memory.conversation or memory.first < 0:
        return None
    return Range(conversation_id=memory.conversation, start_index=memory.first, end_index=memory.last)


def told_preview(memory: Memory) -> Preview:
    """A memory in a list."""
    return Preview(**_short(memory))


def told_result(result: Result) -> Scored:
    """A memory that a search found."""
    scores = msgspec.to_builtins(result.scores) if result.scores is not None else None
    return Scored(**_short(result.memory), score=round(result.score, 4), warning=result.warning, scores=scores)


def told_whole(memory: Memory, warning: str, originals: Sequence[bytes] | None) -> Whole:
    """A memory in full."""
    return Whole(
        id=memory.id,
        type=memory.type,
        content=memory.content,
        topics=list(memory.topics),
        macro_topics=list(memory.macro_topics),
        entities=list(memory.entities),
        tags=list(memory.tags),
        project=memory.project,
        author=memory.author,
        description=memory.description,
        source_type=memory.source,
        source=told_range(memory),
        sources=[Link(id=source, revision=revision) for source, revision in memory.sources],
        counted=memory.counted,
        former_topic=memory.former_topic,
        revision=memory.revision,
        created_at=time_of(memory.created),
        updated_at=time_of(memory.updated),
        warning=warning,
        originals=None if originals is None else [msgspec.Raw(wire) for wire in originals],
    )


def _short(memory: Memory) -> dict[str, Any]:
    return {
        "id": memory.id,
        "type": memory.type,
        "preview": session_preview(memory.content) if memory.type == "session" else preview(memory.content),
        "topics": list(memory.topics),
        "tags": list(memory.tags),
        "project": memory.project,
        "source_type": memory.source,
        "created_at": time_of(memory.created),
    }
