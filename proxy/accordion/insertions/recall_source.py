"""The interface of everything that recalls content into a request: session memories, archived excerpts, memories."""

from __future__ import annotations

from typing import Protocol

import msgspec

from accordion.model.compaction import CompactedConversation
from accordion.model.conversation import Conversation
from accordion.model.records import RecallUsage
from accordion.model.tenant import ConversationRef
from accordion.protocols.base import WireProtocol


class RecallRequest(msgspec.Struct, frozen=True):
    """A request that content may be recalled into.

    `history` is the compacted history, `history_with_insertions` the same as it would be forwarded, `uncompacted` the
    same without any compaction. `last_sent_index` is the index of the last message of the request before (-1: none).
    `available_tokens` are left below the hard limit; `window` is the size of the window in tokens.
    `may_hold_insertions`: the list may hold what a feature inserts, or ask for it. `allows_user_after_results`: the
    provider takes a user message between results and the calls that follow. `project` is the project that the request
    names (None: none). `started_at` is when the request came, in seconds by the monotonic clock.
    """

    protocol: WireProtocol
    ref: ConversationRef
    model: str
    uncompacted: Conversation
    history: CompactedConversation
    history_with_insertions: CompactedConversation
    last_sent_index: int
    available_tokens: int
    window: int
    is_subagent: bool
    may_hold_insertions: bool
    allows_user_after_results: bool
    project: str | None
    started_at: float


class RecallSource(Protocol):
    """Something that recalls content into requests."""

    @property
    def needs_proxy(self) -> bool:
        """Whether it asks for more than the conversation and its archive, which only a running proxy has."""

    async def recall(self, request: RecallRequest) -> RecallUsage | None:
        """Records an insertion for this request and all later ones; returns its usage.

        Returns None if there is nothing to recall, or if the request has the insertion already. Never raises.
        """
