"""Remembers the hand-off state of each list: a cache over the store, so that only new messages are read.

States without any hand-off are kept in memory only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import msgspec
from msgspec.structs import replace

from accordion.delegation.handoffs import (
    NO_HANDOFF,
    HandoffState,
    ToolPatterns,
    advance,
    identify_sender,
    read_tool_names,
)
from accordion.model.cache import ENTRY, BoundedCache
from accordion.model.conversation import Conversation, ToolCall
from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Key, KeyValueStore, Outbox
from accordion.model.records import ObservedCall
from accordion.sessions.prefix_nodes import find_deepest

# The number of newest messages whose state is looked up in the store.
_MAX_LOOKUPS = 64

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(HandoffState).decode


@dataclass(slots=True)
class HandoffIndex:
    """Hand-off states by label and chain key, within `capacity` bytes in memory; `max_agents` limits one list."""

    store: KeyValueStore
    outbox: Outbox
    patterns: ToolPatterns
    max_agents: int = 256
    capacity: int = 12 * 2**20
    retention: float = 30 * 86_400.0
    _states: BoundedCache[bytes, HandoffState] = field(init=False)
    _names: BoundedCache[bytes, frozenset[str]] = field(init=False)

    def __post_init__(self) -> None:
        self._states = BoundedCache(self.capacity * 3 // 4)
        self._names = BoundedCache(
            self.capacity // 4, lambda key, names: ENTRY + sum(100 + len(name) for name in names)
        )

    def mark_read(self, label: bytes, chain: Sequence[bytes]) -> int:
        """Marks a list as read; returns the index of its first message that was not read before."""
        if not chain:
            return 0
        index, state = self._find_in_memory(label, chain)
        if index < len(chain) - 1:
            self._remember(label + chain[-1], state)
        return index + 1

    def find_unread_index(self, label: bytes, conversation: Conversation) -> int | None:
        """Returns the index of the first unread message of a list without hand-offs, and marks the list as read.

        Returns None where there is or may be a hand-off; then `load_state` decides.
        """
        chain = conversation.chain
        if not chain:
            return 0
        index, state = self._find_in_memory(label, chain)
        if state is not NO_HANDOFF:
            return None
        find_target = self.patterns.find_target
        for message in conversation.messages[index + 1 :]:
            for part in message.parts:
                if type(part) is ToolCall and find_target(part.name) is not None:
                    return None
        if index < len(chain) - 1:
            self._remember(label + chain[-1], NO_HANDOFF)
        return index + 1

    async def load_state(self, tenant: str, label: bytes, conversation: Conversation) -> tuple[HandoffState, int]:
        """Returns the state at the end of a request, and the index of its first unread message."""
        chain = conversation.chain
        index, state = self._find_in_memory(label, chain)
        new_state = self._advance(state, conversation, index, label)
        if (
            index < 0
            and new_state is not NO_HANDOFF
            and (stored := await self._find_in_store(tenant, label, chain)) is not None
        ):
            index, state = stored
            new_state = self._advance(state, conversation, index, label)
        if new_state.known:
            new_state = identify_sender(new_state, self._tool_names(conversation), conversation.overhead_key)
        if new_state is not state or index < len(chain) - 1:
            self._remember(label + chain[-1], new_state)
            if not new_state.has_no_handoff:
                self._write(tenant, label + chain[-1], new_state)
        return new_state, index + 1

    def record_handoffs(
        self, tenant: str, label: bytes, conversation: Conversation, calls: Iterable[ObservedCall], home: str
    ) -> None:
        """Records the sender of a hand-off, to recognize it when the control returns to it. `home` is its node."""
        for call in calls:
            if self.patterns.find_target(call.name) is not None and conversation.chain:
                break
        else:
            return
        name = label + conversation.chain[-1]
        state = self._states.get(name) or NO_HANDOFF
        if not state.path:
            state = identify_sender(state, self._tool_names(conversation), conversation.overhead_key)
            self._remember(name, state := replace(state, home=state.home or home))
            self._write(tenant, name, state)

    def forget(self) -> None:
        """Clears the states after an erasure, so that everything is read from the store again."""
        self._states.clear()

    def _advance(self, state: HandoffState, conversation: Conversation, index: int, label: bytes) -> HandoffState:
        return advance(state, conversation, index + 1, self.patterns.find_target, label, self.max_agents)

    def _find_in_memory(self, label: bytes, chain: Sequence[bytes]) -> tuple[int, HandoffState]:
        index, state = find_deepest(self._states, label, chain)
        return index, NO_HANDOFF if state is None else state

    async def _find_in_store(
        self, tenant: str, label: bytes, chain: Sequence[bytes]
    ) -> tuple[int, HandoffState] | None:
        """Returns the index and the state of the longest prefix of a list that the store has."""
        newest = chain[-_MAX_LOOKUPS:]
        if not self.store.is_available:
            return None
        with suppress(StoreUnavailable, msgspec.MsgspecError):
            values = await self.store.get_many([_state_key(tenant, label + key) for key in newest])
            for distance, value in enumerate(reversed(values), 1):
                if value is not None:
                    return len(chain) - distance, _decode(value)
        return None

    def _tool_names(self, conversation: Conversation) -> frozenset[str]:
        names = self._names.get(conversation.overhead_key)
        if names is None:
            names = self._names[conversation.overhead_key] = read_tool_names(conversation.tools)
        return names

    def _remember(self, name: bytes, state: HandoffState) -> None:
        self._states.put(name, state, ENTRY if state is NO_HANDOFF else 2 * ENTRY + len(_encode(state)))

    def _write(self, tenant: str, name: bytes, state: HandoffState) -> None:
        self.outbox.put(_state_key(tenant, name), partial(_encode, state), self.retention)


def nodes_in_state(value: bytes) -> set[str]:
    """Returns the delegations in a stored state, including the list's own; empty where it cannot be decoded."""
    with suppress(msgspec.MsgspecError):
        state = _decode(value)
        nodes = {node for agent in state.known for node in agent[::2]}
        return {state.home, *(agent.node for agent in state.path), *nodes}
    return set()


def _state_key(tenant: str, name: bytes) -> Key:
    return Key(f"handed/{tenant}", hashlib.sha256(name).hexdigest())
