"""Runs requests through the pipeline up to the point of sending, for `explain`, `replay` and the benchmarks.

`OfflinePipeline` builds an `Application` with the user's settings, but with a store in memory and without models for
summaries. So a request is parsed, measured and compacted as in a running proxy, and nothing is sent. `StoredState` has
the delegations and sessions that proxies recorded in the configured store; it is read, and nothing is written there.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from msgspec.structs import replace

from accordion.accounting.token_meter import TokenMeter
from accordion.archive.archive import Archive
from accordion.archive.artifacts import Artifact
from accordion.cli.tenant_store import DiscardingOutbox
from accordion.composition.application import Application
from accordion.composition.configured_store import TENANT_SECRET
from accordion.config import Settings
from accordion.config.value_types import Secret, StoreUrl, is_loopback
from accordion.delegation.tracker import DelegationTracker
from accordion.model.budget import Window
from accordion.model.errors import StoreUnavailable, Unreachable
from accordion.model.http import Inbound
from accordion.model.ports import Clock, KeyValueStore, Tasks
from accordion.pipeline.forward import RequestPipeline
from accordion.pipeline.request import PassthroughRequest, PreparedRequest
from accordion.sessions.sessions import Sessions
from accordion.sessions.tenants import Caller, Tenants
from accordion.stores.open import open_store

# The tenant key if the config has none. It is constant, so session ids are, too.
_TENANT_KEY = "offline"


@dataclass(frozen=True, slots=True)
class StoredState:
    """The configured store, and the secret that identifies its tenants."""

    store: KeyValueStore
    secret: bytes

    def tenants(self, settings: Settings) -> Tenants:
        """Returns the tenants as proxies identify them."""
        keys = tuple(key.proxy_key() for key in settings.proxy_keys)
        return Tenants(self.secret, keys, loopback=is_loopback(settings.server.host))

    def delegation_tracker(self, settings: Settings, clock: Clock, tasks: Tasks) -> DelegationTracker:
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


@dataclass(frozen=True, slots=True)
class OneWindow:
    """Windows (model/ports.py) of one size for all models."""

    size: int

    def window(self, model: str, upstream: str = "", beta: str = "", tenant: str = "") -> Window:
        """Returns the window."""
        return Window(self.size, self.size, "config")

    def learn(self, model: str, upstream: str, beta: str, tenant: str, limit: int) -> None:
        """Learns nothing: the user chose the size."""


class OfflinePipeline:
    """The pipeline for `settings`, with a window of `window` tokens for every model if given.

    Create and close it within a running event loop. It sends nothing and writes nothing to disk. Agents are known from
    `stored`, the records of proxies, if given.
    """

    def __init__(self, settings: Settings, window: int | None = None, stored_state: StoredState | None = None) -> None:
        self._key = settings.server.tenant_key.reveal() or _TENANT_KEY
        server = replace(settings.server, tenant_key=Secret(self._key))
        store = replace(settings.store, url=StoreUrl("memory://"), spool=None)
        self._settings = settings
        # No model can be called here.
        summaries = replace(settings.summaries, writer="extractive")
        self._application = Application(replace(settings, server=server, store=store, summaries=summaries), {})
        self.tenants = self._application.tenants if stored_state is None else stored_state.tenants(settings)
        self.sessions = None if stored_state is None else stored_state.sessions(self._application.clock)
        self.recorded_at = 0.0
        """The time at which the request was recorded; 0 if it is not known, or now."""
        self.forward = self._build_pipeline(settings, window, stored_state)

    def _build_pipeline(
        self, settings: Settings, window: int | None, stored_state: StoredState | None
    ) -> RequestPipeline:
        """Returns the application's pipeline, with the given window and the recorded agents."""
        forward = self._application.forward
        measurer, identifier = forward.reader.measurer, forward.reader.identifier
        measurer = replace(measurer, can_estimate=False, now=lambda: self.recorded_at or time.time())
        # No model writes summaries, and there are no memories to recall.
        preparer = forward.prepare
        sources = [source for source in preparer.compaction_step.recall_sources if not source.needs_proxy]
        step = replace(preparer.compaction_step, summary_callers=lambda _request: None, recall_sources=sources)
        if window is not None:
            measurer = replace(measurer, window_table=OneWindow(window))
            step = replace(step, window_table=OneWindow(window))
        if stored_state is not None:
            tracker = stored_state.delegation_tracker(settings, self._application.clock, self._application.tasks)
            visibility = replace(measurer.visibility, delegation_tracker=tracker)
            measurer = replace(measurer, visibility=visibility)
            identifier = replace(identifier, visibility=visibility)
            step = replace(step, visibility=visibility)
        reader = replace(forward.reader, identifier=identifier, measurer=measurer)
        reconstruction = preparer.history_reconstruction
        reconstruction = replace(
            reconstruction,
            reader=reader,
            measurer=measurer,
            provider_items=replace(reconstruction.provider_items, send=_send_nothing),
        )
        preparer = replace(
            preparer,
            measurer=measurer,
            history_reconstruction=reconstruction,
            compaction_step=step,
        )
        return replace(forward, reader=reader, prepare=preparer)

    def writer(self, model: str) -> str:
        """Returns the configured summary writer for `model`; offline, the extractive writer replaces it."""
        return self._settings.compaction.writer_of(model) or self._settings.summaries.writer

    async def process(self, inbound: Inbound, caller: Caller) -> PreparedRequest | PassthroughRequest:
        """Reads, measures and compacts a request as a running proxy would before it sends it.

        The decision of the result is `refuse` if the request cannot fit the window.
        """
        request = await self.forward.reader.read(inbound, caller)
        return request if isinstance(request, PassthroughRequest) else await self.forward.prepare(request)

    async def artifacts(self, ids: Sequence[str], caller: Caller) -> list[Artifact]:
        """Loads artifacts by id, in the order of `ids`; missing ones are left out."""
        artifacts = await Archive(self._application.store).load_artifacts(caller.tenant, ids)
        return [artifact for artifact in artifacts if artifact is not None]

    async def text_of(self, artifact: str, caller: Caller) -> str | None:
        """Returns the whole text of an artifact; None for an unknown id."""
        return await self._application.artifact_text(artifact, caller.tenant)

    @property
    def token_meter(self) -> TokenMeter:
        """The counter of tokens."""
        return self.forward.reader.measurer.list_meter.token_meter

    @property
    def caller(self) -> Caller:
        """The caller of requests without credentials."""
        return Tenants(self._key.encode()).identify({})

    async def close(self) -> None:
        """Stops the application."""
        await self._application.stop()


async def _send_nothing(request: PassthroughRequest) -> NoReturn:
    raise Unreachable("no provider is asked offline")
