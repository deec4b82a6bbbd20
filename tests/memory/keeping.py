"""A tenant's memories in a dictionary, as the port promises: a change is written whole or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from accordion.model.errors import StoreUnavailable
from accordion.model.memories import (
    Conflict,
    Entity,
    Memory,
    MemoryChange,
    MemoryFilter,
    MemoryPage,
    Relation,
    SearchCandidate,
)

_HIDDEN = {"summary_archived", "session"}


@dataclass
class TenantRecords:
    """The records of one tenant."""

    memories: dict[str, Memory] = field(default_factory=dict)
    entities: dict[tuple[str, str], Entity] = field(default_factory=dict)
    relations: list[Relation] = field(default_factory=list)
    markers: dict[str, bytes] = field(default_factory=dict)


class FakeMemories:
    """Lets others run before each write, so that writers that race meet. May be away."""

    def __init__(self) -> None:
        self.tenants: dict[bytes, TenantRecords] = {}
        self.writes = 0
        self.away = False

    def of(self, space: bytes) -> TenantRecords:
        return self.tenants.setdefault(space, TenantRecords())

    async def write(self, space: bytes, change: MemoryChange) -> tuple[Entity, ...]:
        await asyncio.sleep(0)
        if self.away:
            raise StoreUnavailable("away")
        tenant = self.of(space)
        for name, revision in change.require:
            stored = tenant.memories.get(name)
            if (stored.revision if stored is not None else "") != revision:
                raise Conflict(name)
        if any(name in tenant.markers for name, _ in change.markers):
            raise Conflict("marker")
        self.writes += 1
        for memory in change.put:
            tenant.memories[memory.id] = memory
        for name in change.delete:
            tenant.memories.pop(name, None)
        tenant.markers.update(change.markers)
        tenant.relations.extend(each for each in change.relations if each not in tenant.relations)
        new = [each for each in change.entities if (each.name.lower(), each.type) not in tenant.entities]
        tenant.entities.update({(each.name.lower(), each.type): each for each in new})
        return tuple(new)

    async def get(self, space: bytes, ids: Sequence[str]) -> list[Memory | None]:
        return [self.of(space).memories.get(each) for each in ids]

    def _matching(self, space: bytes, wanted: MemoryFilter) -> list[Memory]:
        topics = {topic.lower() for topic in wanted.topics}
        return [
            each
            for each in sorted(self.of(space).memories.values(), key=_place)
            if (each.type in wanted.types if wanted.types else each.type not in _HIDDEN)
            and (not topics or topics & {topic.lower() for topic in (*each.topics, *each.macro_topics)})
            and wanted.project in (None, each.project)
        ]

    async def list_memories(
        self, space: bytes, wanted: MemoryFilter, *, after: str = "", limit: int = 100
    ) -> MemoryPage:
        found = [each for each in self._matching(space, wanted) if not after or _place(each) > _place_of(after)]
        page = tuple(found[:limit])
        return MemoryPage(page, f"{page[-1].created!r} {page[-1].id}" if len(page) < len(found) else "")

    async def count(self, space: bytes, wanted: MemoryFilter) -> int:
        return len(self._matching(space, wanted))

    async def find_candidates(
        self, space: bytes, words: Sequence[str], vector: bytes, wanted: MemoryFilter, *, pool: int
    ) -> list[SearchCandidate]:
        return [SearchCandidate(each) for each in self._matching(space, wanted)[:pool]]

    async def get_marker(self, space: bytes, name: str) -> bytes | None:
        return self.of(space).markers.get(name)

    async def list_relations(self, space: bytes, entity: str = "", *, limit: int = 1_000) -> list[Relation]:
        return self.of(space).relations[:limit]

    async def list_entities(self, space: bytes, *, limit: int = 1_000) -> list[Entity]:
        return list(self.of(space).entities.values())[:limit]

    async def export(self, space: bytes) -> AsyncIterator[bytes]:
        for memory in self.of(space).memories.values():
            yield memory.id.encode()

    async def erase(self, space: bytes) -> int:
        return len(self.tenants.pop(space, TenantRecords()).memories)

    async def close(self) -> None:
        return


def _place(memory: Memory) -> tuple[float, str]:
    return -memory.created, memory.id


def _place_of(after: str) -> tuple[float, str]:
    created, _, name = after.partition(" ")
    return -float(created), name
