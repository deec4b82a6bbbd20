"""The write-behind queue: writes that no caller waits for, sent to the store in batches.

Theory of operation. A put, merge or append is queued as a function that makes its value; the first one starts a timer.
When the timer fires, the queue makes the values of up to a batch of writes and sends them to the store, until all
writes that waited at the start are written. A merge is sent as a put with `if_absent` first; if the key has a value,
its function is called again with that value, and the result is written. The store takes writes while it is unavailable,
too (spool.py). What it does not take is dropped and counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count, islice

import msgspec
from msgspec.structs import astuple

from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Append, Key, KeyValueStore, Put

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


class _QueuedWrite(msgspec.Struct, frozen=True):
    """A function that makes a value, and seconds until it expires.

    A merge has the function to call if the key has no value; an append has the number of entries of the log that stay.
    """

    key: Key
    value: Callable[..., bytes]
    ttl: float | None
    on_absent: Callable[[], object] | None = None
    is_append: bool = False
    keep: int | None = None


class WriteQueue:
    """An Outbox that writes to a store in the background.

    `on_drop` is called with the number of writes that the store did not take. A value that is replaced before it is
    written is never made.
    """

    def __init__(
        self, store: KeyValueStore, *, on_drop: Callable[[int], None] = lambda _: None, is_slow: bool = False
    ) -> None:
        self._store, self._on_drop = store, on_drop
        self._delay, self._batch_size = (_SLOW_DELAY, _SLOW_BATCH) if is_slow else (_DELAY, _BATCH)
        self._slow_queue: WriteQueue | None = None
        self._writes: dict[Key | int, _QueuedWrite] = {}
        """Puts and merges by their keys, appends by numbers."""
        self._numbers = count()
        self._timer: asyncio.TimerHandle | None = None
        self._write_lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def slow_queue(self) -> WriteQueue:
        """Returns the queue for writes that no request needs soon, such as totals; it writes once a second.

        `flush`, `write_now` and `close` of this queue apply to it, too.
        """
        if self._slow_queue is None:
            self._slow_queue = WriteQueue(self._store, on_drop=self._on_drop, is_slow=True)
        return self._slow_queue

    @property
    def waiting(self) -> int:
        """The number of writes that were not sent yet."""
        return len(self._writes) + (self._slow_queue.waiting if self._slow_queue is not None else 0)

    def put(self, key: Key, value: Callable[[], bytes], ttl: float | None = None) -> None:
        """See Outbox."""
        self._queue(key, _QueuedWrite(key, value, ttl))

    def merge(
        self,
        key: Key,
        value: Callable[[bytes | None], bytes],
        on_absent: Callable[[], object],
        ttl: float | None = None,
    ) -> None:
        """See Outbox."""
        waiting = self._writes.get(key)
        if waiting is None or waiting.on_absent is not None:
            self._queue(key, _QueuedWrite(key, value, ttl, on_absent))
        elif (encoded := self._make_value(key, lambda: value(waiting.value()))) is not None:
            self._queue(key, _QueuedWrite(key, partial(bytes, encoded), ttl))

    def append(self, key: Key, value: Callable[[], bytes], keep: int | None = None, ttl: float | None = None) -> None:
        """See Outbox."""
        self._queue(next(self._numbers), _QueuedWrite(key, value, ttl, is_append=True, keep=keep))

    def _queue(self, name: Key | int, write: _QueuedWrite) -> None:
        self._writes[name] = write
        if self._timer is None:
            self._schedule()

    async def flush(self) -> None:
        """See Outbox."""
        # In a task of its own: a write must not end half-way because its caller does.
        await asyncio.shield(self._start_writing())
        if self._slow_queue is not None:
            await self._slow_queue.flush()

    def write_now(self) -> None:
        """Starts to write the waiting writes at once."""
        if self._timer is not None:
            self._start_writing()
        if self._slow_queue is not None:
            self._slow_queue.write_now()

    async def close(self) -> None:
        """Writes the waiting writes; those that the store does not take are dropped and counted."""
        with suppress(StoreUnavailable):
            await self.flush()

    def _schedule(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._delay, self._on_timer)

    def _on_timer(self) -> None:
        if self._write_lock.locked():
            # The store takes long: one attempt runs, and no other waits for it.
            self._schedule()
        else:
            self._start_writing()

    def _start_writing(self) -> asyncio.Task[None]:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        task = asyncio.get_running_loop().create_task(self._write_all())
        self._tasks.add(task)
        task.add_done_callback(self._after_writing)
        return task

    def _after_writing(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None and not isinstance(task.exception(), StoreUnavailable):
            _log.error("the write-behind queue failed", exc_info=task.exception())
        if self._writes and self._timer is None and not task.cancelled():
            self._schedule()

    async def _write_all(self) -> None:
        async with self._write_lock:
            # Writes that come in meanwhile are left for the next time: waiting for them too might never end.
            for _ in range(-(-len(self._writes) // self._batch_size)):
                await self._write_some()

    async def _write_some(self) -> None:
        is_backlogged = len(self._writes) > self._batch_size
        queued = [self._writes.pop(name) for name in list(islice(self._writes, self._batch_size))]
        # Adjacent names share pages of a store's index: in this order each page is written about once, also in steps.
        queued.sort(key=lambda write: (write.is_append, "" if write.is_append else write.key.name))
        existing: dict[Key, bytes] = {}
        try:
            batch = await self._encode(queued, existing, is_backlogged)
            # In several steps, so that writes whose callers wait can run in between.
            for at in range(0, len(batch), _BATCH):
                existing |= await self._store.write(batch[at : at + _BATCH])
            merges = [write for write in queued if write.on_absent is not None]
            absent = {write.key for write in batch if isinstance(write, Put) and write.key not in existing}
            self._report_absent([write for write in merges if write.key in absent])
            queued = [write for write in merges if write.key in existing]
            if batch := await self._encode(queued, existing, is_backlogged):
                await self._store.write(batch)
        except StoreUnavailable:
            self._on_drop(len(queued))
            raise

    async def _encode(
        self, queued: Sequence[_QueuedWrite], existing: Mapping[Key, bytes], is_backlogged: bool
    ) -> list[Put | Append]:
        """Makes the values of writes; those of merges from the existing values."""
        batch: list[Put | Append] = []
        for number, (key, value, ttl, on_absent, is_append, keep) in enumerate(map(astuple, queued)):
            if number % _TURN == 0 and not is_backlogged:
                await asyncio.sleep(0)
            is_merge, newer = on_absent is not None, self._writes.get(key)
            # A put that came meanwhile replaces this merge: its caller knew the stored value.
            if key in existing and newer is not None and newer.on_absent is None:
                continue
            # Nearly all keys of merges have no value: reading first costs more than a put that fails now and then.
            encoded = self._make_value(key, partial(value, existing.get(key)) if is_merge else value)
            if encoded is not None and is_append:
                batch.append(Append(key, encoded, keep, ttl))
            elif encoded is not None:
                batch.append(Put(key, encoded, ttl, if_absent=is_merge and key not in existing))
        return batch

    def _report_absent(self, merges: Sequence[_QueuedWrite]) -> None:
        """Calls `on_absent` of merges whose keys had no value.

        A merge of such a key that came meanwhile becomes a put: the stored value is this queue's own, and is older.
        """
        for merge in merges:
            for write in (merge, self._writes.get(merge.key)):
                if write is not None and write.on_absent is not None:
                    write.on_absent()
                    if write is not merge:
                        self._writes[merge.key] = _QueuedWrite(write.key, partial(write.value, None), write.ttl)

    def _make_value(self, key: Key, value: Callable[[], bytes]) -> bytes | None:
        """Makes a value; returns None if its function fails, so that other writes go on."""
        try:
            return value()
        except Exception:
            _log.exception("a value for the collection %r could not be encoded and is dropped", key.collection)
            self._on_drop(1)
            return None
