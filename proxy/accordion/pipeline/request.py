"""The stages of one request: each step of the pipeline takes a request at one stage and returns it at the next.

    ReceivedRequest      the body is read (receive.py)
    IdentifiedRequest    its agent and its session are known, and results that it may not see are hidden (identify.py)
    MeasuredRequest      earlier compactions are applied again, tokens are counted, the policy has decided (measure.py)
    PreparedRequest      compacted and rendered, or unchanged: ready to be sent (compact.py)

Each stage is a subclass of the one before it, so it has everything that was known before. A `PassthroughRequest` is
forwarded without being read or measured. All values are immutable, except the frames of a Bedrock stream. A function
that changes nothing returns the same object; callers compare with `is`.

The list of messages has these forms, each made of the one before:

    client_conversation      as the client sent it
    conversation             the visible part of it: results that concern other agents are hidden
    history                  earlier compactions are applied, and later the new one
    history_with_insertions  our tool, tool rounds, excerpts and what features insert; None if there are none
    forwarded_history        the one of the last two that is sent
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec.structs import astuple, replace

from accordion.accounting.holdout import HoldoutAssignment
from accordion.compaction.policy import Mode
from accordion.compaction.request import RequestBudgets, ThinkingMode
from accordion.compaction.request_controls import RequestControls, thinking_mode
from accordion.compaction.strategies.base import Strategy
from accordion.model.budget import CompactionForm, Decision, HoldoutGroup, Thresholds, TokenLimits, Utilization, Window
from accordion.model.compaction import Cause, CompactedConversation
from accordion.model.conversation import Conversation, ProviderState
from accordion.model.delegation import node_kind
from accordion.model.http import Inbound
from accordion.model.ports import Route, UpstreamResponse
from accordion.model.records import CompactionOutcome, RecallUsage
from accordion.model.tenant import ConversationRef
from accordion.pipeline.shared_artifacts import ForeignIds
from accordion.pipeline.visibility import VisibleRequest
from accordion.protocols.base import WireProtocol
from accordion.protocols.bedrock_frames import BedrockFrames
from accordion.sessions.client_metadata import ClientMetadata
from accordion.sessions.sessions import SessionMatch
from accordion.sessions.tenants import Caller

# Estimates are rarely wrong by more than a fifth, and never by half.
_NEAR_RATIO = 0.5


class CompactionRules(msgspec.Struct, frozen=True):
    """The compaction settings for one model and one kind of agent."""

    thresholds: Thresholds = Thresholds()
    mode: Mode = "auto"
    budgets: RequestBudgets = RequestBudgets()
    summary_instructions: str = ""
    """The user's instructions for the model that writes summaries."""


class IncomingRequest(msgspec.Struct, frozen=True):
    """A request with its caller, its protocol and its route."""

    inbound: Inbound
    caller: Caller
    started_at: float
    """The time of arrival, in seconds by the monotonic clock."""
    protocol: WireProtocol
    route: Route
    decoded_body: bytes
    """The body without content encoding; empty if it was not decoded or the encoding is unknown.

    After identification it is a body with the visible messages only.
    """


class PassthroughRequest(IncomingRequest, frozen=True):
    """A request that is forwarded without being measured.

    Nothing in it is changed, except that results that its agent may not see stay hidden.
    """

    visible_request: VisibleRequest | None = None
    """None if the body was not read."""
    is_unreadable: bool = False
    """Whether the body should have been read and could not be."""
    unread_content: str = ""
    """The content for which the body is not read, such as `more than the 20,000 messages of …`."""


class ReceivedRequest(IncomingRequest, frozen=True):
    """A request whose body was read."""

    client_conversation: Conversation
    """The conversation that the client sent."""
    client_metadata: ClientMetadata
    controls: RequestControls
    beta: str
    """The client's `anthropic-beta` header."""
    actual_model: str
    """The model that the provider runs. It determines how tokens are counted."""
    is_token_count: bool
    """Whether the request only asks for its number of tokens."""
    handler: RequestHandler | None
    """The part of a feature in this request; None for most requests."""
    frames: BedrockFrames | None
    """The frames in which provider and client get streams; None if they get event streams. The only part that changes:
    all stages share it."""
    is_dry_run: bool
    """Whether the request only shows what a compaction would do: nothing is stored or sent, and no model is asked."""

    @property
    def named_artifacts(self) -> tuple[str, ...]:
        """The artifacts that the request itself names, and that the model may read."""
        return self.handler.artifacts if self.handler is not None else ()


class IdentifiedRequest(ReceivedRequest, frozen=True):
    """A request whose agent and session are known."""

    visible_request: VisibleRequest
    """The agent's position and the part of the list that it may see."""
    session_match: SessionMatch
    """The session, with the visible part of the list."""

    @property
    def conversation(self) -> Conversation:
        """The visible part of the client's conversation."""
        return self.session_match.conversation

    @property
    def ref(self) -> ConversationRef:
        """The agent's conversation, by which its compactions and insertions are stored."""
        return ConversationRef(self.caller.tenant, self.session_match.scope, self.session_match.session.id)

    @property
    def earlier_history(self) -> bytes:
        """The chain key of the history that the provider keeps before the request; empty if it is not known."""
        base_node = self.session_match.base_node
        return base_node.chain if base_node is not None else b""

    @property
    def is_subagent(self) -> bool:
        """Whether the request comes from a sub-agent."""
        return self.visible_request.position.is_subagent

    @property
    def tree_name(self) -> str:
        """The name of the agent tree that the request belongs to; empty if it is not known.

        That is the client's own name for the session. It does not change when the client compacts its own history, and
        sub-agents send the same name, or name it as their parent. Without such a name it is the session of the main
        agent.
        """
        position, session = self.visible_request.position, self.session_match.session.id
        root = position.path[0] if position.path else ""
        if node_kind(root) in ("metadata", "declared"):
            # Behind the slash is the agent within the client's session.
            return root.partition("/")[0]
        if self.client_metadata.names_session:
            return f"m:{self.client_metadata.session}"
        return root or (f"s:{session}" if session else "")

    @property
    def thinking(self) -> ThinkingMode:
        """How the thinking blocks of the request may be treated."""
        return thinking_mode(self.conversation, self.beta, self.actual_model)


class MeasuredRequest(IdentifiedRequest, frozen=True):
    """A request that was counted, and the decision about it.

    `history` is the visible list with earlier compactions applied. `history_with_insertions` is the same list with our
    tool, tool rounds and recalled excerpts added. It differs from `history` if a compaction is in force, artifacts of
    other agents can be read, or a feature may insert content. Utilization and counts are of the list that is forwarded.
    """

    window: Window
    rules: CompactionRules
    limits: TokenLimits
    history: CompactedConversation
    utilization: Utilization
    decision: Decision
    history_with_insertions: CompactedConversation | None = None
    """None if the list is forwarded as it came."""
    compaction_form: CompactionForm = "free"
    """What a compaction of this request may do."""
    tool_name: str = ""
    """The name under which the model may call our tool; empty if it is not offered."""
    uncorrected_tokens: int = 0
    """Our own count before any correction, in tokens."""
    text_tokens: int = 0
    """The tokens of that count that come from text, not from estimates for media or unknown content."""
    is_estimated: bool = False
    """Whether the tokens of the text were estimated from samples, so that the request need not wait for a count."""
    foreign_ids: ForeignIds = "none"
    """Whether the list contains artifact ids of other agents. For those that it may read, our tool is offered."""
    may_hold_insertions: bool = False
    """Whether the list may hold what a feature inserts, or ask for it (mentions.py)."""
    request_with_id: MeasuredRequest | None = None
    """The request as it came, with the id of the provider's history, if the history was put in place of the id."""
    holdout_assignment: HoldoutAssignment | None = None
    """The session's group of the hold-out; None if there is no hold-out."""

    @property
    def forwarded_history(self) -> CompactedConversation:
        """The list that is forwarded."""
        return self.history if self.history_with_insertions is None else self.history_with_insertions

    @property
    def is_near_window(self) -> bool:
        """Whether an overflow is possible.

        True if the window is unknown, or half full by the estimate or by our own count.
        """
        if not self.window.is_known or self.largest_ratio >= _NEAR_RATIO:
            return True
        return self.uncorrected_tokens >= _NEAR_RATIO * self.window.size

    @property
    def largest_ratio(self) -> float:
        """The share of the window that the request would take with all the output that it asks for."""
        used, window = self.utilization, self.window.size
        output = max(used.reserved_output, min(self.conversation.max_output or 0, window))
        return (used.tokens + output) / window if window else 0.0

    @property
    def allows_compaction(self) -> bool:
        """Whether compaction is switched on, and not only reported."""
        return not {"off", "observe"} & {self.rules.mode, self.controls.mode}

    @property
    def is_observed(self) -> bool:
        """Whether a compaction would only be reported."""
        modes = (self.rules.mode, self.controls.mode)
        return "observe" in modes and "off" not in modes

    @property
    def is_compactable(self) -> bool:
        """Whether the request may be changed at all.

        False if compaction is switched off or only reported, or if the provider keeps the earlier messages.
        """
        return self.allows_compaction and not self.conversation.is_kept_by_provider

    @property
    def compared_group(self) -> HoldoutGroup:
        """The group with which a request enters its session in the comparison; empty if it does not."""
        by_id = self.request_with_id
        return (by_id.decision.group if by_id is not None else "") or self.decision.group

    @property
    def droppable_thread_id(self) -> str:
        """The id of the thread that the request continues, if it may be dropped to compact; else empty."""
        if not self.conversation.is_threaded or not self.allows_compaction or self.is_token_count:
            return ""
        return self.conversation.continued_id

    @property
    def is_reconstructable(self) -> bool:
        """Whether the request continues a response or a conversation object by its id, and its history may replace the
        id to be compacted."""
        is_continued = self.conversation.is_kept_by_provider and self.conversation.provider_state in (
            "response",
            "object",
        )
        return is_continued and self.allows_compaction and not self.is_token_count and not self.route.is_translated

    @property
    def client_provider_state(self) -> ProviderState:
        """The kind of state that the provider keeps for the request as it came."""
        return (self.request_with_id or self).conversation.provider_state

    @property
    def may_omit_end(self) -> bool:
        """Whether the client may leave the end of this list out of its next request."""
        is_own_list = self.request_with_id is None and not self.is_token_count
        return is_own_list and self.session_match.may_omit_end

    @property
    def available_tokens(self) -> int:
        """The tokens left below the hard limit."""
        return self.limits.hard - self.utilization.occupied_tokens

    @property
    def compaction_id(self) -> str:
        """The id of the compaction in force; empty if there is none."""
        return find_compaction_id(self.history)

    @property
    def may_have_compaction(self) -> bool:
        """Whether a compaction is in force, or may be.

        A request that continues a response by its id may belong to a session that was compacted, or to one that is not
        on record.
        """
        if self.compaction_id or self.conversation.provider_state != "response":
            return bool(self.compaction_id)
        base_node = self.session_match.base_node
        return base_node.was_compacted if base_node is not None else self.conversation.is_kept_by_provider

    @property
    def body_size(self) -> int:
        """The size of the body that would be forwarded, in bytes."""
        client, forwarded = self.conversation, self.forwarded_history.conversation
        if self.history.compaction is None and self.history_with_insertions is None:
            return len(self.decoded_body)
        size = len(self.decoded_body) + _list_size(forwarded) - _list_size(client)
        if forwarded.envelope is client.envelope:
            return size
        return size - sum(map(len, client.envelope.values())) + sum(map(len, forwarded.envelope.values()))


class PreparedRequest(MeasuredRequest, frozen=True):
    """A request that is ready to be sent."""

    rewritten_body: bytes | None = None
    """The body that is forwarded in place of the client's; None if the client's body is forwarded unchanged."""
    compaction_outcome: CompactionOutcome | None = None
    is_stored_locally_only: bool = False
    """Whether content that a compaction removed could only be stored on this machine for now."""
    base_history: CompactedConversation | None = None
    """The history that this request's own compaction was made from; None if none was made."""
    recall_usage: RecallUsage | None = None
    """The content that was recalled for this request."""

    @property
    def needs_no_model(self) -> bool:
        """Whether the response comes from the handler, so that nothing is sent."""
        return self.handler is not None and self.handler.is_answering

    @property
    def forwarded_body(self) -> bytes:
        """The body that is forwarded, without content encoding."""
        return self.decoded_body if self.rewritten_body is None else self.rewritten_body


# -- features ----------------------------------------------------------------------------------------------------------


class Compact(Protocol):
    """Compacts a request as decided; see CompactionStep.compact."""

    async def __call__(
        self, request: MeasuredRequest, cause: Cause = "automatic", strategies: Sequence[Strategy] = ()
    ) -> PreparedRequest:
        """Returns the request as it is to be forwarded."""


class RequestHandler(msgspec.Struct, frozen=True):
    """The part of a feature in one request. What it does not override changes nothing.

    The request carries it through its stages. A handler that learns something puts another one into the request.
    """

    artifacts: tuple[str, ...] = ()
    """The artifacts that the request itself names, and that the model may read."""

    @property
    def is_client_compaction(self) -> bool:
        """Whether the request asks for nothing but a compaction."""
        return False

    @property
    def needs_count(self) -> bool:
        """Whether a token decides about more than the thresholds, so that an estimate is not enough."""
        return False

    @property
    def summary_instructions(self) -> str:
        """The client's own instructions for a summary; empty for none."""
        return ""

    @property
    def is_answering(self) -> bool:
        """Whether `answer` has the response."""
        return False

    async def prepare(self, request: MeasuredRequest, compact: Compact) -> PreparedRequest:
        """Makes the request ready to be sent, in place of `compact`."""
        return await compact(request)

    def answer(self, request: PreparedRequest) -> UpstreamResponse | None:
        """Returns the response, in place of sending the request; None if it is to be sent."""
        return None

    async def report(self, request: PreparedRequest, response: UpstreamResponse) -> UpstreamResponse:
        """Returns the response with what the feature adds to it, or as it came."""
        return response

    def without_list(self) -> RequestHandler:
        """Returns the handler of the request after its compacted list was replaced, since the provider refused it."""
        return self


SendableRequest = PassthroughRequest | PreparedRequest
"""A request that can be sent."""

Stage = TypeVar("Stage", bound=IncomingRequest)


def advance(stage: type[Stage], request: IncomingRequest, **known: Any) -> Stage:
    """Returns the request at a later stage: everything that is known of it so far, and `known`.

    A request that has reached the stage before keeps its other fields. Raises TypeError if a field of the stage is
    missing.
    """
    if isinstance(request, stage):
        return replace(request, **known)
    # The fields of a stage begin with those of the stage before it. By name this takes ten times as long.
    return stage(*astuple(request), **known)


def pass_through(request: ReceivedRequest, visible_request: VisibleRequest) -> PassthroughRequest:
    """Returns the request as one that is forwarded without being measured."""
    return PassthroughRequest(
        inbound=request.inbound,
        caller=request.caller,
        started_at=request.started_at,
        protocol=request.protocol,
        route=request.route,
        decoded_body=visible_request.body,
        visible_request=visible_request,
    )


def _list_size(conversation: Conversation) -> int:
    return sum(len(message.wire) for message in conversation.messages)


def find_compaction_id(history: CompactedConversation) -> str:
    """Returns the id of the compaction in a list; empty if there is none."""
    return history.compaction.id if history.compaction is not None else ""
