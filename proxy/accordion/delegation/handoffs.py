"""Hand-offs: agents that share one message list and transfer control by a tool call, such as `transfer_to_billing`.

The sender of a request follows from the answered hand-offs in its list and from the tools that it offers: an agent that
offers `transfer_to_x` is not x, so a tool of that name that transfers nothing has no effect. A `HandoffState` is a pure
function of the state before it and of new messages. `HandoffIndex` caches the state of each list over the store, so
that only new messages are read; states without any hand-off are in memory only.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from accordion.model.cache import ENTRY, BoundedCache
from accordion.model.conversation import Conversation, ToolCall, ToolResult
from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Key, KeyValueStore, Outbox
from accordion.model.records import ObservedCall
from accordion.model.tenant import TenantScope
from accordion.sessions.prefix_nodes import find_deepest

_MAX_LOOKUPS = 64
"""The number of newest messages whose state is looked up in the store."""


class _HandoffTarget(NamedTuple):
    """The target agent's name in a hand-off tool, and whether the tool transfers back."""

    name: str
    is_back: bool


class _RequestFingerprint(msgspec.Struct, frozen=True):
    """Identifies an agent by its last request: the key of preamble and tools, and a hash of the tools' names."""

    overhead: bytes = b""
    names: bytes = b""


class _ActiveAgent(msgspec.Struct, frozen=True):
    """An agent that received control: its node, its name, and the tool and call id of the hand-off."""

    node: str
    name: str
    tool: str
    call_id: str
    fingerprint: _RequestFingerprint = _RequestFingerprint()
    """The agent's last request."""


class _PendingHandoff(msgspec.Struct, frozen=True):
    """A hand-off without an answer. `path` has the nodes of its sender's path."""

    call_id: str
    tool: str
    chain_key: bytes
    """The chain key of its message."""
    path: tuple[str, ...]


class _KnownAgent(NamedTuple):
    """An agent that received control at some time: the node of the sender, its name in the tool, and its node."""

    sender: str
    name: str
    node: str


class HandoffState(msgspec.Struct, frozen=True):
    """The control state at one message of a list.

    `path` are the agents that received control, the outermost first; empty if the list's own agent has control.
    `pending` are hand-offs without an answer. `home` is the node of the list's own agent, `fingerprint` its last
    request. `agents` are all agents so far.
    """

    path: tuple[_ActiveAgent, ...] = ()
    pending: tuple[_PendingHandoff, ...] = ()
    agents: tuple[_KnownAgent, ...] = ()
    fingerprint: _RequestFingerprint = _RequestFingerprint()
    home: str = ""

    @property
    def has_no_handoff(self) -> bool:
        """Whether the list has no hand-off."""
        return not self.agents and not self.pending and not self.fingerprint.overhead


NO_HANDOFF = HandoffState()

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(HandoffState).decode


class ToolPatterns:
    """Patterns of tool names such as `transfer_to_*`, where `*` stands for the target's name."""

    def __init__(self, patterns: Sequence[str]) -> None:
        # The longest pattern first: `transfer_to_*` must not match a name that a more specific pattern matches.
        ordered = sorted(patterns, key=len, reverse=True)
        self._patterns = [
            (re.compile(re.escape(pattern).replace(r"\*", "(.*)"), re.I), "back" in pattern) for pattern in ordered
        ]
        self._targets: dict[str, _HandoffTarget | None] = {}

    def find_target(self, tool: str) -> _HandoffTarget | None:
        """Returns the target in a tool's name; None if no pattern matches."""
        try:
            return self._targets[tool]
        except KeyError:
            if len(self._targets) >= 10_000:
                self._targets.clear()
            self._targets[tool] = target = self._match(tool)
            return target

    def _match(self, tool: str) -> _HandoffTarget | None:
        for pattern, is_back in self._patterns:
            if (match := pattern.fullmatch(tool)) is not None:
                return _HandoffTarget((match.group(1) if match.groups() else tool).casefold(), is_back)
        return None


@dataclass(slots=True)
class HandoffIndex:
    """Hand-off states by scope and chain key, within `capacity` bytes in memory; `max_agents` limits one list."""

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

    def mark_read(self, scope: bytes, chain: Sequence[bytes]) -> int:
        """Marks a list as read; returns the index of its first message that was not read before."""
        if not chain:
            return 0
        index, state = self._find_in_memory(scope, chain)
        if index < len(chain) - 1:
            self._remember(scope + chain[-1], state)
        return index + 1

    def find_unread_index(self, scope: bytes, conversation: Conversation) -> int | None:
        """Returns the index of the first unread message of a list without hand-offs, and marks the list as read.

        Returns None if there is or may be a hand-off; then `load_state` decides.
        """
        chain = conversation.chain
        if not chain:
            return 0
        index, state = self._find_in_memory(scope, chain)
        if state is not NO_HANDOFF:
            return None
        find_target = self.patterns.find_target
        for message in conversation.messages[index + 1 :]:
            for part in message.parts:
                if type(part) is ToolCall and find_target(part.name) is not None:
                    return None
        if index < len(chain) - 1:
            self._remember(scope + chain[-1], NO_HANDOFF)
        return index + 1

    async def load_state(
        self, tenant: TenantScope, scope: bytes, conversation: Conversation
    ) -> tuple[HandoffState, int]:
        """Returns the state at the end of a request, and the index of its first unread message."""
        chain = conversation.chain
        index, state = self._find_in_memory(scope, chain)
        new_state = self._advance(state, conversation, index, scope)
        if (
            index < 0
            and new_state is not NO_HANDOFF
            and (stored := await self._find_in_store(tenant, scope, chain)) is not None
        ):
            index, state = stored
            new_state = self._advance(state, conversation, index, scope)
        if new_state.agents:
            new_state = _identify_sender(new_state, self._tool_names(conversation), conversation.overhead_key)
        if new_state is not state or index < len(chain) - 1:
            self._remember(scope + chain[-1], new_state)
            if not new_state.has_no_handoff:
                self._write(tenant, scope + chain[-1], new_state)
        return new_state, index + 1

    def record_handoffs(
        self, tenant: TenantScope, scope: bytes, conversation: Conversation, calls: Iterable[ObservedCall], home: str
    ) -> None:
        """Records the sender of a hand-off, to recognize it when the control returns to it. `home` is its node."""
        for call in calls:
            if self.patterns.find_target(call.name) is not None and conversation.chain:
                break
        else:
            return
        name = scope + conversation.chain[-1]
        state = self._states.get(name) or NO_HANDOFF
        if not state.path:
            state = _identify_sender(state, self._tool_names(conversation), conversation.overhead_key)
            self._remember(name, state := replace(state, home=state.home or home))
            self._write(tenant, name, state)

    def forget(self) -> None:
        """Clears the states after an erasure, so that everything is read from the store again."""
        self._states.clear()

    def _advance(self, state: HandoffState, conversation: Conversation, index: int, scope: bytes) -> HandoffState:
        return _advance(state, conversation, index + 1, self.patterns.find_target, scope, self.max_agents)

    def _find_in_memory(self, scope: bytes, chain: Sequence[bytes]) -> tuple[int, HandoffState]:
        index, state = find_deepest(self._states, scope, chain)
        return index, NO_HANDOFF if state is None else state

    async def _find_in_store(
        self, tenant: TenantScope, scope: bytes, chain: Sequence[bytes]
    ) -> tuple[int, HandoffState] | None:
        """Returns the index and the state of the longest prefix of a list that the store has."""
        newest = chain[-_MAX_LOOKUPS:]
        if not self.store.is_available:
            return None
        with suppress(StoreUnavailable, msgspec.MsgspecError):
            values = await self.store.get_many([_state_key(tenant, scope + key) for key in newest])
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

    def _write(self, tenant: TenantScope, name: bytes, state: HandoffState) -> None:
        self.outbox.put(_state_key(tenant, name), partial(_encode, state), self.retention)


def nodes_in_state(value: bytes) -> set[str]:
    """Returns the delegations in a stored state, including the list's own; empty if it cannot be decoded."""
    with suppress(msgspec.MsgspecError):
        state = _decode(value)
        nodes = {node for agent in state.agents for node in (agent.sender, agent.node)}
        return {state.home, *(agent.node for agent in state.path), *nodes}
    return set()


def _state_key(tenant: TenantScope, name: bytes) -> Key:
    return Key(tenant.delegation_collection("handed"), hashlib.sha256(name).hexdigest())


def _advance(
    state: HandoffState,
    conversation: Conversation,
    start: int,
    find_target: Callable[[str], _HandoffTarget | None],
    scope: bytes,
    max_agents: int,
) -> HandoffState:
    """Returns the state after the last message, from the state before the message at `start`.

    `scope` separates equal lists; there are at most `max_agents` agents in one list.
    """
    messages = conversation.messages
    for index in range(start, len(messages)):
        for part in messages[index].parts:
            if type(part) is ToolCall:
                if find_target(part.name) is not None:
                    path = tuple(agent.node for agent in state.path)
                    handoff = _PendingHandoff(part.call_id, part.name, conversation.chain[index], path)
                    state = replace(state, pending=(*state.pending, handoff)[-16:])
            elif type(part) is ToolResult and state.pending:
                state = _apply_answer(state, part, find_target, scope, max_agents)
    return state


def _apply_answer(
    state: HandoffState,
    result: ToolResult,
    find_target: Callable[[str], _HandoffTarget | None],
    scope: bytes,
    max_agents: int,
) -> HandoffState:
    handoff = next((each for each in reversed(state.pending) if each.call_id == result.call_id), None)
    if handoff is None:
        return state
    state = replace(state, pending=tuple(each for each in state.pending if each is not handoff))
    target = find_target(handoff.tool)
    # Of several hand-offs in one response, the first that is answered counts: then the sender no longer has control.
    if target is None or result.error or handoff.path != tuple(agent.node for agent in state.path):
        return state
    for index, agent in enumerate(state.path):
        if agent.name == target.name:
            return replace(state, path=state.path[: index + 1])
    if target.is_back:
        return replace(state, path=state.path[:-1])
    sender = state.path[-1].node if state.path else ""
    node = next((each.node for each in state.agents if (each.sender, each.name) == (sender, target.name)), None)
    if node is None:
        if len(state.agents) >= max_agents:
            return state
        content = b"handoff" + scope + handoff.chain_key + target.name.encode()
        node = "h:" + hashlib.sha256(content).hexdigest()[:24]
        state = replace(state, agents=(*state.agents, _KnownAgent(sender, target.name, node)))
    return replace(state, path=(*state.path, _ActiveAgent(node, target.name, handoff.tool, handoff.call_id)))


def _identify_sender(state: HandoffState, offered_tools: frozenset[str], overhead: bytes) -> HandoffState:
    """Returns the state with the sender of this request at the end of the path.

    `offered_tools` are the names of its tools, `overhead` is the key of its preamble and tools.
    """
    path = state.path
    while path and path[-1].tool in offered_tools:
        path = path[:-1]
    names = hashlib.sha256("\n".join(sorted(offered_tools)).encode()).digest()[:16]
    fingerprint = _RequestFingerprint(overhead, names)
    if path and path[-1].fingerprint.overhead != overhead:
        fingerprints = [state.fingerprint, *(agent.fingerprint for agent in path)]
        # An agent in the path called the hand-off tool to the next one, so it offers it if its tools are the same.
        senders = [index for index in range(len(path)) if path[index].tool in offered_tools]
        same_overhead = [index for index in senders if fingerprints[index].overhead == overhead]
        same_names = [index for index in senders if fingerprints[index].names == names]
        if same_overhead or (same_names and path[-1].fingerprint.names != names):
            path = path[: (same_overhead or same_names)[-1]]
    if not path:
        return replace(state, path=(), fingerprint=fingerprint)
    return replace(state, path=(*path[:-1], replace(path[-1], fingerprint=fingerprint)))


def read_tool_names(tools: Sequence[str]) -> frozenset[str]:
    """Returns the names in tool definitions, as they are on the wire in any protocol."""
    names = set()
    for text in tools:
        try:
            tool = _decode_tool(text)
        except msgspec.MsgspecError:
            continue
        names.add(tool.name or (tool.function.name if tool.function is not None else ""))
    return frozenset(names - {""})


class _Function(msgspec.Struct):
    name: str = ""


class _Tool(msgspec.Struct):
    name: str = ""
    function: _Function | None = None


_decode_tool = msgspec.json.Decoder(_Tool).decode
