from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accordion.memory.entries import revision
from accordion.model.errors import StoreUnavailable
from accordion.model.memories import ALL_TYPES, Conflict, Entity, MemoryChange, MemoryFilter, MemoryStore, Relation
from accordion.stores import memories_index
from accordion.stores.memories_redis import RedisMemories, tenant_keys
from accordion.stores.memories_sqlite import SqliteMemories
from tests.memories import (
    OTHER,
    PET,
    TENANT,
    WORK,
    Embedder,
    connect_redis,
    everything_on,
    exported,
    find_candidates,
    memory,
    put,
)
from tests.tiers import examples
from tests.valkey import Valkey, running_valkey, valkey_server  # noqa: F401

SOON = 0.3
"""A time-out that a test waits for."""
HIDDEN = "zanzibarium"


@pytest.fixture
async def store(valkey_server: Valkey):  # noqa: F811
    valkey_server.command("FLUSHALL")
    made = RedisMemories(valkey_server.url, Embedder(), timeout=20.0)
    yield made
    await made.close()


def names_of(url: str) -> set[bytes]:
    with connect_redis(url) as client:
        return set(client.keys())


# -- the same as the other store -------------------------------------------------------------------------------------

WORDS = ("run", "running", "runs", "violin", "pet", "O'Brien", "don't", "naïve", "NAIVE", "42", "the", "x", "日本")
texts = st.lists(st.sampled_from(WORDS), min_size=1, max_size=8).map(" ".join)
changes = st.lists(
    st.tuples(
        st.sampled_from(("put", "put", "put", "delete")),
        st.integers(0, 5),
        texts,
        st.sampled_from(("", "violin run")),
        st.sampled_from(("", "Ann", "Violin")),
        st.sampled_from(ALL_TYPES),
        st.sampled_from(("", "a")),
        st.integers(1, 3),
    ),
    max_size=10,
)


@settings(max_examples=examples(40), deadline=None)
@given(changes, st.lists(st.sampled_from(WORDS), max_size=3), st.sampled_from((b"", PET, WORK)))
def test_the_same_changes_give_the_same_finds_and_scores_as_in_sqlite(valkey_server, steps, words, vector):  # noqa: F811
    async def apply_steps(store: MemoryStore) -> tuple[object, ...]:
        for kind, at, text, context, author, type_, topic, created in steps:
            name, entity = f"mem-{at}", Entity(f"e{at % 2}", "x")
            if kind == "delete":
                await store.write(TENANT, MemoryChange(delete=(name,)))
                continue
            named = {"id": name, "author": author, "type": type_, "topics": (topic,), "entities": (entity.name,)}
            made = memory(text, **named, context=context, created=float(created))
            tie = Relation(entity.name, f"e{(at + 1) % 2}", "y", name)
            await store.write(TENANT, MemoryChange(put=(made,), entities=(entity,), relations=(tie,)))
        parts: list[object] = []
        for wanted in (
            MemoryFilter(),
            MemoryFilter(types=ALL_TYPES),
            MemoryFilter(topics=("a",)),
            MemoryFilter(since=2.0, until=2.0),
        ):
            finds = await find_candidates(store, *words, wanted=wanted, vector=vector)
            parts.append(await store.count(TENANT, wanted))
            parts.append([each.content for each in (await store.list_memories(TENANT, wanted)).memories])
            parts.append({each.memory: (round(each.lexical, 6), round(each.dense, 6)) for each in finds})
        return (*parts, await exported(store, Entity), await exported(store, Relation))

    async def both() -> None:
        valkey_server.command("FLUSHALL")
        with tempfile.TemporaryDirectory() as folder:
            one, other = SqliteMemories(Path(folder), Embedder(), timeout=20.0), connect(valkey_server)
            try:
                assert await apply_steps(other) == await apply_steps(one)
            finally:
                await one.close()
                await other.close()

    asyncio.run(both())


def connect(server: Valkey, timeout: float = 20.0) -> RedisMemories:
    return RedisMemories(server.url, Embedder(), timeout=timeout)


async def test_of_a_word_that_a_mark_divides_all_parts_must_be_there(store):
    await put(store, memory("Ann O'Brien came."), memory("Somebody called Brien came."))
    assert [each.memory.content for each in await find_candidates(store, "o'brien")] == ["Ann O'Brien came."]


async def test_a_great_many_memories_are_found_listed_and_removed(store):
    many = [memory(f"pet number{at}", created=float(at)) for at in range(2_500)]
    for at in range(0, len(many), 500):
        await put(store, *many[at : at + 500])
    assert [each.memory for each in await find_candidates(store, "number1777")] == [many[1777]]
    behind = (await store.list_memories(TENANT, MemoryFilter(), limit=1_200)).next
    rest = await store.list_memories(TENANT, MemoryFilter(), after=behind, limit=3)
    assert rest.memories == (many[1299], many[1298], many[1297])
    await store.write(TENANT, MemoryChange(delete=tuple(each.id for each in many[::2])))
    assert await store.count(TENANT, MemoryFilter()) == 1_250
    assert await find_candidates(store, "number1776") == []
    assert [each.memory for each in await find_candidates(store, "number1777")] == [many[1777]]
    assert {each.memory for each in await store.find_candidates(TENANT, (), PET, MemoryFilter(), pool=2_000)} == set(
        many[1::2]
    )


async def test_a_memory_that_is_rewritten_while_it_is_chosen_is_given_as_it_is_now(store, valkey_server):  # noqa: F811
    old = memory("the word")
    new = memory("the word again", id=old.id)
    await put(store, old)

    class Slow(RedisMemories):
        async def _read_memories(self, tenant, names):
            if (await store.get(TENANT, [old.id])) == [old]:
                await put(store, new)
            return await super()._read_memories(tenant, names)

    slow = Slow(valkey_server.url, Embedder(), timeout=20.0)
    assert (await slow.list_memories(TENANT, MemoryFilter())).memories == (new,)
    await put(store, old)
    assert [each.memory for each in await find_candidates(slow, "word")] == [new]
    await slow.close()


def test_every_type_has_a_code_that_never_changes():
    assert dict(memories_index._CODES) == {kind: code for code, kind in enumerate(ALL_TYPES, 1)}


# -- what stays ------------------------------------------------------------------------------------------------------


async def test_all_that_a_tenant_has_is_under_its_keys_and_goes_when_it_is_erased(store, valkey_server):  # noqa: F811
    one = memory(f"the {HIDDEN}", topics=(HIDDEN,), entities=(HIDDEN,), context=HIDDEN, conversation=HIDDEN)
    await put(store, memory("of the other tenant"), tenant=OTHER)
    before = names_of(valkey_server.url)
    await store.write(
        TENANT,
        MemoryChange(
            put=(one,),
            entities=(Entity(HIDDEN, "x"),),
            relations=(Relation(HIDDEN, "b", "c", one.id),),
            markers=((HIDDEN, b"1"),),
        ),
    )
    assert names_of(valkey_server.url) - before == set(tenant_keys(TENANT).values())
    assert HIDDEN.encode() in everything_on(valkey_server.url)
    assert await store.erase(TENANT) == 1
    assert names_of(valkey_server.url) == before
    assert HIDDEN.encode() not in everything_on(valkey_server.url)


@pytest.mark.parametrize(
    "change", [MemoryChange(delete=("mem-1",)), MemoryChange(put=(memory("something else", id="mem-1"),))]
)
async def test_of_a_memory_that_is_deleted_or_rewritten_no_word_stays(store, valkey_server, change):  # noqa: F811
    tie = Relation(HIDDEN, "b", "c", "mem-1")
    one = memory(f"the {HIDDEN}", id="mem-1", topics=(HIDDEN,), tags=(HIDDEN,), context=HIDDEN, author=HIDDEN)
    await put(store, one, memory("another"))
    assert HIDDEN.encode() in everything_on(valkey_server.url)
    if change.delete:
        await store.write(TENANT, MemoryChange(relations=(tie,)))
    await store.write(TENANT, change)
    assert HIDDEN.encode() not in everything_on(valkey_server.url)


async def test_deleting_everything_leaves_no_lists(store, valkey_server):  # noqa: F811
    many = [memory(f"pet {at}", entities=("Ann",)) for at in range(20)]
    ties = tuple(Relation("Ann", "Bob", "has", each.id) for each in many)
    await store.write(TENANT, MemoryChange(put=tuple(many), entities=(Entity("Ann", "x"),), relations=ties))
    await store.write(TENANT, MemoryChange(delete=tuple(each.id for each in many)))
    assert names_of(valkey_server.url) == {tenant_keys(TENANT)["state"]}


# -- away and back ---------------------------------------------------------------------------------------------------


async def test_a_server_that_is_away_raises_store_unavailable_and_is_used_again_when_back(tmp_path):
    with running_valkey(tmp_path) as server:
        store = connect(server, SOON)
        await put(store, memory("one"))
        server.kill()
        for call in (
            store.count(TENANT, MemoryFilter()),
            put(store, memory("two")),
            find_candidates(store, "one"),
            store.erase(TENANT),
        ):
            with pytest.raises(StoreUnavailable):
                await call
        server.start()
        # Also the scripts are gone from the server now.
        await put(store, memory("three"))
        assert [each.content for each in (await store.list_memories(TENANT, MemoryFilter())).memories] == ["three"]
        await store.close()


async def test_a_server_that_is_killed_in_the_middle_leaves_nothing_half_written(tmp_path):
    written: set[int] = set()
    with running_valkey(tmp_path, appendonly="yes", appendfsync="always") as server:
        store = connect(server)

        async def write(at: int) -> None:
            many = tuple(memory(f"word{at} number {each}", entities=(f"e{at}",)) for each in range(30))
            marker = (f"{at}", b"1")
            await store.write(TENANT, MemoryChange(put=many, markers=(marker,), entities=(Entity(f"e{at}", "x"),)))
            written.add(at)

        tasks = [asyncio.create_task(write(at)) for at in range(40)]
        while len(written) < 5:
            await asyncio.sleep(0)
        server.kill()
        await asyncio.gather(*tasks, return_exceptions=True)
        await store.close()
        server.start()
        again = connect(server)
        there = {each.name for each in await exported(again, Entity)}
        for at in range(40):
            whole = at in written or await again.get_marker(TENANT, f"{at}") is not None
            assert len(await find_candidates(again, f"word{at}")) == (30 if whole else 0)
            assert (f"e{at}" in there) == whole
        assert 5 <= len(there) < 40
        await again.close()


async def test_one_of_several_writers_with_one_requirement_wins(store):
    one = memory("one")
    await put(store, one)
    rewrites = [memory(f"by {at}", id=one.id) for at in range(8)]
    done = await asyncio.gather(
        *(store.write(TENANT, MemoryChange(put=(each,), require=((one.id, one),))) for each in rewrites),
        return_exceptions=True,
    )
    winners = [each for each, result in zip(rewrites, done, strict=True) if not isinstance(result, Conflict)]
    assert await store.get(TENANT, [one.id]) == winners
    assert winners[0].revision == revision(winners[0].content)
