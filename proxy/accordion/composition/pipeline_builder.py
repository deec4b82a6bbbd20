"""Builds the steps of requests from the settings, connects them to pipelines, and builds the step of visibility."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import msgspec

from accordion.accounting.calibration import Calibrations
from accordion.accounting.holdout import Holdout
from accordion.accounting.key_limits import KeyLimiter, KeyUsageLedger
from accordion.accounting.ledger import Ledger
from accordion.accounting.token_meter import TokenMeter
from accordion.archive.archive import Archive
from accordion.archive.erasure_notices import ErasureNotices
from accordion.archive.stored_responses import StoredResponses
from accordion.composition.cache_shares import DEFAULT, CacheShares, divide_cache
from accordion.composition.compaction_builder import ArchiveServices, CompactionBuilder, Summarizers
from accordion.composition.features import RunningFeature
from accordion.composition.tables import base_models, build_prices, find_summary_model, rules_by_model
from accordion.config import Settings
from accordion.config.settings import DelegationConfig
from accordion.delegation.branch_access import BranchAccess
from accordion.delegation.tracker import DelegationCacheSizes, DelegationTracker
from accordion.delegation.visibility_filter import VisibilityFilter
from accordion.insertions.artifact_recall import ArtifactRecall
from accordion.insertions.recall_source import RecallSource
from accordion.insertions.store import InsertionStore
from accordion.model.delegation import Evidence
from accordion.model.ports import Clock, KeyValueStore, Outbox, Tasks, Waiter, WindowTable
from accordion.pipeline.calibration import Calibrator
from accordion.pipeline.compact import CompactionStep
from accordion.pipeline.compaction_stops import CompactionStops
from accordion.pipeline.costs import CostCalculator
from accordion.pipeline.count import ForwardedListMeter
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
from accordion.pipeline.response_hooks import (
    HiddenResultHook,
    RecallIndexHook,
    ReferencedItemHook,
    ResponseHook,
    TranscriptHook,
)
from accordion.pipeline.response_retrieval import ResponseRetrieval
from accordion.pipeline.retries import RetryStep
from accordion.pipeline.send import Sender
from accordion.pipeline.shared_artifacts import SharedArtifacts
from accordion.pipeline.tool_loop import ToolLoop
from accordion.pipeline.tool_refusals import ToolRefusals
from accordion.pipeline.upgrade import ModelSockets, UpgradePipeline
from accordion.pipeline.visibility import Visibility
from accordion.protocols.body_reader import BodyReader
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


class LastingParts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a process that its pipelines share and that stay when the settings change."""

    clock: Clock
    tasks: Tasks
    sessions: Sessions
    archive: ArchiveServices
    compaction: CompactionBuilder
    visibility: VisibilityBuilder
    body_reader: BodyReader
    tool_refusals: ToolRefusals
    token_meter: TokenMeter
    calibrations: Calibrations
    ledger: Ledger
    key_limiter: KeyLimiter
    key_usage: KeyUsageLedger
    compaction_stops: CompactionStops
    features: Sequence[RunningFeature] = ()


class PipelineSteps(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of the pipelines, by the settings in force. `model_sockets`: see UpgradePipeline."""

    clock: Clock
    tasks: Tasks
    waiter: Waiter
    tenants: Tenants
    receiver: Receiver
    identifier: Identifier
    measurer: Measurer
    compaction_step: CompactionStep
    sender: Sender
    tool_loop: ToolLoop
    response_history: ResponseHistory
    stored_responses: StoredResponses
    insertion_store: InsertionStore
    calibrator: Calibrator
    ledger: Ledger
    erasures: ErasureNotices
    response_hooks: Sequence[ResponseHook]
    session_names: SessionNames
    costs: CostCalculator
    key_limiter: KeyLimiter
    key_usage: KeyUsageLedger
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    model_sockets: ModelSockets = "read"


def build_steps(
    parts: LastingParts, settings: Settings, sender: Sender, windows: WindowTable, summarizers: Summarizers
) -> PipelineSteps:
    """Builds the steps for these settings. `sender` has the tenants and the routes, `summarizers` writes summaries."""
    compaction = parts.compaction
    visibility = parts.visibility.visibility(settings)
    mentions = next(filter(None, (feature.mentions(settings) for feature in parts.features)), None)
    artifact_recall = compaction.artifact_recall(settings)
    list_meter = ForwardedListMeter(
        compaction.insertion_composer(settings), parts.token_meter, parts.calibrations, parts.tasks, parts.tool_refusals
    )
    return PipelineSteps(
        clock=parts.clock,
        tasks=parts.tasks,
        waiter=compaction.waiter,
        tenants=sender.tenants,
        receiver=Receiver(
            body_reader=parts.body_reader,
            base_models=base_models(settings),
            router=sender.router,
            tasks=parts.tasks,
            max_body=settings.server.max_body_bytes,
            hooks=[hook for feature in parts.features for hook in feature.request_hooks],
        ),
        identifier=Identifier(
            visibility, parts.sessions, mentions, compaction.session_overrides, settings.compaction.mode_of
        ),
        measurer=Measurer(
            list_meter=list_meter,
            sessions=parts.sessions,
            visibility=visibility,
            window_table=windows,
            compactions=compaction.compactions,
            session_overrides=compaction.session_overrides,
            compaction_rules=rules_by_model(settings),
            mentions=mentions,
            tasks=parts.tasks,
            now=parts.clock.now,
            holdout=Holdout(settings.compaction.holdout),
            is_stopped=parts.compaction_stops.is_stopped,
            can_estimate=True,
        ),
        compaction_step=CompactionStep(
            list_meter=list_meter,
            visibility=visibility,
            window_table=windows,
            compactors=compaction.compactors(settings, summarizers),
            build_compactor=partial(compaction.compactor_of, settings),
            renderer=compaction.request_renderer,
            session_overrides=compaction.session_overrides,
            referenced_items=compaction.referenced_items,
            summary_callers=sender.build_summary_caller,
            earlier_lists=compaction.earlier_lists(parts.sessions),
            recall_sources=_recall_sources(parts.features, settings, artifact_recall),
        ),
        sender=sender,
        tool_loop=compaction.tool_loop(settings, parts.tool_refusals, visibility.shared_artifacts),
        response_history=compaction.response_history(parts.sessions),
        stored_responses=compaction.stored_responses,
        insertion_store=compaction.insertion_store,
        calibrator=Calibrator(parts.sessions, visibility, parts.calibrations, windows),
        ledger=parts.ledger,
        erasures=parts.archive.erasures,
        response_hooks=_response_hooks(parts, settings, visibility, artifact_recall),
        session_names=parts.archive.session_names,
        costs=CostCalculator(build_prices(settings), parts.token_meter, partial(find_summary_model, settings)),
        key_limiter=parts.key_limiter,
        key_usage=parts.key_usage,
        model_sockets=settings.server.model_sockets,
    )


def _recall_sources(
    features: Sequence[RunningFeature], settings: Settings, artifact_recall: ArtifactRecall | None
) -> list[RecallSource]:
    """Builds the sources of recalled content that are switched on, in the order in which they insert."""
    return [
        *(source for feature in features for source in feature.requested_sources(settings)),
        *(() if artifact_recall is None else (artifact_recall,)),
        *(source for feature in features for source in feature.recall_sources(settings)),
    ]


def _response_hooks(
    parts: LastingParts, settings: Settings, visibility: Visibility, artifact_recall: ArtifactRecall | None
) -> list[ResponseHook]:
    """Builds what acts on exchanges after their responses."""
    hooks: list[ResponseHook] = [
        TranscriptHook(parts.archive.transcripts),
        ReferencedItemHook(parts.compaction.referenced_items),
    ]
    if visibility.shared_artifacts is not None:
        hooks.append(HiddenResultHook(visibility.shared_artifacts))
    hooks += [hook for feature in parts.features for hook in feature.response_hooks(settings)]
    if artifact_recall is not None:
        hooks.append(RecallIndexHook(artifact_recall.archive_search, parts.tasks))
    return hooks


def build_pipelines(steps: PipelineSteps) -> tuple[RequestPipeline, UpgradePipeline]:
    """Connects the steps."""
    sessions = steps.identifier.sessions
    provider_items = ProviderItems(steps.stored_responses, steps.erasures, steps.tasks, steps.waiter, steps.sender.send)
    recorder = ExchangeRecorder(
        steps.ledger,
        steps.clock,
        steps.tasks,
        steps.erasures,
        sessions,
        steps.calibrator,
        steps.response_history,
        provider_items,
        steps.response_hooks,
        steps.costs,
        steps.key_usage,
        steps.measurer.list_meter,
        steps.sleep,
        steps.insertion_store,
        steps.session_names,
    )

    def is_store_available() -> bool:
        return sessions.store.is_available

    responder = Responder(recorder, steps.response_history, steps.clock, is_store_available)
    reader = RequestReader(steps.receiver, steps.identifier, steps.measurer)
    history_reconstruction = HistoryReconstruction(steps.stored_responses, provider_items, reader, steps.measurer)
    pipeline = RequestPipeline(
        clock=steps.clock,
        tenants=steps.tenants,
        key_limiter=steps.key_limiter,
        reader=reader,
        prepare=Preparer(steps.measurer, history_reconstruction, steps.compaction_step),
        sender=steps.sender,
        tool_loop=steps.tool_loop,
        retry_step=RetryStep(
            steps.receiver.hooks,
            reader,
            steps.measurer,
            history_reconstruction,
            steps.compaction_step,
            steps.tool_loop,
            steps.calibrator,
            ListRefusals(
                steps.compaction_step,
                steps.measurer.compactions,
                steps.measurer.session_overrides,
                steps.measurer.window_table,
                steps.clock.now,
            ),
            is_store_available,
        ),
        response_retrieval=ResponseRetrieval(sessions, steps.insertion_store),
        model_list_reader=ModelListReader(steps.measurer.window_table),
        responder=responder,
        recorder=recorder,
    )
    return pipeline, UpgradePipeline(
        steps.clock,
        steps.tenants,
        steps.key_limiter,
        steps.receiver,
        steps.sender,
        responder,
        recorder,
        steps.model_sockets,
    )
