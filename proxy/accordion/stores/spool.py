"""The spool: writes that wait on this machine while the store is unavailable.

Theory of operation. `SpooledStore` is between a `GuardedStore` and its users. While the store is available and nothing
waits, every call goes to the store. Otherwise writes go to a waiting log (waiting_log.py), and reads look there first,
so that the workers of a machine find each other's compactions. When the store is available again, one worker publishes
the log: it writes the batches to the store, in order, and then removes the file.

While anything waits, a batch goes to the log if it has a claim (a put with `if_absent`) or a key that waits: the store
never has a claim without what was written before it. Other batches go to the store.

The log is in the first of several places that takes it. While anything waits in a later place, what follows goes there
too; `poll` moves it back. A record names the store that it is for: by its identity or, before it has answered once, by
its address and the secret of its tenants (store_record.py). Records of other stores stay where they are.

What belongs to an erased session is found by the lists that wait with it or are in the store. So a publisher asks what
was erased before it begins and, about all that it published, before it removes the file.
"""

from __future__ import annotations

import copy
import hashlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from msgspec.structs import replace

from accordion.model.errors import ConfigError, StoreUnavailable
from accordion.model.ports import Append, ErasedWrites, ErasureLog, Key, KeyValueStore, Put
from accordion.stores.store_record import StoreRecord, StoreRecordFile
from accordion.stores.waiting_log import COPY, PUBLISHED, REFUSED, WAITING, Record, WaitingLog

_log = logging.getLogger("accordion")

_PAGE = 64

Settle = Callable[[Put, bytes], bytes | None]
"""Takes a write that waited and the store's different value; returns the value to write instead. With None, the store's
value stays if the write is a claim, and is replaced otherwise."""


class SpooledStore:
    """A KeyValueStore that goes on working while `main` is unavailable: it writes to a log and reads there first.

    The logs are at `places`, in this order, with at most `capacity` bytes each. `address_hash` is a hash of the store's
    address, `tenant_key` the configured secret of its tenants. Writes raise StoreUnavailable only if no place takes
    them. While `main` is unavailable, reads raise it if no log has any of the keys; if it has some of several keys, the
    others are returned as missing. Logs cannot be read then, nothing can be deleted, and no lock can be taken.

    `is_copied` says which records that the store took are copied, to be read while it is unavailable. `is_merged` says
    which values are settled with the store's value, which another machine may have written meanwhile. `now` returns
    seconds since the epoch.
    """

    def __init__(
        self,
        main: KeyValueStore,
        places: Sequence[Path] = (),
        *,
        address_hash: str = "",
        tenant_key: bytes = b"",
        capacity: int = 64 * 2**20,
        is_copied: Callable[[Key], bool] = lambda _: False,
        is_merged: Callable[[Key], bool] = lambda _: False,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._main, self._address_hash, self._tenant_key, self._now = main, address_hash, tenant_key, now
        self._is_copied, self._is_merged = is_copied, is_merged
        self._logs = [WaitingLog(path, capacity, now) for path in places]
        self._record_file = StoreRecordFile([path.with_name(f"{path.name}-store") for path in places])
        self._owners: list[bytes] = []  # `with_half_capacity` shares it.
        self.settle: Settle = lambda *_: None
        self.erasures: ErasureLog | None = None
        self.confirm: Callable[[], Awaitable[object]] | None = None
        """Finds out which store answers and calls `identify` with it. Raises StoreUnavailable."""
        self._share, self._has_later = 1.0, False
        self._erasure_count = 0
        self._states = [WAITING, REFUSED]
        """The states of records that are published; what was refused is tried once in each process."""

    def with_half_capacity(self) -> SpooledStore:
        """Returns the same store for writes that may use only half of the spool, to leave space for compactions."""
        other = copy.copy(self)
        other._share = 0.5
        return other

    def check(self) -> None:
        """Raises ConfigError if a file of the spool is damaged or is another program's."""
        self._record_file.load()
        for log in self._logs:
            try:
                log.follow()
            except FileExistsError as error:
                raise ConfigError(f"{log.path} is another file: choose another path", path="$.store.spool") from error
            except OSError:
                continue

    def recall(self, secret: bytes) -> StoreRecord:
        """Returns the record of the last store; without one, makes one with the first worker's `secret`.

        To be called before anything else. Raises ConfigError if a file is damaged or is another program's.
        """
        self.check()
        record = self._record_file.load() or StoreRecord(b"", b"")
        if not (record.identity if self._tenant_key else record.secret):
            record = StoreRecord(record.identity, b"" if self._tenant_key else secret)
            self._record_file.save(record)
            record = self._record_file.load() or record
        self._set_owners(record)
        return record

    def identify(self, record: StoreRecord) -> None:
        """Sets which store has answered; new writes are for that store. Never fails."""
        self._set_owners(record)
        if self._record_file.load() != record or not self._record_file.is_in_first_place:
            self._record_file.save(record)
        for path, count in self._count_foreign().items():
            _log.warning("%d writes that wait in %s are for another store, and are left there", count, path)

    def _set_owners(self, record: StoreRecord) -> None:
        secret = self._tenant_key or record.secret
        unknown = hashlib.sha256(self._address_hash.encode() + b"\n" + secret).digest()[:16]
        self._owners[:] = [record.identity, unknown] if record.identity else [unknown]
        for log in self._logs:
            log.owners = tuple(self._owners)
            log.close()

    @asynccontextmanager
    async def _locked(self) -> AsyncIterator[None]:
        """Holds the lock of the spool, with all logs up to date. Raises StoreUnavailable."""
        try:
            async with self._record_file.lock():
                self._follow()
                yield
        except OSError as error:
            raise StoreUnavailable(f"the spool cannot be used: {error}") from error

    # -- reading ------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """Whether the logs have no records of this store."""
        self._follow()
        return not any(log.by_key for log in self._logs)

    def _follow(self) -> None:
        """Reads what other workers appended: one system call for each place. A log that cannot be read is empty."""
        for log in self._logs:
            try:
                log.follow()
            except OSError:
                log.close()

    def _find(self, keys: Iterable[Key], *, copies: bool = False) -> dict[Key, bytes]:
        """Returns the values of these keys that wait, and with `copies` those that were copied."""
        found = [(key, log.find(key, copies=copies)) for log in self._logs for key in keys]
        return {key: value for key, value in found if value is not None}

    async def get(self, key: Key) -> bytes | None:
        """See KeyValueStore."""
        return (await self.get_many((key,)))[0]

    async def get_many(self, keys: Sequence[Key]) -> list[bytes | None]:
        """See KeyValueStore."""
        values: dict[Key, bytes | None] = {} if self.is_empty else {**self._find(keys)}
        missing = [key for key in keys if key not in values]
        try:
            values |= zip(missing, await self._main.get_many(missing), strict=True) if missing else ()
        except StoreUnavailable:
            values |= self._find(missing, copies=True)
            if not values:
                raise
        return [values.get(key) for key in keys]

    async def scan(
        self, collection: str, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> list[tuple[str, bytes]]:
        """See KeyValueStore."""
        keys = (
            [] if self.is_empty else [key for log in self._logs for key in log.by_key if key.collection == collection]
        )
        chosen = [key for key in keys if key.name.startswith(prefix) and key.name > after]
        waiting = {key.name: value for key, value in self._find(chosen).items()}
        try:
            stored = await self._main.scan(collection, prefix=prefix, after=after, limit=limit)
        except StoreUnavailable:
            if not waiting:
                raise
            stored = []
        return sorted({**dict(stored), **waiting}.items())[:limit]

    async def read(self, key: Key, start: int = 0, limit: int | None = None) -> list[tuple[int, bytes]]:
        """See KeyValueStore."""
        return await self._main.read(key, start, limit)

    # -- writing ------------------------------------------------------------------

    async def put(self, key: Key, value: bytes, *, ttl: float | None = None) -> None:
        """See KeyValueStore."""
        await self.write((Put(key, value, ttl),))

    async def put_if_absent(self, key: Key, value: bytes, *, ttl: float | None = None) -> bytes:
        """See KeyValueStore. While the store is unavailable, the first claim in the log wins."""
        return (await self.write((Put(key, value, ttl, if_absent=True),))).get(key, value)

    async def append(
        self, key: Key, values: Sequence[bytes], *, keep: int | None = None, ttl: float | None = None
    ) -> int:
        """See KeyValueStore."""
        return await self._main.append(key, values, keep=keep, ttl=ttl)

    async def write(self, batch: Sequence[Put | Append]) -> dict[Key, bytes]:
        """See KeyValueStore."""
        existing: dict[Key, bytes] = {}
        erasure_count = self._erasure_count
        with suppress(StoreUnavailable):
            if self.is_empty or not self._must_wait(batch):
                existing = await self._main.write(batch)
                await self._copy(batch, existing, erasure_count)
                return existing
            claims = [write.key for write in batch if _is_claim(write)]
            values = zip(claims, await self.get_many(claims), strict=True)
            existing = {key: value for key, value in values if value is not None}
        return existing | await self._append(
            [write for write in batch if not (_is_claim(write) and write.key in existing)]
        )

    def _must_wait(self, batch: Sequence[Put | Append]) -> bool:
        """Whether a batch must not reach the store before what waits."""
        records = [record for log in self._logs for write in batch for record in log.by_key.get(write.key, ())]
        has_claim = any(_is_claim(write) for write in batch) and any(log.waiting for log in self._logs)
        return has_claim or any(record.state != COPY for record in records)

    async def _append(self, batch: Sequence[Put | Append]) -> dict[Key, bytes]:
        """Appends a batch to the first log that takes it, behind what waits; returns the values of earlier claims."""
        async with self._locked():
            existing = self._find(
                [write.key for write in batch if _is_claim(write)], copies=not self._main.is_available
            )
            records = [self._record(write) for write in batch if not (_is_claim(write) and write.key in existing)]
            first = max((at for at, log in enumerate(self._logs) if log.waiting), default=0)
            for log in self._logs[first:]:
                with suppress(OSError):
                    if records:
                        log.append(records, self._share)
                    return existing
        raise StoreUnavailable("neither the store nor the spool takes writes")

    def _record(self, write: Put | Append, state: int = WAITING) -> Record:
        return Record(self._owners[0], self._now(), write, state)

    async def _copy(self, batch: Sequence[Put | Append], existing: Mapping[Key, bytes], erasure_count: int) -> None:
        """Copies records that the store took, unless something was erased since the count was read.

        Their writer waits for it, so that the last copy of a key is the newest.
        """
        puts = [write for write in batch if isinstance(write, Put) and self._is_copied(write.key)]
        if puts and self._share == 1.0:
            copies = [replace(put, value=existing.get(put.key, put.value)) for put in puts]
            with suppress(StoreUnavailable):
                async with self._locked():
                    if erasure_count == self._erasure_count:
                        self._logs[0].append([self._record(each, COPY) for each in copies])

    async def delete(self, keys: Sequence[Key]) -> int:
        """See KeyValueStore."""
        count, erased = await self._main.delete(keys), set(keys)
        if self.is_empty or not any(log.by_key.keys() & erased for log in self._logs):
            return count
        return max(count, len(await self._erase(lambda record: record.write.key in erased)))

    async def _erase(self, is_erased: Callable[[Record], bool]) -> list[Put | Append]:
        """Erases records of this store in the logs; returns the writes that waited."""
        writes: list[Put | Append] = []
        if any(log.path.exists() for log in self._logs):
            async with self._locked():
                for log in self._logs:
                    log.reload()
                    if not log.has_file:
                        continue
                    records = [record for record in log.own() if is_erased(record)]
                    writes += [record.write for record in records if record.state != COPY]
                    log.erase(records)
                    with log.publishing() as is_free:
                        if is_free and not log.records:
                            log.replace(())
        return writes

    async def drop_erased(
        self, is_erased: Callable[[Key], bool] = lambda _: False, *, copies: bool = True
    ) -> list[Put | Append]:
        """Removes erased writes that wait, and those of keys that `is_erased`, and returns them. Works on a full disk.

        With `copies` it also removes all copies, since a copy does not name its session. Raises StoreUnavailable.
        """
        self._erasure_count += copies
        writes = [] if self.is_empty else [each.write for log in self._logs for each in log.own() if each.state != COPY]
        erased = await self.erasures.find_erased(writes) if writes and self.erasures is not None else ErasedWrites()
        await self._delete(erased)
        return await self._erase(
            lambda record: copies if record.state == COPY else record.write in erased or is_erased(record.write.key)
        )

    async def drop_copies(self) -> None:
        """Removes all copies, as when the store was emptied. Never fails."""
        self._erasure_count += 1
        with suppress(StoreUnavailable):
            await self._erase(lambda record: record.state == COPY)

    async def _delete(self, erased: ErasedWrites) -> None:
        keys = list(erased.stored_keys)
        for at in range(0, len(keys), _PAGE):
            await self._main.delete(keys[at : at + _PAGE])

    # -- publishing ---------------------------------------------------------------

    async def publish(self) -> None:
        """Publishes the waiting writes, unless another worker does. Raises StoreUnavailable; then they still wait."""
        self._follow()
        logs = [log for log in self._logs if log.own(*self._states, PUBLISHED) or (log.has_file and not log.records)]
        if not logs:
            return
        # The store that answers now may be another one at the same address.
        if self.confirm is not None:
            await self.confirm()
        await self.drop_erased(copies=False)
        for log in logs:
            try:
                with log.publishing() as is_free:
                    if not is_free:
                        return
                    log.reload()
                    await self._publish(log)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise StoreUnavailable(f"the spool cannot be used: {error}") from error

    async def _publish(self, log: WaitingLog) -> None:
        """Publishes a log, whose lock is held, and removes it or leaves in it what does not wait."""
        while waiting := log.own(*self._states):
            for _, batch in groupby(waiting, key=attrgetter("batch")):
                await self._publish_batch(log, list(batch))
            self._states = [WAITING]
            log.follow()
        if self.erasures is not None:
            # An erasure may have searched the store before these writes reached it.
            await self._delete(await self.erasures.find_erased([record.write for record in log.own(PUBLISHED)]))
        async with self._locked():
            if not log.own(WAITING):
                log.reload()
                if log is self._logs[0]:
                    for record in log.own(PUBLISHED):
                        record.state = COPY if self._is_copied(record.write.key) else PUBLISHED
                log.replace(each for each in log.records if each.state != PUBLISHED or each.owner not in self._owners)

    async def _publish_batch(self, log: WaitingLog, batch: Sequence[Record]) -> None:
        """Publishes a batch; if the store refuses it although it is available, each of its writes alone."""
        try:
            await self._write_settled([record.write for record in batch if record.is_current(self._now())])
            log.set_state(batch, PUBLISHED)
        except StoreUnavailable as error:
            if not self._main.is_available:
                raise
            if len(batch) == 1:
                log.set_state(batch, REFUSED)
                _log.error(
                    "the store refused a write of %d bytes, which stays in the spool until the next start: %s",
                    len(batch[0].write.value), error.message,
                )  # fmt: skip
            else:
                for record in batch:
                    await self._publish_batch(log, [record])

    async def _write_settled(self, batch: Sequence[Put | Append]) -> None:
        """Writes a batch; settles values that are merged, and claims that lost."""
        puts = {write.key: write for write in batch if isinstance(write, Put)}
        claims = [replace(put, if_absent=put.if_absent or self._is_merged(put.key)) for put in puts.values()]
        existing = await self._main.write([*claims, *(write for write in batch if isinstance(write, Append))])
        settled = list[Put]()
        for put, stored in ((puts[key], stored) for key, stored in existing.items()):
            value = self.settle(put, stored) if stored != put.value else stored
            if value is not None or not put.if_absent:
                settled.append(Put(put.key, put.value if value is None else value, put.ttl))
        if settled:
            await self._main.write(settled)

    async def poll(self) -> None:
        """Publishes the waiting writes; while the store is unavailable, moves them to the first place.

        To be called about every second. Never fails.
        """
        with suppress(StoreUnavailable, OSError):
            if self._main.is_available:
                return await self.publish()
            self._follow()
            later = [log for log in self._logs[1:] if log.records]
            if later and not self._has_later:
                _log.warning(
                    "neither the store nor the spool takes writes: what is to be stored is kept in memory only, until "
                    "one of them takes it again; it is lost if this machine restarts"
                )
            self._has_later = bool(later)
            for log in later:
                with log.publishing() as is_free:
                    if is_free:
                        async with self._locked():
                            log.reload()
                            self._logs[0].append(log.records)
                            log.replace(())

    def describe(self) -> dict[str, object]:
        """Returns problems for the operator: bytes only in memory, writes for other stores, refused writes."""
        in_memory = sum(record.end - record.at for log in self._logs[1:] for record in log.own(WAITING))
        problems: dict[str, object] = {"in_memory_only_bytes": in_memory} if in_memory else {}
        if foreign := self._count_foreign():
            problems["kept_for_other_stores"] = [
                {"file": str(path), "writes": count} for path, count in foreign.items()
            ]
        if refused := sum(len(log.own(REFUSED)) for log in self._logs):
            problems["refused_by_the_store"] = refused
        return problems

    def _count_foreign(self) -> dict[Path, int]:
        self._follow()
        counts = {log.path: sum(each.owner not in self._owners for each in log.records) for log in self._logs}
        return {path: count for path, count in counts.items() if count}

    def lock(self, key: Key, *, lease: float) -> AbstractAsyncContextManager[bool]:
        """See KeyValueStore."""
        return self._main.lock(key, lease=lease)

    @property
    def is_available(self) -> bool:
        """See KeyValueStore."""
        return self._main.is_available

    async def ping(self) -> None:
        """See KeyValueStore."""
        await self._main.ping()

    async def close(self) -> None:
        """Closes the logs, but not the store, which its owner closes."""
        for log in self._logs:
            log.close()


def _is_claim(write: Put | Append) -> bool:
    return isinstance(write, Put) and write.if_absent
