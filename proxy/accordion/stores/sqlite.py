"""The embedded store: one SQLite file, shared by all workers of one machine."""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Append, Key, Put
from accordion.stores import sqlite_rows as rows
from accordion.stores.batches import LogAppend, split_batch
from accordion.stores.disk_reserve import DiskReserve, is_full
from accordion.stores.sqlite_file import checkpoint, empty_log, refuse_foreign, transact, wipe
from accordion.stores.sqlite_path import FileConnection, StoreFile
from accordion.stores.sqlite_worker import SqliteWorker

T = TypeVar("T")

KEEP_EVERY = 1.0
"""Seconds between two rounds of housekeeping, as long as there are writes."""

PURGE_ROWS = 500
"""Rows that one round looks at to remove what has expired."""

_STEP = 64
"""Writes of a large batch in one transaction: its commit cannot step aside, and writes about a page for each."""
_LARGE = 128
"""A batch of more writes than this is large; those of the archive are not, and are there whole or not at all."""


class SqliteStore:
    """The Store port over one file in WAL mode.

    One thread writes, another reads, a third keeps house, each with a connection of its own, so that nobody waits for a
    large write to read, nor for the disk to write. The file is opened at the first call, and again after it broke.
    Every write is a transaction; what a caller no longer waits for is done whole or not at all. A large batch is
    several, in its order, unless batches have to be `whole`. `reserve` is disk space that only erasing may use: where
    the disk is full, usual writes raise StoreFull, and deletions use that space. `now` gives seconds since the epoch,
    the same for all workers. Raises ConfigError for a file of a newer version or of another program.
    """

    def __init__(
        self,
        path: Path,
        *,
        timeout: float,
        whole: bool = False,
        reserve: DiskReserve | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        refuse_foreign(path)
        self._most = sys.maxsize if whole else _LARGE
        self._reserve = reserve
        self._now = now
        self._keep_at = 0.0
        self._purged = (0, 0)
        self._wiping: asyncio.TimerHandle | None = None
        self._file = file = StoreFile(path, timeout=timeout)
        self._writer, self._reader, self._keeper = (
            SqliteWorker(f"store-{name}", self._connect, timeout=timeout, current=file.is_current)
            for name in ("writer", "reader", "keeper")
        )

    @property
    def replacements(self) -> int:
        """How often another file was found at the path, since the first."""
        return self._file.replaced

    async def put(self, key: Key, value: bytes, *, ttl: float | None = None) -> None:
        """See Store."""
        await self._write(rows.put_all, (Put(key, value, ttl),), size=len(value))

    async def put_if_absent(self, key: Key, value: bytes, *, ttl: float | None = None) -> bytes:
        """See Store."""
        return await self._write(rows.put_if_absent, Put(key, value, ttl), size=len(value))

    async def get(self, key: Key) -> bytes | None:
        """See Store."""
        return await self._reader.run(rows.get, key, self._now())

    async def get_many(self, keys: Sequence[Key]) -> list[bytes | None]:
        """See Store."""
        return await self._reader.run(rows.get_many, keys, self._now())

    async def delete(self, keys: Sequence[Key]) -> int:
        """See Store. Soon after, nothing of it stands in the files any more."""
        count: int = await self._run(self._with_reserve, Deletion(keys))
        if count:
            self._wipe_soon()
        return count

    async def delete_unchanged(self, rows_: Mapping[Key, bytes]) -> None:
        """Remove values, each only where it is still the one given."""
        await self._write(rows.delete_unchanged, rows_)

    async def append(
        self, key: Key, values: Sequence[bytes], *, keep: int | None = None, ttl: float | None = None
    ) -> int:
        """See Store. Appending nothing changes nothing, and returns -1 where there is no log."""
        if not values:
            return await self._reader.run(rows.last_position, key, self._now())
        return await self._write(rows.append, LogAppend(key, keep, ttl, list(values)), size=sum(map(len, values)))

    async def read(self, key: Key, start: int = 0, limit: int | None = None) -> list[tuple[int, bytes]]:
        """See Store."""
        return await self._reader.run(rows.read, key, start, limit, self._now())

    async def scan(
        self, collection: str, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> list[tuple[str, bytes]]:
        """See Store. Keys without a collection are in none."""
        if not collection:
            return []
        return await self._reader.run(rows.scan, collection, prefix, after, limit, self._now())

    async def write(self, batch: Sequence[Put | Append]) -> dict[Key, bytes]:
        """See Store."""
        # In the order of the batch: what lists a thing may be in front of it, so that it can be found and erased.
        size = _STEP if len(batch) > self._most else max(1, len(batch))
        steps = [split_batch(batch[at : at + size]) for at in range(0, len(batch), size)]
        if batch and all(isinstance(each, Put) and each.for_erasing for each in batch):
            return await self._run(self._with_reserve, lambda connection, now: _write_in_steps(connection, steps, now))
        most = sum(len(each.value) for each in batch)
        return await self._run(self._write_beside_reserve, most, _write_in_steps, steps)

    @asynccontextmanager
    async def lock(self, key: Key, *, lease: float) -> AsyncIterator[bool]:
        """See Store. A release that fails is left to the end of the lease."""
        token = secrets.token_bytes(16)
        held = await self._write(rows.lock, key, token, lease)
        try:
            yield held
        finally:
            if held:
                with suppress(StoreUnavailable):
                    await self._writer.run(_transaction, rows.unlock, key, token)

    @property
    def is_available(self) -> bool:
        """See Store."""
        return self._writer.available and self._reader.available

    async def ping(self) -> None:
        """Return when the file can be read and written."""
        await self._writer.run(_transaction, _do_nothing)
        await self._reader.run(_do_nothing)

    async def close(self) -> None:
        """Finish what was asked for and close the file."""
        if self._wiping is not None:
            self._wiping.cancel()
        for lane in (self._reader, self._keeper, self._writer):
            await lane.close()

    async def _write(self, call: Callable[..., T], *args: Any, size: int = 0) -> T:
        """`call(connection, *args, now)` in one transaction, and now and then some housekeeping behind it."""
        return await self._run(self._write_beside_reserve, size, _transaction, call, *args)

    async def _run(self, work: Callable[..., T], *args: Any) -> T:
        """`work(connection, *args, now)`, which sees to its transactions, and the same housekeeping."""
        now = self._now()
        result: T = await self._writer.run(work, *args, now)
        if not 0.0 <= self._keep_at - now <= KEEP_EVERY:
            self._keep_at = now + KEEP_EVERY
            self._keeper.post(self._do_housekeeping, now)
        return result

    def _connect(self) -> FileConnection:
        try:
            return self._file.connect()
        except (sqlite3.Error, OSError) as error:
            # Even to open the file takes a little room.
            if self._reserve is None or not is_full(error):
                raise
            self._reserve.release()
            return self._file.connect()

    def _write_beside_reserve(self, connection: sqlite3.Connection, size: int, work: Callable[..., T], *args: Any) -> T:
        """A usual write of so many bytes, which leaves the reserve alone. Raises StoreFull."""
        if self._reserve is not None:
            self._reserve.check(connection, size)
        return _with_empty_log(connection, lambda: work(connection, *args))

    def _with_reserve(
        self, connection: sqlite3.Connection, work: Callable[[sqlite3.Connection, float], T], now: float
    ) -> T:
        """A write that erases, which may use the reserve. `work` is called again where the disk was full."""
        if self._reserve is not None and self._reserve.release():
            # First of all the log goes to the file, which grows by it.
            empty_log(connection)
        return _with_empty_log(connection, lambda: work(connection, now))

    def _wipe_soon(self) -> None:
        if self._wiping is None:
            self._wiping = asyncio.get_running_loop().call_later(KEEP_EVERY, self._wipe)

    def _wipe(self) -> None:
        self._wiping = None
        self._keeper.post(self._after_wipe, asyncio.get_running_loop())

    def _after_wipe(self, connection: sqlite3.Connection, loop: asyncio.AbstractEventLoop) -> None:
        if not wipe(connection):
            loop.call_soon_threadsafe(self._wipe_soon)

    def _do_housekeeping(self, connection: sqlite3.Connection, now: float) -> None:
        self._purged = _transaction(connection, rows.purge, self._purged, PURGE_ROWS, now)
        checkpoint(connection)


class Deletion:
    """The removal of values and logs, in steps that need little of the write-ahead log where the disk is full."""

    def __init__(self, keys: Sequence[Key]) -> None:
        self._left = list(reversed(keys))
        self._count = 0

    def __call__(self, connection: sqlite3.Connection, now: float) -> int:
        """Removes all keys at once, or each in small steps where that does not fit; gives how many held something."""
        try:
            self._count += _transaction(connection, rows.delete, self._left, now)
            self._left.clear()
        except sqlite3.OperationalError as error:
            if not is_full(error):
                raise
            empty_log(connection)
        while self._left:
            self._count += _with_empty_log(connection, lambda: _delete_in_steps(connection, self._left[-1], now))
            self._left.pop()
        return self._count


def _delete_in_steps(connection: sqlite3.Connection, key: Key, now: float) -> int:
    """Removes a key, a large value and a long log piece by piece; gives 1 if it held something."""
    blanked = 0
    while blank := _with_empty_log(
        connection, partial(_transaction, connection, rows.overwrite_piece, key, blanked, now)
    ):
        blanked += blank
    while _with_empty_log(connection, partial(_transaction, connection, rows.shorten, key, now)):
        pass
    return _transaction(connection, rows.delete, (key,), now)


def _with_empty_log(connection: sqlite3.Connection, work: Callable[[], T]) -> T:
    """`work`; where the disk is full, once more after the write-ahead log was emptied."""
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
    """Each step in one transaction, the next after others had a chance to run on this core."""
    held: dict[Key, bytes] = {}
    for puts, runs in steps:
        rows.yield_core()
        held |= _transaction(connection, _write_all, puts, runs, now)
    return held


def _write_all(
    connection: sqlite3.Connection, puts: Sequence[Put], runs: Sequence[LogAppend], now: float
) -> dict[Key, bytes]:
    firm = [put for put in puts if not put.if_absent]
    if firm:
        rows.put_all(connection, firm, now)
    held = rows.put_absent(connection, [put for put in puts if put.if_absent], now) if len(firm) < len(puts) else {}
    if runs:
        rows.append_all(connection, runs, now)
    return held


def _do_nothing(connection: sqlite3.Connection) -> None:
    connection.execute("SELECT 1 FROM log LIMIT 1")
