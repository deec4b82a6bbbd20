"""Writes that nobody waits for: gathered, then written together, a few times a second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice

from proxy.core.errors import StoreUnavailable
from proxy.core.ports import Append, Key, Put, Store

# How long a write waits for others, in seconds.
_GATHER = 0.05
# How many go in one batch: what a store manages well within its time-out, and what is encoded in about half a
# millisecond.
_BATCH = 256

_Value = Callable[[], bytes]


class GatheringOutbox:
    """An Outbox over a store. Holds at most `capacity` writes while the store is away; then the oldest are dropped.

    `on_drop` is told how many were. A value that is replaced before it was written costs nothing.
    """

    def __init__(
        self, store: Store, *, capacity: int = 20_000, on_drop: Callable[[int], None] = lambda _: None
    ) -> None:
        self._store = store
        self._capacity = capacity
        self._on_drop = on_drop
        self._puts: dict[Key, tuple[_Value, float | None]] = {}
        self._appends: list[tuple[Key, _Value, int | None, float | None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._writing = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def put(self, key: Key, value: _Value, ttl: float | None = None) -> None:
        """Keep a value under a key; see the port."""
        self._puts[key] = (value, ttl)
        self._soon()

    def append(self, key: Key, value: _Value, keep: int | None = None, ttl: float | None = None) -> None:
        """Add to the end of a log; see the port."""
        self._appends.append((key, value, keep, ttl))
        self._soon()

    async def flush(self) -> None:
        """Return when everything taken so far was written, or raise StoreUnavailable."""
        async with self._writing:
            while self._puts or self._appends:
                await self._write_some()

    async def close(self) -> None:
        """Write what is left, if the store takes it."""
        if self._timer is not None:
            self._timer.cancel()
        try:
            await self.flush()
        except StoreUnavailable:
            self._on_drop(len(self._puts) + len(self._appends))

    def _begin(self) -> None:
        self._timer = None
        task = asyncio.get_running_loop().create_task(self._flush_behind())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _flush_behind(self) -> None:
        try:
            await self.flush()
        except StoreUnavailable:
            self._bound()
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(20 * _GATHER, self._begin)

    def _soon(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_GATHER, self._begin)

    async def _write_some(self) -> None:
        puts = {key: self._puts.pop(key) for key in list(islice(self._puts, _BATCH))}
        appends, self._appends = self._appends[:_BATCH], self._appends[_BATCH:]
        batch: list[Put | Append] = [Put(key, value(), ttl) for key, (value, ttl) in puts.items()]
        batch += [Append(key, value(), keep, ttl) for key, value, keep, ttl in appends]
        try:
            await self._store.write(batch)
        except BaseException:
            # What came meanwhile is newer than what failed. An append that had been written after all, when only the
            # answer was lost, comes twice: a log may repeat an entry, it never lacks one.
            self._puts = puts | self._puts
            self._appends = appends + self._appends
            raise

    def _bound(self) -> None:
        dropped = 0
        while len(self._puts) > self._capacity:
            del self._puts[next(iter(self._puts))]
            dropped += 1
        if (over := len(self._appends) - self._capacity) > 0:
            del self._appends[:over]
            dropped += over
        if dropped:
            self._on_drop(dropped)
