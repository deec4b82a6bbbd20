"""The third step: measures a request, and decides what is done with it.

The deepest earlier compaction on the request's prefix chain is applied again, the list that is forwarded is composed
and counted (count.py), and the policy decides. If that fails, the request is forwarded unmeasured.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from accordion.accounting.holdout import Holdout
from accordion.accounting.token_meter import ESTIMATED_FROM
from accordion.compaction.policy import PolicyOptions, PreviousCompaction, decide
from accordion.compaction.repository import AppliedCompaction, CompactionRepository
from accordion.compaction.request import RequestBudgets
from accordion.compaction.session_overrides import SessionOverrideStore, UndoneCompactions
from accordion.compaction.strategies.base import count_images
from accordion.model.budget import Decision, RefusedForm, Utilization, Window
from accordion.model.compaction import CompactedConversation, without_compaction
from accordion.model.conversation import Conversation
from accordion.model.ports import Tasks, WindowTable
from accordion.model.tenant import TenantScope
from accordion.pipeline.count import ForwardedListMeter, previous_request
from accordion.pipeline.mentions import Mentions
from accordion.pipeline.prompt_cache import find_prompt_cache
from accordion.pipeline.request import (
    CompactionRules,
    IdentifiedRequest,
    MeasuredRequest,
    PassthroughRequest,
    advance,
    pass_through,
)
from accordion.pipeline.visibility import Visibility
from accordion.sessions.prefix_nodes import PrefixNode, count_responses, has_response
from accordion.sessions.sessions import SessionMatch, Sessions

_log = logging.getLogger("accordion")

_MAX_SEARCHED_INLINE = 1 << 20
_MAX_ESTIMATED_INLINE, _MAX_MESSAGES_INLINE = 1 << 20, 1_000
_UNMEASURED = Utilization(0)
_UNDECIDED = Decision("pass", "not measured yet")


class Measurer(msgspec.Struct, frozen=True):
    """Measures requests, and decides what is done with them."""

    list_meter: ForwardedListMeter
    sessions: Sessions
    visibility: Visibility
    window_table: WindowTable
    compactions: CompactionRepository
    session_overrides: SessionOverrideStore
    compaction_rules: Callable[[str, str, bool, int], CompactionRules]
    """By model, provider family, whether a sub-agent sent the request, and the window in tokens."""
    mentions: Mentions | None
    """None if no feature inserts content that a list may name."""
    tasks: Tasks
    now: Callable[[], float]
    """Returns the seconds since the epoch."""
    holdout: Holdout = Holdout()
    is_stopped: Callable[[TenantScope, str], bool] = lambda tenant, model: False
    """Whether compaction is stopped for a tenant's sessions of a model, because it does not pay."""
    can_estimate: bool = False
    """Whether a long request may be forwarded before its tokens are counted."""

    async def measure(self, request: IdentifiedRequest) -> MeasuredRequest | PassthroughRequest:
        """Applies earlier compactions, counts tokens and decides.

        If a compaction is due, all results of other agents are hidden before it, and the request is measured again. A
        dry run decides as if a mode that only reports were `auto`.
        """
        try:
            measured = await self._measure(request)
            decision = measured.decision
            if decision.action == "compact" and not (measured.is_token_count or measured.is_dry_run):
                measured = await self.hide_foreign_results(measured)
            return measured
        except Exception:
            # Measuring is optional, forwarding is not.
            _log.exception(
                "a request could not be measured; it is forwarded unchanged",
                extra={"request_id": request.inbound.request_id},
            )
            return pass_through(request, request.visible_request)

    async def hide_foreign_results(self, request: MeasuredRequest) -> MeasuredRequest:
        """Hides the results of other agents that are visible only because they were shown earlier, and measures again.

        Used before a compaction, which changes the prefix in any case. Does nothing if thinking blocks are bound to the
        visible list: if the compaction then failed, the provider would refuse the changed list.
        """
        if not request.visible_request.has_late_decisions or request.thinking == "bound":
            return request
        visible_request, session_match = await self.visibility.hide_foreign_results(
            request.protocol, request.caller, request.visible_request, request.session_match
        )
        measured = await self._measure(
            replace(
                request,
                decoded_body=visible_request.body,
                visible_request=visible_request,
                session_match=session_match,
            )
        )
        return await self.decide_again(measured)

    async def decide_again(self, request: MeasuredRequest) -> MeasuredRequest:
        """Counts a request whose tokens were estimated, and decides again; returns others as they are."""
        if not request.is_estimated:
            return request
        counted_request = await self.list_meter.count_estimated(request)
        return replace(counted_request, decision=self.decide(counted_request))

    async def _measure(self, request: IdentifiedRequest) -> MeasuredRequest:
        conversation, route, caller = request.conversation, request.route, request.caller
        window = self.window_table.window(conversation.model, route.name, request.beta, caller.tenant.name)
        rules = self.compaction_rules(conversation.model, route.family, request.is_subagent, window.size)
        if request.is_dry_run:
            request, rules = _without_observation(request, rules)
        if (refused_form := self._find_refused_form(request, window)) == "whole":
            # It took the client's list, whatever its bytes and images.
            rules = replace(rules, budgets=RequestBudgets())
        history, may_be_stale = without_compaction(conversation), False
        # The request may have been measured before, and then it has these fields: they start anew.
        measured = advance(
            MeasuredRequest, request, window=window, rules=rules, limits=rules.thresholds.limits(window.size),
            history=history, history_with_insertions=None, tool_name="", utilization=_UNMEASURED, decision=_UNDECIDED,
            foreign_ids="none", may_hold_insertions=False,
            compaction_form="whole" if refused_form else "free",
            holdout_assignment=self.holdout.assign(caller.tenant, request.tree_name),
        )  # fmt: skip
        if measured.is_compactable:
            may_be_stale = self._may_be_stale(request)
            measured = await self._find_content_to_insert(measured)
            history = await self.compactions.find(
                request.protocol,
                request.ref,
                conversation,
                check_store=may_be_stale,
                previous_compaction=_previous_compaction(request.session_match),
                has_same_form=request.session_match.has_same_form,
                had_other_form=request.session_match.had_other_form,
            )
        if request.session_match.base_node is not None:
            self.list_meter.add_sums(request.session_match.base_node.sums)
        if (estimated := await self._estimate(measured, history, may_be_stale)) is not None:
            return estimated
        counted_request = await self.list_meter.compose_and_count(measured, history, check_store=may_be_stale)
        return replace(counted_request, decision=self.decide(counted_request))

    def _find_refused_form(self, request: IdentifiedRequest, window: Window) -> RefusedForm:
        """Returns the form of compacted lists that the provider refused, of this session or lately of this model."""
        session = request.session_match.session.id
        return self.session_overrides.find_refused_form(request.caller.tenant, session, window.refused_form)

    async def _estimate(
        self, request: MeasuredRequest, history: CompactedConversation, check_store: bool
    ) -> MeasuredRequest | None:
        """Returns the request with estimated tokens if it passes even with the most tokens that it may have.

        It is then counted while the provider works. Returns None if it must be counted first: near a threshold (half of
        the window is one, see `is_near_window`), and where an estimate saves no time.
        """
        if not self.can_estimate or len(request.decoded_body) < ESTIMATED_FROM:
            return None
        if not await self.list_meter.is_estimable(request, history, check_store=check_store):
            return None
        estimates, size = self.list_meter.estimate(request, history), len(request.decoded_body)
        is_quick = size <= _MAX_ESTIMATED_INLINE and len(history.conversation.messages) <= _MAX_MESSAGES_INLINE
        while estimated := next(estimates, None) if is_quick else await self.tasks.offload(next, estimates, None):
            likely, largest = estimated
            if self._is_below_thresholds(largest):
                decision = self.decide(likely)
                return replace(likely, decision=replace(decision, reason=f"about {decision.reason}"))
            if not self._is_below_thresholds(likely):
                # More samples would hardly lower the bound below what is likely.
                break
        return None

    def _is_below_thresholds(self, request: MeasuredRequest) -> bool:
        """Returns whether a request passes, and is treated like any that passes."""
        decision = self.decide(request)
        # `is_near_window` decides whether a response is searched for an overflow. An estimate must not change that.
        is_treated_alike = not request.window.is_known or not request.is_near_window
        return decision.action == "pass" and not decision.is_skipped and is_treated_alike

    async def _find_content_to_insert(self, request: MeasuredRequest) -> MeasuredRequest:
        """Determines whether the list may hold what a feature inserts, or an artifact id of another agent, or of this
        conversation before the client compacted it, that can be read."""
        if self.mentions is not None:
            search, match = self.mentions.may_mention, request.session_match
            is_long = len(request.decoded_body) > _MAX_SEARCHED_INLINE
            if await self.tasks.offload(search, match) if is_long else search(match):
                request = replace(request, may_hold_insertions=True)
        if b"art_" in request.decoded_body:
            foreign_ids = await self.visibility.find_foreign_ids(
                request.caller, request.visible_request, request.session_match, request.decoded_body
            )
            # What a main agent may not read stays as it is: no other agent's delegation hides there.
            if request.is_subagent or foreign_ids == "readable":
                request = replace(request, foreign_ids=foreign_ids)
        return request

    def _may_be_stale(self, request: IdentifiedRequest) -> bool:
        """Returns whether another worker, or this one before a restart, may have compacted this history."""
        conversation, at = request.conversation, request.session_match.base_index
        if request.session_match.base_node is None:
            return has_response(conversation)
        known = at >= 0 and self.compactions.knows_position(request.ref, conversation.chain[at])
        return not known or count_responses(conversation, at) > 1

    def decide(self, request: MeasuredRequest) -> Decision:
        """Decides what is done with a counted request."""
        budgets, history = request.rules.budgets, request.history
        assignment = request.holdout_assignment if request.allows_compaction else None
        tenant, session = request.caller.tenant, request.session_match.session.id
        mode = request.controls.mode
        if (
            mode == "auto"
            and not request.is_token_count
            and self.session_overrides.is_compaction_demanded(tenant, session)
        ):
            mode = "now"
        is_thread = request.conversation.is_threaded and not request.is_token_count
        is_reconstructable = request.is_reconstructable
        options = PolicyOptions(
            mode=request.rules.mode,
            request_mode=mode,
            is_client_compaction=request.client_metadata.is_client_compaction,
            is_history_known=request.session_match.is_recorded,
            is_kept_by_provider=request.conversation.is_kept_by_provider,
            is_thread=is_thread,
            is_reconstructable=is_reconstructable,
            provider_list_differs=(is_thread or is_reconstructable)
            and _provider_list_may_differ(request, self.sessions.store.is_available),
            last_compaction=_last_attempt(
                history,
                request.session_match.base_node if is_thread else None,
                self.session_overrides.find_undone(tenant, session),
            ),
            is_waiting_for_summary=self.session_overrides.is_waiting_for_summary(tenant, session),
            group=assignment.group if assignment is not None else "",
            is_stopped=self.is_stopped(tenant, request.conversation.model),
            is_compaction_refused=self._find_refused_form(request, request.window) == "whole",
            prompt_cache=find_prompt_cache(request, self.now()),
        )
        return decide(
            history,
            request.utilization,
            request.limits,
            request.window,
            options=options,
            exceeds_bytes=0 < budgets.max_body_bytes < len(request.decoded_body)
            and budgets.max_body_bytes < request.body_size,
            exceeds_images=bool(request.utilization.media)
            and 0 < budgets.max_images < _count_images(history.conversation),
        )

    def apply_reported_tokens(self, reconstructed: MeasuredRequest, by_id: MeasuredRequest) -> MeasuredRequest:
        """Applies the provider's reported tokens to a reconstructed request, if the provider keeps that very list."""
        base_node = by_id.session_match.base_node
        if (
            base_node is None
            or base_node.differs_from_client
            or not by_id.utilization.includes_report
            or reconstructed.history.compaction is not None
        ):
            return reconstructed
        used = reconstructed.utilization.with_total(by_id.utilization.tokens, includes_report=True)
        reconstructed = replace(reconstructed, utilization=used)
        return replace(reconstructed, decision=self.decide(reconstructed))


def _without_observation(
    request: IdentifiedRequest, rules: CompactionRules
) -> tuple[IdentifiedRequest, CompactionRules]:
    """Returns the request and its rules with the mode `auto` in place of `observe`."""
    if request.controls.mode == "observe":
        request = replace(request, controls=replace(request.controls, mode="auto"))
    return request, replace(rules, mode="auto") if rules.mode == "observe" else rules


def _count_images(conversation: Conversation) -> int:
    """Counts the images of a list, those in tool results included."""
    return sum(count_images(part) for message in conversation.messages for part in message.parts)


def _provider_list_may_differ(request: MeasuredRequest, store_is_available: bool) -> bool:
    """Returns whether the provider's list may differ from the client's, up to the response that the request continues.

    A thread that is not on record, for example after an erasure, counts as different if compaction is allowed, unless
    the store is unavailable (`store_is_available` is False).
    """
    base_node = request.session_match.base_node
    if request.is_reconstructable:
        return base_node is not None and base_node.differs_from_client
    if request.route.is_translated:
        return True
    return (
        base_node.differs_from_client
        if base_node is not None
        else request.droppable_thread_id != "" and store_is_available
    )


def _previous_compaction(session_match: SessionMatch) -> AppliedCompaction | None:
    """Returns the compaction of the previous request, whichever worker handled it; None if that is not known."""
    node = previous_request(session_match)
    return None if node is None else AppliedCompaction(node.compaction_id, node.covered_count)


def _last_attempt(
    history: CompactedConversation, thread_node: PrefixNode | None, undone: UndoneCompactions | None
) -> PreviousCompaction | None:
    """Returns the result of the last compaction of this history.

    For a thread that could not be compacted, its size at that time is taken from `thread_node`.
    """
    compaction = history.compaction
    if undone is not None and (compaction is None or compaction.at < undone.at):
        return PreviousCompaction(undone.tokens, undone.tokens, is_undone=True)
    if compaction is None:
        return (
            PreviousCompaction(thread_node.failed_tokens, thread_node.failed_tokens)
            if thread_node is not None and thread_node.failed_tokens
            else None
        )
    return PreviousCompaction(compaction.before, compaction.after)
