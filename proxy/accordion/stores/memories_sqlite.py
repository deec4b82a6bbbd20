"""The embedded memory store: an SQLite file for each tenant, shared by all workers of one machine."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
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
from accordion.stores.memories_file import mark_for_rewrite, open_file, open_files, rewrite_file
from accordion.stores.sealed_names import SealedNames
from accordion.stores.sqlite_file import transact
from accordion.stores.sqlite_worker import SqliteWorker
from accordion.stores.stems import count_stems, stem_words

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
