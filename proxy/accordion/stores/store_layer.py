"""The base of stores that are in front of another store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from accordion.model.ports import Append, Key, KeyValueStore, Put

T = TypeVar("T")


class StoreLayer:
    """A KeyValueStore in front of `main`: it hands on all calls, each by `_call`.

    A call for one value is handed on as one for several.
    """

    def __init__(self, main: KeyValueStore) -> None:
        self._main = main

    async def _call(self, method: Callable[..., Awaitable[T]], *args: Any, **options: Any) -> T:
        """Calls a method of `main`."""
        return await method(*args, **options)

    async def put(self, key: Key, value: bytes, *, ttl: float | None = None) -> None:
        """See KeyValueStore."""
        await self.write((Put(key, value, ttl),))

    async def put_if_absent(self, key: Key, value: bytes, *, ttl: float | None = None) -> bytes:
        """See KeyValueStore."""
        return (await self.write((Put(key, value, ttl, if_absent=True),))).get(key, value)

    async def get(self, key: Key) -> bytes | None:
        """See KeyValueStore."""
        return (await self.get_many((key,)))[0]

    async def get_many(self, keys: Sequence[Key]) -> list[bytes | None]:
        """See KeyValueStore."""
        return await self._call(self._main.get_many, keys)

    async def delete(self, keys: Sequence[Key]) -> int:
        """See KeyValueStore."""
        return await self._call(self._main.delete, keys)

    async def append(
        self, key: Key, values: Sequence[bytes], *, keep: int | None = None, ttl: float | None = None
    ) -> int:
        """See KeyValueStore."""
        return await self._call(self._main.append, key, values, keep=keep, ttl=ttl)

    async def read(self, key: Key, start: int = 0, limit: int | None = None) -> list[tuple[int, bytes]]:
        """See KeyValueStore."""
        return await self._call(self._main.read, key, start, limit)

    async def scan(
        self, collection: str, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> list[tuple[str, bytes]]:
        """See KeyValueStore."""
        return await self._call(self._main.scan, collection, prefix=prefix, after=after, limit=limit)

    async def write(self, batch: Sequence[Put | Append]) -> dict[Key, bytes]:
        """See KeyValueStore."""
        return await self._call(self._main.write, batch)

    def lock(self, key: Key, *, lease: float) -> AbstractAsyncContextManager[bool]:
        """See KeyValueStore."""
        return self._main.lock(key, lease=lease)

    @property
    def is_available(self) -> bool:
        """See KeyValueStore."""
        return self._main.is_available

    async def ping(self) -> None:
        """See KeyValueStore."""
        await self._call(self._main.ping)
