"""What is remembered of a topic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from accordion.core.errors import BadRequest
from accordion.core.memories import Filter, Memories, Memory
from accordion.memory.entries import GRAIN, NAME_MOST, name

_MOST: Final = 20_000
"""Memories of one topic that are gone through."""


def topic_of(topic: object) -> str:
    """A topic as it is compared: in small letters, on one line. Raises BadRequest where it is none."""
    bare = name(topic).lower() if isinstance(topic, str) and len(topic) <= NAME_MOST else ""
    if not bare:
        raise BadRequest(
            f"A topic must be a string of 1 to {NAME_MOST} characters.", code="invalid_topic", param="topic"
        )
    return bare


def wanted(topic: str, project: str | None) -> Filter:
    """The memories that a summary of a topic is made of; of all projects where none is named."""
    return Filter(types=GRAIN, topics=(topic,), project=project)


async def corpus(memories: Memories, space: bytes, topic: str, project: str | None) -> Sequence[Memory]:
    """All memories of a topic, newest first, as they are at one moment. Raises StoreUnavailable."""
    return (await memories.listed(space, wanted(topic, project), limit=_MOST)).memories
