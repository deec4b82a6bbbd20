"""The write-behind queue: writes that no caller waits for, sent to the store in batches.

Theory of operation. A put, merge or append is queued as a function that makes its value; the first one starts a task.
After a delay it makes the values of all that waits and sends them to the store in batches, until nothing waits. A merge
is sent as a put with `if_absent` first; if the key has a value, its function is called again with that value, and the
result is written. The store takes writes while it is unavailable, too (spool.py). What it does not take is dropped and
counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import count
from typing import NamedTuple

from msgspec.structs import replace

from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Append, Key, Put

_log = logging.getLogger("accordion")

_DELAY, _BATCH = 0.05, 256
"""Seconds that a write waits for others, and writes in one batch: a store writes them well within its time-out, and
they are encoded in about half a millisecond."""
_SLOW_DELAY = 1.0
"""Seconds that a write of the slow queue waits. Writes go out in the order of their names: the more there are, the more
share a page of the store's index, and the number of pages decides the cost of writing."""


class _QueuedWrite(NamedTuple):
    """A write without its value, and the function that makes the value of the stored one, if that is known.

    A merge is a put with `if_absent`. If the key has a value, `make` is called with that; if not, `on_absent` is.
    """

    write: Put | Append
    make: Callable[[bytes | None], bytes]
    on_absent: Callable[[], object] = bytes


class WriteQueue:
    """An Outbox that writes in the background, by `write` (see KeyValueStore).

    `on_drop` is called with the number of writes that the store did not take. A value that is replaced before it is
    written is never made. A write waits for `delay` seconds for others.
    """

    def __init__(
        self,
        write: Callable[[Sequence[Put | Append]], Awaitable[dict[Key, bytes]]],
        *,
        on_drop: Callable[[int], None] = lambda _: None,
        delay: float = _DELAY,
    ) -> None:
        self._write, self._on_drop, self._delay = write, on_drop, delay
        self._queues = [self]
        """This queue and its slow queue."""
        self._writes: dict[Key | int, _QueuedWrite] = {}
        """Puts and merges by their keys, appends by numbers."""
        self._numbers, self._lock = count(), asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    def slow_queue(self) -> WriteQueue:
        """Returns the queue for writes that no request needs soon, such as totals; it writes once a second.

        `flush` of this queue applies to it, too.
        """
        if len(self._queues) == 1:
            self._queues.append(WriteQueue(self._write, on_drop=self._on_drop, delay=_SLOW_DELAY))
        return self._queues[1]

    @property
    def waiting(self) -> int:
        """The number of writes that were not sent yet."""
        return sum(len(queue._writes) for queue in self._queues)

    def put(self, key: Key, value: Callable[[], bytes], ttl: float | None = None) -> None:
        """See Outbox."""
        self._queue(key, _QueuedWrite(Put(key, b"", ttl), lambda _: value()))

    def merge(
        self,
        key: Key,
        value: Callable[[bytes | None], bytes],
        on_absent: Callable[[], object],
        ttl: float | None = None,
    ) -> None:
        """See Outbox."""
        self._queue(key, _QueuedWrite(Put(key, b"", ttl, if_absent=True), value, on_absent))

    def append(self, key: Key, value: Callable[[], bytes], keep: int | None = None, ttl: float | None = None) -> None:
        """See Outbox."""
        self._queue(next(self._numbers), _QueuedWrite(Append(key, b"", keep, ttl), lambda _: value()))

    def _queue(self, name: Key | int, queued: _QueuedWrite) -> None:
        self._writes[name] = queued
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        """Writes what waits, until nothing does."""
        while self._writes:
            await asyncio.sleep(self._delay)
            await self._write_all()

    async def flush(self) -> None:
        """See Outbox."""
        # In tasks of their own: a write must not end half-way because its caller does.
        await asyncio.shield(asyncio.gather(*(queue._write_all() for queue in self._queues)))

    async def _write_all(self) -> None:
        async with self._lock:
            # Writes that come in meanwhile are left for the next time: waiting for them too might never end.
            names = sorted(self._writes, key=lambda name: (True, "") if isinstance(name, int) else (False, name.name))
            # In several batches, so that requests, and writes whose callers wait, can run in between.
            for at in range(0, len(names), _BATCH):
                await self._write_batch([self._writes.pop(name) for name in names[at : at + _BATCH]])

    async def _write_batch(self, queued: Sequence[_QueuedWrite]) -> None:
        encoded = self._encode(queued, {})
        try:
            existing = await self._write([each.write for each in encoded])
            # A newer write of the key takes the place of a merge: a put knows the stored value, a merge hears of it.
            merges = [each for each in encoded if each.write.if_absent and each.write.key not in self._writes]
            for each in merges:
                if each.write.key not in existing:
                    each.on_absent()
            encoded = self._encode([each for each in merges if each.write.key in existing], existing)
            if encoded:
                await self._write([replace(each.write, if_absent=False) for each in encoded])
        except StoreUnavailable:
            self._on_drop(len(encoded))

    def _encode(self, queued: Sequence[_QueuedWrite], existing: Mapping[Key, bytes]) -> list[_QueuedWrite]:
        """Makes the values of writes, those of merges from what exists; drops those that cannot be made."""
        encoded = []
        for each in queued:
            try:
                value = each.make(existing.get(each.write.key))
            except Exception:
                collection = each.write.key.collection
                _log.exception("a value for the collection %r could not be encoded and is dropped", collection)
                self._on_drop(1)
            else:
                encoded.append(each._replace(write=replace(each.write, value=value)))
        return encoded
