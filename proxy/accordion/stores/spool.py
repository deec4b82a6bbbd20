"""The spool: writes that wait on this machine while the store is unavailable.

Theory of operation. `SpooledStore` is between a `GuardedStore` and its users. While the store is available, every call
goes to the store. While it is unavailable, writes go to the `Spool`, a file that all workers of the machine share, and
reads look in the spool first; so workers find each other's compactions. When the store is available again, one worker
at a time publishes the waiting writes: it writes them to the store and removes them from the spool. Records written
shortly before the store became unavailable are read from local copies (see RecentRecords).

A write waits in one of two areas: the file or, if the file takes no writes, this machine's memory. That is a second
file on a disk in memory (see `find_memory_folder`), so that it survives a worker that is killed and other workers read
it, or, where there is no such disk, the memory of this process. While anything waits in memory, what follows waits
there too: a compaction in the file must not outlive its archive in memory.

A write has one of three kinds, which are published in this order: values, claims (puts with `if_absent`) and entries of
logs.

Each write is stored under a tag, the identity of the store that it is for, and is published to that store only. Before
the store has answered for the first time, the tag is made of its address and the tenant secret.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import logging
import os
import secrets
import stat
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from itertools import count
from pathlib import Path

import msgspec
from msgspec import structs

from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Append, ErasedWrites, ErasureLog, Key, KeyValueStore, Put
from accordion.stores.disk_reserve import MARGIN, SIZE, free_bytes
from accordion.stores.memory_store import InMemoryStore
from accordion.stores.recent_records import RecentRecords
from accordion.stores.sqlite import SqliteStore
from accordion.stores.sqlite_file import refuse_foreign

_log = logging.getLogger("accordion")

SPOOL = "$.store.spool"
"""The configuration key of the spool's file."""
_VALUES, _CLAIMS, _APPENDS = _KINDS = ("values", "claims", "appends")
"""The kinds of writes in the order of publishing: no reader may find a compaction whose archive is missing."""
_OLD_COLLECTIONS = {_VALUES: "spool/values", _CLAIMS: "spool/claims"}
"""The collections of an earlier version, whose writes have no tag."""
_TAGS, _STORES = "spool/tags", "spool/stores"
_PUBLISHING = Key("spool", "publishing")
_LEASE = 30.0
_MAX_PUBLISHING = _LEASE / 2
"""Seconds after which a worker stops publishing, within its lease. The next call publishes the rest."""
_TICK = 2 * 10**9
"""Nanoseconds within which two changes of a file may have the same modification time."""
_OVERHEAD = 100
_PAGE = 64
_BATCH_BYTES = 2 * 2**20
_MEMORY = 16 * 2**20
"""Bytes of writes of each worker that wait in memory if the file takes none."""
_MEMORY_DISK = Path("/dev/shm")  # noqa: S108 - anybody can write there, so the folder in it is checked
"""Where Linux has a disk in memory, in containers too."""

Settle = Callable[[Put, bytes], bytes | None]
"""Takes a write that waited and the store's different value; returns the value to write instead. With None, the store's
value stays if the write is a claim, and is replaced otherwise."""
Owns = Callable[[Sequence[Put]], Awaitable[bool]]
"""Whether writes without a tag are for this store. Raises StoreUnavailable."""


class _SpooledWrite(msgspec.Struct, array_like=True):
    collection: str
    name: str
    value: bytes
    ttl: float | None
    keep: int | None = None
    number: str = ""
    """Distinguishes a write from a later one of the same bytes, which must stay when this one is removed."""

    @property
    def key(self) -> Key:
        return Key(self.collection, self.name)


class _StoreRecord(msgspec.Struct, array_like=True):
    identity: bytes
    secret: bytes


_DECODER = msgspec.msgpack.Decoder(_SpooledWrite)
_KNOWN = msgspec.msgpack.Decoder(_StoreRecord)
_Local = SqliteStore | InMemoryStore
_Signature = tuple[int, int] | str
"""The time and size of a file's write-ahead log; a text if there is none or nothing is known."""


class _SpoolFull(StoreUnavailable):
    """The spool has no space left for a write."""


class _SpoolArea:
    """Waiting writes in one local store, a file at `path` or, if that is None, memory; at most `capacity` bytes."""

    def __init__(self, path: Path | None, capacity: int, timeout: float = 5.0) -> None:
        self.local: _Local = (
            InMemoryStore(max_bytes=4 * capacity + 2**20)
            if path is None
            else SqliteStore(path, timeout=timeout, is_atomic=True)
        )
        self.path, self.capacity = path, capacity
        self._wal_path = f"{path}-wal"
        self._sizes: dict[Key, int] | None = None
        self._empty_signature: _Signature = "none" if path is None else "unknown"
        self._is_doubtful = False

    @property
    def has_local_store(self) -> bool:
        """Whether its file exists already, or it needs none."""
        return self.path is None or self.path.exists()

    @property
    def is_empty(self) -> bool:
        """Whether no write waits. Costs one `stat` of the write-ahead log, which every write of any worker changes."""
        return self._empty_signature == self._signature()

    @property
    def is_settled(self) -> bool:
        """Whether it is empty for certain: the modification time shows any write since the last check."""
        return self.is_empty and not self._is_doubtful

    def _signature(self) -> _Signature:
        try:
            status = os.stat(self._wal_path) if self.path is not None else None
        except OSError:
            status = None
        return "none" if status is None else (status.st_mtime_ns, status.st_size)

    def forget(self) -> None:
        """Makes the next check count the waiting writes, those with another tag too."""
        self._empty_signature, self._sizes = "unknown", None

    async def check(self, tags: Sequence[str]) -> None:
        """Counts the waiting writes, for `is_empty`. Raises StoreUnavailable."""
        signature = self._signature()
        self._sizes = None
        if self.has_local_store and await self.size(tags):
            self._empty_signature = "unknown"
            return
        self._is_doubtful = isinstance(signature, tuple) and time.time_ns() - signature[0] < _TICK
        self._empty_signature = signature

    async def has_writes(self, tags: Sequence[str]) -> bool:
        """Whether writes wait, as far as is known without counting them again and again."""
        if not self.is_empty and not self._sizes:
            await self.check(tags)
        return not self.is_empty

    @property
    def last_size(self) -> int:
        """The bytes of the waiting writes when they were last counted."""
        return sum((self._sizes or {}).values())

    async def size(self, tags: Sequence[str]) -> int:
        """Returns the bytes of the waiting writes; counts them if `check` or `forget` was called since."""
        if self._sizes is None:
            self._sizes = {key: len(value) + _OVERHEAD async for key, value in self.rows(tags)}
        return self.last_size

    async def add(self, writes: Sequence[Put], tags: Sequence[str], capacity: int) -> dict[Key, bytes]:
        """Adds all writes or none; returns the existing values of claims, by local key. Raises StoreUnavailable."""
        await self.size(tags)
        sizes = {**(self._sizes or {}), **{put.key: len(put.value) + _OVERHEAD for put in writes}}
        if sum(sizes.values()) > capacity:
            raise _SpoolFull("the store is away, and the spool is full")
        existing = await self.local.write(writes)
        self._sizes, self._empty_signature = sizes, "unknown"
        return existing

    async def rows(self, tags: Sequence[str], kinds: Sequence[str] = _KINDS) -> AsyncIterator[tuple[Key, bytes]]:
        """Yields the waiting writes as local keys and encoded values."""
        for tag in tags:
            for kind in kinds:
                after, collection = "", _collection(tag, kind)
                while page := await self.local.scan(collection, after=after, limit=_PAGE):
                    after = page[-1][0]
                    for name, value in page:
                        yield Key(collection, name), value

    async def remove(self, rows: Mapping[Key, bytes]) -> None:
        """Removes published writes, except if a newer write replaced one."""
        await self.local.delete_unchanged(rows)
        for key in rows:
            if self._sizes is not None:
                self._sizes.pop(key, None)


class Spool:
    """The writes of this machine that wait for the store at an address; `address_hash` is a hash of the address.

    They are in a file at `path`, at most `capacity` bytes. They are in memory if `path` is None or, as a last
    resort, if the file takes no writes: then in a file in `memory_folder`, a folder on a disk in memory, which is lost
    with the machine, or, if that is None, in the process, with which they are lost. `recent` has the copies of
    recent records that are read while the store is unavailable, or is None. `is_merged` says whether a value of a
    key is settled with the store's value, which another machine may have written meanwhile, before it is published.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        address_hash: str,
        memory_folder: Path | None = None,
        capacity: int = 64 * 2**20,
        timeout: float = 5.0,
        recent: RecentRecords | None = None,
        is_merged: Callable[[Key], bool] = lambda _: False,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path, self.address_hash, self.recent = path, address_hash, recent
        self._is_merged = is_merged
        self._monotonic = monotonic
        self._file = _SpoolArea(path, capacity, timeout) if path is not None else None
        self._memory = (
            _SpoolArea(None, capacity)
            if path is None
            else _SpoolArea(memory_folder and memory_folder / memory_name(path), min(capacity, _MEMORY), timeout)
        )
        self.capacity = capacity
        self.elsewhere: dict[str, int] = {}
        """The number of writes for other stores or for an unknown store, by file."""
        self.refused: frozenset[Key] = frozenset()
        """Local keys of writes that the store refused although it took others."""
        self._tags: list[str] = []
        self._recorded_tags = set[str]()
        self._numbers = count()
        self._has_warned = False

    # -- identity -----------------------------------------------------------------

    async def recall(self, secret: bytes) -> tuple[bytes, bytes]:
        """Returns the last known identity and tenant secret of the store at this address. Never fails.

        If that store has never answered, the identity is empty and the secret is the first worker's `secret`.
        """
        record = _StoreRecord(b"", secret)
        if self._file is not None:
            with suppress(StoreUnavailable, msgspec.MsgspecError):
                value = msgspec.msgpack.encode(record)
                record = _KNOWN.decode(await self._file.local.put_if_absent(Key(_STORES, self.address_hash), value))
        self._write_identity(record.identity, record.secret)
        return record.identity, record.secret

    async def identify(self, identity: bytes, secret: bytes, *, is_persistent: bool) -> None:
        """Sets the identity of the store that has answered; new writes are for that store. Never fails.

        With `is_persistent` it is also recorded in the file, for workers that start later.
        """
        self._write_identity(identity, secret)
        if is_persistent and self._file is not None:
            with suppress(StoreUnavailable):
                value = msgspec.msgpack.encode(_StoreRecord(identity, secret))
                if await self._file.local.get(Key(_STORES, self.address_hash)) != value:
                    await self._file.local.put(Key(_STORES, self.address_hash), value)

    def _write_identity(self, identity: bytes, secret: bytes) -> None:
        # Before the store has answered, writes are for any store at this address with this tenant secret.
        address_tag = "new-" + hashlib.sha256(self.address_hash.encode() + b"\n" + secret).hexdigest()[:24]
        self._tags = [identity.hex(), address_tag] if identity else [address_tag]
        for area in self._areas():
            area.forget()

    @property
    def tags(self) -> list[str]:
        """The tags of this store's writes; new writes get the first one."""
        if not self._tags:
            self._write_identity(b"", b"")
        return self._tags

    # -- writing and reading ------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """Whether no write waits. Costs one `stat` of each file, which every write of any worker changes."""
        return self._memory.is_empty and (self._file is None or self._file.is_empty)

    @property
    def is_settled(self) -> bool:
        """Whether the spool is empty for certain."""
        return self._memory.is_settled and (self._file is None or self._file.is_settled)

    async def has_writes_in_memory(self) -> bool:
        """Whether writes wait in memory, which are lost with the process or with the machine. Never fails."""
        with suppress(StoreUnavailable):
            return await self._memory.has_writes(self.tags)
        return False

    @property
    def bytes_in_memory(self) -> int:
        """The bytes of the writes that waited in memory when they were last counted."""
        return self._memory.last_size

    async def hold(self, batch: Sequence[Put | Append], *, share: float = 1.0) -> dict[Key, bytes]:
        """Adds all writes or none, up to `share` of the capacity; returns the existing values of claims.

        Raises StoreUnavailable if there is no space.
        """
        claims = [write.key for write in batch if isinstance(write, Put) and write.if_absent]
        existing = await self.find(claims) if claims else {}
        writes = [self._encode_write(write) for write in batch if write.key not in existing or not _is_claim(write)]
        if writes:
            await self._record_tag()
            existing |= await self._add(writes, share)
        return existing

    def _encode_write(self, write: Put | Append) -> Put:
        # The number orders entries of logs by time, over all workers.
        number = f"{time.time_ns():020}.{os.getpid()}.{next(self._numbers)}"
        key, keep = write.key, write.keep if isinstance(write, Append) else None
        if isinstance(write, Append):
            kind, name = _APPENDS, number
        else:
            kind, name = _CLAIMS if write.if_absent else _VALUES, f"{key.collection}\n{key.name}"
        encoded = msgspec.msgpack.encode(_SpooledWrite(key.collection, key.name, write.value, write.ttl, keep, number))
        return Put(Key(_collection(self.tags[0], kind), name), encoded, if_absent=kind == _CLAIMS)

    async def _add(self, writes: Sequence[Put], share: float) -> dict[Key, bytes]:
        area = self._file if self._file is not None and await self._move_to_file() else self._memory
        try:
            existing = await area.add(writes, self.tags, int(area.capacity * share))
        except _SpoolFull:
            raise
        except StoreUnavailable:
            if area is self._memory:
                raise
            area, existing = self._memory, await self._memory.add(writes, self.tags, int(self._memory.capacity * share))
        if area is self._memory and self._file is not None:
            self._warn()
        return {write.key: write.value for write in map(_DECODER.decode, existing.values())}

    def _has_room(self) -> bool:
        """Whether the disk has more free space than a store on the same disk reserves for erasures."""
        if self.path is None:
            return False
        try:
            return free_bytes(self.path.parent) >= SIZE + MARGIN
        except OSError:
            # The folder may not exist yet; the write fails if it cannot be created.
            return True

    def _warn(self) -> None:
        if not self._has_warned:
            _log.warning(
                "neither the store nor the spool takes writes: removed content is kept in memory only, until one of "
                "them takes it again; it is lost if this %s",
                "process ends" if self._memory.path is None else "machine restarts",
            )
        self._has_warned = True

    async def _record_tag(self) -> None:
        """Lists the tag in the file, so that workers with another tag can count its writes."""
        tag = self.tags[0]
        if tag not in self._recorded_tags and self._file is not None:
            with suppress(StoreUnavailable):
                await self._file.local.put(Key(_TAGS, tag), b"")
                self._recorded_tags.add(tag)

    async def find(self, keys: Sequence[Key]) -> dict[Key, bytes]:
        """Returns the waiting values of these keys; nothing if the spool cannot be read."""
        local_keys = [
            (key, Key(_collection(tag, kind), f"{key.collection}\n{key.name}"))
            for tag in reversed(self.tags)
            for kind in (_CLAIMS, _VALUES)
            for key in keys
        ]
        values_by_key: dict[Key, bytes] = {}
        for area in self._areas():
            with suppress(StoreUnavailable):
                area_values = await area.local.get_many([local_key for _, local_key in local_keys])
                values_by_key |= {
                    key: _DECODER.decode(value).value
                    for (key, _), value in zip(local_keys, area_values, strict=True)
                    if value is not None
                }
        return values_by_key

    async def scan(self, collection: str, prefix: str, after: str, limit: int) -> dict[str, bytes]:
        """Returns waiting names and values of a collection; nothing if the spool cannot be read."""
        values_by_name: dict[str, bytes] = {}
        collection_prefix = f"{collection}\n"
        for area in self._areas():
            for tag in reversed(self.tags):
                for kind in (_CLAIMS, _VALUES):
                    with suppress(StoreUnavailable):
                        after_name = collection_prefix + after if after else ""
                        rows = await area.local.scan(
                            _collection(tag, kind), prefix=collection_prefix + prefix, after=after_name, limit=limit
                        )
                        values_by_name |= {
                            name.removeprefix(collection_prefix): _DECODER.decode(value).value for name, value in rows
                        }
        return values_by_name

    # -- copies -------------------------------------------------------------------

    async def find_recent(self, keys: Sequence[Key]) -> dict[Key, bytes]:
        """Returns the existing copies of recent records under these keys. Never fails."""
        return await self.recent.find(self.tags[0], keys) if self.recent is not None and keys else {}

    def add_recent(self, puts: Iterable[Put]) -> None:
        """Copies records in the background. Never fails."""
        if self.recent is not None:
            self.recent.add(self.tags[0], puts)

    async def clear_recent(self) -> None:
        """Removes all copies, as after an erasure, since a copy does not name its session. Never fails."""
        if self.recent is not None:
            await self.recent.clear(self.tags[0])

    async def delete(self, keys: Sequence[Key]) -> int:
        """Removes the waiting writes of these keys; returns their number. Raises StoreUnavailable."""
        count = 0
        names = [f"{key.collection}\n{key.name}" for key in keys]
        for area in self._areas():
            for tag in self.tags:
                local_keys = [Key(_collection(tag, kind), name) for kind in (_VALUES, _CLAIMS) for name in names]
                log_rows = [(local_key, value) async for local_key, value in area.rows([tag], (_APPENDS,))]
                local_keys += [local_key for local_key, value in log_rows if _DECODER.decode(value).key in keys]
                count += await area.local.delete(local_keys)
            area.forget()
        return count

    def _areas(self) -> list[_SpoolArea]:
        """Returns the areas that may have writes; the one with the newest writes is last."""
        return [area for area in (self._file, self._memory) if area is not None and area.has_local_store]

    # -- publishing ---------------------------------------------------------------

    async def publish(self, main: KeyValueStore, settle: Settle, erasures: ErasureLog | None) -> None:
        """Writes everything that waits for this store to `main` and removes it from the spool.

        One worker at a time does this. Erased writes are removed first, also if the store takes no writes. Raises
        StoreUnavailable; the rest then still waits, and some writes may be made a second time, which does no harm.
        """
        # Taking the lock changes the file, so that other workers check it again: take it only if writes wait.
        await self._check()
        if self.is_empty:
            return
        await self.drop_erased(main, erasures)
        for area in self._areas():
            if area.is_empty:
                continue
            async with area.local.lock(_PUBLISHING, lease=_LEASE) as is_acquired:
                if is_acquired:
                    await self._publish(area, main, settle, erasures, self._monotonic() + _MAX_PUBLISHING)
        await self._check()

    async def drop_erased(self, main: KeyValueStore, erasures: ErasureLog | None) -> list[Put | Append]:
        """Removes erased writes from the spool and from `main`; returns those that waited. Raises StoreUnavailable."""
        # All areas together, since the list that names a claim may be in the other one. Memory comes first, since it
        # can always be changed.
        rows_by_area = [(area, [row async for row in area.rows(self.tags)]) for area in reversed(self._areas())]
        writes = [_decode_write(*row) for _, rows in rows_by_area for row in rows]
        if erasures is None or not writes:
            return []
        erased = await erasures.find_erased(writes)
        await _delete(main, erased)
        for area, rows in rows_by_area:
            await area.remove({key: value for key, value in rows if _decode_write(key, value) in erased})
        await self._check()
        return [write for write in writes if write in erased]

    async def _check(self) -> None:
        """Counts the waiting writes of all areas, for `is_empty`. Raises StoreUnavailable."""
        for area in (self._memory, self._file):
            if area is not None:
                await area.check(self.tags)
        self._has_warned = self._has_warned and not self._memory.is_empty

    async def _publish(
        self, area: _SpoolArea, main: KeyValueStore, settle: Settle, erasures: ErasureLog | None, deadline: float
    ) -> None:
        """Publishes the writes of one area, until the time `deadline`.

        Writes that list other keys are written first and removed last. So an erasure by any worker finds all parts of a
        compaction, also if publishing ends early.
        """
        published, lists = dict[Key, bytes](), erasures.lists if erasures is not None else _lists_nothing
        listing_rows = dict[Key, bytes]()
        for kind in _KINDS:
            rows = [row async for row in area.rows(self.tags, (kind,))]
            rows.sort(key=lambda row: not lists(_decode_write(*row).key))
            for page in _pages(rows):
                if self._monotonic() > deadline:
                    return
                refused = await self._write_page(main, page, settle)
                page_rows = {key: value for key, value in page if key not in refused}
                listing_rows |= {key: value for key, value in page_rows.items() if lists(_decode_write(key, value).key)}
                await area.remove({key: value for key, value in page_rows.items() if key not in listing_rows})
                published |= page_rows
        if erasures is not None and published:
            # An erasure may have searched the store before these writes reached it.
            await _delete(main, await erasures.find_erased([_decode_write(*row) for row in published.items()]))
        await area.remove(listing_rows)

    async def _write_page(
        self, main: KeyValueStore, page: Sequence[tuple[Key, bytes]], settle: Settle
    ) -> frozenset[Key]:
        """Writes a page to the store; returns the local keys of refused writes. Raises StoreUnavailable.

        A refused write is one that the store does not take although it is available. It stays in the spool and is tried
        again after a restart.
        """
        writes = [(local, _decode_write(local, value)) for local, value in page if local not in self.refused]
        try:
            await self._write(main, [write for _, write in writes], settle)
        except StoreUnavailable:
            if not main.is_available:
                raise
            for local, write in writes:
                await self._write_alone(main, local, write, settle)
        return self.refused.intersection(local for local, _ in page)

    async def _write(self, main: KeyValueStore, batch: Sequence[Put | Append], settle: Settle) -> None:
        """Writes a page of one kind; settles values that are merged, and claims that lost."""
        if not batch:
            return
        batch = await self._merge(main, batch, settle)
        writes = {write.key: write for write in batch}
        for key, winner in (await main.write(batch)).items():
            claim = writes[key]
            if isinstance(claim, Put) and winner != claim.value and (replacement := settle(claim, winner)) is not None:
                await main.put(key, replacement, ttl=claim.ttl)

    async def _merge(
        self, main: KeyValueStore, batch: Sequence[Put | Append], settle: Settle
    ) -> Sequence[Put | Append]:
        """Returns the writes; those of keys that are merged have the store's values merged into theirs."""
        puts = [
            write for write in batch if isinstance(write, Put) and not _is_claim(write) and self._is_merged(write.key)
        ]
        if not puts:
            return batch
        merged = dict[Key, Put]()
        for put, stored in zip(puts, await main.get_many([put.key for put in puts]), strict=True):
            value = settle(put, stored) if stored not in (None, put.value) else None
            merged[put.key] = put if value is None else structs.replace(put, value=value)
        return [merged.get(write.key, write) for write in batch]

    async def _write_alone(self, main: KeyValueStore, local: Key, write: Put | Append, settle: Settle) -> None:
        try:
            await self._write(main, [write], settle)
        except StoreUnavailable as error:
            if not main.is_available:
                raise
            self.refused |= {local}
            _log.error(
                "the store refused a write of %d bytes, which stays in the spool until the next start: %s",
                len(write.value), error.message,
            )  # fmt: skip

    async def save(self) -> None:
        """Moves writes from memory to the file if the file takes them. Never fails."""
        if not self._memory.is_empty:
            await self._move_to_file()

    async def _move_to_file(self) -> bool:
        """Moves writes from memory to the file if it has room; returns whether it has, and none waits in memory.

        Never fails.
        """
        if self._file is None or not self._has_room():
            return False
        if not await self.has_writes_in_memory():
            return True
        with suppress(StoreUnavailable):
            # A worker that publishes these writes removes them, and must not find them in the file again.
            async with self._memory.local.lock(_PUBLISHING, lease=_LEASE) as is_acquired:
                if is_acquired:
                    rows = {key: value async for key, value in self._memory.rows(self.tags)}
                    claims = [Put(key, value, if_absent=_CLAIMS in key.collection) for key, value in rows.items()]
                    await self._file.check(self.tags)
                    await self._file.add(claims, self.tags, self._file.capacity)
                    await self._memory.remove(rows)
            await self._memory.check(self.tags)
        return self._memory.is_empty

    # -- writes without a tag, or for other stores --------------------------------

    async def adopt(
        self, main: KeyValueStore, owns: Owns, settle: Settle, erasures: ErasureLog | None, old_path: Path | None
    ) -> None:
        """Publishes writes of an earlier version, which have no tag, if `owns` says that they are for this store.

        They are in this file or in `old_path`, the file that all stores shared. Writes that are not for this store are
        left there and counted, as are writes with the tags of other stores. Raises StoreUnavailable.
        """
        self.elsewhere.clear()
        if self._file is not None and self.path is not None and _is_file(self.path):
            await self._adopt_from(self._file.local, self.path, main, owns, settle, erasures)
            await self._count_foreign(self._file.local, self.path)
        if old_path is not None and old_path != self.path and _is_file(old_path):
            local = SqliteStore(old_path, timeout=5.0)
            try:
                await self._adopt_from(local, old_path, main, owns, settle, erasures)
            finally:
                await local.close()
        for path, writes in self.elsewhere.items():
            _log.warning("%d writes that wait in %s are for another store, and are left there", writes, path)

    async def _adopt_from(
        self, local: _Local, path: Path, main: KeyValueStore, owns: Owns, settle: Settle, erasures: ErasureLog | None
    ) -> None:
        rows: dict[str, list[tuple[Key, bytes]]] = {}
        for kind, collection in _OLD_COLLECTIONS.items():
            after = ""
            while page := await local.scan(collection, after=after, limit=_PAGE):
                after = page[-1][0]
                rows.setdefault(kind, []).extend((Key(collection, name), value) for name, value in page)
        if not rows:
            return
        puts = [_decode_old_write(kind, value) for kind, kind_rows in rows.items() for _, value in kind_rows]
        if not await owns(puts):
            self.elsewhere[str(path)] = self.elsewhere.get(str(path), 0) + len(puts)
            return
        erased = await erasures.find_erased(puts) if erasures is not None else ErasedWrites()
        for kind, kind_rows in rows.items():
            for each in _pages(kind_rows):
                await self._write(
                    main, [put for _, value in each if (put := _decode_old_write(kind, value)) not in erased], settle
                )
                await local.delete_unchanged(dict(each))

    async def _count_foreign(self, local: _Local, path: Path) -> None:
        for tag, _ in await local.scan(_TAGS):
            if tag in self.tags:
                continue
            count = 0
            for kind in _KINDS:
                after = ""
                while page := await local.scan(_collection(tag, kind), after=after, limit=_PAGE):
                    after, count = page[-1][0], count + len(page)
            if count:
                self.elsewhere[str(path)] = self.elsewhere.get(str(path), 0) + count

    def describe(self) -> dict[str, object]:
        """Returns problems for the operator: bytes only in memory, writes for other stores, refused writes."""
        problems: dict[str, object] = {}
        if self.bytes_in_memory and self._file is not None:
            problems["in_memory_only_bytes"] = self.bytes_in_memory
        if self.elsewhere:
            problems["kept_for_other_stores"] = [
                {"file": each, "writes": number} for each, number in self.elsewhere.items()
            ]
        if self.refused:
            problems["refused_by_the_store"] = len(self.refused)
        return problems

    async def close(self) -> None:
        """Closes the files. Writes in the memory of this process are lost, unless the file takes them now."""
        await self.save()
        if self.recent is not None:
            await self.recent.close()
        if self._file is not None:
            await self._file.local.close()
        await self._memory.local.close()


class SpooledStore:
    """A KeyValueStore that goes on working while `main` is unavailable: it writes to `spool` and reads there first.

    Writes raise StoreUnavailable only if the spool takes none either. While `main` is unavailable, reads raise it
    if the spool has none of the keys; if it has some of several keys, the others are returned as missing. Logs
    cannot be read, nothing can be deleted, and no lock can be taken. `is_available` says whether `main` is available.
    `is_copied` says which keys are copied to the spool's `recent`.
    """

    def __init__(
        self,
        main: KeyValueStore,
        spool: Spool,
        *,
        settle: Settle = lambda *_: None,
        erasures: ErasureLog | None = None,
        is_copied: Callable[[Key], bool] = lambda _: False,
    ) -> None:
        self._main = main
        self.spool = spool
        self._is_copied = is_copied
        self.settle, self.erasures = settle, erasures
        self.confirm: Callable[[], Awaitable[object]] | None = None
        """Finds out which store answers and calls `Spool.identify` with it. Raises StoreUnavailable."""
        self._capacity_share = 1.0
        self._has_erasures = False
        self._publish_lock = asyncio.Lock()

    def with_half_capacity(self) -> SpooledStore:
        """Returns the same store for writes that may use only half of the spool, to leave space for compactions."""
        other = copy.copy(self)
        other._capacity_share = 0.5
        return other

    @property
    def is_available(self) -> bool:
        """See KeyValueStore."""
        return self._main.is_available

    async def put(self, key: Key, value: bytes, *, ttl: float | None = None) -> None:
        """See KeyValueStore."""
        await self.write((Put(key, value, ttl),))

    async def put_if_absent(self, key: Key, value: bytes, *, ttl: float | None = None) -> bytes:
        """See KeyValueStore. While the store is unavailable, the first claim in the spool wins."""
        return (await self.write((Put(key, value, ttl, if_absent=True),))).get(key, value)

    async def get(self, key: Key) -> bytes | None:
        """See KeyValueStore."""
        return (await self.get_many((key,)))[0]

    async def get_many(self, keys: Sequence[Key]) -> list[bytes | None]:
        """See KeyValueStore."""
        if self.spool.is_empty:
            with suppress(StoreUnavailable):
                return await self._main.get_many(keys)
        values_by_key: dict[Key, bytes | None] = {**await self.spool.find(keys)}
        missing = [key for key in keys if key not in values_by_key]
        if missing:
            try:
                values_by_key |= dict(zip(missing, await self._main.get_many(missing), strict=True))
            except StoreUnavailable:
                values_by_key |= await self.spool.find_recent(missing)
                if not values_by_key:
                    raise
        return [values_by_key.get(key) for key in keys]

    async def scan(
        self, collection: str, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> list[tuple[str, bytes]]:
        """See KeyValueStore."""
        if self.spool.is_empty:
            with suppress(StoreUnavailable):
                return await self._main.scan(collection, prefix=prefix, after=after, limit=limit)
        waiting = await self.spool.scan(collection, prefix, after, limit)
        try:
            stored = dict(await self._main.scan(collection, prefix=prefix, after=after, limit=limit))
        except StoreUnavailable:
            if not waiting:
                raise
            stored = {}
        return sorted({**stored, **waiting}.items())[:limit]

    async def write(self, batch: Sequence[Put | Append]) -> dict[Key, bytes]:
        """See KeyValueStore."""
        existing = await self._write_main(batch)
        if self.spool.recent is not None and self._capacity_share == 1.0:
            # Waiting writes are copied too: once published, they are only in the store.
            puts = [write for write in batch if isinstance(write, Put) and self._is_copied(write.key)]
            self.spool.add_recent([Put(put.key, existing.get(put.key, put.value), put.ttl) for put in puts])
        return existing

    async def _write_main(self, batch: Sequence[Put | Append]) -> dict[Key, bytes]:
        if self.spool.is_empty:
            with suppress(StoreUnavailable):
                return await self._main.write(batch)
            return await self._write_spool(batch)
        # Until everything is published, the waiting value of a key is newer than the stored one.
        waiting = await self.spool.find([write.key for write in batch if isinstance(write, Put)])
        existing = {write.key: waiting[write.key] for write in batch if _is_claim(write) and write.key in waiting}
        spooled = [write for write in batch if write.key in waiting and write.key not in existing]
        direct = [write for write in batch if write.key not in waiting]
        if await self.spool.has_writes_in_memory():
            # A claim must not outlive values that are lost with the memory, such as the archive of a compaction.
            claims = [write for write in direct if _is_claim(write)]
            direct = [write for write in direct if not _is_claim(write)]
            stored = await self._find_in_main(claims)
            existing |= stored
            spooled += [claim for claim in claims if claim.key not in stored]
        try:
            existing |= await self._main.write(direct) if direct else {}
        except StoreUnavailable:
            spooled += direct
        if spooled:
            existing |= await self._write_spool(spooled)
        return existing

    async def _find_in_main(self, claims: Sequence[Put | Append]) -> dict[Key, bytes]:
        """Returns the values that the store has under the keys of claims; none while it is unavailable."""
        keys = [claim.key for claim in claims]
        with suppress(StoreUnavailable):
            values = await self._main.get_many(keys) if keys else []
            return {key: value for key, value in zip(keys, values, strict=True) if value is not None}
        return {}

    async def _write_spool(self, batch: Sequence[Put | Append]) -> dict[Key, bytes]:
        """Adds writes to the spool. A claim made before the store became unavailable wins."""
        existing = await self.spool.find_recent([write.key for write in batch if _is_claim(write)])
        return existing | await self.spool.hold(
            [write for write in batch if write.key not in existing], share=self._capacity_share
        )

    async def delete(self, keys: Sequence[Key]) -> int:
        """See KeyValueStore."""
        count = await self._main.delete(keys)
        if self.spool.recent is not None:
            await self.spool.recent.delete(self.spool.tags[0], keys)
        return count if self.spool.is_empty else max(count, await self.spool.delete(keys))

    async def append(
        self, key: Key, values: Sequence[bytes], *, keep: int | None = None, ttl: float | None = None
    ) -> int:
        """See KeyValueStore."""
        return await self._main.append(key, values, keep=keep, ttl=ttl)

    async def read(self, key: Key, start: int = 0, limit: int | None = None) -> list[tuple[int, bytes]]:
        """See KeyValueStore."""
        return await self._main.read(key, start, limit)

    def lock(self, key: Key, *, lease: float) -> AbstractAsyncContextManager[bool]:
        """See KeyValueStore."""
        return self._main.lock(key, lease=lease)

    async def ping(self) -> None:
        """See KeyValueStore."""
        await self._main.ping()

    async def publish(self) -> None:
        """Publishes the waiting writes; if there are many, the next call publishes the rest.

        Raises StoreUnavailable; then they still wait.
        """
        if self.spool.is_settled:
            return
        async with self._publish_lock:
            # The store that answers now may be another one at the same address.
            if self.confirm is not None:
                await self.confirm()
            await self.spool.publish(self._main, self.settle, self.erasures)

    async def drop_erased(self) -> Sequence[Put | Append]:
        """Removes erased writes that wait, and returns them. Works on a full disk. Raises StoreUnavailable."""
        self._has_erasures = False
        if self.spool.is_empty:
            return ()
        async with self._publish_lock:
            if self.confirm is not None:
                await self.confirm()
            return await self.spool.drop_erased(self._main, self.erasures)

    def drop_soon(self) -> None:
        """Makes the next `poll` remove erased writes that wait, also while the disk is full."""
        self._has_erasures = True

    async def poll(self) -> None:
        """Publishes the waiting writes; while the store is unavailable, moves writes from memory to the file.

        To be called about every second. Never fails.
        """
        with suppress(StoreUnavailable):
            if self._main.is_available:
                await self.publish()
                return
            await self.spool.save()
            if self._has_erasures:
                await self.drop_erased()

    async def close(self) -> None:
        """Closes the spool, but not the store, which its owner closes."""
        await self.spool.close()


def open_spool(
    path: Path | None,
    *,
    address_hash: str = "",
    memory_folder: Path | None = None,
    capacity: int = 64 * 2**20,
    timeout: float = 5.0,
    has_copies: bool = False,
    is_merged: Callable[[Key], bool] = lambda _: False,
) -> Spool:
    """Creates a spool in a file, or in memory if `path` is None.

    With `has_copies` recent records are copied to a file next to it; each worker uses at most an eighth of `capacity`
    for them. Raises ConfigError if a file belongs to another program.
    """
    recent = None
    if path is not None:
        refuse_foreign(path, SPOOL)
        if has_copies:
            copies_path = path.with_name(f"{path.name}.recent")
            refuse_foreign(copies_path, SPOOL)
            recent = RecentRecords(copies_path, capacity=capacity // 8, timeout=timeout)
    return Spool(
        path,
        address_hash=address_hash,
        memory_folder=memory_folder,
        capacity=capacity,
        timeout=timeout,
        recent=recent,
        is_merged=is_merged,
    )


def find_memory_folder(folder: Path) -> Path | None:
    """Returns a folder of this user's on a disk in memory that is not the disk of `folder`; None if there is none.

    Makes the folder. One that others may read, or that another user made, is not used.
    """
    if sys.platform == "win32":
        return None
    with suppress(OSError):
        existing = next(each for each in (folder, *folder.parents) if each.exists())
        memory = _MEMORY_DISK / f"accordion-{os.getuid()}"
        if _MEMORY_DISK.stat().st_dev == existing.stat().st_dev:
            return None
        memory.mkdir(mode=0o700, exist_ok=True)
        status = memory.lstat()
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077:
            return memory
    return None


def memory_name(path: Path) -> str:
    """Returns the name of the file in memory that belongs to the spool at `path`."""
    return f"spool-{hashlib.sha256(os.fsencode(path.absolute())).hexdigest()[:16]}.db"


def new_identity() -> bytes:
    """Returns a random identity for a store that has none."""
    return secrets.token_bytes(16)


async def _delete(main: KeyValueStore, erased: ErasedWrites) -> None:
    """Deletes the erased keys from the store."""
    keys = list(erased.stored_keys)
    for at in range(0, len(keys), _PAGE):
        await main.delete(keys[at : at + _PAGE])


def _lists_nothing(key: Key) -> bool:
    return False


def _pages(rows: Sequence[tuple[Key, bytes]]) -> Iterator[list[tuple[Key, bytes]]]:
    page: list[tuple[Key, bytes]] = []
    size = 0
    for key, value in rows:
        if page and (len(page) >= _PAGE or size + len(value) > _BATCH_BYTES):
            yield page
            page, size = [], 0
        page.append((key, value))
        size += len(value)
    if page:
        yield page


def _is_file(path: Path) -> bool:
    return path.is_file()


def _is_claim(write: Put | Append) -> bool:
    return isinstance(write, Put) and write.if_absent


def _decode_write(local_key: Key, value: bytes) -> Put | Append:
    """Decodes a row of the spool to the write that it stands for."""
    write, kind = _DECODER.decode(value), local_key.collection.rpartition("/")[2]
    if kind == _APPENDS:
        return Append(write.key, write.value, write.keep, write.ttl)
    return Put(write.key, write.value, write.ttl, if_absent=kind == _CLAIMS)


def _decode_old_write(kind: str, value: bytes) -> Put:
    """Decodes a row of an earlier version."""
    write = _DECODER.decode(value)
    return Put(write.key, write.value, write.ttl, if_absent=kind == _CLAIMS)


def _collection(tag: str, kind: str) -> str:
    return f"spool/{tag}/{kind}"
