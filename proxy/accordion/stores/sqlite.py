"""The embedded store: one SQLite file that all workers of a machine share.

Theory of operation. A `SqliteStore` has three threads (`SqliteWorker`), each with its own connection: one writes, one
reads, one does housekeeping. `StoreFile` opens the file and notices when it was deleted or replaced. The statements are
functions of `sqlite_rows`; they run in the threads, in transactions that are opened here. Reads of values that come
while one runs are gathered (`GatheredReads`). The file is in WAL mode, so that readers and the writer do not wait for
each other.
"""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Append, Key, Put
from accordion.stores import sqlite_rows as rows
from accordion.stores.batches import LogAppend, split_batch
from accordion.stores.disk_reserve import DiskReserve
from accordion.stores.sqlite_file import (
    checkpoint,
    empty_log,
    is_full,
    read_unlocked,
    refuse_foreign,
    transact,
    wipe,
)
from accordion.stores.sqlite_path import FileConnection, StoreFile
from accordion.stores.sqlite_worker import SqliteWorker

T = TypeVar("T")

HOUSEKEEPING_INTERVAL = 1.0
"""Seconds between two rounds of housekeeping while there are writes."""

PURGE_ROWS = 500
"""Rows of each table that one round of housekeeping checks for expiry."""

_STEP = 64
"""Writes of a large batch in one transaction: a commit cannot be interrupted, and writes about one page for each."""
_LARGE = 128
"""A batch of more writes than this is large. The archive's batches are smaller, so that each is one transaction."""


class SqliteStore:
    """A KeyValueStore in one SQLite file in WAL mode.

    One thread writes, another reads and a third does housekeeping, each on its own connection: reads do not wait for
    large writes, and writes do not wait for checkpoints. The file is opened at the first call, and again after an
    error. Every write is one transaction; a write whose caller no longer waits is done completely or not at all. A
    large batch is several transactions, in its order.

    `reserve` is disk space that only erasures may use: on a full disk ordinary writes raise StoreFull, and deletions
    use that space. `now` returns seconds since the epoch, the same for all workers. Raises ConfigError for a file of
    another version or of another program.
    """

    def __init__(
        self,
        path: Path,
        *,
        timeout: float,
        reserve: DiskReserve | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        refuse_foreign(path)
        self._path, self._reserve = path, reserve
        self._now = now
        self._next_housekeeping = 0.0
        self._purge_position = (0, 0)
        self._wipe_timer: asyncio.TimerHandle | None = None
        self._file = file = StoreFile(path, timeout=timeout)
        self._writer, self._reader, self._housekeeper = (
            SqliteWorker(f"store-{name}", self._connect, timeout=timeout, is_current=file.is_current)
            for name in ("writer", "reader", "keeper")
        )
        self._reads = GatheredReads(lambda keys: self._reader.run(rows.get_many, keys, self._now()))

    @property
    def replacements(self) -> int:
        """The number of times that another file was found at the path."""
        return self._file.replaced

    def peek(self, key: Key) -> bytes | None:
        """Returns a value that has been in the file for long, also while another program has it locked; else None.

        It does not read the write-ahead log, and so misses what no checkpoint has copied into the file yet.
        """
        return read_unlocked(self._path, lambda connection: rows.get(connection, key, self._now()))

    async def put(self, key: Key, value: bytes, *, ttl: float | None = None) -> None:
        """See KeyValueStore."""
        await self._write(rows.put_all, (Put(key, value, ttl),), size=len(value))

    async def put_if_absent(self, key: Key, value: bytes, *, ttl: float | None = None) -> bytes:
        """See KeyValueStore."""
        return await self._write(rows.put_if_absent, Put(key, value, ttl), size=len(value))

    async def get(self, key: Key) -> bytes | None:
        """See KeyValueStore."""
        return (await self._reads.get_many((key,)))[0]

    async def get_many(self, keys: Sequence[Key]) -> list[bytes | None]:
        """See KeyValueStore."""
        return await self._reads.get_many(keys)

    async def delete(self, keys: Sequence[Key]) -> int:
        """See KeyValueStore. Soon afterwards the files have no traces of the deleted content."""
        count: int = await self._run(self._with_reserve, Deletion(keys))
        if count:
            self._wipe_soon()
        return count

    async def append(
        self, key: Key, values: Sequence[bytes], *, keep: int | None = None, ttl: float | None = None
    ) -> int:
        """See KeyValueStore. Without values it changes nothing, and returns -1 if there is no log."""
        if not values:
            return await self._reader.run(rows.last_position, key, self._now())
        return await self._write(rows.append, LogAppend(key, keep, ttl, list(values)), size=sum(map(len, values)))

    async def read(self, key: Key, start: int = 0, limit: int | None = None) -> list[tuple[int, bytes]]:
        """See KeyValueStore."""
        return await self._reader.run(rows.read, key, start, limit, self._now())

    async def scan(
        self, collection: str, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> list[tuple[str, bytes]]:
        """See KeyValueStore. Keys without a collection cannot be listed."""
        if not collection:
            return []
        return await self._reader.run(rows.scan, collection, prefix, after, limit, self._now())

    async def write(self, batch: Sequence[Put | Append]) -> dict[Key, bytes]:
        """See KeyValueStore."""
        # In the order of the batch: a list of keys may come before the keys, so that these can be found and erased.
        size = _STEP if len(batch) > _LARGE else max(1, len(batch))
        steps = [split_batch(batch[at : at + size]) for at in range(0, len(batch), size)]
        if batch and all(isinstance(each, Put) and each.for_erasing for each in batch):
            return await self._run(self._with_reserve, lambda connection, now: _write_in_steps(connection, steps, now))
        total_size = sum(len(each.value) for each in batch)
        return await self._run(self._write_beside_reserve, total_size, _write_in_steps, steps)

    @asynccontextmanager
    async def lock(self, key: Key, *, lease: float) -> AsyncIterator[bool]:
        """See KeyValueStore. If the release fails, the lock ends with its lease."""
        token = secrets.token_bytes(16)
        is_acquired = await self._write(rows.lock, key, token, lease)
        try:
            yield is_acquired
        finally:
            if is_acquired:
                with suppress(StoreUnavailable):
                    await self._writer.run(_transaction, rows.unlock, key, token)

    @property
    def is_available(self) -> bool:
        """See KeyValueStore."""
        return self._writer.available and self._reader.available

    async def ping(self) -> None:
        """Returns when the file can be read and written."""
        await self._writer.run(_transaction, _do_nothing)
        await self._reader.run(_do_nothing)

    async def close(self) -> None:
        """Finishes the calls that were made and closes the file."""
        if self._wipe_timer is not None:
            self._wipe_timer.cancel()
        for worker in (self._reader, self._housekeeper, self._writer):
            await worker.close()

    async def _write(self, call: Callable[..., T], *args: Any, size: int = 0) -> T:
        """Runs `call(connection, *args, now)` in one transaction; starts housekeeping when it is due."""
        return await self._run(self._write_beside_reserve, size, _transaction, call, *args)

    async def _run(self, work: Callable[..., T], *args: Any) -> T:
        """Runs `work(connection, *args, now)`, which opens its own transactions; starts housekeeping when it is due."""
        now = self._now()
        result: T = await self._writer.run(work, *args, now)
        if not 0.0 <= self._next_housekeeping - now <= HOUSEKEEPING_INTERVAL:
            self._next_housekeeping = now + HOUSEKEEPING_INTERVAL
            self._housekeeper.post(self._do_housekeeping, now)
        return result

    def _connect(self) -> FileConnection:
        try:
            return self._file.connect()
        except (sqlite3.Error, OSError) as error:
            # Opening the file needs a little disk space, too.
            if self._reserve is None or not is_full(error):
                raise
            self._reserve.release()
            return self._file.connect()

    def _write_beside_reserve(self, connection: sqlite3.Connection, size: int, work: Callable[..., T], *args: Any) -> T:
        """Runs an ordinary write of `size` bytes, which must not use the reserve. Raises StoreFull."""
        if self._reserve is not None:
            self._reserve.check(connection, size)
        return _with_empty_log(connection, lambda: work(connection, *args))

    def _with_reserve(
        self, connection: sqlite3.Connection, work: Callable[[sqlite3.Connection, float], T], now: float
    ) -> T:
        """Runs a write of an erasure, which may use the reserve. Calls `work` again if the disk was full."""
        if self._reserve is not None and self._reserve.release():
            # Move the write-ahead log to the file first: the file grows by it.
            empty_log(connection)
        return _with_empty_log(connection, lambda: work(connection, now))

    def _wipe_soon(self) -> None:
        if self._wipe_timer is None:
            self._wipe_timer = asyncio.get_running_loop().call_later(HOUSEKEEPING_INTERVAL, self._wipe)

    def _wipe(self) -> None:
        self._wipe_timer = None
        self._housekeeper.post(self._after_wipe, asyncio.get_running_loop())

    def _after_wipe(self, connection: sqlite3.Connection, loop: asyncio.AbstractEventLoop) -> None:
        if not wipe(connection):
            loop.call_soon_threadsafe(self._wipe_soon)

    def _do_housekeeping(self, connection: sqlite3.Connection, now: float) -> None:
        self._purge_position = _transaction(connection, rows.purge, self._purge_position, PURGE_ROWS, now)
        checkpoint(connection)


class GatheredReads:
    """Reads of values, one at a time; those that come meanwhile are the next one.

    On a busy machine a call of a thread takes some tens of milliseconds, however little it reads: the thread waits for
    a core and for the interpreter's lock. So 40 agents that go on right behind a restart would wait for seconds.
    """

    def __init__(self, read: Callable[[Sequence[Key]], Awaitable[list[bytes | None]]]) -> None:
        self._read = read
        self._is_reading = False
        self._gathered: list[tuple[Sequence[Key], asyncio.Future[list[bytes | None]]]] = []
        self._task: asyncio.Task[None] | None = None

    async def get_many(self, keys: Sequence[Key]) -> list[bytes | None]:
        """Returns the values in the order of the keys. Raises what `read` raises."""
        if self._is_reading:
            values: asyncio.Future[list[bytes | None]] = asyncio.get_running_loop().create_future()
            self._gathered.append((keys, values))
            return await values
        self._is_reading = True
        try:
            return await self._read(keys)
        finally:
            # Those that wait go first: on a busy machine new ones come all the time.
            self._is_reading = bool(self._gathered)
            if self._gathered:
                self._task = asyncio.get_running_loop().create_task(self._read_gathered())

    async def _read_gathered(self) -> None:
        try:
            while self._gathered:
                gathered, self._gathered = [each for each in self._gathered if not each[1].done()], []
                found, error = iter(list[bytes | None]()), None
                try:
                    found = iter(await self._read([key for keys, _ in gathered for key in keys]))
                except Exception as cause:
                    error = cause
                for keys, values in gathered:
                    result = list(islice(found, len(keys)))
                    if not values.done():
                        values.set_result(result) if error is None else values.set_exception(error)
        finally:
            self._is_reading = False


class Deletion:
    """A deletion of values and logs; on a full disk, in steps that need little space in the write-ahead log."""

    def __init__(self, keys: Sequence[Key]) -> None:
        self._remaining = list(reversed(keys))
        self._count = 0

    def __call__(self, connection: sqlite3.Connection, now: float) -> int:
        """Deletes all keys at once or, if the disk is full, in small steps; returns the number of existing keys."""
        try:
            self._count += _transaction(connection, rows.delete, self._remaining, now)
            self._remaining.clear()
        except sqlite3.OperationalError as error:
            if not is_full(error):
                raise
            empty_log(connection)
        while self._remaining:
            self._count += _with_empty_log(connection, lambda: _delete_in_steps(connection, self._remaining[-1], now))
            self._remaining.pop()
        return self._count


def _delete_in_steps(connection: sqlite3.Connection, key: Key, now: float) -> int:
    """Deletes a key, with a large value or a long log in small steps; returns 1 if it existed, else 0."""
    overwritten = 0
    while size := _with_empty_log(
        connection, partial(_transaction, connection, rows.overwrite_piece, key, overwritten, now)
    ):
        overwritten += size
    while _with_empty_log(connection, partial(_transaction, connection, rows.shorten, key, now)):
        pass
    return _transaction(connection, rows.delete, (key,), now)


def _with_empty_log(connection: sqlite3.Connection, work: Callable[[], T]) -> T:
    """Runs `work`; if the disk is full, empties the write-ahead log and runs it once more."""
    try:
        return work()
    except sqlite3.OperationalError as error:
        if not is_full(error):
            raise
    empty_log(connection)
    return work()


def _transaction(connection: sqlite3.Connection, call: Callable[..., T], *args: Any) -> T:
    return transact(connection, lambda: call(connection, *args))


def _write_in_steps(
    connection: sqlite3.Connection, steps: Sequence[tuple[list[Put], list[LogAppend]]], now: float
) -> dict[Key, bytes]:
    """Writes each step in one transaction; yields the core to other threads before each."""
    existing: dict[Key, bytes] = {}
    for puts, log_appends in steps:
        rows.yield_core()
        existing |= _transaction(connection, _write_all, puts, log_appends, now)
    return existing


def _write_all(
    connection: sqlite3.Connection, puts: Sequence[Put], log_appends: Sequence[LogAppend], now: float
) -> dict[Key, bytes]:
    unconditional = [put for put in puts if not put.if_absent]
    if unconditional:
        rows.put_all(connection, unconditional, now)
    existing = (
        rows.put_absent(connection, [put for put in puts if put.if_absent], now)
        if len(unconditional) < len(puts)
        else {}
    )
    if log_appends:
        rows.append_all(connection, log_appends, now)
    return existing


def _do_nothing(connection: sqlite3.Connection) -> None:
    connection.execute("SELECT 1 FROM log LIMIT 1")
