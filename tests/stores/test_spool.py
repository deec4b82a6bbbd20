"""Writes that wait on this machine: found again, published once, to the store that they are for, and never lost."""

from __future__ import annotations

import asyncio
import os
import stat
import time
from pathlib import Path

import msgspec
import pytest

from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Append, Key, Put
from accordion.stores.memory_store import InMemoryStore
from accordion.stores.spool import Spool, SpooledStore, find_memory_folder
from accordion.stores.sqlite import SqliteStore
from accordion.stores.sqlite_path import CHECK_INTERVAL
from tests.disks import small_disk

ROW, ROW2, FOLD, LOG = Key("", "row/1"), Key("listed", "row/2"), Key("", "fold/1"), Key("", "log")
HERE, THERE = b"h" * 16, b"t" * 16


class Away(InMemoryStore):
    """A store that is away until it is told to be back; then it may fail after some writes."""

    def __init__(self) -> None:
        super().__init__()
        self.back, self.writes_left = False, 10**9

    def _check(self) -> None:
        if not self.back:
            raise StoreUnavailable("away")
        super()._check()

    @property
    def is_available(self) -> bool:
        return self.back and self.writes_left >= 0

    async def write(self, batch):
        self.writes_left -= 1
        if self.writes_left < 0:
            raise StoreUnavailable("away again")
        return await super().write(batch)


async def worker(path: Path | None, main: InMemoryStore, identity: bytes = HERE, **more) -> SpooledStore:
    """The store of one worker, whose spool knows which store it is for."""
    spool = Spool(path, address_hash="redis", **more)
    if identity:
        await spool.identify(identity, b"secret", is_persistent=True)
    return SpooledStore(main, spool)


@pytest.fixture(params=["file", "memory"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path / "spool.db" if request.param == "file" else None


async def test_spooled_records_are_readable_and_published_later(path: Path | None):
    main = Away()
    store = await worker(path, main)
    await store.write([Put(ROW, b"one"), Put(ROW2, b"two"), Append(LOG, b"a"), Append(LOG, b"b")])
    assert await store.put_if_absent(FOLD, b"fold") == b"fold"
    assert await store.get_many([ROW, ROW2, FOLD]) == [b"one", b"two", b"fold"]
    assert await store.scan("listed") == [("row/2", b"two")]
    with pytest.raises(StoreUnavailable):
        await store.publish()
    main.back = True
    assert await store.get_many([ROW, FOLD]) == [b"one", b"fold"]
    await store.publish()
    assert await main.get_many([ROW, ROW2, FOLD]) == [b"one", b"two", b"fold"]
    assert [value for _, value in await main.read(LOG)] == [b"a", b"b"]
    assert store.spool.is_empty
    await store.close()


async def test_workers_of_a_machine_find_each_others_writes_and_the_first_claim_wins(tmp_path: Path):
    main = Away()
    one, two = await worker(tmp_path / "s.db", main), await worker(tmp_path / "s.db", main)
    with pytest.raises(StoreUnavailable):
        await two.get(FOLD)
    assert await one.put_if_absent(FOLD, b"one") == b"one"
    assert await two.put_if_absent(FOLD, b"two") == b"one"
    assert await two.get(FOLD) == b"one"
    main.back = True
    await asyncio.gather(one.publish(), two.publish())
    await asyncio.gather(one.publish(), two.publish())
    assert await main.get(FOLD) == b"one"
    assert one.spool.is_empty
    assert two.spool.is_empty
    await one.close()
    await two.close()


async def test_a_worker_notices_what_another_spools_while_its_own_store_is_there(tmp_path: Path):
    """The first to lose its connection spools, while the others still reach the store."""
    gone, main = Away(), InMemoryStore()
    one, two = await worker(tmp_path / "s.db", gone), await worker(tmp_path / "s.db", main)
    await two.publish()
    assert two.spool.is_empty
    await one.put_if_absent(FOLD, b"one")
    assert await two.get(FOLD) == b"one"
    await two.publish()
    assert await main.get(FOLD) == b"one"
    await one.close()
    await two.close()


async def test_writes_go_only_to_the_store_that_they_are_for(tmp_path: Path):
    """Two proxies may have the same file."""
    here, there = Away(), Away()
    ours, theirs = await worker(tmp_path / "s.db", here), await worker(tmp_path / "s.db", there, THERE)
    await ours.put(ROW, b"ours")
    await theirs.put(ROW, b"theirs")
    here.back = there.back = True
    await ours.publish()
    assert await there.get_many([ROW]) == [None]
    await theirs.publish()
    assert (await here.get(ROW), await there.get(ROW)) == (b"ours", b"theirs")
    await ours.close()
    await theirs.close()


async def test_writes_for_a_store_that_never_answered_go_to_the_store_with_its_secret(tmp_path: Path):
    for secret, expected in ((b"secret", b"one"), (b"another", None)):
        main = Away()
        store = SpooledStore(main, Spool(tmp_path / secret.decode(), address_hash="redis"))
        assert await store.spool.recall(b"secret") == (b"", b"secret")
        await store.put(ROW, b"one")
        main.back = True
        await store.spool.identify(HERE, secret, is_persistent=True)
        await store.publish()
        assert await main.get(ROW) == expected
        await store.spool.adopt(main, _owns(False), store.settle, None, None)
        assert sum(store.spool.elsewhere.values()) == (expected is None)
        assert await store.spool.recall(b"third") == (HERE, secret)
        await store.close()


def _owns(answer: bool):
    async def owns(puts):
        return answer

    return owns


@pytest.mark.parametrize("owned", [True, False])
async def test_what_a_former_version_left_is_taken_over_or_left_and_counted(tmp_path: Path, owned: bool):
    former, main = tmp_path / "spool.db", InMemoryStore()
    old = SqliteStore(former, timeout=5.0)
    await old.put(Key("spool/values", "\nrow/1"), msgspec.msgpack.encode(("", "row/1", b"one", None)))
    await old.put(Key("spool/claims", "\nfold/1"), msgspec.msgpack.encode(("", "fold/1", b"fold", None)))
    store = await worker(tmp_path / "new.db", main)
    await store.spool.adopt(main, _owns(owned), store.settle, None, former)
    assert await main.get_many([ROW, FOLD]) == ([b"one", b"fold"] if owned else [None, None])
    assert store.spool.elsewhere == ({} if owned else {str(former): 2})
    assert len(await old.scan("spool/values")) == (not owned)
    await old.close()
    await store.close()


async def test_the_winner_of_a_claim_stays_and_may_be_joined(path: Path | None):
    main = Away()
    store = await worker(path, main)
    store.settle = lambda put, winner: put.value + winner if put.key == ROW else None
    await store.put_if_absent(FOLD, b"mine")
    await store.put_if_absent(ROW, b"mine+")
    main.back = True
    await main.put(FOLD, b"theirs")
    await main.put(ROW, b"theirs")
    await store.publish()
    assert await main.get_many([FOLD, ROW]) == [b"theirs", b"mine+theirs"]
    await store.close()


async def test_a_value_that_is_merged_does_not_replace_what_another_machine_wrote(path: Path | None):
    """The other machine reached the store all the time, so its value is the newer one."""
    main = Away()
    store = await worker(path, main, is_merged=lambda key: key == ROW)
    store.settle = lambda put, stored: put.value + stored
    await store.write([Put(ROW, b"mine+"), Put(ROW2, b"mine"), Put(FOLD, b"alone")])
    main.back = True
    await main.write([Put(ROW, b"theirs"), Put(ROW2, b"theirs")])
    await store.publish()
    assert await main.get_many([ROW, ROW2, FOLD]) == [b"mine+theirs", b"mine", b"alone"]
    assert store.spool.is_empty
    await store.close()


async def test_values_come_before_claims_and_a_crash_in_between_loses_nothing(tmp_path: Path):
    main = Away()
    store = await worker(tmp_path / "s.db", main)
    await store.write([Put(ROW, b"one"), Put(ROW2, b"two"), Put(FOLD, b"fold", if_absent=True)])
    main.back, main.writes_left = True, 1
    with pytest.raises(StoreUnavailable):
        await store.publish()
    assert await main.get_many([ROW, ROW2, FOLD]) == [b"one", b"two", None]
    await store.close()
    main.writes_left = 10
    again = await worker(tmp_path / "s.db", main)
    assert await again.get(FOLD) == b"fold"
    await again.publish()
    assert await main.get(FOLD) == b"fold"
    await again.close()


async def test_a_newer_value_that_comes_while_publishing_is_not_overwritten(tmp_path: Path):
    class Slow(Away):
        async def write(self, batch):
            if self.back and not self.held.is_set():
                self.held.set()
                await self.may.wait()
            return await super().write(batch)

    main = Slow()
    main.held, main.may = asyncio.Event(), asyncio.Event()
    one, two = await worker(tmp_path / "s.db", main), await worker(tmp_path / "s.db", main)
    await one.put(ROW, b"old")
    main.back = True
    publishing = asyncio.create_task(one.publish())
    await main.held.wait()
    await two.put(ROW, b"new")
    main.may.set()
    await publishing
    await two.publish()
    assert await main.get(ROW) == b"new"
    await one.close()
    await two.close()


async def test_what_has_no_room_is_refused_whole_and_minor_writes_leave_room(path: Path | None):
    main = Away()
    store = await worker(path, main, capacity=1_000)
    await store.put(ROW, b"x" * 300)
    with pytest.raises(StoreUnavailable):
        await store.with_half_capacity().put(ROW2, b"y" * 200)
    await store.put(ROW2, b"y" * 200)
    with pytest.raises(StoreUnavailable):
        await store.write([Put(Key("", "row/3"), b"z" * 600), Put(FOLD, b"z")])
    assert await store.get_many([ROW, ROW2, FOLD]) == [b"x" * 300, b"y" * 200, None]
    await store.close()


async def test_a_log_that_is_deleted_while_it_waits_is_not_published(tmp_path: Path):
    main = Away()
    store = await worker(tmp_path / "s.db", main)
    await store.write([Append(LOG, b"a"), Append(ROW2, b"b"), Append(LOG, b"c")])
    main.back = True
    await store.delete([LOG])
    await store.publish()
    assert (await main.read(LOG), [value for _, value in await main.read(ROW2)]) == ([], [b"b"])
    await store.close()


async def test_memory_is_the_last_resort_until_the_file_takes_writes(tmp_path: Path):
    folder, main = tmp_path / "a", Away()
    folder.mkdir()
    store = await worker(folder / "s.db", main)
    (folder / "s.db").unlink()
    (folder / "s.db").mkdir()
    # For so long an open file is taken for the one at its path.
    await asyncio.sleep(CHECK_INTERVAL)
    await store.put(ROW, b"one")
    assert store.spool.bytes_in_memory > 0
    assert await store.get(ROW) == b"one"
    (folder / "s.db").rmdir()
    await store.poll()
    assert store.spool.bytes_in_memory == 0
    other = await worker(folder / "s.db", main)
    assert await other.get(ROW) == b"one"
    await store.close()
    await other.close()


async def test_writes_in_memory_survive_a_killed_worker(tmp_path: Path):
    (tmp_path / "s.db").mkdir()  # the file takes no writes
    memory = tmp_path / "memory"
    main = Away()
    killed = await worker(tmp_path / "s.db", main, memory_folder=memory)
    await killed.put(ROW, b"the archive of the compaction")
    assert await killed.put_if_absent(FOLD, b"fold") == b"fold"
    assert killed.spool.bytes_in_memory > 0
    other = await worker(tmp_path / "s.db", main, memory_folder=memory)
    assert await other.get_many([ROW, FOLD]) == [b"the archive of the compaction", b"fold"]
    assert await other.put_if_absent(FOLD, b"another") == b"fold"
    (tmp_path / "s.db").rmdir()
    main.back = True
    await other.publish()
    assert await main.get_many([ROW, FOLD]) == [b"the archive of the compaction", b"fold"]
    assert (other.spool.is_empty, other.spool.bytes_in_memory) == (True, 0)
    await killed.poll()
    assert (killed.spool.is_empty, killed.spool.bytes_in_memory) == (True, 0)
    await killed.close()
    await other.close()


@pytest.mark.parametrize("is_shared", [False, True])
async def test_no_claim_is_in_the_file_while_values_wait_in_memory(tmp_path: Path, is_shared: bool):
    main, memory = Away(), tmp_path / "memory" if is_shared else None
    (tmp_path / "s.db").mkdir()
    store = await worker(tmp_path / "s.db", main, memory_folder=memory, capacity=1_000)
    await store.put(ROW, b"x" * 500)
    (tmp_path / "s.db").rmdir()  # the file takes writes again, but not as much
    file = await worker(tmp_path / "s.db", main, capacity=1_000)
    await file.put(ROW2, b"y" * 500)
    await store.put_if_absent(FOLD, b"fold")
    assert await file.get(ROW2) == b"y" * 500
    assert await file.spool.find([ROW, FOLD]) == {}
    main.back = True
    await file.publish()
    main.back = False
    await store.put_if_absent(Key("", "fold/2"), b"fold")
    assert await file.spool.find([ROW, FOLD, Key("", "fold/2")]) == {
        ROW: b"x" * 500,
        FOLD: b"fold",
        Key("", "fold/2"): b"fold",
    }
    assert store.spool.bytes_in_memory == 0
    await store.close()
    await file.close()


def test_the_folder_in_memory_is_the_users_own_and_on_another_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("accordion.stores.spool._MEMORY_DISK", tmp_path / "shm")
    assert find_memory_folder(tmp_path) is None
    with small_disk(tmp_path / "shm") as disk:
        folder = find_memory_folder(tmp_path / "not yet" / "there")
        assert folder == disk / f"accordion-{os.getuid()}"
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert find_memory_folder(tmp_path) == folder
        assert find_memory_folder(disk / "store") is None
        folder.chmod(0o755)
        assert find_memory_folder(tmp_path) is None
        folder.rmdir()
        folder.symlink_to(tmp_path)
        assert find_memory_folder(tmp_path) is None


async def test_a_claim_waits_behind_values_that_wait_in_memory():
    main = Away()
    store = await worker(None, main)
    await store.put(ROW, b"the archive of the compaction")
    main.back = True  # as when a full disk has room again
    await main.put(ROW2, b"of another worker")
    assert await store.put_if_absent(FOLD, b"fold") == b"fold"
    assert await store.put_if_absent(ROW2, b"mine") == b"of another worker"
    # If the process ended now, the store would have neither.
    assert await main.get_many([ROW, FOLD]) == [None, None]
    await store.publish()
    assert await main.get_many([ROW, FOLD]) == [b"the archive of the compaction", b"fold"]
    await store.close()


async def test_what_waits_to_be_appended_to_a_log_is_deleted_with_it(path: Path | None):
    main = Away()
    store = await worker(path, main)
    await store.write([Append(LOG, b"a"), Append(Key("", "other"), b"b")])
    main.back = True
    await store.delete([LOG])
    await store.publish()
    assert await main.read(LOG) == []
    assert [value for _, value in await main.read(Key("", "other"))] == [b"b"]
    await store.close()


class Refusing(Away):
    """A store that refuses one key for good, and takes all others."""

    async def write(self, batch):
        if any(each.key == ROW for each in batch):
            raise StoreUnavailable("the value is too large")
        return await super().write(batch)


async def test_a_write_that_the_store_refuses_does_not_hold_up_others(
    path: Path | None, caplog: pytest.LogCaptureFixture
):
    main = Refusing()
    store = await worker(path, main)
    await store.write([Put(ROW, b"one"), Put(ROW2, b"two"), Append(LOG, b"a"), Put(FOLD, b"fold", if_absent=True)])
    main.back = True
    for _ in range(3):
        await store.publish()
    assert await main.get_many([ROW, ROW2, FOLD]) == [None, b"two", b"fold"]
    assert [value for _, value in await main.read(LOG)] == [b"a"]
    # It is not lost: it can be read here, and the log says so once.
    assert await store.get(ROW) == b"one"
    assert caplog.text.count("the store refused a write") == 1
    assert store.spool.describe()["refused_by_the_store"] == 1
    await store.close()


async def test_a_worker_stops_to_publish_before_its_lock_ends_and_goes_on_later(path: Path | None):
    class Slow(Away):
        seconds = 0.0

        async def write(self, batch):
            self.seconds += 10.0
            return await super().write(batch)

    main = Slow()
    store = await worker(path, main, monotonic=lambda: main.seconds)
    rows = [Put(Key("", f"row/{number}"), b"x") for number in range(200)]
    await store.write([*rows, Put(FOLD, b"fold", if_absent=True)])
    main.back, main.seconds = True, 0.0
    await store.publish()
    assert (main.seconds, await main.get(FOLD)) == (20.0, None)
    for _ in range(2):
        await store.publish()
    assert await main.get(FOLD) == b"fold"
    assert None not in await main.get_many([row.key for row in rows])
    assert store.spool.is_empty
    await store.close()


async def test_a_write_that_does_not_change_the_files_dates_is_found_at_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    gone, main = Away(), InMemoryStore()
    one, two = await worker(tmp_path / "s.db", gone), await worker(tmp_path / "s.db", main)
    dates = time.time_ns(), 4_096
    monkeypatch.setattr("accordion.stores.spool._SpoolArea._signature", lambda _: dates)
    for each in (one, two):
        await each.spool._check()
    assert one.spool.is_empty
    await one.put_if_absent(FOLD, b"one")
    assert await one.get(FOLD) == b"one"
    await two.poll()
    assert await main.get(FOLD) == b"one"
    await one.close()
    await two.close()
