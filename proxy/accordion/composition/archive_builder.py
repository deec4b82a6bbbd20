"""Builds the archive: removed content and transcripts, their encryption, retention and erasure."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from accordion.archive.archive import Archive
from accordion.archive.erasure_notices import ErasureNotices
from accordion.archive.retention import Retention, SweepResult
from accordion.archive.transcripts import TranscriptStore
from accordion.composition.cache_shares import divide_cache
from accordion.config import Settings
from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Clock, KeyValueStore, Tasks
from accordion.stores.encryption import open_sealer
from accordion.stores.spool import SpooledStore


class ArchiveServices:
    """The archive's services. `spooled` is the store behind the spool. `on_sweep` receives the result of each sweep."""

    def __init__(
        self,
        settings: Settings,
        store: KeyValueStore,
        spooled: SpooledStore,
        tasks: Tasks,
        clock: Clock,
        on_sweep: Callable[[SweepResult], None],
    ) -> None:
        config = settings.archive
        self.retention = config.retention_days * 86_400
        self.sealer = open_sealer(config.key.reveal(), is_persistent=settings.store.url.reveal() != "memory://")
        self.bounds = Retention(
            store, tasks, clock, max_bytes=config.max_bytes, retention=self.retention, on_sweep=on_sweep
        )
        self.archive = Archive(
            spooled,
            self.retention,
            sealer=self.sealer,
            clock=clock,
            on_write=self.bounds.note_write,
            capacity=divide_cache(settings.limits.cache_bytes).archive_rows,
            minor=spooled.with_half_capacity(),
        )
        # A second proxy may use the same file. Only a store in memory certainly belongs to this process alone.
        wait = None if settings.store.url.reveal() == "memory://" else asyncio.sleep
        self.erasures = ErasureNotices(store, clock, self.retention, wait)
        sessions = 2 * settings.limits.sessions_in_memory
        self.transcripts = TranscriptStore(
            self.archive, tasks, clock, config.record_mode, asyncio.sleep, sessions=sessions
        )

    async def close(self) -> None:
        """Writes the transcripts that are still in memory."""
        with suppress(StoreUnavailable):
            await self.transcripts.flush()
