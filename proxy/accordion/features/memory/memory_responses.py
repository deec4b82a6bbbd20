"""The response types of the memory operations, for REST, MCP and the command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from accordion.features.memory.entries import format_time, preview
from accordion.features.memory.extraction.memory_extractor import CompletedRange
from accordion.features.memory.memories import Memory
from accordion.features.memory.search.memory_search import SearchResult
from accordion.features.memory.session.session_memory import session_preview


class MemoryResponse(msgspec.Struct, frozen=True, omit_defaults=True):
    """A response. Empty fields are left out, since models read it."""


class MessageIndexes(MemoryResponse, frozen=True):
    """Messages of a recorded conversation, first and last inclusive, counted from 0 with the system prompt."""

    conversation_id: str
    start_index: int
    end_index: int


class SummarySource(MemoryResponse, frozen=True):
    """A memory that a summary was written of, and its revision then."""

    id: str
    revision: str


class MemoryPreview(MemoryResponse, frozen=True, kw_only=True):
    """A memory in a list, with the beginning of its content."""

    id: str
    type: str
    preview: str
    source_type: str
    created_at: str
    topics: list[str] = []
    tags: list[str] = []
    project: str = ""
    status: str = "active"


class ScoredMemory(MemoryPreview, frozen=True, kw_only=True):
    """A search result. `warning` says why a summary may be out of date; `scores` explains its rank on request."""

    score: float
    warning: str = ""
    scores: dict[str, float] | None = None


class FullMemory(MemoryResponse, frozen=True, kw_only=True):
    """A memory in full. `source` are the messages that it was made of, `sources` the memories of a summary, `counted`
    the number of memories that its topic had then, `former_topic` the topic of an archived summary. `originals` are the
    messages of `source` as the client sent them, null for an expired one."""

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
    source: MessageIndexes | None = None
    sources: list[SummarySource] = []
    counted: int = 0
    former_topic: str = ""
    status: str = "active"
    warning: str = ""
    originals: list[msgspec.Raw] | None = None


class AddResponse(MemoryResponse, frozen=True):
    """A written memory. `is_new` is false if the same content existed; its topics and names were merged then."""

    id: str
    is_new: bool
    revision: str


class SearchMemoriesResponse(MemoryResponse, frozen=True):
    """Search results, best first, and the number of candidates."""

    results: list[ScoredMemory]
    candidates: int
    compactions: list[CompletedRange] | None = None


class ReadMemoriesResponse(MemoryResponse, frozen=True):
    """Memories in full, and unknown ids."""

    memories: list[FullMemory]
    missing: list[str]


class ListMemoriesResponse(MemoryResponse, frozen=True):
    """Memories, newest first, and their total number. `next` is the cursor of the next page."""

    memories: list[MemoryPreview]
    total: int
    next: str | None


class DeleteResponse(MemoryResponse, frozen=True):
    """Deleted ids and unknown ids."""

    deleted: list[str]
    missing: list[str]


class SetStatusResponse(MemoryResponse, frozen=True):
    """The ids of memories with the new status, and unknown ids."""

    ids: list[str]
    missing: list[str]


class ConsolidateResponse(MemoryResponse, frozen=True):
    """A written summary of a topic. `archived` is the id of the previous one, empty if there was none."""

    id: str
    topic: str
    memories: int
    sources: int
    archived: str


class ReadArtifactResponse(MemoryResponse, frozen=True):
    """A part of an artifact. `shown` says which part and of what, `next` is the offset of the next part."""

    id: str
    what: str
    shown: str
    text: str
    next: int | None


class MemoryCounts(MemoryResponse, frozen=True):
    """The number of a tenant's memories."""

    memories: int


class EraseResponse(MemoryResponse, frozen=True):
    """The counts before and after an erasure; `verified` says that nothing is left."""

    before: MemoryCounts
    after: MemoryCounts
    verified: bool


class ImportMemoriesResponse(MemoryResponse, frozen=True):
    """The numbers of imported records. `kept` counts memories whose ids existed."""

    memories: int
    markers: int
    kept: int


def message_indexes(memory: Memory) -> MessageIndexes | None:
    """Returns the messages that a memory was made of; None for a memory without any."""
    if not memory.conversation or memory.first < 0:
        return None
    return MessageIndexes(conversation_id=memory.conversation, start_index=memory.first, end_index=memory.last)


def memory_preview(memory: Memory) -> MemoryPreview:
    """Returns a memory's preview."""
    return MemoryPreview(**_preview_fields(memory))


def scored_memory(result: SearchResult) -> ScoredMemory:
    """Returns a search result with its score."""
    scores = msgspec.to_builtins(result.scores) if result.scores is not None else None
    return ScoredMemory(
        **_preview_fields(result.memory), score=round(result.score, 4), warning=result.warning, scores=scores
    )


def full_memory(memory: Memory, warning: str, originals: Sequence[bytes] | None) -> FullMemory:
    """Returns a memory in full."""
    return FullMemory(
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
        source=message_indexes(memory),
        sources=[SummarySource(id=source, revision=revision) for source, revision in memory.sources],
        counted=memory.counted,
        former_topic=memory.former_topic,
        status=memory.status,
        revision=memory.revision,
        created_at=format_time(memory.created),
        updated_at=format_time(memory.updated),
        warning=warning,
        originals=None if originals is None else [msgspec.Raw(original) for original in originals],
    )


def _preview_fields(memory: Memory) -> dict[str, Any]:
    return {
        "id": memory.id,
        "type": memory.type,
        "preview": session_preview(memory.content) if memory.type == "session" else preview(memory.content),
        "topics": list(memory.topics),
        "tags": list(memory.tags),
        "project": memory.project,
        "status": memory.status,
        "source_type": memory.source,
        "created_at": format_time(memory.created),
    }
