"""The records of memories in SQLite: a file for each tenant, shared by all workers of one machine.

A table for each kind has the records. Every change is one transaction, also if the process dies, and leaves no removed
data in the file. Erasing a tenant means emptying a file.
"""

from __future__ import annotations

import sqlite3
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from accordion.archive.sealing import PlainSealer
from accordion.model.memories import Embedder
from accordion.model.ports import Sealer
from accordion.model.tenant import TenantScope
from accordion.stores.memories import KINDS, RecordChange, RecordQuery, Snapshot, StoredMemories
from accordion.stores.sqlite_file import APPLICATION, retry_while_locked, transact
from accordion.stores.sqlite_path import Identity, file_identity
from accordion.stores.sqlite_worker import SqliteWorker

T = TypeVar("T")

VERSION = 3
_PENDING_REWRITE = 0x100
"""Added to the version in `PRAGMA user_version` by each change that removes something, until the file is rewritten."""
_MAX_OPEN = 32
"""Files that one thread has open at most."""

TABLES = [f'CREATE TABLE "{kind}" (name TEXT PRIMARY KEY, value BLOB NOT NULL)' for kind in KINDS]


class OpenFiles:
    """The tenants' files that a thread used last, open. A statement waits for others at most `timeout` seconds."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._files: OrderedDict[Path, tuple[sqlite3.Connection, Identity | None]] = OrderedDict()

    def file(self, path: Path, *, create: bool) -> sqlite3.Connection | None:
        """Returns a connection to the present file at `path`; None if there is none and `create` is false.

        Raises sqlite3.Error or OSError.
        """
        identity = file_identity(path)
        connection, opened_identity = self._files.pop(path, (None, None))
        if connection is not None and (identity is None or opened_identity != identity):
            connection.close()
            connection = None
        if connection is None:
            if identity is None and not create:
                # Raises if the folder of the store is missing: it was moved or is not mounted, and is not empty.
                path.parent.parent.stat()
                return None
            while len(self._files) >= _MAX_OPEN:
                self._files.popitem(last=False)[1][0].close()
            connection = _connect(path, self._timeout)
        self._files[path] = connection, identity or file_identity(path)
        return connection

    def close(self) -> None:
        """Closes all files."""
        while self._files:
            with suppress(sqlite3.Error):
                self._files.popitem()[1][0].close()


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
        if state < _PENDING_REWRITE:
            return  # another process did it meanwhile
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute("VACUUM")
        transact(connection, lambda: _finish_rewrite(connection, state))


def _finish_rewrite(connection: sqlite3.Connection, state: int) -> None:
    # If another process removed something meanwhile, the file must be rewritten again.
    if _read_state(connection) == state:
        connection.execute(f"PRAGMA user_version = {state % _PENDING_REWRITE}")


def _prepare(connection: sqlite3.Connection) -> None:
    # A rollback journal is cheaper to open and to close than a write-ahead log, and no removed data stays in it.
    connection.execute("PRAGMA secure_delete = ON")
    state = _read_state(connection)
    version = state % _PENDING_REWRITE
    if version not in (0, VERSION):
        raise sqlite3.DatabaseError("these memories were written by another version of Accordion: run that one again")
    if not version:
        transact(connection, lambda: None if _read_state(connection) else _create_tables(connection))
    elif state != VERSION:
        rewrite_file(connection)


def _create_tables(connection: sqlite3.Connection) -> None:
    for statement in TABLES:
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION}")
    connection.execute(f"PRAGMA user_version = {VERSION}")


def _read_state(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


class SqliteRecords:
    """MemoryRecords in a folder with a file for each tenant, named as in the archive.

    One thread writes and another reads. The first write of a tenant creates its file.
    """

    def __init__(self, folder: Path, *, timeout: float) -> None:
        self._folder = folder
        self._writer, self._reader = (
            SqliteWorker(f"memories-{name}", lambda: OpenFiles(timeout), timeout=timeout)
            for name in ("writer", "reader")
        )

    async def read(self, tenant: TenantScope, queries: Sequence[RecordQuery]) -> Snapshot:
        """See MemoryRecords."""
        return await self._reader.run(_read, self._path(tenant), queries)

    async def write(self, tenant: TenantScope, version: bytes, change: RecordChange) -> bool:
        """See MemoryRecords."""
        return await self._writer.run(_write, self._path(tenant), version, change)

    async def erase(self, tenant: TenantScope) -> int:
        """See MemoryRecords. When it returns, the files have nothing of the tenant any more."""
        return await self._writer.run(_erase, self._path(tenant))

    async def close(self) -> None:
        """See MemoryRecords."""
        for worker in (self._reader, self._writer):
            await worker.close()

    def _path(self, tenant: TenantScope) -> Path:
        return self._folder / f"{tenant.archive_namespace}.db"


class SqliteMemories(StoredMemories):
    """The embedded memory store. See SqliteRecords and StoredMemories."""

    def __init__(
        self,
        folder: Path,
        embedder: Embedder,
        *,
        timeout: float,
        sealer: Sealer | None = None,
        on_write: Callable[[TenantScope], object] = lambda tenant: None,
    ) -> None:
        records = SqliteRecords(folder, timeout=timeout)
        super().__init__(records, embedder, timeout=timeout, sealer=sealer or PlainSealer(), on_write=on_write)


def _read(files: OpenFiles, path: Path, queries: Sequence[RecordQuery]) -> Snapshot:
    file = files.file(path, create=False)
    if file is None:
        return [{} for _ in queries]
    return _read_snapshot(file, lambda: [_select(file, *query) for query in queries])


def _read_snapshot(file: sqlite3.Connection, read: Callable[[], T]) -> T:
    """Returns the result of `read`, whose statements all see the same state of the file."""
    file.execute("BEGIN")
    try:
        return read()
    finally:
        file.execute("ROLLBACK")


def _select(file: sqlite3.Connection, kind: str, names: Sequence[str] | None) -> dict[str, bytes]:
    if names is None:
        return dict(file.execute(f'SELECT name, value FROM "{kind}"'))  # noqa: S608
    rows = (file.execute(f'SELECT name, value FROM "{kind}" WHERE name = ?', (name,)).fetchone() for name in names)  # noqa: S608
    return dict(row for row in rows if row is not None)


def _write(files: OpenFiles, path: Path, version: bytes, change: RecordChange) -> bool:
    file = files.file(path, create=True)
    assert file is not None  # noqa: S101

    def transaction() -> bool:
        if _select(file, "state", ("version",)).get("version", b"") != version:
            return False
        for kind, name in change.delete:
            file.execute(f'DELETE FROM "{kind}" WHERE name = ?', (name,))  # noqa: S608
        for (kind, name), value in change.put.items():
            file.execute(f'INSERT OR REPLACE INTO "{kind}" (name, value) VALUES (?, ?)', (name, value))  # noqa: S608
        if change.has_removals:
            mark_for_rewrite(file)
        return True

    is_written = transact(file, transaction)
    if is_written and change.has_removals:
        rewrite_file(file)
    return is_written


def _erase(files: OpenFiles, path: Path) -> int:
    file = files.file(path, create=False)
    if file is None:
        return 0

    def transaction() -> int:
        count: int = file.execute("SELECT count(*) FROM memory").fetchone()[0]
        for kind in KINDS:
            file.execute(f'DELETE FROM "{kind}"')  # noqa: S608
        mark_for_rewrite(file)
        return count

    count = transact(file, transaction)
    rewrite_file(file)
    return count
