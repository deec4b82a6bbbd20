"""A store in memory, bounded by bytes: its content is lost with the process and not shared with other workers."""

from __future__ import annotations

import secrets
import time
from bisect import bisect_left, bisect_right
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import islice

from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Append, Key, Put
from accordion.stores.batches import split_batch

OVERHEAD = 200
"""Bytes that a key or an entry takes in addition to its content, roughly."""


@dataclass(slots=True)
class _Value:
    value: bytes
    expires: float | None
    size: int


@dataclass(slots=True)
class _Log:
    expires: float | None
    size: int
    next: int = 0
    entries: deque[bytes] = field(default_factory=deque)


class InMemoryStore:
    """A KeyValueStore in dicts of about `max_bytes` at most.

    Beyond that, the values and logs with the oldest last write are removed; if only one log is left, its oldest
    entries are. A value larger than the bound is not stored. `now` returns seconds that never go back.
    """

    def __init__(self, *, max_bytes: int = 64 * 1024 * 1024, now: Callable[[], float] = time.monotonic) -> None:
        self._max_bytes = max_bytes
        self._now = now
        self._size_in_bytes = 0
        self._values: dict[Key, _Value] = {}
        self._logs: dict[Key, _Log] = {}
        self._write_order: OrderedDict[tuple[bool, Key], None] = OrderedDict()
        self._names: dict[str, list[str]] = {}
        self._locks: dict[Key, tuple[bytes, float]] = {}
        self._closed = False

    @property
    def size(self) -> int:
        """The size of the content in bytes, including the overhead."""
        return self._size_in_bytes

    async def put(self, key: Key, value: bytes, *, ttl: float | None = None) -> None:
        """See KeyValueStore."""
        self._check()
        self._put(key, value, ttl)

    async def put_if_absent(self, key: Key, value: bytes, *, ttl: float | None = None) -> bytes:
        """See KeyValueStore."""
        self._check()
        entry = self._value(key)
        if entry is not None:
            return entry.value
        self._put(key, value, ttl)
        return value

    async def get(self, key: Key) -> bytes | None:
        """See KeyValueStore."""
        self._check()
        entry = self._value(key)
        return None if entry is None else entry.value

    async def get_many(self, keys: Sequence[Key]) -> list[bytes | None]:
        """See KeyValueStore."""
        return [await self.get(key) for key in keys]

    async def delete(self, keys: Sequence[Key]) -> int:
        """See KeyValueStore."""
        self._check()
        count = 0
        for key in keys:
            count += self._value(key) is not None or self._log(key) is not None
            self._remove(False, key)
            self._remove(True, key)
        return count

    async def append(
        self, key: Key, values: Sequence[bytes], *, keep: int | None = None, ttl: float | None = None
    ) -> int:
        """See KeyValueStore. Without values it changes nothing, and returns -1 if there is no log."""
        self._check()
        log = self._log(key)
        if not values:
            return -1 if log is None else log.next - 1
        return self._append(key, values, keep, ttl)

    async def read(self, key: Key, start: int = 0, limit: int | None = None) -> list[tuple[int, bytes]]:
        """See KeyValueStore."""
        self._check()
        log = self._log(key)
        if log is None:
            return []
        first = log.next - len(log.entries)
        begin = max(first, log.next + start if start < 0 else start)
        end = log.next if limit is None else min(log.next, begin + max(0, limit))
        return list(zip(range(begin, end), islice(log.entries, begin - first, None), strict=False))

    async def scan(
        self, collection: str, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> list[tuple[str, bytes]]:
        """See KeyValueStore."""
        self._check()
        names = self._names.get(collection, [])
        at = bisect_left(names, prefix) if after < prefix else bisect_right(names, after)
        rows: list[tuple[str, bytes]] = []
        while len(rows) < limit and at < len(names) and names[at].startswith(prefix):
            name = names[at]
            entry = self._value(Key(collection, name))
            if entry is not None:  # an expired value was removed from `names` by `_value`
                rows.append((name, entry.value))
                at += 1
        return rows

    async def write(self, batch: Sequence[Put | Append]) -> dict[Key, bytes]:
        """See KeyValueStore."""
        self._check()
        puts, log_appends = split_batch(batch)
        existing: dict[Key, bytes] = {}
        for put in puts:
            entry = self._value(put.key) if put.if_absent else None
            if entry is None:
                self._put(put.key, put.value, put.ttl)
            else:
                existing[put.key] = entry.value
        for log_append in log_appends:
            self._append(log_append.key, log_append.values, log_append.keep, log_append.ttl)
        return existing

    @asynccontextmanager
    async def lock(self, key: Key, *, lease: float) -> AsyncIterator[bool]:
        """See KeyValueStore."""
        self._check()
        token = secrets.token_bytes(16)
        holder = self._locks.get(key)
        is_free = holder is None or holder[1] <= self._now()
        if is_free:
            self._locks[key] = (token, self._now() + lease)
        try:
            yield is_free
        finally:
            if self._locks.get(key, (b"", 0.0))[0] == token:
                del self._locks[key]

    @property
    def is_available(self) -> bool:
        """See KeyValueStore."""
        return not self._closed

    async def ping(self) -> None:
        """See KeyValueStore."""
        self._check()

    async def close(self) -> None:
        """See KeyValueStore. Drops all content."""
        self._closed = True
        for table in (self._values, self._logs, self._write_order, self._names, self._locks):
            table.clear()
        self._size_in_bytes = 0

    def _check(self) -> None:
        if self._closed:
            raise StoreUnavailable("the store is closed")

    def _expiry(self, ttl: float | None) -> float | None:
        return None if ttl is None else self._now() + ttl

    def _value(self, key: Key) -> _Value | None:
        entry = self._values.get(key)
        if entry is not None and entry.expires is not None and entry.expires <= self._now():
            self._remove(False, key)
            return None
        return entry

    def _log(self, key: Key) -> _Log | None:
        log = self._logs.get(key)
        if log is not None and log.expires is not None and log.expires <= self._now():
            self._remove(True, key)
            return None
        return log

    def _put(self, key: Key, value: bytes, ttl: float | None) -> None:
        self._remove(False, key, forget_name=False)
        entry = _Value(value, self._expiry(ttl), OVERHEAD + len(key.collection) + len(key.name) + len(value))
        if key.collection:
            names = self._names.setdefault(key.collection, [])
            at = bisect_left(names, key.name)
            if at == len(names) or names[at] != key.name:
                names.insert(at, key.name)
        self._values[key] = entry
        self._grow(False, key, entry.size)

    def _append(self, key: Key, values: Sequence[bytes], keep: int | None, ttl: float | None) -> int:
        log = self._log(key)
        log_overhead = 0
        if log is None:
            log_overhead = OVERHEAD + len(key.collection) + len(key.name)
            log = self._logs[key] = _Log(None, log_overhead)
        log.expires = self._expiry(ttl)
        log.entries.extend(values)
        log.next += len(values)
        growth = sum(map(len, values)) + OVERHEAD * len(values)
        while keep is not None and len(log.entries) > keep:
            growth -= len(log.entries.popleft()) + OVERHEAD
        log.size += growth
        self._grow(True, key, log_overhead + growth)
        return log.next - 1

    def _remove(self, is_log: bool, key: Key, *, forget_name: bool = True) -> None:
        entry: _Value | _Log | None = self._logs.pop(key, None) if is_log else self._values.pop(key, None)
        if entry is None:
            return
        self._size_in_bytes -= entry.size
        del self._write_order[is_log, key]
        if not is_log and forget_name and key.collection:
            names = self._names[key.collection]
            del names[bisect_left(names, key.name)]
            if not names:
                del self._names[key.collection]

    def _grow(self, is_log: bool, key: Key, size: int) -> None:
        self._write_order[is_log, key] = None
        self._write_order.move_to_end((is_log, key))
        self._size_in_bytes += size
        while self._size_in_bytes > self._max_bytes:
            oldest_is_log, oldest = next(iter(self._write_order))
            log = self._logs.get(oldest) if oldest_is_log else None
            if log is not None and len(self._write_order) == 1 and len(log.entries) > 1:
                freed = len(log.entries.popleft()) + OVERHEAD
                log.size -= freed
                self._size_in_bytes -= freed
            else:
                self._remove(oldest_is_log, oldest)
