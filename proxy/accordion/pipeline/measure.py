"""The third step: measures a request, and decides what is done with it.

The deepest earlier compaction on the request's prefix chain is applied again, insertions are added, tokens are counted
(compose.py), and the policy decides. If that fails, the request is forwarded unmeasured.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from accordion.compaction.plan_state import count_images
from accordion.compaction.policy import PolicyOptions, PreviousCompaction, decide
from accordion.compaction.repository import CompactionRepository
from accordion.compaction.session_overrides import SessionOverrideStore
from accordion.model.budget import Decision, Utilization
from accordion.model.compaction import CompactedConversation, without_compaction
from accordion.model.conversation import Conversation
from accordion.model.ports import Tasks, WindowTable
from accordion.pipeline.compose import RequestComposer
from accordion.pipeline.request import (
    CompactionRules,
    IdentifiedRequest,
    MeasuredRequest,
    PassthroughRequest,
    advance,
    pass_through,
)
from accordion.pipeline.session_import import MemoryMentions
from accordion.pipeline.visibility import Visibility
from accordion.sessions.prefix_nodes import PrefixNode, count_responses, has_response
from accordion.sessions.sessions import SessionMatch, Sessions

_log = logging.getLogger("accordion")

_MAX_SEARCHED_INLINE = 1 << 20
_UNMEASURED = Utilization(0)
_UNDECIDED = Decision("pass", "not measured yet")


class Measurer(msgspec.Struct, frozen=True):
    """Measures requests, and decides what is done with them."""

    composer: RequestComposer
    sessions: Sessions
    visibility: Visibility
    window_table: WindowTable
    compactions: CompactionRepository
    session_overrides: SessionOverrideStore
    compaction_rules: Callable[[str, str, bool, int], CompactionRules]
    """By model, provider family, whether a sub-agent sent the request, and the window in tokens."""
    memory_mentions: MemoryMentions
    tasks: Tasks

    async def measure(self, request: IdentifiedRequest) -> MeasuredRequest | PassthroughRequest:
        """Applies earlier compactions, counts tokens and decides.

        If a compaction is due, all results of other agents are hidden before it, and the request is measured again.
        """
        try:
            measured = await self._measure(self._apply_session_mode(request))
            if measured.decision.action == "compact" and not measured.is_token_count:
                measured = await self.hide_foreign_results(measured)
            return measured
        except Exception:
            # Measuring is optional, forwarding is not.
            _log.exception(
                "a request could not be measured; it is forwarded unchanged",
                extra={"request_id": request.inbound.request_id},
            )
            return pass_through(request, request.visible_request)

    def _apply_session_mode(self, request: IdentifiedRequest) -> IdentifiedRequest:
        """Returns the request with the mode that a person set for its session, unless its own is stricter."""
        mode = self.session_overrides.find_mode(request.caller.tenant, request.session_match.session.id)
        if mode == "auto" or request.controls.mode == "off":
            return request
        return replace(request, controls=replace(request.controls, mode=mode))

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
        return await self._measure(
            replace(
                request,
                decoded_body=visible_request.body,
                visible_request=visible_request,
                session_match=session_match,
            )
        )

    async def _measure(self, request: IdentifiedRequest) -> MeasuredRequest:
        conversation, route, caller = request.conversation, request.route, request.caller
        window = self.window_table.window(conversation.model, route.name, request.beta, caller.tenant)
        rules = self.compaction_rules(conversation.model, route.family, request.is_subagent, window.size)
        history, may_be_stale = without_compaction(conversation), False
        measured = advance(
            MeasuredRequest, request, window=window, rules=rules, limits=rules.thresholds.limits(window.size),
            history=history, history_with_insertions=None, tool_name="", utilization=_UNMEASURED, decision=_UNDECIDED,
            can_read_artifacts=None, may_hold_memories=False,
        )  # fmt: skip
        if measured.is_compactable:
            may_be_stale = self._may_be_stale(caller.tenant_key, request.session_match)
            measured = await self._find_content_to_insert(measured)
            history = await self.compactions.find(
                request.protocol, caller.tenant_key, request.session_match.label, conversation, check_store=may_be_stale
            )
        measured = await self.composer.compose(measured, history, check_store=may_be_stale)
        return replace(measured, decision=self.decide(measured))

    async def _find_content_to_insert(self, request: MeasuredRequest) -> MeasuredRequest:
        """Determines whether the list may hold a memory, or an artifact id of another agent that can be read."""
        if await self._may_mention_memory(request.session_match, request.decoded_body):
            request = replace(request, may_hold_memories=True)
        if request.is_subagent and b"art_" in request.decoded_body:
            can_read = await self.visibility.can_read_artifacts(
                request.caller, request.visible_request, request.session_match, request.decoded_body
            )
            request = replace(request, can_read_artifacts=can_read)
        return request

    async def _may_mention_memory(self, session_match: SessionMatch, body: bytes) -> bool:
        search = self.memory_mentions.may_mention_memory
        if len(body) > _MAX_SEARCHED_INLINE:
            return await self.tasks.offload(search, session_match, body)
        return search(session_match, body)

    def _may_be_stale(self, tenant_key: bytes, session_match: SessionMatch) -> bool:
        """Returns whether another worker, or this one before a restart, may have compacted this history."""
        conversation, at = session_match.conversation, session_match.base_index
        if session_match.base_node is None:
            return has_response(conversation)
        known = at >= 0 and self.compactions.knows_position(tenant_key, session_match.label, conversation.chain[at])
        return not known or count_responses(conversation, at) > 1

    def decide(self, request: MeasuredRequest) -> Decision:
        """Decides what is done with a counted request."""
        budgets, history = request.rules.budgets, request.history
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
            is_kept_by_provider=request.conversation.previous is not None,
            is_thread=is_thread,
            is_reconstructable=is_reconstructable,
            provider_list_differs=(is_thread or is_reconstructable)
            and _provider_list_may_differ(request, self.sessions.store.is_available),
            previous=_last_attempt(history, request.session_match.base_node if is_thread else None),
            is_deferred=self.session_overrides.is_waiting_for_summary(tenant, session),
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

    def apply_reported_tokens(self, reconstructed: MeasuredRequest, original: MeasuredRequest) -> MeasuredRequest:
        """Applies the provider's reported tokens to a reconstructed request, if the provider keeps that very list."""
        base_node = original.session_match.base_node
        if (
            base_node is None
            or base_node.changed
            or not original.utilization.carried
            or reconstructed.history.compaction is not None
        ):
            return reconstructed
        used = reconstructed.utilization.apply_correction(1.0, original.utilization.tokens, carried=True)
        reconstructed = replace(reconstructed, utilization=used)
        return replace(reconstructed, decision=self.decide(reconstructed))


def _count_images(conversation: Conversation) -> int:
    """Counts the images of a list, those in tool results included."""
    return sum(count_images(part) for message in conversation.messages for part in message.parts)


def _provider_list_may_differ(request: MeasuredRequest, store_is_available: bool) -> bool:
    """Returns whether the provider's list may differ from the client's up to where the request continues.

    A thread that is not on record, for example after an erasure, counts as different if compaction is allowed, unless
    the store is unavailable (`store_is_available` is False).
    """
    base_node = request.session_match.base_node
    if request.is_reconstructable:
        return base_node is not None and base_node.changed
    if request.route.family == "litellm":
        return True
    return base_node.changed if base_node is not None else request.releasable_thread != "" and store_is_available


def _last_attempt(history: CompactedConversation, thread_node: PrefixNode | None = None) -> PreviousCompaction | None:
    """Returns the result of the last compaction of this history.

    For a thread that could not be compacted, its size at that time is taken from `thread_node`.
    """
    made = history.compaction
    if made is None:
        return (
            PreviousCompaction(thread_node.tried, thread_node.tried)
            if thread_node is not None and thread_node.tried
            else None
        )
    return PreviousCompaction(made.before, made.after)
