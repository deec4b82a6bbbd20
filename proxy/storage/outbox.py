"""Writes that nobody waits for: gathered, then written together, a few times a second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from proxy.core.errors import StoreUnavailable
from proxy.core.ports import Append, Key, Put, Store

# How long a write waits for others, in seconds.
_GATHER = 0.2
# How many go in one batch: what a store manages well within its time-out.
_BATCH = 2_000


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
        self._puts: dict[Key, Put] = {}
        self._appends: list[Append] = []
        self._timer: asyncio.TimerHandle | None = None
        self._writing = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, write: Put | Append) -> None:
        """Take a write; see the port."""
        if isinstance(write, Put):
            self._puts[write.key] = write
        else:
            self._appends.append(write)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_GATHER, self._begin)

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
                self._timer = asyncio.get_running_loop().call_later(5 * _GATHER, self._begin)

    async def _write_some(self) -> None:
        keys = list(self._puts)[:_BATCH]
        puts = [self._puts.pop(key) for key in keys]
        appends, self._appends = self._appends[:_BATCH], self._appends[_BATCH:]
        try:
            await self._store.write([*puts, *appends])
        except BaseException:
            # What came meanwhile is newer than what failed. An append that had been written after all, when only the
            # answer was lost, comes twice: a log may repeat an entry, it never lacks one.
            self._puts = {put.key: put for put in puts} | self._puts
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
