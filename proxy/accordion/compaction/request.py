"""The input and the output of the compactor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from accordion.model.budget import CompactionForm, Decision, TokenLimits, Utilization, Window
from accordion.model.compaction import Cause, CompactedConversation
from accordion.model.conversation import Conversation, Message
from accordion.model.delegation import DelegationNode
from accordion.model.hidden_fields import StructWithHiddenFields
from accordion.model.ports import SummaryCaller
from accordion.model.records import CompactionOutcome
from accordion.model.tenant import ConversationRef
from accordion.protocols.base import WireProtocol

ThinkingMode = Literal["none", "free", "bound", "droppable"]
"""How thinking blocks may be treated: `none`: there are none; `free`: each may stay or go; `bound`: each is valid only
behind its exact prefix; `droppable`: bound, but the request lets the provider drop blocks that do not match."""


class RequestBudgets(msgspec.Struct, frozen=True):
    """The two limits beside tokens: bytes of the whole body, and number of images. 0 means no limit."""

    max_body_bytes: int = 0
    max_images: int = 0


class CompactionRequest(StructWithHiddenFields, frozen=True):
    """A request with everything that its compaction needs.

    `uncompacted` is the visible conversation without any compaction, `history` the one with earlier compactions
    applied. `actual_model` is the model that receives the
    request; tokens are counted for it. `started_at` is when the request came, in seconds by the monotonic clock: if the
    session was erased since, nothing is stored. `body_size` is in bytes.
    """

    hidden_fields = frozenset({"provider_items", "summary_instructions", "earlier_messages"})

    ref: ConversationRef
    protocol: WireProtocol
    uncompacted: Conversation
    history: CompactedConversation
    utilization: Utilization
    window: Window
    limits: TokenLimits
    decision: Decision
    actual_model: str
    started_at: float
    request_id: str = ""
    cause: Cause = "automatic"
    form: CompactionForm = "free"
    """What the compaction may do."""
    body_size: int = 0
    budgets: RequestBudgets = RequestBudgets()
    thinking: ThinkingMode = "none"
    pinned_call_ids: frozenset[str] = frozenset()
    """Call ids pinned by the request or the API."""
    summary_caller: SummaryCaller | None = None
    """None if no model may be asked for a summary."""
    tool_tokens: int = 0
    """Tokens that the compaction itself adds: our tool, which is offered from the first compaction on."""
    is_dry_run: bool = False
    """Whether the request only asks for its token count, or what a compaction would do: then nothing is stored, and no
    model is asked."""
    is_summary_estimated: bool = False
    """Whether an extract takes the place of a summary that a model has not written yet."""
    is_subagent: bool = False
    """Whether a sub-agent sends the request: then all messages before its first reply stay verbatim."""
    delegations_by_call: Mapping[str, DelegationNode] = msgspec.field(default_factory=dict)
    """The delegations that calls of this conversation started, by call id."""
    provider_items: Mapping[bytes, Message] = msgspec.field(default_factory=dict)
    """Full messages for items that the client only references by id, by the keys of the referencing messages."""
    history_with_insertions: CompactedConversation | None = None
    """The history as it would be forwarded, with read-backs and recalls; None if it equals `history`."""
    summary_instructions: str = ""
    """The user's and the client's own instructions for a model's summary."""
    earlier_messages: tuple[Message, ...] = ()
    """The user's messages of the lists that the client's own compactions replaced."""

    @property
    def conversation_ref(self) -> ConversationRef:
        """The conversation that is compacted. Without a session its first message tells it from others."""
        ref = self.ref
        return ref if ref.session else ConversationRef(ref.tenant, ref.scope, self.uncompacted.chain[0].hex())

    @property
    def must_have_summary(self) -> bool:
        """Whether the request waits for a model's summary instead of being forwarded unchanged."""
        return self.decision.must_succeed or self.decision.is_requested

    @property
    def can_pass_meanwhile(self) -> bool:
        """Whether the request is forwarded unchanged while a model writes. At a trigger of 0 an extract is used."""
        return not self.must_have_summary and self.decision.trigger > 0


class CompactionResult(msgspec.Struct, frozen=True):
    """The history to forward, and the outcome to report.

    `is_stored_locally_only`: the removed content is only in the local spool so far, because the store is unavailable.
    `is_waiting_for_summary`: a model still writes the summary of the compaction, and the request passes meanwhile.
    """

    history: CompactedConversation
    outcome: CompactionOutcome | None = None
    is_stored_locally_only: bool = False
    is_waiting_for_summary: bool = False
