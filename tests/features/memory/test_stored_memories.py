"""What the memories of every store do: SQLite's, those of one server and of a cluster, and those in memory."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from accordion.features.memory.entries import parse_line
from accordion.features.memory.memories import Conflict, MemoryChange, MemoryFilter, MemoryPage
from accordion.model.errors import BadRequest, StoreUnavailable
from accordion.model.ports import Append, Key, Put
from accordion.stores.encryption import AesSealer
from accordion.stores.memory_store import InMemoryStore
from accordion.stores.redis import RedisStore
from accordion.stores.sqlite import SqliteStore
from tests.features.memory.memory_stores import ALL, OTHER, PET, TENANT, WORK, find_candidates, memory, put
from tests.features.memory.memory_stores import open_memories as open_in
from tests.valkey import Valkey, ValkeyCluster, valkey_cluster, valkey_server  # noqa: F401


@pytest.fixture(params=["memory", "sqlite", "sqlite sealed", "valkey", "cluster sealed"])
async def open_memories(request, tmp_path):
    """Opens stores of one kind, all over the same memories."""
    kind, _, sealed = request.param.partition(" ")
    sealer = AesSealer([b"k" * 32]) if sealed else None
    stores = []

    def open_store():
        if kind == "memory":
            return stores[0] if stores else InMemoryStore()
        if kind == "sqlite":
            return SqliteStore(tmp_path / "store.db", timeout=20.0)
        server: Valkey | ValkeyCluster = request.getfixturevalue(f"valkey_{'server' if kind == 'valkey' else kind}")
        if not stores:
            server.command("FLUSHALL")
        return RedisStore(server.url.replace("+cluster", ""), timeout=20.0, cluster=kind == "cluster")

    def another():
        stores.append(open_store())
        return open_in(stores[-1], sealer=sealer)

    yield another
    for each in stores:
        await each.close()


@pytest.fixture
def store(open_memories):
    return open_memories()


# -- writing and reading ---------------------------------------------------------------------------------------------


async def test_memories_are_read_in_the_order_of_the_request(store):
    one, two = memory("one", topics=("a",), sources=(("mem-x", "r"),)), memory("two")
    await put(store, one, two)
    assert await store.get(TENANT, [two.id, "mem-none", one.id, two.id]) == [two, None, one, two]


async def test_it_is_there_for_another_process_and_after_a_restart(store, open_memories):
    one = memory("one")
    await put(store, one)
    assert await open_memories().get(TENANT, [one.id]) == [one]


async def test_a_tenant_finds_nothing_of_another(store):
    one = memory("the secret word", topics=("a",), entities=("Ann",))
    await store.write(TENANT, MemoryChange(put=(one,), markers=(("m", b"1"),)))
    assert await store.get(OTHER, [one.id]) == [None]
    assert await find_candidates(store, "secret", vector=WORK, tenant=OTHER) == []
    assert await store.list_memories(OTHER, MemoryFilter()) == MemoryPage()
    assert await store.find_unknown_entities(OTHER, ["Ann"]) == {"Ann"}
    assert await store.get_marker(OTHER, "m") is None


# -- changes ---------------------------------------------------------------------------------------------------------


async def test_a_memory_that_is_written_again_takes_the_place_of_the_old(store):
    old = memory("the old words", topics=("before",))
    new = memory("the new text", id=old.id, topics=("after",))
    await put(store, old)
    await put(store, new)
    assert await store.count(TENANT, MemoryFilter()) == 1
    assert await find_candidates(store, "words") == []
    assert [each.memory for each in await find_candidates(store, "text")] == [new]
    assert await store.list_memories(TENANT, MemoryFilter(topics=("before",))) == MemoryPage()


async def test_a_change_that_conflicts_writes_nothing(store):
    one, two = memory("one"), memory("two")
    await put(store, one)
    await store.write(TENANT, MemoryChange(markers=(("done", b"1"),)))
    for change in (
        MemoryChange(put=(two,), delete=(one.id,), require=((one.id, replace(one, topics=("older",))),)),
        MemoryChange(put=(two,), delete=(one.id,), require=((one.id, None),)),
        MemoryChange(put=(two,), delete=(one.id,), require=((two.id, two),)),
        MemoryChange(put=(two,), delete=(one.id,), markers=(("new", b"1"), ("done", b"2"))),
    ):
        with pytest.raises(Conflict):
            await store.write(TENANT, change)
    assert await store.get(TENANT, [one.id, two.id]) == [one, None]
    assert await store.get_marker(TENANT, "done") == b"1"
    assert await store.get_marker(TENANT, "new") is None


async def test_a_change_whose_requirements_hold_is_written(store):
    one, two = memory("one"), memory("two")
    await put(store, one)
    await store.write(TENANT, MemoryChange(put=(two,), delete=(one.id,), require=((one.id, one), (two.id, None))))
    assert await store.get(TENANT, [one.id, two.id]) == [None, two]


async def test_one_of_two_concurrent_writers_wins(store, open_memories):
    stores = store, open_memories()
    changes = [MemoryChange(put=(memory(f"by {at}"),), markers=(("once", b"%d" % at),)) for at in range(8)]
    done = await asyncio.gather(
        *(stores[at % 2].write(TENANT, change) for at, change in enumerate(changes)), return_exceptions=True
    )
    winners = [at for at, each in enumerate(done) if not isinstance(each, Conflict)]
    assert len(winners) == 1
    assert await store.get_marker(TENANT, "once") == b"%d" % winners[0]
    assert [each.content for each in (await store.list_memories(TENANT, MemoryFilter())).memories] == [
        f"by {winners[0]}"
    ]


async def test_a_marker_named_twice_in_a_change_is_a_conflict(store):
    with pytest.raises(Conflict):
        await store.write(TENANT, MemoryChange(put=(memory("one"),), markers=(("m", b"1"), ("m", b"2"))))
    assert await store.get_marker(TENANT, "m") is None
    assert await store.count(TENANT, MemoryFilter()) == 0


async def test_a_memory_that_is_deleted_is_found_by_nothing(store):
    many = [memory(f"pet {at}", topics=("a",), tags=("b",), conversation="c", first=at, last=at) for at in range(7)]
    await put(store, *many)
    await store.write(TENANT, MemoryChange(delete=(many[0].id, many[3].id, many[6].id)))
    left = {many[at].id for at in (1, 2, 4, 5)}
    wanted = MemoryFilter(topics=("a",), tags=("b",), conversation="c")
    assert {each.memory.id for each in await find_candidates(store, "pet", wanted=wanted)} == left
    assert {each.memory.id for each in await find_candidates(store, vector=PET, wanted=wanted)} == left
    assert {each.id for each in (await store.list_memories(TENANT, wanted)).memories} == left
    assert await store.count(TENANT, wanted) == 4


# -- finding ---------------------------------------------------------------------------------------------------------


async def test_words_are_compared_by_stem_and_any_is_enough(store):
    await put(store, memory("She was running home."), memory("Nobody walks."))
    assert [each.memory.content for each in await find_candidates(store, "runs", "violin")] == ["She was running home."]


async def test_what_was_said_before_and_the_author_are_searched_but_the_text_counts_most(store):
    await put(
        store,
        memory("Every day, and in the evening.", context="Do you play the violin?"),
        memory("I play the violin, and in the evening."),
        memory("Neither of it, only in the evening.", author="Violin"),
    )
    contents = [each.memory.content for each in await find_candidates(store, "violin")]
    assert contents[0] == "I play the violin, and in the evening."
    assert len(contents) == 3


async def test_words_are_weighed_by_this_tenants_memories_alone(store):
    await put(store, *(memory(f"common {at}") for at in range(20)), memory("rare"), memory("nothing"))
    alone = [each.lexical for each in await find_candidates(store, "rare", "common")]
    await put(store, *(memory(f"rare {at}") for at in range(500)), tenant=OTHER)
    assert [each.lexical for each in await find_candidates(store, "rare", "common")] == alone
    assert alone[0] > 2 * alone[1]


async def test_vectors_find_what_shares_no_word_and_both_ranks_are_told(store):
    pet, work = memory("a pet of hers"), memory("her work")
    await put(store, pet, work)
    (first,) = await find_candidates(store, vector=PET)
    assert (first.memory, first.lexical_rank, first.dense_rank) == (pet, -1, 0)
    assert first.dense == pytest.approx(1.0)
    assert first.tokens == b"a pet of"
    both = await find_candidates(store, "work", vector=PET)
    assert {(each.memory.id, each.lexical_rank, each.dense_rank) for each in both} == {
        (pet.id, -1, 0),
        (work.id, 0, -1),
    }


async def test_vectors_of_another_embedder_are_not_compared(store):
    await put(store, memory("a pet"))
    assert await find_candidates(store, vector=b"else" + PET[4:]) == []
    assert await find_candidates(store, vector=PET + b"\x00") == []


async def test_at_most_a_pool_is_given(store):
    await put(store, *(memory(f"pet {at}") for at in range(30)))
    assert len(await store.find_candidates(TENANT, ("pet",), PET, MemoryFilter(), pool=10)) == 10


@pytest.mark.parametrize("changes", [1, 3, 70])
async def test_a_search_finds_what_another_worker_changed_since_the_last_one(store, open_memories, changes):
    other, kept, old = open_memories(), memory("the word stays"), memory("the word, once")
    await put(store, kept, old, *(memory(f"filler {at}") for at in range(30)))
    assert len(await find_candidates(other, "word")) == len(await find_candidates(store, "word")) == 2
    for at in range(changes):
        await put(store, memory(f"word number{at}"))
        await put(store, memory(f"a text {at}", id=old.id))
    await store.write(TENANT, MemoryChange(delete=(kept.id,)))
    wanted = {f"word number{at}" for at in range(changes)}
    assert {each.memory.content for each in await other.find_candidates(TENANT, ("word",), b"", ALL, pool=99)} == wanted
    assert await other.count(TENANT, ALL) == 31 + changes
    assert [each.memory.content for each in await find_candidates(other, "text")] == [f"a text {changes - 1}"]
    await store.erase(TENANT)
    assert await other.count(TENANT, ALL) == 0


FILTERS = [
    (MemoryFilter(), {"fact", "choice", "summary"}),
    (MemoryFilter(types=("decision",)), {"choice"}),
    (MemoryFilter(types=("summary_archived", "session")), {"old", "session"}),
    (MemoryFilter(topics=("AUTH",)), {"fact", "choice"}),
    (MemoryFilter(topics=("auth", "billing")), {"fact", "choice", "summary"}),
    (MemoryFilter(tags=("x", "Y")), {"choice"}),
    (MemoryFilter(project="p"), {"choice"}),
    (MemoryFilter(project=""), {"fact", "summary"}),
    (MemoryFilter(since=2.0), {"choice", "summary"}),
    (MemoryFilter(since=2.0, until=2.0), {"choice"}),
    (MemoryFilter(conversation="talk"), {"fact"}),
]


@pytest.mark.parametrize(("wanted", "names"), FILTERS)
async def test_a_filter_holds_for_lists_counts_words_and_vectors(store, wanted, names):
    await put(
        store,
        memory("fact word", topics=("auth",), created=1.0, conversation="talk", first=0, last=0),
        memory("choice word", type="decision", macro_topics=("Auth",), tags=("x", "y"), project="p", created=2.0),
        memory("summary word", type="summary", topics=("billing",), tags=("x",), created=3.0),
        memory("old word", type="summary_archived", created=4.0),
        memory("session word", type="session", created=5.0),
    )
    assert {each.content.split()[0] for each in (await store.list_memories(TENANT, wanted)).memories} == names
    assert await store.count(TENANT, wanted) == len(names)
    assert {each.memory.content.split()[0] for each in await find_candidates(store, "word", wanted=wanted)} == names
    assert {
        each.memory.content.split()[0] for each in await find_candidates(store, wanted=wanted, vector=WORK)
    } == names


async def test_a_filter_of_active_memories_leaves_out_superseded_and_resolved_ones(store):
    old, new = memory("the old word", status="superseded"), memory("the new word")
    done = memory("a resolved word", type="question", status="resolved")
    await put(store, old, new, done)
    active = MemoryFilter(active_only=True)
    assert [each.memory for each in await find_candidates(store, "word", wanted=active)] == [new]
    assert await store.count(TENANT, active) == 1
    assert {each.memory for each in await find_candidates(store, "word")} == {old, new, done}
    await put(store, replace(old, status="active"))
    assert await store.count(TENANT, active) == 2


async def test_lists_are_newest_first_page_by_page(store):
    await put(store, *(memory(f"{at}", created=float(at // 2)) for at in range(9)))
    seen, after = [], ""
    while after or not seen:
        page = await store.list_memories(TENANT, MemoryFilter(), after=after, limit=3)
        seen += [each.content for each in page.memories]
        after = page.next
    assert seen == [str(at) for at in reversed(range(9))]
    assert (await store.list_memories(TENANT, MemoryFilter(), limit=9)).next == ""
    assert len((await store.list_memories(TENANT, MemoryFilter(), limit=-1)).memories) == 9


@pytest.mark.parametrize("created", [0.0, 1e-9, 1_767_225_600.123456, 253_402_300_799.0])
async def test_a_list_goes_on_behind_what_was_deleted_or_edited_meanwhile(store, created):
    many = [memory(f"number {at}", created=created) for at in range(6)]
    await put(store, *many)
    page = await store.list_memories(TENANT, MemoryFilter(), limit=2)
    assert page.memories == (many[5], many[4])
    await store.write(TENANT, MemoryChange(delete=(many[4].id, many[3].id)))
    await put(store, memory("written meanwhile", created=created), replace(many[5], content="edited"))
    assert (await store.list_memories(TENANT, MemoryFilter(), after=page.next)).memories == (many[2], many[1], many[0])


@pytest.mark.parametrize("after", ["mem-none", "00", "00" * 13, "zz" * 12])
async def test_a_list_that_nobody_began_does_not_go_on(store, after):
    for _ in range(2):
        with pytest.raises(BadRequest) as raised:
            await store.list_memories(TENANT, MemoryFilter(), after=after)
        assert (raised.value.code, raised.value.param) == ("invalid_page", "after")
        await put(store, memory("one"))


async def test_entities_are_known_while_a_memory_names_them_whatever_their_case(store):
    one = memory("one", entities=("Ann", "Bob"))
    await put(store, one, memory("two", entities=("bob",)))
    assert await store.find_unknown_entities(TENANT, ["ANN", "Bob", "Cid"]) == {"Cid"}
    await store.write(TENANT, MemoryChange(delete=(one.id,)))
    assert await store.find_unknown_entities(TENANT, ["Ann", "Bob"]) == {"Ann"}


# -- export and erasing ----------------------------------------------------------------------------------------------


async def test_an_export_has_all_of_a_tenant_each_line_complete(store):
    memories = [memory(f"content {at}\nwith lines") for at in range(3)] + [memory("old", type="summary_archived")]
    await store.write(TENANT, MemoryChange(put=tuple(memories), markers=(("done", b"\x00"),)))
    lines = [line async for line in store.export(TENANT)]
    assert all(b"\n" not in line and json.loads(line) for line in lines)
    read = [parse_line(line) for line in lines]
    assert read == [*memories, ("done", b"\x00")]
    assert [line async for line in store.export(OTHER)] == []


async def test_an_export_has_all_that_stays_whatever_is_deleted_or_rewritten_meanwhile(store):
    many = [memory(f"number {at}", created=float(at)) for at in range(1_100)]
    rewritten = memory("rewritten", id=many[10].id, created=many[10].created)
    # Pages have 500: what a next page might go on from is deleted here.
    gone = {each.id for each in many[550:650]}
    await put(store, *many)
    lines = store.export(TENANT)
    read = [parse_line(await anext(lines))]
    await store.write(TENANT, MemoryChange(put=(rewritten,), delete=tuple(gone)))
    read += [parse_line(line) async for line in lines]
    assert {each.id for each in many} - gone <= {each.id for each in read}


async def test_a_tenant_that_was_erased_begins_anew(store):
    one, kept = memory("the word"), memory("of the other tenant")
    await store.write(
        TENANT,
        MemoryChange(put=(one,), markers=(("m", b"1"),)),
    )
    await put(store, kept, tenant=OTHER)
    assert await store.erase(TENANT) == 1
    assert await store.erase(TENANT) == 0
    assert [line async for line in store.export(TENANT)] == []
    assert await find_candidates(store, "word", vector=WORK) == []
    assert await store.get(OTHER, [kept.id]) == [kept]
    await store.write(TENANT, MemoryChange(put=(memory("anew"),), markers=(("m", b"2"),), require=((one.id, None),)))
    assert await store.count(TENANT, MemoryFilter()) == 1


# -- writers that end or race ----------------------------------------------------------------------------------------


class FailingStore(InMemoryStore):
    """A store that is away from its nth write on, as for a process that ends then."""

    def __init__(self) -> None:
        super().__init__()
        self.writes, self.last = 0, 10**9

    def _count(self) -> None:
        self.writes += 1
        if self.writes > self.last:
            raise StoreUnavailable("away")

    async def write(self, batch: Sequence[Put | Append]) -> dict[Key, bytes]:
        self._count()
        return await super().write(batch)

    async def put_if_absent(self, key: Key, value: bytes, *, ttl: float | None = None) -> bytes:
        self._count()
        return await super().put_if_absent(key, value, ttl=ttl)

    async def delete(self, keys: Sequence[Key]) -> int:
        self._count()
        return await super().delete(keys)


async def names(store: InMemoryStore) -> list[str]:
    """The names in the tenant's collection."""
    return [name for name, _ in await store.scan(f"memories/{TENANT.archive_namespace}")]


OLD, GONE, NEW = memory("the old words", entities=("Ann",)), memory("gone words"), memory("new words")


@pytest.mark.parametrize("last", range(5))
async def test_a_writer_that_ends_at_any_write_leaves_a_change_whole_or_not_at_all(last):
    store = FailingStore()
    writer = open_in(store)
    await put(writer, OLD, GONE)
    store.writes, store.last = 0, last
    changed = memory("the changed words", id=OLD.id)
    change = MemoryChange(put=(changed, NEW), delete=(GONE.id,), markers=(("m", b"1"),))
    with pytest.raises(StoreUnavailable) if last < 4 else contextlib.nullcontext():
        await writer.write(TENANT, change)
    store.last = 10**9
    reader = open_in(store)
    is_written = last > 1
    found = {each.memory for each in await find_candidates(reader, "words")}
    assert found == ({changed, NEW} if is_written else {OLD, GONE})
    assert await reader.get(TENANT, [OLD.id]) == [changed if is_written else OLD]
    assert await reader.get_marker(TENANT, "m") == (b"1" if is_written else None)
    # The next worker has removed what was replaced; an erasure removes what nobody names, too.
    raw = [value for _, value in await store.scan(f"memories/{TENANT.archive_namespace}")]
    assert any(b"gone words" in value for value in raw) == (not is_written)
    await put(reader, memory("afterwards"))
    assert await reader.count(TENANT, ALL) == 3
    await reader.erase(TENANT)
    assert [name.split("/")[0] for name in await names(store)] == ["change"]


async def test_a_writer_that_lost_its_number_leaves_nothing_behind_but_its_change():
    store = InMemoryStore()
    writers = [open_in(store) for _ in range(4)]
    await asyncio.gather(*(put(each, memory(f"by {at}")) for at, each in enumerate(writers)))
    assert await writers[0].count(TENANT, ALL) == 4
    assert sum(name.startswith("memory/") for name in await names(store)) == 4


async def test_what_a_writer_wrote_meanwhile_is_checked_again():
    store = InMemoryStore()
    first, second = open_in(store), open_in(store)
    one = memory("one")
    await put(first, one)
    rewrites = [memory(f"by {at}", id=one.id) for at in range(8)]
    done = await asyncio.gather(
        *(
            (first, second)[at % 2].write(TENANT, MemoryChange(put=(each,), require=((one.id, one),)))
            for at, each in enumerate(rewrites)
        ),
        return_exceptions=True,
    )
    winners = [each for each, result in zip(rewrites, done, strict=True) if not isinstance(result, Conflict)]
    assert await second.get(TENANT, [one.id]) == winners


async def test_a_memory_that_is_rewritten_while_it_is_chosen_is_returned_as_it_is_now():
    store, other = InMemoryStore(), None
    old = memory("the word")
    new = memory("the word again", id=old.id)

    class RewritingStore(InMemoryStore):
        async def get_many(self, keys: Sequence[Key]) -> list[bytes | None]:
            if other is not None and await other.get(TENANT, [old.id]) == [old]:
                await put(other, new)
            return await store.get_many(keys)

    rewriting = RewritingStore()
    rewriting.scan = store.scan
    await put(open_in(store), old)
    other = open_in(store)
    assert [each.memory for each in await find_candidates(open_in(rewriting), "word")] == [new]


async def test_an_erasure_removes_what_a_writer_that_is_late_has_prepared():
    store = InMemoryStore()
    eraser, writer = open_in(store), open_in(store)
    await put(eraser, OLD)
    late = asyncio.Event()

    class LateStore(InMemoryStore):
        async def put_if_absent(self, key: Key, value: bytes, *, ttl: float | None = None) -> bytes:
            if not late.is_set():
                late.set()
                await eraser.erase(TENANT)
            return await store.put_if_absent(key, value, ttl=ttl)

    delayed = LateStore()
    delayed.scan, delayed.get_many, delayed.write, delayed.delete = (
        store.scan,
        store.get_many,
        store.write,
        store.delete,
    )
    writer = open_in(delayed)
    with pytest.raises(Conflict):
        await writer.write(TENANT, MemoryChange(put=(NEW,), require=((OLD.id, OLD),)))
    assert [name.split("/")[0] for name in await names(store)] == ["change"]
    await put(writer, NEW)
    assert await eraser.get(TENANT, [NEW.id, OLD.id]) == [NEW, None]


async def test_another_store_in_the_place_of_this_one_is_read_anew():
    store = InMemoryStore()
    memories = open_in(store)
    await put(memories, OLD)
    await store.delete([Key(f"memories/{TENANT.archive_namespace}", name) for name in await names(store)])
    memories.forget()
    assert await memories.count(TENANT, ALL) == 0
    await put(memories, NEW)
    assert await open_in(store).get(TENANT, [NEW.id]) == [NEW]


# -- many ------------------------------------------------------------------------------------------------------------


async def test_a_great_many_memories_are_found_listed_and_removed(tmp_path):
    store = SqliteStore(tmp_path / "store.db", timeout=20.0)
    memories, many = open_in(store), [memory(f"pet x{at}", created=float(at)) for at in range(2_500)]
    for at in range(0, len(many), 500):
        await put(memories, *many[at : at + 500])
    assert [each.memory for each in await find_candidates(memories, "x1777")] == [many[1777]]
    behind = (await memories.list_memories(TENANT, ALL, limit=1_200)).next
    rest = await memories.list_memories(TENANT, ALL, after=behind, limit=3)
    assert rest.memories == (many[1299], many[1298], many[1297])
    await memories.write(TENANT, MemoryChange(delete=tuple(each.id for each in many[::2])))
    for each in (memories, open_in(store)):
        assert await each.count(TENANT, ALL) == 1_250
        assert await find_candidates(each, "x1776") == []
        candidates = await each.find_candidates(TENANT, (), PET, ALL, pool=2_000)
        assert {candidate.memory for candidate in candidates} == set(many[1::2])
    await store.close()


async def test_a_memory_of_more_words_than_anybody_says_is_stored():
    words = [chr(at) for at in (*range(0x4E00, 0x9FA6), *range(0xAC00, 0xD7A4), *range(0x20000, 0x2A6D6))]
    memories, many = open_in(InMemoryStore()), memory(" ".join(words), type="session")
    await put(memories, many)
    wanted = MemoryFilter(types=("session",))
    assert [each.memory for each in await find_candidates(memories, words[7], wanted=wanted)] == [many]
