"""Export, import and erasure of all of a tenant's memories."""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

from msgspec.structs import replace

from accordion.features.memory import entries
from accordion.features.memory.memories import (
    ALL_TYPES,
    Conflict,
    Memory,
    MemoryChange,
    MemoryFilter,
    MemoryStore,
)
from accordion.features.memory.memory_operations import EVERY_PROJECT, MemoryServices
from accordion.features.memory.memory_responses import EraseResponse, ImportMemoriesResponse, MemoryCounts
from accordion.model.errors import BadRequest
from accordion.model.tenant import TenantScope
from accordion.sessions.tenants import Caller

T = TypeVar("T")

_BATCH = 100
"""Memories in one write: each text is embedded first, and other requests wait meanwhile."""
_MAX_TRIES = 8
_LINES_BETWEEN_PAUSES = 50
"""Lines of an import that are parsed before other requests get their turn."""
_MAX_ID = 100
_TIMES = range(253_402_300_800)
"""Valid seconds since the epoch: to the end of the year 9999."""
_MAX_COUNT = 10**9
_ALL_MEMORIES = MemoryFilter(types=ALL_TYPES)


async def export_memories(services: MemoryServices, caller: Caller) -> AsyncIterator[bytes]:
    """Yields all memories, one JSON document and a line end each. Raises StoreUnavailable."""
    async for line in services.memories.export(caller.tenant):
        yield line.rstrip(b"\n") + b"\n"


async def import_memories(services: MemoryServices, caller: Caller, lines: Iterable[bytes]) -> ImportMemoriesResponse:
    """Imports an export. A memory whose id exists already stays unchanged.

    Parses all lines before the first write; BadRequest names the first invalid line. Writes batches, memories
    first. Repeating an interrupted import completes it.
    """
    now = services.clock.now()
    records: list[entries.Line] = []
    for number, line in enumerate(lines, 1):
        # Some editors write a byte order mark.
        if text := line.removeprefix(codecs.BOM_UTF8 if number == 1 else b"").strip():
            records.append(_parse_line(number, text, now))
        if number % _LINES_BETWEEN_PAUSES == 0:
            await asyncio.sleep(0)
    memories = list({each.id: each for each in records if isinstance(each, Memory)}.values())
    markers = list({each[0]: each for each in records if isinstance(each, tuple)}.values())
    store, tenant = services.memories, caller.tenant
    written_counts = [await _write_new(store, tenant, batch) for batch in _batches(memories)]
    written_markers = [await _write_new(store, tenant, batch) for batch in _batches(markers)]
    return ImportMemoriesResponse(
        memories=sum(written_counts),
        markers=sum(written_markers),
        kept=len(memories) - sum(written_counts),
    )


async def erase_memories(services: MemoryServices, caller: Caller) -> EraseResponse:
    """Erases all memories, and counts them before and after."""
    before = await _count_memories(services.memories, caller.tenant)
    await services.memories.erase(caller.tenant)
    after = await _count_memories(services.memories, caller.tenant)
    return EraseResponse(before=before, after=after, verified=after == MemoryCounts(memories=0))


async def _count_memories(memories: MemoryStore, tenant: TenantScope) -> MemoryCounts:
    return MemoryCounts(memories=await memories.count(tenant, _ALL_MEMORIES))


def _batches(records: Sequence[T]) -> Iterator[tuple[T, ...]]:
    return (tuple(records[start : start + _BATCH]) for start in range(0, len(records), _BATCH))


async def _write_new(store: MemoryStore, tenant: TenantScope, batch: Sequence[entries.Line]) -> int:
    """Writes the memories with new ids and the markers with new names; returns their number.

    Raises ConcurrentWrite.
    """
    memories = [each for each in batch if isinstance(each, Memory)]
    for _ in range(_MAX_TRIES):
        existing = await store.get(tenant, [each.id for each in memories])
        new = tuple(each for each, stored in zip(memories, existing, strict=True) if stored is None)
        markers = tuple(
            [each for each in batch if isinstance(each, tuple) and await store.get_marker(tenant, each[0]) is None]
        )
        require = tuple((each.id, None) for each in new)
        with suppress(Conflict):
            if new or markers:
                await store.write(tenant, MemoryChange(put=new, markers=markers, require=require))
            return len(new) + len(markers)
    raise entries.ConcurrentWrite("Others write the same memories at the same time. Import again: what is there stays.")


def _parse_line(number: int, line: bytes, now: float) -> entries.Line:
    """Parses and checks a line; a memory comes normalized. Raises BadRequest with the line's number."""
    try:
        record = entries.parse_line(line)
        if not isinstance(record, Memory):
            return record
        if not 0 < len(record.id) <= _MAX_ID or entries.clean_name(record.id) != record.id:
            raise BadRequest("a memory needs an id.", code="bad_line")
        if entries.clean_name(record.project) == EVERY_PROJECT:
            raise BadRequest("a memory has one project, or none.", code="bad_line")
        times, counts = (record.created, record.updated), (record.first, record.last, record.counted)
        if not all(int(time) in _TIMES for time in times) or max(map(abs, counts)) > _MAX_COUNT:
            raise BadRequest("times must be seconds since 1970, and counts at most 10^9.", code="bad_line")
        return replace(entries.finish_memory(record, now=now), updated=record.updated or now)
    except (BadRequest, RecursionError) as error:
        cause = error if isinstance(error, BadRequest) else BadRequest("the JSON is nested too deep.", code="bad_line")
        raise BadRequest(
            f"Line {number:,}: {cause.message} Nothing was imported.", code=cause.code, param=f"line {number}"
        ) from error
