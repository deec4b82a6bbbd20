"""Writes that nobody waits for: gathered, then written together, a few times a second."""

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

# How long a write waits for others, in seconds.
_GATHER = 0.05
# How many go in one batch: what a store manages well within its time-out, and what is encoded in about half a
# millisecond.
_BATCH = 256

# What nobody goes on by waits longer, and so many are put in the order of their names: the more there are, the more of
# them share a page of a store's index, and pages are what writing costs.
_GATHER_LONG, _SORTED = 1.0, 2_048

# How long a store that is away is left alone, in seconds.
_AGAIN = 1.0

# How many are encoded before a request may go first. While more wait than go in one batch, a whole batch is encoded in
# one go: a turn of a busy loop takes long, and writes must not come in faster than they go out.
_TURN = 16

# How many bytes of writes wait in memory while the store is away. 20,000 usual ones take 20 MiB (measured: values of
# 170 to 600 bytes); what the provider keeps under the id of a response takes 2 KB and may take megabytes.
_CAPACITY = 32 * 2**20

_Value = Callable[[], bytes]
_name = attrgetter("name")


# What makes a value, its life in seconds, where it is made of what the key holds: what to call if that is nothing; and
# the bytes that all of it takes, 0 until that is measured.
_Letter = tuple[Callable[..., bytes], float | None, Callable[[], object] | None, int]
_NONE: _Letter = bytes, None, None, 0
# The key of a log, what makes the entry, how many are to stay, the log's life in seconds, and the bytes as above.
_Entry = tuple[Key, _Value, int | None, float | None, int]


class WriteQueue:
    """An Outbox over a store. While the store is away it holds at most `capacity` bytes, half of them entries of logs;
    of what is more, the oldest are dropped.

    `on_drop` is told how many were. A value that is replaced before it was written costs nothing.
    """

    def __init__(
        self, store: KeyValueStore, *, capacity: int = _CAPACITY, on_drop: Callable[[int], None] = lambda _: None
    ) -> None:
        self._store = store
        self._capacity = capacity
        self._on_drop = on_drop
        self._gather, self._most = _GATHER, _BATCH
        self._patient: WriteQueue | None = None
        self._puts: dict[Key, _Letter] = {}
        self._appends: list[_Entry] = []
        self._timer: asyncio.TimerHandle | None = None
        self._writing = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def slow_queue(self, store: KeyValueStore | None = None) -> WriteQueue:
        """The outbox for what nobody goes on by, such as sums: written once a second, to `store` where one is given.
        What is asked of this one, to flush, to hurry or to close, that one does too."""
        if self._patient is None:
            self._patient = WriteQueue(store or self._store, capacity=self._capacity, on_drop=self._on_drop)
            self._patient._gather, self._patient._most = _GATHER_LONG, _SORTED
        return self._patient

    def put(self, key: Key, value: _Value, ttl: float | None = None) -> None:
        """Keep a value under a key; see the port."""
        self._puts[key] = value, ttl, None, 0
        if self._timer is None:
            self._schedule()

    def merge(
        self, key: Key, value: Callable[[bytes | None], bytes], kept: Callable[[], object], ttl: float | None = None
    ) -> None:
        """Keep a value made of what the key holds by then; see the port."""
        self._enqueue(key, (value, ttl, kept, 0))
        if self._timer is None:
            self._schedule()

    def append(self, key: Key, value: _Value, keep: int | None = None, ttl: float | None = None) -> None:
        """Add to the end of a log; see the port."""
        self._appends.append((key, value, keep, ttl, 0))
        if self._timer is None:
            self._schedule()

    async def flush(self) -> None:
        """Return when everything taken so far was written, or raise StoreUnavailable."""
        await self._write_all()
        if self._patient is not None:
            await self._patient.flush()

    async def drop(self, is_erased: Callable[[Key], bool]) -> list[Key]:
        """Forget what waits under these keys; see the port."""
        async with self._writing:
            dropped = [key for key in (*self._puts, *(entry[0] for entry in self._appends)) if is_erased(key)]
            self._puts = {key: letter for key, letter in self._puts.items() if not is_erased(key)}
            self._appends = [entry for entry in self._appends if not is_erased(entry[0])]
        return dropped + (await self._patient.drop(is_erased) if self._patient is not None else [])

    def write_now(self) -> None:
        """Begin to write what waits."""
        if self._timer is not None:
            self._timer.cancel()
            self._start_writing()
        if self._patient is not None:
            self._patient.write_now()

    async def close(self) -> None:
        """Write what is left, if the store takes it."""
        if self._timer is not None:
            self._timer.cancel()
        try:
            await self._write_all()
        except StoreUnavailable:
            self._on_drop(len(self._puts) + len(self._appends))
        if self._patient is not None:
            await self._patient.close()

    def _enqueue(self, key: Key, letter: _Letter) -> None:
        """What waits for a key from now on: the newest. What is to be merged with a value that waits is made of it."""
        value, ttl, kept, _ = letter
        waiting = self._puts.get(key) if kept else None
        if waiting is None or waiting[2]:
            self._puts[key] = letter
        elif (made := self._merge(key, lambda: value(waiting[0]()))) is not None:
            self._puts[key] = partial(bytes, made), ttl, None, 0

    def _start_writing(self) -> None:
        self._timer = None
        task = asyncio.get_running_loop().create_task(self._flush_behind())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _flush_behind(self) -> None:
        delay = self._gather
        try:
            await self._write_all()
        except StoreUnavailable:
            await self._drop_oldest()
            delay = _AGAIN
        if self._timer is None and (self._puts or self._appends):
            self._schedule(delay)

    def _schedule(self, delay: float = 0.0) -> None:
        self._timer = asyncio.get_running_loop().call_later(delay or self._gather, self._start_writing)

    async def _write_all(self) -> None:
        async with self._writing:
            # What comes in meanwhile is for the next time: waiting for that too could go on for ever.
            for _ in range(-(-max(len(self._puts), len(self._appends)) // self._most)):
                await self._write_some()

    async def _write_some(self) -> None:
        behind = max(len(self._puts), len(self._appends)) > self._most
        if len(self._puts) <= self._most:
            puts, self._puts = self._puts, {}
        else:
            puts = {key: self._puts.pop(key) for key in list(islice(self._puts, self._most))}
        appends, self._appends = self._appends[: self._most], self._appends[self._most :]
        try:
            batch = await self._encode_batch(puts, appends, behind)
            held: dict[Key, bytes] = {}
            # Not all at once: what somebody waits for has its turn in between.
            for at in range(0, len(batch), _BATCH):
                held |= await self._store.write(batch[at : at + _BATCH])
            # What was written is not put back any more, whatever becomes of the rest.
            written, puts, appends = puts, {key: puts[key] for key in held}, []
            self._note_missing(batch, written, held)
            if puts:
                await self._write_merged(puts, held)
        except BaseException:
            # What came meanwhile is newer than what failed. An append that had been written after all, when only the
            # answer was lost, comes twice: a log may repeat an entry, it never lacks one.
            newer, self._puts = self._puts, puts
            for key, letter in newer.items():
                self._enqueue(key, letter)
            self._appends = appends + self._appends
            raise

    async def _encode_batch(
        self, puts: Mapping[Key, _Letter], appends: Sequence[_Entry], behind: bool
    ) -> list[Put | Append]:
        batch: list[Put | Append] = []
        # Names that follow each other share pages of a store's index: so each is written about once, also in steps.
        for number, key in enumerate(sorted(puts, key=_name)):
            value, ttl, kept, _ = puts[key]
            if number % _TURN == 0 and not behind:
                await asyncio.sleep(0)
            # Nearly all keys that are merged with hold nothing: to ask first costs more than to be told otherwise.
            if (made := self._merge(key, partial(value, None) if kept else value)) is not None:
                batch.append(Put(key, made, ttl, if_absent=kept is not None))
        for number, (key, value, keep, ttl, _) in enumerate(appends):
            if number % _TURN == 0 and not behind:
                await asyncio.sleep(0)
            if (made := self._merge(key, value)) is not None:
                batch.append(Append(key, made, keep, ttl))
        return batch

    def _note_missing(
        self, batch: Sequence[Put | Append], letters: Mapping[Key, _Letter], held: Mapping[Key, bytes]
    ) -> None:
        """Says of what was to be merged that its keys held nothing. What came meanwhile to be merged with them is newer
        than what they hold now, which is our own."""
        for write in batch:
            kept = letters[write.key][2] if isinstance(write, Put) and write.key not in held else None
            if kept is None:
                continue
            kept()
            value, ttl, newer, _ = self._puts.get(write.key, _NONE)
            if newer is not None:
                newer()
                self._puts[write.key] = partial(value, None), ttl, None, 0

    async def _write_merged(self, puts: Mapping[Key, _Letter], held: Mapping[Key, bytes]) -> None:
        batch: list[Put] = []
        for number, (key, (value, ttl, _, _)) in enumerate(puts.items()):
            if number and number % _TURN == 0:
                await asyncio.sleep(0)
            waiting = self._puts.get(key)
            # What came meanwhile to be put, and not merged, was made by someone who has learnt otherwise what is held.
            if waiting is not None and waiting[2] is None:
                continue
            if (made := self._merge(key, partial(value, held[key]))) is not None:
                batch.append(Put(key, made, ttl))
        if batch:
            await self._store.write(batch)

    def _merge(self, key: Key, value: _Value) -> bytes | None:
        """The value, made; None where it cannot be: others must not suffer for it."""
        try:
            return value()
        except Exception:
            _log.exception("a value for the collection %r could not be encoded and is dropped", key.collection)
            self._on_drop(1)
            return None

    async def _drop_oldest(self) -> None:
        """Drops the oldest writes where all of them take too much. The store is away, so nobody else writes."""
        async with self._writing:
            await self._measure()
            dropped, over = 0, sum(size for *_, size in self._puts.values()) - self._capacity // 2
            while over > 0:
                *_, size = self._puts.pop(next(iter(self._puts)))
                over, dropped = over - size, dropped + 1
            entries, over = 0, sum(size for *_, size in self._appends) - self._capacity // 2
            while over > 0:
                over, entries = over - self._appends[entries][-1], entries + 1
            del self._appends[:entries]
        if dropped + entries:
            self._on_drop(dropped + entries)

    async def _measure(self) -> None:
        """Makes the values that wait: their size is not known before. Only what is merged is made again later."""
        for number, (key, letter) in enumerate(list(self._puts.items())):
            value, ttl, kept, size = letter
            if size:
                continue
            if number % _TURN == 0:
                await asyncio.sleep(0)
            # What replaced it meanwhile is measured the next time.
            if self._puts.get(key) is not letter:
                continue
            if (made := self._merge(key, partial(value, None) if kept else value)) is None:
                del self._puts[key]
            else:
                self._puts[key] = value if kept else partial(bytes, made), ttl, kept, _weigh(key, made)
        measured, count = list[_Entry](), len(self._appends)
        for number, entry in enumerate(self._appends[:count]):
            key, value, keep, ttl, size = entry
            if size:
                measured.append(entry)
                continue
            if number % _TURN == 0:
                await asyncio.sleep(0)
            if (made := self._merge(key, value)) is not None:
                measured.append((key, partial(bytes, made), keep, ttl, _weigh(key, made)))
        self._appends[:count] = measured


def _weigh(key: Key, value: bytes) -> int:
    return string_size(key.collection, key.name, value)
