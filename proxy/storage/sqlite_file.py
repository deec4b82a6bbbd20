"""The SQLite file: how it is opened, what its tables are, and which files are refused."""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from proxy.core.errors import ConfigError

if sys.platform != "win32":
    import fcntl

T = TypeVar("T")

VERSION = 1
"""The version of the tables, kept in `PRAGMA user_version`."""

APPLICATION = 0x41434344
"""`ACCD`, kept in `PRAGMA application_id`: this file is Accordion's."""

LOOK_EVERY = 1.0
"""Seconds for which an open file is taken for the one at its path."""

_OTHERS = 0.5
"""Seconds for which other processes are waited for that make the file ready; that takes some milliseconds."""

Identity = tuple[int, int]
"""Device and inode."""

# A log's entries have the id `log * 2**32 + position`: one b-tree, in order, without a second index.
# `value` comes last, so that what is read of a row to judge it never lies on its overflow pages.
_TABLES = """
CREATE TABLE entry (
    id INTEGER PRIMARY KEY, collection BLOB NOT NULL, name BLOB NOT NULL, expires REAL, value BLOB NOT NULL,
    UNIQUE (collection, name));
CREATE TABLE log (
    id INTEGER PRIMARY KEY, collection BLOB NOT NULL, name BLOB NOT NULL, expires REAL, next INTEGER NOT NULL,
    UNIQUE (collection, name));
CREATE TABLE log_entry (id INTEGER PRIMARY KEY, value BLOB NOT NULL);
CREATE TABLE lock (
    collection BLOB NOT NULL, name BLOB NOT NULL, token BLOB NOT NULL, until REAL NOT NULL,
    PRIMARY KEY (collection, name)) WITHOUT ROWID;
"""


def refuse_foreign(path: Path, key: str = "$.store.url") -> None:
    """Raises ConfigError if `path` is a database that this version must not touch; a missing file is fine. `key` is the
    setting that names it.

    What cannot be read right now is not judged: the store says so when it is used.
    """
    if not path.is_file() or path.stat().st_size == 0:
        return
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=1.0)) as connection:
            fault = _fault(connection, path)
    except sqlite3.OperationalError:
        return
    except sqlite3.DatabaseError as error:
        raise ConfigError(f"{path} is not an SQLite database: choose another path", path=key) from error
    if fault:
        raise ConfigError(fault, path=key)


class Opened(sqlite3.Connection):
    """A connection that knows which file it has open."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.file: Identity | None = None


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
        with suppress(OSError):
            self._make_folder(_real(path).parent)

    def current(self, connection: sqlite3.Connection) -> bool:
        """Whether a connection has the file open that lies there, which is looked at once a second."""
        if time.monotonic() >= self._look_at:
            with self._lock:
                self._seen(identity(self._path))
        return isinstance(connection, Opened) and connection.file == self._now

    def connect(self) -> Opened:
        """A connection in autocommit mode; file and tables are made if they are missing.

        The folder is made too, but only once: one that is missing later, or on another disk, was moved or is not
        mounted, and comes back with all that is in it. Raises sqlite3.Error or OSError.
        """
        real = _real(self._path)
        with self._opening:
            self._make_folder(real.parent)
            with _alone(real.parent):
                file = self._made_ready(real)
                with self._lock:
                    self._seen(file)
                try:
                    connection = self._opened(real, file)
                finally:
                    self._last, self._beside = file, [identity(each) for each in _beside(real)]
        return connection

    def _opened(self, real: Path, file: Identity) -> Opened:
        # SQLite makes no file of its own here, and reads nothing before the first statement.
        connection = sqlite3.connect(
            f"{real.as_uri()}?mode=rw", uri=True, timeout=self._timeout, isolation_level=None, factory=Opened
        )
        try:
            connection.file = file
            if identity(real) != file:
                raise OSError("the file was deleted or replaced meanwhile")
            patiently(lambda: _prepare(connection, self._path), self._timeout)
        except BaseException:
            connection.close()
            raise
        return connection

    def _seen(self, file: Identity | None) -> None:
        self._now, self._look_at = file, time.monotonic() + LOOK_EVERY

    def _make_folder(self, folder: Path) -> None:
        if self._volume is None:
            folder.mkdir(parents=True, exist_ok=True)
            self._volume = folder.stat().st_dev

    def _made_ready(self, real: Path) -> Identity:
        """What is to be opened. It is looked at before that, so that a file that comes between is noticed."""
        found = identity(real)
        if found is None:
            if real.parent.stat().st_dev != self._volume:
                raise OSError(f"the folder of {real} is on another disk than it was: is that one mounted?")
            for left in _beside(real):
                left.unlink(missing_ok=True)
            # It may get the number that the former had.
            self.replaced += self._last is not None
            return _made(real)
        if found != self._last:
            self.replaced += self._last is not None
            for left, ours in zip(_beside(real), self._beside, strict=False):
                # Others may have opened the new file before: what is theirs stays.
                if ours is not None and identity(left) == ours:
                    left.unlink(missing_ok=True)
        return found


def identity(path: Path) -> Identity | None:
    """What lies at a path; None where there is nothing. Raises OSError where that is not to be learnt."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def transact(connection: sqlite3.Connection, work: Callable[[], T]) -> T:
    """`work` in one write transaction: all of it or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        result = work()
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return result


def checkpoint(connection: sqlite3.Connection) -> None:
    """Carries what is in the write-ahead log over into the file, as far as that stops nobody."""
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()


def wipe(connection: sqlite3.Connection) -> bool:
    """The same, and empties the log, in which what was deleted is still to be read. Writers wait for the last bit.
    Whether nobody who still reads stood in the way."""
    checkpoint(connection)
    (busy, *_) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return not busy


def _real(path: Path) -> Path:
    """Where links lead to: SQLite has its other files there."""
    return Path(os.path.realpath(path))


def _beside(real: Path) -> list[Path]:
    """SQLite's log and its index."""
    return [real.with_name(real.name + end) for end in ("-wal", "-shm")]


def _made(real: Path) -> Identity:
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
def _alone(folder: Path) -> Iterator[None]:
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


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    # In WAL mode this loses nothing when the process dies, and at most the last writes when the machine does.
    connection.execute("PRAGMA synchronous = NORMAL")
    # A statement of many rows notes what it changes, to undo it if it fails; in a file that costs as much as the rows.
    connection.execute("PRAGMA temp_store = MEMORY")
    # What was deleted is written over; SQLite is built so or otherwise.
    connection.execute("PRAGMA secure_delete = ON")
    connection.execute(f"PRAGMA journal_size_limit = {64 * 1024 * 1024}")
    # The log is carried over into the file by `checkpoint`, which nobody waits for. A commit does it (which means
    # waiting for the disk) only if that falls behind.
    connection.execute("PRAGMA wal_autocheckpoint = 8192")
    if _pragma(connection, "user_version") != VERSION:
        transact(connection, lambda: _upgrade(connection, path))


def _upgrade(connection: sqlite3.Connection, path: Path) -> None:
    fault = _fault(connection, path)
    if fault:
        raise sqlite3.DatabaseError(fault)
    if _pragma(connection, "user_version") == 0:
        for statement in _TABLES.split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute(f"PRAGMA user_version = {VERSION}")


def _fault(connection: sqlite3.Connection, path: Path) -> str:
    """Why this file is not to be used, or nothing."""
    version = _pragma(connection, "user_version")
    if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
        return ""
    if _pragma(connection, "application_id") != APPLICATION:
        return f"{path} belongs to another program: choose another path"
    if version > VERSION:
        return (
            f"{path} was written by a newer version of Accordion (its tables are version {version}, this program "
            f"knows {VERSION}): run that version again, or choose another path"
        )
    return ""


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def patiently(work: Callable[[], None], timeout: float) -> None:
    """Tries again while the file is locked: the change to WAL mode does not wait as other statements do."""
    end = time.monotonic() + timeout
    while True:
        try:
            return work()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= end:
                raise
            time.sleep(0.01)
