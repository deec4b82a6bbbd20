"""The write-behind queue: writes that no caller waits for, sent to the store in batches.

Theory of operation. A put, merge or append is queued as a function that makes its value; the first one starts a timer.
When the timer fires, the queue makes the values of up to a batch of writes and sends them to the store, until all
writes that waited at the start are written. A merge is sent as a put with `if_absent` first; if the key has a value,
its function is called again with that value, and the result is written. If the store is unavailable, the writes go back
to the queue, except those that a newer write replaced, and are tried again later. Beyond the capacity the oldest are
dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from operator import attrgetter

from accordion.model.cache import string_size
from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Append, Key, KeyValueStore, Put

_log = logging.getLogger("accordion")

# Seconds that a write waits for others.
_DELAY = 0.05
# Writes in one batch: a store writes them well within its time-out, and they are encoded in about half a millisecond.
_BATCH = 256

# The delay and the batch size of the slow queue. Batches are sorted by name: the larger they are, the more writes share
# a page of the store's index, and the number of pages decides the cost of writing.
_SLOW_DELAY, _SLOW_BATCH = 1.0, 2_048

# Seconds until the next attempt while the store is unavailable.
_RETRY_DELAY = 1.0

# Values that are encoded before requests may run. While more writes wait than fit in one batch, a whole batch is
# encoded at once: a turn of a busy event loop takes long, and writes must not come in faster than they go out.
_TURN = 16

# Bytes of writes that wait in memory while the store is unavailable. 20,000 ordinary writes take 20 MiB (measured:
# values of 170 to 600 bytes); the record of a response history at a provider takes 2 KB, and may take megabytes.
_CAPACITY = 32 * 2**20

_Value = Callable[[], bytes]
_name = attrgetter("name")


# A waiting put or merge: the function that makes the value; the seconds until it expires; for a merge, the function to
# call if the key has no value; and the size in bytes, 0 until it is measured.
_QueuedPut = tuple[Callable[..., bytes], float | None, Callable[[], object] | None, int]
_NO_PUT: _QueuedPut = bytes, None, None, 0
# A waiting append: the key of the log, the function that makes the entry, the number of entries that stay, the seconds
# until the log expires, and the size as above.
_QueuedAppend = tuple[Key, _Value, int | None, float | None, int]


class WriteQueue:
    """An Outbox that writes to a store in the background.

    While the store is unavailable, at most `capacity` bytes wait, half of them for puts and merges and half for entries
    of logs; beyond that the oldest are dropped. `on_drop` is called with the number of dropped writes. A value that is
    replaced before it is written is never made.
    """

    def __init__(
        self, store: KeyValueStore, *, capacity: int = _CAPACITY, on_drop: Callable[[int], None] = lambda _: None
    ) -> None:
        self._store = store
        self._capacity = capacity
        self._on_drop = on_drop
        self._delay, self._batch_size = _DELAY, _BATCH
        self._slow_queue: WriteQueue | None = None
        self._puts: dict[Key, _QueuedPut] = {}
        self._appends: list[_QueuedAppend] = []
        self._timer: asyncio.TimerHandle | None = None
        self._write_lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def slow_queue(self, store: KeyValueStore | None = None) -> WriteQueue:
        """Returns the queue for writes that no request needs soon, such as totals; it writes once a second.

        It writes to `store`, or to this queue's store without one. `flush`, `drop`, `write_now` and `close` of this
        queue apply to it, too.
        """
        if self._slow_queue is None:
            self._slow_queue = WriteQueue(store or self._store, capacity=self._capacity, on_drop=self._on_drop)
            self._slow_queue._delay, self._slow_queue._batch_size = _SLOW_DELAY, _SLOW_BATCH
        return self._slow_queue

    @property
    def waiting(self) -> int:
        """The number of writes that are not in the store yet."""
        own = len(self._puts) + len(self._appends)
        return own + (self._slow_queue.waiting if self._slow_queue is not None else 0)

    def put(self, key: Key, value: _Value, ttl: float | None = None) -> None:
        """See Outbox."""
        self._puts[key] = value, ttl, None, 0
        if self._timer is None:
            self._schedule()

    def merge(
        self,
        key: Key,
        value: Callable[[bytes | None], bytes],
        on_absent: Callable[[], object],
        ttl: float | None = None,
    ) -> None:
        """See Outbox."""
        self._enqueue(key, (value, ttl, on_absent, 0))
        if self._timer is None:
            self._schedule()

    def append(self, key: Key, value: _Value, keep: int | None = None, ttl: float | None = None) -> None:
        """See Outbox."""
        self._appends.append((key, value, keep, ttl, 0))
        if self._timer is None:
            self._schedule()

    async def flush(self) -> None:
        """See Outbox."""
        await self._write_all()
        if self._slow_queue is not None:
            await self._slow_queue.flush()

    async def drop(self, is_erased: Callable[[Key], bool]) -> list[Key]:
        """See Outbox."""
        async with self._write_lock:
            dropped = [key for key in (*self._puts, *(entry[0] for entry in self._appends)) if is_erased(key)]
            self._puts = {key: queued_put for key, queued_put in self._puts.items() if not is_erased(key)}
            self._appends = [entry for entry in self._appends if not is_erased(entry[0])]
        return dropped + (await self._slow_queue.drop(is_erased) if self._slow_queue is not None else [])

    def write_now(self) -> None:
        """Starts to write the waiting writes at once."""
        if self._timer is not None:
            self._timer.cancel()
            self._start_writing()
        if self._slow_queue is not None:
            self._slow_queue.write_now()

    async def close(self) -> None:
        """Writes the waiting writes; those that the store does not take are dropped and counted."""
        if self._timer is not None:
            self._timer.cancel()
        try:
            await self._write_all()
        except StoreUnavailable:
            self._on_drop(len(self._puts) + len(self._appends))
        if self._slow_queue is not None:
            await self._slow_queue.close()

    def _enqueue(self, key: Key, queued_put: _QueuedPut) -> None:
        """Queues the newest write of a key. A merge with a waiting put is made from that put's value at once."""
        value, ttl, on_absent, _ = queued_put
        waiting = self._puts.get(key) if on_absent else None
        if waiting is None or waiting[2]:
            self._puts[key] = queued_put
        elif (encoded := self._make_value(key, lambda: value(waiting[0]()))) is not None:
            self._puts[key] = partial(bytes, encoded), ttl, None, 0

    def _on_timer(self) -> None:
        if self._write_lock.locked():
            # The store takes long: one attempt runs, and no other waits for it.
            self._schedule()
        else:
            self._start_writing()

    def _start_writing(self) -> None:
        self._timer = None
        task = asyncio.get_running_loop().create_task(self._flush_behind())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _flush_behind(self) -> None:
        delay = self._delay
        try:
            await self._write_all()
        except StoreUnavailable:
            await self._drop_oldest()
            delay = _RETRY_DELAY
        if self._timer is None and (self._puts or self._appends):
            self._schedule(delay)

    def _schedule(self, delay: float = 0.0) -> None:
        self._timer = asyncio.get_running_loop().call_later(delay or self._delay, self._on_timer)

    async def _write_all(self) -> None:
        async with self._write_lock:
            # Writes that come in meanwhile are left for the next time: waiting for them too might never end.
            for _ in range(-(-max(len(self._puts), len(self._appends)) // self._batch_size)):
                await self._write_some()

    async def _write_some(self) -> None:
        is_backlogged = max(len(self._puts), len(self._appends)) > self._batch_size
        if len(self._puts) <= self._batch_size:
            puts, self._puts = self._puts, {}
        else:
            puts = {key: self._puts.pop(key) for key in list(islice(self._puts, self._batch_size))}
        appends, self._appends = self._appends[: self._batch_size], self._appends[self._batch_size :]
        try:
            batch = await self._encode_batch(puts, appends, is_backlogged)
            existing: dict[Key, bytes] = {}
            # In several steps, so that writes whose callers wait can run in between.
            for at in range(0, len(batch), _BATCH):
                existing |= await self._store.write(batch[at : at + _BATCH])
            # After this line an error must not queue writes again that are in the store.
            sent_puts, puts, appends = puts, {key: puts[key] for key in existing}, []
            self._report_absent(batch, sent_puts, existing)
            if puts:
                await self._write_merged(puts, existing)
        except BaseException:
            # Writes that came meanwhile are newer than those that failed. An append that the store did although its
            # answer was lost is written twice: a log may repeat an entry, but it never lacks one.
            newer, self._puts = self._puts, puts
            for key, queued_put in newer.items():
                self._enqueue(key, queued_put)
            self._appends = appends + self._appends
            raise

    async def _encode_batch(
        self, puts: Mapping[Key, _QueuedPut], appends: Sequence[_QueuedAppend], is_backlogged: bool
    ) -> list[Put | Append]:
        batch: list[Put | Append] = []
        # Adjacent names share pages of a store's index: in this order each page is written about once, also in steps.
        for number, key in enumerate(sorted(puts, key=_name)):
            value, ttl, on_absent, _ = puts[key]
            if number % _TURN == 0 and not is_backlogged:
                await asyncio.sleep(0)
            # Nearly all keys of merges have no value: reading first costs more than a put that fails now and then.
            if (encoded := self._make_value(key, partial(value, None) if on_absent else value)) is not None:
                batch.append(Put(key, encoded, ttl, if_absent=on_absent is not None))
        for number, (key, value, keep, ttl, _) in enumerate(appends):
            if number % _TURN == 0 and not is_backlogged:
                await asyncio.sleep(0)
            if (encoded := self._make_value(key, value)) is not None:
                batch.append(Append(key, encoded, keep, ttl))
        return batch

    def _report_absent(
        self, batch: Sequence[Put | Append], queued_puts: Mapping[Key, _QueuedPut], existing: Mapping[Key, bytes]
    ) -> None:
        """Calls `on_absent` for merges whose keys had no value.

        A merge of such a key that came meanwhile becomes a put: the stored value is this queue's own, and is older.
        """
        for write in batch:
            on_absent = queued_puts[write.key][2] if isinstance(write, Put) and write.key not in existing else None
            if on_absent is None:
                continue
            on_absent()
            value, ttl, newer, _ = self._puts.get(write.key, _NO_PUT)
            if newer is not None:
                newer()
                self._puts[write.key] = partial(value, None), ttl, None, 0

    async def _write_merged(self, puts: Mapping[Key, _QueuedPut], existing: Mapping[Key, bytes]) -> None:
        batch: list[Put] = []
        for number, (key, (value, ttl, _, _)) in enumerate(puts.items()):
            if number and number % _TURN == 0:
                await asyncio.sleep(0)
            waiting = self._puts.get(key)
            # A put that came meanwhile replaces this merge: its caller knew the stored value.
            if waiting is not None and waiting[2] is None:
                continue
            if (encoded := self._make_value(key, partial(value, existing[key]))) is not None:
                batch.append(Put(key, encoded, ttl))
        if batch:
            await self._store.write(batch)

    def _make_value(self, key: Key, value: _Value) -> bytes | None:
        """Makes a value; returns None if its function fails, so that other writes go on."""
        try:
            return value()
        except Exception:
            _log.exception("a value for the collection %r could not be encoded and is dropped", key.collection)
            self._on_drop(1)
            return None

    async def _drop_oldest(self) -> None:
        """Drops the oldest writes beyond the capacity, while the store is unavailable."""
        async with self._write_lock:
            await self._measure()
            dropped, excess = 0, sum(size for *_, size in self._puts.values()) - self._capacity // 2
            while excess > 0:
                *_, size = self._puts.pop(next(iter(self._puts)))
                excess, dropped = excess - size, dropped + 1
            entries, excess = 0, sum(size for *_, size in self._appends) - self._capacity // 2
            while excess > 0:
                excess, entries = excess - self._appends[entries][-1], entries + 1
            del self._appends[:entries]
        if dropped + entries:
            self._on_drop(dropped + entries)

    async def _measure(self) -> None:
        """Makes the waiting values to measure their sizes. Only merges are made again later."""
        for number, (key, queued_put) in enumerate(list(self._puts.items())):
            value, ttl, on_absent, size = queued_put
            if size:
                continue
            if number % _TURN == 0:
                await asyncio.sleep(0)
            # A write that replaced it meanwhile is measured the next time.
            if self._puts.get(key) is not queued_put:
                continue
            if (encoded := self._make_value(key, partial(value, None) if on_absent else value)) is None:
                del self._puts[key]
            else:
                self._puts[key] = (
                    value if on_absent else partial(bytes, encoded),
                    ttl,
                    on_absent,
                    _size_of(key, encoded),
                )
        measured_appends, count = list[_QueuedAppend](), len(self._appends)
        for number, entry in enumerate(self._appends[:count]):
            key, value, keep, ttl, size = entry
            if size:
                measured_appends.append(entry)
                continue
            if number % _TURN == 0:
                await asyncio.sleep(0)
            if (encoded := self._make_value(key, value)) is not None:
                measured_appends.append((key, partial(bytes, encoded), keep, ttl, _size_of(key, encoded)))
        self._appends[:count] = measured_appends


def _size_of(key: Key, value: bytes) -> int:
    return string_size(key.collection, key.name, value)
