"""The embedded memory store: an SQLite file for each tenant, shared by all workers of one machine.

Because each tenant has a file, the weights of words depend on this tenant's memories alone, no tenant can find anything
of another, and erasing a tenant means emptying a file.
"""

from __future__ import annotations

import sqlite3
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from accordion.archive.sealing import PlainSealer
from accordion.memory.entries import export_line
from accordion.model.memories import (
    Embedder,
    Embedding,
    Entity,
    Memory,
    MemoryChange,
    MemoryFilter,
    MemoryPage,
    Relation,
    SearchCandidate,
    embedding_text,
)
from accordion.model.ports import Sealer
from accordion.model.tenant import TenantScope
from accordion.stores import memories_rows as rows
from accordion.stores.memories_columns import parse_position
from accordion.stores.sealed_names import SealedNames
from accordion.stores.sqlite_file import APPLICATION, retry_while_locked, transact
from accordion.stores.sqlite_path import Identity, file_identity
from accordion.stores.sqlite_worker import SqliteWorker
from accordion.stores.stems import count_stems, prepare, stem_words

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


T = TypeVar("T")

_PAGE = 500


class SqliteMemories:
    """A MemoryStore over a folder with a file for each tenant, named as in the archive.

    One thread writes and another reads, as in SqliteStore. The first write of a tenant creates its file. Every change
    is one transaction, also if the process dies, and leaves no removed data in the files. Words are compared by FTS5's
    stems (Porter) and weighted as in FTS5 (bm25 over this tenant alone); vectors are compared one by one.

    With a `sealer` that has keys, values, names and words are sealed. A tenant whose memories were written without a
    key, or with another key than the first one, has all of them resealed at its next write. `on_write` is called with
    the tenant's key after each write.
    """

    def __init__(
        self,
        folder: Path,
        embedder: Embedder,
        *,
        timeout: float,
        sealer: Sealer | None = None,
        on_write: Callable[[TenantScope], object] = lambda tenant: None,
    ) -> None:
        self._folder = folder
        self._embedder = embedder
        self._sealer = sealer or PlainSealer()
        self._on_write = on_write
        self._writer, self._reader = (
            SqliteWorker(f"memories-{name}", lambda: open_files(timeout), timeout=timeout)
            for name in ("writer", "reader")
        )

    async def write(self, tenant: TenantScope, change: MemoryChange) -> tuple[Entity, ...]:
        """See MemoryStore."""
        embeddings = await self._embedder.embed([embedding_text(memory) for memory in change.put]) if change.put else []
        new_entities: tuple[Entity, ...] = await self._writer.run(self._write_change, tenant, change, embeddings)
        self._on_write(tenant)
        return new_entities

    async def get(self, tenant: TenantScope, ids: Sequence[str]) -> list[Memory | None]:
        """See MemoryStore."""
        return await self._read(tenant, [None] * len(ids), rows.get, ids)

    async def list_memories(
        self, tenant: TenantScope, memory_filter: MemoryFilter, *, after: str = "", limit: int = 100
    ) -> MemoryPage:
        """See MemoryStore."""
        return await self._read(tenant, MemoryPage(), rows.list_memories, memory_filter, parse_position(after), limit)

    async def count(self, tenant: TenantScope, memory_filter: MemoryFilter) -> int:
        """See MemoryStore."""
        return await self._read(tenant, 0, rows.count_memories, memory_filter)

    async def find_candidates(
        self, tenant: TenantScope, words: Sequence[str], vector: bytes, memory_filter: MemoryFilter, *, pool: int
    ) -> list[SearchCandidate]:
        """See MemoryStore."""
        return await self._reader.run(self._find_candidates, tenant, words, vector, memory_filter, pool)

    async def get_marker(self, tenant: TenantScope, name: str) -> bytes | None:
        """See MemoryStore."""
        return await self._read(tenant, None, rows.get_marker, name)

    async def list_relations(self, tenant: TenantScope, entity: str = "", *, limit: int = 1_000) -> list[Relation]:
        """See MemoryStore."""
        return await self._read(tenant, [], rows.list_relations, entity, limit)

    async def list_entities(self, tenant: TenantScope, *, limit: int = 1_000) -> list[Entity]:
        """See MemoryStore."""
        return await self._read(tenant, [], rows.list_entities, limit)

    async def export(self, tenant: TenantScope) -> AsyncIterator[bytes]:
        """See MemoryStore. Concurrent writes may be missing."""
        last_row, no_memories = 0, list[tuple[int, Memory]]()
        while page := await self._read(tenant, no_memories, rows.read_page, last_row, _PAGE):
            for last_row, memory in page:  # noqa: B007
                yield export_line(memory)
        for entity in await self.list_entities(tenant, limit=-1):
            yield export_line(entity)
        for relation in await self.list_relations(tenant, limit=-1):
            yield export_line(relation)
        markers: list[tuple[str, bytes]] = await self._read(tenant, [], rows.list_markers)
        for marker in markers:
            yield export_line(marker)

    async def seal(self, tenant: TenantScope) -> bool:
        """See MemoryStore."""
        return await self._writer.run(self._seal, tenant)

    async def erase(self, tenant: TenantScope) -> int:
        """See MemoryStore. When it returns, the files have nothing of the tenant any more."""
        return await self._writer.run(self._erase, tenant)

    async def close(self) -> None:
        """See MemoryStore."""
        for worker in (self._reader, self._writer):
            await worker.close()

    def _path(self, tenant: TenantScope) -> Path:
        return self._folder / f"{tenant.archive_namespace}.db"

    async def _read(self, tenant: TenantScope, default: T, call: Callable[..., T], *args: Any) -> T:
        return await self._reader.run(self._read_view, tenant, default, call, *args)

    # -- in the threads ----------------------------------------------------------------------------------------------

    def _read_view(
        self, files: sqlite3.Connection, tenant: TenantScope, default: T, call: Callable[..., T], *args: Any
    ) -> T:
        """Runs `call` in one snapshot of the file; returns `default` for a tenant without a file."""
        connection = open_file(files, self._path(tenant), create=False)
        if connection is None:
            return default
        connection.execute("BEGIN")
        try:
            return call(connection, self._sealed_names(connection, tenant), *args)
        finally:
            connection.execute("ROLLBACK")

    def _find_candidates(
        self,
        files: sqlite3.Connection,
        tenant: TenantScope,
        words: Sequence[str],
        vector: bytes,
        memory_filter: MemoryFilter,
        pool: int,
    ) -> list[SearchCandidate]:
        stems = stem_words(files, words) if words else []
        return self._read_view(files, tenant, [], rows.find_candidates, stems, vector, memory_filter, pool)

    def _write_change(
        self, files: sqlite3.Connection, tenant: TenantScope, change: MemoryChange, embeddings: Sequence[Embedding]
    ) -> tuple[Entity, ...]:
        texts = [(memory.content, memory.context, memory.author) for memory in change.put]
        counts = count_stems(files, texts) if texts else []
        connection = open_file(files, self._path(tenant), create=True)
        assert connection is not None  # noqa: S101
        new_entities: tuple[Entity, ...]
        new_entities, _ = self._change(
            connection,
            tenant,
            lambda sealed_names: rows.write(connection, sealed_names, change, embeddings, counts),
        )
        return new_entities

    def _seal(self, files: sqlite3.Connection, tenant: TenantScope) -> bool:
        connection = open_file(files, self._path(tenant), create=False)
        if connection is None:
            return False
        _, was_resealed = self._change(connection, tenant, lambda _: (None, False))
        return was_resealed

    def _change(
        self, connection: sqlite3.Connection, tenant: TenantScope, work: Callable[[SealedNames], tuple[T, bool]]
    ) -> tuple[T, bool]:
        """Runs `work` in a transaction, after resealing everything if the keys changed.

        `work` returns its result and whether it removed anything. The method returns the result and whether everything
        was resealed.
        """

        def transaction() -> tuple[T, bool, bool]:
            sealed_names = self._sealed_names(connection, tenant)
            new_names = sealed_names.renew()
            was_resealed = new_names is not sealed_names and rows.reseal(connection, sealed_names, new_names)
            result, has_removals = work(new_names)
            if has_removals or was_resealed:
                mark_for_rewrite(connection)
            return result, has_removals or was_resealed, was_resealed

        result, needs_rewrite, was_resealed = transact(connection, transaction)
        if needs_rewrite:
            rewrite_file(connection)
        return result, was_resealed

    def _erase(self, files: sqlite3.Connection, tenant: TenantScope) -> int:
        connection = open_file(files, self._path(tenant), create=False)
        if connection is None:
            return 0

        def transaction() -> int:
            mark_for_rewrite(connection)
            return rows.erase(connection)

        number = transact(connection, transaction)
        rewrite_file(connection)
        return number

    def _sealed_names(self, connection: sqlite3.Connection, tenant: TenantScope) -> SealedNames:
        return SealedNames(self._sealer, tenant, rows.read_secret(connection))
