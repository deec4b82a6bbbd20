"""Carries out the decision about a request: compacts it, adds insertions, and renders the new body.

`CompactionStep.compact` asks the model's `Compactor` for a new history, has the `Measurer` count it again, inserts
session memories, archived excerpts and recalled memories, and renders the body that is forwarded. After an overflow
error `compact_after_overflow` does the same with the provider's own figures. If a step fails, the request is forwarded
without any compaction.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from msgspec import structs

from accordion.accounting.overflow import WindowOverflow
from accordion.archive.named_items import NamedItems
from accordion.compaction.compactor import Compactor, report_compaction
from accordion.compaction.last_resort import NAME as LAST_RESORT
from accordion.compaction.policy import is_known_not_to_fit, max_tokens
from accordion.compaction.rendering import RequestRenderer
from accordion.compaction.request import CompactionRequest
from accordion.compaction.request_controls import thinking_mode
from accordion.compaction.session_overrides import SessionOverrideStore
from accordion.insertions.artifact_recall import ArtifactRecall, RecallRequest
from accordion.insertions.differences import drop_bound_thinking
from accordion.model.budget import CompactionKind, Decision
from accordion.model.compaction import Cause, without_compaction
from accordion.model.delegation import DelegationNode
from accordion.model.errors import Unreadable
from accordion.model.records import CompactionOutcome, RecallUsage
from accordion.model.summarizer import SummaryCaller
from accordion.model.values import dataclass, replace
from accordion.pipeline.measure import Measurer
from accordion.pipeline.memory_recall import MemoryRecall, MemoryRecallRequest
from accordion.pipeline.request import RequestState, body_size
from accordion.pipeline.session_import import ImportRequest, SessionImport
from accordion.sessions.sessions import SessionMatch

_log = logging.getLogger("accordion")

# An error without a text counts as an overflow only if the window is at least this full.
_LIKELY_OVERFLOW = 0.8
_SummaryCallerFactory = Callable[[RequestState], SummaryCaller | None]


@dataclass(frozen=True, slots=True)
class CompactionStep:
    """Compacts requests and adds insertions, following the decision."""

    measurer: Measurer
    compactors: Callable[[str, bool], Compactor]
    """By model, and whether a sub-agent sent the request."""
    renderer: RequestRenderer
    session_overrides: SessionOverrideStore
    named_items: NamedItems
    artifact_recall: ArtifactRecall | None = None
    """None if no archived excerpts are recalled."""
    session_import: SessionImport | None = None
    """None if there are no session memories to import."""
    memory_recall: MemoryRecall | None = None
    """None if memories are not recalled automatically."""

    async def compact(
        self, request: RequestState, create_summary_caller: _SummaryCallerFactory, cause: Cause = "automatic"
    ) -> RequestState:
        """Returns the request as it is to be forwarded.

        The decision becomes "refuse" if the request is known not to fit the window in any form.
        """
        place = request.session_match
        if place is None or request.history is None:
            return request
        try:
            # After an overflow the pins are already stored, or were erased since.
            if request.controls.pinned_call_ids and not request.is_token_count and cause != "overflow":
                await self.session_overrides.add_pins(
                    request.caller.tenant, place.session.id, request.controls.pinned_call_ids
                )
            # An earlier compaction, a memory or another insertion also needs a rendered body.
            if (
                request.decision.action != "pass"
                or request.history_with_insertions is not None
                or request.may_hold_memories
            ):
                request = await self._compact_and_insert(request, place, create_summary_caller, cause)
        except Exception:
            _log.exception("a request could not be compacted; it is forwarded unchanged")
            request = await self._undo_compaction(request)
        window = request.window
        if (
            window is None
            or request.is_token_count
            or not request.is_compactable
            or not is_known_not_to_fit(request.utilization, window, request.text_tokens)
        ):
            # A request that only counts tokens is answered in any case. If the request may not be changed, the
            # provider decides whether it accepts it (it may drop content itself, as with `truncation`).
            return request
        reason = (
            f"{request.utilization.tokens:,} tokens do not fit the {window.usable_input:,} of the window in any form"
        )
        return structs.replace(request, decision=replace(request.decision, action="refuse", reason=reason))

    async def compact_after_overflow(
        self, request: RequestState, create_summary_caller: _SummaryCallerFactory, overflow: WindowOverflow
    ) -> RequestState | None:
        """Compacts the request once more after the provider reported that it does not fit.

        Returns None if it cannot become smaller, may not be changed, or asks for an answer that leaves the input no
        space. Records a limit that the error names.
        """
        self.measurer.learn_limit(request, overflow)
        overflow = overflow.without_quoted_figures(request.decoded_body)
        if request.is_compactable and request.session_match is not None:
            request = await self._hide_foreign_results(request, request.session_match)
        if request.session_match is None or request.limits is None or request.window is None or request.history is None:
            return None
        if not request.is_compactable or (overflow.guessed and request.utilization.ratio < _LIKELY_OVERFLOW):
            return None
        model, windows = request.session_match.conversation.model, self.measurer.window_table
        window = windows.window(model, request.route.name, request.beta, request.caller.tenant)
        limits = request.rules.thresholds.limits(min(window.size, overflow.limit or window.size))
        kind: CompactionKind = "conversation" if request.session_match.conversation.starts_turn else "generation"
        target = limits.conversation_target if kind == "conversation" else limits.generation_target
        before, used = request.utilization.tokens, request.utilization
        # Planning uses the provider's own count.
        if overflow.requested and overflow.requested > before:
            used = used.apply_correction(1.0, overflow.requested, carried=used.carried)
        used = replace(used, reserved_output=overflow.output or used.reserved_output)
        decision = Decision(
            "compact",
            "the provider said that the request does not fit its window",
            target=min(target, request.utilization.occupied_tokens // 2, max_tokens(used, limits, window)),
            must_succeed=True,
            kind=kind,
            trigger=limits.hard,
            forced=True,
        )
        again = structs.replace(request, window=window, limits=limits, decision=decision, utilization=used)
        if overflow.output and not await self._can_fit(again, request.session_match, create_summary_caller):
            return None
        again = await self.compact(again, create_summary_caller, "overflow")
        smaller = again.rewritten_body is not None and again.utilization.tokens < before
        if again.utilization.unfolded and not (smaller and again.utilization.occupied_tokens < limits.hard):
            again = self._render_body(await self._remove_insertions(again))
            smaller = again.utilization.tokens < before
        return again if smaller and again.decision.action != "refuse" else None

    # -- the steps ----------------------------------------------------------------

    async def _compact_and_insert(
        self,
        request: RequestState,
        session_match: SessionMatch,
        create_summary_caller: _SummaryCallerFactory,
        cause: Cause,
    ) -> RequestState:
        """Compacts the request, adds insertions to it, and renders its body."""
        if request.decision.action == "compact" and cause != "overflow" and not request.is_token_count:
            request = await self._hide_foreign_results(request, session_match)
            session_match = request.session_match or session_match
        request = await self._compact(request, session_match, create_summary_caller, cause)
        if cause != "overflow" and not (request.is_token_count or request.controls.is_client_compaction):
            request = await self._insert_artifact_recall(
                await self._insert_session_memories(request, session_match), session_match
            )
            request = await self._insert_memories(request, session_match)
        if (
            request.utilization.unfolded
            and request.window is not None
            and is_known_not_to_fit(request.utilization, request.window)
        ):
            request = await self._remove_insertions(request)
        return self._render_body(request)

    async def _can_fit(
        self, request: RequestState, session_match: SessionMatch, create_summary_caller: _SummaryCallerFactory
    ) -> bool:
        """Returns whether a compaction would leave enough space for the answer.

        It is only planned, since a compaction that was made stays in force.
        """
        decision, used = replace(request.decision, observed=True), request.utilization
        seen = (
            await self._compact(
                structs.replace(request, decision=decision), session_match, create_summary_caller, "overflow"
            )
        ).compaction_outcome
        if seen is None or seen.after + used.reserved_output > decision.trigger:
            return False
        # If the input alone would fit, protected content is not cut to gain space for the answer.
        return used.tokens >= decision.trigger or all(step != LAST_RESORT for step, _, _ in seen.steps)

    async def _hide_foreign_results(self, request: RequestState, session_match: SessionMatch) -> RequestState:
        """Hides all results of other agents before a compaction.

        Does nothing if thinking blocks are bound to the visible list: if the compaction then failed, the provider would
        refuse the changed list.
        """
        bound = thinking_mode(session_match.conversation, request.beta, request.actual_model) == "bound"
        return request if bound else await self.measurer.hide_foreign_results(request)

    async def _compact(
        self,
        request: RequestState,
        session_match: SessionMatch,
        create_summary_caller: _SummaryCallerFactory,
        cause: Cause,
    ) -> RequestState:
        decision, tenant, session = request.decision, request.caller.tenant, session_match.session.id
        if decision.action not in ("compact", "prepare") and not decision.observed:
            seen = self._describe_replay(request)
            return structs.replace(request, compaction_outcome=seen) if seen is not None else request
        compactor = self.compactors(session_match.conversation.model, request.is_subagent)
        outcome = await compactor.compact(
            await self._build_request(request, create_summary_caller, cause), session_match.conversation
        )
        if decision.action == "compact" and not (decision.observed or request.is_token_count):
            self.session_overrides.set_waiting_for_summary(
                tenant, session, outcome.outcome is None and decision.kind == "conversation"
            )
        if decision.forced and not decision.observed and self.session_overrides.has_compaction_request(tenant, session):
            await self.session_overrides.clear_compaction_request(tenant, session)
        if outcome.history is not request.history:
            request = await self.measurer.recompose(request, outcome.history)
        return structs.replace(
            request,
            compaction_outcome=outcome.outcome or self._describe_replay(request),
            is_stored_locally_only=outcome.is_stored_locally_only,
        )

    async def _insert_artifact_recall(self, request: RequestState, session_match: SessionMatch) -> RequestState:
        """Inserts an excerpt that the newest turn names and only the archive holds, if a compaction is in force."""
        folded, shown, limits = request.history, request.history_with_insertions, request.limits
        if self.artifact_recall is None or folded is None or shown is None or limits is None:
            return request
        if folded.compaction is None or not request.is_compactable:
            return request
        turn = RecallRequest(
            protocol=request.protocol,
            tenant_key=request.caller.tenant_key,
            scope=session_match.label,
            session=session_match.session.id,
            model=request.actual_model,
            original=session_match.conversation,
            history=folded,
            history_with_insertions=shown,
            last_sent_index=session_match.base_index,
            available_tokens=limits.hard - request.utilization.occupied_tokens,
            # Some translated providers refuse a user message directly after tool results.
            allows_user_after_results=request.route.family != "litellm",
            started_at=request.started_at,
        )
        return await self._apply_insertion(request, await self.artifact_recall.recall(turn))

    async def _insert_session_memories(self, request: RequestState, session_match: SessionMatch) -> RequestState:
        """Inserts the session memories that the user asks for.

        A main agent's message to a sub-agent does not count as the user's.
        """
        if (
            self.session_import is None
            or not request.may_hold_memories
            or request.is_subagent
            or request.limits is None
        ):
            return request
        asking = ImportRequest(
            request.protocol,
            request.caller.tenant_key,
            session_match.label,
            session_match.session.id,
            request.actual_model,
            session_match.conversation,
            request.limits.hard - request.utilization.occupied_tokens,
            request.started_at,
        )
        return await self._apply_insertion(request, await self.session_import.import_memories(asking))

    async def _insert_memories(self, request: RequestState, session_match: SessionMatch) -> RequestState:
        """Inserts memories that match the latest message of the user or of the delegating agent."""
        folded, limits = request.history, request.limits
        if self.memory_recall is None or not request.may_hold_memories or folded is None or limits is None:
            return request
        moment = MemoryRecallRequest(
            request.protocol,
            request.caller.tenant_key,
            session_match,
            request.actual_model,
            folded,
            request.history_with_insertions or folded,
            limits.hard - request.utilization.occupied_tokens,
            request.started_at,
            request.controls.project,
        )
        return await self._apply_insertion(request, await self.memory_recall.recall(moment))

    async def _apply_insertion(self, request: RequestState, usage: RecallUsage | None) -> RequestState:
        """Returns the request with a newly recorded insertion; unchanged if `usage` is None."""
        if usage is None or request.history is None:
            return request
        again = await self.measurer.recompose(request, request.history)
        return structs.replace(again, recall_usage=usage + (request.recall_usage or RecallUsage()))

    async def _remove_insertions(self, request: RequestState) -> RequestState:
        """Removes insertions, with the thinking that is bound to them.

        Insertions are the first to go if the window has no space for them.
        """
        place, dresser, former = (
            request.session_match,
            self.measurer.insertion_composer,
            request.history_with_insertions,
        )
        if request.history is None or place is None:
            return request
        request = await self.measurer.recompose(request, request.history, with_insertions=False)
        thinking = thinking_mode(place.conversation, request.beta, request.actual_model)
        shown = request.history_with_insertions or request.history
        if thinking != "bound" or shown is None or former is None or dresser is None or request.window is None:
            return request
        bare = drop_bound_thinking(
            request.protocol,
            shown,
            former,
            dresser.message_reader.reader_for(request.protocol, request.caller.tenant_key),
        )
        counted = self.measurer.token_meter.measure(bare.conversation, request.window, request.actual_model).tokens
        total = max(0, request.utilization.tokens - request.uncorrected_tokens + counted)
        used = request.utilization.apply_correction(1.0, total, carried=request.utilization.carried)
        return structs.replace(request, history_with_insertions=bare, uncorrected_tokens=counted, utilization=used)

    def _render_body(self, request: RequestState) -> RequestState:
        """Renders the body that is forwarded, if it differs from the client's.

        Tokens of insertions do not count as saved.
        """
        shown, seen, unfolded = (
            request.history_with_insertions or request.history,
            request.compaction_outcome,
            request.utilization.unfolded,
        )
        if shown is None or (shown.compaction is None and request.history_with_insertions is None):
            return structs.replace(request, rewritten_body=None)
        if seen is not None and unfolded:
            seen = replace(seen, saved=max(0, seen.saved - unfolded))
        return structs.replace(
            request, rewritten_body=self.renderer.render_body(request.protocol, shown), compaction_outcome=seen
        )

    async def _build_request(
        self, request: RequestState, create_summary_caller: _SummaryCallerFactory, cause: Cause
    ) -> CompactionRequest:
        place, folded, window, limits = request.session_match, request.history, request.window, request.limits
        if place is None or folded is None or window is None or limits is None:
            raise Unreadable("only what was measured is folded")
        tenant, space, session = request.caller.tenant, request.caller.tenant_key, place.session.id
        if request.decision.forced and cause == "automatic":
            cause = "manual"
        begun: Mapping[str, DelegationNode] = {}
        handed = frozenset[str]()
        if (seated := request.visible_request) is not None:
            begun = await self.measurer.visibility.find_delegations_by_call(request.caller, seated, session)
            # The message that handed over the conversation is the task.
            handed = frozenset({seated.position.call_id} if seated.position.evidence == "handoff" else ())
        return CompactionRequest(
            tenant=tenant,
            tenant_key=space,
            scope=place.label,
            session=session,
            protocol=request.protocol,
            history=folded,
            utilization=request.utilization,
            window=window,
            limits=limits,
            decision=request.decision,
            actual_model=request.actual_model,
            started_at=request.started_at,
            request_id=request.request_id,
            cause=cause,
            body_size=body_size(request),
            budgets=request.rules.budgets,
            thinking=thinking_mode(place.conversation, request.beta, request.actual_model),
            pinned_call_ids=request.controls.pinned_call_ids
            | handed
            | await self.session_overrides.find_pins(tenant, session),
            summary_caller=create_summary_caller(request),
            tool_tokens=await self.measurer.count_tool_tokens(request),
            is_token_count=request.is_token_count,
            is_subagent=request.is_subagent,
            delegations_by_call=begun,
            provider_items=await self.named_items.resolve_names(place.conversation, space, session),
            history_with_insertions=request.history_with_insertions,
        )

    def _describe_replay(self, request: RequestState) -> CompactionOutcome | None:
        compaction = request.history.compaction if request.history is not None else None
        return report_compaction(compaction, "replayed") if compaction is not None else None

    async def _undo_compaction(self, request: RequestState) -> RequestState:
        """Returns the request without any compaction, measured again."""
        if request.session_match is None:
            return request
        failed = CompactionOutcome("failed", reason="an internal error; the request went on as it came")
        request = await self.measurer.recompose(
            structs.replace(request, can_read_artifacts=None), without_compaction(request.session_match.conversation)
        )
        return structs.replace(request, rewritten_body=None, compaction_outcome=failed)
