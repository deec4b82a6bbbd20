"""What `core_memory` answers, and the box in which a terminal shows the id of what was saved."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from accordion.core.memories import Memory
from accordion.memory.entries import preview as beginning
from accordion.memory.entries import time_of
from accordion.memory.sections import NONE

_PREVIEW: Final = 100
_WIDTH: Final = 76


class Imported(msgspec.Struct, frozen=True):
    """A memory was saved, or (where `id` is empty) somebody did not want it to be."""

    id: str
    message: str
    operation: Literal["import"] = "import"


class Exported(msgspec.Struct, frozen=True):
    """A memory with all of its text."""

    id: str
    message: str
    text: str
    description: str
    tags: list[str]
    created_at: str
    conversation_id: str
    operation: Literal["export"] = "export"


class Shown(msgspec.Struct, frozen=True):
    """A memory in a list."""

    id: str
    preview: str
    description: str
    tags: list[str]
    created_at: str


class Listed(msgspec.Struct, frozen=True):
    """Memories, newest first. `next` is where the next page begins; empty where there is none."""

    message: str
    memories: list[Shown]
    next: str = ""
    operation: Literal["list"] = "list"


class Found(msgspec.Struct, frozen=True):
    """What a search found, best first."""

    query: str
    message: str
    memories: list[Shown]
    operation: Literal["search"] = "search"


def shown(memories: Iterable[Memory]) -> list[Shown]:
    """Memories as a list shows them."""
    return [
        Shown(each.id, preview(each.content), each.description, list(each.tags), written_at(each)) for each in memories
    ]


def preview(text: str) -> str:
    """What a session was for, in a hundred characters; where that is not said, how the text goes on."""
    lines = [line.strip() for line in text.split("\n")]
    aim = lines[lines.index("## Objective") + 1 :][:1] if "## Objective" in lines else []
    told = [line for line in (*aim, *lines) if line and line != NONE and not line.startswith("#")]
    return beginning(told[0] if told else "", _PREVIEW)


def written_at(memory: Memory) -> str:
    """When a memory was saved: UTC, as in ISO 8601."""
    return time_of(memory.created)


def box(name: str) -> str:
    """What a terminal shows when a memory was saved: its id, and how it is had back."""
    lines = (
        "✓ Session Memory Saved",
        "",
        f"Recovery ID: {name}",
        "",
        f'To restore: "Please import memory {name}"',
        "(MCP: core_memory export | CLI: accordion memory export --id <ID>)",
    )
    rows = [f"║  {line:<{_WIDTH - 2}}║" for line in lines]
    return "\n".join([f"╔{'═' * _WIDTH}╗", *rows, f"╚{'═' * _WIDTH}╝"])
