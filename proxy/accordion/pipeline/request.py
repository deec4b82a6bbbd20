"""The state of one request: the value that each step takes and returns.

`RequestState` is immutable. Measuring fills in the session match, the window, the counts and the decision; compaction
fills in the history to be forwarded and the rewritten body; the tool loop, sending and the ledger read it.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from accordion.compaction.plan_state import count_images
from accordion.compaction.policy import Mode, PreviousCompaction
from accordion.compaction.request import RequestBudgets
from accordion.compaction.request_controls import RequestControls
from accordion.model.boundaries import find_provider_compaction
from accordion.model.budget import Decision, Thresholds, TokenLimits, Utilization, Window
from accordion.model.compaction import CompactedConversation
from accordion.model.conversation import Conversation
from accordion.model.ports import Route
from accordion.model.records import CompactionOutcome, RecallUsage
from accordion.model.values import dataclass, replace
from accordion.pipeline.visibility import VisibleRequest
from accordion.protocols.base import WireProtocol
from accordion.sessions.prefix_nodes import PrefixNode
from accordion.sessions.sessions import SessionMatch
from accordion.sessions.tenants import Caller

# Estimates are rarely wrong by more than a fifth, and never by half.
_NEAR_RATIO = 0.5

_UNMEASURED = Utilization(0)
_UNREAD = Decision("pass", "not read")


@dataclass(frozen=True, slots=True)
class CompactionRules:
    """The compaction settings for one model and one kind of agent."""

    thresholds: Thresholds = Thresholds()
    mode: Mode = "auto"
    budgets: RequestBudgets = RequestBudgets()


class RequestState(msgspec.Struct, frozen=True):
    """The state of one request.

    `session_match` is None if the body was not read; such a request is forwarded unread. `history` is the client's list
    with earlier compactions applied. `history_with_insertions` is the same list with our tool, tool rounds and recalled
    excerpts added. It differs from `history` if a compaction is in force, artifacts of other agents can be read, or a
    memory may be in the list. Utilization and counts are of the list that is forwarded.

    Each step returns a new value, made by `msgspec.structs.replace`, which is twenty times as fast as the `replace` of
    dataclasses.
    """

    caller: Caller
    route: Route
    protocol: WireProtocol
    session_match: SessionMatch | None = None
    window: Window | None = None
    utilization: Utilization = _UNMEASURED
    uncorrected_tokens: int = 0
    """Our own count before any correction, in tokens."""
    text_tokens: int = 0
    """The tokens of that count that come from text, not from estimates for media or unknown content."""
    decoded_body: bytes = b""
    """The body without content encoding; empty if it was not decoded or the encoding is unknown."""
    limits: TokenLimits | None = None
    decision: Decision = _UNREAD
    beta: str = ""
    request_id: str = ""
    history: CompactedConversation | None = None
    controls: RequestControls = RequestControls()
    actual_model: str = ""
    """The model that the provider runs. It determines how tokens are counted."""
    is_token_count: bool = False
    """Whether the request only asks for its number of tokens."""
    rewritten_body: bytes | None = None
    """The body that is forwarded in place of the client's; None if the client's body is forwarded unchanged."""
    compaction_outcome: CompactionOutcome | None = None
    rules: CompactionRules = CompactionRules()
    is_unreadable: bool = False
    """Whether the body should have been read and could not be."""
    unread: str = ""
    """The content that exceeds a limit, such as too many messages, if the body is not read because of its size."""
    is_stored_locally_only: bool = False
    """Whether content that a compaction removed could only be stored on this machine for now."""
    history_with_insertions: CompactedConversation | None = None
    """None if the list is forwarded as it came."""
    tool_name: str = ""
    """The name under which the model may call our tool; empty if it is not offered."""
    recall_usage: RecallUsage | None = None
    """The excerpts and memories that were recalled for this request."""
    started_at: float = 0.0
    """The time of arrival, in seconds by the monotonic clock; 0 if nothing is stored of the request."""
    can_read_artifacts: bool | None = None
    """Whether our tool is offered for artifact ids of other agents in the list; None if the list has none."""
    may_hold_memories: bool = False
    """Whether the list may contain a memory, or ask for one."""
    original_request: RequestState | None = None
    """The request as it came, if the provider's history was put in place of a response id."""
    visible_request: VisibleRequest | None = None
    """The agent's position and the part of the list that it may see.

    `decoded_body` and `session_match` are of the visible list.
    """

    @property
    def is_near_window(self) -> bool:
        """Whether an overflow is possible.

        True if the window is unknown, or half full by the estimate or by our own count.
        """
        window = self.window
        if window is None or not window.is_known or self.utilization.ratio >= _NEAR_RATIO:
            return True
        return self.uncorrected_tokens >= _NEAR_RATIO * window.size

    @property
    def is_compactable(self) -> bool:
        """Whether the request may be changed at all.

        False if compaction is switched off or only reported, or if the provider keeps the earlier messages.
        """
        kept = self.session_match is not None and self.session_match.conversation.previous is not None
        return self._allows_compaction and not kept

    @property
    def releasable_thread(self) -> str:
        """The id of the thread that the request continues, if it may be dropped to compact; else empty."""
        said = self.session_match.conversation if self.session_match is not None else None
        return (
            said.previous or ""
            if said is not None and said.is_threaded and self._allows_compaction and not self.is_token_count
            else ""
        )

    @property
    def is_reconstructable(self) -> bool:
        """Whether the request continues a response by its id, and its history may replace the id to be compacted."""
        said = self.session_match.conversation if self.session_match is not None else None
        kept = said is not None and said.previous is not None and said.kept == "reply"
        return kept and self._allows_compaction and not self.is_token_count and self.route.family != "litellm"

    @property
    def _allows_compaction(self) -> bool:
        return self.rules.mode == "auto" and self.controls.mode not in ("off", "observe")

    @property
    def is_subagent(self) -> bool:
        """Whether the request comes from a sub-agent."""
        return self.visible_request is not None and self.visible_request.position.delegated

    @property
    def is_rewritten(self) -> bool:
        """Whether a body other than the client's is forwarded."""
        return self.rewritten_body is not None or (self.visible_request is not None and self.visible_request.is_changed)

    @property
    def compaction_id(self) -> str:
        """The id of the compaction in force; empty if there is none."""
        return find_compaction_id(self.history) if self.history is not None else ""

    @property
    def was_folded(self) -> bool:
        """Whether a compaction is in force, or may be.

        A request that continues a response by its id may belong to a session that was compacted, or to one that is not
        on record.
        """
        place = self.session_match
        if self.compaction_id or place is None or place.conversation.kept != "reply":
            return bool(self.compaction_id)
        return place.base_node.folded if place.base_node is not None else place.conversation.previous is not None


def body_size(request: RequestState) -> int:
    """Returns the size of the body that would be forwarded, in bytes."""
    place, shown = request.session_match, request.history_with_insertions or request.history
    if place is None or shown is None or (shown.compaction is None and request.history_with_insertions is None):
        return len(request.decoded_body)
    client, now = place.conversation, shown.conversation
    size = (
        len(request.decoded_body) - sum(len(m.wire) for m in client.messages) + sum(len(m.wire) for m in now.messages)
    )
    if now.envelope is client.envelope:
        return size
    return size - sum(map(len, client.envelope.values())) + sum(map(len, now.envelope.values()))


def count_conversation_images(conversation: Conversation) -> int:
    """Counts the images of a list, those in tool results included."""
    return sum(count_images(part) for message in conversation.messages for part in message.parts)


def separate_insertion_tokens(utilization: Utilization, insertion_tokens: int) -> Utilization:
    """Counts the tokens of insertions separately from the other messages."""
    insertion_tokens = max(0, min(insertion_tokens, utilization.messages))
    return replace(utilization, messages=utilization.messages - insertion_tokens, unfolded=insertion_tokens)


def find_report_node(session_match: SessionMatch) -> PrefixNode | None:
    """Returns the recorded prefix that the request continues, if the provider's report for it still applies.

    Returns None if the provider has compacted the conversation itself since then.
    """
    at = session_match.base_index
    return (
        session_match.base_node
        if at < 0 or find_provider_compaction(session_match.conversation.messages, at + 1) < 0
        else None
    )


def provider_list_may_differ(request: RequestState, session_match: SessionMatch, store_is_available: bool) -> bool:
    """Returns whether the provider's list may differ from the client's up to where the request continues.

    A thread that is not on record, for example after an erasure, counts as different if compaction is allowed, unless
    the store is unavailable (`store_is_available` is False).
    """
    if request.is_reconstructable:
        return session_match.base_node is not None and session_match.base_node.changed
    if request.route.family == "litellm":
        return True
    return (
        session_match.base_node.changed
        if session_match.base_node is not None
        else request.releasable_thread != "" and store_is_available
    )


def find_compaction_id(history: CompactedConversation) -> str:
    """Returns the id of the compaction in a list; empty if there is none."""
    return history.compaction.id if history.compaction is not None else ""


def last_attempt(history: CompactedConversation, thread_node: PrefixNode | None = None) -> PreviousCompaction | None:
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


def is_anthropic(path: str, fields: Mapping[bytes, bytes]) -> bool:
    """Returns whether a request goes to Anthropic: its path is below `/v1/messages`, or it has `anthropic-version`."""
    return path == "/v1/messages" or path.startswith("/v1/messages/") or b"anthropic-version" in fields
