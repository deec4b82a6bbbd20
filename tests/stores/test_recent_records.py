"""Copies of recent records: the other workers of the machine read them while the store is away."""

from __future__ import annotations

from pathlib import Path

import pytest

from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Append, Key, Put
from accordion.stores.memory_store import InMemoryStore
from accordion.stores.recent_records import RecentRecords
from accordion.stores.spool import SpooledStore, open_spool
from accordion.stores.sqlite import SqliteStore
from tests.stores.test_spool import FOLD, HERE, LOG, ROW, THERE, Away


async def worker(path: Path, main: InMemoryStore, identity: bytes = HERE, **more) -> SpooledStore:
    spool = open_spool(path, address_hash="redis", has_copies=True, **more)
    await spool.identify(identity, b"secret", is_persistent=True)
    return SpooledStore(main, spool, is_copied=lambda key: key.name.startswith("fold/"))


@pytest.fixture
def main() -> Away:
    store = Away()
    store.back = True
    return store


async def test_records_from_before_an_outage_are_read_by_another_worker(tmp_path: Path, main: Away):
    one, two = await worker(tmp_path / "s.db", main), await worker(tmp_path / "s.db", main)
    await two.publish()
    await one.write([Put(FOLD, b"fold"), Put(ROW, b"row"), Append(LOG, b"a")])
    await one.close()
    assert two.spool.is_empty
    main.back = False
    assert await two.get_many([FOLD, ROW]) == [b"fold", None]
    with pytest.raises(StoreUnavailable):
        await two.get(ROW)
    assert await two.put_if_absent(FOLD, b"second") == b"fold"
    main.back = True
    await two.publish()
    assert await main.get(FOLD) == b"fold"
    await two.close()


async def test_records_spooled_in_an_outage_are_read_in_the_next(tmp_path: Path, main: Away):
    one, two = await worker(tmp_path / "s.db", main), await worker(tmp_path / "s.db", main)
    main.back = False
    assert await one.put_if_absent(FOLD, b"fold") == b"fold"
    main.back = True
    await one.publish()
    await one.close()
    main.back = False
    assert await two.get(FOLD) == b"fold"
    await two.close()


async def test_copies_are_those_of_one_store_and_of_what_is_needed(tmp_path: Path, main: Away):
    one = await worker(tmp_path / "s.db", main)
    await one.with_half_capacity().put(FOLD, b"minor")
    await one.put(ROW, b"row")
    await one.close()
    assert not (tmp_path / "s.db.recent").exists()
    two, other = await worker(tmp_path / "s.db", main), await worker(tmp_path / "s.db", main, THERE)
    await two.put(FOLD, b"fold")
    await two.close()
    main.back = False
    with pytest.raises(StoreUnavailable):
        await other.get(FOLD)
    await other.close()


async def test_erasing_removes_copies_in_every_worker(tmp_path: Path, main: Away):
    one, two = await worker(tmp_path / "s.db", main), await worker(tmp_path / "s.db", main)
    other = Key("", "fold/2")
    await one.write([Put(FOLD, b"fold"), Put(other, b"other")])
    await two.spool.clear_recent()
    await one.put(other, b"again")
    await one.put(FOLD, b"again")
    await one.delete([FOLD])
    await one.close()
    main.back = False
    assert await two.get_many([FOLD, other]) == [None, b"again"]
    await two.spool.clear_recent()
    with pytest.raises(StoreUnavailable):
        await two.get(other)
    await two.close()


async def test_the_oldest_copies_go_where_there_are_too_many_and_all_expire(tmp_path: Path):
    keys = [Key("", f"fold/{at}") for at in range(40)]
    for at in range(0, 40, 20):  # The second worker counts what the first one left.
        recent = RecentRecords(tmp_path / "r", capacity=10_000)
        for key in keys[at : at + 20]:
            recent.add("tag", [Put(key, bytes(900))])
            await recent._write_task
        assert len(await recent.find("tag", keys)) == 10
        await recent.close()
    later = SqliteStore(tmp_path / "r", timeout=5.0, now=lambda: 2e12)
    assert await later.scan("recent/tag") == []
    await later.close()
    last = RecentRecords(tmp_path / "r", capacity=10_000)
    assert list(await last.find("tag", keys)) == keys[-10:]
    await last.close()
