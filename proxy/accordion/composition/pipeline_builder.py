"""Builds the pipelines of requests and upgrades from their steps, and the step of visibility."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from accordion.accounting.key_limits import KeyLimiter, KeyUsageLedger
from accordion.accounting.ledger import Ledger
from accordion.archive.archive import Archive
from accordion.archive.erasure_notices import ErasureNotices
from accordion.archive.stored_responses import StoredResponses
from accordion.composition.cache_shares import DEFAULT, CacheShares, divide_cache
from accordion.config import Settings
from accordion.config.settings import DelegationConfig
from accordion.delegation.branch_access import BranchAccess
from accordion.delegation.tracker import DelegationCacheSizes, DelegationTracker
from accordion.delegation.visibility_filter import VisibilityFilter
from accordion.insertions.store import InsertionStore
from accordion.model.delegation import Evidence
from accordion.model.ports import Clock, KeyValueStore, Outbox, Tasks, Waiter
from accordion.pipeline.calibration import Calibrator
from accordion.pipeline.compact import CompactionStep
from accordion.pipeline.costs import CostCalculator
from accordion.pipeline.forward import RequestPipeline
from accordion.pipeline.history_reconstruction import HistoryReconstruction
from accordion.pipeline.identify import Identifier
from accordion.pipeline.list_refusals import ListRefusals
from accordion.pipeline.measure import Measurer
from accordion.pipeline.model_lists import ModelListReader
from accordion.pipeline.prepare import Preparer
from accordion.pipeline.provider_items import ProviderItems
from accordion.pipeline.read import RequestReader
from accordion.pipeline.receive import Receiver
from accordion.pipeline.record import ExchangeRecorder
from accordion.pipeline.respond import Responder
from accordion.pipeline.response_history import ResponseHistory
from accordion.pipeline.response_hooks import ResponseHook
from accordion.pipeline.response_retrieval import ResponseRetrieval
from accordion.pipeline.retries import RetryStep
from accordion.pipeline.send import Sender
from accordion.pipeline.shared_artifacts import SharedArtifacts
from accordion.pipeline.tool_loop import ToolLoop
from accordion.pipeline.upgrade import ModelSockets, UpgradePipeline
from accordion.pipeline.visibility import Visibility
from accordion.protocols.written_messages import WrittenMessageReader
from accordion.sessions.session_names import SessionNames
from accordion.sessions.sessions import Sessions
from accordion.sessions.tenants import Tenants


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


def build_pipelines(
    *,
    clock: Clock,
    tasks: Tasks,
    waiter: Waiter,
    tenants: Tenants,
    receiver: Receiver,
    identifier: Identifier,
    measurer: Measurer,
    compaction_step: CompactionStep,
    sender: Sender,
    tool_loop: ToolLoop,
    response_history: ResponseHistory,
    stored_responses: StoredResponses,
    insertion_store: InsertionStore,
    calibrator: Calibrator,
    ledger: Ledger,
    erasures: ErasureNotices,
    response_hooks: Sequence[ResponseHook],
    session_names: SessionNames,
    costs: CostCalculator,
    key_limiter: KeyLimiter,
    key_usage: KeyUsageLedger,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    model_sockets: ModelSockets = "read",
) -> tuple[RequestPipeline, UpgradePipeline]:
    """Connects the steps. `model_sockets`: see UpgradePipeline."""
    sessions = identifier.sessions
    provider_items = ProviderItems(stored_responses, erasures, tasks, waiter, sender.send)
    recorder = ExchangeRecorder(
        ledger, clock, tasks, erasures, sessions, calibrator, response_history, provider_items, response_hooks, costs,
        key_usage, measurer.list_meter, sleep, insertion_store, session_names,
    )  # fmt: skip

    def is_store_available() -> bool:
        return sessions.store.is_available

    responder = Responder(recorder, response_history, clock, is_store_available)
    reader = RequestReader(receiver, identifier, measurer)
    history_reconstruction = HistoryReconstruction(stored_responses, provider_items, reader, measurer)
    pipeline = RequestPipeline(
        clock=clock,
        tenants=tenants,
        key_limiter=key_limiter,
        reader=reader,
        prepare=Preparer(measurer, history_reconstruction, compaction_step),
        sender=sender,
        tool_loop=tool_loop,
        retry_step=RetryStep(
            reader,
            measurer,
            history_reconstruction,
            compaction_step,
            tool_loop,
            calibrator,
            ListRefusals(
                compaction_step, measurer.compactions, measurer.session_overrides, measurer.window_table, clock.now
            ),
            is_store_available,
        ),
        response_retrieval=ResponseRetrieval(sessions, insertion_store),
        model_list_reader=ModelListReader(measurer.window_table),
        responder=responder,
        recorder=recorder,
    )
    return pipeline, UpgradePipeline(clock, tenants, key_limiter, receiver, sender, responder, recorder, model_sockets)
