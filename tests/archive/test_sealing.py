"""What an archive with a key keeps, and how it lists it."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from accordion.archive.artifacts import row_key
from accordion.archive.sealing import SEALED
from accordion.model.ports import Append, Key, Put
from accordion.stores.encryption import AesSealer
from accordion.stores.memory_store import InMemoryStore
from tests.archive.archive_setup import DAY, OTHER, TENANT, ArchiveSetup


@given(st.binary(max_size=3_000))
def test_a_row_comes_back_byte_for_byte_whatever_it_is(wire):
    async def run() -> None:
        setup = ArchiveSetup()
        [artifact] = await setup.leave("a", wires=[wire])
        assert list((await setup.archive.load_rows(TENANT, artifact.keys)).values()) == [wire]

    asyncio.run(run())


async def test_every_value_that_somebody_said_is_sealed_and_what_lists_it_is_not():
    setup = ArchiveSetup()
    await setup.leave("a", wires=[b'{"role":"user","content":"a secret"}'])
    values = {key: held.value for key, held in setup.store._values.items()}
    plain = {key for key, value in values.items() if value[:1] != SEALED}
    assert {key.collection.partition("/")[0] or key.name.partition("/")[0] for key in plain} == {
        "held", "contents", "holders",
    }  # fmt: skip
    assert len(values) > 5
    assert b"secret" not in b"".join(values.values())


async def test_what_fits_is_written_at_once_what_does_not_in_order_and_nothing_not_at_all():
    batches: list[list[Put | Append]] = []

    class Noting(InMemoryStore):
        async def write(self, batch):
            batches.append(list(batch))
            await super().write(batch)

    archive = ArchiveSetup(Noting(max_bytes=2**30)).archive
    for count, size, sizes in ((0, 1, []), (128, 1, [128]), (129, 1, [128, 1]), (3, 2**20, [2, 1])):
        batches.clear()
        writes = [Put(Key("", f"{at}"), bytes(size)) for at in range(count)]
        await archive.write(writes)
        assert [len(batch) for batch in batches] == sizes
        assert [write for batch in batches for write in batch] == writes


async def test_a_sealed_value_that_was_moved_to_another_place_is_missing():
    setup = ArchiveSetup()
    one, two = await setup.leave("a", wires=[b'{"a":1}', b'{"b":2}'])
    await setup.store.put(row_key(two.keys[0]), await setup.store.get(row_key(one.keys[0])))
    assert await setup.archive.load_rows(TENANT, [*one.keys, *two.keys]) == {one.keys[0]: b'{"a":1}'}
    assert await setup.archive.load_rows(OTHER, one.keys) == {}


async def test_with_another_key_everything_is_missing_and_nothing_fails():
    setup = ArchiveSetup()
    [artifact] = await setup.leave("a")
    other = ArchiveSetup(setup.store, sealer=AesSealer([b"z" * 32]))
    assert await other.archive.load_rows(TENANT, artifact.keys) == {}
    assert await other.archive.load_artifacts(TENANT, [artifact.id]) == [None]
    assert await other.archive.list_artifacts(TENANT, "s-1") == []
    assert await other.archive.load_records(TENANT, artifact.id) == []


async def test_one_value_of_a_session_is_kept_sealed_and_listed():
    setup, key = ArchiveSetup(), Key("", "insertion/1")
    await setup.archive.write(setup.archive.single_value_puts(TENANT, "s-1", "insertion", key, b"woven", ttl=60.0))
    value = await setup.store.get(key)
    assert value[:1] == SEALED
    assert setup.archive.open_value(TENANT, key, value) == b"woven"
    assert setup.archive.open_value(OTHER, key, value) is None
    assert setup.archive.open_value(TENANT, key, None) is None
    assert (await setup.export_and_erasure.erase(TENANT, "s-1")).verified
    assert await setup.store.get(key) is None


async def test_what_another_entry_of_this_worker_counts_is_not_counted_again_for_a_day():
    setup = ArchiveSetup(InMemoryStore())
    wires = [b'{"content":"%s"}' % (b"long" * 200)]
    held = []
    for at, wait in enumerate((0, 60, 2 * DAY)):
        setup.clock.advance(wait)
        await setup.leave(f"{at}", wires=wires)
        held.append((await setup.bounds.sweep(TENANT.archive_namespace)).stored_bytes)
    first, second, third = held[0], held[1] - held[0], held[2] - held[1]
    assert second < first == third
