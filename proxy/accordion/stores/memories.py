"""The memory store: memories, entities, relations and markers of tenants, over the records of SQLite or Redis.

Theory of operation. A tenant's data are records of six kinds (`KINDS`), each with a name and a value. Names are digests
and values are sealed if a key is set (sealed_names.py). `MemoryRecords` knows nothing else of them: it reads records
in one snapshot, and writes a change only if the tenant's version is still the one that the change was made from.
`StoredMemories` does the rest, the same for all stores:

    memory    a memory and the embedder's tokens, by its id
    index     what a search needs of 16 memories that were written one after the other (memories_index.IndexEntry)
    entity    an entity, by its name and type
    relation  a relation, by its ends, type and memory
    marker    a marker, by its name
    state     `secret`: the sealed secret of the names; `version`: a `TenantState`

A search works on a `TenantIndex`, which a worker builds from the records of the kind `index` and keeps, bounded by
bytes. `version` names the records that the last changes affected, so that a worker reads only these again.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from accordion.archive.sealing import PlainSealer
from accordion.memory.entries import export_line
from accordion.model.cache import BoundedCache, count_entry
from accordion.model.errors import StoreUnavailable
from accordion.model.memories import (
    Conflict,
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
from accordion.stores.memories_index import (
    ChosenMemory,
    Groups,
    IndexEntry,
    TenantIndex,
    fold_case,
    make_entry,
    make_page,
    parse_position,
)
from accordion.stores.sealed_names import SealedNames
from accordion.stores.sqlite_worker import SqliteWorker
from accordion.stores.stems import connect, count_stems, stem_words

T = TypeVar("T")

KINDS: Final = ("state", "index", "memory", "entity", "relation", "marker")
RecordQuery = tuple[str, Sequence[str] | None]
"""A kind, and the names of its records; None for all."""
RecordName = tuple[str, str]
"""The kind and the name of a record."""
Snapshot = list[dict[str, bytes]]
"""The values of existing records by name, for each query."""


class RecordChange(msgspec.Struct, frozen=True):
    """Records to write and to delete. `has_removals`: nothing of the old values may stay in files."""

    put: dict[RecordName, bytes] = {}
    delete: frozenset[RecordName] = frozenset()
    has_removals: bool = False


class MemoryRecords(Protocol):
    """Stores records of tenants. Every method may raise StoreUnavailable."""

    async def read(self, tenant: TenantScope, queries: Sequence[RecordQuery]) -> Snapshot:
        """Reads records in one snapshot."""

    async def write(self, tenant: TenantScope, version: bytes, change: RecordChange) -> bool:
        """Writes a change as a whole, or returns False if the record `version` has another value than `version`."""

    async def erase(self, tenant: TenantScope) -> int:
        """Removes all of a tenant's data; returns the number of memories."""

    async def close(self) -> None:
        """Closes connections and files."""


class TenantState(msgspec.Struct, frozen=True, array_like=True):
    """The version of a tenant's memories, a random token that each change renews.

    `order` is that of the last memory. `changes` has the last changes, oldest first: the token before each, and the
    names of the records of the index that it affected.
    """

    token: bytes = b""
    order: int = 0
    changes: tuple[tuple[bytes, tuple[str, ...]], ...] = ()

    def after(self, names: Iterable[str], order: int) -> TenantState:
        """Returns the state after a change of these records of the index."""
        changes = [*self.changes, (self.token, tuple(names))]
        while sum(len(changed) + 1 for _, changed in changes) > _MAX_CHANGED:
            changes.pop(0)
        return TenantState(os.urandom(8), order, tuple(changes))

    def changed_since(self, token: bytes) -> list[str] | None:
        """Returns the names of the records of the index that changed since `token`; None if that is not known."""
        tokens = [before for before, _ in self.changes]
        if token == self.token:
            return []
        if token not in tokens:
            return None
        return list(dict.fromkeys(name for _, names in self.changes[tokens.index(token) :] for name in names))


class _StoredMemory(msgspec.Struct, frozen=True, array_like=True):
    memory: Memory
    tokens: bytes
    order: int


class _View(msgspec.Struct, frozen=True):
    """What was read in one snapshot: the tenant's names, its state as it is stored, and the records of each query."""

    sealed_names: SealedNames
    version: bytes
    records: Snapshot

    @property
    def state(self) -> TenantState:
        return _STATE.decode(self.version) if self.version else TenantState()


_ENCODER = msgspec.msgpack.Encoder()
_STATE = msgspec.msgpack.Decoder(TenantState)
_MEMORY = msgspec.msgpack.Decoder(_StoredMemory)
_ENTRIES = msgspec.msgpack.Decoder(dict[str, IndexEntry])
_ENTITY = msgspec.msgpack.Decoder(Entity)
_RELATION = msgspec.msgpack.Decoder(Relation)
_MARKER = msgspec.msgpack.Decoder(tuple[str, bytes])

_SECRET, _VERSION = ("state", "secret"), ("state", "version")
_ATTEMPTS: Final = 100
"""Attempts of an operation whose data changed during it; of several writers, one succeeds each time."""
_GROUP: Final = 16
"""Memories in a record of the index. Many small records take long to read, and a large one takes long to write."""
_MAX_CHANGED: Final = 64
"""Names of changed records in a TenantState. Beyond that, a worker reads the whole index again."""
_PAGE: Final = 500
_TENANTS: Final = 10_000
_INDEX_BYTES: Final = 32 * 2**20
"""Memory for the indexes of the tenants that searched last, for each worker. One of 1,000 memories takes 2 to 3 MB.

The newest one stays, whatever its size.
"""


class StoredMemories:
    """A MemoryStore over the records of a store.

    Words are compared by FTS5's stems (Porter) and weighted as in FTS5 (bm25 over this tenant alone); vectors are
    compared one by one. With a `sealer` that has keys, names and values are sealed. A tenant whose memories were
    written without a key, or with another key than the first one, has all of them resealed at its next write.
    `on_write` is called with the tenant's key after each write.
    """

    def __init__(
        self,
        records: MemoryRecords,
        embedder: Embedder,
        *,
        timeout: float,
        sealer: Sealer | None = None,
        on_write: Callable[[TenantScope], object] = lambda tenant: None,
    ) -> None:
        self._records, self._embedder, self._on_write = records, embedder, on_write
        self._sealer = sealer or PlainSealer()
        self._worker = SqliteWorker("memories-index", connect, timeout=timeout)
        self._known_names = BoundedCache[TenantScope, SealedNames](_TENANTS, count_entry)
        self._indexes = BoundedCache[TenantScope, TenantIndex](_INDEX_BYTES, lambda tenant, index: index.size)

    async def write(self, tenant: TenantScope, change: MemoryChange) -> tuple[Entity, ...]:
        """See MemoryStore."""
        change = replace(change, put=tuple({memory.id: memory for memory in change.put}.values()))
        embeddings = await self._embedder.embed([embedding_text(memory) for memory in change.put]) if change.put else []
        entries = await self._worker.run(_make_entries, change.put, embeddings)
        for _ in range(_ATTEMPTS):
            view = await self._read(tenant, lambda names: _queries(names, change))
            if not _is_current(view.sealed_names):
                await self.seal(tenant)
                continue
            # A new memory names no stored one: then the thread has nothing to do.
            memories = await self._run(_open_memories, view.sealed_names, view.records[0]) if view.records[0] else {}
            groups, index = await self._load_affected(tenant, view, change, memories)
            if groups.version != view.version or (index is not None and index.version != view.state.token):
                continue
            context = _ChangeContext(change, view, memories, _open_groups(groups), index)
            records, new_entities = await self._run(_plan, context, embeddings, entries)
            if await self._records.write(tenant, view.version, records):
                self._on_write(tenant)
                return new_entities
        raise _changing_error()

    async def get(self, tenant: TenantScope, ids: Sequence[str]) -> list[Memory | None]:
        """See MemoryStore."""
        unique = list(dict.fromkeys(ids))
        view = await self._read(
            tenant, lambda names: [("memory", [names.name(memory_id) for memory_id in unique])] if unique else []
        )
        values = view.records[0] if unique else {}
        stored = await self._run(_open_memories, view.sealed_names, values)
        by_id = {each.memory.id: each.memory for each in stored.values()}
        return [by_id.get(memory_id) for memory_id in ids]

    async def list_memories(
        self, tenant: TenantScope, memory_filter: MemoryFilter, *, after: str = "", limit: int = 100
    ) -> MemoryPage:
        """See MemoryStore."""
        position = parse_position(after)
        for _ in range(_ATTEMPTS):
            index = await self._load_index(tenant)
            matches = await self._run(index.list_newest, memory_filter, position)
            names = matches[: limit if limit >= 0 else None]
            stored = await self._read_memories(tenant, names)
            if len(stored) == len(names):
                memories = [(index.entries[name].order, stored[name].memory) for name in names]
                return make_page(memories, has_more=len(names) < len(matches))
        raise _changing_error()

    async def count(self, tenant: TenantScope, memory_filter: MemoryFilter) -> int:
        """See MemoryStore."""
        index = await self._load_index(tenant)
        return await self._run(index.count, memory_filter)

    async def find_candidates(
        self, tenant: TenantScope, words: Sequence[str], vector: bytes, memory_filter: MemoryFilter, *, pool: int
    ) -> list[SearchCandidate]:
        """See MemoryStore."""
        stems = await self._worker.run(stem_words, words) if words else []
        stems = [each for each in stems if each]
        for _ in range(_ATTEMPTS):
            index = await self._load_index(tenant)
            chosen: list[ChosenMemory] = await self._run(index.choose, stems, vector, memory_filter, pool)
            stored = await self._read_memories(tenant, [each.name for each in chosen])
            if len(stored) == len(chosen):
                return [_candidate(stored[each.name], each) for each in chosen]
        raise _changing_error()

    async def get_marker(self, tenant: TenantScope, name: str) -> bytes | None:
        """See MemoryStore."""
        view = await self._read(tenant, lambda names: [("marker", [names.name(name)])])
        return next(
            (_MARKER.decode(_open(view.sealed_names, "marker", value))[1] for value in view.records[0].values()), None
        )

    async def count_entities(self, tenant: TenantScope) -> int:
        """See MemoryStore."""
        return len((await self._read_all(tenant, "entity")).records[0])

    async def count_relations(self, tenant: TenantScope) -> int:
        """See MemoryStore."""
        return len((await self._read_all(tenant, "relation")).records[0])

    async def export(self, tenant: TenantScope) -> AsyncIterator[bytes]:
        """See MemoryStore. Concurrent writes may be missing."""
        last = 0
        while orders := {
            name: entry.order for name, entry in (await self._load_index(tenant)).entries.items() if entry.order > last
        }:
            # None of them exists any more if all were sealed meanwhile: then they have other names.
            for name, stored in (await self._read_memories(tenant, list(orders)[:_PAGE])).items():
                last = orders[name]
                yield export_line(stored.memory)
        for kind, decoder in (("entity", _ENTITY), ("relation", _RELATION), ("marker", _MARKER)):
            view = await self._read_all(tenant, kind)
            for value in view.records[0].values():
                yield export_line(decoder.decode(_open(view.sealed_names, kind, value)))

    async def seal(self, tenant: TenantScope) -> bool:
        """See MemoryStore."""
        if _is_current((await self._read(tenant, lambda _: [])).sealed_names):
            return False
        for _ in range(_ATTEMPTS):
            view = await self._read_all(tenant, *KINDS[1:])
            if _is_current(view.sealed_names):
                return False
            change = await self._run(_reseal, view, view.sealed_names.renew())
            if await self._records.write(tenant, view.version, change):
                return any(view.records)
        raise _changing_error()

    async def erase(self, tenant: TenantScope) -> int:
        """See MemoryStore. A Redis server's own files lose the data when the server rewrites them."""
        count = await self._records.erase(tenant)
        self._indexes.pop(tenant)
        return count

    async def close(self) -> None:
        """See MemoryStore."""
        await self._worker.close()
        await self._records.close()

    # -- reading -----------------------------------------------------------------------------------------------------

    async def _read(self, tenant: TenantScope, queries: Callable[[SealedNames], list[RecordQuery]]) -> _View:
        """Reads records whose names depend on the tenant's secret."""
        for _ in range(_ATTEMPTS):
            sealed_names = self._known_names.get(tenant) or SealedNames(self._sealer, tenant)
            snapshot = await self._records.read(tenant, [("state", ("secret", "version")), *queries(sealed_names)])
            state, *records = snapshot
            if state.get("secret", b"") == sealed_names.sealed_secret:
                return _View(sealed_names, state.get("version", b""), records)
            self._known_names[tenant] = SealedNames(self._sealer, tenant, state.get("secret", b""))
        raise _changing_error()

    async def _read_groups(self, tenant: TenantScope, names: Sequence[str]) -> _View:
        """Reads these records of the index."""
        return await self._read(tenant, lambda _: [("index", names)])

    async def _read_all(self, tenant: TenantScope, *kinds: str) -> _View:
        """Reads all records of these kinds."""
        return await self._read(tenant, lambda _: [(kind, None) for kind in kinds])

    async def _load_index(self, tenant: TenantScope) -> TenantIndex:
        """Returns the tenant's index, brought up to date with what changed."""
        old = self._indexes.get(tenant)
        update = await self._read_changed(tenant, old.version) if old is not None else None
        if old is None or update is None:
            index = await self._run(_build_index, await self._read_all(tenant, "index"), {})
        else:
            view, changed = update
            if not changed:
                return old
            unchanged = {name: group for name, group in old.groups.items() if name not in changed}
            index = await self._run(_build_index, view, unchanged)
        self._indexes[tenant] = index
        return index

    async def _read_changed(self, tenant: TenantScope, token: bytes) -> tuple[_View, Sequence[str]] | None:
        """Reads the records of the index that changed since `token`; returns their names too. None: read all."""
        names, view = list[str](), await self._read(tenant, lambda _: [])
        while (changed := view.state.changed_since(token)) is not None:
            # Others may write between two reads, and a memory that is written again goes to another record.
            if changed == names:
                return view, changed
            names = changed
            view = await self._read_groups(tenant, names)
        return None

    async def _load_affected(
        self, tenant: TenantScope, view: _View, change: MemoryChange, memories: Mapping[str, _StoredMemory]
    ) -> tuple[_View, TenantIndex | None]:
        """Reads the records of the index that a change affects, and the whole index if entities may go with it."""
        deleted = [memories.get(view.sealed_names.name(memory_id)) for memory_id in change.delete]
        rewritten = [memories.get(view.sealed_names.name(memory.id)) for memory in change.put]
        orders = {stored.order for stored in (*deleted, *rewritten) if stored is not None}
        if change.put:
            orders.add(view.state.order + 1)
        names = sorted({_group_name(order) for order in orders})
        groups = await self._read_groups(tenant, names)
        has_entities = any(stored is not None and stored.memory.entities for stored in deleted)
        return groups, await self._load_index(tenant) if has_entities else None

    async def _read_memories(self, tenant: TenantScope, names: Sequence[str]) -> dict[str, _StoredMemory]:
        """Returns those of the memories that still exist, in the order of `names`."""
        view = await self._read(tenant, lambda _: [("memory", names)])
        return await self._run(_open_memories, view.sealed_names, view.records[0])

    async def _run(self, call: Callable[..., T], *args: Any) -> T:
        return await self._worker.run(lambda _: call(*args))


def _changing_error() -> StoreUnavailable:
    """Returns the error after repeated concurrent changes."""
    return StoreUnavailable("these memories are being changed by others right now")


def _is_current(sealed_names: SealedNames) -> bool:
    """Returns whether the first configured key, if any, seals these names."""
    return sealed_names.renew() is sealed_names


def _candidate(stored: _StoredMemory, chosen: ChosenMemory) -> SearchCandidate:
    scores = chosen.lexical, chosen.dense, chosen.lexical_rank, chosen.dense_rank
    return SearchCandidate(stored.memory, *scores, stored.tokens)


# -- in the thread ---------------------------------------------------------------------------------------------------


def _open(sealed_names: SealedNames, kind: str, value: bytes) -> bytes:
    return sealed_names.open(f"memories/{kind}", value)


def _open_memories(sealed_names: SealedNames, values: Mapping[str, bytes]) -> dict[str, _StoredMemory]:
    return {name: _MEMORY.decode(_open(sealed_names, "memory", value)) for name, value in values.items()}


def _group_name(order: int) -> str:
    """Returns the name of the record of the index with the memory of this order."""
    return str(order // _GROUP)


def _open_groups(view: _View) -> Groups:
    return {name: _ENTRIES.decode(_open(view.sealed_names, "index", value)) for name, value in view.records[0].items()}


def _build_index(view: _View, unchanged: Groups) -> TenantIndex:
    """Builds an index of the records that were read, and of those that did not change."""
    return TenantIndex(view.state.token, {**unchanged, **_open_groups(view)})


def _make_entries(
    connection: sqlite3.Connection, memories: Sequence[Memory], embeddings: Sequence[Embedding]
) -> list[IndexEntry]:
    """Makes the entries of memories. `connection` belongs to stems.py."""
    texts = [(memory.content, memory.context, memory.author) for memory in memories]
    stems = count_stems(connection, texts) if texts else []
    return [make_entry(*each) for each in zip(memories, embeddings, stems, strict=True)]


class _RecordWriter:
    """Collects the records of a change and seals them. `groups` are the records of the index that it may affect."""

    def __init__(self, sealed_names: SealedNames, state: TenantState, groups: Groups) -> None:
        self._sealed_names, self._state, self._groups = sealed_names, state, groups
        self._order = state.order
        self.affected = set[str]()
        self.put: dict[RecordName, bytes] = {}
        self.delete = set[RecordName]()

    def add(self, kind: str, name: str, record: object) -> None:
        """Adds a record with a name of the store."""
        self.delete.discard((kind, name))
        self.put[kind, name] = self._sealed_names.seal(f"memories/{kind}", _ENCODER.encode(record))

    def add_memory(self, memory: Memory, tokens: bytes, entry: IndexEntry) -> None:
        """Adds a memory as the newest, with its entry of the index."""
        self._order += 1
        name, group = self._sealed_names.name(memory.id), _group_name(self._order)
        self.add("memory", name, _StoredMemory(memory, tokens, self._order))
        self._groups.setdefault(group, {})[name] = replace(entry, order=self._order)
        self.affected.add(group)

    def remove_memory(self, name: str, order: int) -> None:
        """Removes a memory and its entry of the index."""
        self.delete.add(("memory", name))
        self._groups.get(_group_name(order), {}).pop(name, None)
        self.affected.add(_group_name(order))

    def finish(self, *, has_removals: bool) -> RecordChange:
        """Returns the change, with the affected records of the index and the next state."""
        for group in self.affected:
            if self._groups.get(group):
                self.add("index", group, self._groups[group])
            else:
                self.delete.add(("index", group))
        self.put[_VERSION] = _ENCODER.encode(self._state.after(self.affected, self._order))
        return RecordChange(self.put, frozenset(self.delete), has_removals)


def _ends(relation: Relation) -> tuple[str, str]:
    return fold_case(relation.start), fold_case(relation.end)


def _entity_name(sealed_names: SealedNames, entity: Entity) -> str:
    return sealed_names.name(f"{fold_case(entity.name)}\0{entity.type}")


def _relation_name(sealed_names: SealedNames, relation: Relation) -> str:
    return sealed_names.name("\0".join((*_ends(relation), relation.type, relation.memory)))


def _queries(sealed_names: SealedNames, change: MemoryChange) -> list[RecordQuery]:
    """Returns the queries of what a change depends on."""
    ids = [*(memory_id for memory_id, _ in change.require), *change.delete, *(memory.id for memory in change.put)]
    entities = [_entity_name(sealed_names, entity) for entity in change.entities]
    relations = [_relation_name(sealed_names, relation) for relation in change.relations]
    return [
        ("memory", [sealed_names.name(memory_id) for memory_id in dict.fromkeys(ids)]),
        ("marker", [sealed_names.name(name) for name, _ in change.markers]),
        ("entity", None if change.delete else entities),
        ("relation", None if change.delete else relations),
    ]


class _ChangeContext(msgspec.Struct, frozen=True):
    """A change, and what is stored of what it names.

    `index` is None if no memory with entities is deleted.
    """

    change: MemoryChange
    view: _View
    memories: dict[str, _StoredMemory]
    groups: Groups
    index: TenantIndex | None


def _plan(
    context: _ChangeContext, embeddings: Sequence[Embedding], entries: Sequence[IndexEntry]
) -> tuple[RecordChange, tuple[Entity, ...]]:
    """Returns the records of a change, and those of its entities that are new. Raises Conflict."""
    change, view, memories = context.change, context.view, context.memories
    names, (_, markers, entities, relations) = view.sealed_names, view.records
    _check_requirements(names, change, memories, markers)
    writer = _RecordWriter(names, view.state, context.groups)
    _delete(writer, context)
    for memory, embedding, entry in zip(change.put, embeddings, entries, strict=True):
        if (name := names.name(memory.id)) in memories:
            writer.remove_memory(name, memories[name].order)
        writer.add_memory(memory, embedding.tokens, entry)
    for each in change.markers:
        writer.add("marker", names.name(each[0]), each)
    new_entities = []
    for entity in change.entities:
        record = "entity", _entity_name(names, entity)
        if record not in writer.put and (record[1] not in entities or record in writer.delete):
            writer.add(*record, entity)
            new_entities.append(entity)
    for relation in change.relations:
        record = "relation", _relation_name(names, relation)
        if record not in writer.put and (record[1] not in relations or record in writer.delete):
            writer.add(*record, relation)
    rewritten = any(names.name(memory.id) in memories for memory in change.put)
    return writer.finish(has_removals=bool(writer.delete) or rewritten), tuple(new_entities)


def _check_requirements(
    sealed_names: SealedNames,
    change: MemoryChange,
    memories: Mapping[str, _StoredMemory],
    markers: Mapping[str, bytes],
) -> None:
    """Raises Conflict if a requirement is not met or a marker exists."""
    for memory_id, required in change.require:
        stored = memories.get(sealed_names.name(memory_id))
        if (stored.memory if stored is not None else None) != required:
            raise Conflict(f"memory {memory_id} was changed meanwhile")
    new = set[str]()
    for name, _ in change.markers:
        if name in new or sealed_names.name(name) in markers:
            raise Conflict(f"{name} exists already")
        new.add(name)


def _delete(writer: _RecordWriter, context: _ChangeContext) -> None:
    """Deletes memories with their relations, and the entities that no other memory names, with theirs."""
    names, (_, _, entities, relations) = context.view.sealed_names, context.view.records
    ids = set(context.change.delete)
    if not ids:
        return
    deleted = [name for name in map(names.name, ids) if name in context.memories]
    unused = set[str]()
    if context.index is not None:
        labels = {f"e:{fold_case(entity)}" for name in deleted for entity in context.memories[name].memory.entities}
        unused = {label[2:] for label in context.index.find_unused_labels(labels, deleted)}
    for name in deleted:
        writer.remove_memory(name, context.memories[name].order)
    for name, value in entities.items():
        if unused and fold_case(_ENTITY.decode(_open(names, "entity", value)).name) in unused:
            writer.delete.add(("entity", name))
    for name, value in relations.items():
        relation = _RELATION.decode(_open(names, "relation", value))
        if relation.memory in ids or not unused.isdisjoint(_ends(relation)):
            writer.delete.add(("relation", name))


def _reseal(view: _View, new_names: SealedNames) -> RecordChange:
    """Returns a change that seals everything with another secret. The records are those of all kinds."""
    old_names, (_, memories, entities, relations, markers) = view.sealed_names, view.records
    opened = _open_memories(old_names, memories)
    new = {name: new_names.name(stored.memory.id) for name, stored in opened.items()}
    groups = {
        group: {new[name]: entry for name, entry in entries.items()} for group, entries in _open_groups(view).items()
    }
    writer = _RecordWriter(new_names, view.state, groups)
    writer.affected.update(groups)
    for name, stored in opened.items():
        writer.add("memory", new[name], stored)
    for value in entities.values():
        entity = _ENTITY.decode(_open(old_names, "entity", value))
        writer.add("entity", _entity_name(new_names, entity), entity)
    for value in relations.values():
        relation = _RELATION.decode(_open(old_names, "relation", value))
        writer.add("relation", _relation_name(new_names, relation), relation)
    for value in markers.values():
        marker = _MARKER.decode(_open(old_names, "marker", value))
        writer.add("marker", new_names.name(marker[0]), marker)
    writer.put[_SECRET] = new_names.sealed_secret
    change = writer.finish(has_removals=any(view.records))
    old = {(kind, name) for kind, records in zip(KINDS[1:], view.records, strict=True) for name in records}
    return replace(change, delete=frozenset(old - set(change.put)))
