"""The log of a conversation's compactions into memories: one numbered marker for each, written with its memories.

A marker is written once. Of two callers that compact one conversation at the same time, one gets the next number and
the other reads that entry. A search writes a marker with the next number, which permits one compaction.
"""

from __future__ import annotations

from typing import Final

import msgspec

from accordion.model.memories import Conflict, MemoryChange, MemoryStore
from accordion.model.tenant import TenantScope

_MAX_ENTRIES: Final = 100_000


class WriterReport(msgspec.Struct, frozen=True):
    """Names the writer of the memories (`rules` or a model), its tokens, and a notice about it."""

    writer: str = "rules"
    input: int = 0
    output: int = 0
    notice: str = ""


class LogEntry(msgspec.Struct, frozen=True):
    """One compaction of a range of messages.

    `keys` are the short keys of the range's messages, `memories` the ids that it stored, `entities` are (name, type)
    and `relations` (from, to, type). The entry holds no text of a memory, so that a deleted memory leaves no copy.
    """

    first: int
    last: int
    keys: list[bytes]
    focus: list[str]
    memories: list[str]
    entities: list[tuple[str, str]]
    relations: list[tuple[str, str, str]]
    by: WriterReport = WriterReport()


_DECODER: Final = msgspec.json.Decoder(LogEntry)
_NAMES: Final = msgspec.json.Decoder(list[tuple[str, str]])


async def load_entries(memories: MemoryStore, tenant: TenantScope, conversation: str) -> list[LogEntry]:
    """Returns all compactions of a conversation, in order. Raises StoreUnavailable."""
    entries: list[LogEntry] = []
    while (
        len(entries) < _MAX_ENTRIES
        and (value := await memories.get_marker(tenant, _marker_name(conversation, len(entries)))) is not None
    ):
        entries.append(_DECODER.decode(value))
    return entries


def make_marker(conversation: str, number: int, entry: LogEntry) -> tuple[str, bytes]:
    """Returns the marker of a compaction."""
    return _marker_name(conversation, number), msgspec.json.encode(entry)


async def note_search(memories: MemoryStore, tenant: TenantScope, conversation: str, number: int) -> None:
    """Records a search after `number` compactions of a conversation. Raises StoreUnavailable."""
    try:
        await memories.write(tenant, MemoryChange(markers=((_search_marker_name(conversation, number), b"1"),)))
    except Conflict:
        # An earlier search is recorded already.
        return


async def was_searched(memories: MemoryStore, tenant: TenantScope, conversation: str, number: int) -> bool:
    """Returns whether a search was recorded after `number` compactions."""
    return await memories.get_marker(tenant, _search_marker_name(conversation, number)) is not None


async def note_new(
    memories: MemoryStore, tenant: TenantScope, conversation: str, number: int, new: list[tuple[str, str]]
) -> None:
    """Records the entities that a compaction added. They are known only after its write."""
    await memories.write(
        tenant, MemoryChange(markers=((f"{_marker_name(conversation, number)}/new", msgspec.json.encode(new)),))
    )


async def load_new(memories: MemoryStore, tenant: TenantScope, conversation: str, number: int) -> set[tuple[str, str]]:
    """Returns the entities that a compaction added."""
    value = await memories.get_marker(tenant, f"{_marker_name(conversation, number)}/new")
    return set(_NAMES.decode(value)) if value is not None else set()


def _marker_name(conversation: str, number: int) -> str:
    return f"compacted/{number}/{conversation}"


def _search_marker_name(conversation: str, number: int) -> str:
    return f"searched/{number}/{conversation}"
