"""A tenant's file of memories: its tables, its opening and its rewriting, and the open files of a thread.

Each tenant has a file. So the weights of words depend on this tenant's memories alone, no tenant can find anything of
another, and erasing a tenant means emptying a file.
"""

from __future__ import annotations

import sqlite3
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Any

from accordion.stores.sqlite_file import APPLICATION, retry_while_locked, transact
from accordion.stores.sqlite_path import Identity, file_identity
from accordion.stores.stems import prepare

VERSION = 2
_PENDING_REWRITE = 0x100
"""Added to the version in `PRAGMA user_version` by each change that removes something, until the file is rewritten."""
_MAX_OPEN = 32
"""Files that one thread has open at most."""

# Names are digests and values are sealed (see sealed_names.py). A value includes its names.
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


class OpenFiles(sqlite3.Connection):
    """The tenants' files that a thread used last, open.

    For a SqliteWorker it is one connection: a database in memory that stems words (stems.py). Closing it closes all
    files.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.timeout = 1.0
        self._files: OrderedDict[Path, tuple[sqlite3.Connection, Identity | None]] = OrderedDict()

    def file(self, path: Path, *, create: bool) -> sqlite3.Connection | None:
        """Returns a connection to the present file at `path`; None where there is none and `create` is false.

        Raises sqlite3.Error or OSError.
        """
        identity = file_identity(path)
        connection, opened_identity = self._files.pop(path, (None, None))
        if connection is not None and (identity is None or opened_identity != identity):
            connection.close()
            connection = None
        if connection is None:
            if identity is None and not create:
                # Raises where the folder of the store is missing: it was moved or is not mounted, and is not empty.
                path.parent.parent.stat()
                return None
            while len(self._files) >= _MAX_OPEN:
                self._files.popitem(last=False)[1][0].close()
            connection = _connect(path, self.timeout)
        self._files[path] = connection, identity or file_identity(path)
        return connection

    def close(self) -> None:
        """Closes all files."""
        while self._files:
            with suppress(sqlite3.Error):
                self._files.popitem()[1][0].close()
        super().close()


def open_files(timeout: float) -> OpenFiles:
    """Returns OpenFiles without files. A statement waits for other connections at most `timeout` seconds."""
    files = sqlite3.connect(":memory:", isolation_level=None, factory=OpenFiles)
    files.timeout = timeout
    prepare(files)
    return files


def open_file(files: sqlite3.Connection, path: Path, *, create: bool) -> sqlite3.Connection | None:
    """Opens a file through a SqliteWorker's OpenFiles. See OpenFiles.file."""
    if not isinstance(files, OpenFiles):
        raise TypeError("expected OpenFiles")
    return files.file(path, create=create)


def _connect(path: Path, timeout: float) -> sqlite3.Connection:
    is_new = not path.exists()
    if is_new:
        # The parent folder is not created: if it is missing, it was moved or is not mounted.
        path.parent.mkdir(exist_ok=True, mode=0o700)
    connection = sqlite3.connect(path, timeout=timeout, isolation_level=None)
    try:
        if is_new:
            path.chmod(0o600)
        retry_while_locked(lambda: _prepare(connection), timeout)
    except BaseException:
        connection.close()
        raise
    return connection


def mark_for_rewrite(connection: sqlite3.Connection) -> None:
    """Records, within a transaction that removes something, that the file must be rewritten."""
    connection.execute(f"PRAGMA user_version = {_read_state(connection) + _PENDING_REWRITE}")


def rewrite_file(connection: sqlite3.Connection) -> None:
    """Rewrites the file, so that no copy of removed data is left.

    Despite `secure_delete`, pages keep copies of cells that moved. If the file is locked, the next opening rewrites it.
    """
    with suppress(sqlite3.OperationalError):
        state = _read_state(connection)
        if state == VERSION:
            return  # another process did it meanwhile
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute("VACUUM")
        transact(connection, lambda: _finish_rewrite(connection, state))


def _finish_rewrite(connection: sqlite3.Connection, state: int) -> None:
    # If another process removed something meanwhile, the file must be rewritten again.
    if _read_state(connection) == state:
        connection.execute(f"PRAGMA user_version = {VERSION}")


def _prepare(connection: sqlite3.Connection) -> None:
    # A rollback journal is cheaper to open and to close than a write-ahead log, and no removed data stays in it.
    connection.execute("PRAGMA secure_delete = ON")
    state = _read_state(connection)
    version = state % _PENDING_REWRITE
    if version not in (0, VERSION):
        raise sqlite3.DatabaseError("these memories were written by another version of Accordion: run that one again")
    if not version:
        transact(connection, lambda: _create_tables(connection))
    elif state != VERSION:
        rewrite_file(connection)


def _create_tables(connection: sqlite3.Connection) -> None:
    if _read_state(connection) == 0:
        for statement in TABLES.split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute(f"PRAGMA user_version = {VERSION}")


def _read_state(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])
