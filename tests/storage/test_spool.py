from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from accordion.core.errors import StoreUnavailable
from accordion.core.ports import Key, Put
from accordion.storage.ephemeral import EphemeralStore
from accordion.storage.spool import LocalSpool, open_spool

ROW, ROW2, FOLD = Key("", "row/1"), Key("listed", "row/2"), Key("", "fold/1")


class Away(EphemeralStore):
    """A store that is away until it is told to be back; then it may fail after some writes."""

    def __init__(self) -> None:
        super().__init__()
        self.back, self.writes_left = False, 10**9

    def _check(self) -> None:
        if not self.back:
            raise StoreUnavailable("away")
        super()._check()

    async def put(self, key, value, *, ttl=None):
        self._spend()
        await super().put(key, value, ttl=ttl)

    async def put_if_absent(self, key, value, *, ttl=None):
        self._spend()
        return await super().put_if_absent(key, value, ttl=ttl)

    def _spend(self) -> None:
        self.writes_left -= 1
        if self.writes_left < 0:
            raise StoreUnavailable("away again")


async def test_what_was_held_is_in_the_store_once_it_is_back():
    main = Away()
    spool = LocalSpool(EphemeralStore(), main)
    assert await spool.hold([Put(ROW, b"one"), Put(ROW2, b"two")], [Put(FOLD, b"fold")])
    with pytest.raises(StoreUnavailable):
        await spool.publish()
    main.back = True
    assert await spool.publish() == []
    assert await main.get_many([ROW, ROW2, FOLD]) == [b"one", b"two", b"fold"]
    assert await main.scan("listed") == [("row/2", b"two")]
    assert spool.empty
    assert spool.size == 0


async def test_the_first_writer_of_a_claim_wins_and_the_loser_is_told():
    main = Away()
    spool = LocalSpool(EphemeralStore(), main)
    await spool.hold([], [Put(FOLD, b"mine")])
    main.back = True
    await main.put(FOLD, b"theirs")
    assert await spool.publish() == [(FOLD, b"theirs")]
    assert await main.get(FOLD) == b"theirs"


async def test_what_has_no_room_is_refused_whole_and_what_is_held_stays():
    main = Away()
    spool = LocalSpool(EphemeralStore(), main, capacity=1_000)
    assert await spool.hold([Put(ROW, b"x" * 500)], [])
    before = spool.size
    assert not await spool.hold([Put(ROW2, b"y" * 600)], [Put(FOLD, b"z")])
    assert spool.size == before
    main.back = True
    await spool.publish()
    assert await main.get_many([ROW, ROW2, FOLD]) == [b"x" * 500, None, None]


async def test_the_same_write_again_takes_no_more_room():
    spool = LocalSpool(EphemeralStore(), Away(), capacity=1_000)
    for _ in range(10):
        assert await spool.hold([Put(ROW, b"x" * 500)], [])


async def test_values_come_before_claims_and_what_could_not_be_published_is_still_held():
    main = Away()
    spool = LocalSpool(EphemeralStore(), main)
    await spool.hold([Put(ROW, b"one"), Put(ROW2, b"two")], [Put(FOLD, b"fold")])
    main.back, main.writes_left = True, 2
    with pytest.raises(StoreUnavailable):
        await spool.publish()
    assert await main.get_many([ROW, ROW2, FOLD]) == [b"one", b"two", None]
    assert not spool.empty
    main.writes_left = 10
    await spool.publish()
    assert await main.get(FOLD) == b"fold"


async def test_what_an_earlier_run_left_in_the_file_is_published_and_counted(tmp_path: Path):
    main = Away()
    first = open_spool(tmp_path / "spool.db", main, capacity=1_000)
    assert await first.hold([Put(ROW, b"x" * 600)], [Put(FOLD, b"fold")])
    await first.close()
    again = open_spool(tmp_path / "spool.db", main, capacity=1_000)
    assert not await again.hold([Put(ROW2, b"y" * 600)], [])
    main.back = True
    await again.publish()
    assert await main.get_many([ROW, FOLD]) == [b"x" * 600, b"fold"]
    assert again.empty
    await again.close()


async def test_what_another_worker_of_the_machine_published_takes_no_room_any_more(tmp_path: Path):
    main = Away()
    one, other = (open_spool(tmp_path / "spool.db", main, capacity=1_000) for _ in range(2))
    assert await one.hold([Put(ROW, b"x" * 600)], [])
    main.back = True
    await other.publish()
    await one.publish()
    assert one.empty
    assert await one.hold([Put(ROW2, b"y" * 600)], [])
    await one.close()
    await other.close()


async def test_a_local_store_that_cannot_be_written_holds_nothing():
    local = Away()
    spool = LocalSpool(local, EphemeralStore())
    assert not await spool.hold([Put(ROW, b"one")], [])
    local.back = True
    assert await spool.hold([Put(ROW, b"one")], [])


async def test_in_memory_nothing_is_dropped_before_the_bound():
    spool = open_spool(None, Away(), capacity=10_000)
    held = 0
    while await spool.hold([Put(Key("", f"row/{held}"), b"x" * 100)], []):
        held += 1
    assert held >= 30
    main = EphemeralStore()
    spool._main = main
    await spool.publish()
    assert len([n for n in range(held) if await main.get(Key("", f"row/{n}"))]) == held


async def test_many_writes_are_held_all_or_none(tmp_path: Path):
    path, main = tmp_path / "spool.db", Away()
    spool = open_spool(path, main, timeout=1.0)
    values = [Put(Key("", f"row/{number:03}"), b"v") for number in range(300)]
    assert await spool.hold(values[:1], [])
    with closing(sqlite3.connect(path)) as other:
        other.execute(
            "CREATE TRIGGER last BEFORE INSERT ON entry WHEN instr(new.name, 'row/299') "
            "BEGIN SELECT raise(ABORT, 'no'); END"
        )
        assert not await spool.hold(values, [Put(FOLD, b"fold")])
        other.execute("DROP TRIGGER last")
    main.back = True
    assert await spool.publish() == []
    held = await main.get_many([put.key for put in values])
    assert [at for at, value in enumerate(held) if value is not None] == [0]
    await spool.close()
