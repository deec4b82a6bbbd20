"""What proxies know of delegations, read from the configured store; nothing is written to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from accordion.core.errors import StoreUnavailable
from accordion.core.ports import Clock, Key, Store, Tasks
from accordion.identity.lineage import Lineage
from accordion.identity.sessions import Sessions
from accordion.identity.tenants import ProxyKey, Tenants
from accordion.settings import Settings
from accordion.storage.opening import open_store
from accordion.wiring.mark import TENANT_SECRET
from accordion.wiring.tables import is_loopback


class _Nowhere:
    """An outbox (core/ports.py) whose letters nobody gets."""

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
        """There is nothing to forget."""
        return []


@dataclass(frozen=True, slots=True)
class Beside:
    """The configured store, and the key by which proxies tell tenants apart in it."""

    store: Store
    secret: bytes

    def tenants(self, settings: Settings) -> Tenants:
        """Who is who, as proxies have it."""
        keys = tuple(ProxyKey(key.id, key.key.reveal()) for key in settings.proxy_keys)
        return Tenants(self.secret, keys, loopback=is_loopback(settings.server.host))

    def lineage(self, settings: Settings, clock: Clock, tasks: Tasks) -> Lineage:
        """The delegations that are known."""
        wanted = settings.delegation
        return Lineage.build(
            self.store, _Nowhere(), clock, tasks,
            tools=wanted.tools, handoff_tools=wanted.handoff_tools,
            max_depth=wanted.max_depth, max_agents=wanted.max_agents,
        )  # fmt: skip

    def sessions(self, clock: Clock) -> Sessions:
        """The conversations that are on record."""
        return Sessions(self.store, _Nowhere(), clock, "explain")


@asynccontextmanager
async def beside(settings: Settings) -> AsyncIterator[Beside | None]:
    """What there is to read; None where the store is in memory, is away, or no proxy has used it yet."""
    if not _readable(settings):
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
        yield Beside(store, secret) if secret else None
    finally:
        await store.close()


def _readable(settings: Settings) -> bool:
    file = settings.store.file()
    return Path(file).exists() if file else settings.store.url.reveal() != "memory://"
