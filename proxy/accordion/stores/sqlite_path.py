"""Opens the file at a store's path, which may be deleted, replaced or unmounted while the proxy runs."""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from accordion.stores.file_locks import lock_file
from accordion.stores.sqlite_file import prepare, retry_while_locked

CHECK_INTERVAL = 1.0
"""Seconds between two checks that an open file is still the one at its path."""

_MAX_LOCK_WAIT = 0.5
"""Seconds to wait for other processes that prepare the file, which takes them some milliseconds."""

Identity = tuple[int, int]
"""Device and inode of a file."""


class FileConnection(sqlite3.Connection):
    """A connection with the identity of its open file."""

    file: Identity | None = None


class StoreFile:
    """The file at `path`, for all workers of a store; a file that was deleted or replaced is opened again.

    A statement waits for other connections at most `timeout` seconds.

    The files of an SQLite database belong together: a log (`-wal`) that is read into another file corrupts it, and so
    does an index of the log (`-shm`) that two files share (https://www.sqlite.org/howtocorrupt.html, 1.4 and 2.4). So
    the log and index of an earlier file are removed before another file is opened at the path.
    """

    def __init__(self, path: Path, *, timeout: float) -> None:
        self._path = path
        self._timeout = timeout
        self._lock, self._open_lock = threading.Lock(), threading.Lock()
        self._device: int | None = None
        self._current: Identity | None = None
        self._last_opened: Identity | None = None
        self._side_identities: list[Identity | None] = []
        self._next_check = 0.0
        self.replaced = 0
        """The number of times that a different file was found at the path."""
        # Create the folder now: a file that is opened only later, such as a spool's, must not create a folder on a disk
        # that has been unmounted by then.
        with suppress(OSError):
            self._make_folder(_resolve_links(path).parent)

    def is_current(self, connection: sqlite3.Connection) -> bool:
        """Whether a connection's open file is the one at the path; the path is checked once a second."""
        if time.monotonic() >= self._next_check:
            with self._lock:
                self._set_current(file_identity(self._path))
        return isinstance(connection, FileConnection) and connection.file == self._current

    def connect(self) -> FileConnection:
        """Opens a connection in autocommit mode; creates the file and its tables if they are missing.

        The folder is created too, but only once: one that is missing later, or is on another disk, was moved or is not
        mounted, and may return with its content. Raises sqlite3.Error or OSError.
        """
        real_path = _resolve_links(self._path)
        with self._open_lock:
            self._make_folder(real_path.parent)
            with _hold_folder_lock(real_path.parent):
                file = self._prepare_path(real_path)
                with self._lock:
                    self._set_current(file)
                try:
                    connection = self._open(real_path, file)
                finally:
                    self._last_opened, self._side_identities = (
                        file,
                        [file_identity(each) for each in _side_files(real_path)],
                    )
        return connection

    def _open(self, real_path: Path, file: Identity) -> FileConnection:
        # In this mode SQLite creates no file, and it reads nothing before the first statement.
        connection = sqlite3.connect(
            f"{real_path.as_uri()}?mode=rw",
            uri=True,
            timeout=self._timeout,
            isolation_level=None,
            factory=FileConnection,
        )
        try:
            connection.file = file
            if file_identity(real_path) != file:
                raise OSError("the file was deleted or replaced meanwhile")
            retry_while_locked(lambda: prepare(connection, self._path), self._timeout)
        except BaseException:
            connection.close()
            raise
        return connection

    def _set_current(self, file: Identity | None) -> None:
        self._current, self._next_check = file, time.monotonic() + CHECK_INTERVAL

    def _make_folder(self, folder: Path) -> None:
        if self._device is None:
            folder.mkdir(parents=True, exist_ok=True)
            self._device = folder.stat().st_dev

    def _prepare_path(self, real_path: Path) -> Identity:
        """Prepares the path for opening, and returns the identity of its file.

        `_open` compares it, so that a file that replaces this one in between is noticed.
        """
        identity = file_identity(real_path)
        if identity is None:
            if real_path.parent.stat().st_dev != self._device:
                raise OSError(f"the folder of {real_path} is on another disk than it was: is that one mounted?")
            for side_file in _side_files(real_path):
                side_file.unlink(missing_ok=True)
            # Counted here, since the new file may get the inode number of the former one.
            self.replaced += self._last_opened is not None
            return _create_file(real_path)
        if identity != self._last_opened:
            self.replaced += self._last_opened is not None
            for side_file, side_identity in zip(_side_files(real_path), self._side_identities, strict=False):
                # Other processes may have opened the new file already: their files stay.
                if side_identity is not None and file_identity(side_file) == side_identity:
                    side_file.unlink(missing_ok=True)
        return identity


def file_identity(path: Path) -> Identity | None:
    """Returns the identity of the file at a path, or None if there is no file. Raises OSError."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _resolve_links(path: Path) -> Path:
    """Resolves symbolic links: SQLite puts its log next to the real file."""
    return Path(os.path.realpath(path))


def _side_files(real_path: Path) -> list[Path]:
    """Returns the paths of SQLite's write-ahead log and of the log's index."""
    return [real_path.with_name(real_path.name + end) for end in ("-wal", "-shm")]


def _create_file(real_path: Path) -> Identity:
    """Creates a file that only its owner may read: it has conversations. SQLite gives its log the same mode."""
    # Never open an existing file: closing it would release the locks of this process's connections.
    handle = os.open(real_path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    try:
        status = os.fstat(handle)
    finally:
        os.close(handle)
    return status.st_dev, status.st_ino


@contextmanager
def _hold_folder_lock(folder: Path) -> Iterator[None]:
    """Keeps other Accordion processes from preparing a file in this folder, if possible.

    The file system may not support locks, and another program may have one for any length of time.
    """
    handle = -1
    # On Windows an open file cannot be deleted or replaced.
    if sys.platform != "win32":
        with suppress(OSError):
            handle = os.open(folder, os.O_RDONLY)
            lock_file(handle, _MAX_LOCK_WAIT)
    try:
        yield
    finally:
        if handle >= 0:
            os.close(handle)
