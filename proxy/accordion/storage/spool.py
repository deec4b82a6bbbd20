"""The spool: what must be kept while the store is away, on this machine, until the store is back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import msgspec

from accordion.core.errors import StoreUnavailable
from accordion.core.ports import Key, Put, Store
from accordion.storage.ephemeral import EphemeralStore
from accordion.storage.sqlite import SqliteStore
from accordion.storage.sqlite_file import refuse_foreign

SPOOL = "$.store.spool"
"""The path of the key that names the spool's file."""
_VALUES, _CLAIMS = "spool/values", "spool/claims"
_OVERHEAD = 100
_PAGE = 64

Buried = Callable[[Sequence[Put]], Awaitable[frozenset[Key]]]
"""Which of these writes are not wanted any more, by key. Raises StoreUnavailable."""


class _Write(msgspec.Struct, array_like=True):
    collection: str
    name: str
    value: bytes
    ttl: float | None


_DECODER = msgspec.msgpack.Decoder(_Write)


class LocalSpool:
    """Holds at most `capacity` bytes of writes in `local`, for the store `main`; what has no room is refused, and what
    is held stays until it was published. Writes to the same key are held once, the last of them.

    Values are published before claims, so that nobody finds a fold whose archive is missing. What is `buried` by then
    is let go of instead: it was erased while it waited here.
    """

    def __init__(self, local: Store, main: Store, *, capacity: int = 64 * 2**20, buried: Buried | None = None) -> None:
        self._local = local
        self._main = main
        self._capacity = capacity
        self._buried = buried
        self._sizes: dict[Key, int] | None = None
        self._busy = asyncio.Lock()

    @property
    def empty(self) -> bool:
        """Whether nothing is held, as far as is known; what an earlier run left is known after the first use."""
        return self._sizes is not None and not self._sizes

    @property
    def size(self) -> int:
        """Bytes that are held, as far as is known."""
        return sum(self._sizes.values()) if self._sizes else 0

    async def hold(self, values: Sequence[Put], claims: Sequence[Put]) -> bool:
        """Keeps writes for later, all of them or none; False where there is no room or where they cannot be written."""
        writes = [_held(_VALUES, put) for put in values] + [_held(_CLAIMS, put) for put in claims]
        async with self._busy:
            try:
                sizes = await self._known()
                after = {**sizes, **{put.key: len(put.value) + _OVERHEAD for put in writes}}
                if sum(after.values()) > self._capacity:
                    return False
                await self._local.write(writes)
            except StoreUnavailable:
                return False
            self._sizes = after
            return True

    async def publish(self) -> list[tuple[Key, bytes]]:
        """Writes all that is held to the store, and lets go of it. Gives the claims that others had made first, with
        what they had written. Raises StoreUnavailable; then what is left is still held."""
        lost: list[tuple[Key, bytes]] = []
        async with self._busy:
            gone = await self._unwanted()
            for collection in (_VALUES, _CLAIMS):
                while page := await self._local.scan(collection, limit=_PAGE):
                    for name, held in page:
                        write = _DECODER.decode(held)
                        if Key(write.collection, write.name) not in gone:
                            await self._publish(collection, write, lost)
                        await self._local.delete([Key(collection, name)])
                        if self._sizes is not None:
                            self._sizes.pop(Key(collection, name), None)
            # Other workers of this machine have the same file, and may have published what this one held.
            self._sizes = {}
        return lost

    async def close(self) -> None:
        """Lets go of the local store."""
        await self._local.close()

    async def _publish(self, collection: str, write: _Write, lost: list[tuple[Key, bytes]]) -> None:
        key = Key(write.collection, write.name)
        if collection == _VALUES:
            await self._main.put(key, write.value, ttl=write.ttl)
            return
        winner = await self._main.put_if_absent(key, write.value, ttl=write.ttl)
        if winner != write.value:
            lost.append((key, winner))

    async def _unwanted(self) -> frozenset[Key]:
        """What was erased meanwhile; all that is held is looked at, which is no more than `capacity`. Other workers may
        hold something in the same file."""
        if self._buried is None:
            return frozenset()
        writes = [_DECODER.decode(value) async for _, value in self._all()]
        puts = [Put(Key(write.collection, write.name), write.value, write.ttl) for write in writes]
        return await self._buried(puts) if puts else frozenset()

    async def _known(self) -> dict[Key, int]:
        """What is held, by key; read once, since an earlier run may have left something."""
        if self._sizes is None:
            self._sizes = {key: len(value) + _OVERHEAD async for key, value in self._all()}
        return self._sizes

    async def _all(self) -> AsyncIterator[tuple[Key, bytes]]:
        for collection in (_VALUES, _CLAIMS):
            after = ""
            while page := await self._local.scan(collection, after=after, limit=_PAGE):
                after = page[-1][0]
                for name, value in page:
                    yield Key(collection, name), value


def open_spool(
    path: Path | None,
    main: Store,
    *,
    capacity: int = 64 * 2**20,
    timeout: float = 5.0,
    buried: Buried | None = None,
) -> LocalSpool:
    """A spool in a file of its own, or in memory where `path` is None. Raises ConfigError where the file is another
    program's."""
    if path is not None:
        refuse_foreign(path, SPOOL)
    local: Store = (
        EphemeralStore(max_bytes=4 * capacity) if path is None else SqliteStore(path, timeout=timeout, whole=True)
    )
    return LocalSpool(local, main, capacity=capacity, buried=buried)


def _held(collection: str, put: Put) -> Put:
    value = msgspec.msgpack.encode(_Write(put.key.collection, put.key.name, put.value, put.ttl))
    return Put(Key(collection, f"{put.key.collection}\n{put.key.name}"), value)
