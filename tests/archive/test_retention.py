from __future__ import annotations

import os

from hypothesis import given
from hypothesis import strategies as st

from accordion.archive import archive_entries
from accordion.archive.archive import CompactionWrite
from accordion.archive.archive_entries import ArchiveEntry
from accordion.archive.retention import ROUND_SECONDS, sort_by_use
from accordion.model.ports import Key
from tests.archive.archive_setup import DAY, OTHER, TENANT, ArchiveSetup, wire
from tests.fakes import FickleStore

NAMESPACE = TENANT.archive_namespace


def big(name: str) -> bytes:
    return wire(name + os.urandom(5_000).hex())


async def test_the_oldest_go_until_a_tenant_is_well_below_its_bound(store):
    setup = ArchiveSetup(store, max_bytes=60_000)
    left = []
    for at in range(20):
        setup.clock.advance(60)
        left += await setup.leave(f"{at}", f"s-{at}", [big(f"{at}")])
        await setup.tasks.done()
    there = [await setup.there(artifact) for artifact in left]
    assert there == sorted(there)
    assert 5 < sum(there) < 12
    assert setup.swept[-1].stored_bytes <= 60_000
    assert sum(swept.entries for swept in setup.swept) == 20 - sum(there)
    assert await store.get(Key("", "compaction/0")) is None
    assert await store.get(Key("", "compaction/19")) is not None
    assert await setup.archive.load_artifacts(TENANT, ["art_0_0"]) == [None]


async def test_the_bytes_held_are_known_at_the_start_and_grow_with_every_write(store):
    setup = ArchiveSetup(store)
    await setup.leave("old", "s-1", [big("old")])
    await setup.bounds.run_round()
    held = setup.swept[-1].stored_bytes
    assert held > 5_000
    restarted = ArchiveSetup(store, clock=setup.clock)
    assert await restarted.bounds.run_round() is None, "the last round was a moment ago"
    assert restarted.swept[-1].stored_bytes == held
    await restarted.leave("new", "s-2", [big("new")])
    assert restarted.swept[-1].stored_bytes > held + 5_000


async def test_the_newest_entry_stays_however_large_it_is():
    setup = ArchiveSetup(max_bytes=100)
    [old] = await setup.leave("old", "s-1", [big("old")])
    setup.clock.advance(60)
    [new] = await setup.leave("new", "s-2", [big("new")])
    await setup.tasks.done()
    assert [await setup.there(old), await setup.there(new)] == [False, True]


async def test_content_of_a_newer_entry_stays_and_is_counted_there(store):
    setup = ArchiveSetup(store)
    shared, own, last = big("shared"), big("own"), big("last")
    [one, gone] = await setup.leave("old", "s-1", [shared, own])
    setup.clock.advance(60)
    [two] = await setup.leave("new", "s-2", [shared])
    setup.clock.advance(60)
    [third] = await setup.leave("last", "s-3", [last])
    before = (await setup.bounds.sweep(NAMESPACE)).stored_bytes
    small = ArchiveSetup(store, max_bytes=before - 3_000, clock=setup.clock)
    swept = await small.bounds.sweep(NAMESPACE)
    assert swept.entries == 1
    assert [await small.there(each) for each in (one, gone, two, third)] == [False, False, True, True]
    assert await small.archive.load_rows(TENANT, one.keys)
    assert swept.stored_bytes == (await small.bounds.sweep(NAMESPACE)).stored_bytes
    assert swept.stored_bytes > before - swept.size - 100
    assert 4_000 < swept.size < 9_000


async def test_another_tenant_is_not_touched(store):
    setup = ArchiveSetup(store, max_bytes=20_000)
    [theirs] = await setup.leave("theirs", "s-1", [big("theirs")], tenant=OTHER)
    for at in range(5):
        setup.clock.advance(60)
        await setup.leave(f"{at}", "s-1", [big(f"{at}")])
        await setup.tasks.done()
    assert await setup.there(theirs, OTHER)


async def test_entries_over_the_retention_time_are_removed(store):
    setup = ArchiveSetup(store)
    [old] = await setup.leave("old", "s-1")
    short = ArchiveSetup(store, retention=DAY, clock=setup.clock)
    setup.clock.advance(2 * DAY)
    assert (await short.bounds.sweep(NAMESPACE)).entries == 1
    assert not await setup.there(old)
    assert await store.scan("holders") == []


async def test_a_compaction_in_use_keeps_those_that_it_goes_on_from():
    setup = ArchiveSetup()
    [first] = await setup.leave("one", "s-1", [big("one")])
    [second] = await setup.leave("two", "s-2", [big("two")], base="one")
    setup.clock.advance(60)
    [other] = await setup.leave("other", "s-3", [big("other")])
    [newest] = await setup.leave("newest", "s-4", [big("newest")])
    setup.clock.advance(DAY)
    await setup.archive.note_use(TENANT, "f-two")
    held = (await setup.bounds.sweep(NAMESPACE)).stored_bytes
    small = ArchiveSetup(setup.store, max_bytes=held - 1_000, clock=setup.clock)
    assert (await small.bounds.sweep(NAMESPACE)).entries == 1
    assert [await small.there(each) for each in (first, second, other, newest)] == [True, True, False, True]


async def test_an_artifact_that_somebody_read_stays_for_longer():
    setup = ArchiveSetup()
    [read] = await setup.leave("read", "s-1", [big("read")])
    [idle] = await setup.leave("idle", "s-2", [big("idle")])
    [newest] = await setup.leave("newest", "s-3", [big("newest")])
    setup.clock.advance(60)
    await setup.archive.note_read(TENANT, read)
    held = (await setup.bounds.sweep(NAMESPACE)).stored_bytes
    small = ArchiveSetup(setup.store, max_bytes=held - 1_000, clock=setup.clock)
    await small.bounds.sweep(NAMESPACE)
    assert [await small.there(each) for each in (read, idle, newest)] == [True, False, True]


async def test_one_worker_at_a_time_makes_the_round_and_no_other_does_so_soon(store):
    one, other = ArchiveSetup(store), ArchiveSetup(store)
    await one.leave("a")
    await one.leave("b", tenant=OTHER)
    async with store.lock(Key("", "bounds"), lease=60):
        assert await one.bounds.run_round() is None
    swept = await one.bounds.run_round()
    assert (swept.tenants, swept.entries) == (2, 0)
    assert swept.stored_bytes > 0
    assert one.swept == [swept]
    assert await other.bounds.run_round() is None
    assert ROUND_SECONDS > 60


async def test_a_worker_learns_what_others_wrote_before_it():
    setup = ArchiveSetup(max_bytes=30_000)
    old = [(await setup.leave(f"{at}", f"s-{at}", [big(f"{at}")]))[0] for at in range(3)]
    await setup.tasks.done()
    assert (await setup.bounds.sweep(NAMESPACE)).entries == 0
    setup.clock.advance(60)
    other = ArchiveSetup(setup.store, max_bytes=30_000, clock=setup.clock)
    for at in range(3):
        await other.leave(f"new{at}", f"s-new{at}", [big("new")])
    await other.tasks.done()
    assert [await other.there(each) for each in old] != [True] * 3
    assert other.swept[-1].stored_bytes <= 30_000


async def test_while_the_store_is_away_nothing_is_looked_through_and_nothing_fails():
    setup = ArchiveSetup(FickleStore())
    await setup.leave("a")
    setup.store.away = True
    assert await setup.bounds.run_round() is None
    setup.bounds.note_write(NAMESPACE, 2**40)
    await setup.tasks.done()
    setup.store.away = False
    setup.bounds.note_write(NAMESPACE, 1)
    await setup.tasks.done()
    assert setup.swept == []


def entry(name: str, session: str, used: float, base: str = "") -> ArchiveEntry:
    return ArchiveEntry("compaction", name, session, used, used, 10, base)


def test_entries_come_by_the_last_use_of_their_session():
    found = [entry("a", "s-1", 1), entry("b", "s-2", 2), entry("c", "s-1", 3), entry("d", "s-3", 4, base="b")]
    assert [each.id for each in sort_by_use(found)] == ["a", "c", "b", "d"]


@given(
    st.lists(
        st.tuples(st.integers(0, 8), st.integers(0, 3), st.floats(0, 100), st.integers(0, 8)), max_size=12,
        unique_by=lambda each: each[0],
    )
)  # fmt: skip
def test_whatever_compactions_go_on_from_the_order_is_whole_and_comes_to_an_end(made):
    found = [entry(f"{name}", f"s-{session}", used, f"{base}") for name, session, used, base in made]
    ordered = sort_by_use(found)
    assert sorted(each.id for each in ordered) == sorted(each.id for each in found)
    assert [each.used for each in ordered] == sorted(each.used for each in ordered)
    assert all(each.used >= next(other.used for other in found if other.id == each.id) for each in ordered)


async def test_an_index_entry_is_written_before_its_content():
    setup = ArchiveSetup()
    artifacts = await setup.leave("a")
    puts = setup.archive.build_puts(TENANT, [], artifacts)
    listed = setup.archive.build_puts(TENANT, [], artifacts, CompactionWrite("f-a", "s-1", 1.0))
    assert [put.key for put in listed[-len(puts) :]] == [put.key for put in puts]
    assert {put.key for put in listed[: -len(puts)]} == {
        Key(archive_entries.entries_collection(NAMESPACE), ArchiveEntry("compaction", "f-a", "s-1", 1, 1, 1).name),
        archive_entries.contents_key(NAMESPACE, "f-a"),
    }


async def test_entries_that_nobody_can_read_are_passed_over():
    setup = ArchiveSetup(max_bytes=100)
    [old] = await setup.leave("old", "s-1", [big("old")])
    await setup.store.put(Key(archive_entries.entries_collection(NAMESPACE), "odd/compaction/x"), b"\xc1")
    await setup.store.put(archive_entries.contents_key(NAMESPACE, "f-old"), b"\xc1")
    await setup.store.put(archive_entries.totals_key(NAMESPACE), b"\xc1")
    setup.clock.advance(60)
    await setup.leave("new", "s-2", [big("new")])
    await setup.tasks.done()
    swept = await ArchiveSetup(setup.store, max_bytes=100, clock=setup.clock).bounds.sweep(NAMESPACE)
    assert swept.stored_bytes > 0
    assert await setup.there(old)
