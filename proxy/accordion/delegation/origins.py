"""Finds the origin of conversations without delegation metadata: the open call, if any, that began them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import replace

from accordion.delegation.open_calls import LEAST, OpenCall, OpenCalls, opening_texts
from accordion.delegation.tree import DelegationTree, EdgeRefused
from accordion.model.cache import BoundedCache, string_size
from accordion.model.conversation import Conversation
from accordion.model.delegation import TOP, DelegationNode, Evidence
from accordion.model.ports import Clock, Tasks

# Seconds between a conversation's beginning and the search among the open calls of other workers. Within this time the
# workers write their newest calls, and more conversations begin that are searched together. A search for each takes
# as long as the rest of a small request, and most conversations have no origin.
_GATHER_SECONDS = 0.15
# Seconds after which a conversation's origin is final: other workers have searched too, and nodes that were missing in
# the store have been read again (tree.py).
_FINAL_SECONDS = 1.5
_ENTRY_SIZE = 400
"""Bytes of memory that a conversation takes besides its session and texts."""


class _WaitingConversation(msgspec.Struct, frozen=True):
    """A conversation whose origin another worker may still record.

    `texts` are its opening texts; they are empty where it did not begin here, and then only its node may appear.
    `added_at` and `looked_up_at` (the last read of the store) are in seconds of the monotonic clock.
    """

    agent: str
    texts: list[str]
    added_at: float
    looked_up_at: float


@dataclass(slots=True)
class OriginFinder:
    """Finds and caches the nodes of this worker's sessions. Without `sleep` each conversation is searched at once."""

    clock: Clock
    tasks: Tasks
    delegation_tree: DelegationTree
    open_calls: OpenCalls
    sleep: Callable[[float], Awaitable[object]] | None = None
    capacity: int = 4 * 2**20
    waiting_capacity: int = 3 * 2**20
    _sessions: BoundedCache[str, str] = field(init=False)
    """The node of each session, within `capacity` bytes; empty for a session without a node."""
    _waiting: BoundedCache[str, _WaitingConversation] = field(init=False)
    """By session, conversations without a known call, which another worker may not have written yet. They are bounded
    by `waiting_capacity` in bytes, because they have their opening texts."""
    _pending_lookups: dict[str, list[str]] = field(default_factory=dict)
    """By tenant, the sessions whose first search is scheduled."""

    def __post_init__(self) -> None:
        self._sessions = BoundedCache(self.capacity, string_size)
        self._waiting = BoundedCache(
            self.waiting_capacity, lambda session, waiting: _ENTRY_SIZE + string_size(session, *waiting.texts)
        )

    async def find(
        self, tenant_key: bytes, tenant: str, session_id: str, agent: str, conversation: Conversation, *, is_new: bool
    ) -> DelegationNode | None:
        """Returns the node of a session, or None.

        The store is searched for the origin in the background, so the result is available to the next request.
        """
        node = self._sessions.get(session_id)
        if node is None:
            if calls := self._add_session(tenant_key, tenant, session_id, agent, conversation, is_new=is_new):
                await self._infer_parent(tenant, session_id, agent, calls)
            elif not is_new:
                await self._load_known_node(tenant, session_id)
            # The session may have been erased meanwhile.
            node = self._sessions.get(session_id) or TOP
        elif len(self._waiting) and (waiting := self._waiting.get(session_id)) is not None:
            self._retry_lookup(tenant_key, tenant, session_id, waiting)
        if not node:
            return None
        await self.delegation_tree.load(tenant, (node,))
        return self.delegation_tree.get(tenant, node)

    def with_opening_call(self, tenant: str, node: DelegationNode, conversation: Conversation) -> DelegationNode:
        """Returns a node with the call that began it, if there is exactly one and it agrees with the node's parent."""
        calls = self.open_calls.find_candidates(tenant, opening_texts(conversation), node.session, self.clock.now())
        agrees = len(calls) == 1 and node.parent in (TOP, calls[0].node, calls[0].home, f"s:{calls[0].session}")
        return _with_call(node, calls[0]) if agrees else node

    def forget(self) -> None:
        """Clears the caches after an erasure, so that everything is read from the store again."""
        self._sessions.clear()
        self._waiting.clear()
        self._pending_lookups.clear()

    def _add_session(
        self, tenant_key: bytes, tenant: str, session_id: str, agent: str, conversation: Conversation, *, is_new: bool
    ) -> Sequence[OpenCall]:
        """Adds a session that is new to this worker; returns the calls that may have begun it."""
        self._remember_node(session_id, TOP)
        if not is_new:
            self._add_waiting(session_id, agent, [])
            return ()
        texts = opening_texts(conversation)
        if calls := self.open_calls.find_candidates(tenant, texts, session_id, self.clock.now()):
            return calls
        if max(map(len, texts), default=0) >= LEAST:
            self._add_waiting(session_id, agent, texts)
            if tenant not in self._pending_lookups:
                self._pending_lookups[tenant] = []
                self.tasks.spawn(self._look_up_together(tenant_key, tenant), "delegation")
            self._pending_lookups[tenant].append(session_id)
        return ()

    def _retry_lookup(self, tenant_key: bytes, tenant: str, session_id: str, waiting: _WaitingConversation) -> None:
        now = self.clock.monotonic()
        if now - waiting.added_at >= _FINAL_SECONDS:
            self._waiting.discard(session_id)
        elif now - waiting.looked_up_at >= _GATHER_SECONDS:
            self._waiting[session_id] = replace(waiting, looked_up_at=now)
        else:
            return
        lookup = (
            self._look_up_in_store(tenant_key, tenant, {session_id: waiting})
            if waiting.texts
            else self._load_known_node(tenant, session_id)
        )
        self.tasks.spawn(lookup, "delegation")

    async def _look_up_together(self, tenant_key: bytes, tenant: str) -> None:
        """Searches the open calls of other workers for all conversations that began within the last moment."""
        if self.sleep is not None:
            await self.sleep(_GATHER_SECONDS)
        sessions = self._pending_lookups.pop(tenant, ())
        # For some of them a second request has found the origin already.
        still_waiting = {
            session: waiting for session in sessions if (waiting := self._waiting.get(session)) is not None
        }
        if still_waiting:
            await self._look_up_in_store(tenant_key, tenant, still_waiting)

    async def _load_known_node(self, tenant: str, session_id: str) -> None:
        """Loads a session's node from the store, where another worker or an earlier run has recorded it."""
        node = f"s:{session_id}"
        await self.delegation_tree.load(tenant, (node,))
        if self.delegation_tree.get(tenant, node) is not None:
            self._waiting.discard(session_id)
            self._remember_node(session_id, node)

    async def _look_up_in_store(
        self, tenant_key: bytes, tenant: str, waiting: Mapping[str, _WaitingConversation]
    ) -> None:
        """Searches the open calls of other workers for the calls that began conversations."""
        texts_by_session = {session: conversation.texts for session, conversation in waiting.items()}
        candidates = await self.open_calls.find_in_store(tenant_key, tenant, texts_by_session, self.clock.now())
        for session, calls in candidates.items():
            self._waiting.discard(session)
            await self._infer_parent(tenant, session, waiting[session].agent, calls)

    async def _infer_parent(self, tenant: str, session_id: str, agent: str, candidates: Sequence[OpenCall]) -> None:
        """Adds a session's node below the caller of its only candidate; of several candidates records the number."""
        node = DelegationNode(f"s:{session_id}", agent=agent, session=session_id, candidates=len(candidates))
        if len(candidates) == 1:
            node = _with_call(replace(node, candidates=0), candidates[0])
        with suppress(EdgeRefused):
            await self.delegation_tree.join(tenant, node)
            self._remember_node(session_id, node.id)
            if node.parent == f"s:{candidates[0].session}" and self.delegation_tree.get(tenant, node.parent) is None:
                parent = DelegationNode(node.parent, session=candidates[0].session, at=self.clock.now())
                self.delegation_tree.save(tenant, parent)

    def _add_waiting(self, session_id: str, agent: str, texts: list[str]) -> None:
        now = self.clock.monotonic()
        self._waiting[session_id] = _WaitingConversation(agent, texts, now, now)

    def _remember_node(self, session_id: str, node: str) -> None:
        self._sessions[session_id] = node


def _with_call(node: DelegationNode, call: OpenCall) -> DelegationNode:
    """Returns the node with this call as its origin."""
    parent = node.parent or call.node or f"s:{call.session}"
    evidence: Evidence = node.evidence if node.parent else "tool" if call.is_delegating else "argument"
    return replace(node, parent=parent, evidence=evidence, call_id=call.call_id)
