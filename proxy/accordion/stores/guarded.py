"""A store that may be away without anybody waiting for it: every call is bounded, and failures are remembered."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, TypeVar

from accordion.model.errors import StoreFull, StoreUnavailable
from accordion.model.ports import Append, Key, KeyValueStore, Put

T = TypeVar("T")

_log = logging.getLogger("accordion")

_PROBE = Key("probe", "probe")
"""What is written to learn whether a store is back: a full disk is read all the same. It goes by itself. It is in a
collection, as most of what is written: that takes more of a server, such as leave to run scripts."""


class GuardedStore:
    """Any store behind a time-out and a circuit breaker. Every method raises StoreUnavailable and nothing else.

    A read takes at most `timeout` seconds, anything else `write_timeout`. After a failure calls fail at once for
    `retry_after` seconds; then one call is let through as a probe, behind a small write, while the others still fail at
    once. A store whose disk is full is still read, and content is still deleted. `monotonic` gives seconds that never
    go back. `on_change` is called with True or False when the store becomes available or unavailable; it must not
    raise.
    """

    def __init__(
        self,
        store: KeyValueStore,
        *,
        timeout: float,
        write_timeout: float,
        monotonic: Callable[[], float],
        retry_after: float = 1.0,
        on_change: Callable[[bool], object] | None = None,
    ) -> None:
        self._store = store
        self._timeout = timeout
        self._write_timeout = write_timeout
        self._monotonic = monotonic
        self._retry_after = retry_after
        self._on_change = on_change
        self._available = True
        self._full = False
        self.has_answered = False
        """Whether any call was answered since the start."""
        self.problem = ""
        """What was wrong when a call last failed."""
        self._probe_at = 0.0
        self._probing = False
        self._logged: set[type[Exception]] = set()

    @property
    def is_available(self) -> bool:
        """Whether the last call that counted was answered."""
        return self._available

    async def put(self, key: Key, value: bytes, *, ttl: float | None = None) -> None:
        """See Store."""
        await self._call(self._store.put, key, value, ttl=ttl)

    async def put_if_absent(self, key: Key, value: bytes, *, ttl: float | None = None) -> bytes:
        """See Store."""
        return await self._call(self._store.put_if_absent, key, value, ttl=ttl)

    async def get(self, key: Key) -> bytes | None:
        """See Store."""
        return await self._read(self._store.get, key)

    async def get_many(self, keys: Sequence[Key]) -> list[bytes | None]:
        """See Store."""
        return await self._read(self._store.get_many, keys)

    async def delete(self, keys: Sequence[Key]) -> int:
        """See Store."""
        return await self._admit(self._write_timeout, self._store.delete, keys, needs_room=False)

    async def append(
        self, key: Key, values: Sequence[bytes], *, keep: int | None = None, ttl: float | None = None
    ) -> int:
        """See Store."""
        return await self._call(self._store.append, key, values, keep=keep, ttl=ttl)

    async def read(self, key: Key, start: int = 0, limit: int | None = None) -> list[tuple[int, bytes]]:
        """See Store."""
        return await self._read(self._store.read, key, start, limit)

    async def scan(
        self, collection: str, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> list[tuple[str, bytes]]:
        """See Store."""
        return await self._read(self._store.scan, collection, prefix=prefix, after=after, limit=limit)

    async def write(self, batch: Sequence[Put | Append]) -> dict[Key, bytes]:
        """See Store."""
        erases = bool(batch) and all(isinstance(each, Put) and each.for_erasing for each in batch)
        return await self._admit(self._write_timeout, self._store.write, batch, needs_room=not erases)

    def lock(self, key: Key, *, lease: float) -> AbstractAsyncContextManager[bool]:
        """See Store. A release that fails is left to the end of the lease."""
        return self._guard_lock(self._store.lock(key, lease=lease))

    @asynccontextmanager
    async def _guard_lock(self, lock: AbstractAsyncContextManager[bool]) -> AsyncIterator[bool]:
        held = await self._call(lock.__aenter__)
        try:
            yield held
        finally:
            with suppress(StoreUnavailable):
                await self._call(lock.__aexit__, None, None, None)

    async def ping(self) -> None:
        """See Store."""
        await self._call(self._store.ping)

    async def close(self) -> None:
        """Let go of the store, whether it is there or not."""
        with suppress(StoreUnavailable):
            await self._with_timeout(self._write_timeout, self._store.close)

    async def _read(self, method: Callable[..., Awaitable[T]], *args: Any, **options: Any) -> T:
        return await self._admit(self._timeout, method, *args, needs_room=False, **options)

    async def _call(self, method: Callable[..., Awaitable[T]], *args: Any, **options: Any) -> T:
        return await self._admit(self._write_timeout, method, *args, **options)

    async def _admit(
        self, seconds: float, method: Callable[..., Awaitable[T]], *args: Any, needs_room: bool = True, **options: Any
    ) -> T:
        if self._available:
            return await self._with_timeout(seconds, method, *args, **options)
        due = not self._probing and self._monotonic() >= self._probe_at
        if self._full and not needs_room:
            if due:
                with suppress(StoreUnavailable):
                    await self._probe(seconds, self._store.ping)
            return await self._with_timeout(seconds, method, *args, **options)
        if not due:
            raise (StoreFull if self._full else StoreUnavailable)(f"the store is unavailable: {self.problem}")
        return await self._probe(seconds, method, *args, **options)

    async def _probe(self, seconds: float, method: Callable[..., Awaitable[T]], *args: Any, **options: Any) -> T:
        self._probing = True
        try:
            result: T = await self._with_timeout(seconds, self._run_probe, method, *args, **options)
        finally:
            self._probing = False
        self._set_available(True)
        return result

    async def _run_probe(self, method: Callable[..., Awaitable[T]], *args: Any, **options: Any) -> T:
        await self._store.put(_PROBE, b"", ttl=60.0)
        return await method(*args, **options)

    async def _with_timeout(self, seconds: float, method: Callable[..., Awaitable[T]], *args: Any, **options: Any) -> T:
        try:
            async with asyncio.timeout(seconds):
                result = await method(*args, **options)
            self.has_answered = True
            return result
        except StoreUnavailable as error:
            self._fail(error.message, full=isinstance(error, StoreFull))
            raise
        except TimeoutError as error:
            raise self._fail(f"the store did not answer within {seconds:g} s") from error
        except OSError as error:
            raise self._fail(f"the store cannot be reached: {error}") from error
        except Exception as error:
            raise await self._classify(error) from error

    async def _classify(self, error: Exception) -> StoreUnavailable:
        """Something about this one call, for which others need not suffer, or about all of them, if even a ping fails.
        Each kind is logged once: it is a mistake, of ours or of the settings."""
        why = f"the store refused: {error!r}"
        if type(error) not in self._logged:
            self._logged.add(type(error))
            _log.error("the store rejected a call: %s", type(error).__name__, exc_info=error)
        try:
            async with asyncio.timeout(self._timeout):
                await self._store.ping()
        except Exception:
            return self._fail(why)
        return StoreUnavailable(why)

    def _fail(self, why: str, *, full: bool = False) -> StoreUnavailable:
        self._full = full
        self._probe_at = self._monotonic() + self._retry_after
        self.problem = why
        self._set_available(False)
        return StoreUnavailable(why)

    def _set_available(self, available: bool) -> None:
        if available is not self._available:
            self._available = available
            if self._on_change is not None:
                self._on_change(available)
