"""Reads the delegations and sessions that proxies recorded in the configured store; writes nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from accordion.composition.store_identity import TENANT_SECRET
from accordion.composition.tables import is_loopback
from accordion.config import Settings
from accordion.delegation.tracker import DelegationTracker
from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Clock, Key, KeyValueStore, Tasks
from accordion.sessions.sessions import Sessions
from accordion.sessions.tenants import Tenants
from accordion.stores.open import open_store


class DiscardingOutbox:
    """An outbox (model/ports.py) that discards all writes."""

    def put(self, key: Key, value: Callable[[], bytes], ttl: float | None = None) -> None:
        """Drops it."""

    def merge(
        self, key: Key, value: Callable[[bytes | None], bytes], kept: Callable[[], object], ttl: float | None = None
    ) -> None:
        """Drops it."""

    def append(self, key: Key, value: Callable[[], bytes], keep: int | None = None, ttl: float | None = None) -> None:
        """Drops it."""

    async def flush(self) -> None:
        """There is nothing to write."""

    async def drop(self, is_erased: Callable[[Key], bool]) -> list[Key]:
        """Drops nothing: the outbox is empty."""
        return []


@dataclass(frozen=True, slots=True)
class StoredState:
    """The configured store, and the secret that identifies its tenants."""

    store: KeyValueStore
    secret: bytes

    def tenants(self, settings: Settings) -> Tenants:
        """Returns the tenants as proxies identify them."""
        keys = tuple(key.proxy_key() for key in settings.proxy_keys)
        return Tenants(self.secret, keys, loopback=is_loopback(settings.server.host))

    def lineage(self, settings: Settings, clock: Clock, tasks: Tasks) -> DelegationTracker:
        """Returns a tracker that reads the recorded delegations."""
        options = settings.delegation
        return DelegationTracker.build(
            self.store, DiscardingOutbox(), clock, tasks,
            tools=options.tools, handoff_tools=options.handoff_tools,
            max_depth=options.max_depth, max_agents=options.max_agents,
        )  # fmt: skip

    def sessions(self, clock: Clock) -> Sessions:
        """Returns the recorded sessions."""
        return Sessions(self.store, DiscardingOutbox(), clock, "explain")


@asynccontextmanager
async def open_stored_state(settings: Settings) -> AsyncIterator[StoredState | None]:
    """Opens the store; gives None if it is in memory, unavailable, or unused so far."""
    if not _is_readable(settings):
        yield None
        return
    store = open_store(settings.store.url.reveal(), timeout=settings.store.write_timeout_seconds)
    try:
        secret: bytes | None = None
        try:
            await store.ping()
            secret = settings.server.tenant_key.reveal().encode() or await store.get(TENANT_SECRET)
        except StoreUnavailable:
            secret = None
        yield StoredState(store, secret) if secret else None
    finally:
        await store.close()


def _is_readable(settings: Settings) -> bool:
    file = settings.store.file()
    return Path(file).exists() if file else settings.store.url.reveal() != "memory://"
