"""The third step: measures a request, and decides what is done with it.

The deepest earlier compaction on the request's prefix chain is applied again, the list that is forwarded is composed
and counted, and the policy decides. If that fails, the request is forwarded unmeasured.

Measuring and compacting (compact.py) both end in a list: the client's with a compaction applied. `ForwardedListMeter`
adds our tool and the insertions to it, counts the tokens, and corrects the count by the provider's reports.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from accordion.accounting.calibration import (
    UNKNOWN,
    Calibrations,
    ReportedCount,
    correction_from_report,
    estimate_tokens,
    is_credible,
)
from accordion.accounting.holdout import Holdout
from accordion.accounting.token_meter import ESTIMATED_FROM, MOST_BYTES_PER_TOKEN, TokenMeter, TokenSum
from accordion.compaction.policy import PolicyOptions, PreviousCompaction, decide
from accordion.compaction.repository import AppliedCompaction, CompactionRepository
from accordion.compaction.session_overrides import SessionOverrideStore
from accordion.compaction.strategies.base import count_images
from accordion.insertions.composer import InsertionComposer, PreviousInsertions
from accordion.model.boundaries import find_provider_compaction
from accordion.model.budget import Decision, Utilization
from accordion.model.compaction import CompactedConversation, without_compaction
from accordion.model.conversation import Conversation
from accordion.model.ports import Tasks, WindowTable
from accordion.pipeline.request import (
    CompactionRules,
    IdentifiedRequest,
    MeasuredRequest,
    PassthroughRequest,
    advance,
    find_compaction_id,
    pass_through,
)
from accordion.pipeline.session_import import MemoryMentions
from accordion.pipeline.tool_refusals import ToolRefusals
from accordion.pipeline.visibility import Visibility
from accordion.sessions.prefix_nodes import PrefixNode, StoredSum, count_responses, has_response
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
    memory_mentions: MemoryMentions
    tasks: Tasks
    holdout: Holdout = Holdout()
    can_estimate: bool = False
    """Whether a long request may be forwarded before its tokens are counted."""

    async def measure(self, request: IdentifiedRequest) -> MeasuredRequest | PassthroughRequest:
        """Applies earlier compactions, counts tokens and decides.

        If a compaction is due, all results of other agents are hidden before it, and the request is measured again.
        """
        try:
            measured = await self._measure(request)
            decision = measured.decision
            if decision.action == "compact" and not (decision.is_observed or measured.is_token_count):
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
        history, may_be_stale = without_compaction(conversation), False
        # The request may have been measured before, and then it has these fields: they start anew.
        measured = advance(
            MeasuredRequest, request, window=window, rules=rules, limits=rules.thresholds.limits(window.size),
            history=history, history_with_insertions=None, tool_name="", utilization=_UNMEASURED, decision=_UNDECIDED,
            can_read_artifacts=None, may_hold_memories=False,
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
        counted_request = await self.list_meter.with_history(measured, history, check_store=may_be_stale)
        return replace(counted_request, decision=self.decide(counted_request))

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
        return decision.action == "pass" and not decision.is_skipped_by_holdout and is_treated_alike

    async def _find_content_to_insert(self, request: MeasuredRequest) -> MeasuredRequest:
        """Determines whether the list may hold a memory, or an artifact id of another agent that can be read."""
        search, match = self.memory_mentions.may_mention_memory, request.session_match
        is_long = len(request.decoded_body) > _MAX_SEARCHED_INLINE
        if await self.tasks.offload(search, match) if is_long else search(match):
            request = replace(request, may_hold_memories=True)
        if request.is_subagent and b"art_" in request.decoded_body:
            can_read = await self.visibility.can_read_artifacts(
                request.caller, request.visible_request, request.session_match, request.decoded_body
            )
            request = replace(request, can_read_artifacts=can_read)
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
            and self.session_overrides.has_compaction_request(tenant, session)
        ):
            mode = "now"
        is_thread = request.conversation.is_threaded and not request.is_token_count
        is_reconstructable = request.is_reconstructable
        options = PolicyOptions(
            mode=request.rules.mode,
            request_mode=mode,
            is_client_compaction=request.controls.is_client_compaction,
            is_history_known=request.session_match.is_recorded,
            is_kept_by_provider=request.conversation.is_kept_by_provider,
            is_thread=is_thread,
            is_reconstructable=is_reconstructable,
            provider_list_differs=(is_thread or is_reconstructable)
            and _provider_list_may_differ(request, self.sessions.store.is_available),
            last_compaction=_last_attempt(history, request.session_match.base_node if is_thread else None),
            is_deferred=self.session_overrides.is_waiting_for_summary(tenant, session),
            group=assignment.group if assignment is not None else "",
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
            or not by_id.utilization.is_carried
            or reconstructed.history.compaction is not None
        ):
            return reconstructed
        used = reconstructed.utilization.apply_correction(1.0, by_id.utilization.tokens, is_carried=True)
        reconstructed = replace(reconstructed, utilization=used)
        return replace(reconstructed, decision=self.decide(reconstructed))


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
        else request.endable_thread_id != "" and store_is_available
    )


def _previous_compaction(session_match: SessionMatch) -> AppliedCompaction | None:
    """Returns the compaction of the previous request, whichever worker handled it; None if that is not known."""
    node = _previous_request(session_match)
    return None if node is None else AppliedCompaction(node.compaction_id, node.covered_count)


def _previous_insertions(session_match: SessionMatch) -> PreviousInsertions | None:
    """Returns the insertions of the request before, at whichever worker; None if they are not known."""
    node = _previous_request(session_match)
    if node is None or not node.insertions:
        return None
    return PreviousInsertions(node.insertions, session_match.base_index + 1, node.covered_count)


def _previous_request(session_match: SessionMatch) -> PrefixNode | None:
    """Returns the node of the request right before this one, if the provider reported on it.

    If another request continued it before this one, that one may have been compacted since.
    """
    node, at = session_match.base_node, session_match.base_index
    if node is None or at < 0 or not node.reported or node.branch or session_match.had_other_form:
        return None
    return node if count_responses(session_match.conversation, at) == 1 else None


def _last_attempt(history: CompactedConversation, thread_node: PrefixNode | None = None) -> PreviousCompaction | None:
    """Returns the result of the last compaction of this history.

    For a thread that could not be compacted, its size at that time is taken from `thread_node`.
    """
    compaction = history.compaction
    if compaction is None:
        return (
            PreviousCompaction(thread_node.failed_tokens, thread_node.failed_tokens)
            if thread_node is not None and thread_node.failed_tokens
            else None
        )
    return PreviousCompaction(compaction.before, compaction.after)


Measured = TypeVar("Measured", bound=MeasuredRequest)


class ForwardedListMeter(msgspec.Struct, frozen=True):
    """Adds our tool and the insertions to the lists of requests, and counts the tokens."""

    insertion_composer: InsertionComposer
    token_meter: TokenMeter
    calibrations: Calibrations
    tasks: Tasks
    tool_refusals: ToolRefusals

    async def with_history(
        self,
        request: Measured,
        history: CompactedConversation,
        *,
        check_store: bool = False,
        with_insertions: bool = True,
    ) -> Measured:
        """Returns the request with another history to be forwarded, counted again.

        `check_store`, `with_insertions`: see InsertionComposer.compose.
        """
        composed, tool_name = await self._insert(
            request, history, check_store=check_store, with_insertions=with_insertions
        )
        utilization = await self._count(request, history, composed)
        counted_request = self._set_count(request, history, utilization, has_report=with_insertions)
        return replace(
            counted_request,
            history_with_insertions=composed if history.compaction is not None or composed is not history else None,
            tool_name="" if request.is_token_count else tool_name,
        )

    def add_sums(self, sums: Iterable[StoredSum]) -> None:
        """Adds the token counts of another worker, so that the messages are not counted again."""
        for each in sums:
            self.token_meter.add_sum(each.chain, each.rules, TokenSum(each.text, each.media))

    async def is_estimable(
        self, request: MeasuredRequest, history: CompactedConversation, *, check_store: bool
    ) -> bool:
        """Returns whether the list is forwarded as it came, and counting it would take long.

        Not so if a token decides about more than the thresholds (in a count that the client asks for, in context edits,
        as the space for recalled content), and if the provider keeps the messages before.
        """
        has_compaction = history.compaction is not None or request.context_edits is not None
        is_continued = request.conversation.is_kept_by_provider
        if has_compaction or is_continued or request.is_token_count or request.may_hold_memories:
            return False
        if len(request.decoded_body) > MOST_BYTES_PER_TOKEN * request.window.size:
            return False
        if not self.token_meter.is_estimable(history.conversation, request.actual_model):
            return False
        composed, _ = await self._insert(request, history, check_store=check_store, with_insertions=True)
        return composed is history

    def estimate(self, request: Measured, history: CompactedConversation) -> Iterator[tuple[Measured, Measured]]:
        """Yields the request with its likely tokens, and with the most that a count may find, more and more precise."""
        for estimate in self.token_meter.estimate(history.conversation, request.window, request.actual_model):
            likely = self._set_count(request, history, estimate.likely)
            yield replace(likely, is_estimated=True), self._set_count(request, history, estimate.bound)

    async def count_estimated(self, request: Measured) -> Measured:
        """Counts a request whose tokens were estimated; returns others as they are. The decision stays."""
        return await self.tasks.offload(self.recount, request) if request.is_estimated else request

    def recount(self, request: Measured) -> Measured:
        """Counts a request whose tokens were estimated. The decision stays."""
        utilization = self.token_meter.measure(request.history.conversation, request.window, request.actual_model)
        return self._set_count(request, request.history, utilization)

    def _set_count(
        self, request: Measured, history: CompactedConversation, utilization: Utilization, *, has_report: bool = True
    ) -> Measured:
        """Returns the request with a count of `history`. `has_report`: a provider's report may apply to the list."""
        reserved, tokens = self.output_space(request, history.conversation), utilization.tokens
        if reserved != utilization.reserved_output:
            utilization = replace(utilization, reserved_output=reserved)
        return replace(
            request,
            history=history,
            uncorrected_tokens=tokens,
            text_tokens=tokens - utilization.media,
            is_estimated=False,
            utilization=self._correct_count(request, utilization, history if has_report else None),
        )

    def output_space(self, request: MeasuredRequest, conversation: Conversation) -> int:
        """Returns the tokens to keep free for the response.

        If the provider is known to count the requested output, that is all of it; else an estimate from responses.
        """
        asked, window, thresholds = conversation.max_output, request.window, request.rules.thresholds
        if asked is None:
            return min(thresholds.reserved_output, window.size)
        asked = min(max(0, asked), window.size)
        if window.counts_output:
            return asked
        longest, factor = request.session_match.session.longest_output, thresholds.output_factor
        return self.calibrations.output_space(request.route.name, conversation.model, asked, longest, factor)

    async def remove_insertions(self, request: Measured) -> Measured:
        """Removes insertions, with the thinking that is bound to them.

        Insertions are the first to go if the window has no space for them.
        """
        former = request.history_with_insertions
        request = await self.with_history(request, request.history, with_insertions=False)
        if request.thinking != "bound" or former is None:
            return request
        bare = self.insertion_composer.drop_bound_thinking(
            request.protocol, request.caller.tenant, request.forwarded_history, former
        )
        tokens = self.token_meter.measure(bare.conversation, request.window, request.actual_model).tokens
        total = max(0, request.utilization.tokens - request.uncorrected_tokens + tokens)
        used = request.utilization.apply_correction(1.0, total, is_carried=request.utilization.is_carried)
        return replace(request, history_with_insertions=bare, uncorrected_tokens=tokens, utilization=used)

    async def count_tool_tokens(self, request: MeasuredRequest) -> int:
        """Returns the tokens that a compaction of this request adds: those of our tool, if it is not offered yet."""
        conversation = request.history.conversation
        if request.forwarded_history.conversation.tools is not conversation.tools or self.tool_refusals.covers(request):
            return 0
        offered = self.insertion_composer.offer_tool(request.protocol, conversation)
        if offered is conversation:
            return 0
        before, after = await self._count_tokens(request, conversation), await self._count_tokens(request, offered)
        # Corrected by the provider's own counts in the same ratio as the rest of the request.
        added = after.tokens - before.tokens
        return round(added * request.utilization.tokens / max(1, request.uncorrected_tokens))

    async def _insert(
        self, request: MeasuredRequest, history: CompactedConversation, *, check_store: bool, with_insertions: bool
    ) -> tuple[CompactedConversation, str]:
        """Returns the history with our tool and the insertions, and the tool's name, empty if it is not offered."""
        match = request.session_match
        has_artifacts = request.can_read_artifacts is not None or bool(request.block_artifacts)
        if history.compaction is not None or has_artifacts or request.may_hold_memories:
            return await self.insertion_composer.compose(
                request.protocol,
                request.ref,
                match.conversation,
                history,
                check_store=check_store,
                previous_insertions=_previous_insertions(match),
                with_insertions=with_insertions,
                has_shared_artifacts=bool(request.can_read_artifacts or request.block_artifacts),
                may_offer_tool=not self.tool_refusals.covers(request),
            )
        if request.is_compactable:
            return history, ""
        return await self.insertion_composer.remove_orphan_reasoning(request.protocol, request.ref, history), ""

    async def _count(
        self, request: MeasuredRequest, history: CompactedConversation, composed: CompactedConversation
    ) -> Utilization:
        """Counts the composed list, with the insertions separately."""
        bare, utilization = history.conversation, await self._count_tokens(request, composed.conversation)
        if composed.conversation.chain is bare.chain:
            return utilization
        added = self.token_meter.count_added(composed.conversation, bare, request.actual_model)
        if added is None:
            without = await self._count_tokens(request, bare)
            added = utilization.messages + utilization.media - without.messages - without.media
        return _separate_insertion_tokens(utilization, added)

    async def _count_tokens(self, request: MeasuredRequest, conversation: Conversation) -> Utilization:
        token_meter, model = self.token_meter, request.actual_model
        if not token_meter.is_loaded(conversation, model):
            await self.tasks.offload(token_meter.load, conversation, model)
            # Of all threads, the first one that counts stays the fastest (providers/models/tokenizer.py).
            token_meter.count_text("This thread counts most.", model)
        if token_meter.is_slow(conversation, model, len(request.decoded_body)):
            return await self.tasks.offload(token_meter.measure, conversation, request.window, model)
        return token_meter.measure(conversation, request.window, model)

    def _correct_count(
        self, request: MeasuredRequest, utilization: Utilization, history: CompactedConversation | None
    ) -> Utilization:
        """Corrects our count by the tokens that the provider reported to this model.

        Uses the report for the beginning of this very list if there is one, or else the ratio of earlier reports to
        counts (accounting/calibration.py). `history`: None for a new list, to which no report applies.
        """
        match, model = request.session_match, request.conversation.model
        base, last = _find_report_node(match), None
        if base is not None and match.base_index >= 0 and base.reported:
            # The reported part may contain media of this list.
            text = max(0, base.counted - utilization.media)
            if not is_credible(base.reported, base.counted, text, request.window):
                base = None
        known = match.session.correction_of(model)
        if known == UNKNOWN and base is not None and base.model == model:
            # Another worker handled this session so far, or this one did before a restart.
            known = correction_from_report(base.counted, base.reported)
        factor = self.calibrations.factor(request.route.name, model, known)
        if (
            base is not None
            and base.reported
            and history is not None
            and base.compaction_id == find_compaction_id(history)
        ):
            if match.base_index < 0:
                # The report includes the overhead of the request that made it; this request brings that overhead again.
                last = ReportedCount(utilization.preamble + utilization.tools, base.reported)
            elif base.overhead_key == match.conversation.overhead_key and base.model == model:
                last = ReportedCount(base.counted, base.reported)
        if last is None and factor == UNKNOWN:
            return utilization
        return utilization.apply_correction(
            factor, estimate_tokens(utilization.tokens, last, factor), is_carried=last is not None
        )


def _separate_insertion_tokens(utilization: Utilization, insertion_tokens: int) -> Utilization:
    """Counts the tokens of insertions separately from the other messages."""
    insertion_tokens = max(0, min(insertion_tokens, utilization.messages))
    return replace(utilization, messages=utilization.messages - insertion_tokens, insertions=insertion_tokens)


def _find_report_node(session_match: SessionMatch) -> PrefixNode | None:
    """Returns the recorded prefix that the request continues, if the provider's report for it still applies.

    Returns None if the provider has compacted the conversation itself since then.
    """
    at = session_match.base_index
    return (
        session_match.base_node
        if at < 0 or find_provider_compaction(session_match.conversation.messages, at + 1) < 0
        else None
    )
