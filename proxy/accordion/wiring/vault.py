"""The rooms that keep what left the window, and what was said: sealed, bounded, given out, erased."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from accordion.archive.bounds import Bounds, Swept
from accordion.archive.erasures import Erasures
from accordion.archive.transcripts import Transcripts
from accordion.archive.writing import Archive
from accordion.core.errors import StoreUnavailable
from accordion.core.ports import Clock, Store, Tasks
from accordion.settings import Settings
from accordion.storage.sealed import open_sealer
from accordion.storage.spool import SpooledStore
from accordion.wiring.shares import shares


class Vault:
    """What outlives the window. `spooled` is the store with the spool before it. `told` hears what was removed for
    being too old or too much."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        spooled: SpooledStore,
        tasks: Tasks,
        clock: Clock,
        told: Callable[[Swept], None],
    ) -> None:
        kept = settings.archive
        self.retention = kept.retention_days * 86_400
        self.sealer = open_sealer(kept.key.reveal(), lasting=settings.store.url.reveal() != "memory://")
        self.bounds = Bounds(store, tasks, clock, max_bytes=kept.max_bytes, retention=self.retention, told=told)
        known = shares(settings.limits.cache_bytes).written
        self.archive = Archive(
            spooled,
            self.retention,
            sealer=self.sealer,
            clock=clock,
            wrote=self.bounds.wrote,
            capacity=known,
            minor=spooled.minor(),
        )
        # A second proxy may use the same file. Only what this process has in memory is its own for certain.
        wait = None if settings.store.url.reveal() == "memory://" else asyncio.sleep
        self.erasures = Erasures(store, clock, self.retention, wait)
        sessions = 2 * settings.limits.sessions_in_memory
        self.transcripts = Transcripts(self.archive, tasks, clock, kept.recorded, asyncio.sleep, sessions=sessions)

    async def close(self) -> None:
        """Writes what is left to write."""
        with suppress(StoreUnavailable):
            await self.transcripts.flush()
