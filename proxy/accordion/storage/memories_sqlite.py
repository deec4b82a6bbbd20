"""The embedded memories: an SQLite file for each tenant, shared by all workers of one machine."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from accordion.archive.artifacts import tenant_of
from accordion.archive.sealing import Unsealed
from accordion.core.memories import (
    Candidate,
    Change,
    Embedded,
    Embedder,
    Entity,
    Filter,
    Listing,
    Memory,
    Relation,
    embedding_text,
)
from accordion.core.ports import Sealer
from accordion.memory.entries import line
from accordion.storage import memories_rows as rows
from accordion.storage.lane import Lane
from accordion.storage.memories_columns import place
from accordion.storage.memories_file import file_of, mark, shelf, tidy
from accordion.storage.memories_veil import Veil
from accordion.storage.sqlite_file import transact
from accordion.storage.stems import counted, stemmed

T = TypeVar("T")

_PAGE = 500


class SqliteMemories:
    """The Memories port over a folder with a file for each tenant, named as the archive names tenants.

    Threads as SqliteStore has them: one writes, another reads. A file is made by the first write of its tenant. Every
    change is one transaction: whatever becomes of the process, all of it is there or nothing; and when it is written,
    nothing of what it took out stands in the files. Words are FTS5's stems (Porter), weighed as it does (bm25 over this
    tenant alone), vectors are compared one by one.

    With a `sealer` that has keys what is written is sealed, names and words too. A tenant whose memories were written
    without, or under another key than the first, has all of them sealed anew at the next write. `wrote` hears for whom
    something was written.
    """

    def __init__(
        self,
        folder: Path,
        embedder: Embedder,
        *,
        timeout: float,
        sealer: Sealer | None = None,
        wrote: Callable[[bytes], object] = lambda space: None,
    ) -> None:
        self._folder = folder
        self._embedder = embedder
        self._sealer = sealer or Unsealed()
        self._wrote = wrote
        self._writer, self._reader = (
            Lane(f"memories-{name}", lambda: shelf(timeout), timeout=timeout) for name in ("writer", "reader")
        )

    async def write(self, space: bytes, change: Change) -> tuple[Entity, ...]:
        """See the port."""
        embedded = await self._embedder.embed([embedding_text(memory) for memory in change.put]) if change.put else []
        fresh: tuple[Entity, ...] = await self._writer.run(self._written, space, change, embedded)
        self._wrote(space)
        return fresh

    async def get(self, space: bytes, ids: Sequence[str]) -> list[Memory | None]:
        """See the port."""
        return await self._read(space, [None] * len(ids), rows.get, ids)

    async def listed(self, space: bytes, wanted: Filter, *, after: str = "", limit: int = 100) -> Listing:
        """See the port."""
        return await self._read(space, Listing(), rows.listed, wanted, place(after), limit)

    async def count(self, space: bytes, wanted: Filter) -> int:
        """See the port."""
        return await self._read(space, 0, rows.count, wanted)

    async def candidates(
        self, space: bytes, words: Sequence[str], vector: bytes, wanted: Filter, *, pool: int
    ) -> list[Candidate]:
        """See the port."""
        return await self._reader.run(self._found, space, words, vector, wanted, pool)

    async def marker(self, space: bytes, name: str) -> bytes | None:
        """See the port."""
        return await self._read(space, None, rows.marker, name)

    async def relations(self, space: bytes, entity: str = "", *, limit: int = 1_000) -> list[Relation]:
        """See the port."""
        return await self._read(space, [], rows.relations, entity, limit)

    async def entities(self, space: bytes, *, limit: int = 1_000) -> list[Entity]:
        """See the port."""
        return await self._read(space, [], rows.entities, limit)

    async def export(self, space: bytes) -> AsyncIterator[bytes]:
        """See the port. What is written meanwhile may be missing."""
        last, nothing = 0, list[tuple[int, Memory]]()
        while page := await self._read(space, nothing, rows.page, last, _PAGE):
            for last, memory in page:  # noqa: B007
                yield line(memory)
        for entity in await self.entities(space, limit=-1):
            yield line(entity)
        for relation in await self.relations(space, limit=-1):
            yield line(relation)
        markers: list[tuple[str, bytes]] = await self._read(space, [], rows.markers)
        for marker in markers:
            yield line(marker)

    async def seal(self, space: bytes) -> bool:
        """See the port."""
        return await self._writer.run(self._seal, space)

    async def erase(self, space: bytes) -> int:
        """See the port. When it returns, nothing of it stands in the files any more."""
        return await self._writer.run(self._erase, space)

    async def close(self) -> None:
        """See the port."""
        for lane in (self._reader, self._writer):
            await lane.close()

    def _path(self, space: bytes) -> Path:
        return self._folder / f"{tenant_of(space)}.db"

    async def _read(self, space: bytes, nothing: T, call: Callable[..., T], *args: Any) -> T:
        return await self._reader.run(self._looked, space, nothing, call, *args)

    # -- in the threads ----------------------------------------------------------------------------------------------

    def _looked(self, files: sqlite3.Connection, space: bytes, nothing: T, call: Callable[..., T], *args: Any) -> T:
        """`call` in one view of the file, whatever is written meanwhile; `nothing` for a tenant without memories."""
        connection = file_of(files, self._path(space), create=False)
        if connection is None:
            return nothing
        connection.execute("BEGIN")
        try:
            return call(connection, self._veil(connection, space), *args)
        finally:
            connection.execute("ROLLBACK")

    def _found(
        self, files: sqlite3.Connection, space: bytes, words: Sequence[str], vector: bytes, wanted: Filter, pool: int
    ) -> list[Candidate]:
        stems = stemmed(files, words) if words else []
        return self._looked(files, space, [], rows.candidates, stems, vector, wanted, pool)

    def _written(
        self, files: sqlite3.Connection, space: bytes, change: Change, embedded: Sequence[Embedded]
    ) -> tuple[Entity, ...]:
        texts = [(memory.content, memory.context, memory.author) for memory in change.put]
        counts = counted(files, texts) if texts else []
        connection = file_of(files, self._path(space), create=True)
        assert connection is not None  # noqa: S101
        fresh: tuple[Entity, ...]
        fresh, _ = self._changed(connection, space, lambda veil: rows.write(connection, veil, change, embedded, counts))
        return fresh

    def _seal(self, files: sqlite3.Connection, space: bytes) -> bool:
        connection = file_of(files, self._path(space), create=False)
        if connection is None:
            return False
        _, anew = self._changed(connection, space, lambda _: (None, False))
        return anew

    def _changed(
        self, connection: sqlite3.Connection, space: bytes, work: Callable[[Veil], tuple[T, bool]]
    ) -> tuple[T, bool]:
        """What `work` gives in a transaction, for which it also says whether it took anything out; and whether all had
        to be put under another veil first."""

        def whole() -> tuple[T, bool, bool]:
            veil = self._veil(connection, space)
            now = veil.renewed()
            anew = now is not veil and rows.rewrite(connection, veil, now)
            result, removed = work(now)
            if removed or anew:
                mark(connection)
            return result, removed or anew, anew

        result, untidy, anew = transact(connection, whole)
        if untidy:
            tidy(connection)
        return result, anew

    def _erase(self, files: sqlite3.Connection, space: bytes) -> int:
        connection = file_of(files, self._path(space), create=False)
        if connection is None:
            return 0

        def whole() -> int:
            mark(connection)
            return rows.erase(connection)

        found = transact(connection, whole)
        tidy(connection)
        return found

    def _veil(self, connection: sqlite3.Connection, space: bytes) -> Veil:
        return Veil(self._sealer, space, rows.secret(connection))
