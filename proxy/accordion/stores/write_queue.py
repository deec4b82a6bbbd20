"""The write-behind queue: writes that no caller waits for, sent to the store in batches.

Theory of operation. A put, merge or append is queued as a function that makes its value; the first one starts a task.
After a delay it makes the values of up to a batch of writes and sends them to the store, until all writes that waited
are written. A merge is sent as a put with `if_absent` first; if the key has a value, its function is called again with
that value, and the result is written. The store takes writes while it is unavailable, too (spool.py). What it does not
take is dropped and counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count, islice
from typing import NamedTuple

from msgspec.structs import replace

from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Append, Key, Put

_log = logging.getLogger("accordion")

_DELAY, _BATCH = 0.05, 256
"""Seconds that a write waits for others, and writes in one batch: a store writes them well within its time-out, and
they are encoded in about half a millisecond."""
_SLOW_DELAY, _SLOW_BATCH = 1.0, 2_048
"""The same for the slow queue. Batches are sorted by name: the larger they are, the more writes share a page of the
store's index, and the number of pages decides the cost of writing."""
_TURN = 16
"""Values that are encoded before requests may run. While more writes wait than fit in one batch, a whole batch is
encoded at once: a turn of a busy event loop takes long, and writes must not come in faster than they go out."""


class _QueuedWrite(NamedTuple):
    """A write without its value, and the function that makes the value.

    A merge is a put with `if_absent`. If the key has a value, `merge` is called with that; if not, `on_absent` is.
    """

    write: Put | Append
    value: Callable[[], bytes]
    merge: Callable[[bytes | None], bytes] | None = None
    on_absent: Callable[[], object] = bytes


class WriteQueue:
    """An Outbox that writes in the background, by `write` (see KeyValueStore).

    `on_drop` is called with the number of writes that the store did not take. A value that is replaced before it is
    written is never made.
    """

    def __init__(
        self,
        write: Callable[[Sequence[Put | Append]], Awaitable[dict[Key, bytes]]],
        *,
        on_drop: Callable[[int], None] = lambda _: None,
        is_slow: bool = False,
    ) -> None:
        self._write, self._on_drop = write, on_drop
        self._delay, self._batch_size = (_SLOW_DELAY, _SLOW_BATCH) if is_slow else (_DELAY, _BATCH)
        self._queues = [self]
        """This queue and its slow queue."""
        self._writes: dict[Key | int, _QueuedWrite] = {}
        """Puts and merges by their keys, appends by numbers."""
        self._numbers, self._lock, self._is_due = count(), asyncio.Lock(), asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def slow_queue(self) -> WriteQueue:
        """Returns the queue for writes that no request needs soon, such as totals; it writes once a second.

        `flush`, `write_now` and `close` of this queue apply to it, too.
        """
        if len(self._queues) == 1:
            self._queues.append(WriteQueue(self._write, on_drop=self._on_drop, is_slow=True))
        return self._queues[1]

    @property
    def waiting(self) -> int:
        """The number of writes that were not sent yet."""
        return sum(len(queue._writes) for queue in self._queues)

    def put(self, key: Key, value: Callable[[], bytes], ttl: float | None = None) -> None:
        """See Outbox."""
        self._queue(key, _QueuedWrite(Put(key, b"", ttl), value))

    def merge(
        self,
        key: Key,
        value: Callable[[bytes | None], bytes],
        on_absent: Callable[[], object],
        ttl: float | None = None,
    ) -> None:
        """See Outbox."""
        self._queue(key, _QueuedWrite(Put(key, b"", ttl, if_absent=True), partial(value, None), value, on_absent))

    def append(self, key: Key, value: Callable[[], bytes], keep: int | None = None, ttl: float | None = None) -> None:
        """See Outbox."""
        self._queue(next(self._numbers), _QueuedWrite(Append(key, b"", keep, ttl), value))

    def _queue(self, name: Key | int, queued: _QueuedWrite) -> None:
        self._writes[name] = queued
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        """Writes what waits, until nothing does."""
        while self._writes:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._delay):
                    await self._is_due.wait()
            self._is_due.clear()
            with suppress(StoreUnavailable):
                await self._write_all()

    async def flush(self) -> None:
        """See Outbox."""
        for queue in self._queues:
            # In a task of its own: a write must not end half-way because its caller does.
            await asyncio.shield(asyncio.create_task(queue._write_all()))

    def write_now(self) -> None:
        """Starts to write the waiting writes at once."""
        for queue in self._queues:
            queue._is_due.set()

    async def close(self) -> None:
        """Writes the waiting writes; those that the store does not take are dropped and counted."""
        for queue in self._queues:
            with suppress(StoreUnavailable):
                await queue._write_all()

    async def _write_all(self) -> None:
        async with self._lock:
            # Writes that come in meanwhile are left for the next time: waiting for them too might never end.
            for _ in range(-(-len(self._writes) // self._batch_size)):
                await self._write_some()

    async def _write_some(self) -> None:
        is_backlogged = len(self._writes) > self._batch_size
        queued = [self._writes.pop(name) for name in list(islice(self._writes, self._batch_size))]
        # Adjacent names share pages of a store's index: in this order each page is written about once, also in steps.
        queued.sort(
            key=lambda each: (isinstance(each.write, Append), each.write.key.name * isinstance(each.write, Put))
        )
        existing: dict[Key, bytes] = {}
        try:
            batch = await self._encode(queued, is_backlogged)
            # In several steps, so that writes whose callers wait can run in between.
            for at in range(0, len(batch), _BATCH):
                existing |= await self._write(batch[at : at + _BATCH])
            sent = {write.key for write in batch if write.if_absent}
            if queued := self._settle([each for each in queued if each.merge and each.write.key in sent], existing):
                await self._write(await self._encode(queued, is_backlogged))
        except StoreUnavailable:
            self._on_drop(len(queued))
            raise

    async def _encode(self, queued: Sequence[_QueuedWrite], is_backlogged: bool) -> list[Put | Append]:
        """Makes the values of writes; drops those that cannot be made."""
        batch: list[Put | Append] = []
        for number, each in enumerate(queued):
            if number % _TURN == 0 and not is_backlogged:
                await asyncio.sleep(0)
            try:
                batch.append(replace(each.write, value=each.value()))
            except Exception:
                collection = each.write.key.collection
                _log.exception("a value for the collection %r could not be encoded and is dropped", collection)
                self._on_drop(1)
        return batch

    def _settle(self, merges: Sequence[_QueuedWrite], existing: Mapping[Key, bytes]) -> list[_QueuedWrite]:
        """Returns what to write for merges whose keys had a value; for the others calls `on_absent`.

        A put that came meanwhile replaces a merge: its caller knew the stored value. A merge that came meanwhile of a
        key that had none becomes a put: the stored value is this queue's own, and is older.
        """
        settled = []
        for write, _, merge, on_absent in merges:
            newer = self._writes.get(write.key)
            if write.key not in existing:
                on_absent()
                if newer is not None and newer.merge is not None:
                    newer.on_absent()
                    self._writes[write.key] = _QueuedWrite(replace(newer.write, if_absent=False), newer.value)
            elif merge is not None and (newer is None or newer.merge is not None):
                settled.append(_QueuedWrite(replace(write, if_absent=False), partial(merge, existing[write.key])))
        return settled
