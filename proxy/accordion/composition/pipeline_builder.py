"""Builds the pipelines of requests and upgrades from their steps."""

from __future__ import annotations

from collections.abc import Sequence

from accordion.accounting.key_limits import KeyLimiter, KeyUsageLedger
from accordion.accounting.ledger import Ledger
from accordion.archive.erasure_notices import ErasureNotices
from accordion.archive.response_links import ResponseLinks
from accordion.insertions.store import InsertionStore
from accordion.model.ports import Clock, Tasks, Waiter
from accordion.pipeline.calibration import Calibrator
from accordion.pipeline.compact import CompactionStep
from accordion.pipeline.context_edits import ContextEditStep, CountMessage
from accordion.pipeline.conversation_objects import ConversationObjects
from accordion.pipeline.costs import CostCalculator
from accordion.pipeline.features import ExchangeFeature
from accordion.pipeline.forward import RequestPipeline
from accordion.pipeline.history_reconstruction import HistoryReconstruction
from accordion.pipeline.identify import Identifier
from accordion.pipeline.measure import Measurer
from accordion.pipeline.read import RequestReader
from accordion.pipeline.receive import Receiver
from accordion.pipeline.record import ExchangeRecorder
from accordion.pipeline.respond import Responder
from accordion.pipeline.response_history import ResponseHistory
from accordion.pipeline.response_retrieval import ResponseRetrieval
from accordion.pipeline.retries import RetryStep
from accordion.pipeline.send import Sender
from accordion.pipeline.tool_loop import ToolLoop
from accordion.pipeline.upgrade import ModelSockets, UpgradePipeline
from accordion.sessions.tenants import Tenants


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
    count_message: CountMessage,
    sender: Sender,
    tool_loop: ToolLoop,
    response_history: ResponseHistory,
    response_links: ResponseLinks,
    insertion_store: InsertionStore,
    calibrator: Calibrator,
    ledger: Ledger,
    erasures: ErasureNotices,
    features: Sequence[ExchangeFeature],
    costs: CostCalculator,
    key_limiter: KeyLimiter,
    key_usage: KeyUsageLedger,
    model_sockets: ModelSockets = "read",
) -> tuple[RequestPipeline, UpgradePipeline]:
    """Connects the steps. `model_sockets`: see UpgradePipeline."""
    sessions = identifier.sessions
    conversation_objects = ConversationObjects(response_links, erasures, tasks, waiter, sender.send)
    recorder = ExchangeRecorder(
        ledger, clock, tasks, erasures, sessions, calibrator, response_history, conversation_objects, features, costs,
        key_usage,
    )  # fmt: skip
    responder = Responder(recorder, response_history, clock, lambda: sessions.store.is_available)
    reader = RequestReader(receiver, identifier, measurer)
    history_reconstruction = HistoryReconstruction(response_links, conversation_objects, reader)
    context_edit_step = ContextEditStep(
        compaction_step, compaction_step.renderer, receiver.context_edit_reader.sealer, count_message, clock, tasks
    )
    pipeline = RequestPipeline(
        clock=clock,
        tenants=tenants,
        key_limiter=key_limiter,
        reader=reader,
        history_reconstruction=history_reconstruction,
        compaction_step=compaction_step,
        context_edit_step=context_edit_step,
        sender=sender,
        tool_loop=tool_loop,
        retry_step=RetryStep(
            measurer, history_reconstruction, compaction_step, tool_loop, calibrator, context_edit_step
        ),
        response_retrieval=ResponseRetrieval(sessions, insertion_store),
        responder=responder,
    )
    return pipeline, UpgradePipeline(clock, tenants, key_limiter, receiver, sender, responder, model_sockets)
