"""The archive: stores messages and artifacts that leave the window, and loads them again.

Theory of operation. A compaction calls `build_puts` (compresses and seals, in a thread) and `write` (in batches)
before the request without those messages is sent. Each group of values is listed by an entry (`archive_entries`), which
is written first, so that retention, export and erasure find all that is stored. Rows are keyed by content: the archive
remembers the rows that it wrote lately and does not count them twice. Reading goes by message key (`load_rows`), by
artifact id (`load_records`) or by session (`list_artifacts`), always within one tenant.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec
from msgspec import structs

from accordion.archive import archive_entries
from accordion.archive.archive_entries import OVERHEAD, TENANTS_WITH_ARCHIVE, ArchiveEntry, Kind
from accordion.archive.artifacts import (
    ArchivedMessage,
    Artifact,
    decode,
    encode,
    item_key,
    item_name,
    make_packer,
    record_keys,
    records_collection,
    row_key,
    session_collection,
    unpack,
)
from accordion.archive.sealing import PlainSealer
from accordion.model.cache import BoundedCache, entry_size
from accordion.model.ports import Append, Clock, Key, KeyValueStore, Put, Sealer
from accordion.model.tenant import ArchiveNamespace, TenantScope

T = TypeVar("T")

_BATCH_ROWS, _BATCH_BYTES = 128, 2 * 2**20
"""The size of one write, which a store manages well within its time-out."""
_MAX_RECORDS = 8
"""Records of an artifact that are tried, until one can be read."""
_DAY, _RENEWAL_DIVISOR = 86_400.0, 4
_MAX_GENERATIONS = 64
_ROW = "row/"
_MISSING_KEY = Key("", "nowhere")


class CompactionWrite(msgspec.Struct, frozen=True):
    """The compaction that rows and artifacts belong to.

    `base` is the id of the compaction that it continues, `at` the time of the request in seconds since the epoch,
    `keys` the keys under which the compaction itself may be stored, with `size` bytes.
    """

    id: str
    session: str
    at: float
    base: str = ""
    keys: tuple[Key, ...] = ()
    size: int = 0


class Archive:
    """Stores and loads the archived messages and artifacts of all tenants.

    `retention` is in seconds. `on_write` is called with a tenant and the number of bytes that were written for it.
    `capacity` bounds the memory of past writes, in bytes. `write_minor` writes what leaves space for compactions while
    the store is unavailable; by default it is the store's `write`.
    """

    def __init__(
        self,
        store: KeyValueStore,
        retention: float = 30 * _DAY,
        *,
        sealer: Sealer | None = None,
        clock: Clock | None = None,
        on_write: Callable[[ArchiveNamespace, int], None] = lambda *_: None,
        capacity: int = 8 * 2**20,
        write_minor: Callable[[Sequence[Put | Append]], Awaitable[object]] | None = None,
    ) -> None:
        self.store = store
        self._write_minor = write_minor
        self.retention = retention
        self.sealer: Sealer = sealer or PlainSealer()
        self.renewal_seconds = min(_DAY, retention / _RENEWAL_DIVISOR)
        """Seconds after which values in use are written again, so that they expire later."""
        self._clock = clock
        self._on_write = on_write
        self._row_writes = BoundedCache[str, float](capacity * 5 // 8, entry_size)
        self._variants = BoundedCache[bytes, bytes](capacity // 4, entry_size)
        """By message key: the variant of the bytes that a compaction stored."""
        self._tenant_writes = BoundedCache[str, float](capacity // 8, entry_size)
        self._forget_count = 0

    # -- writing ------------------------------------------------------------------

    def build_puts(
        self,
        tenant: TenantScope,
        rows: Iterable[ArchivedMessage],
        artifacts: Iterable[Artifact],
        compaction: CompactionWrite | None = None,
    ) -> list[Put]:
        """Returns the writes that store rows and artifacts, and list them as belonging to a compaction.

        Slow if there is much to compress; safe to call in a thread.
        """
        pack, artifacts = make_packer(), tuple(artifacts)
        row_puts = dict[bytes, Put]()
        for row in rows:
            row_puts[row.key] = self.sealed_put(tenant, row_key(row.key), pack(row.wire))
            self._variants[row.key] = archive_entries.variant_key(row.wire)
        record_puts = [
            self.sealed_put(tenant, key, value)
            for artifact in artifacts
            for value in (encode(artifact),)
            for key in record_keys(tenant, artifact)
        ]
        puts = [*row_puts.values(), *record_puts]
        if compaction is None:
            return puts
        sizes = {key: 0 if self.has_row(put.key) else OVERHEAD + len(put.value) for key, put in row_puts.items()}
        size = sum(sizes.values()) + sum(OVERHEAD + len(put.value) for put in record_puts) + compaction.size
        entry = ArchiveEntry(
            "compaction", compaction.id, compaction.session, compaction.at, compaction.at, size, compaction.base
        )
        # The listing is written first, so that nothing is ever stored that cannot be found and erased.
        contents = archive_entries.contents_of(compaction.session, sizes, artifacts, compaction.keys)
        return self.entry_puts(tenant, entry, contents) + puts

    def sealed_put(self, tenant: TenantScope, key: Key, value: bytes, ttl: float | None = None) -> Put:
        """Returns the write that stores a value, encrypted if that is configured. `open_value` reads it."""
        return Put(key, self.sealer.seal(tenant, key.path, value), self.retention if ttl is None else ttl)

    def single_value_puts(
        self, tenant: TenantScope, session: str, kind: Kind, key: Key, value: bytes, ttl: float | None = None
    ) -> list[Put]:
        """Returns the writes that store one value of a session, sealed, and list it. `open_value` reads it."""
        put, now = self.sealed_put(tenant, key, value, ttl), self._now()
        entry = ArchiveEntry(
            kind, key.path, session, now, now, 3 * OVERHEAD + len(put.value), value_key=(key.collection, key.name)
        )
        return [*self.entry_puts(tenant, entry, ttl=put.ttl), put]

    def entry_puts(
        self,
        tenant: TenantScope,
        entry: ArchiveEntry,
        contents: archive_entries.EntryContents | None = None,
        ttl: float | None = None,
    ) -> list[Put]:
        """Returns the writes that store an entry."""
        namespace = tenant.archive_namespace
        puts = archive_entries.build_entry_puts(namespace, entry, self.retention if ttl is None else ttl, contents)
        since = self._tenant_writes.get(namespace)
        if since is None or self._now() - since >= self.renewal_seconds:
            puts.insert(0, Put(Key(TENANTS_WITH_ARCHIVE, namespace), b"", self.retention + self.renewal_seconds))
        return puts

    async def write(self, writes: Sequence[Put | Append], *, minor: bool = False) -> None:
        """Writes puts and appends; `minor` is for those that can wait for the store, if there is little space.

        Raises StoreUnavailable. Some writes may be stored then, which does no harm: their keys depend on the content.
        """
        write = self._write_minor if minor and self._write_minor is not None else self.store.write
        size = sum([len(write.value) for write in writes])
        is_single_batch = 0 < len(writes) <= _BATCH_ROWS and size <= _BATCH_BYTES
        forget_count = self._forget_count
        for batch in (writes,) if is_single_batch else _batches(writes):
            await write(batch)
        # After an erasure, or when the store was emptied, these values may be gone again.
        if forget_count == self._forget_count:
            self._remember_writes(writes, size + OVERHEAD * len(writes))

    def _remember_writes(self, writes: Sequence[Put | Append], size: int) -> None:
        """Remembers the values that the store has now."""
        now, namespace, row_writes = self._now(), ArchiveNamespace(""), self._row_writes
        for write in writes:
            key = write.key
            if not key.collection:
                if key.name.startswith(_ROW):
                    row_writes[key.name] = now
            elif key.collection == TENANTS_WITH_ARCHIVE:
                self._tenant_writes[key.name] = now
            else:
                namespace = archive_entries.namespace_of(key) or namespace
        if namespace:
            self._on_write(namespace, size)

    def has_row(self, key: Key) -> bool:
        """Whether this worker wrote the row of this key lately, so that it need not be written again."""
        since = self._row_writes.get(key.name)
        return since is not None and self._now() - since < self.renewal_seconds

    def has_variant(self, key: bytes, variant: bytes) -> bool:
        """Whether this worker wrote the row of a message lately, with exactly the bytes of this variant."""
        return self._variants.get(key) == variant and self.has_row(row_key(key))

    def forget(self) -> None:
        """Forgets all past writes, since something was erased."""
        self._forget_count += 1
        self._row_writes.clear()
        self._variants.clear()
        self._tenant_writes.clear()

    # -- in use -------------------------------------------------------------------

    async def note_use(self, tenant: TenantScope, compaction_id: str) -> None:
        """Marks a compaction and those that it continues as used now: their entries expire later. Raises
        StoreUnavailable."""
        namespace, now, writes = tenant.archive_namespace, self._now(), list[Put]()
        for _ in range(_MAX_GENERATIONS):
            if not compaction_id:
                break
            listing = await archive_entries.find_compaction_entry(self.store, namespace, compaction_id)
            if listing is None:
                break
            entry, contents = listing
            writes += self.entry_puts(tenant, structs.replace(entry, used=now), contents)
            compaction_id = entry.base
        await self.write(writes)

    async def note_read(self, tenant: TenantScope, artifact: Artifact) -> None:
        """Stores an artifact again that a person has read, so that it expires later. Raises StoreUnavailable."""
        rows = await self.load_rows(tenant, artifact.keys)
        if not rows:
            return
        messages = [ArchivedMessage(key, wire) for key, wire in rows.items()]
        puts = self.build_puts(tenant, messages, (artifact,))
        contents = archive_entries.contents_of(artifact.session, dict.fromkeys(rows, 0), (artifact,), ())
        entry = ArchiveEntry(
            "read", archive_entries.read_id(artifact), artifact.session, self._now(), self._now(), 3 * OVERHEAD
        )
        await self.write(self.entry_puts(tenant, entry, contents) + puts)

    # -- reading ------------------------------------------------------------------

    async def check(self) -> None:
        """Raises StoreUnavailable if the store cannot be read.

        Then a missing value proves nothing: only the writes that wait on this machine were searched.
        """
        await self.store.get(_MISSING_KEY)

    def open_value(self, tenant: TenantScope, key: Key, value: bytes | None) -> bytes | None:
        """Decrypts a value of the store; returns None if there is none, or none that can be opened."""
        return self.sealer.open(tenant, key.path, value) if value is not None else None

    async def load_rows(self, tenant: TenantScope, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """Returns the original JSON of a tenant's messages by key; those that are not stored are left out.

        For an item reference it is the item itself, if that is stored. Raises StoreUnavailable.
        """
        rows = await self._load_unpacked(tenant, {key: row_key(key) for key in keys})
        item_ids = {key: item_id for key, wire in rows.items() if (item_id := item_name(wire))}
        if item_ids:
            items = await self.load_items(tenant, list(item_ids.values()))
            rows |= {key: items[item_id] for key, item_id in item_ids.items() if item_id in items}
        return rows

    async def first_missing(self, keys: Sequence[bytes]) -> int:
        """Returns the index of the first key whose row the store does not have; the number of keys if it has all.

        Rows that this worker wrote lately are not looked up. Raises StoreUnavailable.
        """
        unknown = [(at, row_key(key)) for at, key in enumerate(keys) if not self.has_row(row_key(key))]
        for start in range(0, len(unknown), _BATCH_ROWS):
            page = unknown[start : start + _BATCH_ROWS]
            values = await self.store.get_many([key for _, key in page])
            for (at, _), value in zip(page, values, strict=True):
                if value is None:
                    return at
        return len(keys)

    async def load_items(self, tenant: TenantScope, names: Iterable[str]) -> dict[str, bytes]:
        """Returns the items of a tenant's responses by the provider's ids, as JSON; missing ones are left out. Raises
        StoreUnavailable."""
        return await self._load_unpacked(tenant, {name: item_key(tenant, name) for name in names})

    async def _load_unpacked(self, tenant: TenantScope, keys_by_name: Mapping[T, Key]) -> dict[T, bytes]:
        values = await self.store.get_many(list(keys_by_name.values())) if keys_by_name else []
        unpacked = (
            (name, unpack(self.open_value(tenant, key, value)))
            for (name, key), value in zip(keys_by_name.items(), values, strict=True)
        )
        return {name: wire for name, wire in unpacked if wire is not None}

    async def load_records(self, tenant: TenantScope, artifact_id: str, *, limit: int = 1_000) -> list[Artifact]:
        """Returns the records of an artifact: one for each session and scope of the tenant that it left.

        The caller decides, by the scopes and sessions, whether the reader may see it. Raises StoreUnavailable.
        """
        return await self._scan_artifacts(tenant, records_collection(tenant, artifact_id), "", limit)

    async def load_artifacts(self, tenant: TenantScope, ids: Sequence[str]) -> list[Artifact | None]:
        """Returns artifacts of a tenant by id, None for a missing one. Of several records any: the content is the same.

        Raises StoreUnavailable.
        """
        return [next(iter(await self.load_records(tenant, each, limit=_MAX_RECORDS)), None) for each in ids]

    async def list_artifacts(
        self, tenant: TenantScope, session: str, *, after: Artifact | None = None, limit: int = 1_000
    ) -> list[Artifact]:
        """Returns the artifacts of a session by id, those after `after`; one that left several scopes is there for
        each. Raises StoreUnavailable."""
        cursor = record_keys(tenant, after)[1].name if after is not None else ""
        return await self._scan_artifacts(tenant, session_collection(tenant, session), cursor, limit)

    async def _scan_artifacts(self, tenant: TenantScope, collection: str, after: str, limit: int) -> list[Artifact]:
        page = await self.store.scan(collection, after=after, limit=limit)
        values = (self.open_value(tenant, Key(collection, name), value) for name, value in page)
        return [artifact for value in values if (artifact := decode(value)) is not None]

    def _now(self) -> float:
        return self._clock.now() if self._clock is not None else 0.0


def _batches(writes: Sequence[Put | Append]) -> Iterator[list[Put | Append]]:
    batch: list[Put | Append] = []
    size = 0
    for write in writes:
        if batch and (len(batch) >= _BATCH_ROWS or size + len(write.value) > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(write)
        size += len(write.value)
    if batch:
        yield batch
