"""Finds the position of the agent that sent a request, and hides the results that it may not see.

This comes before anything is measured. From here on a request is treated as if its client had sent only the visible
messages. `Visibility.resolve` finds the agent's position in the delegation tree, decides which results of other agents
are hidden, and writes a list and a body without them. Results that were shown once stay visible, so that the prefix
stays the same; before a compaction `hide_foreign_results` hides these as well.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from accordion.delegation.branch_access import BranchViewer
from accordion.delegation.tracker import DelegationTracker
from accordion.delegation.visibility_decisions import NOTHING_HIDDEN, HiddenResults
from accordion.delegation.visibility_filter import FilteredResult, VisibilityFilter
from accordion.model.boundaries import PartPosition
from accordion.model.conversation import Conversation, ToolCall
from accordion.model.delegation import AgentPosition, DelegationNode
from accordion.model.errors import BadRequest
from accordion.model.hidden_fields import StructWithHiddenFields
from accordion.model.records import ObservedCall
from accordion.pipeline.shared_artifacts import ForeignIds, SharedArtifacts
from accordion.protocols.base import WireProtocol
from accordion.protocols.json_writing import write_body
from accordion.sessions.client_metadata import ClientMetadata, metadata_to_send, remove_own_keys
from accordion.sessions.prefix_nodes import find_deepest, make_scope
from accordion.sessions.sessions import SessionMatch, Sessions
from accordion.sessions.tenants import Caller

_log = logging.getLogger("accordion")


class VisibleRequest(StructWithHiddenFields, frozen=True):
    """A request with its agent's position and the part of it that the agent may see.

    `client_conversation` is the list that the client sent, `conversation` the visible part of it, and `body` a body
    with just that part. `is_changed` says whether the body differs from the client's.

    `hidden_results` are the results that were hidden, with their calls. `owners` maps positions in the client's list to
    the delegations that own the results there. `has_late_decisions` says that some results are visible only because
    they were shown earlier.
    """

    hidden_fields = frozenset({"body"})

    position: AgentPosition
    client_conversation: Conversation
    conversation: Conversation
    body: bytes
    is_changed: bool = False
    hidden_results: tuple[FilteredResult, ...] = ()
    owners: Mapping[PartPosition, str] = msgspec.field(default_factory=dict)
    has_late_decisions: bool = False


class Visibility(msgspec.Struct, frozen=True):
    """Resolves the positions of agents and the visible parts of their requests."""

    delegation_tracker: DelegationTracker
    visibility_filter: VisibilityFilter
    sessions: Sessions
    shared_artifacts: SharedArtifacts | None = None
    """None if hidden results are not archived and artifacts of other agents cannot be read."""

    async def resolve(
        self,
        protocol: WireProtocol,
        caller: Caller,
        client_metadata: ClientMetadata,
        conversation: Conversation,
        body: bytes,
    ) -> VisibleRequest:
        """Finds the agent's position and the visible part of its request.

        Raises BadRequest if the client declares an impossible position. After any other error the whole request is
        visible.
        """
        try:
            position = self.delegation_tracker.find_top_position(
                client_metadata, conversation
            ) or await self.delegation_tracker.find_position(caller, client_metadata, conversation)
            hidden = NOTHING_HIDDEN
            if position.path:
                scope = make_scope(caller, metadata_with_partition(client_metadata, position))
                nodes, chain = self.sessions.prefix_index.nodes, conversation.identity_chain
                last_sent_index, _ = find_deepest(nodes, scope, chain)
                hidden = await self.delegation_tracker.find_hidden(caller, position, conversation, last_sent_index)
            return self._apply_filter(protocol, caller, position, conversation, body, hidden)
        except BadRequest:
            raise
        except Exception:
            _log.exception("the agent of a request could not be determined; no results are hidden from it")
            return VisibleRequest(
                AgentPosition(is_subagent=client_metadata.is_subagent), conversation, conversation, body
            )

    async def hide_foreign_results(
        self, protocol: WireProtocol, caller: Caller, visible_request: VisibleRequest, session_match: SessionMatch
    ) -> tuple[VisibleRequest, SessionMatch]:
        """Hides all results that are now known to be other agents'.

        Used before a compaction, which changes the prefix in any case. The session stays the same.
        """
        position, client = visible_request.position, visible_request.client_conversation
        hidden = await self.delegation_tracker.find_hidden(caller, position, client, -1, recompute=True)
        visible_request = self._apply_filter(protocol, caller, position, client, visible_request.body, hidden)
        return visible_request, self.sessions.replace_list(session_match, visible_request.conversation)

    def show_hidden_results(
        self, protocol: WireProtocol, caller: Caller, visible_request: VisibleRequest, client_body: bytes
    ) -> VisibleRequest:
        """Shows the results that were hidden, and records that they were shown. `client_body` has them."""
        position, client = visible_request.position, visible_request.client_conversation
        self.delegation_tracker.record_shown(caller, position, client, visible_request.owners.keys())
        return self._apply_filter(protocol, caller, position, client, client_body, NOTHING_HIDDEN)

    async def attach_session(
        self, caller: Caller, visible_request: VisibleRequest, session_match: SessionMatch
    ) -> VisibleRequest:
        """Adds the session to the agent's position.

        A new session may have been started by a call that is open in another conversation.
        """
        try:
            is_new = session_match.base_node is None and not visible_request.client_conversation.is_kept_by_provider
            position = await self.delegation_tracker.attach_session(
                caller,
                visible_request.position,
                session_match.session.id,
                visible_request.client_conversation,
                is_new=is_new,
            )
        except Exception:
            _log.exception("the call that started a conversation could not be looked up")
            return visible_request
        return visible_request if position is visible_request.position else replace(visible_request, position=position)

    def record_calls(
        self, caller: Caller, visible_request: VisibleRequest, session: str, calls: Sequence[ObservedCall]
    ) -> None:
        """Records the calls of a completed response."""
        if calls:
            self.delegation_tracker.record_calls(
                caller, visible_request.position, session, visible_request.client_conversation, calls
            )

    async def find_foreign_ids(
        self, caller: Caller, visible_request: VisibleRequest, session_match: SessionMatch, body: bytes
    ) -> ForeignIds:
        """Returns whether an agent may read an artifact id in `body`, which has one. Never fails."""
        if self.shared_artifacts is None:
            return "none"
        try:
            viewer = BranchViewer(
                caller, visible_request.position, session_match.session.id, visible_request.client_conversation
            )
            return "readable" if await self.shared_artifacts.has_readable_id(viewer, body) else "unreadable"
        except Exception:
            _log.exception("the artifacts that an agent may read could not be determined")
            return "unreadable"

    async def find_delegations_by_call(
        self, caller: Caller, visible_request: VisibleRequest, session: str
    ) -> Mapping[str, DelegationNode]:
        """Returns the delegations that calls of this conversation started, by call id.

        Only delegations whose answers are the calls' results. An id that is used by several calls is left out. Reads
        the store; never fails.
        """
        try:
            delegations = await self.delegation_tracker.find_delegations_by_call(
                caller, visible_request.position, session
            )
            delegations = {call_id: node for call_id, node in delegations.items() if node.evidence != "handoff"}
            parts = (
                part
                for message in (visible_request.client_conversation.messages if delegations else ())
                for part in message.parts
            )
            call_counts = Counter(part.call_id for part in parts if isinstance(part, ToolCall))
            return {call_id: node for call_id, node in delegations.items() if call_counts[call_id] == 1}
        except Exception:
            _log.exception("the delegations that a conversation started could not be looked up")
            return {}

    def _apply_filter(
        self,
        protocol: WireProtocol,
        caller: Caller,
        position: AgentPosition,
        client_conversation: Conversation,
        request_body: bytes,
        hidden_results: HiddenResults,
    ) -> VisibleRequest:
        fields = client_conversation.envelope
        metadata = metadata_to_send(protocol.name, fields) if "metadata" in fields else None
        has_own_metadata = metadata != fields.get("metadata")
        if not hidden_results.owners and not has_own_metadata:
            return VisibleRequest(
                position,
                client_conversation,
                client_conversation,
                request_body,
                has_late_decisions=hidden_results.has_late_decisions,
            )
        filtered = self.visibility_filter.apply(protocol, caller.tenant, client_conversation, hidden_results.positions)
        if filtered.unremovable_results:
            self.delegation_tracker.record_shown(caller, position, client_conversation, filtered.unremovable_results)
        visible = filtered.conversation
        if has_own_metadata:
            others = {name: value for name, value in fields.items() if name != "metadata"}
            visible = replace(visible, envelope=others if metadata is None else {**fields, "metadata": metadata})
        if filtered.hidden_results:
            request_body = write_body(visible, protocol.messages_field, [message.wire for message in visible.messages])
        elif has_own_metadata:
            request_body = remove_own_keys(protocol.name, request_body, fields)
        is_changed = bool(filtered.hidden_results) or has_own_metadata
        return VisibleRequest(
            position,
            client_conversation,
            visible,
            request_body,
            is_changed,
            filtered.hidden_results,
            hidden_results.owners,
            hidden_results.has_late_decisions,
        )


def metadata_with_partition(client_metadata: ClientMetadata, position: AgentPosition) -> ClientMetadata:
    """Returns the client's metadata with the partition of the agent's position.

    Requests that share a label but not a position thus get different scopes.
    """
    return (
        replace(client_metadata, partition="\n".join(filter(None, (client_metadata.partition, position.partition))))
        if position.partition
        else client_metadata
    )
