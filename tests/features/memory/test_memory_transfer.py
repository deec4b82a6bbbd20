"""An import is written in small parts, whose order leaves nothing half-written; others may write meanwhile."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from accordion.features.memory.entries import export_line, finish_memory
from accordion.features.memory.memories import Memory, MemoryChange
from accordion.features.memory.memory_responses import ImportMemoriesResponse
from accordion.features.memory.memory_transfer import import_memories
from accordion.model.errors import StoreUnavailable
from accordion.model.tenant import TenantScope
from accordion.sessions.tenants import Caller
from tests.fakes import FakeClock
from tests.features.memory.fake_memories import FakeMemories

TENANT = TenantScope("tenant", b"one")
CALLER = Caller(TENANT, has_proxy_key=True, credential="")
MANY = 250


def build_export() -> list[bytes]:
    """Markers first, as no export has them."""
    memories = [finish_memory(Memory(f"mem-{at}", "fact", f"Gate {at} is green."), now=1.0) for at in range(MANY)]
    markers = [(f"compacted/{at}/s-1", b"{}") for at in range(MANY)]
    return [export_line(each) for each in (*markers, *memories)]


class Watched(FakeMemories):
    """Remembers how much each change wrote, and goes away before a certain one."""

    def __init__(self, away_at: int = -1) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self.away_at = away_at

    async def write(self, tenant: TenantScope, change: MemoryChange) -> None:
        if len(self.sizes) == self.away_at:
            raise StoreUnavailable("gone")
        self.sizes.append(len(change.put) + len(change.markers))
        await super().write(tenant, change)


async def import_export(memories: FakeMemories) -> ImportMemoriesResponse:
    rooms: Any = SimpleNamespace(clock=FakeClock(), memories=memories)
    return await import_memories(rooms, CALLER, build_export())


async def test_no_part_is_larger_than_a_hundred():
    memories = Watched()
    told = await import_export(memories)
    assert (told.memories, told.markers) == (MANY, MANY)
    assert max(memories.sizes) == 100
    assert sum(memories.sizes) == 2 * MANY


@pytest.mark.parametrize("parts", range(7))
async def test_an_interrupted_import_is_consistent_and_completed_by_a_second_one(
    parts: int,
):
    memories = Watched(parts)
    if parts < 6:
        with pytest.raises(StoreUnavailable):
            await import_export(memories)
    kept = memories.of(TENANT)
    assert not kept.markers or len(kept.memories) == MANY
    before = len(kept.memories)
    memories.away_at = -1
    again = await import_export(memories)
    assert (again.memories, again.kept) == (MANY - before, before)
    assert [len(each) for each in (kept.memories, kept.markers)] == [MANY, MANY]


async def test_an_import_does_not_rewrite_existing_memories():
    memories = Watched()
    await import_export(memories)
    memories.sizes.clear()
    again = await import_export(memories)
    assert (again.memories, again.kept, again.markers) == (0, MANY, 0)
    assert memories.sizes == []


async def test_an_import_leaves_concurrent_writes_alone():
    class Raced(Watched):
        """Somebody is faster by one memory and one marker."""

        async def write(self, tenant: TenantScope, change: MemoryChange) -> None:
            kept = self.of(tenant)
            if any(memory.id == "mem-7" for memory in change.put):
                kept.memories.setdefault("mem-7", finish_memory(Memory("mem-7", "fact", "Mine."), now=1.0))
            if any(name == "compacted/9/s-1" for name, _ in change.markers):
                kept.markers.setdefault("compacted/9/s-1", b"mine")
            await super().write(tenant, change)

    memories = Raced()
    told = await import_export(memories)
    assert (told.memories, told.kept, told.markers) == (MANY - 1, 1, MANY - 1)
    assert memories.of(TENANT).memories["mem-7"].content == "Mine."
    assert memories.of(TENANT).markers["compacted/9/s-1"] == b"mine"
    assert len(memories.of(TENANT).memories) == len(memories.of(TENANT).markers) == MANY
