"""What memories look like in their store where a key is set, was set later, was changed, or is missing."""

from __future__ import annotations

import asyncio

import pytest

from accordion.archive.sealing import PlainSealer
from accordion.model.errors import StoreUnavailable
from accordion.model.memories import Conflict, Embedding, Entity, MemoryChange, MemoryFilter, Relation
from accordion.stores.encryption import AesSealer
from accordion.stores.memories_redis import RedisMemories, tenant_keys
from accordion.stores.memories_sqlite import SqliteMemories
from tests.memories import (
    OTHER,
    TENANT,
    Embedder,
    connect_redis,
    everything,
    everything_on,
    exported,
    find_candidates,
    memory,
    put,
)
from tests.valkey import Valkey, valkey_server  # noqa: F401

ONE, TWO = b"1" * 32, b"2" * 32
PLAIN, FIRST, BOTH, SECOND = PlainSealer(), AesSealer([ONE]), AesSealer([TWO, ONE]), AesSealer([TWO])
CANARY = "zanzibarium"
VECTOR, TOKENS = b"none" + bytes(range(1, 65)), b"telltale tokens"


class FixedEmbedder(Embedder):
    """Vectors and tokens that would be known again."""

    async def embed(self, texts):
        return [Embedding(VECTOR, TOKENS) for _ in texts]


class SealedMemories:
    """One place for memories, opened with one key or another, and all that stands there."""

    def __init__(self, kind, folder, server):
        self.kind, self.folder, self.server, self.opened = kind, folder, server, []

    def open(self, sealer):
        if self.kind == "sqlite":
            made = SqliteMemories(self.folder, FixedEmbedder(), timeout=20.0, sealer=sealer)
        else:
            made = RedisMemories(self.server.url, FixedEmbedder(), timeout=20.0, sealer=sealer)
        self.opened.append(made)
        return made

    def everything(self):
        if self.kind == "sqlite":
            return everything(self.folder)
        self.server.command("CONFIG", "SET", "rdbcompression", "no")
        self.server.command("SAVE")
        return everything_on(self.server.url) + everything(self.server.folder)


@pytest.fixture(params=["sqlite", "valkey"])
async def sealed_stores(request, tmp_path, valkey_server):  # noqa: F811
    valkey_server.command("FLUSHALL")
    made = SealedMemories(request.param, tmp_path / "memories", valkey_server)
    yield made
    for store in made.opened:
        await store.close()


def canary_memory(at: int = 0):
    named = {name: f"{CANARY}-{name}" for name in ("author", "context", "conversation", "project", "description")}
    many = {name: (f"{CANARY}-{name}",) for name in ("topics", "macro_topics", "entities", "tags")}
    return memory(f"the {CANARY} {at}", **named, **many, first=1, last=2, sources=((f"{CANARY}-id", "r"),))


def change(*memories):
    ends = f"{CANARY}-a", f"{CANARY}-b"
    return MemoryChange(
        put=memories,
        entities=tuple(Entity(end, f"{CANARY}-type") for end in ends),
        relations=(Relation(*ends, f"{CANARY}-tie", memories[0].id),),
        markers=((f"{CANARY}-marker", f"{CANARY}-value".encode()),),
    )


def revealing_bytes(one) -> list[bytes]:
    """What would give a memory away: its words, their stems, what is made of them."""
    return [CANARY.encode(), b"zanzibar", one.id.encode(), one.revision.encode(), VECTOR, VECTOR[4:], TOKENS]


async def read_all(store) -> tuple[object, ...]:
    """All that can be had of the tenant."""
    finds = await find_candidates(store, CANARY, vector=VECTOR, wanted=MemoryFilter(topics=(f"{CANARY}-topics",)))
    return (
        {each.memory.id: (each.memory, each.tokens, round(each.dense, 6)) for each in finds},
        sorted([line async for line in store.export(TENANT)]),
        await store.get_marker(TENANT, f"{CANARY}-marker"),
        await exported(store, Relation),
    )


async def test_no_byte_of_what_is_remembered_stands_in_the_store(sealed_stores):
    store, one = sealed_stores.open(FIRST), canary_memory()
    await store.write(TENANT, change(one))
    await store.write(TENANT, MemoryChange(put=tuple(canary_memory(at) for at in range(1, 40))))
    assert [sign for sign in revealing_bytes(one) if sign in sealed_stores.everything()] == []
    assert (await find_candidates(store, CANARY, vector=VECTOR))[0].tokens == TOKENS


async def test_without_a_key_the_same_bytes_would_be_seen(sealed_stores):
    store, one = sealed_stores.open(PLAIN), canary_memory()
    await store.write(TENANT, change(one))
    assert [sign for sign in revealing_bytes(one) if sign not in sealed_stores.everything()] == []


async def test_two_tenants_names_cannot_be_told_to_be_the_same(sealed_stores):
    store = sealed_stores.open(FIRST)
    for tenant in (TENANT, OTHER):
        await store.write(tenant, change(canary_memory()))
    if sealed_stores.kind == "valkey":
        with connect_redis(sealed_stores.server.url) as client:
            names = [set(client.hkeys(tenant_keys(tenant)["entity"])) for tenant in (TENANT, OTHER)]
        assert names[0]
        assert not names[0] & names[1]
    assert len(await find_candidates(store, CANARY, tenant=OTHER)) == 1


@pytest.mark.parametrize("by", ["a write", "a deletion", "a command"])
async def test_memories_without_a_key_are_read_and_then_sealed(sealed_stores, by):
    before, one = sealed_stores.open(PLAIN), canary_memory()
    await before.write(TENANT, change(one, *(canary_memory(at) for at in range(1, 70))))
    held = await read_all(before)
    store = sealed_stores.open(FIRST)
    assert await read_all(store) == held
    assert CANARY.encode() in sealed_stores.everything()
    if by == "a write":
        other = memory("another")
        await put(store, other)
        await store.write(TENANT, MemoryChange(delete=(other.id,)))
    elif by == "a deletion":
        await store.write(TENANT, MemoryChange(delete=("mem-none",)))
    else:
        assert await store.seal(TENANT)
        assert not await store.seal(TENANT)
    assert await read_all(store) == held
    assert [sign for sign in revealing_bytes(one) if sign in sealed_stores.everything()] == []
    await store.write(TENANT, MemoryChange(delete=(one.id,), require=((one.id, one),)))
    assert await store.count_relations(TENANT) == 0


async def test_a_reader_that_is_open_meanwhile_reads_on(sealed_stores):
    before, reader, writer = sealed_stores.open(PLAIN), sealed_stores.open(FIRST), sealed_stores.open(FIRST)
    await before.write(TENANT, change(canary_memory()))
    held = await read_all(reader)
    assert await writer.seal(TENANT)
    assert await read_all(reader) == held
    assert await reader.erase(TENANT) == 1
    await writer.write(TENANT, change(canary_memory()))
    assert await read_all(reader) == await read_all(writer) == held


async def test_what_is_looked_up_while_all_is_sealed_is_not_missed(sealed_stores):
    await sealed_stores.open(PLAIN).write(TENANT, change(canary_memory()))
    sealing, reading = sealed_stores.open(FIRST), sealed_stores.open(FIRST)
    read_memories = reading._read_memories

    async def seal_before(tenant, names):
        await sealing.seal(TENANT)
        return await read_memories(tenant, names)

    reading._read_memories = seal_before
    assert [each.memory for each in await find_candidates(reading, CANARY)] == [canary_memory()]
    assert CANARY.encode() not in sealed_stores.everything()


async def test_another_first_key_seals_all_anew_and_the_old_one_can_go(sealed_stores):
    store = sealed_stores.open(FIRST)
    await store.write(TENANT, change(canary_memory()))
    held = await read_all(store)
    assert await read_all(sealed_stores.open(BOTH)) == held
    assert await sealed_stores.open(BOTH).seal(TENANT)
    assert await read_all(sealed_stores.open(SECOND)) == held
    with pytest.raises(StoreUnavailable):
        await read_all(sealed_stores.open(FIRST))


@pytest.mark.parametrize("sealer", [PLAIN, SECOND])
async def test_without_its_key_nothing_is_read_and_nothing_written(sealed_stores, sealer):
    store, one = sealed_stores.open(FIRST), canary_memory()
    await store.write(TENANT, change(one))
    held = await read_all(store)
    without = sealed_stores.open(sealer)
    for call in (
        without.get(TENANT, [one.id]),
        find_candidates(without, CANARY),
        put(without, memory("another")),
        without.get_marker(TENANT, "m"),
    ):
        with pytest.raises(StoreUnavailable):
            await call
    assert await read_all(store) == held
    assert await without.erase(TENANT) == 1
    await put(without, memory("anew"))
    assert await without.count(TENANT, MemoryFilter()) == 1


async def test_of_many_that_write_to_what_is_not_sealed_yet_nothing_is_lost(sealed_stores):
    before = sealed_stores.open(PLAIN)
    await before.write(TENANT, change(canary_memory()))
    stores = [sealed_stores.open(FIRST) for _ in range(3)]
    fresh = [memory(f"by {at}") for at in range(9)]
    await asyncio.gather(*(put(stores[at % 3], each) for at, each in enumerate(fresh)))
    there = {each.id for each in (await stores[0].list_memories(TENANT, MemoryFilter())).memories}
    assert there == {canary_memory().id, *(each.id for each in fresh)}
    assert CANARY.encode() not in sealed_stores.everything()


async def test_a_conflict_is_told_by_the_names_that_were_given(sealed_stores):
    store, one = sealed_stores.open(FIRST), canary_memory()
    await store.write(TENANT, change(one))
    with pytest.raises(Conflict, match=one.id):
        await store.write(TENANT, MemoryChange(require=((one.id, None),)))
    with pytest.raises(Conflict, match=f"{CANARY}-marker"):
        await store.write(TENANT, MemoryChange(markers=((f"{CANARY}-marker", b"2"),)))


async def test_an_empty_tenant_has_nothing_to_seal(sealed_stores):
    assert not await sealed_stores.open(FIRST).seal(TENANT)
    assert await sealed_stores.open(FIRST).count(TENANT, MemoryFilter()) == 0
