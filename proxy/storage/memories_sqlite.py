"""The embedded memories: an SQLite file for each tenant, shared by all workers of one machine."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from proxy.archive.artifacts import tenant_of
from proxy.core.memories import (
    Candidate,
    Change,
    Embedder,
    Entity,
    Filter,
    Memory,
    Relation,
    embedding_text,
)
from proxy.memory.entries import line
from proxy.storage import memories_rows as rows
from proxy.storage.lane import Lane
from proxy.storage.memories_file import Shelf, shelf
from proxy.storage.sqlite_file import transact, wipe

T = TypeVar("T")

_PAGE = 500
_FORGET_AFTER = 1.0
"""Seconds from a deletion to wiping out what the index still knows of it; others that come meanwhile go with it."""
_FORGET_PAGES = 200


class SqliteMemories:
    """The Memories port over a folder with a file in WAL mode for each tenant, named as the archive names tenants.

    Threads as SqliteStore has them: one writes, another reads, a third wipes out what was deleted. A file is made by
    the first write of its tenant. Every change is one transaction: whatever becomes of the process, all of it is there
    or nothing. Words are FTS5's (Porter's stems, bm25 over this tenant alone), vectors are compared one by one.
    """

    def __init__(self, folder: Path, embedder: Embedder, *, timeout: float) -> None:
        self._folder = folder
        self._embedder = embedder
        self._forgetting: dict[Path, asyncio.TimerHandle] = {}
        self._writer, self._reader, self._keeper = (
            Lane(f"memories-{name}", lambda: shelf(timeout), timeout=timeout) for name in ("writer", "reader", "keeper")
        )

    async def write(self, space: bytes, change: Change) -> tuple[Entity, ...]:
        """See the port."""
        embedded = await self._embedder.embed([embedding_text(memory) for memory in change.put]) if change.put else []
        done: tuple[tuple[Entity, ...], bool] = await self._writer.run(
            _write, self._path(space), rows.write, change, embedded
        )
        fresh, removed = done
        if removed:
            self._forget_soon(self._path(space))
        return fresh

    async def get(self, space: bytes, ids: Sequence[str]) -> list[Memory | None]:
        """See the port."""
        return await self._read(space, [None] * len(ids), rows.get, ids)

    async def listed(self, space: bytes, wanted: Filter, *, after: str = "", limit: int = 100) -> list[Memory]:
        """See the port."""
        return await self._read(space, [], rows.listed, wanted, after, limit)

    async def count(self, space: bytes, wanted: Filter) -> int:
        """See the port."""
        return await self._read(space, 0, rows.count, wanted)

    async def candidates(
        self, space: bytes, words: Sequence[str], vector: bytes, wanted: Filter, *, pool: int
    ) -> list[Candidate]:
        """See the port."""
        return await self._read(space, [], rows.candidates, words, vector, wanted, pool)

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
        ids: list[str] = await self._read(space, [], rows.ids)
        for at in range(0, len(ids), _PAGE):
            for memory in await self.get(space, ids[at : at + _PAGE]):
                if memory is not None:
                    yield line(memory)
        for entity in await self.entities(space, limit=-1):
            yield line(entity)
        for relation in await self.relations(space, limit=-1):
            yield line(relation)
        name = ""
        nothing: list[tuple[str, bytes]] = []
        while found := await self._read(space, nothing, rows.markers, name, _PAGE):
            for marker in found:
                yield line(marker)
            name = found[-1][0]

    async def erase(self, space: bytes) -> int:
        """See the port. When it returns, nothing of it stands in the files any more."""
        return await self._writer.run(_erase, self._path(space))

    async def close(self) -> None:
        """See the port."""
        for path in list(self._forgetting):
            self._forget(path)
        for lane in (self._reader, self._keeper, self._writer):
            await lane.close()

    def _forget_soon(self, path: Path) -> None:
        if path not in self._forgetting:
            self._forgetting[path] = asyncio.get_running_loop().call_later(_FORGET_AFTER, self._forget, path)

    def _forget(self, path: Path) -> None:
        self._forgetting.pop(path).cancel()
        self._keeper.post(_forget, path)

    def _path(self, space: bytes) -> Path:
        return self._folder / f"{tenant_of(space)}.db"

    async def _read(self, space: bytes, nothing: T, call: Callable[..., T], *args: Any) -> T:
        return await self._reader.run(_look, self._path(space), nothing, call, *args)


def _look(files: sqlite3.Connection, path: Path, nothing: T, call: Callable[..., T], *args: Any) -> T:
    """`call` in one view of the file, whatever is written meanwhile; `nothing` for a tenant without memories."""
    connection = _file(files, path, create=False)
    if connection is None:
        return nothing
    connection.execute("BEGIN")
    try:
        return call(connection, *args)
    finally:
        connection.execute("ROLLBACK")


def _write(files: sqlite3.Connection, path: Path, call: Callable[..., T], *args: Any) -> T:
    connection = _file(files, path, create=True)
    assert connection is not None  # noqa: S101
    return transact(connection, lambda: call(connection, *args))


def _forget(files: sqlite3.Connection, path: Path) -> None:
    """Wipes what was deleted out of the file, a little at a time, so that writers need not wait long."""
    connection = _file(files, path, create=False)
    if connection is None:
        return
    pages = -_FORGET_PAGES
    while transact(connection, partial(rows.forget, connection, pages)):
        pages = _FORGET_PAGES
    wipe(connection)


def _erase(files: sqlite3.Connection, path: Path) -> int:
    connection = _file(files, path, create=False)
    if connection is None:
        return 0
    found = transact(connection, lambda: rows.erase(connection))
    connection.execute("VACUUM")
    wipe(connection)
    return found


def _file(files: sqlite3.Connection, path: Path, *, create: bool) -> sqlite3.Connection | None:
    if not isinstance(files, Shelf):
        raise TypeError("expected a shelf")
    return files.file(path, create=create)
