import asyncio
import os
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest

from accordion.model.errors import ConfigError, StoreUnavailable
from accordion.model.ports import Append, Key, Put
from accordion.stores.sqlite import HOUSEKEEPING_INTERVAL, GatheredReads, SqliteStore
from accordion.stores.sqlite_file import VERSION
from accordion.stores.sqlite_path import StoreFile
from accordion.stores.sqlite_rows import purge

SOON = 0.2
"""A time-out that a test waits for."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    opened = SqliteStore(path, timeout=20.0)
    await opened.put(Key("c", "first"), b"1")
    yield opened
    await opened.close()


def run_python(code: str, *args: object) -> subprocess.Popen[bytes]:
    """Another process; `code` is the body of an async function, `args` are its `args`."""
    program = "import asyncio, sys\nfrom pathlib import Path\nfrom accordion.model.ports import *\n"
    program += "from accordion.model.errors import *\nfrom accordion.stores.sqlite import SqliteStore\n"
    program += "args = sys.argv[1:]\nasync def main():\n"
    program += "".join(f"    {line}\n" for line in code.strip().splitlines()) + "asyncio.run(main())\n"
    words = [sys.executable, "-c", program, *map(str, args)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])


# -- one file, many processes ----------------------------------------------------------------------------------------

WORKER = """
store = SqliteStore(Path(args[0]), timeout=60.0)
me = args[1]
for number in range(60):
    position = await store.append(Key("c", "log"), [f"{me}/{number}".encode()])
    print(position)
    won = await store.put_if_absent(Key("c", f"race{number}"), me.encode())
    await store.write([Put(Key("c", f"{me}/{number}"), won), Append(Key("c", f"log/{me}"), b"x", keep=10)])
    async with store.lock(Key("c", "lock"), lease=60.0) as held:
        if held:
            seen = int(await store.get(Key("c", "count")) or 0)
            await store.put(Key("c", "count"), b"%d" % (seen + 1))
            await store.append(Key("c", "held"), [b""])
await store.close()
"""


async def test_several_processes_write_to_one_fresh_file_at_once(path: Path):
    workers = [run_python(WORKER, path, name) for name in ("a", "b", "c", "d")]
    positions = [[int(line) for line in worker.communicate()[0].split()] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0, 0, 0]
    store = SqliteStore(path, timeout=20.0)
    assert sorted(position for one in positions for position in one) == list(range(240))
    log = dict(await store.read(Key("c", "log")))
    for name, mine in zip("abcd", positions, strict=True):
        assert [log[position] for position in mine] == [b"%s/%d" % (name.encode(), n) for n in range(60)]
        assert [position for position, _ in await store.read(Key("c", f"log/{name}"))] == list(range(50, 60))
    for number in range(60):
        winner = await store.get(Key("c", f"race{number}"))
        assert await store.get_many([Key("c", f"{name}/{number}") for name in "abcd"]) == [winner] * 4
    assert int(await store.get(Key("c", "count")) or 0) == len(await store.read(Key("c", "held")))
    await store.close()


async def test_a_process_killed_while_it_writes_leaves_whole_batches(path: Path):
    worker = run_python(
        """
        store = SqliteStore(Path(args[0]), timeout=60.0)
        for number in range(1_000_000):
            await store.write([Put(Key(c, f"{number}"), b"x" * 3000) for c in "ab"] + [Append(Key("", "log"), b"x")])
            print(number, flush=True)
        """.replace("\n        ", "\n"),
        path,
    )
    assert worker.stdout is not None
    while int(worker.stdout.readline()) < 30:
        pass
    worker.send_signal(signal.SIGKILL)
    told = [int(line) for line in worker.stdout.read().splitlines(keepends=True) if line.endswith(b"\n")]
    worker.wait()
    store = SqliteStore(path, timeout=20.0)
    first, second = [await store.scan(collection, limit=1_000_000) for collection in "ab"]
    assert first == second
    assert len(first) == len(await store.read(Key("", "log"))) > max([30, *told])
    await store.close()


@pytest.mark.parametrize(("count", "in_steps"), [(300, True), (126, False)])
async def test_a_large_batch_is_written_in_steps_in_its_order(path: Path, count: int, in_steps: bool):
    # As the archive writes: what lists the rest is first, and is never missing where anything of the rest is there.
    listing = [Put(Key("zz", "listing"), b"l"), Append(Key("zz", "log"), b"l")]
    batch = [Put(Key("c", f"{number:03}"), b"v") for number in reversed(range(count))]
    store = SqliteStore(path, timeout=20.0)
    await store.ping()
    with closing(sqlite3.connect(path)) as other:
        other.execute(
            "CREATE TRIGGER last BEFORE INSERT ON entry WHEN new.name = x'303030' BEGIN SELECT raise(ABORT, 'no'); END"
        )
        with pytest.raises(StoreUnavailable):
            await store.write([*listing, *batch])
        left = [name for name, _ in await store.scan("c")]
        assert left == [f"{number:03}" for number in range(count - len(left), count)]
        assert bool(left) is in_steps
        listed = await store.scan("zz"), await store.read(Key("zz", "log"))
        assert listed == (([("listing", b"l")], [(0, b"l")]) if in_steps else ([], []))
        other.execute("DROP TRIGGER last")
    await store.write(batch)
    assert len(await store.scan("c")) == count
    await store.close()


async def test_another_process_that_comes_and_goes_takes_nothing_along(store: SqliteStore, path: Path):
    # The last connection to close deletes the write-ahead log. It must see that ours are still there.
    await store.get(Key("c", "first"))
    visit = "store = SqliteStore(Path(args[0]), timeout=20.0)\nprint(await store.scan('c'))\nawait store.close()"
    assert run_python(visit, path).communicate()[0] == b"[('first', b'1')]\n"
    await store.put(Key("c", "second"), b"2")
    assert run_python(visit, path).communicate()[0] == b"[('first', b'1'), ('second', b'2')]\n"


async def test_records_survive_a_restart(path: Path):
    store = SqliteStore(path, timeout=20.0)
    await store.put(Key("c", "n"), b"value")
    await store.append(Key("c", "log"), [b"a", b"b"], keep=1)
    await store.close()
    store = SqliteStore(path, timeout=20.0)
    assert await store.get(Key("c", "n")) == b"value"
    assert await store.append(Key("c", "log"), [b"c"]) == 2
    assert await store.read(Key("c", "log")) == [(1, b"b"), (2, b"c")]
    await store.close()


# -- trouble ---------------------------------------------------------------------------------------------------------


async def test_a_locked_file_raises_store_unavailable_and_is_used_again(path: Path):
    store = SqliteStore(path, timeout=1.0)
    await store.put(Key("c", "first"), b"1")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                await store.put(Key("c", "n"), b"1")
            assert not store.is_available
        assert await store.get(Key("c", "first")) == b"1", "reading waits for a writer"
        other.execute("ROLLBACK")
    # What was given up is not written behind the caller's back.
    assert await store.get(Key("c", "n")) is None
    await store.put(Key("c", "n"), b"2")
    assert await store.get(Key("c", "n")) == b"2"
    assert store.is_available
    await store.close()


async def test_a_file_locked_before_it_is_opened_raises_store_unavailable(store: SqliteStore, path: Path):
    await store.close()
    late = SqliteStore(path, timeout=SOON)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        other.execute("INSERT INTO lock VALUES ('', '', '', 0)")
        with pytest.raises(StoreUnavailable):
            await late.get(Key("c", "first"))
        other.execute("ROLLBACK")
    assert await late.get(Key("c", "first")) == b"1"
    await late.close()


@pytest.mark.timeout(20)
def test_a_missing_file_or_a_named_pipe_has_no_value_before_it_is_opened(path: Path):
    store = SqliteStore(path, timeout=SOON)
    assert store.peek(Key("c", "first")) is None
    assert not path.exists()
    os.mkfifo(path)
    assert store.peek(Key("c", "first")) is None


async def test_the_event_loop_goes_on_while_the_store_waits(store: SqliteStore, path: Path):
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        waiting = asyncio.create_task(store.put(Key("c", "n"), b"1"))
        for _ in range(100):
            await asyncio.sleep(0)
        assert not waiting.done()
        other.execute("ROLLBACK")
        await waiting


async def test_a_cancelled_call_that_had_not_begun_is_never_done(path: Path):
    store = SqliteStore(path, timeout=20.0)
    await store.ping()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        first = asyncio.create_task(store.put(Key("c", "first"), b"1"))
        second = asyncio.create_task(store.put(Key("c", "second"), b"1"))
        await asyncio.sleep(0.05)
        second.cancel()
        await asyncio.sleep(0)
        other.execute("ROLLBACK")
    await first
    assert await store.scan("c") == [("first", b"1")]
    await store.close()


def spoil(path: Path) -> None:
    """Leave nothing of a database but its first page."""
    content = path.read_bytes()
    path.write_bytes(content[:4096] + b"\x55" * (len(content) - 4096))


async def test_a_broken_file_raises_store_unavailable_and_its_successor_is_used(path: Path):
    store = SqliteStore(path, timeout=20.0)
    await store.write([Put(Key("c", f"{number}"), bytes(500)) for number in range(200)])
    await store.close()
    spoil(path)
    store = SqliteStore(path, timeout=20.0)
    with pytest.raises(StoreUnavailable):
        await store.scan("c")
    with pytest.raises(StoreUnavailable):
        await store.put(Key("c", "n"), b"1")
    for part in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
        part.unlink(missing_ok=True)
    await store.put(Key("c", "n"), b"2")
    assert await store.scan("c") == [("n", b"2")]
    await store.close()
    assert counts(path) == [1, 0, 0, 0]


async def test_a_folder_that_cannot_be_made_raises_store_unavailable_until_it_can(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"")
    store = SqliteStore(tmp_path / "file" / "store.db", timeout=SOON)
    with pytest.raises(StoreUnavailable):
        await store.ping()
    (tmp_path / "file").unlink()
    await store.ping()
    await store.close()


def test_a_full_disk_raises_store_unavailable_and_keeps_what_was_there(path: Path):
    worker = run_python(
        """
        import resource, signal
        store = SqliteStore(Path(args[0]), timeout=20.0)
        await store.put(Key("c", "before"), b"1")
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, resource.RLIM_INFINITY))
        try:
            await store.put(Key("c", "big"), bytes(2_000_000))
        except StoreUnavailable:
            print(await store.scan("c"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        await store.put(Key("c", "after"), b"2")
        print(await store.scan("c"))
        await store.close()
        """.replace("\n        ", "\n"),
        path,
    )
    out = worker.communicate()[0].decode().splitlines()
    assert out == ["[('before', b'1')]", "[('after', b'2'), ('before', b'1')]"]


# -- the file --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [VERSION - 1, VERSION + 1])
async def test_a_file_of_another_format_is_refused_and_left_alone(store: SqliteStore, path: Path, version: int):
    await store.close()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute(f"PRAGMA user_version = {version}")
    before = os.stat(path)
    with pytest.raises(ConfigError, match=r"another version .* choose another path"):
        SqliteStore(path, timeout=SOON)
    assert (os.stat(path).st_mtime_ns, os.stat(path).st_size) == (before.st_mtime_ns, before.st_size)


async def test_a_file_that_gets_another_format_before_it_is_opened_is_not_written_to(store: SqliteStore, path: Path):
    late = SqliteStore(path, timeout=SOON)
    await store.close()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute(f"PRAGMA user_version = {VERSION + 1}")
    with pytest.raises(StoreUnavailable, match="another version"):
        await late.put(Key("c", "n"), b"1")
    await late.close()


def test_the_file_of_another_program_is_refused(path: Path):
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE theirs (x)")
    with pytest.raises(ConfigError, match="another program"):
        SqliteStore(path, timeout=SOON)


def test_a_file_that_is_no_database_is_refused(path: Path):
    path.write_bytes(b"dear diary, " * 100)
    with pytest.raises(ConfigError, match="not an SQLite database"):
        SqliteStore(path, timeout=SOON)


async def test_the_file_is_in_wal_mode_and_nobody_elses(store: SqliteStore, path: Path):
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


def counts(path: Path) -> list[int]:
    """Rows of each table, read by a connection of another owner."""
    with closing(sqlite3.connect(path)) as other:
        tables = ("entry", "log", "log_entry", "lock")
        return [other.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables]


async def fill(store: SqliteStore) -> None:
    """1800 values and 52 logs, of which 600 and 1 live for ever."""
    await store.write([Put(Key("c", f"{number}"), b"x", ttl=10.0 if number % 3 else None) for number in range(1800)])
    await store.append(Key("c", "long log"), [b"x"] * 1200, ttl=10.0)
    await store.write([Append(Key("c", f"log{number}"), b"x", ttl=10.0) for number in range(50)])
    await store.append(Key("c", "kept log"), [b"x"])


async def test_expired_rows_leave_the_file_while_others_are_written(path: Path):
    time = 1_000_000.0
    store = SqliteStore(path, timeout=20.0, now=lambda: time)
    await fill(store)
    async with store.lock(Key("c", "held too long"), lease=10.0):
        time += 100.0
        for _ in range(1_000):
            await store.put(Key("c", "again"), b"x")
            if counts(path) == [601, 1, 1, 0]:
                break
            time += 1.5
            await asyncio.sleep(0.005)
        assert counts(path) == [601, 1, 1, 0]
    assert len(await store.scan("c", limit=10_000)) == 601
    await store.close()


async def test_expired_rows_are_removed_in_small_steps(path: Path):
    store = SqliteStore(path, timeout=20.0, now=lambda: 1_000_000.0)
    await fill(store)
    await store.close()
    held, after = [counts(path)], (0, 0)
    with closing(StoreFile(path, timeout=20.0).connect()) as connection:
        for _ in range(9):
            after = purge(connection, after, 500, now=1_000_100.0)
            held.append(counts(path))
    assert held[0] == [1800, 52, 1251, 0]
    assert held[-1] == [600, 1, 1, 0]
    for table in range(4):
        assert all(before[table] - now[table] <= 500 for before, now in pairwise(held))


async def test_what_was_deleted_leaves_the_log_when_a_reader_in_its_way_is_gone(store: SqliteStore, path: Path):
    key, log = Key("c", "secret"), path.with_name(f"{path.name}-wal")
    await store.put(key, b"a word that is soon deleted")
    with closing(StoreFile(path, timeout=SOON).connect()) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT value FROM entry").fetchone()
        await store.delete([key])
        await asyncio.sleep(HOUSEKEEPING_INTERVAL + 3 * SOON)
        assert b"soon deleted" in log.read_bytes()
    for _ in range(200):
        if b"soon deleted" not in log.read_bytes():
            break
        await asyncio.sleep(0.05)
    assert b"soon deleted" not in log.read_bytes()


async def test_reads_that_come_while_one_runs_are_one_call():
    calls, may_go_on, error = list[list[Key]](), asyncio.Event(), StoreUnavailable("locked")

    async def read(keys: Sequence[Key]) -> list[bytes | None]:
        calls.append([*keys])
        await may_go_on.wait()
        if Key("", "locked") in keys:
            raise error
        return [key.name.encode() for key in keys]

    reads = GatheredReads(read)
    names = ["a"], ["b", "c"], ["given up"], [], ["d"]
    running = [asyncio.create_task(reads.get_many([Key("", name) for name in each])) for each in names]
    await asyncio.sleep(0)
    running[2].cancel()
    may_go_on.set()
    results = await asyncio.gather(*running, return_exceptions=True)
    assert [each for each in results if isinstance(each, list)] == [[b"a"], [b"b", b"c"], [], [b"d"]]
    assert [[key.name for key in keys] for keys in calls] == [["a"], ["b", "c", "d"]]
    may_go_on.clear()
    failing = [asyncio.create_task(reads.get_many([Key("", name)])) for name in ("e", "locked", "f")]
    await asyncio.sleep(0)
    may_go_on.set()
    assert await asyncio.gather(*failing, return_exceptions=True) == [[b"e"], error, error]
    assert await reads.get_many([Key("", "g")]) == [b"g"]


async def test_a_read_that_comes_when_one_ends_is_not_before_those_that_wait():
    calls, may_go_on = list[list[str]](), asyncio.Event()

    async def read(keys: Sequence[Key]) -> list[bytes | None]:
        calls.append([key.name for key in keys])
        await may_go_on.wait()
        return [key.name.encode() for key in keys]

    reads = GatheredReads(read)

    async def read_then() -> list[bytes | None]:
        await may_go_on.wait()
        return await reads.get_many([Key("", "c")])

    running = [asyncio.create_task(reads.get_many([Key("", name)])) for name in ("a", "b")]
    await asyncio.sleep(0)
    running.append(asyncio.create_task(read_then()))
    await asyncio.sleep(0)
    may_go_on.set()
    assert await asyncio.gather(*running) == [[b"a"], [b"b"], [b"c"]]
    assert calls == [["a"], ["b", "c"]]
