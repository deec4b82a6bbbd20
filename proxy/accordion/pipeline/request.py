"""What is known of one request: the value that is passed from the gauge to the fold, to sending and to the ledger."""

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

# Estimates are seldom off by more than a fifth, and never by half.
_NEAR_RATIO = 0.5

_UNMEASURED = Utilization(0)
_UNREAD = Decision("pass", "not read")


@dataclass(frozen=True, slots=True)
class CompactionRules:
    """What the settings say about one model's folding, for one kind of agent."""

    thresholds: Thresholds = Thresholds()
    mode: Mode = "auto"
    budgets: RequestBudgets = RequestBudgets()


class RequestState(msgspec.Struct, frozen=True):
    """What is known of one request. `place` is None where it was not read; it is forwarded all the same.

    `folded` is the list as earlier folds left it, `dressed` the same with our tool, weaves and recalls, where a fold is
    in force, there is something of others to read, or a memory may stand in it; utilization and counts are of what
    is forwarded. More is learnt step by step, and each step makes a new one: `msgspec.structs.replace` does that twenty
    times as fast as that of dataclasses.
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
    """The part of it that was counted and not reckoned: all but media and what is not understood."""
    decoded_body: bytes = b""
    """The body without any content encoding; empty where nobody tried to read it, or the encoding is not known."""
    limits: TokenLimits | None = None
    decision: Decision = _UNREAD
    beta: str = ""
    request_id: str = ""
    history: CompactedConversation | None = None
    controls: RequestControls = RequestControls()
    actual_model: str = ""
    """The model that is really asked, where tokens are counted."""
    is_token_count: bool = False
    """Whether the request only asks how many tokens it would be."""
    rewritten_body: bytes | None = None
    """The body that is forwarded in place of the client's; None where that goes on as it came."""
    compaction_outcome: CompactionOutcome | None = None
    rules: CompactionRules = CompactionRules()
    is_unreadable: bool = False
    """Whether the body should have been read and could not be."""
    unread: str = ""
    """What there is too much of in a body that is not read because of its size."""
    is_stored_locally_only: bool = False
    """Whether what left the window could only be kept locally for now."""
    history_with_insertions: CompactedConversation | None = None
    """None where the list goes out as it came."""
    tool_name: str = ""
    """The name under which the reply may call our tool; empty where it may not."""
    recall_usage: RecallUsage | None = None
    """What was recalled for this request."""
    started_at: float = 0.0
    """When it came, in seconds by the monotonic clock; 0 where nothing is kept of it."""
    can_read_artifacts: bool | None = None
    """Whether our tool is offered for ids that others' texts name in its list; None where there are none."""
    may_hold_memories: bool = False
    """Whether a memory may stand in the list, or be asked for."""
    original_request: RequestState | None = None
    """The request as it came, where what led to a reply that the provider keeps was put in place of its id."""
    visible_request: VisibleRequest | None = None
    """Where it sits among the agents, and what of its list it sees. `plain` and `place` are of what it sees."""

    @property
    def is_near_window(self) -> bool:
        """Whether an overflow is possible: the window is half full, by the estimate or by our own count, or not
        known."""
        window = self.window
        if window is None or not window.is_known or self.utilization.ratio >= _NEAR_RATIO:
            return True
        return self.uncorrected_tokens >= _NEAR_RATIO * window.size

    @property
    def is_compactable(self) -> bool:
        """Whether the request may be changed at all: folding is not switched off, or only to be reported, and the
        provider does not keep what came before."""
        kept = self.session_match is not None and self.session_match.conversation.previous is not None
        return self._allows_compaction and not kept

    @property
    def releasable_thread(self) -> str:
        """The id of the thread that it goes on from and that may be let go of for a fold; empty where there is none."""
        said = self.session_match.conversation if self.session_match is not None else None
        return (
            said.previous or ""
            if said is not None and said.is_threaded and self._allows_compaction and not self.is_token_count
            else ""
        )

    @property
    def is_reconstructable(self) -> bool:
        """Whether it goes on from a reply by its id, and what led to that may be put in its place to be folded."""
        said = self.session_match.conversation if self.session_match is not None else None
        kept = said is not None and said.previous is not None and said.kept == "reply"
        return kept and self._allows_compaction and not self.is_token_count and self.route.family != "litellm"

    @property
    def _allows_compaction(self) -> bool:
        return self.rules.mode == "auto" and self.controls.mode not in ("off", "observe")

    @property
    def is_subagent(self) -> bool:
        """Whether a sub-agent asks."""
        return self.visible_request is not None and self.visible_request.position.delegated

    @property
    def is_rewritten(self) -> bool:
        """Whether another body than the client's leaves."""
        return self.rewritten_body is not None or (self.visible_request is not None and self.visible_request.is_changed)

    @property
    def compaction_id(self) -> str:
        """The id of the compaction in force; empty where there is none."""
        return find_compaction_id(self.history) if self.history is not None else ""

    @property
    def was_folded(self) -> bool:
        """Whether a compaction is in force, or may be: a request that goes on from a response by its id may be so of a
        session that was folded, or of one that is not on record."""
        place = self.session_match
        if self.compaction_id or place is None or place.conversation.kept != "reply":
            return bool(self.compaction_id)
        return place.base_node.folded if place.base_node is not None else place.conversation.previous is not None


def body_size(request: RequestState) -> int:
    """The size of the body that would go out, in bytes."""
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
    """How many images stand in a list, those in tool results included."""
    return sum(count_images(part) for message in conversation.messages for part in message.parts)


def separate_insertion_tokens(utilization: Utilization, insertion_tokens: int) -> Utilization:
    """The count of a list, with by how many tokens it is longer than the bare one told apart."""
    insertion_tokens = max(0, min(insertion_tokens, utilization.messages))
    return replace(utilization, messages=utilization.messages - insertion_tokens, unfolded=insertion_tokens)


def find_report_node(session_match: SessionMatch) -> PrefixNode | None:
    """The place on record that a request goes on from, where what was reported there says something of it: not where
    the provider has gone on from a compaction of its own since."""
    at = session_match.base_index
    return (
        session_match.base_node
        if at < 0 or find_provider_compaction(session_match.conversation.messages, at + 1) < 0
        else None
    )


def provider_list_may_differ(request: RequestState, session_match: SessionMatch, store_is_available: bool) -> bool:
    """Whether the provider may have another list than the client's where a request goes on. A thread that is not on
    record, after an erasure maybe, is taken for such where folds are made; unless the store is not `telling`."""
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
    """The id of the compaction in a list; empty where nothing was folded."""
    return history.compaction.id if history.compaction is not None else ""


def last_attempt(history: CompactedConversation, thread_node: PrefixNode | None = None) -> PreviousCompaction | None:
    """What the last fold of this history came to; of one that is in a thread, what its place tells of it."""
    made = history.compaction
    if made is None:
        return (
            PreviousCompaction(thread_node.tried, thread_node.tried)
            if thread_node is not None and thread_node.tried
            else None
        )
    return PreviousCompaction(made.before, made.after)


def is_anthropic(path: str, fields: Mapping[bytes, bytes]) -> bool:
    """Whether a request goes to the Anthropic upstream: below `/v1/messages`, or marked by `anthropic-version`."""
    return path == "/v1/messages" or path.startswith("/v1/messages/") or b"anthropic-version" in fields
