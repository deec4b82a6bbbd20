"""A store in memory, bounded by bytes: its content is lost with the process and not shared with other workers."""

from __future__ import annotations

import secrets
import time
from bisect import bisect_left, bisect_right
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
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

    Beyond that, the values and logs with the oldest last write are removed; where only one log is left, its oldest
    entries are. A value larger than the bound is not stored. `now` returns seconds that never go back.
    """

    def __init__(self, *, max_bytes: int = 64 * 1024 * 1024, now: Callable[[], float] = time.monotonic) -> None:
        self._max_bytes = max_bytes
        self._now = now
        self._bytes = 0
        self._values: dict[Key, _Value] = {}
        self._logs: dict[Key, _Log] = {}
        self._ages: OrderedDict[tuple[bool, Key], None] = OrderedDict()
        self._names: dict[str, list[str]] = {}
        self._locks: dict[Key, tuple[bytes, float]] = {}
        self._closed = False

    @property
    def size(self) -> int:
        """The size of the content in bytes, including the overhead."""
        return self._bytes

    async def put(self, key: Key, value: bytes, *, ttl: float | None = None) -> None:
        """See KeyValueStore."""
        self._check()
        self._put(key, value, ttl)

    async def put_if_absent(self, key: Key, value: bytes, *, ttl: float | None = None) -> bytes:
        """See KeyValueStore."""
        self._check()
        held = self._value(key)
        if held is not None:
            return held.value
        self._put(key, value, ttl)
        return value

    async def get(self, key: Key) -> bytes | None:
        """See KeyValueStore."""
        self._check()
        held = self._value(key)
        return None if held is None else held.value

    async def get_many(self, keys: Sequence[Key]) -> list[bytes | None]:
        """See KeyValueStore."""
        return [await self.get(key) for key in keys]

    async def delete(self, keys: Sequence[Key]) -> int:
        """See KeyValueStore."""
        self._check()
        held = 0
        for key in keys:
            held += self._value(key) is not None or self._log(key) is not None
            self._remove(False, key)
            self._remove(True, key)
        return held

    async def delete_unchanged(self, rows: Mapping[Key, bytes]) -> None:
        """Deletes values, each only where it is still equal to the one in `rows`."""
        await self.delete([key for key, value in rows.items() if await self.get(key) == value])

    async def append(
        self, key: Key, values: Sequence[bytes], *, keep: int | None = None, ttl: float | None = None
    ) -> int:
        """See KeyValueStore. Without values it changes nothing, and returns -1 where there is no log."""
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
        found: list[tuple[str, bytes]] = []
        while len(found) < limit and at < len(names) and names[at].startswith(prefix):
            name = names[at]
            held = self._value(Key(collection, name))
            if held is not None:  # an expired value was removed from `names` by `_value`
                found.append((name, held.value))
                at += 1
        return found

    async def write(self, batch: Sequence[Put | Append]) -> dict[Key, bytes]:
        """See KeyValueStore."""
        self._check()
        puts, runs = split_batch(batch)
        found: dict[Key, bytes] = {}
        for put in puts:
            held = self._value(put.key) if put.if_absent else None
            if held is None:
                self._put(put.key, put.value, put.ttl)
            else:
                found[put.key] = held.value
        for run in runs:
            self._append(run.key, run.values, run.keep, run.ttl)
        return found

    @asynccontextmanager
    async def lock(self, key: Key, *, lease: float) -> AsyncIterator[bool]:
        """See KeyValueStore."""
        self._check()
        token = secrets.token_bytes(16)
        holder = self._locks.get(key)
        free = holder is None or holder[1] <= self._now()
        if free:
            self._locks[key] = (token, self._now() + lease)
        try:
            yield free
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
        for held in (self._values, self._logs, self._ages, self._names, self._locks):
            held.clear()
        self._bytes = 0

    def _check(self) -> None:
        if self._closed:
            raise StoreUnavailable("the store is closed")

    def _expires(self, ttl: float | None) -> float | None:
        return None if ttl is None else self._now() + ttl

    def _value(self, key: Key) -> _Value | None:
        held = self._values.get(key)
        if held is not None and held.expires is not None and held.expires <= self._now():
            self._remove(False, key)
            return None
        return held

    def _log(self, key: Key) -> _Log | None:
        held = self._logs.get(key)
        if held is not None and held.expires is not None and held.expires <= self._now():
            self._remove(True, key)
            return None
        return held

    def _put(self, key: Key, value: bytes, ttl: float | None) -> None:
        self._remove(False, key, forget_name=False)
        held = _Value(value, self._expires(ttl), OVERHEAD + len(key.collection) + len(key.name) + len(value))
        if key.collection:
            names = self._names.setdefault(key.collection, [])
            at = bisect_left(names, key.name)
            if at == len(names) or names[at] != key.name:
                names.insert(at, key.name)
        self._values[key] = held
        self._grow(False, key, held.size)

    def _append(self, key: Key, values: Sequence[bytes], keep: int | None, ttl: float | None) -> int:
        log = self._log(key)
        grown = 0
        if log is None:
            grown = OVERHEAD + len(key.collection) + len(key.name)
            log = self._logs[key] = _Log(None, grown)
        log.expires = self._expires(ttl)
        log.entries.extend(values)
        log.next += len(values)
        added = sum(map(len, values)) + OVERHEAD * len(values)
        while keep is not None and len(log.entries) > keep:
            added -= len(log.entries.popleft()) + OVERHEAD
        log.size += added
        self._grow(True, key, grown + added)
        return log.next - 1

    def _remove(self, is_log: bool, key: Key, *, forget_name: bool = True) -> None:
        held: _Value | _Log | None = self._logs.pop(key, None) if is_log else self._values.pop(key, None)
        if held is None:
            return
        self._bytes -= held.size
        del self._ages[is_log, key]
        if not is_log and forget_name and key.collection:
            names = self._names[key.collection]
            del names[bisect_left(names, key.name)]
            if not names:
                del self._names[key.collection]

    def _grow(self, is_log: bool, key: Key, size: int) -> None:
        self._ages[is_log, key] = None
        self._ages.move_to_end((is_log, key))
        self._bytes += size
        while self._bytes > self._max_bytes:
            oldest_is_log, oldest = next(iter(self._ages))
            log = self._logs.get(oldest) if oldest_is_log else None
            if log is not None and len(self._ages) == 1 and len(log.entries) > 1:
                lost = len(log.entries.popleft()) + OVERHEAD
                log.size -= lost
                self._bytes -= lost
            else:
                self._remove(oldest_is_log, oldest)
