"""Local copies of recent records, which the workers of a machine read while the store is unavailable.

The spool only has writes from the time when the store is unavailable. A worker may also need records that another one
wrote shortly before. So each worker copies such records to a file that all workers of the machine share. The copies are
made in the background, and the file is not read while the store is available.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Key, Put
from accordion.stores.sqlite import SqliteStore

_EXPIRY = 3_600.0
"""Seconds until a copy expires."""
_OVERHEAD = 100
_PAGE = 64


class RecentRecords:
    """Copies of recent records in the file at `path`, under the `tag` of their store. They expire after an hour.

    Each worker removes the oldest copies beyond `capacity` bytes, counting its own copies and those that existed at its
    first write. A copy has the same bytes as the store: an encrypted value stays encrypted. No method fails; without
    copies these records are just missing while the store is unavailable.
    """

    def __init__(self, path: Path, *, capacity: int, timeout: float = 5.0) -> None:
        self._path = path
        self._local = SqliteStore(path, timeout=timeout, is_atomic=True)
        self._capacity = capacity
        self._sizes: OrderedDict[Key, int] | None = None
        self._size = 0
        self._queue: dict[Key, Put] = {}
        self._queue_size = 0
        self._lock = asyncio.Lock()
        self._write_task: asyncio.Task[None] | None = None

    def add(self, tag: str, puts: Iterable[Put]) -> None:
        """Queues records to be copied in the background; those beyond the capacity of the queue are not copied."""
        for put in puts:
            size = len(put.value) + _OVERHEAD
            if self._queue_size + size <= self._capacity:
                ttl = _EXPIRY if put.ttl is None else min(put.ttl, _EXPIRY)
                copy_key = _copy_key(tag, put.key)
                self._queue[copy_key] = Put(copy_key, put.value, ttl)
                self._queue_size += size
        if self._queue and self._write_task is None:
            self._write_task = asyncio.create_task(self._write_all())

    async def find(self, tag: str, keys: Sequence[Key]) -> dict[Key, bytes]:
        """Returns the existing copies of these records."""
        if not self._path.exists():
            return {}
        with suppress(StoreUnavailable):
            values = await self._local.get_many([_copy_key(tag, key) for key in keys])
            return {key: value for key, value in zip(keys, values, strict=True) if value is not None}
        return {}

    async def delete(self, tag: str, keys: Sequence[Key]) -> None:
        """Removes the copies of these records."""
        copy_keys = [_copy_key(tag, key) for key in keys]
        async with self._lock:
            for copy_key in copy_keys:
                self._queue.pop(copy_key, None)
            if self._path.exists():
                with suppress(StoreUnavailable):
                    await self._local.delete(copy_keys)

    async def clear(self, tag: str) -> None:
        """Removes all copies."""
        async with self._lock:
            self._queue, self._queue_size = {}, 0
            with suppress(StoreUnavailable):
                while self._path.exists() and (page := await self._local.scan(_collection(tag), limit=_PAGE)):
                    await self._local.delete([Key(_collection(tag), name) for name, _ in page])
            self._sizes = None

    async def close(self) -> None:
        """Writes the queued copies and closes the file."""
        if self._write_task is not None:
            await self._write_task
        await self._local.close()

    async def _write_all(self) -> None:
        try:
            while self._queue:
                async with self._lock:
                    puts, self._queue, self._queue_size = list(self._queue.values()), {}, 0
                    with suppress(StoreUnavailable):
                        await self._write(puts)
        finally:
            self._write_task = None

    async def _write(self, puts: Sequence[Put]) -> None:
        """Writes copies and removes the oldest ones beyond the capacity."""
        if puts and self._sizes is None:
            self._sizes = await self._list_copies(puts[0].key.collection)
            self._size = sum(self._sizes.values())
        await self._local.write(puts)
        oldest = list[Key]()
        sizes = self._sizes or OrderedDict[Key, int]()
        for put in puts:
            self._size += len(put.value) + _OVERHEAD - sizes.pop(put.key, 0)
            sizes[put.key] = len(put.value) + _OVERHEAD
        self._sizes = sizes
        while self._size > self._capacity:
            key, size = sizes.popitem(last=False)
            self._size -= size
            oldest.append(key)
        if oldest:
            await self._local.delete(oldest)

    async def _list_copies(self, collection: str) -> OrderedDict[Key, int]:
        """Returns the sizes of the existing copies."""
        sizes, after = OrderedDict[Key, int](), ""
        while page := await self._local.scan(collection, after=after, limit=_PAGE):
            after = page[-1][0]
            sizes.update((Key(collection, name), len(value) + _OVERHEAD) for name, value in page)
        return sizes


def _collection(tag: str) -> str:
    return f"recent/{tag}"


def _copy_key(tag: str, key: Key) -> Key:
    return Key(_collection(tag), f"{key.collection}\n{key.name}")
