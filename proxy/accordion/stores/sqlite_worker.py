"""One thread that owns one SQLite connection, and does one call after the other.

SQLite blocks, so it is kept off the event loop. A thread of its own costs less than a pool's, keeps calls in
order, and lets nobody else touch the connection.
"""

from __future__ import annotations

import asyncio
import errno
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeVar

from accordion.model.errors import StoreFull, StoreUnavailable
from accordion.stores.disk_reserve import is_full

T = TypeVar("T")

_PASSING = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_INTERRUPT})
"""Errors that say nothing against the connection itself."""
_READ_ONLY = "the store is read-only, so that nothing can be stored or erased"


@dataclass(frozen=True, slots=True)
class _Job:
    """Something to call, or the end of the thread where there is nothing; `future` where somebody waits for it."""

    call: Callable[..., Any] | None
    args: tuple[Any, ...]
    future: asyncio.Future[Any] | None = None


class SqliteWorker:
    """Runs calls on a connection that `connect` opens at first need and again after it broke.

    A call that is not begun when its caller leaves or its time is over is never begun. `current` says whether a
    connection is still the one to use, and is asked before and after each call: if not, another is opened, and what was
    answered meanwhile counts for nothing.
    """

    def __init__(
        self,
        name: str,
        connect: Callable[[], sqlite3.Connection],
        *,
        timeout: float,
        current: Callable[[sqlite3.Connection], bool] = lambda _: True,
    ) -> None:
        self._name = name
        self._connect = connect
        self._current = current
        self._timeout = timeout
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False
        self.available = True
        """Whether the last call that was asked for was answered."""

    async def run(self, call: Callable[..., T], *args: Any) -> T:
        """`call(connection, *args)` in the thread. Raises StoreUnavailable after the time-out or an SQLite error."""
        if self._closed:
            raise StoreUnavailable("the store is closed")
        try:
            result: T = await self._submit(call, args)
        except StoreUnavailable:
            self.available = False
            raise
        self.available = True
        return result

    def post(self, call: Callable[..., object], *args: Any) -> None:
        """`call(connection, *args)` in the thread some time after what was asked for before; its errors are lost."""
        if not self._closed:
            self._enqueue(_Job(call, args))

    async def close(self) -> None:
        """Finish what was asked for, close the connection, end the thread."""
        if self._closed:
            return
        self._closed, self.available = True, False
        if self._thread is not None:
            # A thread that still waits for the file ends by itself, later.
            with suppress(StoreUnavailable):
                await self._submit(None, ())

    async def _submit(self, call: Callable[..., Any] | None, args: tuple[Any, ...]) -> Any:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        timer = loop.call_later(self._timeout, _set_timeout, future, self._timeout)
        self._enqueue(_Job(call, args, future))
        try:
            return await future
        finally:
            timer.cancel()

    def _enqueue(self, job: _Job) -> None:
        self._jobs.put(job)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()

    def _work(self) -> None:
        connection: sqlite3.Connection | None = None
        while (job := self._jobs.get()).call is not None:
            if job.future is not None and job.future.done():
                continue
            result: Any = None
            error: Exception | None = None
            try:
                if connection is not None and not self._current(connection):
                    connection.close()
                    connection = None
                if connection is None:
                    connection = self._connect()
                result = job.call(connection, *job.args)
                if not self._current(connection):
                    raise StoreUnavailable("SQLite: the file was deleted or replaced meanwhile")
            except (sqlite3.Error, OSError) as cause:
                error = _store_unavailable(cause)
                error.__cause__ = cause
                connection = _usable_connection(connection, cause)
            except Exception as cause:
                error = cause
            _set_result(job, result, error)
            del job, result, error
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()
        _set_result(job, None, None)


def _store_unavailable(cause: Exception) -> StoreUnavailable:
    if is_full(cause):
        return StoreFull(f"the disk of the store is full (SQLite: {cause})")
    code = getattr(cause, "sqlite_errorcode", -1) & 0xFF
    if code == sqlite3.SQLITE_READONLY or getattr(cause, "errno", None) == errno.EROFS:
        return StoreUnavailable(f"{_READ_ONLY} (SQLite: {cause})")
    return StoreUnavailable(f"SQLite: {cause}")


def _usable_connection(connection: sqlite3.Connection | None, error: Exception) -> sqlite3.Connection | None:
    """The connection if it can go on being used; else it is closed, so that the next call opens a new one."""
    if connection is None or getattr(error, "sqlite_errorcode", -1) & 0xFF in _PASSING:
        return connection
    with suppress(sqlite3.Error):
        connection.close()
    return None


def _set_result(job: _Job, result: Any, error: Exception | None) -> None:
    if job.future is None:
        return
    # The loop is closed where a program ended without closing the store; nobody waits then.
    with suppress(RuntimeError):
        job.future.get_loop().call_soon_threadsafe(_set_future, job.future, result, error)


def _set_future(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def _set_timeout(future: asyncio.Future[Any], timeout: float) -> None:
    if not future.done():
        future.set_exception(StoreUnavailable(f"SQLite did not answer within {timeout:g} s"))
