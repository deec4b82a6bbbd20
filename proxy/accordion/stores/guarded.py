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
from accordion.model.ports import Key, KeyValueStore
from accordion.stores.store_layer import StoreLayer
from accordion.stores.time_limit import within

T = TypeVar("T")

_log = logging.getLogger("accordion")

_PROBE = Key("probe", "probe")
"""The key that a probe writes, since a store with a full disk still answers reads. Its value expires by itself.

It is in a collection, as most values are: such a write needs more of a server, such as the permission to run scripts.
"""


class GuardedStore(StoreLayer):
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
        super().__init__(store)
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

    async def _call(self, method: Callable[..., Awaitable[T]], *args: Any, **options: Any) -> T:
        is_read = method in (self._main.get_many, self._main.read, self._main.scan)
        needs_room = not is_read and method != self._main.delete and not _is_erasure(*args)
        seconds = self._timeout if is_read else self._write_timeout
        return await self._admit(seconds, method, *args, needs_room=needs_room, **options)

    def lock(self, key: Key, *, lease: float) -> AbstractAsyncContextManager[bool]:
        """See KeyValueStore. If the release fails, the lock ends with its lease."""
        return self._guard_lock(self._main.lock(key, lease=lease))

    @asynccontextmanager
    async def _guard_lock(self, lock: AbstractAsyncContextManager[bool]) -> AsyncIterator[bool]:
        is_acquired = await self._call(lock.__aenter__)
        try:
            yield is_acquired
        finally:
            with suppress(StoreUnavailable):
                await self._call(lock.__aexit__, None, None, None)

    async def close(self) -> None:
        """Closes the store, also while it is unavailable."""
        with suppress(StoreUnavailable):
            await self._with_timeout(self._write_timeout, self._main.close)

    async def _admit(
        self, seconds: float, method: Callable[..., Awaitable[T]], *args: Any, needs_room: bool = True, **options: Any
    ) -> T:
        if self._available:
            return await self._with_timeout(seconds, method, *args, **options)
        is_probe_due = not self._is_probing and self._monotonic() >= self._probe_at
        if self._is_full and not needs_room:
            if is_probe_due:
                with suppress(StoreUnavailable):
                    await self._probe(seconds, self._main.ping)
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
        await self._main.put(_PROBE, b"", ttl=60.0)
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
            await within(self._timeout, self._main.ping())
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


def _is_erasure(batch: object = (), *_: object) -> bool:
    """Whether the arguments of a call are a batch that an erasure needs."""
    return isinstance(batch, Sequence) and bool(batch) and all(getattr(each, "for_erasing", False) for each in batch)
