"""Builds the visibility step, and builds its caches again only when the delegation settings change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from accordion.archive.archive import Archive
from accordion.composition.cache_shares import DEFAULT, CacheShares, divide_cache
from accordion.config import Settings
from accordion.config.settings import DelegationConfig
from accordion.delegation.branch_access import BranchAccess
from accordion.delegation.tracker import DelegationCacheSizes, DelegationTracker
from accordion.delegation.visibility_filter import VisibilityFilter
from accordion.model.delegation import Evidence
from accordion.model.ports import Clock, KeyValueStore, Outbox, Tasks
from accordion.pipeline.shared_artifacts import SharedArtifacts
from accordion.pipeline.visibility import Visibility
from accordion.protocols.written_messages import WrittenMessageReader
from accordion.sessions.sessions import Sessions


class VisibilityBuilder:
    """Builds the visibility step for the current settings."""

    def __init__(
        self,
        store: KeyValueStore,
        outbox: Outbox,
        clock: Clock,
        tasks: Tasks,
        sessions: Sessions,
        reader: WrittenMessageReader,
        archive: Archive,
        on_new_edge: Callable[[Evidence], None] | None = None,
        sizes: CacheShares | None = None,
    ) -> None:
        self._services = store, outbox, clock, tasks
        self._archive = archive
        self._sessions, self._on_new_edge = sessions, on_new_edge
        self._shares = sizes or divide_cache(DEFAULT)
        self._filter = VisibilityFilter(reader, self._shares.filtered_lists)
        self._built: tuple[DelegationConfig, DelegationTracker, SharedArtifacts] | None = None

    def visibility(self, settings: Settings) -> Visibility:
        """Returns the step for these settings."""
        config = settings.delegation
        if self._built is None or self._built[0] != config:
            sizes = self._shares
            tracker = DelegationTracker.build(
                *self._services,
                tools=config.tools,
                handoff_tools=config.handoff_tools,
                max_depth=config.max_depth,
                max_agents=config.max_agents,
                retention=settings.store.retention_days * 86_400,
                on_new_edge=self._on_new_edge,
                sleep=asyncio.sleep,
                sizes=DelegationCacheSizes(
                    sizes.nodes,
                    sizes.call_agents,
                    sizes.handoffs,
                    sizes.origins,
                    sizes.visible_results,
                    sizes.open_calls,
                    sizes.waiting_conversations,
                ),
            )
            store, _, clock, tasks = self._services
            branch_access = BranchAccess(store, tracker.delegation_tree, tracker.call_owners)
            self._built = (
                config,
                tracker,
                SharedArtifacts(self._archive, branch_access, tasks, clock, capacity=sizes.hidden_results),
            )
        _, tracker, shared_artifacts = self._built
        return Visibility(tracker, self._filter, self._sessions, shared_artifacts)

    def forget(self) -> None:
        """Clears the caches after an erasure."""
        if self._built is not None:
            self._built[1].forget()
            self._built[2].forget()
