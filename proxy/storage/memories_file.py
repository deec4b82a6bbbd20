"""A tenant's file of memories: its tables, and the files that a thread keeps open.

Each tenant has a file of its own. Words are then weighed by this tenant's memories alone, nothing of one tenant can be
found by another, and to erase a tenant is to empty a file: a full-text index that all share would keep what was deleted
until the whole of it is written anew.
"""

from __future__ import annotations

import sqlite3
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Any

from proxy.storage.sqlite_file import APPLICATION, patiently, transact
from proxy.storage.stems import WORDS

VERSION = 1
_OPEN = 32
"""Files that one thread keeps open; each takes up to four descriptors."""

# What memories are chosen by stands apart from what they say, so that choosing reads few pages.
TABLES = f"""
CREATE TABLE memory (
    row INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, type TEXT NOT NULL, project TEXT NOT NULL,
    conversation TEXT NOT NULL, created REAL NOT NULL, revision TEXT NOT NULL, vector BLOB NOT NULL);
CREATE INDEX memory_created ON memory (created, row);
CREATE INDEX memory_conversation ON memory (conversation) WHERE conversation <> '';
CREATE TABLE content (row INTEGER PRIMARY KEY, tokens BLOB NOT NULL, value BLOB NOT NULL);
CREATE TABLE label (name TEXT NOT NULL, row INTEGER NOT NULL, PRIMARY KEY (name, row)) WITHOUT ROWID;
CREATE TABLE entity (key TEXT NOT NULL, type TEXT NOT NULL, name TEXT NOT NULL, PRIMARY KEY (key, type)) WITHOUT ROWID;
CREATE TABLE relation (
    row INTEGER PRIMARY KEY, start_key TEXT NOT NULL, end_key TEXT NOT NULL, start TEXT NOT NULL, end TEXT NOT NULL,
    type TEXT NOT NULL, memory TEXT NOT NULL, UNIQUE (start_key, end_key, type, memory));
CREATE INDEX relation_end ON relation (end_key);
CREATE INDEX relation_memory ON relation (memory) WHERE memory <> '';
CREATE TABLE marker (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
{WORDS};
"""


class Shelf(sqlite3.Connection):
    """The tenants' files that one thread has open, those used last. To a Lane it is one connection: it is itself an
    empty database in memory, and closes all of them when it is closed."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.timeout = 1.0
        self._files: OrderedDict[Path, sqlite3.Connection] = OrderedDict()

    def file(self, path: Path, *, create: bool) -> sqlite3.Connection | None:
        """The open file; None where there is none and none is to be made. Raises sqlite3.Error or OSError."""
        found = self._files.get(path)
        if found is not None:
            self._files.move_to_end(path)
            return found
        if not create and not path.exists():
            return None
        while len(self._files) >= _OPEN:
            self._files.popitem(last=False)[1].close()
        self._files[path] = found = _connect(path, self.timeout)
        return found

    def close(self) -> None:
        """Close all of them."""
        while self._files:
            with suppress(sqlite3.Error):
                self._files.popitem()[1].close()
        super().close()


def shelf(timeout: float) -> Shelf:
    """An empty one. A statement waits for other connections at most `timeout` seconds."""
    made = sqlite3.connect(":memory:", factory=Shelf)
    made.timeout = timeout
    return made


def _connect(path: Path, timeout: float) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    new = not path.exists()
    connection = sqlite3.connect(path, timeout=timeout, isolation_level=None)
    try:
        if new:
            path.chmod(0o600)
        patiently(lambda: _prepare(connection), timeout)
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA secure_delete = ON")
    version = _version(connection)
    if version == VERSION:
        return
    if version > VERSION:
        raise sqlite3.DatabaseError("these memories were written by a newer version of Accordion: run that one again")
    connection.execute("PRAGMA journal_mode = WAL")
    transact(connection, lambda: _make(connection))


def _make(connection: sqlite3.Connection) -> None:
    if _version(connection) == 0:
        for statement in TABLES.split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute(f"PRAGMA user_version = {VERSION}")


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])
