"""The corpus of a topic: the memories that its summary is written from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from accordion.memory.entries import NAME_MOST, SINGLE_TYPES, clean_name
from accordion.model.errors import BadRequest
from accordion.model.memories import Memory, MemoryFilter, MemoryStore
from accordion.model.tenant import TenantScope

_MAX_MEMORIES: Final = 20_000
"""Memories of one topic that are loaded."""


def normalize_topic(topic: object) -> str:
    """Returns a topic in lower case, on one line. Raises BadRequest if it is invalid."""
    name = clean_name(topic).lower() if isinstance(topic, str) and len(topic) <= NAME_MOST else ""
    if not name:
        raise BadRequest(
            f"A topic must be a string of 1 to {NAME_MOST} characters.", code="invalid_topic", param="topic"
        )
    return name


def corpus_filter(topic: str, project: str | None) -> MemoryFilter:
    """Returns the filter of a topic's corpus, in all projects if `project` is None."""
    return MemoryFilter(types=SINGLE_TYPES, topics=(topic,), project=project)


async def load_corpus(memories: MemoryStore, tenant: TenantScope, topic: str, project: str | None) -> Sequence[Memory]:
    """Returns a topic's corpus, newest first, from one snapshot. Raises StoreUnavailable."""
    return (await memories.list_memories(tenant, corpus_filter(topic, project), limit=_MAX_MEMORIES)).memories
