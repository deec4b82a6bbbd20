"""The responses of `core_memory`, and the box in which a terminal shows a new memory's id."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from accordion.memory.entries import format_time
from accordion.memory.entries import preview as beginning
from accordion.memory.sections import NONE
from accordion.model.memories import Memory

_PREVIEW_LENGTH: Final = 100
_WIDTH: Final = 76


class ImportResponse(msgspec.Struct, frozen=True):
    """The response of an import. An empty `id` means that the user declined to save."""

    id: str
    message: str
    operation: Literal["import"] = "import"


class ExportResponse(msgspec.Struct, frozen=True):
    """A memory with its complete text."""

    id: str
    message: str
    text: str
    description: str
    tags: list[str]
    created_at: str
    conversation_id: str
    operation: Literal["export"] = "export"


class ListedMemory(msgspec.Struct, frozen=True):
    """A memory in a list."""

    id: str
    preview: str
    description: str
    tags: list[str]
    created_at: str


class ListResponse(msgspec.Struct, frozen=True):
    """Memories, newest first. `next` is the cursor of the next page; empty if there is none."""

    message: str
    memories: list[ListedMemory]
    next: str = ""
    operation: Literal["list"] = "list"


class SearchResponse(msgspec.Struct, frozen=True):
    """The results of a search, best first."""

    query: str
    message: str
    memories: list[ListedMemory]
    operation: Literal["search"] = "search"


def list_entries(memories: Iterable[Memory]) -> list[ListedMemory]:
    """Returns memories as entries of a list."""
    return [
        ListedMemory(each.id, preview(each.content), each.description, list(each.tags), saved_at(each))
        for each in memories
    ]


def preview(text: str) -> str:
    """Returns a session's objective in a hundred characters, or the first line with content if it has none."""
    lines = [line.strip() for line in text.split("\n")]
    objective = lines[lines.index("## Objective") + 1 :][:1] if "## Objective" in lines else []
    candidates = [line for line in (*objective, *lines) if line and line != NONE and not line.startswith("#")]
    return beginning(candidates[0] if candidates else "", _PREVIEW_LENGTH)


def saved_at(memory: Memory) -> str:
    """Returns the time at which a memory was saved: UTC, as in ISO 8601."""
    return format_time(memory.created)


def render_box(memory_id: str) -> str:
    """Renders the box with a saved memory's id and how to restore it."""
    lines = (
        "✓ Session Memory Saved",
        "",
        f"Recovery ID: {memory_id}",
        "",
        f'To restore: "Please import memory {memory_id}"',
        "(MCP: core_memory export | CLI: accordion memory export --id <ID>)",
    )
    rows = [f"║  {line:<{_WIDTH - 2}}║" for line in lines]
    return "\n".join([f"╔{'═' * _WIDTH}╗", *rows, f"╚{'═' * _WIDTH}╝"])
