"""The spool: writes that wait on this machine for a store that is away, and the store that reads and publishes them.

`SpooledStore` stands between the guarded store and its users. While the store is there, it hands every call on. While
the store is away, writes go to the spool, a file that all workers of the machine share, and reads look there first: so
the workers find each other's compactions. When the store is back, one worker at a time publishes what waits. What was
written shortly before the store went away is read from local copies (see RecentRecords).

Each write carries the identity of the store that it is for, and is published to that store alone.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import logging
import os
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from itertools import count
from pathlib import Path

import msgspec

from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Append, ErasedWrites, ErasureLog, Key, KeyValueStore, Put
from accordion.stores.disk_reserve import MARGIN, SIZE, free_bytes
from accordion.stores.memory_store import InMemoryStore
from accordion.stores.recent_records import RecentRecords
from accordion.stores.sqlite import SqliteStore
from accordion.stores.sqlite_file import refuse_foreign

_log = logging.getLogger("accordion")

SPOOL = "$.store.spool"
"""The path of the key that names the spool's file."""
_VALUES, _CLAIMS, _APPENDS = _KINDS = ("values", "claims", "appends")
"""In the order of publishing: nobody may find a compaction whose archive is missing."""
_FORMER = {_VALUES: "spool/values", _CLAIMS: "spool/claims"}
"""The collections of a version that did not note whose the writes are."""
_TAGS, _STORES = "spool/tags", "spool/stores"
_PUBLISHING = Key("spool", "publishing")
_LEASE = 30.0
_LONGEST = _LEASE / 2
"""Seconds after which a worker stops to publish and leaves the rest for its next look, within its lease."""
_TICK = 2 * 10**9
"""Nanoseconds within which two changes of a file may get the same date."""
_OVERHEAD = 100
_PAGE = 64
_BATCH_BYTES = 2 * 2**20
_MEMORY = 16 * 2**20
"""Bytes of writes kept in memory where no file takes them."""

Settle = Callable[[Put, bytes], bytes | None]
"""Gets a claim that lost, and the value that another made first; gives the value to write instead, if any."""
Owns = Callable[[Sequence[Put]], Awaitable[bool]]
"""Whether writes without an identity are the store's. Raises StoreUnavailable."""


class _SpooledWrite(msgspec.Struct, array_like=True):
    collection: str
    name: str
    value: bytes
    ttl: float | None
    keep: int | None = None
    number: str = ""
    """Tells a write from a later one of the same bytes, which must stay when this one is removed."""

    @property
    def key(self) -> Key:
        return Key(self.collection, self.name)


class _StoreRecord(msgspec.Struct, array_like=True):
    identity: bytes
    secret: bytes


_DECODER = msgspec.msgpack.Decoder(_SpooledWrite)
_KNOWN = msgspec.msgpack.Decoder(_StoreRecord)
_Local = SqliteStore | InMemoryStore


class _SpoolFull(StoreUnavailable):
    """The spool has no room for a write."""


class _SpoolArea:
    """The writes of one store in one local place, at most `capacity` bytes."""

    def __init__(self, local: _Local, capacity: int) -> None:
        self.local = local
        self.capacity = capacity
        self._sizes: dict[Key, int] | None = None

    async def size(self, tags: Sequence[str]) -> int:
        """Bytes that wait, counted anew where another worker may have changed that."""
        if self._sizes is None:
            self._sizes = {key: len(value) + _OVERHEAD async for key, value in self.rows(tags)}
        return sum(self._sizes.values())

    def recount(self) -> None:
        """Counts anew at the next write."""
        self._sizes = None

    async def add(self, writes: Sequence[Put], tags: Sequence[str], capacity: int) -> dict[Key, bytes]:
        """Adds all writes or none; gives the claims that were there, by their local key. Raises StoreUnavailable."""
        await self.size(tags)
        sizes = {**(self._sizes or {}), **{put.key: len(put.value) + _OVERHEAD for put in writes}}
        if sum(sizes.values()) > capacity:
            raise _SpoolFull("the store is away, and the spool is full")
        held = await self.local.write(writes)
        self._sizes = sizes
        return held

    async def rows(self, tags: Sequence[str], kinds: Sequence[str] = _KINDS) -> AsyncIterator[tuple[Key, bytes]]:
        """All that waits, by local key."""
        for tag in tags:
            for kind in kinds:
                after, collection = "", _collection(tag, kind)
                while page := await self.local.scan(collection, after=after, limit=_PAGE):
                    after = page[-1][0]
                    for name, value in page:
                        yield Key(collection, name), value

    async def remove(self, rows: Mapping[Key, bytes]) -> None:
        """Removes what was published, unless a newer write took its place."""
        await self.local.delete_unchanged(rows)
        for key in rows:
            if self._sizes is not None:
                self._sizes.pop(key, None)


class Spool:
    """The writes of this machine that wait for the store at an address (`place`, see `place_of`).

    They lie in a file at `path`, at most `capacity` bytes; in memory where `path` is None, or, as the last resort,
    where the file takes none. What is in memory is lost with the process. `recent` has the copies of recent records
    that are read while the store is away; None where there are none.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        place: str,
        capacity: int = 64 * 2**20,
        timeout: float = 5.0,
        recent: RecentRecords | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path, self.place, self.recent = path, place, recent
        self._monotonic = monotonic
        self._wal = f"{path}-wal" if path is not None else ""
        self._memory = _SpoolArea(InMemoryStore(max_bytes=4 * capacity + 2**20), min(capacity, _MEMORY))
        self._file: _SpoolArea | None = None
        if path is None:
            self._memory.capacity = capacity
        else:
            self._file = _SpoolArea(SqliteStore(path, timeout=timeout, whole=True), capacity)
        self.capacity = capacity
        self.elsewhere: dict[str, int] = {}
        """Writes that are kept for other stores, or for one that cannot be told: how many, by file."""
        self.refused: frozenset[Key] = frozenset()
        """Writes, by local key, that the store refused although it took others."""
        self.in_memory = 0
        """Bytes of writes that only the memory of this process has."""
        self._tags: list[str] = []
        self._noted = set[str]()
        self._empty_at: tuple[int, int] | str = "unknown"
        self._is_doubtful = False
        self._numbers = count()

    # -- identity -----------------------------------------------------------------

    async def recall(self, secret: bytes) -> tuple[bytes, bytes]:
        """The identity and the tenant secret that the store at this address had last; no identity and the first
        worker's `secret` where it never answered. Never fails."""
        known = _StoreRecord(b"", secret)
        if self._file is not None:
            with suppress(StoreUnavailable, msgspec.MsgspecError):
                value = msgspec.msgpack.encode(known)
                known = _KNOWN.decode(await self._file.local.put_if_absent(Key(_STORES, self.place), value))
        self._write_identity(known.identity, known.secret)
        return known.identity, known.secret

    async def identify(self, identity: bytes, secret: bytes, *, lasting: bool) -> None:
        """The store answered: writes from now on are for the store of this identity. `lasting` says that workers
        started later may need to know. Never fails."""
        self._write_identity(identity, secret)
        if lasting and self._file is not None:
            with suppress(StoreUnavailable):
                value = msgspec.msgpack.encode(_StoreRecord(identity, secret))
                if await self._file.local.get(Key(_STORES, self.place)) != value:
                    await self._file.local.put(Key(_STORES, self.place), value)

    def _write_identity(self, identity: bytes, secret: bytes) -> None:
        # Before the store has answered, writes are for whichever store is at this address with this tenant secret.
        unknown = "new-" + hashlib.sha256(self.place.encode() + b"\n" + secret).hexdigest()[:24]
        self._tags = [identity.hex(), unknown] if identity else [unknown]
        self._empty_at = "unknown"

    @property
    def tags(self) -> list[str]:
        """The marks of the writes that are this store's; new ones get the first."""
        if not self._tags:
            self._write_identity(b"", b"")
        return self._tags

    # -- writing and finding ------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits. Costs a look at the file's dates, which every write of any worker changes."""
        return not self.in_memory and self._empty_at == self._signature()

    @property
    def is_settled(self) -> bool:
        """Whether it is empty, and was so when the file's dates were old enough to tell any write since."""
        return self.is_empty and not self._is_doubtful

    def _signature(self) -> tuple[int, int] | str:
        try:
            found = os.stat(self._wal) if self._wal else None
        except OSError:
            found = None
        return "none" if found is None else (found.st_mtime_ns, found.st_size)

    async def hold(self, batch: Sequence[Put | Append], *, share: float = 1.0) -> dict[Key, bytes]:
        """Takes all writes or none, up to `share` of the capacity; gives the values that puts gave way to. Raises
        StoreUnavailable where there is no room."""
        claims = [write.key for write in batch if isinstance(write, Put) and write.if_absent]
        found = await self.find(claims) if claims else {}
        writes = [self._local_of(write) for write in batch if write.key not in found or not _gives_way(write)]
        if writes:
            await self._note()
            found |= await self._add(writes, share)
            self._empty_at = "unknown"
        return found

    def _local_of(self, write: Put | Append) -> Put:
        # Entries of logs stand behind what was appended before, by any worker.
        number = f"{time.time_ns():020}.{os.getpid()}.{next(self._numbers)}"
        key, keep = write.key, write.keep if isinstance(write, Append) else None
        if isinstance(write, Append):
            kind, name = _APPENDS, number
        else:
            kind, name = _CLAIMS if write.if_absent else _VALUES, f"{key.collection}\n{key.name}"
        made = msgspec.msgpack.encode(_SpooledWrite(key.collection, key.name, write.value, write.ttl, keep, number))
        return Put(Key(_collection(self.tags[0], kind), name), made, if_absent=kind == _CLAIMS)

    async def _add(self, writes: Sequence[Put], share: float) -> dict[Key, bytes]:
        try:
            if self._file is None or not self._has_room():
                raise StoreUnavailable("there is no spool file, or its disk is full")
            held = await self._file.add(writes, self.tags, int(self._file.capacity * share))
        except _SpoolFull:
            raise
        except StoreUnavailable:
            held = await self._memory.add(writes, self.tags, int(self._memory.capacity * share))
            await self._measure()
        return {write.key: write.value for write in map(_DECODER.decode, held.values())}

    def _has_room(self) -> bool:
        """Whether the file's disk has more free space than a store on the same disk reserves for erasing."""
        if self.path is None:
            return False
        try:
            return free_bytes(self.path.parent) >= SIZE + MARGIN
        except OSError:
            # The folder may be missing yet; the write says whether it can be made.
            return True

    async def _measure(self) -> None:
        before, self.in_memory = self.in_memory, await self._memory.size(self.tags)
        if self._file is not None and self.in_memory and not before:
            _log.warning(
                "neither the store nor the spool takes a write: what leaves windows is kept in memory only, and is "
                "lost with this process, until one of them takes it"
            )

    async def _note(self) -> None:
        """Lists the tag, so that what waits can be found by whoever does not know it."""
        tag = self.tags[0]
        if tag not in self._noted and self._file is not None:
            with suppress(StoreUnavailable):
                await self._file.local.put(Key(_TAGS, tag), b"")
                self._noted.add(tag)

    async def find(self, keys: Sequence[Key]) -> dict[Key, bytes]:
        """The values that wait under these keys. Empty where the spool cannot be read."""
        places = [
            (key, Key(_collection(tag, kind), f"{key.collection}\n{key.name}"))
            for tag in reversed(self.tags)
            for kind in (_CLAIMS, _VALUES)
            for key in keys
        ]
        found: dict[Key, bytes] = {}
        for area in self._areas():
            with suppress(StoreUnavailable):
                values = await area.local.get_many([place for _, place in places])
                found |= {
                    key: _DECODER.decode(value).value
                    for (key, _), value in zip(places, values, strict=True)
                    if value is not None
                }
        return found

    async def scan(self, collection: str, prefix: str, after: str, limit: int) -> dict[str, bytes]:
        """Names and values of a collection that wait. Empty where the spool cannot be read."""
        found: dict[str, bytes] = {}
        head = f"{collection}\n"
        for area in self._areas():
            for tag in reversed(self.tags):
                for kind in (_CLAIMS, _VALUES):
                    with suppress(StoreUnavailable):
                        behind = head + after if after else ""
                        rows = await area.local.scan(
                            _collection(tag, kind), prefix=head + prefix, after=behind, limit=limit
                        )
                        found |= {name.removeprefix(head): _DECODER.decode(value).value for name, value in rows}
        return found

    # -- copies -------------------------------------------------------------------

    async def find_recent(self, keys: Sequence[Key]) -> dict[Key, bytes]:
        """The copies of recent records that there are under these keys. Never fails."""
        return await self.recent.find(self.tags[0], keys) if self.recent is not None and keys else {}

    def add_recent(self, puts: Iterable[Put]) -> None:
        """Copies records, soon. Never fails."""
        if self.recent is not None:
            self.recent.add(self.tags[0], puts)

    async def clear_recent(self) -> None:
        """Removes all copies: something was erased, and they do not tell whose they are. Never fails."""
        if self.recent is not None:
            await self.recent.clear(self.tags[0])

    async def delete(self, keys: Sequence[Key]) -> int:
        """Removes what waits under these keys. Raises StoreUnavailable."""
        gone = 0
        names = [f"{key.collection}\n{key.name}" for key in keys]
        for area in self._areas():
            for tag in self.tags:
                places = [Key(_collection(tag, kind), name) for kind in (_VALUES, _CLAIMS) for name in names]
                logs = [(at, value) async for at, value in area.rows([tag], (_APPENDS,))]
                places += [at for at, value in logs if _DECODER.decode(value).key in keys]
                gone += await area.local.delete(places)
            area.recount()
        self.in_memory = await self._memory.size(self.tags)
        return gone

    def _areas(self) -> list[_SpoolArea]:
        """Where writes may be; the newest last."""
        areas = [self._file] if self._file is not None and os.path.exists(self.path or "") else []
        return [*areas, self._memory] if self.in_memory or self._file is None else areas

    # -- publishing ---------------------------------------------------------------

    async def publish(self, main: KeyValueStore, settle: Settle, erasures: ErasureLog | None) -> None:
        """Writes all that waits for this store to `main` and removes it here. One worker at a time does it. What was
        erased is removed first, also where the store takes no write. Raises StoreUnavailable; then what is left still
        waits, and what was written is written again, which does no harm."""
        # To take the lock changes the file, which other workers then look at: it is taken only where that is of use.
        await self._check_file()
        if self.is_empty:
            return
        await self.drop_erased(main, erasures)
        for area in self._areas():
            async with area.local.lock(_PUBLISHING, lease=_LEASE) as free:
                if free:
                    await self._publish(area, main, settle, erasures, self._monotonic() + _LONGEST)
            self.in_memory = await self._memory.size(self.tags)
        await self._check_file()

    async def drop_erased(self, main: KeyValueStore, erasures: ErasureLog | None) -> list[Put | Append]:
        """Removes what was erased, here and from `main`, and gives what waited of it. Raises StoreUnavailable."""
        # What lists a claim may wait in the other place. Memory first: it can always be changed.
        places = [(area, [row async for row in area.rows(self.tags)]) for area in reversed(self._areas())]
        writes = [_write_of(*row) for _, rows in places for row in rows]
        if erasures is None or not writes:
            return []
        erased = await erasures.find_erased(writes)
        await _delete(main, erased)
        for area, rows in places:
            await area.remove({key: value for key, value in rows if _write_of(key, value) in erased})
        self.in_memory = await self._memory.size(self.tags)
        await self._check_file()
        return [write for write in writes if write in erased]

    async def _check_file(self) -> None:
        """Learns whether nothing waits in the file."""
        before, areas = self._signature(), self._areas()
        if self._file in areas and self._file is not None:
            self._file.recount()
            if await self._file.size(self.tags):
                self._empty_at = "unknown"
                return
        self._is_doubtful = isinstance(before, tuple) and time.time_ns() - before[0] < _TICK
        self._empty_at = before

    async def _publish(
        self, area: _SpoolArea, main: KeyValueStore, settle: Settle, erasures: ErasureLog | None, until: float
    ) -> None:
        """What lists others is written first and stays here to the last, so that an erasure finds all that was written
        of a compaction, whoever erases and wherever this ends."""
        done, lists = dict[Key, bytes](), erasures.lists if erasures is not None else _lists_nothing
        listings = dict[Key, bytes]()
        for kind in _KINDS:
            rows = [row async for row in area.rows(self.tags, (kind,))]
            rows.sort(key=lambda row: not lists(_write_of(*row).key))
            for page in _pages(rows):
                if self._monotonic() > until:
                    return
                stays = await self._write_page(main, page, settle)
                written = {key: value for key, value in page if key not in stays}
                listings |= {key: value for key, value in written.items() if lists(_write_of(key, value).key)}
                await area.remove({key: value for key, value in written.items() if key not in listings})
                done |= written
        if erasures is not None and done:
            # An erasure may have looked through the store before this was written.
            await _delete(main, await erasures.find_erased([_write_of(*row) for row in done.items()]))
        await area.remove(listings)

    async def _write_page(
        self, main: KeyValueStore, page: Sequence[tuple[Key, bytes]], settle: Settle
    ) -> frozenset[Key]:
        """Writes a page to the store. A write that the store refuses alone, while it is there for others, stays in the
        spool and is tried again after a restart; gives the local keys of those. Raises StoreUnavailable."""
        writes = [(local, _write_of(local, value)) for local, value in page if local not in self.refused]
        try:
            await _write(main, [write for _, write in writes], settle)
        except StoreUnavailable:
            if not main.is_available:
                raise
            for local, write in writes:
                await self._write_alone(main, local, write, settle)
        return self.refused.intersection(local for local, _ in page)

    async def _write_alone(self, main: KeyValueStore, local: Key, write: Put | Append, settle: Settle) -> None:
        try:
            await _write(main, [write], settle)
        except StoreUnavailable as error:
            if not main.is_available:
                raise
            self.refused |= {local}
            _log.error(
                "the store refused a write of %d bytes, which stays in the spool until the next start: %s",
                len(write.value), error.message,
            )  # fmt: skip

    async def save(self) -> None:
        """Moves to the file what only the memory has, as soon as the file takes it. Never fails."""
        if self._file is None or not self.in_memory or not self._has_room():
            return
        with suppress(StoreUnavailable):
            rows = {key: value async for key, value in self._memory.rows(self.tags)}
            claims = [Put(key, value, if_absent=_CLAIMS in key.collection) for key, value in rows.items()]
            await self._file.add(claims, self.tags, self._file.capacity)
            await self._memory.remove(rows)
            self.in_memory = await self._memory.size(self.tags)

    # -- what cannot be published -------------------------------------------------

    async def adopt(
        self, main: KeyValueStore, owns: Owns, settle: Settle, erasures: ErasureLog | None, former: Path | None
    ) -> None:
        """Publishes what a former version left without an identity, in this file or in the `former` common one, where
        `owns` says that it is this store's; else leaves it and counts it. Counts what waits for other stores, too.
        Raises StoreUnavailable."""
        self.elsewhere.clear()
        if self._file is not None and self.path is not None and _is_file(self.path):
            await self._adopt_from(self._file.local, self.path, main, owns, settle, erasures)
            await self._count_others(self._file.local, self.path)
        if former is not None and former != self.path and _is_file(former):
            local = SqliteStore(former, timeout=5.0)
            try:
                await self._adopt_from(local, former, main, owns, settle, erasures)
            finally:
                await local.close()
        for path, writes in self.elsewhere.items():
            _log.warning("%d writes that wait in %s are for another store, and are left there", writes, path)

    async def _adopt_from(
        self, local: _Local, path: Path, main: KeyValueStore, owns: Owns, settle: Settle, erasures: ErasureLog | None
    ) -> None:
        rows: dict[str, list[tuple[Key, bytes]]] = {}
        for kind, collection in _FORMER.items():
            after = ""
            while page := await local.scan(collection, after=after, limit=_PAGE):
                after = page[-1][0]
                rows.setdefault(kind, []).extend((Key(collection, name), value) for name, value in page)
        if not rows:
            return
        puts = [_former_write(kind, value) for kind, kept in rows.items() for _, value in kept]
        if not await owns(puts):
            self.elsewhere[str(path)] = self.elsewhere.get(str(path), 0) + len(puts)
            return
        erased = await erasures.find_erased(puts) if erasures is not None else ErasedWrites()
        for kind, kept in rows.items():
            for each in _pages(kept):
                await _write(
                    main, [put for _, value in each if (put := _former_write(kind, value)) not in erased], settle
                )
                await local.delete_unchanged(dict(each))

    async def _count_others(self, local: _Local, path: Path) -> None:
        for tag, _ in await local.scan(_TAGS):
            if tag in self.tags:
                continue
            waiting = 0
            for kind in _KINDS:
                after = ""
                while page := await local.scan(_collection(tag, kind), after=after, limit=_PAGE):
                    after, waiting = page[-1][0], waiting + len(page)
            if waiting:
                self.elsewhere[str(path)] = self.elsewhere.get(str(path), 0) + waiting

    def describe(self) -> dict[str, object]:
        """What an operator should know: bytes that only memory has, and writes that are kept for other stores."""
        said: dict[str, object] = {}
        if self.in_memory and self._file is not None:
            said["in_memory_only_bytes"] = self.in_memory
        if self.elsewhere:
            said["kept_for_other_stores"] = [{"file": each, "writes": many} for each, many in self.elsewhere.items()]
        if self.refused:
            said["refused_by_the_store"] = len(self.refused)
        return said

    async def close(self) -> None:
        """Closes the file. What only the memory has is lost, unless the file takes it now."""
        await self.save()
        if self.recent is not None:
            await self.recent.close()
        if self._file is not None:
            await self._file.local.close()
        await self._memory.local.close()


class SpooledStore:
    """A Store that goes on while `main` is away: it writes to `spool` and reads from there first.

    Writes raise StoreUnavailable only where the spool takes none either. Reads raise it where neither knows a single
    key; where the spool knows some of several keys, the others are given as missing. Logs cannot be read, nothing can
    be deleted, and no lock be had while `main` is away. `available` says whether `main` is there. `is_copied` says of
    which keys the spool's `recent` gets copies.
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
        """Learns which store answers, and identifies the spool with it. Raises StoreUnavailable."""
        self._share = 1.0
        self._drops = False
        self._publishing = asyncio.Lock()

    def with_half_capacity(self) -> SpooledStore:
        """The same store for writes that may only take half of the spool, so that they leave room for compactions."""
        other = copy.copy(self)
        other._share = 0.5
        return other

    @property
    def is_available(self) -> bool:
        """See Store."""
        return self._main.is_available

    async def put(self, key: Key, value: bytes, *, ttl: float | None = None) -> None:
        """See Store."""
        await self.write((Put(key, value, ttl),))

    async def put_if_absent(self, key: Key, value: bytes, *, ttl: float | None = None) -> bytes:
        """See Store. While the store is away the first claim in the spool wins."""
        return (await self.write((Put(key, value, ttl, if_absent=True),))).get(key, value)

    async def get(self, key: Key) -> bytes | None:
        """See Store."""
        return (await self.get_many((key,)))[0]

    async def get_many(self, keys: Sequence[Key]) -> list[bytes | None]:
        """See Store."""
        if self.spool.is_empty:
            with suppress(StoreUnavailable):
                return await self._main.get_many(keys)
        found: dict[Key, bytes | None] = {**await self.spool.find(keys)}
        missing = [key for key in keys if key not in found]
        if missing:
            try:
                found |= dict(zip(missing, await self._main.get_many(missing), strict=True))
            except StoreUnavailable:
                found |= await self.spool.find_recent(missing)
                if not found:
                    raise
        return [found.get(key) for key in keys]

    async def scan(
        self, collection: str, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> list[tuple[str, bytes]]:
        """See Store."""
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
        """See Store."""
        held = await self._write_main(batch)
        if self.spool.recent is not None and self._share == 1.0:
            # What waits is copied, too: once it is published, only the store has it.
            copied = [write for write in batch if isinstance(write, Put) and self._is_copied(write.key)]
            self.spool.add_recent([Put(put.key, held.get(put.key, put.value), put.ttl) for put in copied])
        return held

    async def _write_main(self, batch: Sequence[Put | Append]) -> dict[Key, bytes]:
        if self.spool.is_empty:
            with suppress(StoreUnavailable):
                return await self._main.write(batch)
            return await self._write_spool(batch)
        # Until all is published, what waits under a key is newer than what the store has.
        waiting = await self.spool.find([write.key for write in batch if isinstance(write, Put)])
        held = {write.key: waiting[write.key] for write in batch if _gives_way(write) and write.key in waiting}
        later = [write for write in batch if write.key in waiting and write.key not in held]
        now = [write for write in batch if write.key not in waiting]
        try:
            held |= await self._main.write(now) if now else {}
        except StoreUnavailable:
            later += now
        if later:
            held |= await self._write_spool(later)
        return held

    async def _write_spool(self, batch: Sequence[Put | Append]) -> dict[Key, bytes]:
        """Writes that wait for the store. Who made a claim before the store went away was first."""
        held = await self.spool.find_recent([write.key for write in batch if _gives_way(write)])
        return held | await self.spool.hold([write for write in batch if write.key not in held], share=self._share)

    async def delete(self, keys: Sequence[Key]) -> int:
        """See Store."""
        gone = await self._main.delete(keys)
        if self.spool.recent is not None:
            await self.spool.recent.delete(self.spool.tags[0], keys)
        return gone if self.spool.is_empty else max(gone, await self.spool.delete(keys))

    async def append(
        self, key: Key, values: Sequence[bytes], *, keep: int | None = None, ttl: float | None = None
    ) -> int:
        """See Store."""
        return await self._main.append(key, values, keep=keep, ttl=ttl)

    async def read(self, key: Key, start: int = 0, limit: int | None = None) -> list[tuple[int, bytes]]:
        """See Store."""
        return await self._main.read(key, start, limit)

    def lock(self, key: Key, *, lease: float) -> AbstractAsyncContextManager[bool]:
        """See Store."""
        return self._main.lock(key, lease=lease)

    async def ping(self) -> None:
        """See Store."""
        await self._main.ping()

    async def publish(self) -> None:
        """Publishes what waits, where anything does; of much a part, and the rest when it is called again. Raises
        StoreUnavailable; then it still waits."""
        if self.spool.is_settled:
            return
        async with self._publishing:
            # The store that is back may be another one at the same address.
            if self.confirm is not None:
                await self.confirm()
            await self.spool.publish(self._main, self.settle, self.erasures)

    async def drop_erased(self) -> Sequence[Put | Append]:
        """Removes what was erased of what waits, and gives it. Works on a full disk. Raises StoreUnavailable."""
        self._drops = False
        if self.spool.is_empty:
            return ()
        async with self._publishing:
            if self.confirm is not None:
                await self.confirm()
            return await self.spool.drop_erased(self._main, self.erasures)

    def drop_soon(self) -> None:
        """Something was erased: what waits of it is removed at the next look, also while the disk is full."""
        self._drops = True

    async def poll(self) -> None:
        """Publishes what waits once the store is there, and till then saves what is only in memory. To be called about
        every second; never fails."""
        with suppress(StoreUnavailable):
            if self._main.is_available:
                await self.publish()
                return
            await self.spool.save()
            if self._drops:
                await self.drop_erased()

    async def close(self) -> None:
        """Closes the spool; the store is its owner's."""
        await self.spool.close()


def open_spool(
    path: Path | None,
    *,
    place: str = "",
    capacity: int = 64 * 2**20,
    timeout: float = 5.0,
    has_copies: bool = False,
) -> Spool:
    """A spool in a file, or in memory where `path` is None. `has_copies`: recent records are copied to a file beside
    it, by each worker at most an eighth of `capacity`. Raises ConfigError where a file is another program's."""
    recent = None
    if path is not None:
        refuse_foreign(path, SPOOL)
        if has_copies:
            beside = path.with_name(f"{path.name}.recent")
            refuse_foreign(beside, SPOOL)
            recent = RecentRecords(beside, capacity=capacity // 8, timeout=timeout)
    return Spool(path, place=place, capacity=capacity, timeout=timeout, recent=recent)


def new_identity() -> bytes:
    """An identity for a store that has none."""
    return secrets.token_bytes(16)


async def _write(main: KeyValueStore, batch: Sequence[Put | Append], settle: Settle) -> None:
    """Writes a page of one kind; a claim that comes second is settled."""
    if not batch:
        return
    mine = {write.key: write for write in batch}
    for key, winner in (await main.write(batch)).items():
        claim = mine[key]
        if isinstance(claim, Put) and winner != claim.value and (better := settle(claim, winner)) is not None:
            await main.put(key, better, ttl=claim.ttl)


async def _delete(main: KeyValueStore, erased: ErasedWrites) -> None:
    """Removes from the store what was erased."""
    keys = list(erased.stored)
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


def _gives_way(write: Put | Append) -> bool:
    return isinstance(write, Put) and write.if_absent


def _write_of(place: Key, value: bytes) -> Put | Append:
    """What is to be written of a row of the spool."""
    write, kind = _DECODER.decode(value), place.collection.rpartition("/")[2]
    if kind == _APPENDS:
        return Append(write.key, write.value, write.keep, write.ttl)
    return Put(write.key, write.value, write.ttl, if_absent=kind == _CLAIMS)


def _former_write(kind: str, value: bytes) -> Put:
    """The same of a former version's."""
    write = _DECODER.decode(value)
    return Put(write.key, write.value, write.ttl, if_absent=kind == _CLAIMS)


def _collection(tag: str, kind: str) -> str:
    return f"spool/{tag}/{kind}"
