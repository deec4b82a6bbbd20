"""What memories are listed under, whichever store they are in."""

from __future__ import annotations

from typing import Final

from accordion.core.memories import Filter, Memory, MemoryType

HIDDEN: Final[tuple[MemoryType, ...]] = ("summary_archived", "session")
"""The types that a filter must name to have them."""


def key(name: str) -> str:
    """What names that differ in case share."""
    return name.strip().casefold()


def labels(memory: Memory) -> list[str]:
    """A memory's topics, tags and entities, each once."""
    found = [f"t:{key(topic)}" for topic in (*memory.topics, *memory.macro_topics)]
    found += [f"g:{key(tag)}" for tag in memory.tags]
    found += [f"e:{key(name)}" for name in memory.entities]
    return list(dict.fromkeys(found))


def groups(wanted: Filter) -> list[list[str]]:
    """The labels that a filter asks for: of each group one. Any of the topics is enough; all of the tags are needed."""
    found = [[f"t:{key(topic)}" for topic in wanted.topics]] if wanted.topics else []
    return found + [[f"g:{key(tag)}"] for tag in wanted.tags]
