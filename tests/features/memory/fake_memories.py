"""A tenant's memories in a dictionary, as the port promises: a change is written whole or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from accordion.features.memory.memories import (
    Conflict,
    Memory,
    MemoryChange,
    MemoryFilter,
    MemoryPage,
    SearchCandidate,
)
from accordion.model.errors import StoreUnavailable
from accordion.model.tenant import TenantScope
from accordion.model.words import search_terms

_HIDDEN = {"summary_archived", "session"}


@dataclass
class TenantRecords:
    """The records of one tenant."""

    memories: dict[str, Memory] = field(default_factory=dict)
    markers: dict[str, bytes] = field(default_factory=dict)


class FakeMemories:
    """Lets others run before each write, so that writers that race meet. May be away."""

    def __init__(self) -> None:
        self.tenants: dict[TenantScope, TenantRecords] = {}
        self.writes = 0
        self.away = False

    def of(self, tenant: TenantScope) -> TenantRecords:
        return self.tenants.setdefault(tenant, TenantRecords())

    async def write(self, tenant: TenantScope, change: MemoryChange) -> None:
        await asyncio.sleep(0)
        if self.away:
            raise StoreUnavailable("away")
        records = self.of(tenant)
        for name, memory in change.require:
            if records.memories.get(name) != memory:
                raise Conflict(name)
        if any(name in records.markers for name, _ in change.markers):
            raise Conflict("marker")
        self.writes += 1
        for memory in change.put:
            records.memories[memory.id] = memory
        for name in change.delete:
            records.memories.pop(name, None)
        records.markers.update(change.markers)

    async def get(self, tenant: TenantScope, ids: Sequence[str]) -> list[Memory | None]:
        return [self.of(tenant).memories.get(each) for each in ids]

    def _matching(self, tenant: TenantScope, wanted: MemoryFilter) -> list[Memory]:
        topics = {topic.lower() for topic in wanted.topics}
        return [
            each
            for each in sorted(self.of(tenant).memories.values(), key=_place)
            if (each.type in wanted.types if wanted.types else each.type not in _HIDDEN)
            and (not topics or topics & {topic.lower() for topic in (*each.topics, *each.macro_topics)})
            and wanted.project in (None, each.project)
        ]

    async def list_memories(
        self, tenant: TenantScope, wanted: MemoryFilter, *, after: str = "", limit: int = 100
    ) -> MemoryPage:
        found = [each for each in self._matching(tenant, wanted) if not after or _place(each) > _place_of(after)]
        page = tuple(found[:limit])
        return MemoryPage(page, f"{page[-1].created!r} {page[-1].id}" if len(page) < len(found) else "")

    async def count(self, tenant: TenantScope, wanted: MemoryFilter) -> int:
        return len(self._matching(tenant, wanted))

    async def find_candidates(
        self, tenant: TenantScope, terms: Sequence[str], vector: bytes, wanted: MemoryFilter, *, pool: int
    ) -> list[SearchCandidate]:
        asked, found = set(terms), self._matching(tenant, wanted)[:pool]
        return [SearchCandidate(each, float(len(asked & set(search_terms(each.content))))) for each in found]

    async def find_other_names(self, tenant: TenantScope, terms: frozenset[str]) -> list[tuple[str, str]]:
        return []

    async def get_marker(self, tenant: TenantScope, name: str) -> bytes | None:
        return self.of(tenant).markers.get(name)

    async def find_unknown_entities(self, tenant: TenantScope, names: Sequence[str]) -> set[str]:
        known = {name.casefold() for each in self.of(tenant).memories.values() for name in each.entities}
        return {name for name in names if name.casefold() not in known}

    async def export(self, tenant: TenantScope) -> AsyncIterator[bytes]:
        for memory in self.of(tenant).memories.values():
            yield memory.id.encode()

    async def erase(self, tenant: TenantScope) -> int:
        return len(self.tenants.pop(tenant, TenantRecords()).memories)


def _place(memory: Memory) -> tuple[float, str]:
    return -memory.created, memory.id


def _place_of(after: str) -> tuple[float, str]:
    created, _, name = after.partition(" ")
    return -float(created), name
