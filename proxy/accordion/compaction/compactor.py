"""Carries out a compaction decision: plans, obtains a summary, archives what is removed, publishes the record.

`pipeline/compact.py` calls `Compactor.compact` with a `CompactionRequest`, whose decision `policy.py` made. One attempt
goes through these steps:

1. plan: `CompactionAssembler` (assembly.py) runs the planner over a view of the history; in a thread.
2. summary: the text that a model prepared in the background (background.py), or an extract without a model.
3. finish: the assembler applies the plan, checks the result, and builds the record and the archive writes.
4. publish: the archive writes first, then the record (repository.py). Another worker's record may win.

One conversation is compacted once at a time. A failure leaves the request unchanged. If the request must become
smaller, the next form of summary is tried: by a model, extracted, none.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Literal

import msgspec
from msgspec.structs import replace

from accordion.archive.archive import Archive
from accordion.archive.erasure_notices import ErasureNotices
from accordion.compaction.apply import PlanNotApplicable
from accordion.compaction.assembly import CompactionAssembler, PlannedCompaction
from accordion.compaction.background import BackgroundSummaries
from accordion.compaction.policy import MIN_GAIN
from accordion.compaction.reporting import report_compaction, report_failure, utilization_for_report
from accordion.compaction.repository import CompactionRepository
from accordion.compaction.request import CompactionRequest, CompactionResult
from accordion.model.budget import SUMMARIZE_AHEAD
from accordion.model.cache import BoundedCache, string_size
from accordion.model.compaction import CompactedConversation, Compaction
from accordion.model.errors import AccordionError, StoreUnavailable, SummaryFailed
from accordion.model.ports import Clock, Put, Signal, Tasks, Waiter
from accordion.model.records import ESTIMATED_WRITER, CompactionOutcome, FailureKind
from accordion.model.tenant import ConversationRef
from accordion.summaries.author import Summary, SummaryAuthor, SummaryTask
from accordion.summaries.extractive import ExtractiveWriter

__all__ = ["Compactor", "CompactorServices", "report_compaction"]

_log = logging.getLogger("accordion")

SummaryForm = Literal["model", "extract", "none"]


class SummaryPending(Exception):
    """A model is still writing the summary, and the request can be forwarded unchanged until then."""


class _FailedAttempt(msgspec.Struct, frozen=True):
    tokens: int
    index: int
    chain_key: bytes
    compaction_id: str
    reason: str


class RetryLimit:
    """Delays another attempt after one that failed: planning is expensive, and the history has hardly changed.

    Remembers the last failed attempt of each conversation, within `capacity` bytes.
    """

    def __init__(self, capacity: int = 4 * 2**20) -> None:
        self._failures = BoundedCache[ConversationRef, _FailedAttempt](
            capacity,
            lambda conversation_ref, attempt: string_size(
                conversation_ref.scope,
                conversation_ref.session,
                attempt.chain_key,
                attempt.compaction_id,
                attempt.reason,
            ),
        )

    def record_failure(self, request: CompactionRequest, reason: str) -> None:
        """Records a failed attempt."""
        # Clients may change the newest messages, so that a history is recognized by its first three quarters.
        chain = request.uncompacted.chain
        index = (len(chain) - 1) * 3 // 4
        self._failures[request.conversation_ref] = _FailedAttempt(
            request.utilization.tokens, index, chain[index], _id_in_force(request), reason
        )

    def refusal_reason(self, request: CompactionRequest) -> str:
        """Returns why another attempt is too early, or an empty text. A rewound history counts as another one."""
        attempt, chain = self._failures.get(request.conversation_ref), request.uncompacted.chain
        if (
            attempt is None
            or attempt.compaction_id != _id_in_force(request)
            or attempt.index >= len(chain)
            or chain[attempt.index] != attempt.chain_key
        ):
            return ""
        retry_at = int(attempt.tokens * (1 + MIN_GAIN))
        is_early = request.utilization.tokens < retry_at
        return f"{attempt.reason}; not tried again under {retry_at:,} tokens" if is_early else ""


class CompactorServices(msgspec.Struct, frozen=True):
    """The services that all compactors share. They outlive a change of settings."""

    compactions: CompactionRepository
    archive: Archive
    author: SummaryAuthor
    extractor: ExtractiveWriter
    background_summaries: BackgroundSummaries
    tasks: Tasks
    clock: Clock
    waiter: Waiter
    erasures: ErasureNotices
    running_compactions: dict[ConversationRef, Signal] = msgspec.field(default_factory=dict)
    """The compactions in progress; the signal is set at the end of each."""
    recent_failures: RetryLimit = msgspec.field(default_factory=RetryLimit)


class Compactor:
    """Compacts requests. A client waits up to `wait_seconds` for a model's summary if its request cannot be sent
    without a compaction."""

    def __init__(
        self, assembler: CompactionAssembler, services: CompactorServices, *, wait_seconds: float = 20.0
    ) -> None:
        self._assembler = assembler
        self._services = services
        self._wait = wait_seconds

    async def compact(self, request: CompactionRequest) -> CompactionResult:
        """Carries out `request.decision`.

        Never raises: after a failure the history is unchanged, and the outcome gives the reason.
        """
        decision = request.decision
        if request.summary_caller is not None and not request.is_dry_run:
            self._services.background_summaries.count_request(request.summary_caller, request.utilization.tokens)
        try:
            if decision.action == SUMMARIZE_AHEAD and not request.is_dry_run:
                self._summarize_ahead(request)
            if decision.action != "compact" or not request.uncompacted.chain:
                return CompactionResult(request.history)
            return await self._compact_exclusively(request)
        except SummaryPending:
            return CompactionResult(request.history, is_waiting_for_summary=True)
        except Exception as error:
            return CompactionResult(request.history, self._report_failure(request, error))

    # -- one at a time ------------------------------------------------------------

    async def _compact_exclusively(self, request: CompactionRequest) -> CompactionResult:
        """Compacts a conversation once at a time. A concurrent request waits, and uses the new compaction if that is
        enough for it."""
        conversation_ref, has_waited = request.conversation_ref, False
        running = self._services.running_compactions
        while (other := running.get(conversation_ref)) is not None:
            await other.wait()
            has_waited = True
        signal = running[conversation_ref] = self._services.waiter.create_signal()
        try:
            if has_waited:
                request, is_enough = self._with_newest_compaction(request)
                if is_enough and (compaction := request.history.compaction) is not None:
                    return CompactionResult(request.history, report_compaction(compaction, "replayed"))
            return await self._compact(request)
        finally:
            del running[conversation_ref]
            signal.set()

    def _with_newest_compaction(self, request: CompactionRequest) -> tuple[CompactionRequest, bool]:
        """Returns the request with the compaction made since it came, and whether that is enough."""
        history = self._services.compactions.find_local(request.protocol, request.ref, request.uncompacted)
        before, now = request.history.compaction, history.compaction
        if now is None or (before is not None and now.id == before.id):
            return request, False
        tokens = self._assembler.count_with(request, history)
        utilization = request.utilization.with_total(tokens, includes_report=False)
        is_enough = request.decision.is_requested or utilization.occupied_tokens < max(1, request.decision.trigger)
        return replace(request, history=history, utilization=utilization), is_enough

    async def _compact(self, request: CompactionRequest) -> CompactionResult:
        """Tries the forms of summary, the best first. Raises the error of the last one."""
        must_succeed, can_use_model = request.decision.must_succeed, self._can_use_model(request)
        is_limited = not (must_succeed or request.decision.is_requested or request.decision.trigger == 0)
        if is_limited and (reason := self._services.recent_failures.refusal_reason(request)):
            raise PlanNotApplicable("put_off", reason)
        summaries = self._services.background_summaries
        if (
            can_use_model
            and request.can_pass_meanwhile
            and not request.is_summary_estimated
            and summaries.is_running(request.conversation_ref)
            and not summaries.has_failed(request.conversation_ref)
        ):
            raise SummaryPending
        forms: list[SummaryForm] = ["model"] if can_use_model else []
        forms += ["extract", "none"] if must_succeed else ["extract"]
        problem: Exception = PlanNotApplicable("nothing_to_compact", "no message may be compacted")
        for attempts, form in enumerate(forms):
            try:
                return await self._attempt(request, form, attempts)
            except SummaryPending:
                raise
            except StoreUnavailable as error:
                # Another form would need the store too.
                raise error
            except Exception as error:
                problem = error
                if not isinstance(error, AccordionError):
                    _log.warning(
                        "session %s (%s): one way to compact failed, the next is tried: %s",
                        request.ref.session,
                        request.uncompacted.model,
                        _describe_origin(error),
                        extra={"request_id": request.request_id},
                    )
        if is_limited and not request.is_dry_run:
            self._services.recent_failures.record_failure(request, _failure_reason(problem))
        raise problem

    async def _attempt(
        self,
        request: CompactionRequest,
        form: SummaryForm,
        earlier_strategy_runs: int,
    ) -> CompactionResult:
        """Makes one compaction with this form of summary. `earlier_strategy_runs`: those of attempts before it."""
        tasks = self._services.tasks
        at = self._services.clock.now()
        planned = await tasks.offload(
            partial(self._assembler.plan_compaction, request, at=at, without_summary=form == "none")
        )
        summary = await self._write_summary(request, planned, form)
        finished = await tasks.offload(partial(self._assembler.finish, request, planned, summary))
        result = await self._publish(request, *finished, earlier_strategy_runs + planned.strategy_runs)
        if summary is None or request.is_dry_run or result.outcome is None:
            return result
        # Useless answers cost tokens too; they are reported with the compaction that succeeds in the end.
        waste = self._services.background_summaries.reset_after_compaction(request.conversation_ref)
        outcome = replace(
            result.outcome,
            input=result.outcome.input + waste.input,
            output=result.outcome.output + waste.output,
            failed_answers=waste.answers,
            failed_input=waste.failed_input,
            failed_output=waste.failed_output,
        )
        return replace(result, outcome=outcome)

    # -- summaries ----------------------------------------------------------------

    def _can_use_model(self, request: CompactionRequest) -> bool:
        return request.summary_caller is not None and self._services.author.has_model

    def _is_model_available(self, request: CompactionRequest) -> bool:
        """Whether the model is not paused after failures."""
        return request.summary_caller is not None and self._services.background_summaries.may_try(
            request.summary_caller, request.conversation_ref
        )

    async def _write_summary(
        self,
        request: CompactionRequest,
        planned: PlannedCompaction,
        form: SummaryForm,
    ) -> Summary | None:
        """Returns the summary that a plan needs, None if it needs none. Raises SummaryPending."""
        task = planned.summary_task
        if task is None:
            return None
        if form == "model" and task.instructions:
            summary = await self._write_instructed_summary(request, task)
            if summary is not None:
                return summary
        elif form == "model":
            summary = await self._find_model_summary(request, planned, task)
            if summary is not None:
                return summary
        return await self._services.tasks.offload(self._services.author.write_extractive, task)

    async def _write_instructed_summary(self, request: CompactionRequest, task: SummaryTask) -> Summary | None:
        """Returns a model's summary by the client's own instructions, which no prepared summary followed.

        None if the model is paused, fails, or takes too long.
        """
        if not self._is_model_available(request):
            return None
        if request.is_dry_run:
            return await self._estimate_summary(task) if request.is_summary_estimated else None
        try:
            return await self._services.waiter.wait_for(self._wait, self._services.author.write(task))
        except (SummaryFailed, TimeoutError) as error:
            self._services.background_summaries.record_failure(request.conversation_ref, request.summary_caller, error)
            return None

    async def _find_model_summary(
        self,
        request: CompactionRequest,
        planned: PlannedCompaction,
        task: SummaryTask,
    ) -> Summary | None:
        """Returns the summary that a model prepared, extended by an extract of the newer messages. None if there is
        no usable one.

        Raises SummaryPending if a model is still writing and the request can be forwarded unchanged. After a failed
        preparation it does not: a conversation that grows fast would otherwise stay uncompacted up to the hard limit.
        """
        summaries, conversation_ref = self._services.background_summaries, request.conversation_ref

        async def build_task() -> SummaryTask | None:
            return task

        summarized_count, first_index = task.prior_until, task.first_index
        prepared = await summaries.find(conversation_ref, request.uncompacted, summarized_count, first_index)
        can_retry = not summaries.has_failed(conversation_ref) or (
            request.must_have_summary and not summaries.is_retry_too_early(conversation_ref, request.utilization.tokens)
        )
        if prepared is None and can_retry and self._is_model_available(request):
            if request.is_summary_estimated:
                return await self._estimate_summary(task)
            if not request.is_dry_run:
                summaries.start(request, summarized_count, build_task, first_index, request.summary_caller)
            if request.can_pass_meanwhile:
                raise SummaryPending
            if request.must_have_summary and not request.is_dry_run:
                await summaries.wait(conversation_ref, self._wait)
                prepared = await summaries.find(conversation_ref, request.uncompacted, summarized_count, first_index)
        if prepared is None or planned.last_summarized < 0 or prepared.narrative_end > planned.last_summarized + 1:
            return None
        task_after_prepared = replace(task, prior_narrative=prepared.narrative, prior_until=prepared.narrative_end)
        summary = await self._services.tasks.offload(self._services.author.write_extractive, task_after_prepared)
        return replace(
            summary, writer=prepared.writer, input=prepared.input, output=prepared.output, findings=prepared.findings
        )

    async def _estimate_summary(self, task: SummaryTask) -> Summary:
        """Returns an extract in place of the summary that a model would write. It has the same budget."""
        extract = await self._services.tasks.offload(self._services.author.write_extractive, task)
        return replace(extract, writer=ESTIMATED_WRITER)

    def _summarize_ahead(self, request: CompactionRequest) -> None:
        """Starts a summary in the background; without a model, caches the facts that an extract will need."""
        summary_caller = (
            request.summary_caller if self._can_use_model(request) and self._is_model_available(request) else None
        )
        build = self._build_summary_task if summary_caller is not None else self._extract_facts
        earlier = request.history.compaction
        summarized_count = earlier.narrative_end if earlier is not None and earlier.kind == request.decision.kind else 0
        self._services.background_summaries.start(
            request, summarized_count, partial(build, request), None, summary_caller
        )

    async def _build_summary_task(self, request: CompactionRequest) -> SummaryTask | None:
        work = partial(self._assembler.plan_compaction, request, at=self._services.clock.now(), without_summary=False)
        try:
            return (await self._services.tasks.offload(work)).summary_task
        except PlanNotApplicable:
            return None

    async def _extract_facts(self, request: CompactionRequest) -> SummaryTask | None:
        await self._services.tasks.offload(self._services.extractor.prepare_facts, request.uncompacted.messages)
        return None

    # -- publishing ---------------------------------------------------------------

    async def _publish(
        self,
        request: CompactionRequest,
        history: CompactedConversation,
        compaction: Compaction,
        writes: Sequence[Put],
        strategy_runs: int,
    ) -> CompactionResult:
        """Archives the removed content, then publishes the compaction that `history` has.

        Neither happens in a dry run, or if the session was erased since the request came; if it is erased
        meanwhile, both are removed again. Nor if it is made from a compaction that the store no longer has: what that
        one removed would be lost. A later request compacts the whole history. Raises StoreUnavailable if neither the
        store nor the local spool takes the content.
        """
        compactions, erasures = self._services.compactions, self._services.erasures
        tenant, session = request.ref.tenant, request.ref.session
        made = CompactionResult(history, report_compaction(compaction, "compacted", request.decision, strategy_runs))
        if (
            request.is_dry_run
            or erasures.was_erased_since(tenant, session, request.started_at)
            or await self._has_lost_base(request)
        ):
            return made
        await self._services.archive.write(writes)
        winner = await compactions.publish(
            request.ref,
            request.uncompacted.chain[0],
            compaction,
            last_chain_key=request.history.conversation.chain[-1],
        )
        if await erasures.remove_if_erased(tenant, session, request.started_at, writes):
            compactions.forget()
        is_spooled = not self._services.archive.store.is_available
        if winner.id != compaction.id:
            # Another worker published first, and counts it. Its compaction is not used if it does not hold for this
            # conversation: a call that it removed has been answered since.
            with suppress(ValueError):
                history = compactions.apply(request.protocol, tenant, request.uncompacted, winner)
                return CompactionResult(history, report_compaction(winner, "replayed"), is_spooled)
        return replace(made, is_stored_locally_only=is_spooled)

    async def _has_lost_base(self, request: CompactionRequest) -> bool:
        base = request.history.compaction
        return base is not None and await self._services.compactions.is_gone(request.ref, base)

    # -- reporting ----------------------------------------------------------------

    def _report_failure(self, request: CompactionRequest, error: Exception) -> CompactionOutcome:
        reason = _failure_reason(error)
        _log.log(
            logging.DEBUG if request.is_dry_run else logging.WARNING,
            "session %s (%s): a request was not compacted: %s",
            request.ref.session,
            request.history.conversation.model,
            reason,
            extra={"request_id": request.request_id},
        )
        utilization = utilization_for_report(request.decision, request.utilization.ratio)
        return report_failure(
            request.decision,
            request.cause,
            utilization,
            request.utilization.tokens,
            _failure_kind(error),
            reason,
            request.history.compaction,
        )


def _id_in_force(request: CompactionRequest) -> str:
    compaction = request.history.compaction
    return compaction.id if compaction is not None else ""


def _failure_kind(error: Exception) -> FailureKind:
    if isinstance(error, PlanNotApplicable):
        return error.kind
    if isinstance(error, StoreUnavailable):
        return "store"
    return "other" if isinstance(error, AccordionError) else "internal"


def _failure_reason(error: Exception) -> str:
    return error.message if isinstance(error, AccordionError) else f"an internal error: {_describe_origin(error)}"


def _describe_origin(error: Exception) -> str:
    """Names the error's type and line. Leaves out its message, which may quote the conversation."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    origin = f" in {traceback.tb_frame.f_code.co_name}, line {traceback.tb_lineno}" if traceback is not None else ""
    return f"{type(error).__name__}{origin}"
