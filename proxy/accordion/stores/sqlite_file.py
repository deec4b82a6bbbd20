"""The SQLite file of a store: its tables, the setup of connections, checkpoints, and the check for foreign files."""

from __future__ import annotations

import errno
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import TypeVar

from accordion.model.errors import ConfigError

T = TypeVar("T")

VERSION = 2
"""The version of the tables and of the values in them, stored in `PRAGMA user_version`."""

APPLICATION = 0x41434344
"""`ACCD`, stored in `PRAGMA application_id`: the file belongs to Accordion."""

# A log's entries have the id `log * 2**32 + position`: one b-tree, in order, without a second index.
# `value` is the last column, so that the columns that conditions read are never on overflow pages.
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


_FULL = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR | (19 << 8)})
"""SQLite's codes for a full disk; the second, SQLITE_IOERR_SHMSIZE, concerns the index of the write-ahead log."""


def is_full(error: BaseException) -> bool:
    """Whether an error of SQLite or of the operating system means that the disk is full."""
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", -1)
        return code in _FULL or code & 0xFF == sqlite3.SQLITE_FULL
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def refuse_foreign(path: Path) -> None:
    """Raises ConfigError if `path` is a file that this version must not use; a missing file is allowed.

    A file that cannot be read at the moment is allowed, too: the store's first call fails then.
    """
    if not path.is_file() or path.stat().st_size == 0:
        return
    try:
        with closing(sqlite3.connect(_uri(path, "mode=ro"), uri=True, timeout=1.0)) as connection:
            fault = _find_fault(connection, path)
    except sqlite3.OperationalError:
        return
    except sqlite3.DatabaseError as error:
        raise ConfigError(f"{path} is not an SQLite database: choose another path", path="$.store.url") from error
    if fault:
        raise ConfigError(fault, path="$.store.url")


def read_unlocked(path: Path, read: Callable[[sqlite3.Connection], T]) -> T | None:
    """Returns what `read` returns for the file as it is, whoever has locked it; None if it cannot be read."""
    # Opening a named pipe to read would wait for ever.
    if not path.is_file():
        return None
    # SQLite takes no lock on a file that is said to be immutable, and reads no write-ahead log beside it.
    with suppress(sqlite3.Error), closing(sqlite3.connect(_uri(path, "mode=ro&immutable=1"), uri=True)) as connection:
        return read(connection)
    return None


def _uri(path: Path, options: str) -> str:
    return f"{path.absolute().as_uri()}?{options}"


def transact(connection: sqlite3.Connection, work: Callable[[], T]) -> T:
    """Runs `work` in one write transaction, which is rolled back if it raises."""
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
    """Copies the write-ahead log into the file, as far as possible without making other connections wait."""
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()


def wipe(connection: sqlite3.Connection) -> bool:
    """Copies the write-ahead log into the file and empties the log, which still has the deleted content.

    Writers wait for the last part. Returns False if a reader prevented it.
    """
    checkpoint(connection)
    (busy, *_) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return not busy


def empty_log(connection: sqlite3.Connection) -> None:
    """Empties the write-ahead log; waits up to a second for other connections' checkpoints and reads."""
    for _ in range(100):
        if wipe(connection):
            return
        time.sleep(0.01)


def prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Sets up a new connection and creates missing tables. Raises sqlite3.Error."""
    connection.execute("PRAGMA journal_mode = WAL")
    # In WAL mode this loses nothing when the process crashes, and at most the last writes when the machine does.
    connection.execute("PRAGMA synchronous = NORMAL")
    # A statement of many rows keeps a journal to undo it if it fails; in a file that costs as much as the rows.
    connection.execute("PRAGMA temp_store = MEMORY")
    # Overwrite deleted content; the default depends on how SQLite was built.
    connection.execute("PRAGMA secure_delete = ON")
    connection.execute(f"PRAGMA journal_size_limit = {64 * 1024 * 1024}")
    # `checkpoint` copies the log into the file in the background. A commit does so, and waits for the disk, only if the
    # log grows beyond this number of pages.
    connection.execute("PRAGMA wal_autocheckpoint = 8192")
    if _pragma(connection, "user_version") != VERSION:
        transact(connection, lambda: _upgrade(connection, path))


def _upgrade(connection: sqlite3.Connection, path: Path) -> None:
    fault = _find_fault(connection, path)
    if fault:
        raise sqlite3.DatabaseError(fault)
    if _pragma(connection, "user_version") == 0:
        for statement in _TABLES.split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute(f"PRAGMA user_version = {VERSION}")


def _find_fault(connection: sqlite3.Connection, path: Path) -> str:
    """Returns the reason not to use this file, or an empty text."""
    version = _pragma(connection, "user_version")
    if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
        return ""
    if _pragma(connection, "application_id") != APPLICATION:
        return f"{path} belongs to another program: choose another path"
    if version != VERSION:
        return (
            f"{path} was written by another version of Accordion (its format is {version}, this one reads {VERSION}): "
            "run that version again, or choose another path"
        )
    return ""


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def retry_while_locked(work: Callable[[], None], timeout: float) -> None:
    """Runs `work` again while the file is locked: the change to WAL mode does not wait as other statements do."""
    end = time.monotonic() + timeout
    while True:
        try:
            return work()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= end:
                raise
            time.sleep(0.01)
