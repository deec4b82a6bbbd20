"""The fourth step: carries out the decision about a request, and renders the body that is forwarded.

`CompactionStep.compact` asks the model's `Compactor` for a new history, has it counted again (count.py), lets the
recall sources insert content, and renders the body. After an overflow error `compact_after_overflow` does the same with
the provider's own figures. If something fails, the request is forwarded without any compaction.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace

from accordion.accounting.overflow import WindowOverflow
from accordion.archive.referenced_items import ReferencedItems
from accordion.compaction.compactor import Compactor, report_compaction
from accordion.compaction.planner import LAST_RESORT
from accordion.compaction.policy import certainly_overflows, fits_beside_output, max_sendable_tokens
from accordion.compaction.rendering import RequestRenderer
from accordion.compaction.reporting import report_holdout
from accordion.compaction.request import CompactionRequest
from accordion.compaction.session_overrides import SessionOverrideStore
from accordion.compaction.strategies.base import Strategy
from accordion.insertions.recall_source import RecallRequest, RecallSource
from accordion.model.budget import SUMMARIZE_AHEAD, CompactionKind, Decision
from accordion.model.compaction import Cause, CompactedConversation, without_compaction
from accordion.model.ports import SummaryCaller, WindowTable
from accordion.model.records import CompactionOutcome, RecallUsage
from accordion.pipeline.count import ForwardedListMeter
from accordion.pipeline.earlier_lists import EarlierLists
from accordion.pipeline.request import MeasuredRequest, PreparedRequest, advance
from accordion.pipeline.visibility import Visibility

_log = logging.getLogger("accordion")

# An error without a text counts as an overflow only if the window is at least this full.
_LIKELY_OVERFLOW = 0.8
SummaryCallers = Callable[[MeasuredRequest], SummaryCaller | None]
"""Returns the caller in whose name a summary of the request is made; None if no model may write it."""


class CompactionStep(msgspec.Struct, frozen=True):
    """Compacts requests and inserts recalled content, following the decision."""

    list_meter: ForwardedListMeter
    visibility: Visibility
    window_table: WindowTable
    compactors: Callable[[str, bool], Compactor]
    """By model, and whether a sub-agent sent the request."""
    build_compactor: Callable[[Sequence[Strategy]], Compactor]
    """Builds a compactor with other strategies than those of the settings."""
    renderer: RequestRenderer
    session_overrides: SessionOverrideStore
    referenced_items: ReferencedItems
    summary_callers: SummaryCallers
    earlier_lists: EarlierLists
    recall_sources: Sequence[RecallSource] = ()
    """They insert content in this order."""

    async def compact(
        self, request: MeasuredRequest, cause: Cause = "automatic", strategies: Sequence[Strategy] = ()
    ) -> PreparedRequest:
        """Returns the request as it is to be forwarded. `strategies` replace those of the settings, without a model.

        The decision becomes "refuse" if the request is known not to fit the window in any form.
        """
        prepared = advance(PreparedRequest, request)
        if request.decision.is_skipped:
            prepared = replace(prepared, compaction_outcome=report_holdout(request.decision, request.utilization))
        try:
            # After an overflow the pins are already stored, or were erased since.
            pins = request.controls.pinned_call_ids
            if pins and not (request.is_token_count or request.is_dry_run) and cause != "overflow":
                await self.session_overrides.add_pins(request.caller.tenant, request.session_match.session.id, pins)
            # An earlier compaction or an insertion also needs a rendered body.
            if (
                request.decision.action != "pass"
                or request.history_with_insertions is not None
                or request.may_hold_insertions
            ):
                prepared = await self._compact_and_insert(prepared, cause, strategies)
        except Exception:
            _log.exception("a request could not be compacted; it is forwarded unchanged")
            prepared = await self._undo_compaction(prepared)
        return _refuse_if_too_long(prepared)

    async def compact_after_overflow(
        self, request: MeasuredRequest, overflow: WindowOverflow
    ) -> PreparedRequest | None:
        """Compacts the request once more after the provider reported that it does not fit.

        Returns None if it cannot become smaller, may not be changed, or asks for an answer that leaves the input no
        space.
        """
        overflow = overflow.without_quoted_figures(request.decoded_body)
        if not request.is_compactable or (overflow.is_guessed and request.largest_ratio < _LIKELY_OVERFLOW):
            return None
        before = request.utilization.tokens
        forced = self._force_compaction(request, overflow, "the provider said that the request does not fit its window")
        if overflow.output and not await self._can_fit(forced):
            return None
        prepared = await self.compact(forced, "overflow")
        is_smaller = prepared.rewritten_body is not None and prepared.utilization.tokens < before
        if prepared.utilization.insertions and not (
            is_smaller and prepared.utilization.occupied_tokens < forced.limits.hard
        ):
            prepared = self._render_body(await self.list_meter.remove_insertions(prepared))
            is_smaller = prepared.utilization.tokens < before
        return prepared if is_smaller and prepared.decision.action != "refuse" else None

    async def withdraw_tool(self, request: PreparedRequest) -> PreparedRequest:
        """Returns the request without our tool, after the model turned out to take none."""
        return self._render_body(await self.list_meter.compose_and_count(request, request.history))

    async def restore_history(
        self, request: PreparedRequest, history: CompactedConversation, refusal: str
    ) -> PreparedRequest:
        """Returns the request with another list, after the provider refused the compacted one with `refusal`: the
        client's own, or that of an earlier compaction."""
        if history.compaction is None:
            restored = await self._without_compaction(request)
        else:
            restored = self._render_body(await self.list_meter.compose_and_count(request, history))
        outcome = request.compaction_outcome or CompactionOutcome("failed")
        failed = CompactionOutcome(
            "failed",
            failure="refused",
            reason=f"the provider refused the compacted list ({refusal}); the request went on without this compaction",
            input=outcome.input,
            output=outcome.output,
            saved=history.compaction.tokens_saved if history.compaction is not None else 0,
            failed_answers=outcome.failed_answers,
            failed_input=outcome.failed_input,
            failed_output=outcome.failed_output,
        )
        return replace(restored, compaction_outcome=failed, base_history=None)

    async def compact_whole_groups(
        self, request: PreparedRequest, history: CompactedConversation, refusal: str
    ) -> PreparedRequest | None:
        """Returns the request with a compaction of `history` in the most careful form; None if it cannot be made, or
        the request would not fit."""
        request = await self.restore_history(request, history, refusal)
        forced = self._force_compaction(
            replace(request, compaction_form="whole"), WindowOverflow(), "the provider refused the compacted list"
        )
        prepared = await self.compact(forced)
        is_made = prepared.base_history is not None and prepared.decision.action != "refuse"
        return prepared if is_made and prepared.utilization.occupied_tokens < forced.limits.hard else None

    # -- the steps ----------------------------------------------------------------

    def _force_compaction(self, request: MeasuredRequest, overflow: WindowOverflow, reason: str) -> MeasuredRequest:
        """Returns the request with the decision to compact it, by the provider's figures."""
        window = self.window_table.window(
            request.conversation.model, request.route.name, request.beta, request.caller.tenant.name
        )
        limits = request.rules.thresholds.limits(min(window.size, overflow.limit or window.size))
        kind: CompactionKind = "conversation" if request.conversation.starts_turn else "generation"
        target = limits.conversation_target if kind == "conversation" else limits.generation_target
        used = request.utilization
        # Planning uses the provider's own count.
        if overflow.requested and overflow.requested > used.tokens:
            used = used.with_total(overflow.requested, includes_report=used.includes_report)
        reserved = self.list_meter.output_space(replace(request, window=window), request.conversation)
        used = replace(used, reserved_output=overflow.output or reserved)
        decision = Decision(
            "compact",
            reason,
            target=min(target, request.utilization.occupied_tokens // 2, max_sendable_tokens(used, limits, window)),
            must_succeed=True,
            kind=kind,
            trigger=limits.hard,
            is_requested=True,
            group=request.decision.group,
        )
        return replace(request, window=window, limits=limits, decision=decision, utilization=used)

    async def _compact_and_insert(
        self, request: PreparedRequest, cause: Cause, strategies: Sequence[Strategy]
    ) -> PreparedRequest:
        """Compacts the request, inserts recalled content, and renders its body."""
        request = await self._compact(request, cause, strategies)
        is_asked = not (request.is_token_count or request.is_dry_run or request.client_metadata.is_client_compaction)
        if cause != "overflow" and is_asked:
            request = await self._recall(request)
        if request.utilization.insertions and certainly_overflows(request.utilization, request.window):
            request = await self.list_meter.remove_insertions(request)
        return self._render_body(request)

    async def _can_fit(self, request: MeasuredRequest) -> bool:
        """Returns whether a compaction would leave enough space for the answer.

        A dry run shows it, since a compaction that was made stays in force.
        """
        decision, used = request.decision, request.utilization
        tried = await self._compact(advance(PreparedRequest, request, is_dry_run=True), "overflow")
        outcome = tried.compaction_outcome
        if outcome is None or outcome.failure or not fits_beside_output(outcome.after, used, request.limits):
            return False
        # If the input alone would fit, protected content is not cut to gain space for the answer.
        return used.tokens >= decision.trigger or all(step != LAST_RESORT for step, _, _ in outcome.steps)

    async def _compact(
        self, request: PreparedRequest, cause: Cause, strategies: Sequence[Strategy] = ()
    ) -> PreparedRequest:
        decision, tenant, session = request.decision, request.caller.tenant, request.session_match.session.id
        if decision.action not in ("compact", SUMMARIZE_AHEAD):
            replay = _describe_replay(request)
            return replace(request, compaction_outcome=replay) if replay is not None else request
        job = await self._build_job(request, cause)
        if strategies:
            compactor = self.build_compactor(strategies)
            job = replace(job, summary_caller=None)
        else:
            compactor = self.compactors(request.conversation.model, request.is_subagent)
        result = await compactor.compact(job)
        if decision.action == "compact" and not job.is_dry_run:
            # An early compaction does not wait: the cache is warm at the next request.
            is_waiting = result.is_waiting_for_summary and decision.kind == "conversation" and not decision.is_early
            self.session_overrides.set_waiting_for_summary(tenant, session, is_waiting)
        if (
            decision.is_requested
            and not request.is_dry_run
            and self.session_overrides.is_compaction_demanded(tenant, session)
        ):
            await self.session_overrides.clear_demand(tenant, session)
        if result.history is not request.history:
            base = request.history if result.outcome is not None and result.outcome.state == "compacted" else None
            request = replace(await self.list_meter.compose_and_count(request, result.history), base_history=base)
        return replace(
            request,
            compaction_outcome=result.outcome or _describe_replay(request),
            is_stored_locally_only=result.is_stored_locally_only,
        )

    async def _recall(self, request: PreparedRequest) -> PreparedRequest:
        """Lets each recall source insert content."""
        if not request.is_compactable or not (request.compaction_id or request.may_hold_insertions):
            return request
        if request.compaction_form == "whole" and not request.may_hold_insertions:
            # The provider has rules that we do not know; the list stays as close to the client's as it can.
            return request
        for source in self.recall_sources:
            usage = await source.recall(_describe_for_recall(request))
            if usage is not None:
                request = await self.list_meter.compose_and_count(request, request.history)
                request = replace(request, recall_usage=usage + (request.recall_usage or RecallUsage()))
        return request

    def _render_body(self, request: PreparedRequest) -> PreparedRequest:
        """Renders the body that is forwarded, if it differs from the client's.

        Tokens of insertions do not count as saved.
        """
        if request.history.compaction is None and request.history_with_insertions is None:
            return replace(request, rewritten_body=None)
        outcome, insertion_tokens = request.compaction_outcome, request.utilization.insertions
        if outcome is not None and insertion_tokens:
            outcome = replace(outcome, saved=max(0, outcome.saved - insertion_tokens))
        body = self.renderer.render_body(request.protocol, request.forwarded_history)
        return replace(request, rewritten_body=body, compaction_outcome=outcome)

    async def _build_job(self, request: PreparedRequest, cause: Cause) -> CompactionRequest:
        tenant = request.caller.tenant
        session, position = request.session_match.session.id, request.visible_request.position
        if cause == "automatic":
            decision = request.decision
            cause = "manual" if decision.is_requested else "cold_cache" if decision.is_early else cause
        # The message that handed over the conversation is the task.
        task_ids = frozenset({position.call_id} if position.evidence == "handoff" else ())
        pins = request.controls.pinned_call_ids | task_ids | await self.session_overrides.find_pins(tenant, session)
        return CompactionRequest(
            ref=request.ref,
            protocol=request.protocol,
            uncompacted=request.conversation,
            history=request.history,
            utilization=request.utilization,
            window=request.window,
            limits=request.limits,
            decision=request.decision,
            actual_model=request.actual_model,
            started_at=request.started_at,
            request_id=request.inbound.request_id,
            cause=cause,
            form=request.compaction_form,
            body_size=request.body_size,
            budgets=request.rules.budgets,
            thinking=request.thinking,
            pinned_call_ids=pins,
            summary_caller=self.summary_callers(request),
            tool_tokens=await self.list_meter.count_tool_tokens(request),
            is_dry_run=request.is_dry_run or request.is_token_count,
            is_summary_estimated=request.is_dry_run,
            is_subagent=request.is_subagent,
            delegations_by_call=await self.visibility.find_delegations_by_call(
                request.caller, request.visible_request, session
            ),
            provider_items=await self.referenced_items.resolve_names(request.conversation, tenant, session),
            history_with_insertions=request.history_with_insertions,
            summary_instructions=_summary_instructions(request),
            earlier_messages=await self.earlier_lists.find_user_messages(request),
        )

    async def _undo_compaction(self, request: PreparedRequest) -> PreparedRequest:
        """Returns the request without any compaction, counted again."""
        failed = CompactionOutcome(
            "failed", failure="internal", reason="an internal error; the request went on as it came"
        )
        return replace(await self._without_compaction(request), compaction_outcome=failed)

    async def _without_compaction(self, request: PreparedRequest) -> PreparedRequest:
        """Returns the request without any compaction, counted again."""
        request = await self.list_meter.compose_and_count(
            replace(request, foreign_ids="none"), without_compaction(request.conversation)
        )
        return replace(request, rewritten_body=None)


def _summary_instructions(request: MeasuredRequest) -> str:
    """Joins the instructions for summaries: those of the settings, of a header, and of a compaction asked for."""
    requested = request.handler.summary_instructions if request.handler is not None else ""
    return "\n".join(filter(None, (request.rules.summary_instructions, request.controls.instructions, requested)))


def _refuse_if_too_long(request: PreparedRequest) -> PreparedRequest:
    """Returns the request with the decision to refuse it, if it is known not to fit the window in any form.

    A request that only counts tokens is answered in any case. If the request may not be changed, the provider decides
    whether it accepts it (it may drop content itself, as with `truncation`).
    """
    if (
        request.is_token_count
        or not request.is_compactable
        or not certainly_overflows(request.utilization, request.window, request.text_tokens)
    ):
        return request
    tokens, usable = request.utilization.tokens, request.window.usable_input
    reason = f"{tokens:,} tokens do not fit the {usable:,} of the window in any form"
    return replace(request, decision=replace(request.decision, action="refuse", reason=reason))


def _describe_replay(request: MeasuredRequest) -> CompactionOutcome | None:
    """Describes the earlier compaction that is in force; None if there is none."""
    compaction = request.history.compaction
    return report_compaction(compaction, "replayed") if compaction is not None else None


def _describe_for_recall(request: PreparedRequest) -> RecallRequest:
    return RecallRequest(
        protocol=request.protocol,
        ref=request.ref,
        model=request.actual_model,
        uncompacted=request.conversation,
        history=request.history,
        history_with_insertions=request.forwarded_history,
        last_sent_index=request.session_match.base_index,
        available_tokens=request.available_tokens,
        window=request.window.size,
        is_subagent=request.is_subagent,
        may_hold_insertions=request.may_hold_insertions,
        # Some translated providers refuse a user message directly after tool results.
        allows_user_after_results=not request.route.is_translated,
        project=request.controls.project,
        started_at=request.started_at,
    )
