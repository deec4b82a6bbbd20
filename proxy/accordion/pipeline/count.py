"""Counts the list that is forwarded: measuring and compacting (measure.py, compact.py) both end in one.

`ForwardedListMeter` adds our tool and the insertions to the client's list with a compaction applied, counts the tokens,
and corrects the count by the provider's reports.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
from accordion.accounting.token_meter import MOST_BYTES_PER_TOKEN, TokenMeter, TokenSum
from accordion.insertions.composer import InsertionComposer, PreviousInsertions
from accordion.model.boundaries import find_provider_compaction
from accordion.model.budget import Utilization
from accordion.model.compaction import CompactedConversation
from accordion.model.conversation import Conversation
from accordion.model.ports import Tasks
from accordion.pipeline.request import MeasuredRequest, find_compaction_id
from accordion.pipeline.tool_refusals import ToolRefusals
from accordion.sessions.prefix_nodes import PrefixNode, StoredSum, count_responses
from accordion.sessions.sessions import SessionMatch

Measured = TypeVar("Measured", bound=MeasuredRequest)


class ForwardedListMeter(msgspec.Struct, frozen=True):
    """Adds our tool and the insertions to the lists of requests, and counts the tokens."""

    insertion_composer: InsertionComposer
    token_meter: TokenMeter
    calibrations: Calibrations
    tasks: Tasks
    tool_refusals: ToolRefusals

    async def compose_and_count(
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
        has_compaction = history.compaction is not None or (request.handler is not None and request.handler.needs_count)
        is_continued = request.conversation.is_kept_by_provider
        if has_compaction or is_continued or request.is_token_count or request.may_hold_insertions:
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
        request = await self.compose_and_count(request, request.history, with_insertions=False)
        if request.thinking != "bound" or former is None:
            return request
        bare = self.insertion_composer.drop_bound_thinking(
            request.protocol, request.caller.tenant, request.forwarded_history, former
        )
        tokens = self.token_meter.measure(bare.conversation, request.window, request.actual_model).tokens
        total = max(0, request.utilization.tokens - request.uncorrected_tokens + tokens)
        used = request.utilization.with_total(total, includes_report=request.utilization.includes_report)
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
        has_artifacts = request.foreign_ids != "none" or bool(request.named_artifacts)
        if history.compaction is not None or has_artifacts or request.may_hold_insertions:
            return await self.insertion_composer.compose(
                request.protocol,
                request.ref,
                match.conversation,
                history,
                check_store=check_store,
                previous_insertions=_previous_insertions(match),
                with_insertions=with_insertions,
                has_shared_artifacts=request.foreign_ids == "readable" or bool(request.named_artifacts),
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
            if match.continues_by_id:
                # The report includes the overhead of the request that made it; this request brings that overhead again.
                last = ReportedCount(utilization.preamble + utilization.tools, base.reported)
            elif base.overhead_key == match.conversation.overhead_key and base.model == model:
                last = ReportedCount(base.counted, base.reported)
        if last is None and factor == UNKNOWN:
            return utilization
        return utilization.with_total(
            estimate_tokens(utilization.tokens, last, factor), includes_report=last is not None, factor=factor
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


def _previous_insertions(session_match: SessionMatch) -> PreviousInsertions | None:
    """Returns the insertions of the request before, at whichever worker; None if they are not known."""
    node = previous_request(session_match)
    if node is None or not node.insertions:
        return None
    return PreviousInsertions(node.insertions, session_match.base_index + 1, node.covered_count)


def previous_request(session_match: SessionMatch) -> PrefixNode | None:
    """Returns the node of the request right before this one, if the provider reported on it.

    If another request continued it before this one, that one may have been compacted since.
    """
    node, at = session_match.base_node, session_match.base_index
    if node is None or at < 0 or not node.reported or node.branch or session_match.had_other_form:
        return None
    return node if count_responses(session_match.conversation, at) == 1 else None
