"""Memories in their store where a key is set, was set later, was changed, or is missing."""

from __future__ import annotations

import pytest

from accordion.archive.sealing import PlainSealer
from accordion.features.memory.memories import Conflict, Embedding, MemoryChange, MemoryFilter
from accordion.model.errors import StoreUnavailable
from accordion.stores.encryption import AesSealer
from accordion.stores.redis import RedisStore
from accordion.stores.sqlite import SqliteStore
from tests.features.memory.memory_stores import (
    TENANT,
    Embedder,
    everything,
    everything_on,
    find_candidates,
    memory,
    open_memories,
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
        folder.mkdir()
        self.kind, self.folder, self.server, self.opened = kind, folder, server, []

    def open(self, sealer):
        if self.kind == "sqlite":
            store = SqliteStore(self.folder / "store.db", timeout=20.0)
        else:
            store = RedisStore(self.server.url, timeout=20.0)
        self.opened.append(store)
        return open_memories(store, sealer=sealer, embedder=FixedEmbedder())

    async def wipe(self):
        """Closes everything: the last connection to SQLite's file removes its log."""
        for each in self.opened:
            await each.close()
        self.opened.clear()

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
    await made.wipe()


def canary_memory(at: int = 0):
    named = {name: f"{CANARY}-{name}" for name in ("author", "context", "conversation", "project", "description")}
    many = {name: (f"{CANARY}-{name}",) for name in ("topics", "macro_topics", "entities", "tags")}
    return memory(f"the {CANARY} {at}", **named, **many, first=1, last=2, sources=((f"{CANARY}-id", "r"),))


def change(*memories):
    return MemoryChange(put=memories, markers=((f"{CANARY}-marker", f"{CANARY}-value".encode()),))


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


async def test_memories_without_a_key_are_read_and_sealed_by_the_command(sealed_stores):
    before, one = sealed_stores.open(PLAIN), canary_memory()
    await before.write(TENANT, change(one, *(canary_memory(at) for at in range(1, 70))))
    contents = await read_all(before)
    store = sealed_stores.open(FIRST)
    assert await read_all(store) == contents
    assert await store.seal(TENANT)
    assert not await store.seal(TENANT)
    assert await read_all(store) == contents
    await store.write(TENANT, MemoryChange(delete=(one.id,), require=((one.id, one),)))
    assert await store.get(TENANT, [one.id]) == [None]


async def test_after_sealing_the_store_has_no_byte_of_what_was_plain(sealed_stores):
    one = canary_memory()
    await sealed_stores.open(PLAIN).write(TENANT, change(one))
    await sealed_stores.open(FIRST).seal(TENANT)
    await sealed_stores.wipe()
    assert [sign for sign in revealing_bytes(one) if sign in sealed_stores.everything()] == []


async def test_a_reader_that_is_open_meanwhile_reads_on(sealed_stores):
    before, reader, writer = sealed_stores.open(PLAIN), sealed_stores.open(FIRST), sealed_stores.open(FIRST)
    await before.write(TENANT, change(canary_memory()))
    held = await read_all(reader)
    assert await writer.seal(TENANT)
    assert await read_all(reader) == held
    assert await reader.erase(TENANT) == 1
    await writer.write(TENANT, change(canary_memory()))
    assert await read_all(reader) == await read_all(writer) == held


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
