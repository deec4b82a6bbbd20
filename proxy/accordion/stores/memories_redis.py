"""The shared memory store, in Redis (7.0 or later) or Valkey: one server or a cluster. Imports redis-py."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from accordion.archive.sealing import PlainSealer
from accordion.memory.entries import export_line
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
from accordion.stores import memories_columns as columns
from accordion.stores import memories_records as records
from accordion.stores import memories_redis_scripts as scripts
from accordion.stores.batches import name_bytes
from accordion.stores.memories_columns import fold_case
from accordion.stores.nearest_vectors import KIND_BYTES
from accordion.stores.redis import RedisStore
from accordion.stores.redis_scripts import Script
from accordion.stores.sealed_names import SealedNames
from accordion.stores.sqlite_worker import SqliteWorker
from accordion.stores.stems import Counts, connect, count_stems, stem_words

_ENCODER = msgspec.msgpack.Encoder()
_VECTOR = "memories/vector"
"""The name under which vectors are sealed."""


class PackedChange(msgspec.Struct, frozen=True):
    """A change in the script's format, and the descriptions of its conflicts."""

    change: bytes
    conflicts: Mapping[bytes, str]


def pack_change(
    connection: sqlite3.Connection,
    sealed_names: SealedNames,
    change: MemoryChange,
    memories: Sequence[Memory],
    embeddings: Sequence[Embedding],
) -> PackedChange:
    """Packs a change with `memories` instead of its own. `connection` belongs to stems.py."""
    counts = (
        count_stems(connection, [(memory.content, memory.context, memory.author) for memory in memories])
        if memories
        else []
    )
    packed = _ENCODER.encode(
        {
            "require": [
                (sealed_names.name(memory), revision and sealed_names.name(revision))
                for memory, revision in change.require
            ],
            "markers": [
                (sealed_names.name(each[0]), _raw(records.seal_record(sealed_names, each))) for each in change.markers
            ],
            "delete": [sealed_names.name(memory) for memory in change.delete],
            "put": [_pack_memory(sealed_names, *each) for each in zip(memories, embeddings, counts, strict=True)],
            "entities": [_pack_entity(sealed_names, entity) for entity in change.entities],
            "relations": [_pack_relation(sealed_names, relation) for relation in change.relations],
        }
    )
    conflicts = {
        f"memory {at}".encode(): f"memory {memory} was changed meanwhile"
        for at, (memory, _) in enumerate(change.require, 1)
    }
    conflicts |= {f"marker {at}".encode(): f"{name} exists already" for at, (name, _) in enumerate(change.markers, 1)}
    return PackedChange(packed, conflicts)


def seal_label(sealed_names: SealedNames, name: str) -> str:
    """Returns a label with a sealed name. Its kind stays readable."""
    return name[:2] + sealed_names.name(name[2:])


def open_relation(sealed_names: SealedNames, value: bytes) -> Relation:
    """Opens a relation, after the header for the scripts."""
    return records.open_relation(sealed_names, value[4 + int.from_bytes(value[:4], "little") :])


def vector_kind(vector: bytes) -> str:
    """Returns the kind of a vector: its embedder and its length. Only vectors of one kind are compared."""
    return f"{vector[:KIND_BYTES].hex()}.{len(vector)}"


def split_vectors(sealed_names: SealedNames, chunks: Mapping[bytes, bytes]) -> Iterable[tuple[str, bytes, bytes]]:
    """Splits chunks by field into vectors: the kind of each, its row (four bytes) and the vector."""
    for field, chunk in chunks.items():
        name = field.decode().rpartition(".")[0]
        width = 4 + len(sealed_names.seal_fixed_width(_VECTOR, bytes(int(name.rpartition(".")[2]))))
        for at in range(0, len(chunk), width):
            stored = chunk[at + 4 : at + width]
            yield name, chunk[at : at + 4], sealed_names.open(_VECTOR, stored) if sealed_names.sealed_secret else stored


def comparable_vectors(sealed_names: SealedNames, chunks: Mapping[bytes, bytes], vector: bytes) -> list[bytes]:
    """Returns the chunks of vectors comparable with `vector`, in the format of memories_columns.py."""
    prefix = (vector_kind(vector) + ".").encode()
    comparable = {name: chunk for name, chunk in chunks.items() if name.startswith(prefix)}
    if not sealed_names.sealed_secret:
        return list(comparable.values())
    return [
        b"".join(part for _, row, each in split_vectors(sealed_names, {name: comparable[name]}) for part in (row, each))
        for name in comparable
    ]


def _pack_memory(sealed_names: SealedNames, memory: Memory, embedding: Embedding, stems: Counts) -> tuple[Any, ...]:
    words = sum(sum(times) for times in stems.values())
    return (
        sealed_names.name(memory.id),
        sealed_names.name(memory.revision),
        _raw(records.seal_record(sealed_names, memory)),
        _raw(records.seal_tokens(sealed_names, embedding.tokens)),
        _raw(columns.row_entry(memory, words)),
        [(sealed_names.name(stem), _raw(columns.posting_entry(times))) for stem, times in stems.items()],
        [seal_label(sealed_names, name) for name in columns.labels_of(memory)],
        vector_kind(embedding.vector),
        _raw(sealed_names.seal_fixed_width(_VECTOR, embedding.vector)),
    )


def _pack_entity(sealed_names: SealedNames, entity: Entity) -> tuple[str, str, msgspec.Raw]:
    return (
        sealed_names.name(fold_case(entity.name)),
        sealed_names.name(entity.type),
        _raw(records.seal_record(sealed_names, entity)),
    )


def _pack_relation(sealed_names: SealedNames, relation: Relation) -> tuple[str, list[str], msgspec.Raw]:
    start, end = fold_case(relation.start), fold_case(relation.end)
    unique = sealed_names.name("\0".join((start, end, relation.type, relation.memory)))
    ends = ["", *(seal_label(sealed_names, f"e:{name}") for name in (start, end))]
    if relation.memory:
        ends.append(seal_label(sealed_names, f"m:{relation.memory}"))
    ends = list(dict.fromkeys(ends))
    header = _ENCODER.encode((unique, ends))
    value = len(header).to_bytes(4, "little") + header + records.seal_record(sealed_names, relation)
    return unique, ends, _raw(value)


def _raw(value: bytes) -> msgspec.Raw:
    """Encodes bytes as a msgpack string, because the server's Lua does not read newer types."""
    return msgspec.Raw(b"\xdb" + len(value).to_bytes(4, "big") + value)


TRIES: Final = 3
"""Attempts of an operation whose data or secret changed during it."""
_TENANTS = 10_000

Command = Sequence[bytes | str | int]


class MemoriesRedisServer(RedisStore):
    """RedisStore's connections for the memories' scripts and commands. Raises StoreUnavailable."""

    def __init__(self, url: str, sealer: Sealer, *, timeout: float, cluster: bool) -> None:
        super().__init__(url, timeout=timeout, cluster=cluster)
        self._sealer = sealer
        self._known_names: dict[TenantScope, SealedNames] = {}

    async def script(self, script: Script, keys: Iterable[bytes], args: Sequence[bytes]) -> Any:
        """Runs a script and returns its reply."""
        return await self._with_timeout(self._run, script, tuple(keys), args)

    async def run_pipeline(self, *commands: Command) -> list[Any]:
        """Runs commands in one pipeline and returns their replies."""
        return await self._with_timeout(self._pipeline, commands)

    async def fields(self, name: bytes, fields: Sequence[bytes | int]) -> list[bytes | None]:
        """Returns fields of a hash, None for a missing one."""
        if not fields:
            return []
        (reply,) = await self.run_pipeline(("HMGET", name, *fields))
        values: list[bytes | None] = reply
        return values

    async def run_with_names(
        self, tenant: TenantScope, commands: Callable[[SealedNames], Sequence[Command]]
    ) -> tuple[SealedNames, list[Any]]:
        """Runs commands that use a tenant's sealed names; returns the names and the replies."""
        for _ in range(TRIES):
            sealed_names = self.tenant_names(tenant)
            # The secret is read last. An old secret never returns, so all replies before it belong to this one.
            secret = ("HMGET", scripts.tenant_keys(tenant)["veil"], "secret")
            *replies, (stored_secret,) = await self.run_pipeline(*commands(sealed_names), secret)
            if self.check_names(tenant, sealed_names, stored_secret):
                return sealed_names, replies
        raise store_is_changing()

    def tenant_names(self, tenant: TenantScope) -> SealedNames:
        """Returns the last known SealedNames of a tenant."""
        return self._known_names.get(tenant) or SealedNames(self._sealer, tenant)

    def check_names(self, tenant: TenantScope, sealed_names: SealedNames, secret: bytes | None) -> bool:
        """Returns whether `secret` belongs to these names. If not, remembers the names of `secret`."""
        if (secret or b"") == sealed_names.sealed_secret:
            return True
        if len(self._known_names) >= _TENANTS:
            self._known_names.clear()
        self._known_names[tenant] = SealedNames(self._sealer, tenant, secret or b"")
        return False

    async def _pipeline(self, commands: Sequence[Command]) -> list[Any]:
        pipeline = self._client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        replies: list[Any] = await pipeline.execute()
        return replies


def store_is_changing() -> StoreUnavailable:
    """Returns the error after repeated concurrent rewrites."""
    return StoreUnavailable("these memories are being re-encrypted right now")


T = TypeVar("T")

_PAGE = 500


class RedisMemories:
    """A MemoryStore over plain hashes of any Redis or Valkey (see memories_redis_scripts.py), without server modules.

    A change is one script, so it is written as a whole or not at all, also if the process dies. A search reads the
    rows, the vectors and the posting lists of the query's words, and ranks them here in a thread, because the server
    must not be busy for long. Words are compared by FTS5's stems and weighted as in FTS5 (bm25 over this tenant alone);
    of a word with punctuation ("o'brien") all parts must match, in any order. Every round trip takes at most `timeout`
    seconds. `url` and `cluster` are RedisStore's. Raises ValueError for a malformed one.

    With a `sealer` that has keys, texts, names and vectors are sealed, and lookups use digests of names. The numbers
    for ranking (times, types, counts of words without their names) are not sealed. A tenant whose memories were written
    without a key, or with another key than the first one, has all of them resealed, in one script, at its next write.
    `on_write` is called with the tenant's key after each write.
    """

    def __init__(
        self,
        url: str,
        embedder: Embedder,
        *,
        timeout: float,
        cluster: bool = False,
        sealer: Sealer | None = None,
        on_write: Callable[[TenantScope], object] = lambda tenant: None,
    ) -> None:
        self._server = MemoriesRedisServer(url, sealer or PlainSealer(), timeout=timeout, cluster=cluster)
        self._embedder = embedder
        self._on_write = on_write
        self._worker = SqliteWorker("memories-words", connect, timeout=timeout)

    async def write(self, tenant: TenantScope, change: MemoryChange) -> tuple[Entity, ...]:
        """See MemoryStore."""
        memories = list({memory.id: memory for memory in change.put}.values())
        embeddings = await self._embedder.embed([embedding_text(memory) for memory in memories]) if memories else []
        for _ in range(TRIES):
            await self.seal(tenant)
            sealed_names = self._server.tenant_names(tenant)
            packed = await self._worker.run(pack_change, sealed_names, change, memories, embeddings)
            args = (packed.change, sealed_names.sealed_secret)
            reply = await self._server.script(scripts.WRITE, scripts.tenant_keys(tenant).values(), args)
            if isinstance(reply, bytes):
                raise Conflict(packed.conflicts[reply])
            if reply != -1:
                self._on_write(tenant)
                return tuple(entity for entity, new in zip(change.entities, reply, strict=True) if new)
            await self._server.run_with_names(tenant, lambda _: [])
        raise store_is_changing()

    async def get(self, tenant: TenantScope, ids: Sequence[str]) -> list[Memory | None]:
        """See MemoryStore."""
        if not ids:
            return []
        keys = scripts.tenant_keys(tenant)
        for _ in range(TRIES):
            sealed_names = self._server.tenant_names(tenant)
            args = [name_bytes(sealed_names.name(memory_id)) for memory_id in ids]
            secret, *values = await self._server.script(
                scripts.GET, (keys["heads"], keys["values"], keys["veil"]), args
            )
            if self._server.check_names(tenant, sealed_names, secret):
                return [records.open_memory(sealed_names, value) if value else None for value in values]
        raise store_is_changing()

    async def list_memories(
        self, tenant: TenantScope, memory_filter: MemoryFilter, *, after: str = "", limit: int = 100
    ) -> MemoryPage:
        """See MemoryStore."""
        after_position, memories, has_more = columns.parse_position(after), list[tuple[int, Memory]](), False
        for _ in range(TRIES):
            sealed_names, search_columns, _ = await self._read_columns(tenant, memory_filter)
            matches = await self._run_in_thread(columns.newest_rows, search_columns, memory_filter, after_position)
            rows = matches[: limit if limit >= 0 else None]
            values = await self._server.fields(scripts.tenant_keys(tenant)["values"], rows)
            pairs = zip(rows, values, strict=True)
            memories = [(row, records.open_memory(sealed_names, value)) for row, value in pairs if value is not None]
            has_more = len(rows) < len(matches)
            if len(memories) == len(rows):
                break
        return columns.make_page(memories, has_more=has_more)

    async def count(self, tenant: TenantScope, memory_filter: MemoryFilter) -> int:
        """See MemoryStore."""
        _, search_columns, _ = await self._read_columns(tenant, memory_filter)
        return await self._run_in_thread(columns.count, search_columns, memory_filter)

    async def find_candidates(
        self, tenant: TenantScope, words: Sequence[str], vector: bytes, memory_filter: MemoryFilter, *, pool: int
    ) -> list[SearchCandidate]:
        """See MemoryStore."""
        stems = await self._worker.run(stem_words, words) if words else []
        candidates: list[SearchCandidate] = []
        for _ in range(TRIES):
            chosen = await self._choose_rows(tenant, stems, vector, memory_filter, pool)
            candidates = await self._read_candidates(tenant, chosen)
            if len(candidates) == len(chosen):
                break
        return candidates

    async def get_marker(self, tenant: TenantScope, name: str) -> bytes | None:
        """See MemoryStore."""
        keys = scripts.tenant_keys(tenant)
        sealed_names, ((value,),) = await self._server.run_with_names(
            tenant, lambda sealed_names: [("HMGET", keys["markers"], name_bytes(sealed_names.name(name)))]
        )
        return None if value is None else records.open_marker(sealed_names, value)[1]

    async def list_relations(self, tenant: TenantScope, entity: str = "", *, limit: int = 1_000) -> list[Relation]:
        """See MemoryStore."""
        keys, name = scripts.tenant_keys(tenant), f"e:{fold_case(entity)}" if entity else ""

        def read_ends(sealed_names: SealedNames) -> list[Command]:
            return [("HMGET", keys["ends"], name_bytes(seal_label(sealed_names, name) if name else ""))]

        sealed_names, ((packed,),) = await self._server.run_with_names(tenant, read_ends)
        numbers = [int.from_bytes(packed[at : at + 4], "little") for at in range(0, len(packed or b""), 4)]
        relations = await self._server.fields(keys["relations"], numbers[: limit if limit >= 0 else None])
        return [open_relation(sealed_names, value) for value in relations if value is not None]

    async def list_entities(self, tenant: TenantScope, *, limit: int = 1_000) -> list[Entity]:
        """See MemoryStore."""
        keys = scripts.tenant_keys(tenant)
        sealed_names, (values,) = await self._server.run_with_names(tenant, lambda _: [("HVALS", keys["names"])])
        entities = [records.open_entity(sealed_names, value) for value in values]
        entities.sort(key=lambda entity: (fold_case(entity.name), entity.type))
        return entities[: limit if limit >= 0 else None]

    async def export(self, tenant: TenantScope) -> AsyncIterator[bytes]:
        """See MemoryStore. Concurrent writes may be missing."""
        keys = scripts.tenant_keys(tenant)
        sealed_names, (values,) = await self._server.run_with_names(tenant, lambda _: [("HVALS", keys["values"])])
        ids = [records.open_memory(sealed_names, value).id for value in values]
        for at in range(0, len(ids), _PAGE):
            for memory in await self.get(tenant, ids[at : at + _PAGE]):
                if memory is not None:
                    yield export_line(memory)
        for entity in await self.list_entities(tenant, limit=-1):
            yield export_line(entity)
        for relation in await self.list_relations(tenant, limit=-1):
            yield export_line(relation)
        sealed_names, (values,) = await self._server.run_with_names(tenant, lambda _: [("HVALS", keys["markers"])])
        for value in values:
            yield export_line(records.open_marker(sealed_names, value))

    async def seal(self, tenant: TenantScope) -> bool:
        """See MemoryStore."""
        sealed_names = self._server.tenant_names(tenant)
        if sealed_names.renew() is sealed_names:
            return False
        for _ in range(TRIES):
            sealed_names, (exists,) = await self._server.run_with_names(
                tenant, lambda _: [("EXISTS", scripts.tenant_keys(tenant)["counters"])]
            )
            new_names = sealed_names.renew()
            if new_names is sealed_names:
                return False
            if await self._reseal(tenant, sealed_names, new_names):
                self._server.check_names(tenant, sealed_names, new_names.sealed_secret)
                return bool(exists)
        raise store_is_changing()

    async def erase(self, tenant: TenantScope) -> int:
        """See MemoryStore. The server's own files lose the data when the server rewrites them."""
        return int(await self._server.script(scripts.ERASE, scripts.tenant_keys(tenant).values(), ()))

    async def close(self) -> None:
        """See MemoryStore."""
        await self._worker.close()
        await self._server.close()

    # -- resealing ---------------------------------------------------------------------------------------------------

    async def _reseal(self, tenant: TenantScope, old: SealedNames, new: SealedNames) -> bool:
        """Seals all of a tenant with another secret; returns False after a concurrent write."""
        keys = scripts.tenant_keys(tenant)
        names = ("values", "tokens", "vectors", "relations", "names", "markers")
        ((change_count,),) = await self._server.run_pipeline(("HMGET", keys["counters"], "change"))
        values, tokens, vectors, relations, entities, markers = await self._server.run_pipeline(
            *(("HGETALL", keys[name]) for name in names)
        )
        vectors_by_row = {int.from_bytes(row, "little"): each for _, row, each in split_vectors(old, vectors)}
        rows = sorted(values, key=int)
        change = MemoryChange(
            entities=tuple(records.open_entity(old, value) for value in entities.values()),
            relations=tuple(open_relation(old, relations[number]) for number in sorted(relations, key=int)),
            markers=tuple(records.open_marker(old, value) for value in markers.values()),
        )
        memories = [records.open_memory(old, values[row]) for row in rows]
        embeddings = [
            Embedding(vectors_by_row.get(int(row), b""), records.open_tokens(old, tokens.get(row) or b""))
            for row in rows
        ]
        packed = await self._worker.run(pack_change, new, change, memories, embeddings)
        args = (packed.change, old.sealed_secret, new.sealed_secret, change_count or b"0")
        return bool(await self._server.script(scripts.REWRITE, keys.values(), args) != -1)

    # -- searching ---------------------------------------------------------------------------------------------------

    async def _read_columns(
        self,
        tenant: TenantScope,
        memory_filter: MemoryFilter,
        more_commands: Callable[[SealedNames], Sequence[Command]] = lambda _: (),
    ) -> tuple[SealedNames, columns.SearchColumns, list[Any]]:
        """Reads the rows and the labels of a filter; also returns the replies to `more_commands`."""
        keys = scripts.tenant_keys(tenant)
        names = [name for group in columns.label_groups(memory_filter) for name in group]

        def commands(sealed_names: SealedNames) -> list[Command]:
            rows: list[Command] = [("HVALS", keys["rows"])]
            if names:
                rows.append(("HMGET", keys["labels"], *(name_bytes(seal_label(sealed_names, name)) for name in names)))
            return [*rows, *more_commands(sealed_names)]

        sealed_names, replies = await self._server.run_with_names(tenant, commands)
        rows_by_label = dict(zip(names, replies[1], strict=True)) if names else {}
        labels = {name: packed for name, packed in rows_by_label.items() if packed is not None}
        return sealed_names, columns.SearchColumns(replies[0], labels), replies[2 if names else 1 :]

    async def _choose_rows(
        self, tenant: TenantScope, stems: Sequence[Sequence[str]], vector: bytes, memory_filter: MemoryFilter, pool: int
    ) -> list[columns.ChosenRow]:
        keys = scripts.tenant_keys(tenant)
        names = list(dict.fromkeys(stem for each in stems for stem in each))

        def more_commands(sealed_names: SealedNames) -> list[Command]:
            commands: list[Command] = []
            if names:
                commands.append(("HMGET", keys["words"], *(name_bytes(sealed_names.name(stem)) for stem in names)))
            if vector:
                commands.append(("HGETALL", keys["vectors"]))
            return commands

        sealed_names, search_columns, replies = await self._read_columns(tenant, memory_filter, more_commands)
        postings = dict(zip(names, replies[0], strict=True)) if names else {}
        words = [[postings[stem] for stem in each] for each in stems]
        words = [each for each in words if None not in each]

        def choose() -> list[columns.ChosenRow]:
            vectors = comparable_vectors(sealed_names, replies[-1], vector) if vector else []
            return columns.choose_rows(
                columns.SearchColumns(search_columns.rows, search_columns.labels, words, vectors),
                vector,
                memory_filter,
                pool,
            )

        return await self._run_in_thread(choose)

    async def _read_candidates(self, tenant: TenantScope, chosen: Sequence[columns.ChosenRow]) -> list[SearchCandidate]:
        if not chosen:
            return []
        keys, rows = scripts.tenant_keys(tenant), [each.row for each in chosen]
        sealed_names = self._server.tenant_names(tenant)
        values, tokens = await self._server.run_pipeline(
            ("HMGET", keys["values"], *rows), ("HMGET", keys["tokens"], *rows)
        )
        return [
            SearchCandidate(
                records.open_memory(sealed_names, value),
                each.lexical,
                each.dense,
                each.lexical_rank,
                each.dense_rank,
                records.open_tokens(sealed_names, row_tokens or b""),
            )
            for each, value, row_tokens in zip(chosen, values, tokens, strict=True)
            if value is not None
        ]

    async def _run_in_thread(self, call: Callable[..., T], *args: Any) -> T:
        return await self._worker.run(lambda _: call(*args))
