"""A tenant's file of memories: its tables, and the files that a thread keeps open.

Each tenant has a file of its own. Words are then weighed by this tenant's memories alone, nothing of one tenant can be
found by another, and to erase a tenant is to empty a file.
"""

from __future__ import annotations

import sqlite3
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Any

from accordion.storage.sqlite_file import APPLICATION, patiently, transact
from accordion.storage.sqlite_place import Identity, identity
from accordion.storage.stems import prepare

VERSION = 2
_UNTIDY = 0x100
"""Stands in `PRAGMA user_version` beside the version, once for each change that took something out, as long as that may
be in the file."""
_OPEN = 32
"""Files that one thread keeps open."""

# Names stand there under the veil (see `memories_veil`), and so do all values: they hold the names too.
TABLES = """
CREATE TABLE veil (secret BLOB NOT NULL);
CREATE TABLE memory (
    row INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, revision TEXT NOT NULL, tokens BLOB NOT NULL,
    value BLOB NOT NULL);
CREATE TABLE chunk (number INTEGER PRIMARY KEY, rows BLOB NOT NULL, words BLOB NOT NULL, vectors BLOB NOT NULL);
CREATE TABLE entity (key TEXT NOT NULL, type TEXT NOT NULL, value BLOB NOT NULL, PRIMARY KEY (key, type)) WITHOUT ROWID;
CREATE TABLE relation (
    row INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, start TEXT NOT NULL, end TEXT NOT NULL, memory TEXT NOT NULL,
    value BLOB NOT NULL);
CREATE INDEX relation_start ON relation (start);
CREATE INDEX relation_end ON relation (end);
CREATE INDEX relation_memory ON relation (memory);
CREATE TABLE marker (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
"""


class Shelf(sqlite3.Connection):
    """The tenants' files that one thread has open, those used last. To a Lane it is one connection: it is itself a
    database in memory, which stems words (see `stems`), and closes all of them when it is closed."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.timeout = 1.0
        self._files: OrderedDict[Path, tuple[sqlite3.Connection, Identity | None]] = OrderedDict()

    def file(self, path: Path, *, create: bool) -> sqlite3.Connection | None:
        """The file that lies there now, open; None where there is none and none is to be made. Raises sqlite3.Error or
        OSError."""
        there = identity(path)
        found, opened = self._files.pop(path, (None, None))
        if found is not None and (there is None or opened != there):
            found.close()
            found = None
        if found is None:
            if there is None and not create:
                # What was moved, or is not mounted, is away and not empty: the folder beside the store's file is none.
                path.parent.parent.stat()
                return None
            while len(self._files) >= _OPEN:
                self._files.popitem(last=False)[1][0].close()
            found = _connect(path, self.timeout)
        self._files[path] = found, there or identity(path)
        return found

    def close(self) -> None:
        """Close all of them."""
        while self._files:
            with suppress(sqlite3.Error):
                self._files.popitem()[1][0].close()
        super().close()


def shelf(timeout: float) -> Shelf:
    """An empty one. A statement waits for other connections at most `timeout` seconds."""
    made = sqlite3.connect(":memory:", isolation_level=None, factory=Shelf)
    made.timeout = timeout
    prepare(made)
    return made


def file_of(files: sqlite3.Connection, path: Path, *, create: bool) -> sqlite3.Connection | None:
    """A file of a Lane's shelf. See Shelf."""
    if not isinstance(files, Shelf):
        raise TypeError("expected a shelf")
    return files.file(path, create=create)


def _connect(path: Path, timeout: float) -> sqlite3.Connection:
    new = not path.exists()
    if new:
        # Not the folder of the store: where that is missing it was moved or is not mounted.
        path.parent.mkdir(exist_ok=True, mode=0o700)
    connection = sqlite3.connect(path, timeout=timeout, isolation_level=None)
    try:
        if new:
            path.chmod(0o600)
        patiently(lambda: _prepare(connection), timeout)
    except BaseException:
        connection.close()
        raise
    return connection


def mark(connection: sqlite3.Connection) -> None:
    """Notes, within a transaction that takes something out, that the file is to be made tidy."""
    connection.execute(f"PRAGMA user_version = {_state(connection) + _UNTIDY}")


def tidy(connection: sqlite3.Connection) -> None:
    """Writes the file anew, so that nothing is left of what was taken out: pages keep copies of what they held before
    it moved, whatever `secure_delete` overwrites. Where the file is not to be had, this is left to who opens it next.
    """
    with suppress(sqlite3.OperationalError):
        state = _state(connection)
        if state == VERSION:
            return  # another process did it meanwhile
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute("VACUUM")
        transact(connection, lambda: _settle(connection, state))


def _settle(connection: sqlite3.Connection, state: int) -> None:
    # Not where another process took something out meanwhile.
    if _state(connection) == state:
        connection.execute(f"PRAGMA user_version = {VERSION}")


def _prepare(connection: sqlite3.Connection) -> None:
    # The journal is one that is rolled back: it costs less to open and to close than a write-ahead log, and nothing of
    # what a change took out is left in it.
    connection.execute("PRAGMA secure_delete = ON")
    state = _state(connection)
    version = state % _UNTIDY
    if version not in (0, VERSION):
        raise sqlite3.DatabaseError("these memories were written by another version of Accordion: run that one again")
    if not version:
        transact(connection, lambda: _make(connection))
    elif state != VERSION:
        tidy(connection)


def _make(connection: sqlite3.Connection) -> None:
    if _state(connection) == 0:
        for statement in TABLES.split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute(f"PRAGMA user_version = {VERSION}")


def _state(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])
