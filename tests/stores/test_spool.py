"""Writes that wait on this machine: found again, published once, to the store that they are for, and never lost."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path

import pytest

from accordion.composition import configured_store
from accordion.composition.configured_store import build_spool, find_memory_folder
from accordion.config.load import build
from accordion.model.errors import ConfigError, StoreUnavailable
from accordion.model.ports import Append, Key, Put
from accordion.stores.file_locks import lock_file
from accordion.stores.memory_store import InMemoryStore
from accordion.stores.spool import SpooledStore, StoreRecord
from tests.spools import STORE, with_spool

ROW, ROW2, COMPACTION, LOG = Key("", "row/1"), Key("listed", "row/2"), Key("", "compaction/1"), Key("", "log")
OTHER_STORE = StoreRecord(b"t" * 16, b"another secret")


class Away(InMemoryStore):
    """A store that is away until it is back."""

    def __init__(self, *, back: bool = False) -> None:
        super().__init__()
        self.back = back

    def _check(self) -> None:
        if not self.back:
            raise StoreUnavailable("away")
        super()._check()

    @property
    def is_available(self) -> bool:
        return self.back


async def test_waiting_records_are_readable_and_published_later():
    main = Away()
    store = with_spool(main)
    await store.write([Put(ROW, b"one"), Put(ROW2, b"two"), Append(LOG, b"a"), Append(LOG, b"b")])
    assert await store.put_if_absent(COMPACTION, b"compaction") == b"compaction"
    assert await store.get_many([ROW, ROW2, COMPACTION]) == [b"one", b"two", b"compaction"]
    assert await store.scan("listed") == [("row/2", b"two")]
    with pytest.raises(StoreUnavailable):
        await store.publish()
    main.back = True
    assert await store.get_many([ROW, COMPACTION]) == [b"one", b"compaction"]
    await store.publish()
    assert await main.get_many([ROW, ROW2, COMPACTION]) == [b"one", b"two", b"compaction"]
    assert [value for _, value in await main.read(LOG)] == [b"a", b"b"]
    assert store.is_empty


async def test_workers_find_each_others_writes_and_the_first_claim_wins(tmp_path: Path):
    main = Away()
    one, two = with_spool(main, tmp_path / "s"), with_spool(main, tmp_path / "s")
    with pytest.raises(StoreUnavailable):
        await two.get(COMPACTION)
    assert await one.put_if_absent(COMPACTION, b"one") == b"one"
    assert await two.put_if_absent(COMPACTION, b"two") == b"one"
    assert await two.get(COMPACTION) == b"one"
    main.back = True
    await asyncio.gather(one.poll(), two.poll())
    assert await main.get(COMPACTION) == b"one"
    assert (one.is_empty, two.is_empty) == (True, True)
    assert os.listdir(tmp_path) == ["s-store"]


async def test_a_worker_notices_what_another_spools_while_its_own_store_is_there(tmp_path: Path):
    main = InMemoryStore()
    one, two = with_spool(Away(), tmp_path / "s"), with_spool(main, tmp_path / "s")
    assert two.is_empty
    await one.put_if_absent(COMPACTION, b"one")
    assert await two.get(COMPACTION) == b"one"
    await two.publish()
    assert await main.get(COMPACTION) == b"one"


async def test_writes_go_only_to_the_store_that_they_are_for(tmp_path: Path):
    """Two proxies may have the same file."""
    here, there = Away(), Away()
    ours, theirs = with_spool(here, tmp_path / "s"), with_spool(there, tmp_path / "s", OTHER_STORE)
    await ours.put(ROW, b"ours")
    await theirs.put(ROW, b"theirs")
    here.back = there.back = True
    await ours.publish()
    assert await there.get(ROW) is None
    await theirs.publish()
    assert (await here.get(ROW), await there.get(ROW)) == (b"ours", b"theirs")


@pytest.mark.parametrize("answers", [STORE, OTHER_STORE], ids=["its secret", "another"])
async def test_writes_before_the_first_answer_go_to_the_store_with_their_secret(tmp_path: Path, answers: StoreRecord):
    main = Away()
    store = with_spool(main, tmp_path / "s", record=None)
    assert store.recall(STORE.secret) == StoreRecord(b"", STORE.secret)
    await store.put(ROW, b"one")
    main.back = True
    store.identify(answers)
    await store.publish()
    is_theirs = answers == STORE
    assert await main.get(ROW) == (b"one" if is_theirs else None)
    elsewhere = [{"file": str(tmp_path / "s"), "writes": 1}]
    assert store.describe() == ({} if is_theirs else {"kept_for_other_stores": elsewhere})
    assert with_spool(main, tmp_path / "s", record=None).recall(b"third") == answers


async def test_a_worker_that_starts_while_the_store_is_away_takes_the_secret_of_the_first(tmp_path: Path):
    first, second = (with_spool(Away(), tmp_path / "s", record=None) for _ in range(2))
    assert [each.recall(secret).secret for each, secret in ((first, b"one"), (second, b"two"))] == [b"one", b"one"]


async def test_a_configured_secret_is_not_written(tmp_path: Path):
    main = Away()
    store = with_spool(main, tmp_path / "s", record=None, tenant_key=b"configured secret")
    store.recall(b"configured secret")
    await store.put(ROW, b"one")
    store.identify(StoreRecord(b"h" * 16, b""))
    assert b"configured" not in (tmp_path / "s").read_bytes() + (tmp_path / "s-store").read_bytes()
    main.back = True
    await store.publish()
    assert await main.get(ROW) == b"one"


@pytest.mark.parametrize("name", ["s", "s-store"])
async def test_a_file_that_is_damaged_or_another_programs_is_refused(tmp_path: Path, name: str):
    with_spool(Away(), tmp_path / "s")
    (tmp_path / name).write_bytes(b"SQLite format 3\0")
    with pytest.raises(ConfigError, match=name):
        with_spool(Away(), tmp_path / "s", record=None).recall(b"secret")
    assert (tmp_path / name).read_bytes() == b"SQLite format 3\0"


async def test_the_winner_of_a_claim_stays_and_may_be_merged():
    main = Away()
    store = with_spool(main)
    store.settle = lambda put, winner: put.value + winner if put.key == ROW else None
    await store.put_if_absent(COMPACTION, b"mine")
    await store.put_if_absent(ROW, b"mine+")
    main.back = True
    await main.put(COMPACTION, b"theirs")
    await main.put(ROW, b"theirs")
    await store.publish()
    assert await main.get_many([COMPACTION, ROW]) == [b"theirs", b"mine+theirs"]


async def test_a_value_that_is_merged_does_not_replace_what_another_machine_wrote():
    """The other machine reached the store all the time, so its value is the newer one."""
    main = Away()
    store = with_spool(main, is_merged=lambda key: key == ROW)
    store.settle = lambda put, stored: put.value + stored
    await store.write([Put(ROW, b"mine+"), Put(ROW2, b"mine"), Put(COMPACTION, b"alone")])
    main.back = True
    await main.write([Put(ROW, b"theirs"), Put(ROW2, b"theirs")])
    await store.publish()
    assert await main.get_many([ROW, ROW2, COMPACTION]) == [b"mine+theirs", b"mine", b"alone"]


async def test_a_newer_value_that_comes_while_publishing_is_not_overwritten(tmp_path: Path):
    class Slow(Away):
        async def write(self, batch):
            if self.back and not self.begun.is_set():
                self.begun.set()
                await self.may_go_on.wait()
            return await super().write(batch)

    main = Slow()
    main.begun, main.may_go_on = asyncio.Event(), asyncio.Event()
    one, two = with_spool(main, tmp_path / "s"), with_spool(main, tmp_path / "s")
    await one.put(ROW, b"old")
    main.back = True
    publishing = asyncio.create_task(one.publish())
    await main.begun.wait()
    await two.put(ROW, b"new")
    main.may_go_on.set()
    await publishing
    await two.publish()
    assert await main.get(ROW) == b"new"


async def test_writes_beyond_the_capacity_are_refused_whole_and_minor_ones_earlier():
    main = Away()
    store = with_spool(main, capacity=1_200)
    await store.write_minor([Put(Key("", "minor"), b"z")])
    await store.put(ROW, b"x" * 300)
    with pytest.raises(StoreUnavailable):
        await store.write_minor([Put(ROW2, b"y" * 200)])
    await store.put(ROW2, b"y" * 200)
    with pytest.raises(StoreUnavailable):
        await store.write([Put(Key("", "row/3"), b"z" * 600), Put(COMPACTION, b"z")])
    assert await store.get_many([ROW, ROW2, COMPACTION]) == [b"x" * 300, b"y" * 200, None]


async def test_values_that_are_replaced_again_and_again_do_not_fill_the_spool():
    main = Away()
    store = with_spool(main, capacity=200_000)
    for number in range(2_000):
        await store.put(ROW, b"%04d" % number * 100)
    main.back = True
    await store.publish()
    assert await main.get(ROW) == b"1999" * 100


async def test_a_log_that_is_deleted_while_it_waits_is_not_published():
    main = Away()
    store = with_spool(main)
    await store.write([Append(LOG, b"a"), Append(ROW2, b"b"), Append(LOG, b"c")])
    main.back = True
    await store.delete([LOG])
    await store.publish()
    assert (await main.read(LOG), [value for _, value in await main.read(ROW2)]) == ([], [b"b"])


async def test_a_later_place_is_used_until_the_first_takes_writes_again(tmp_path: Path):
    main, places = Away(), [tmp_path / "disk" / "s", tmp_path / "memory"]
    places[0].parent.mkdir()
    one, two = SpooledStore(main, places), SpooledStore(main, places)
    for each in (one, two):
        each.recall(b"secret")
    places[0].mkdir()  # No file can be there.
    await one.put(ROW, b"archive")
    assert one.describe()["in_memory_only_bytes"] > 0
    places[0].rmdir()
    assert await two.put_if_absent(COMPACTION, b"compaction") == b"compaction"
    # A compaction is not in a safer place than its archive.
    assert not places[0].exists()
    await two.poll()
    assert (places[0].exists(), places[1].exists(), two.describe()) == (True, False, {})
    assert await one.get_many([ROW, COMPACTION]) == [b"archive", b"compaction"]


async def test_what_waits_is_published_in_pieces_and_in_order_also_when_it_moved(tmp_path: Path):
    class Noting(Away):
        async def write(self, batch):
            written = await super().write(batch)
            pieces.append([int(write.value[:3]) for write in batch])
            return written

    pieces = list[list[int]]()
    main, places = Noting(), [tmp_path / "disk" / "s", tmp_path / "memory"]
    places[0].mkdir(parents=True)  # No file can be there.
    store = SpooledStore(main, places)
    store.recall(b"secret")
    for number in range(0, 300, 3):
        texts = [b"%03d" % (number + at) * 500 for at in range(3)]
        await store.write([Append(LOG, texts[0]), Put(Key("", f"row/{number}"), texts[1]), Append(LOG, texts[2])])
    places[0].rmdir()
    await store.poll()
    assert (places[0].exists(), places[1].exists()) == (True, False)
    main.back = True
    await store.publish()
    assert [number for piece in pieces for number in piece] == list(range(300))
    assert max(map(len, pieces)) * 1_500 <= 2**16
    assert store.is_empty


async def test_a_claim_waits_behind_values_that_wait():
    main = Away()
    store = with_spool(main)
    await store.put(ROW, b"the archive of the compaction")
    main.back = True
    await main.put(ROW2, b"of another worker")
    assert await store.put_if_absent(COMPACTION, b"compaction") == b"compaction"
    assert await store.put_if_absent(ROW2, b"mine") == b"of another worker"
    assert await main.get_many([ROW, COMPACTION]) == [None, None]
    await store.put(Key("", "another"), b"needs nothing that waits")
    assert await main.get(Key("", "another")) is not None
    await store.publish()
    assert await main.get_many([ROW, COMPACTION]) == [b"the archive of the compaction", b"compaction"]


class Refusing(Away):
    """A store that refuses one key for good, and takes all others."""

    async def write(self, batch):
        if self.back and any(each.key == ROW for each in batch):
            raise StoreUnavailable("the value is too large")
        return await super().write(batch)


async def test_a_write_that_the_store_refuses_does_not_hold_up_others(caplog: pytest.LogCaptureFixture):
    main = Refusing()
    store = with_spool(main)
    await store.write(
        [Put(ROW, b"one"), Put(ROW2, b"two"), Append(LOG, b"a"), Put(COMPACTION, b"compaction", if_absent=True)]
    )
    main.back = True
    for _ in range(3):
        await store.publish()
    assert await main.get_many([ROW, ROW2, COMPACTION]) == [None, b"two", b"compaction"]
    assert [value for _, value in await main.read(LOG)] == [b"a"]
    # It is not lost: it can be read here, and the log says so once.
    assert await store.get(ROW) == b"one"
    assert caplog.text.count("the store refused a write") == 1
    assert store.describe() == {"refused_by_the_store": 1}
    # What others claim does not wait for it.
    await store.put_if_absent(Key("", "compaction/2"), b"compaction")
    assert await main.get(Key("", "compaction/2")) == b"compaction"


async def test_the_next_process_tries_a_refused_write_again(tmp_path: Path):
    main = Refusing()
    store = with_spool(main, tmp_path / "s")
    await store.put(ROW, b"one")
    main.back = True
    await store.publish()
    main.__class__ = Away
    await store.publish()
    assert await main.get(ROW) is None
    await with_spool(main, tmp_path / "s").publish()
    assert await main.get(ROW) == b"one"


# -- copies -----------------------------------------------------------------------------------------------------------


def with_copies(main: InMemoryStore, path: Path, record: StoreRecord = STORE, **options) -> SpooledStore:
    return with_spool(main, path, record, is_copied=lambda key: key.name.startswith("compaction/"), **options)


async def test_records_from_before_an_outage_are_read_by_another_worker(tmp_path: Path):
    main = Away(back=True)
    one, two = with_copies(main, tmp_path / "s"), with_copies(main, tmp_path / "s")
    await one.write([Put(COMPACTION, b"compaction"), Put(ROW, b"row"), Append(LOG, b"a")])
    await one.close()
    main.back = False
    assert await two.get_many([COMPACTION, ROW]) == [b"compaction", None]
    with pytest.raises(StoreUnavailable):
        await two.get(ROW)
    assert await two.put_if_absent(COMPACTION, b"second") == b"compaction"
    main.back = True
    await main.put(COMPACTION, b"newer")
    assert await two.get(COMPACTION) == b"newer"


async def test_a_write_ends_with_its_copy_so_that_the_newest_copy_is_the_last(tmp_path: Path):
    main = Away(back=True)
    one, two = with_copies(main, tmp_path / "s"), with_copies(main, tmp_path / "s")
    with (tmp_path / "s-store").open("rb") as locked:
        lock_file(locked.fileno())
        writing = asyncio.create_task(one.put(COMPACTION, b"older"))
        while await main.get(COMPACTION) is None:
            await asyncio.sleep(0)
        assert not writing.done()
    await writing
    await two.put(COMPACTION, b"newer")
    main.back = False
    assert await one.get(COMPACTION) == b"newer"


@pytest.mark.parametrize("erases", [False, True])
async def test_only_an_erasure_during_a_write_prevents_its_copy(tmp_path: Path, erases: bool):
    class Slow(Away):
        async def write(self, batch):
            if batch[0].key == COMPACTION:
                await one.delete([ROW2])
                await (one.drop_erased() if erases else one.publish())
            return await super().write(batch)

    main = Slow()
    one = with_copies(main, tmp_path / "s")
    await one.write([Put(ROW, b"waits"), Put(ROW2, b"waits")])
    main.back = True
    await one.put(COMPACTION, b"compaction")
    main.back = False
    assert await one.get_many([ROW, COMPACTION]) == ([b"waits", None] if erases else [None, b"compaction"])


async def test_records_that_waited_in_an_outage_are_read_in_the_next(tmp_path: Path):
    main = Away()
    one, two = with_copies(main, tmp_path / "s"), with_copies(main, tmp_path / "s")
    assert await one.put_if_absent(COMPACTION, b"compaction") == b"compaction"
    main.back = True
    await one.publish()
    main.back = False
    assert await two.get(COMPACTION) == b"compaction"


async def test_copies_are_those_of_one_store_and_of_what_is_needed(tmp_path: Path):
    main = Away(back=True)
    one, other = with_copies(main, tmp_path / "s"), with_copies(main, tmp_path / "s", OTHER_STORE)
    await one.write_minor([Put(COMPACTION, b"minor")])
    await one.put(ROW, b"row")
    await one.close()
    assert not (tmp_path / "s-recent").exists()
    await one.put(COMPACTION, b"compaction")
    await one.close()
    main.back = False
    with pytest.raises(StoreUnavailable):
        await other.get(COMPACTION)


async def test_an_erasure_removes_all_copies(tmp_path: Path):
    main = Away(back=True)
    one, two = with_copies(main, tmp_path / "s"), with_copies(main, tmp_path / "s")
    await one.put(COMPACTION, b"content")
    await one.close()
    assert b"content" in (tmp_path / "s-recent").read_bytes()
    await two.drop_erased()
    assert not (tmp_path / "s-recent").exists()
    await one.put(COMPACTION, b"content")
    await one.delete([COMPACTION])
    await one.close()
    assert os.listdir(tmp_path) == ["s-store"]
    main.back = False
    with pytest.raises(StoreUnavailable):
        await two.get(COMPACTION)


async def test_the_oldest_copies_are_left_out_and_all_expire(tmp_path: Path):
    main, keys, now = Away(back=True), [Key("", f"compaction/{at}") for at in range(400)], [1_000.0]
    one = with_copies(main, tmp_path / "s", capacity=800_000, now=lambda: now[0])
    for key in keys:
        await one.put(key, bytes(900))
    await one.close()
    assert (tmp_path / "s-recent").stat().st_size <= 800_000 / 8
    main.back = False
    assert await one.get(keys[-1]) == bytes(900)
    now[0] += 3_601.0
    with pytest.raises(StoreUnavailable):
        await one.get(keys[-1])


async def test_compactions_of_an_sqlite_store_are_copied_too(tmp_path: Path):
    """It may be locked, or slow right behind a start."""
    settings, main = build(f"store: {{url: 'sqlite:///{tmp_path}/a.db'}}".encode(), {}, {}), Away(back=True)
    one, two = build_spool(settings, main), build_spool(settings, main)
    for each in (one, two):
        each.recall(STORE.secret)
    await one.put(COMPACTION, b"compaction")
    await one.close()
    main.back = False
    assert await two.get(COMPACTION) == b"compaction"


# -- places -----------------------------------------------------------------------------------------------------------


def test_the_folder_in_memory_is_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(configured_store, "_MEMORY_DISK", tmp_path / "shm")
    assert find_memory_folder() is None
    (tmp_path / "shm").mkdir()
    folder = find_memory_folder()
    assert folder == tmp_path / "shm" / f"accordion-{os.getuid()}"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert find_memory_folder() == folder
    folder.chmod(0o755)
    assert find_memory_folder() is None
    folder.rmdir()
    folder.symlink_to(tmp_path)
    assert find_memory_folder() is None
