"""A time-out and a circuit breaker around a store, so that an unavailable store does not delay requests.

Theory of operation. A `GuardedStore` is in one of three states. *Available*: calls go to the store. *Unavailable*,
after a failure: calls fail at once; every `retry_after` seconds one call is let through as a probe, and its success
makes the store available again. *Full*, after a StoreFull: as unavailable, but reads and erasures still go to the
store.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, TypeVar

from accordion.model.errors import StoreFull, StoreUnavailable
from accordion.model.ports import Append, Key, KeyValueStore, Put
from accordion.stores.time_limit import within

T = TypeVar("T")

_log = logging.getLogger("accordion")

_PROBE = Key("probe", "probe")
"""The key that a probe writes, since a store with a full disk still answers reads. Its value expires by itself.

It is in a collection, as most values are: such a write needs more of a server, such as the permission to run scripts.
"""


class GuardedStore:
    """A KeyValueStore behind a time-out and a circuit breaker. Its methods raise StoreUnavailable and nothing else.

    A read takes at most `timeout` seconds, any other call `write_timeout`. After a failure calls fail at once for
    `retry_after` seconds; then one call is let through as a probe, after a small write, while the others still fail at
    once. A store with a full disk still gets reads and erasures. `monotonic` returns seconds that never go back.
    `on_change` is called with True or False when the store becomes available or unavailable; it must not raise.
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
        self._is_full = False
        self.has_answered = False
        """Whether any call has succeeded since the start."""
        self.problem = ""
        """The reason of the last failure, as a text."""
        self._probe_at = 0.0
        self._is_probing = False
        self._logged: set[type[Exception]] = set()

    @property
    def is_available(self) -> bool:
        """Whether calls go to the store: no failure since the last successful probe, except errors of single calls."""
        return self._available

    async def put(self, key: Key, value: bytes, *, ttl: float | None = None) -> None:
        """See KeyValueStore."""
        await self._call(self._store.put, key, value, ttl=ttl)

    async def put_if_absent(self, key: Key, value: bytes, *, ttl: float | None = None) -> bytes:
        """See KeyValueStore."""
        return await self._call(self._store.put_if_absent, key, value, ttl=ttl)

    async def get(self, key: Key) -> bytes | None:
        """See KeyValueStore."""
        return await self._read(self._store.get, key)

    async def get_many(self, keys: Sequence[Key]) -> list[bytes | None]:
        """See KeyValueStore."""
        return await self._read(self._store.get_many, keys)

    async def delete(self, keys: Sequence[Key]) -> int:
        """See KeyValueStore."""
        return await self._admit(self._write_timeout, self._store.delete, keys, needs_room=False)

    async def append(
        self, key: Key, values: Sequence[bytes], *, keep: int | None = None, ttl: float | None = None
    ) -> int:
        """See KeyValueStore."""
        return await self._call(self._store.append, key, values, keep=keep, ttl=ttl)

    async def read(self, key: Key, start: int = 0, limit: int | None = None) -> list[tuple[int, bytes]]:
        """See KeyValueStore."""
        return await self._read(self._store.read, key, start, limit)

    async def scan(
        self, collection: str, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> list[tuple[str, bytes]]:
        """See KeyValueStore."""
        return await self._read(self._store.scan, collection, prefix=prefix, after=after, limit=limit)

    async def write(self, batch: Sequence[Put | Append]) -> dict[Key, bytes]:
        """See KeyValueStore."""
        is_erasure = bool(batch) and all(isinstance(each, Put) and each.for_erasing for each in batch)
        return await self._admit(self._write_timeout, self._store.write, batch, needs_room=not is_erasure)

    def lock(self, key: Key, *, lease: float) -> AbstractAsyncContextManager[bool]:
        """See KeyValueStore. If the release fails, the lock ends with its lease."""
        return self._guard_lock(self._store.lock(key, lease=lease))

    @asynccontextmanager
    async def _guard_lock(self, lock: AbstractAsyncContextManager[bool]) -> AsyncIterator[bool]:
        is_acquired = await self._call(lock.__aenter__)
        try:
            yield is_acquired
        finally:
            with suppress(StoreUnavailable):
                await self._call(lock.__aexit__, None, None, None)

    async def ping(self) -> None:
        """See KeyValueStore."""
        await self._call(self._store.ping)

    async def close(self) -> None:
        """Closes the store, also while it is unavailable."""
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
        is_probe_due = not self._is_probing and self._monotonic() >= self._probe_at
        if self._is_full and not needs_room:
            if is_probe_due:
                with suppress(StoreUnavailable):
                    await self._probe(seconds, self._store.ping)
            return await self._with_timeout(seconds, method, *args, **options)
        if not is_probe_due:
            raise (StoreFull if self._is_full else StoreUnavailable)(f"the store is unavailable: {self.problem}")
        return await self._probe(seconds, method, *args, **options)

    async def _probe(self, seconds: float, method: Callable[..., Awaitable[T]], *args: Any, **options: Any) -> T:
        self._is_probing = True
        try:
            result: T = await self._with_timeout(seconds, self._run_probe, method, *args, **options)
        finally:
            self._is_probing = False
        self._set_available(True)
        return result

    async def _run_probe(self, method: Callable[..., Awaitable[T]], *args: Any, **options: Any) -> T:
        await self._store.put(_PROBE, b"", ttl=60.0)
        return await method(*args, **options)

    async def _with_timeout(self, seconds: float, method: Callable[..., Awaitable[T]], *args: Any, **options: Any) -> T:
        try:
            result = await within(seconds, method(*args, **options))
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
        """Returns the StoreUnavailable for an unexpected error; if a ping fails too, marks the store unavailable.

        If the ping succeeds, only this call is at fault, and others still go to the store. Each type of error is logged
        once, since it points to a mistake in the code or in the settings.
        """
        reason = f"the store refused: {error!r}"
        if type(error) not in self._logged:
            self._logged.add(type(error))
            _log.error("the store rejected a call: %s", type(error).__name__, exc_info=error)
        try:
            await within(self._timeout, self._store.ping())
        except Exception:
            return self._fail(reason)
        return StoreUnavailable(reason)

    def _fail(self, reason: str, *, full: bool = False) -> StoreUnavailable:
        self._is_full = full
        self._probe_at = self._monotonic() + self._retry_after
        self.problem = reason
        self._set_available(False)
        return StoreUnavailable(reason)

    def _set_available(self, available: bool) -> None:
        if available is not self._available:
            self._available = available
            if self._on_change is not None:
                self._on_change(available)
