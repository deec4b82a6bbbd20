"""The spool: writes that wait on this machine while the store is unavailable.

Theory of operation. `SpooledStore` is between a `GuardedStore` and its users. While the store is available and nothing
waits, every call goes to the store. Otherwise writes go to a waiting log (waiting_log.py), and reads look there first,
so that the workers of a machine find each other's compactions. When the store is available again, one worker publishes
the log: it sends the writes to the store in pieces, in order, and then removes the file.

While anything waits, a batch goes to the log if it has a claim (a put with `if_absent`) or a key that waits: the store
never has a claim without what was written before it. Other batches go to the store.

Another log (`…-recent`) has copies of recent records that the store took. They are read only while it is
unavailable, and expire after an hour; when the file is full, the older half goes.

The log is in the first of several places that takes it. While anything waits in a later place, what follows goes there
too; `poll` moves it back. A record names the store that it is for: by its identity or, before it has answered once, by
its address and the secret of its tenants. Records of other stores stay where they are.

A second log beside each (`…-store`) has the identity and the secret of the last store that answered. They are read
before anything else; if there are none, the first worker makes up the secret, and a new store takes it over
(StoreIdentity). Nobody ever replaces or removes that file, so its lock is the lock of the spool: whoever changes what
waits holds it.

What belongs to an erased session is found by the lists that wait with it or are in the store. So a publisher asks what
was erased before it begins and, about all that it published, before it removes the file.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from itertools import groupby
from operator import attrgetter
from pathlib import Path

import msgspec
from msgspec.structs import replace

from accordion.archive.retention import delete
from accordion.model.errors import ConfigError, StoreUnavailable
from accordion.model.ports import Append, ErasedWrites, Key, KeyValueStore, Put
from accordion.stores.store_layer import StoreLayer
from accordion.stores.waiting_log import PUBLISHED, WAITING, Record, WaitingLog

_log = logging.getLogger("accordion")

_TRIES, _PAUSE, _PATIENCE = 200, 0.005, 1.0
"""Attempts to get the lock of the spool, seconds between them, and seconds to wait for it at the start."""
_PIECE = 2**16
"""Bytes that are published at once, which a store writes well within its time-out; more if a single write has more."""
_COPY_SECONDS, _COPY_SHARE = 3_600.0, 8
"""Seconds for which copies are read; they take at most an eighth of the capacity."""

Settle = Callable[[Put, bytes], bytes | None]
"""Takes a write that waited and the store's different value; returns the value to write instead. With None, the store's
value stays if the write is a claim, and is replaced otherwise."""


class StoreRecord(msgspec.Struct, array_like=True, frozen=True):
    """The identity of a store, empty before it has answered, and the secret of its tenants."""

    identity: bytes = b""
    secret: bytes = b""


class SpooledStore(StoreLayer):
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
        super().__init__(main)
        self._address_hash, self._tenant_key, self._now = address_hash, tenant_key, now
        self._is_copied, self._is_merged = is_copied, is_merged
        self._logs = [WaitingLog(path, capacity, now) for path in places]
        self._recent = [
            WaitingLog(path.with_name(f"{path.name}-recent"), capacity // _COPY_SHARE, now) for path in places[:1]
        ]
        self._store_logs = [WaitingLog(path.with_name(f"{path.name}-store"), 2**16, now) for path in places]
        self._files = (*self._logs, *self._recent, *self._store_logs)
        self._owners: Sequence[bytes] = ()
        self._erasure_count = 0
        self._refused = set[Put | Append]()
        """What the store refused, although it took others: the next process tries it again."""
        self.settle: Settle = lambda *_: None
        self.find_erased: Callable[[Sequence[Put | Append]], Awaitable[ErasedWrites]] | None = None
        """Finds what was erased of writes that wait. Raises StoreUnavailable. None: nothing is erased."""
        self.confirm: Callable[[], Awaitable[object]] = main.ping
        """Finds out which store answers and calls `identify` with it. Raises StoreUnavailable."""

    # -- the store ----------------------------------------------------------------

    def check(self) -> StoreRecord:
        """Returns the record of the last store. Raises ConfigError for a file that is damaged or no spool."""
        for log in self._files:
            with suppress(OSError):
                log.reload()
        if damaged := [log.path for log in self._store_logs if log.damaged]:
            hint = "restore it, or, if nothing waits beside it or the store answers, delete it"
            raise ConfigError(f"{damaged[0]}, which says for which store writes wait, is damaged: {hint}")
        records = [record for log in self._store_logs for record in log.records]
        newest = max(records, key=attrgetter("written"), default=None)
        return StoreRecord() if newest is None else msgspec.msgpack.decode(newest.write.value, type=StoreRecord)

    def recall(self, secret: bytes) -> StoreRecord:
        """Returns the record of the last store; without one, makes one with the first worker's `secret`.

        To be called before anything else. Raises ConfigError if a file is damaged or is another program's.
        """
        former = self.check()
        secret = former.secret or (b"" if self._tenant_key else secret)
        record = self._save(StoreRecord(former.identity, secret), former)
        self._set_owners(record)
        return record

    def identify(self, record: StoreRecord) -> None:
        """Sets which store has answered; new writes are for that store. Never fails."""
        self._save(record, self.check())
        self._set_owners(record)
        if foreign := self.describe().get("kept_for_other_stores"):
            _log.warning("writes that wait are for another store, and are left there: %s", foreign)

    def _save(self, record: StoreRecord, former: StoreRecord) -> StoreRecord:
        """Writes the record, unless another worker wrote one meanwhile; returns what is there."""
        for log in self._store_logs:
            with suppress(OSError):
                log.path.parent.mkdir(parents=True, exist_ok=True)
                log.path.touch(0o600)
                if record != former:
                    with log.locked(_PATIENCE):
                        if self.check() == former:
                            log.append([Record(b"", self._now(), Put(Key("", ""), msgspec.msgpack.encode(record)))])
                break
        saved = self.check()
        return record if saved == StoreRecord() else saved

    def _set_owners(self, record: StoreRecord) -> None:
        secret = self._tenant_key or record.secret
        unknown = hashlib.sha256(self._address_hash.encode() + b"\n" + secret).digest()[:16]
        self._owners = (record.identity, unknown) if record.identity else (unknown,)
        for log in (*self._logs, *self._recent):
            log.owners = self._owners
            log.close()

    async def _lock(self) -> ExitStack:
        """Takes the lock of the spool, and reads what is new in all logs. Raises StoreUnavailable."""
        store_logs = [log for log in self._store_logs if log.path.exists()]
        for _ in range(_TRIES if store_logs else 0):
            with ExitStack() as locks, suppress(OSError):
                for log in store_logs:
                    locks.enter_context(log.locked())
                self._follow(self._logs)
                return locks.pop_all()
            await asyncio.sleep(_PAUSE)
        raise StoreUnavailable("the spool cannot be locked")

    # -- reading ------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """Whether the logs have no records of this store."""
        self._follow(self._logs)
        return not any(log.by_key for log in self._logs)

    def _follow(self, logs: Iterable[WaitingLog]) -> None:
        """Reads what other workers appended, by a call or two for each log. A log that cannot be read is empty."""
        for log in logs:
            try:
                log.follow()
            except (OSError, ConfigError):
                log.close()

    def _find(self, keys: Iterable[Key], logs: Iterable[WaitingLog]) -> dict[Key, bytes]:
        """Returns the values that logs have of these keys."""
        found = [(key, log.find(key)) for log in logs for key in keys]
        return {key: value for key, value in found if value is not None}

    async def get_many(self, keys: Sequence[Key]) -> list[bytes | None]:
        """See KeyValueStore."""
        values: dict[Key, bytes | None] = {} if self.is_empty else {**self._find(keys, self._logs)}
        missing = [key for key in keys if key not in values]
        try:
            values |= zip(missing, await self._main.get_many(missing), strict=True) if missing else ()
        except StoreUnavailable:
            self._follow(self._recent)
            values |= self._find(missing, self._recent)
            if not values:
                raise
        return [values.get(key) for key in keys]

    async def scan(
        self, collection: str, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> list[tuple[str, bytes]]:
        """See KeyValueStore."""
        self._follow(self._logs)
        keys = [key for log in self._logs for key in log.by_key if key.collection == collection]
        chosen = [key for key in keys if key.name.startswith(prefix) and key.name > after]
        waiting = {key.name: value for key, value in self._find(chosen, self._logs).items()}
        try:
            stored = await self._main.scan(collection, prefix=prefix, after=after, limit=limit)
        except StoreUnavailable:
            if not waiting:
                raise
            stored = []
        return sorted({**dict(stored), **waiting}.items())[:limit]

    # -- writing ------------------------------------------------------------------

    async def write(self, batch: Sequence[Put | Append], *, share: float = 1.0) -> dict[Key, bytes]:
        """See KeyValueStore. The batch may use this share of the capacity of a log."""
        with suppress(StoreUnavailable):
            if self.is_empty or not self._must_wait(batch):
                return await self._write_main(batch, is_copied=share == 1.0)
        return await self._append(batch, share)

    async def write_minor(self, batch: Sequence[Put | Append]) -> dict[Key, bytes]:
        """Writes a batch that may use only half of the capacity, to leave space for compactions."""
        return await self.write(batch, share=0.5)

    def _must_wait(self, batch: Sequence[Put | Append]) -> bool:
        """Whether a batch must not reach the store before what waits."""
        has_claim = any(write.if_absent for write in batch) and any(map(self._waiting, self._logs))
        return has_claim or any(write.key in log.by_key for log in self._logs for write in batch)

    def _waiting(self, log: WaitingLog) -> list[Record]:
        """Returns the records that are to be published, without what the store refused."""
        return [each for each in log.own if each.state == WAITING and each.write not in self._refused]

    async def _append(self, batch: Sequence[Put | Append], share: float = 1.0) -> dict[Key, bytes]:
        """Appends a batch to the first log that takes it, behind what waits; returns the values of earlier claims."""
        claims, existing = [write.key for write in batch if write.if_absent], dict[Key, bytes]()
        with suppress(StoreUnavailable):
            values = await self.get_many(claims)
            existing = {key: value for key, value in zip(claims, values, strict=True) if value is not None}
        with await self._lock():
            existing |= self._find(claims, self._logs)
            writes = [write for write in batch if not (write.if_absent and write.key in existing)]
            records = [Record(self._owners[0], self._now(), write) for write in writes]
            first = max((at for at, log in enumerate(self._logs) if log.by_key), default=0)
            for log in self._logs[first:]:
                with suppress(OSError):
                    if records:
                        log.append(records, share)
                    if log is not self._logs[0] and len(log.records) == len(records):
                        _log.warning("what is to be stored is kept in memory only: it is lost if this machine restarts")
                    return existing
        raise StoreUnavailable("neither the store nor the spool takes writes")

    async def _write_main(self, batch: Sequence[Put | Append], *, is_copied: bool = True) -> dict[Key, bytes]:
        """Writes a batch to the store, and copies some of its records, unless something is erased meanwhile.

        The writer waits for the copies, so that the last copy of a key is the newest.
        """
        erasure_count = self._erasure_count
        existing = await self._main.write(batch)
        puts = [write for write in batch if is_copied and isinstance(write, Put) and self._is_copied(write.key)]
        if puts and self._recent:
            written, copies = self._now(), list[Record]()
            for put in puts:
                ttl = _COPY_SECONDS if put.ttl is None else min(put.ttl, _COPY_SECONDS)
                copy = Put(put.key, existing.get(put.key, put.value), ttl)
                copies.append(Record(self._owners[0], written, copy))
            with suppress(StoreUnavailable, OSError), await self._lock():
                if erasure_count == self._erasure_count:
                    self._recent[0].append_newest(copies)
        return existing

    async def delete(self, keys: Sequence[Key]) -> int:
        """See KeyValueStore."""
        count, erased = await self._main.delete(keys), set(keys)
        self._follow((*self._logs, *self._recent))
        logs = [log for log in (*self._logs, *self._recent) if log.by_key.keys() & erased]
        writes = await self._erase(logs, lambda record: record.write.key in erased)
        return max(count, len({write.key for write in writes}))

    async def _erase(self, logs: Sequence[WaitingLog], is_erased: Callable[[Record], bool]) -> list[Put | Append]:
        """Erases records of this store in logs; returns their writes."""
        if not any(log.path.exists() for log in logs):
            return []
        try:
            with await self._lock():
                return [write for log in logs for write in log.erase(is_erased)]
        except OSError as error:
            raise StoreUnavailable(f"the spool cannot be used: {error}") from error

    async def drop_erased(
        self, is_erased: Callable[[Key], bool] = lambda _: False, *, copies: bool = True
    ) -> list[Put | Append]:
        """Removes erased writes that wait, and those of keys that `is_erased`, and returns them. Works on a full disk.

        With `copies` it also removes all copies, since a copy does not name its session. Raises StoreUnavailable.
        """
        self._erasure_count += copies
        erased = await self._delete_erased()
        if copies:
            await self._erase(self._recent, lambda _: True)
        return await self._erase(self._logs, lambda record: record.write in erased or is_erased(record.write.key))

    async def _delete_erased(self) -> ErasedWrites:
        """Returns what was erased of the writes in the logs, and deletes it from the store."""
        self._follow(self._logs)
        writes = [record.write for log in self._logs for record in log.own]
        erased = await self.find_erased(writes) if writes and self.find_erased else ErasedWrites()
        await delete(self._main, erased.stored_keys)
        return erased

    # -- publishing ---------------------------------------------------------------

    async def poll(self) -> None:
        """Publishes the waiting writes; while the store is unavailable, moves them to the first place.

        To be called about every second. Never fails.
        """
        with suppress(StoreUnavailable, OSError):
            if self._main.is_available:
                return await self.publish()
            for log in self._logs[1:]:
                with log.locked(), await self._lock():
                    self._logs[0].append(log.records)
                    log.remove()

    async def publish(self) -> None:
        """Publishes the waiting writes. Raises StoreUnavailable; then they still wait. Raises OSError if another worker
        publishes them."""
        self._follow(self._logs)
        logs = [log for log in self._logs if log.path.exists()]
        if all(log.records and self._refused.issuperset(each.write for each in log.own) for log in logs):
            return
        # The store that answers now may be another one at the same address.
        await self.confirm()
        await self.drop_erased(copies=False)
        for log in self._logs:
            if log.path.exists():
                with log.locked():
                    await self._publish(log)

    async def _publish(self, log: WaitingLog) -> None:
        """Publishes a log, whose lock is held, and leaves in it what does not wait."""
        while waiting := self._waiting(log):
            for _, piece in groupby(waiting, key=lambda record: record.at // _PIECE):
                await self._publish_piece(log, list(piece))
            log.follow()
        # An erasure may have searched the store before these writes reached it.
        await self._delete_erased()
        with await self._lock():
            if not self._waiting(log):
                log.reload()
                log.shorten(lambda record: record.state != PUBLISHED or record.owner not in self._owners)

    async def _publish_piece(self, log: WaitingLog, records: Sequence[Record]) -> None:
        """Publishes records; if the store refuses them although it is available, each of them alone."""
        try:
            await self._write_settled([record.write for record in records if record.is_current(self._now())])
            log.set_state(records, PUBLISHED)
        except StoreUnavailable as error:
            if not self._main.is_available:
                raise
            for record in records if len(records) > 1 else ():
                await self._publish_piece(log, [record])
            if len(records) == 1:
                self._refused.add(records[0].write)
                _log.error("the store refused a write, which stays in the spool until the next start: %s", error)

    async def _write_settled(self, batch: Sequence[Put | Append]) -> None:
        """Writes a batch in its order; settles values that are merged, and claims that lost."""
        newest = {id(write) if isinstance(write, Append) else write.key: write for write in batch}
        puts = {write.key: write for write in newest.values() if isinstance(write, Put)}
        existing = await self._write_main([self._as_claim(write) for write in newest.values()])
        settled = list[Put]()
        for put, stored in ((puts[key], stored) for key, stored in existing.items()):
            value = self.settle(put, stored) if stored != put.value else stored
            if value is not None or not put.if_absent:
                settled.append(Put(put.key, put.value if value is None else value, put.ttl))
        if settled:
            await self._write_main(settled)

    def _as_claim(self, write: Put | Append) -> Put | Append:
        """Returns a put of a value that is merged as a claim, and other writes as they are."""
        return replace(write, if_absent=True) if isinstance(write, Put) and self._is_merged(write.key) else write

    def describe(self) -> dict[str, object]:
        """Returns problems for the operator: bytes only in memory, writes for other stores, refused writes."""
        self._follow(self._logs)
        foreign = {log.path: sum(each.owner not in self._owners for each in log.records) for log in self._logs}
        problems = {
            "in_memory_only_bytes": sum(each.end - each.at for log in self._logs[1:] for each in log.own),
            "kept_for_other_stores": [{"file": str(path), "writes": count} for path, count in foreign.items() if count],
            "refused_by_the_store": sum(each.write in self._refused for log in self._logs for each in log.own),
        }
        return {name: problem for name, problem in problems.items() if problem}

    async def close(self) -> None:
        """Closes the logs, but not the store, which its owner closes."""
        for log in self._files:
            log.close()
