"""Which file lies at a store's path, and opening that: it may be deleted, replaced or away while the proxy runs."""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from accordion.stores.sqlite_file import prepare, retry_while_locked

if sys.platform != "win32":
    import fcntl

LOOK_EVERY = 1.0
"""Seconds for which an open file is taken for the one at its path."""

_OTHERS = 0.5
"""Seconds for which other processes are waited for that make the file ready; that takes some milliseconds."""

Identity = tuple[int, int]
"""Device and inode."""


class FileConnection(sqlite3.Connection):
    """A connection that knows which file it has open."""

    file: Identity | None = None


class StoreFile:
    """The file at `path`, for all lanes of a store together: where it was deleted or another took its place, what lies
    there is opened anew. A statement waits for other connections at most `timeout` seconds.

    The files of an SQLite database belong together: a log (`-wal`) that is read into another file spoils it, and so
    does an index of the log (`-shm`) that two files share (https://www.sqlite.org/howtocorrupt.html, 1.4 and 2.4). So
    what a former file left beside its place is taken away before another is opened there.
    """

    def __init__(self, path: Path, *, timeout: float) -> None:
        self._path = path
        self._timeout = timeout
        self._lock, self._opening = threading.Lock(), threading.Lock()
        self._volume: int | None = None
        self._now: Identity | None = None
        self._last: Identity | None = None
        self._beside: list[Identity | None] = []
        self._look_at = 0.0
        self.replaced = 0
        """How often another file was found there than the one before."""
        # Now: a file that is opened only later, such as a spool's, must not make the folder of one that is away.
        with suppress(OSError):
            self._make_folder(_resolve_links(path).parent)

    def is_current(self, connection: sqlite3.Connection) -> bool:
        """Whether a connection has the file open that lies there, which is looked at once a second."""
        if time.monotonic() >= self._look_at:
            with self._lock:
                self._note_file(file_identity(self._path))
        return isinstance(connection, FileConnection) and connection.file == self._now

    def connect(self) -> FileConnection:
        """A connection in autocommit mode; file and tables are made if they are missing.

        The folder is made too, but only once: one that is missing later, or on another disk, was moved or is not
        mounted, and comes back with all that is in it. Raises sqlite3.Error or OSError.
        """
        real = _resolve_links(self._path)
        with self._opening:
            self._make_folder(real.parent)
            with _hold_folder_lock(real.parent):
                file = self._make_ready(real)
                with self._lock:
                    self._note_file(file)
                try:
                    connection = self._open(real, file)
                finally:
                    self._last, self._beside = file, [file_identity(each) for each in _side_files(real)]
        return connection

    def _open(self, real: Path, file: Identity) -> FileConnection:
        # SQLite makes no file of its own here, and reads nothing before the first statement.
        connection = sqlite3.connect(
            f"{real.as_uri()}?mode=rw", uri=True, timeout=self._timeout, isolation_level=None, factory=FileConnection
        )
        try:
            connection.file = file
            if file_identity(real) != file:
                raise OSError("the file was deleted or replaced meanwhile")
            retry_while_locked(lambda: prepare(connection, self._path), self._timeout)
        except BaseException:
            connection.close()
            raise
        return connection

    def _note_file(self, file: Identity | None) -> None:
        self._now, self._look_at = file, time.monotonic() + LOOK_EVERY

    def _make_folder(self, folder: Path) -> None:
        if self._volume is None:
            folder.mkdir(parents=True, exist_ok=True)
            self._volume = folder.stat().st_dev

    def _make_ready(self, real: Path) -> Identity:
        """What is to be opened. It is looked at before that, so that a file that comes between is noticed."""
        found = file_identity(real)
        if found is None:
            if real.parent.stat().st_dev != self._volume:
                raise OSError(f"the folder of {real} is on another disk than it was: is that one mounted?")
            for left in _side_files(real):
                left.unlink(missing_ok=True)
            # It may get the number that the former had.
            self.replaced += self._last is not None
            return _create_file(real)
        if found != self._last:
            self.replaced += self._last is not None
            for left, ours in zip(_side_files(real), self._beside, strict=False):
                # Others may have opened the new file before: what is theirs stays.
                if ours is not None and file_identity(left) == ours:
                    left.unlink(missing_ok=True)
        return found


def file_identity(path: Path) -> Identity | None:
    """What lies at a path; None where there is nothing. Raises OSError where that is not to be learnt."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _resolve_links(path: Path) -> Path:
    """Where links lead to: SQLite has its other files there."""
    return Path(os.path.realpath(path))


def _side_files(real: Path) -> list[Path]:
    """SQLite's log and its index."""
    return [real.with_name(real.name + end) for end in ("-wal", "-shm")]


def _create_file(real: Path) -> Identity:
    """A new file. What conversations leave behind is nobody else's business; the files beside it get the same mode."""
    # Never open one that is there: closing it would end the locks of this process's connections.
    handle = os.open(real, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    try:
        found = os.fstat(handle)
    finally:
        os.close(handle)
    return found.st_dev, found.st_ino


def _lock(handle: int) -> None:
    if sys.platform != "win32":
        end = time.monotonic() + _OTHERS
        while True:
            try:
                return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= end:
                    return None
            time.sleep(0.005)


@contextmanager
def _hold_folder_lock(folder: Path) -> Iterator[None]:
    """No other of our processes makes a file ready in this folder meanwhile, as far as that can be had: its file system
    may have no locks, and somebody else may hold one for as long as he likes."""
    handle = -1
    # On Windows an open file is neither deleted nor replaced.
    if sys.platform != "win32":
        with suppress(OSError):
            handle = os.open(folder, os.O_RDONLY)
            _lock(handle)
    try:
        yield
    finally:
        if handle >= 0:
            os.close(handle)
