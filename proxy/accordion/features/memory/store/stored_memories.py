"""The memory store: memories and markers of tenants, under the key-value port.

Theory of operation. A tenant's memories are one collection of the store, in which changes are numbered:

    change/NUMBER          what a change did: index entries of its memories, deleted ids, markers (`_Change`)
    memory/NUMBER/TOKEN-I  a memory that this change wrote, with the embedder's tokens (`_StoredMemory`)

A change is written in two steps: first its memories, which nobody reads yet, then the change itself, by `put_if_absent`
under the next number. Of several writers, one gets the number. The others read what it changed, check their
requirements again and try the next number. So all changes are in one order, and each is made as a whole or not at all.

A search works on a `TenantIndex`, which a worker builds from all changes and keeps, bounded by bytes. Before each
operation the worker reads the changes after the last one that it knows.

What a change replaces or deletes is then removed: the memory, and its entry in the older change. If the process ends
before, the next worker that builds the index does it. An erasure is a change, too: it removes all that is before it.
Values are sealed like those of the archive, but for erasures; names say nothing about the content.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from accordion.archive.sealing import PlainSealer
from accordion.features.memory.entries import export_line
from accordion.features.memory.memories import (
    Conflict,
    Embedder,
    Embedding,
    Memory,
    MemoryChange,
    MemoryFilter,
    MemoryPage,
    SearchCandidate,
    embedding_text,
)
from accordion.features.memory.store.memory_index import (
    ChosenMemory,
    IndexEntry,
    TenantIndex,
    make_entry,
    make_page,
    parse_position,
)
from accordion.model.cache import BoundedCache
from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Key, KeyValueStore, Put, Sealer
from accordion.model.tenant import TenantScope

T = TypeVar("T")


class _Change(msgspec.Struct, frozen=True, array_like=True):
    """A change as it is stored. `token` tells it from the change of another writer with the same content.

    `put` has the ids of memories with their entries. An erasure removes everything before it.
    """

    token: str
    put: tuple[tuple[str, IndexEntry], ...] = ()
    delete: tuple[str, ...] = ()
    markers: tuple[tuple[str, bytes], ...] = ()
    is_erasure: bool = False


class _StoredMemory(msgspec.Struct, frozen=True, array_like=True):
    memory: Memory
    tokens: bytes


class _Update(msgspec.Struct, frozen=True):
    """An index after further changes: the entries that these removed, and the number of the last erasure (0: none)."""

    index: TenantIndex
    removed: list[IndexEntry]
    erasure: int = 0


_ENCODER = msgspec.msgpack.Encoder()
_CHANGE = msgspec.msgpack.Decoder(_Change)
_MEMORY = msgspec.msgpack.Decoder(_StoredMemory)

_ATTEMPTS: Final = 100
"""Attempts of an operation whose data changed during it; of several writers, one succeeds each time."""
_POSITIONS: Final = 20
"""Bits of an order below the change's number: the position of a memory in its change."""
_PAGE: Final = 500
_SEAL_NAME: Final = 5
"""Bytes at the beginning of a sealed value that identify the seal and its key."""
_INDEX_BYTES: Final = 32 * 2**20
"""Memory for the indexes of the tenants that searched last, for each worker. One of 1,000 memories takes 2 to 3 MB.

The newest one stays, whatever its size.
"""


class StoredMemories:
    """A MemoryStore in a key-value store, which the caller closes.

    Terms are weighed by this tenant's memories alone; vectors are compared one by one. Values are sealed with the first
    key of `sealer`. `on_write` is called with the tenant's key after each write.
    """

    def __init__(
        self,
        store: KeyValueStore,
        embedder: Embedder,
        *,
        sealer: Sealer | None = None,
        on_write: Callable[[TenantScope], object] = lambda tenant: None,
    ) -> None:
        self._store, self._embedder, self._on_write = store, embedder, on_write
        self._sealer = sealer or PlainSealer()
        self._indexes = BoundedCache[TenantScope, TenantIndex](_INDEX_BYTES, lambda tenant, index: index.size)

    async def write(self, tenant: TenantScope, change: MemoryChange) -> None:
        """See MemoryStore."""
        memories = list({memory.id: memory for memory in change.put}.values())
        embeddings = await self._embedder.embed([embedding_text(memory) for memory in memories]) if memories else []
        entries = await self._run(_make_entries, memories, embeddings)
        stored = [_StoredMemory(memory, each.tokens) for memory, each in zip(memories, embeddings, strict=True)]
        for _ in range(_ATTEMPTS):
            index = await self._load_index(tenant)
            await self._check_requirements(tenant, index, change)
            number, token = index.number + 1, os.urandom(8).hex()
            put = [
                (memory.id, replace(entry, order=number << _POSITIONS | at, record=_record_name(number, token, at)))
                for at, (memory, entry) in enumerate(zip(memories, entries, strict=True))
            ]
            stored_change = _Change(token, tuple(put), _existing(index, change), change.markers)
            keys = [*(_key(tenant, entry.record) for _, entry in put), _change_key(tenant, number)]
            *memory_puts, change_put = await self._run(self._seal_all, tenant, keys, [*stored, stored_change])
            if memory_puts:
                await self._store.write(memory_puts)
            if await self._store.put_if_absent(change_put.key, change_put.value) == change_put.value:
                self._on_write(tenant)
                update = await self._run(_apply, index, [(number, stored_change)])
                self._keep(tenant, update.index)
                await self._remove(tenant, update.removed)
                return
            await self._store.delete([each.key for each in memory_puts])
        raise _changing_error()

    async def get(self, tenant: TenantScope, ids: Sequence[str]) -> list[Memory | None]:
        """See MemoryStore."""
        stored = await self._read(tenant, ids)
        return [stored[memory_id].memory if memory_id in stored else None for memory_id in ids]

    async def list_memories(
        self, tenant: TenantScope, memory_filter: MemoryFilter, *, after: str = "", limit: int = 100
    ) -> MemoryPage:
        """See MemoryStore."""
        position, matches = parse_position(after), list[str]()

        def choose(index: TenantIndex) -> Sequence[str]:
            matches[:] = index.list_newest(memory_filter, position)
            return matches[: limit if limit >= 0 else None]

        index, stored = await self._read_chosen(tenant, choose)
        memories = [(index.entries[memory_id].order, each.memory) for memory_id, each in stored.items()]
        return make_page(memories, has_more=0 <= limit < len(matches))

    async def count(self, tenant: TenantScope, memory_filter: MemoryFilter) -> int:
        """See MemoryStore."""
        index = await self._load_index(tenant)
        return await self._run(index.count, memory_filter)

    async def find_candidates(
        self, tenant: TenantScope, terms: Sequence[str], vector: bytes, memory_filter: MemoryFilter, *, pool: int
    ) -> list[SearchCandidate]:
        """See MemoryStore."""
        chosen = list[ChosenMemory]()

        def choose(index: TenantIndex) -> Sequence[str]:
            chosen[:] = index.choose(terms, vector, memory_filter, pool)
            return [each.id for each in chosen]

        _, stored = await self._read_chosen(tenant, choose)
        return [_candidate(stored[each.id], each) for each in chosen if each.id in stored]

    async def find_other_names(self, tenant: TenantScope, terms: frozenset[str]) -> list[tuple[str, str]]:
        """See MemoryStore."""
        return (await self._load_index(tenant)).find_other_names(terms)

    async def get_marker(self, tenant: TenantScope, name: str) -> bytes | None:
        """See MemoryStore."""
        return (await self._load_index(tenant)).markers.get(name)

    async def find_unknown_entities(self, tenant: TenantScope, names: Sequence[str]) -> set[str]:
        """See MemoryStore."""
        index = await self._load_index(tenant)
        return await self._run(index.find_unknown_entities, names)

    async def export(self, tenant: TenantScope) -> AsyncIterator[bytes]:
        """See MemoryStore. Concurrent writes may be missing."""
        index = await self._load_index(tenant)
        ids = list(index.entries)
        for at in range(0, len(ids), _PAGE):
            for stored in (await self._read(tenant, ids[at : at + _PAGE])).values():
                yield export_line(stored.memory)
        for marker in index.markers.items():
            yield export_line(marker)

    async def seal(self, tenant: TenantScope) -> bool:
        """See MemoryStore."""
        is_changed = False
        for prefix in ("change/", "memory/"):
            async for rows in _scan(self._store, tenant, prefix):
                puts = await self._run(self._reseal, tenant, rows)
                if puts:
                    await self._store.write(puts)
                    is_changed = True
                if prefix == "memory/":
                    await self._delete_unused(tenant, [name for name, _ in rows])
        return is_changed

    async def erase(self, tenant: TenantScope) -> int:
        """See MemoryStore. A Redis server's own files lose the data when the server rewrites them."""
        self._indexes.pop(tenant)
        return await erase_records(self._store, tenant)

    def forget(self) -> None:
        """Drops all indexes, because another store took the place of this one."""
        self._indexes.clear()

    # -- reading -----------------------------------------------------------------------------------------------------

    async def _load_index(self, tenant: TenantScope) -> TenantIndex:
        """Returns the tenant's index, brought up to date with what changed."""
        old = self._indexes.get(tenant)
        index = old or TenantIndex()
        removed, erasure = list[IndexEntry](), 0
        async for rows in _scan(self._store, tenant, "change/", _change_name(index.number) if index.number else ""):
            update = await self._run(self._read_changes, tenant, index, rows)
            index, erasure = update.index, max(erasure, update.erasure)
            removed += update.removed
        if index is old:
            return old
        self._keep(tenant, index)
        if old is None:
            # What a process that ended has not removed. One that is about to does no harm.
            with suppress(StoreUnavailable):
                if erasure:
                    await _delete_before(self._store, tenant, erasure)
                await self._remove(tenant, removed)
        return index

    def _keep(self, tenant: TenantScope, index: TenantIndex) -> None:
        """Keeps an index, unless another call has a newer one."""
        kept = self._indexes.get(tenant)
        if kept is None or kept.number <= index.number:
            self._indexes[tenant] = index

    async def _read_chosen(
        self, tenant: TenantScope, choose: Callable[[TenantIndex], Sequence[str]]
    ) -> tuple[TenantIndex, dict[str, _StoredMemory]]:
        """Returns the memories that `choose` returns of the index, by id in this order, and the index."""
        for _ in range(_ATTEMPTS):
            index = await self._load_index(tenant)
            ids = [memory_id for memory_id in await self._run(choose, index) if memory_id in index.entries]
            keys = [_key(tenant, index.entries[memory_id].record) for memory_id in ids]
            values = await self._store.get_many(keys) if keys else []
            # One that is missing was deleted meanwhile, or a store in memory has dropped it.
            if None not in values or await self._load_index(tenant) is index:
                return index, await self._run(self._open_memories, tenant, ids, keys, values)
        raise _changing_error()

    async def _read(self, tenant: TenantScope, ids: Sequence[str]) -> dict[str, _StoredMemory]:
        return (await self._read_chosen(tenant, lambda _: ids))[1]

    async def _check_requirements(self, tenant: TenantScope, index: TenantIndex, change: MemoryChange) -> None:
        """Raises Conflict if a requirement is not met or a marker exists."""
        names = [name for name, _ in change.markers]
        existing = [name for name in names if name in index.markers or names.count(name) > 1]
        if existing:
            raise Conflict(f"{existing[0]} exists already")
        ids = [memory_id for memory_id, _ in change.require if memory_id in index.entries]
        keys = [_key(tenant, index.entries[memory_id].record) for memory_id in ids]
        values = await self._store.get_many(keys) if keys else []
        stored = await self._run(self._open_memories, tenant, ids, keys, values) if keys else {}
        for memory_id, required in change.require:
            if (stored[memory_id].memory if memory_id in stored else None) != required:
                raise Conflict(f"memory {memory_id} was changed meanwhile")

    # -- removing ----------------------------------------------------------------------------------------------------

    async def _remove(self, tenant: TenantScope, removed: Sequence[IndexEntry]) -> None:
        """Removes memories that were replaced or deleted, and their entries."""
        if not removed:
            return
        await self._store.delete([_key(tenant, entry.record) for entry in removed])
        orders = {entry.order for entry in removed}
        keys = [_change_key(tenant, number) for number in sorted({order >> _POSITIONS for order in orders})]
        puts = await self._run(self._without_entries, tenant, keys, await self._store.get_many(keys), orders)
        if puts:
            await self._store.write(puts)

    async def _delete_unused(self, tenant: TenantScope, names: Sequence[str]) -> None:
        """Deletes memories that no change names, such as those of a writer that ended before it wrote its change."""
        index = await self._load_index(tenant)
        used = {entry.record for entry in index.entries.values()}
        unused = [name for name in names if name not in used and _number(name) <= index.number]
        if unused:
            await self._store.delete([_key(tenant, name) for name in unused])

    # -- in a thread -------------------------------------------------------------------------------------------------

    async def _run(self, call: Callable[..., T], *args: Any) -> T:
        return await asyncio.to_thread(call, *args)

    def _open(self, tenant: TenantScope, key: Key, value: bytes) -> bytes:
        plain = self._sealer.open(tenant, key.path, value)
        if plain is None:
            raise StoreUnavailable("these memories are encrypted with a key that is not among archive.key, or damaged")
        return plain

    def _seal_all(self, tenant: TenantScope, keys: Sequence[Key], records: Sequence[object]) -> list[Put]:
        return [
            Put(key, self._sealer.seal(tenant, key.path, _ENCODER.encode(record)))
            for key, record in zip(keys, records, strict=True)
        ]

    def _open_memories(
        self, tenant: TenantScope, ids: Sequence[str], keys: Sequence[Key], values: Sequence[bytes | None]
    ) -> dict[str, _StoredMemory]:
        return {
            memory_id: _MEMORY.decode(self._open(tenant, key, value))
            for memory_id, key, value in zip(ids, keys, values, strict=True)
            if value is not None
        }

    def _read_changes(self, tenant: TenantScope, index: TenantIndex, rows: Sequence[tuple[str, bytes]]) -> _Update:
        opened = ((_number(name), self._open(tenant, _key(tenant, name), value)) for name, value in rows)
        return _apply(index, [(number, _CHANGE.decode(plain)) for number, plain in opened])

    def _without_entries(
        self, tenant: TenantScope, keys: Sequence[Key], values: Sequence[bytes | None], orders: set[int]
    ) -> list[Put]:
        """Returns puts of changes without the entries of these orders."""
        opened = {
            key: _CHANGE.decode(self._open(tenant, key, value))
            for key, value in zip(keys, values, strict=True)
            if value is not None
        }
        changes = [
            replace(change, put=tuple(each for each in change.put if each[1].order not in orders))
            for change in opened.values()
        ]
        return self._seal_all(tenant, list(opened), changes)

    def _reseal(self, tenant: TenantScope, rows: Sequence[tuple[str, bytes]]) -> list[Put]:
        """Returns puts of the values that are not sealed with the first key."""
        puts = []
        for name, value in rows:
            key = _key(tenant, name)
            sealed = self._sealer.seal(tenant, key.path, self._open(tenant, key, value))
            if sealed[:_SEAL_NAME] != value[:_SEAL_NAME]:
                puts.append(Put(key, sealed))
        return puts


async def count_records(store: KeyValueStore, tenant: TenantScope) -> int:
    """Counts the memories in a tenant's records, without reading them. Raises StoreUnavailable."""
    return sum([len(rows) async for rows in _scan(store, tenant, "memory/")])


async def erase_records(store: KeyValueStore, tenant: TenantScope) -> int:
    """Removes all memories and markers of a tenant; returns the number of memories. Raises StoreUnavailable.

    No key is needed: an erasure says nothing, so it is not sealed.
    """
    names = [name async for rows in _scan(store, tenant, "") for name, _ in rows]
    number = max((_number(name) for name in names if name.startswith("change/")), default=0)
    if not names:
        return 0
    for _ in range(_ATTEMPTS):
        number += 1
        erasure = _ENCODER.encode(_Change(os.urandom(8).hex(), is_erasure=True))
        if await store.put_if_absent(_change_key(tenant, number), erasure) == erasure:
            return await _delete_before(store, tenant, number)
    raise _changing_error()


async def _delete_before(store: KeyValueStore, tenant: TenantScope, number: int) -> int:
    """Deletes all that was written before an erasure; returns the number of memories."""
    count = 0
    async for rows in _scan(store, tenant, ""):
        names = [name for name, _ in rows if _number(name) <= number and name != _change_name(number)]
        count += sum(name.startswith("memory/") for name in names)
        await store.delete([_key(tenant, name) for name in names])
    return count


async def _scan(
    store: KeyValueStore, tenant: TenantScope, prefix: str, after: str = ""
) -> AsyncIterator[list[tuple[str, bytes]]]:
    """Yields names and values of the tenant's records, in pages."""
    while rows := await store.scan(tenant.feature_collection, prefix=prefix, after=after, limit=_PAGE):
        yield rows
        if len(rows) < _PAGE:
            return
        after = rows[-1][0]


def _apply(index: TenantIndex, changes: Sequence[tuple[int, _Change]]) -> _Update:
    """Applies changes, given with their numbers, to an index."""
    entries, markers, removed, erasure = dict(index.entries), dict(index.markers), list[IndexEntry](), 0
    for number, change in changes:
        if change.is_erasure:
            erasure = number
            for table in (entries, markers, removed):
                table.clear()
        for memory_id in (*change.delete, *(memory_id for memory_id, _ in change.put)):
            if (old := entries.pop(memory_id, None)) is not None:
                removed.append(old)
        entries.update(change.put)
        markers.update(change.markers)
    return _Update(TenantIndex(changes[-1][0], entries, markers), removed, erasure)


def _existing(index: TenantIndex, change: MemoryChange) -> tuple[str, ...]:
    """Returns the ids of memories that a change deletes and that exist."""
    return tuple(memory_id for memory_id in dict.fromkeys(change.delete) if memory_id in index.entries)


def _key(tenant: TenantScope, name: str) -> Key:
    return Key(tenant.feature_collection, name)


def _change_name(number: int) -> str:
    return f"change/{number:012x}"


def _change_key(tenant: TenantScope, number: int) -> Key:
    return _key(tenant, _change_name(number))


def _record_name(number: int, token: str, position: int) -> str:
    return f"memory/{number:012x}/{token}-{position}"


def _number(name: str) -> int:
    """Returns the number of the change to which a record belongs."""
    return int(name.split("/")[1], 16)


def _changing_error() -> StoreUnavailable:
    """Returns the error after repeated concurrent changes."""
    return StoreUnavailable("these memories are being changed by others right now")


def _candidate(stored: _StoredMemory, chosen: ChosenMemory) -> SearchCandidate:
    scores = chosen.lexical, chosen.dense, chosen.lexical_rank, chosen.dense_rank
    return SearchCandidate(stored.memory, *scores, stored.tokens)


def _make_entries(memories: Sequence[Memory], embeddings: Sequence[Embedding]) -> list[IndexEntry]:
    return [make_entry(*each) for each in zip(memories, embeddings, strict=True)]
