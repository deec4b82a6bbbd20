"""Putting away what leaves the window, before the request that lacks it is sent; and finding it again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from msgspec import structs

from accordion.archive import holdings
from accordion.archive.artifacts import (
    Artifact,
    Row,
    decode,
    encode,
    listing,
    packer,
    record_keys,
    records,
    row_key,
    tenant_of,
    unpack,
)
from accordion.archive.holdings import HOLDERS, OVERHEAD, Entry, Kind
from accordion.archive.items import item_key, name_of
from accordion.archive.sealing import Unsealed
from accordion.core.cache import Cache, weigh_entry
from accordion.core.ports import Append, Clock, Key, Put, Sealer, Store
from accordion.core.values import dataclass

T = TypeVar("T")

_BATCH_ROWS, _BATCH_BYTES = 128, 2 * 2**20
"""One write is what a store manages well within its time-out."""
_LOOKS = 8
"""So many records of an artifact are looked at for one that can be read."""
_DAY, _SHARE = 86_400.0, 4
_GENERATIONS = 64
_ROW = "row/"
_NOWHERE = Key("", "nowhere")


@dataclass(frozen=True, slots=True)
class Leaving:
    """The fold that rows and artifacts leave with: its id, that of the fold it goes on from, the session and the time
    (seconds since the epoch) of the request; where it may be kept itself, and the bytes that it takes there."""

    id: str
    session: str
    at: float
    base: str = ""
    keys: tuple[Key, ...] = ()
    size: int = 0


class Archive:
    """What left the window, of all tenants. `retention` is how long it is kept, in seconds; `wrote` is told of each
    tenant (see `tenant_of`) for whom something was kept, and of its bytes. `capacity` bounds in bytes what it
    remembers of its writes. `minor` is the same store for writes that leave room for compactions while it is away; the
    store itself where it is left out."""

    def __init__(
        self,
        store: Store,
        retention: float = 30 * _DAY,
        *,
        sealer: Sealer | None = None,
        clock: Clock | None = None,
        wrote: Callable[[str, int], None] = lambda *_: None,
        capacity: int = 8 * 2**20,
        minor: Store | None = None,
    ) -> None:
        self.store = store
        self._minor = minor
        self.retention = retention
        self.sealer: Sealer = sealer or Unsealed()
        self.every = min(_DAY, retention / _SHARE)
        """Seconds after which what is in use is written anew, so that it is kept for longer."""
        self._clock = clock
        self._wrote = wrote
        self._known = Cache[str, float](capacity * 5 // 8, weigh_entry)
        self._exact = Cache[bytes, bytes](capacity // 4, weigh_entry)
        """By the key of a message: the variant of the bytes that a compaction keeps of it."""
        self._holders = Cache[str, float](capacity // 8, weigh_entry)
        self._forgotten = 0

    # -- writing ------------------------------------------------------------------

    def puts(
        self, space: bytes, rows: Iterable[Row], artifacts: Iterable[Artifact], fold: Leaving | None = None
    ) -> list[Put]:
        """The writes that keep these, and list them as belonging to `fold`. Slow where there is much to compress; safe
        to call in a thread."""
        pack, artifacts = packer(), tuple(artifacts)
        kept = dict[bytes, Put]()
        for row in rows:
            kept[row.key] = self.sealed(space, row_key(row.key), pack(row.wire))
            self._exact[row.key] = holdings.variant_of(row.wire)
        told = [
            self.sealed(space, key, value)
            for artifact in artifacts
            for value in (encode(artifact),)
            for key in record_keys(space, artifact)
        ]
        puts = [*kept.values(), *told]
        if fold is None:
            return puts
        sizes = {key: 0 if self.knows(put.key) else OVERHEAD + len(put.value) for key, put in kept.items()}
        size = sum(sizes.values()) + sum(OVERHEAD + len(put.value) for put in told) + fold.size
        entry = Entry("fold", fold.id, fold.session, fold.at, fold.at, size, fold.base)
        # What lists a thing is written before it, so that nothing is ever kept that cannot be found and erased.
        return self.entered(space, entry, holdings.contents_of(fold.session, sizes, artifacts, fold.keys)) + puts

    def sealed(self, space: bytes, key: Key, value: bytes, ttl: float | None = None) -> Put:
        """The write that keeps a value encrypted, where that is configured. Read it with `opened`."""
        return Put(key, self.sealer.seal(space, key.path, value), self.retention if ttl is None else ttl)

    def single(
        self, space: bytes, session: str, kind: Kind, key: Key, value: bytes, ttl: float | None = None
    ) -> list[Put]:
        """The writes that keep one value of a session, sealed, and list it so that it can be bounded, given out and
        erased. Read it with `opened`."""
        put, now = self.sealed(space, key, value, ttl), self._now()
        entry = Entry(
            kind, key.path, session, now, now, 3 * OVERHEAD + len(put.value), place=(key.collection, key.name)
        )
        return [*self.entered(space, entry, ttl=put.ttl), put]

    def entered(
        self, space: bytes, entry: Entry, contents: holdings.Contents | None = None, ttl: float | None = None
    ) -> list[Put]:
        """The writes that list an entry."""
        tenant = tenant_of(space)
        puts = holdings.put(tenant, entry, self.retention if ttl is None else ttl, contents)
        since = self._holders.get(tenant)
        if since is None or self._now() - since >= self.every:
            puts.insert(0, Put(Key(HOLDERS, tenant), b"", self.retention + self.every))
        return puts

    async def keep(self, puts: Sequence[Put]) -> None:
        """Writes. Raises StoreUnavailable; then it may be that some was kept, which does no harm: it is found by
        content."""
        await self.write(puts)

    async def write(self, writes: Sequence[Put | Append], *, minor: bool = False) -> None:
        """The same for writes of both kinds. `minor`: what can wait for the store, where there is little room."""
        store = self._minor if minor and self._minor is not None else self.store
        size = sum([len(write.value) for write in writes])
        at_once = 0 < len(writes) <= _BATCH_ROWS and size <= _BATCH_BYTES
        forgotten = self._forgotten
        for batch in (writes,) if at_once else _batches(writes):
            await store.write(batch)
        # What was written before something was erased, or the store emptied, may be gone again.
        if forgotten == self._forgotten:
            self._note(writes, size + OVERHEAD * len(writes))

    def _note(self, writes: Sequence[Put | Append], size: int) -> None:
        """Remembers what is in the store now."""
        now, tenant, known = self._now(), "", self._known
        for write in writes:
            key = write.key
            if not key.collection:
                if key.name.startswith(_ROW):
                    known[key.name] = now
            elif key.collection == HOLDERS:
                self._holders[key.name] = now
            elif key.collection.startswith("held/"):
                tenant = key.collection.removeprefix("held/")
        if tenant:
            self._wrote(tenant, size)

    def knows(self, key: Key) -> bool:
        """Whether this worker kept the row of this key of late, so that it need not be kept for another's sake."""
        since = self._known.get(key.name)
        return since is not None and self._now() - since < self.every

    def has(self, key: bytes, variant: bytes) -> bool:
        """Whether this worker kept the row of a message of late, in the very bytes of this variant."""
        return self._exact.get(key) == variant and self.knows(row_key(key))

    def forget(self) -> None:
        """Something was erased: what is in the store is not known any more."""
        self._forgotten += 1
        self._known.clear()
        self._exact.clear()
        self._holders.clear()

    # -- in use -------------------------------------------------------------------

    async def used(self, space: bytes, fold: str) -> None:
        """A fold is in use, and so are those that it goes on from: their entries are kept for longer, and stay when
        older ones must go. Raises StoreUnavailable."""
        tenant, now, writes = tenant_of(space), self._now(), list[Put]()
        for _ in range(_GENERATIONS):
            found = await holdings.fold_of(self.store, tenant, fold) if fold else None
            if found is None:
                break
            entry, contents = found
            writes += self.entered(space, structs.replace(entry, used=now), contents)
            fold = entry.base
        await self.keep(writes)

    async def read_back(self, space: bytes, artifact: Artifact) -> None:
        """A person read an artifact: it is kept for longer. Raises StoreUnavailable."""
        found = await self.rows(space, artifact.keys)
        leaving = [Row(key, wire) for key, wire in found.items()]
        if not leaving:
            return
        puts = self.puts(space, leaving, (artifact,))
        contents = holdings.contents_of(artifact.session, dict.fromkeys(found, 0), (artifact,), ())
        entry = Entry("read", holdings.read_id(artifact), artifact.session, self._now(), self._now(), 3 * OVERHEAD)
        await self.keep(self.entered(space, entry, contents) + puts)

    # -- reading ------------------------------------------------------------------

    async def check(self) -> None:
        """Raises StoreUnavailable where the store cannot be read. Then what was not found may be there: only what
        waits on this machine was looked through."""
        await self.store.get(_NOWHERE)

    def opened(self, space: bytes, key: Key, value: bytes | None) -> bytes | None:
        """A value of the store as it was before it was sealed; None where there is none, or none that can be opened."""
        return self.sealer.open(space, key.path, value) if value is not None else None

    async def rows(self, space: bytes, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """The original JSON of a tenant's messages by their keys; what is not there is left out. Of a message that only
        names what a reply said, that is given where it is known. Raises StoreUnavailable."""
        found = await self._unpacked(space, {key: row_key(key) for key in keys})
        named = {key: name for key, wire in found.items() if (name := name_of(wire))}
        if named:
            said = await self.items(space, list(named.values()))
            found |= {key: said[name] for key, name in named.items() if name in said}
        return found

    async def first_missing(self, keys: Sequence[bytes]) -> int:
        """The index of the first of these keys whose row the store does not have; their number where it has all. Rows
        that this worker wrote of late are not looked for. Raises StoreUnavailable."""
        unknown = [(at, row_key(key)) for at, key in enumerate(keys) if not self.knows(row_key(key))]
        for start in range(0, len(unknown), _BATCH_ROWS):
            page = unknown[start : start + _BATCH_ROWS]
            values = await self.store.get_many([key for _, key in page])
            for (at, _), value in zip(page, values, strict=True):
                if value is None:
                    return at
        return len(keys)

    async def items(self, space: bytes, names: Iterable[str]) -> dict[str, bytes]:
        """What a tenant's replies said under these ids of the provider's, as JSON; what is not there is left out.
        Raises StoreUnavailable."""
        return await self._unpacked(space, {name: item_key(space, name) for name in names})

    async def _unpacked(self, space: bytes, places: Mapping[T, Key]) -> dict[T, bytes]:
        values = await self.store.get_many(list(places.values())) if places else []
        unpacked = (
            (name, unpack(self.opened(space, place, value)))
            for (name, place), value in zip(places.items(), values, strict=True)
        )
        return {name: wire for name, wire in unpacked if wire is not None}

    async def records(self, space: bytes, artifact_id: str, *, limit: int = 1_000) -> list[Artifact]:
        """The records of an artifact: one for each session and scope of the tenant that it left. Raises
        StoreUnavailable. Whether who asks may see it is for the caller to say, by their scopes and sessions."""
        return await self._scanned(space, records(space, artifact_id), "", limit)

    async def artifacts(self, space: bytes, ids: Sequence[str]) -> list[Artifact | None]:
        """Artifacts of a tenant by id, None where there is none; of several records of one, any: the content is the
        same. Raises StoreUnavailable."""
        return [next(iter(await self.records(space, each, limit=_LOOKS)), None) for each in ids]

    async def listed(
        self, space: bytes, session: str, *, after: Artifact | None = None, limit: int = 1_000
    ) -> list[Artifact]:
        """The artifacts of a session by id, from behind `after` on; one that left several of its scopes stands there
        for each. Raises StoreUnavailable."""
        behind = record_keys(space, after)[1].name if after is not None else ""
        return await self._scanned(space, listing(space, session), behind, limit)

    async def _scanned(self, space: bytes, collection: str, after: str, limit: int) -> list[Artifact]:
        found = await self.store.scan(collection, after=after, limit=limit)
        opened = (self.opened(space, Key(collection, name), value) for name, value in found)
        return [artifact for value in opened if (artifact := decode(value)) is not None]

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
