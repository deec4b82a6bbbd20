"""Composes the list that is forwarded, and counts its tokens.

Measuring and compacting both end in a list: the client's with a compaction applied. `RequestComposer` adds our tool and
the insertions to it, counts the tokens, and corrects the count by the provider's reports.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec.structs import replace

from accordion.accounting.calibration import UNKNOWN, Calibrations, correction_from_report, estimate_tokens, is_credible
from accordion.accounting.token_meter import TokenMeter
from accordion.insertions.composer import InsertionComposer
from accordion.insertions.differences import drop_bound_thinking
from accordion.model.boundaries import find_provider_compaction
from accordion.model.budget import Utilization
from accordion.model.compaction import CompactedConversation
from accordion.model.conversation import Conversation
from accordion.model.ports import Tasks
from accordion.pipeline.request import MeasuredRequest, find_compaction_id
from accordion.sessions.prefix_nodes import PrefixNode
from accordion.sessions.sessions import SessionMatch

Measured = TypeVar("Measured", bound=MeasuredRequest)


class RequestComposer(msgspec.Struct, frozen=True):
    """Composes and counts the forwarded lists of requests."""

    insertion_composer: InsertionComposer
    token_meter: TokenMeter
    calibrations: Calibrations
    tasks: Tasks

    async def compose(
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
        counted = await self._count(request, history, composed)
        if history.conversation.max_output is None and (reserved := request.rules.thresholds.reserved_output):
            counted = replace(counted, reserved_output=min(reserved, request.window.size))
        return replace(
            request,
            history=history,
            uncorrected_tokens=counted.tokens,
            text_tokens=counted.tokens - counted.media,
            utilization=self._correct_count(request, counted, history if with_insertions else None),
            history_with_insertions=composed if history.compaction is not None or composed is not history else None,
            tool_name="" if request.is_token_count else tool_name,
        )

    async def remove_insertions(self, request: Measured) -> Measured:
        """Removes insertions, with the thinking that is bound to them.

        Insertions are the first to go if the window has no space for them.
        """
        former = request.history_with_insertions
        request = await self.compose(request, request.history, with_insertions=False)
        if request.thinking != "bound" or former is None:
            return request
        read_message = self.insertion_composer.message_reader.reader_for(request.protocol, request.caller.tenant_key)
        bare = drop_bound_thinking(request.protocol, request.forwarded_history, former, read_message)
        counted = self.token_meter.measure(bare.conversation, request.window, request.actual_model).tokens
        total = max(0, request.utilization.tokens - request.uncorrected_tokens + counted)
        used = request.utilization.apply_correction(1.0, total, carried=request.utilization.carried)
        return replace(request, history_with_insertions=bare, uncorrected_tokens=counted, utilization=used)

    async def count_tool_tokens(self, request: MeasuredRequest) -> int:
        """Returns the tokens that a compaction of this request adds: those of our tool, if it is not offered yet."""
        conversation = request.history.conversation
        if request.forwarded_history.conversation.tools is not conversation.tools:
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
        match, tenant_key = request.session_match, request.caller.tenant_key
        if history.compaction is not None or request.can_read_artifacts is not None or request.may_hold_memories:
            return await self.insertion_composer.compose(
                request.protocol,
                tenant_key,
                match.label,
                match.conversation,
                history,
                check_store=check_store,
                with_insertions=with_insertions,
                has_shared_artifacts=bool(request.can_read_artifacts),
            )
        if request.is_compactable:
            return history, ""
        return await self.insertion_composer.remove_orphan_reasoning(
            request.protocol, tenant_key, match.label, history
        ), ""

    async def _count(
        self, request: MeasuredRequest, history: CompactedConversation, composed: CompactedConversation
    ) -> Utilization:
        """Counts the composed list, with the insertions separately."""
        bare, counted = history.conversation, await self._count_tokens(request, composed.conversation)
        if composed.conversation.chain is bare.chain:
            return counted
        added = self.token_meter.count_added(composed.conversation, bare, request.actual_model)
        if added is None:
            without = await self._count_tokens(request, bare)
            added = counted.messages + counted.media - without.messages - without.media
        return _separate_insertion_tokens(counted, added)

    async def _count_tokens(self, request: MeasuredRequest, conversation: Conversation) -> Utilization:
        if self.token_meter.is_slow(conversation, request.actual_model, len(request.decoded_body)):
            return await self.tasks.offload(
                self.token_meter.measure, conversation, request.window, request.actual_model
            )
        return self.token_meter.measure(conversation, request.window, request.actual_model)

    def _correct_count(
        self, request: MeasuredRequest, counted: Utilization, history: CompactedConversation | None
    ) -> Utilization:
        """Corrects our count by the tokens that the provider reported to this model.

        Uses the report for the beginning of this very list if there is one, or else the ratio of earlier reports to
        counts (accounting/calibration.py). `history`: None for a new list, to which no report applies.
        """
        match, model = request.session_match, request.conversation.model
        base, last = _find_report_node(match), None
        if base is not None and match.base_index >= 0 and base.reported:
            # The reported part may contain media of this list.
            text = max(0, base.counted - counted.media)
            if not is_credible(base.reported, base.counted, text, request.window):
                base = None
        known = match.session.correction_of(model)
        if known == UNKNOWN and base is not None and base.model == model:
            # Another worker handled this session so far, or this one did before a restart.
            known = correction_from_report(base.counted, base.reported)
        factor = self.calibrations.factor(request.route.name, model, known)
        if base is not None and base.reported and history is not None and base.fold == find_compaction_id(history):
            if match.base_index < 0:
                # The report includes the overhead of the request that made it; this request brings that overhead again.
                last = (counted.preamble + counted.tools, base.reported)
            elif base.overhead_key == match.conversation.overhead_key and base.model == model:
                last = (base.counted, base.reported)
        return counted.apply_correction(factor, estimate_tokens(counted.tokens, last, factor), carried=last is not None)


def _separate_insertion_tokens(utilization: Utilization, insertion_tokens: int) -> Utilization:
    """Counts the tokens of insertions separately from the other messages."""
    insertion_tokens = max(0, min(insertion_tokens, utilization.messages))
    return replace(utilization, messages=utilization.messages - insertion_tokens, unfolded=insertion_tokens)


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
