"""A thread that owns one SQLite connection and runs one call after the other.

SQLite blocks, so it must not run on the event loop. A thread of its own costs less than a thread pool, keeps the calls
in order and is the only user of the connection.
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
from typing import Any, Generic, Protocol, TypeVar

from accordion.model.errors import StoreFull, StoreUnavailable
from accordion.stores.sqlite_file import is_full
from accordion.stores.time_limit import within

T = TypeVar("T")
C = TypeVar("C", bound="Closable")

_TEMPORARY_ERRORS = frozenset(
    {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_INTERRUPT}
)
"""Errors after which the connection can still be used."""
_READ_ONLY = "the store is read-only, so that nothing can be stored or erased"


@dataclass(frozen=True, slots=True)
class _Job:
    """A call to run in the thread; None ends the thread. `future` gets the result if a caller waits for it."""

    call: Callable[..., Any] | None
    args: tuple[Any, ...]
    future: asyncio.Future[Any] | None = None


class Closable(Protocol):
    """What a SqliteWorker owns: an SQLite connection, or several."""

    def close(self) -> None:
        """Closes it. May raise sqlite3.Error."""


class SqliteWorker(Generic[C]):
    """Runs calls on a connection that `connect` opens at the first call and again after an error.

    A call that has not started when its caller is cancelled or its time-out ends never starts. `is_current` says
    whether a connection may still be used, and is called before and after each call: if not before, another connection
    is opened; if not after, the call's result is dropped and it raises StoreUnavailable.
    """

    def __init__(
        self,
        name: str,
        connect: Callable[[], C],
        *,
        timeout: float,
        is_current: Callable[[C], bool] = lambda _: True,
    ) -> None:
        self._name = name
        self._connect = connect
        self._is_current = is_current
        self._timeout = timeout
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False
        self.available = True
        """Whether the last call succeeded in time."""

    async def run(self, call: Callable[..., T], *args: Any) -> T:
        """Runs `call(connection, *args)` in the thread. Raises StoreUnavailable on a time-out or an SQLite error."""
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
        """Queues `call(connection, *args)` after earlier calls; its result and errors are dropped."""
        if not self._closed:
            self._enqueue(_Job(call, args))

    async def close(self) -> None:
        """Finishes the earlier calls, closes the connection and ends the thread."""
        if self._closed:
            return
        self._closed, self.available = True, False
        if self._thread is not None:
            # A thread that still waits for the file ends later, by itself.
            with suppress(StoreUnavailable):
                await self._submit(None, ())

    async def _submit(self, call: Callable[..., Any] | None, args: tuple[Any, ...]) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._enqueue(_Job(call, args, future))
        try:
            return await within(self._timeout, future)
        except TimeoutError as error:
            raise StoreUnavailable(f"SQLite did not answer within {self._timeout:g} s") from error

    def _enqueue(self, job: _Job) -> None:
        self._jobs.put(job)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()

    def _work(self) -> None:
        connection: C | None = None
        while (job := self._jobs.get()).call is not None:
            if job.future is not None and job.future.done():
                continue
            result: Any = None
            error: Exception | None = None
            try:
                if connection is not None and not self._is_current(connection):
                    connection.close()
                    connection = None
                if connection is None:
                    connection = self._connect()
                result = job.call(connection, *job.args)
                if not self._is_current(connection):
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


def _usable_connection(connection: C | None, error: Exception) -> C | None:
    """Returns the connection if it can still be used; else closes it, so that the next call opens a new one."""
    if connection is None or getattr(error, "sqlite_errorcode", -1) & 0xFF in _TEMPORARY_ERRORS:
        return connection
    with suppress(sqlite3.Error):
        connection.close()
    return None


def _set_result(job: _Job, result: Any, error: Exception | None) -> None:
    if job.future is None:
        return
    # The loop is closed if a program ended without closing the store; no caller waits then.
    with suppress(RuntimeError):
        job.future.get_loop().call_soon_threadsafe(_set_future, job.future, result, error)


def _set_future(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
