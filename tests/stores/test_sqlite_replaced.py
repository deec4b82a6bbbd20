"""The file is deleted, replaced by a backup, or away with its folder, while lanes and processes have it open."""

import asyncio
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Key
from accordion.stores.sqlite import SqliteStore
from accordion.stores.sqlite_path import StoreFile
from accordion.stores.sqlite_worker import SqliteWorker

OTHER_DISK = Path("/dev/shm")
OLD, NEW = Key("c", "old"), Key("c", "new")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def files_of(path: Path) -> list[Path]:
    return [path.with_name(path.name + end) for end in ("", "-wal", "-shm")]


def delete_alone(path: Path) -> None:
    path.unlink()


def delete(path: Path) -> None:
    for file in files_of(path):
        file.unlink(missing_ok=True)


async def bring_back(path: Path) -> None:
    """A backup takes the file's place; what lay beside that stays."""
    backup = path.with_name("backup.db")
    kept = SqliteStore(backup, timeout=20.0)
    await kept.put(OLD, b"from the backup")
    await kept.close()
    backup.replace(path)


async def replace_file(path: Path, how: Callable[[Path], Any]) -> None:
    if (waiting := how(path)) is not None:
        await waiting


EACH = pytest.mark.parametrize("how", [delete_alone, delete, bring_back])


def lead(path: Path, to: Path | str) -> None:
    """Makes it a link."""
    path.unlink(missing_ok=True)
    path.symlink_to(to)


def sound(path: Path) -> bool:
    with closing(sqlite3.connect(path)) as other:
        return other.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


# -- with load -------------------------------------------------------------------------------------------------------

BUSY = """
import asyncio, os, random, sys
from pathlib import Path
from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Key
from accordion.stores.sqlite import SqliteStore

async def main():
    path, stop = map(Path, sys.argv[1:3])
    store, me = SqliteStore(path, timeout=20.0), os.getpid()

    async def busy(call, pause):
        while not stop.exists():
            try:
                await call()
            except StoreUnavailable:
                pass  # the file went in the middle of it
            await asyncio.sleep(pause)

    def write():
        return store.put(Key("c", f"{me}/{random.randrange(400)}"), random.randbytes(random.randrange(50, 6000)))

    async def read():
        await store.scan("c", limit=50)
        await store.get(Key("c", f"{me}/{random.randrange(400)}"))

    async def tell():
        told = -1
        while not stop.exists():
            if told < store.replacements:
                told = store.replacements
                print(told, flush=True)
            await asyncio.sleep(0.02)

    await store.put(Key("c", f"{me}/first"), b"x")
    await asyncio.gather(busy(write, 0.002), busy(read, 0.004), busy(read, 0.004), tell())
    await store.put(Key("last", str(me)), b"x")
    await store.close()

asyncio.run(main())
"""


async def wait_for_count(process: asyncio.subprocess.Process, times: int) -> None:
    assert process.stdout is not None
    while int(await process.stdout.readline()) < times:
        pass


@pytest.mark.parametrize("processes", [1, 2])
@EACH
async def test_readers_and_writers_go_on_with_a_file_that_is_sound(
    path: Path, processes: int, how: Callable[[Path], Any]
):
    stop = path.with_name("stop")
    words = (sys.executable, "-c", BUSY, str(path), str(stop))
    folder = Path(__file__).parents[2]
    running = [
        await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE, cwd=folder) for _ in range(processes)
    ]
    try:
        async with asyncio.timeout(60.0):
            for times in range(4):
                if times:
                    await replace_file(path, how)
                await asyncio.gather(*(wait_for_count(each, times) for each in running))
            await asyncio.sleep(0.2)
            stop.touch()
            for each in running:
                await each.communicate()
    finally:
        for each in running:
            if each.returncode is None:
                each.kill()
    assert [each.returncode for each in running] == [0] * processes
    assert sound(path)
    store = SqliteStore(path, timeout=20.0)
    assert sorted(name for name, _ in await store.scan("last")) == sorted(str(each.pid) for each in running)
    assert await store.get(OLD) == (b"from the backup" if how is bring_back else None)
    await store.close()


# -- one after the other ---------------------------------------------------------------------------------------------


async def wait_until_noticed(store: SqliteStore, times: int = 1) -> None:
    async with asyncio.timeout(60.0):
        while store.replacements < times:
            with suppress(StoreUnavailable):
                await store.get(OLD)
            await asyncio.sleep(0.05)


@EACH
async def test_as_soon_as_one_thread_has_noticed_all_use_the_new_file(path: Path, how: Callable[[Path], Any]):
    store = SqliteStore(path, timeout=20.0)
    await store.put(OLD, b"1")
    await store.get(OLD)
    await asyncio.sleep(1.1)
    await store.put(OLD, b"2")
    await replace_file(path, how)
    await wait_until_noticed(store)
    await store.put(NEW, b"3")
    fresh = SqliteStore(path, timeout=20.0)
    assert await fresh.get(NEW) == b"3"
    assert await fresh.get(OLD) == await store.get(OLD) == (b"from the backup" if how is bring_back else None)
    assert store.replacements == 1
    await fresh.close()
    await store.close()
    assert sound(path)


async def test_the_log_of_the_former_file_is_not_read_into_a_backup(path: Path):
    stores = [SqliteStore(path, timeout=20.0) for _ in range(2)]
    for store in stores:
        await store.put(OLD, b"1")
        assert await store.get(OLD) == b"1"
    many = [Key("c", f"of the former {number}") for number in range(300)]
    for key in many:
        await stores[0].put(key, b"x" * 1_000)
    assert files_of(path)[1].stat().st_size > 300_000
    await bring_back(path)
    for store in stores:
        await wait_until_noticed(store)
        assert await store.scan("c") == [("old", b"from the backup")]
    for store in stores:
        await store.put(NEW, b"2")
        await store.close()
    assert sound(path)
    assert not files_of(path)[1].exists()


async def test_another_that_comes_first_finds_nothing_of_a_file_that_was_deleted_alone(path: Path):
    store = SqliteStore(path, timeout=20.0)
    await store.put(OLD, b"1")
    delete_alone(path)
    first = SqliteStore(path, timeout=20.0)
    await first.put(NEW, b"2")
    await wait_until_noticed(store)
    assert await store.scan("c") == await first.scan("c") == [("new", b"2")]
    await first.close()
    await store.close()
    assert sound(path)


async def test_a_thread_first_used_afterwards_finds_what_the_others_do(path: Path):
    store = SqliteStore(path, timeout=20.0)
    await store.put(OLD, b"1")
    await bring_back(path)
    assert await store.get(OLD) == b"from the backup"
    await store.put(NEW, b"2")
    assert await store.get(NEW) == b"2"
    assert store.replacements == 1
    await store.close()
    assert sound(path)


async def test_a_changed_symbolic_link_opens_its_new_file(path: Path):
    for name in ("one.db", "two.db"):
        kept = SqliteStore(path.with_name(name), timeout=20.0)
        await kept.put(OLD, name.encode())
        await kept.close()
    lead(path, "one.db")
    store = SqliteStore(path, timeout=20.0)
    assert await store.get(OLD) == b"one.db"
    lead(path, "two.db")
    await wait_until_noticed(store)
    assert await store.get(OLD) == b"two.db"
    await store.close()


class Late(StoreFile):
    """Another file comes between a look at the path and its opening."""

    def _prepare_path(self, real_path: Path) -> tuple[int, int]:
        found = super()._prepare_path(real_path)
        with suppress(FileNotFoundError):
            path = real_path.with_name("other.db")
            path.replace(real_path)
        return found


async def test_a_file_that_comes_while_the_former_is_being_opened_is_noticed(path: Path):
    other = SqliteStore(path.with_name("other.db"), timeout=20.0)
    await other.put(OLD, b"1")
    await other.close()
    file = Late(path, timeout=20.0)
    lane = SqliteWorker("late", file.connect, timeout=20.0, is_current=file.is_current)

    async with asyncio.timeout(60.0):
        while file.replaced == 0:
            with suppress(StoreUnavailable):
                await lane.run(lambda connection: connection.execute("SELECT count(*) FROM entry").fetchone())
            await asyncio.sleep(0.05)
    assert await lane.run(lambda connection: connection.execute("SELECT count(*) FROM entry").fetchone()) == (1,)
    await lane.close()


# -- away ------------------------------------------------------------------------------------------------------------


async def wait_until_away(store: SqliteStore) -> str:
    """Until all lanes say so; and why."""
    async with asyncio.timeout(60.0):
        for call in (lambda: store.get(OLD), lambda: store.put(NEW, b"while away")):
            why = ""
            while not why:
                try:
                    await call()
                except StoreUnavailable as error:
                    why = error.message
                await asyncio.sleep(0.05)
    return why


async def test_a_folder_that_is_away_is_not_made_anew_and_nothing_is_lost_when_it_is_back(tmp_path: Path):
    folder, elsewhere = tmp_path / "volume", tmp_path / "elsewhere"
    store = SqliteStore(folder / "store.db", timeout=20.0)
    unused = SqliteStore(folder / "spool.db", timeout=20.0)
    await store.put(OLD, b"1")
    assert await store.get(OLD) == b"1"
    folder.rename(elsewhere)
    assert str(folder) in await wait_until_away(store)
    with pytest.raises(StoreUnavailable):
        await unused.put(OLD, b"1")
    assert not folder.exists()
    elsewhere.rename(folder)
    assert await store.get(OLD) == b"1"
    await store.put(NEW, b"2")
    assert store.replacements == 0
    for each in (store, unused):
        await each.close()
    again = SqliteStore(folder / "store.db", timeout=20.0)
    assert await again.scan("c") == [("new", b"2"), ("old", b"1")]
    await again.close()


@pytest.mark.skipif(not OTHER_DISK.is_dir(), reason="another disk is needed")
async def test_nothing_is_begun_anew_on_the_disk_below_one_that_is_not_mounted(tmp_path: Path):
    below, mounted = tmp_path / "below", tmp_path / "mounted"
    below.mkdir()
    with TemporaryDirectory(dir=OTHER_DISK) as disk:
        lead(mounted, disk)
        store = SqliteStore(mounted / "store.db", timeout=20.0)
        await store.put(OLD, b"1")
        assert await store.get(OLD) == b"1"
        lead(mounted, below)
        assert "another disk" in await wait_until_away(store)
        lead(mounted, disk)
        assert await store.get(OLD) == b"1"
        assert store.replacements == 0
        assert list(below.iterdir()) == []
        await store.close()


async def test_who_holds_the_folder_locked_for_ever_does_not_hold_up_the_store(path: Path):
    """As one who started this very program by `flock FOLDER` does."""
    fcntl = pytest.importorskip("fcntl")
    holder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(holder, fcntl.LOCK_EX)
        store = SqliteStore(path, timeout=20.0)
        await store.put(NEW, b"kept")
        assert await store.get(NEW) == b"kept"
        await store.close()
    finally:
        os.close(holder)
