"""Hand-offs: agents that share one message list and transfer control by a tool call, such as `transfer_to_billing`.

The sender of a request follows from the answered hand-offs in its list and from the tools that it offers: an agent that
offers `transfer_to_x` is not x, so a tool of that name that transfers nothing has no effect. Everything here is a pure
function of a state and of new messages; handoff_index.py keeps the states.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace

from accordion.model.conversation import Conversation, ToolCall, ToolResult

HandoffTarget = tuple[str, bool]
"""The target agent's name in a hand-off tool, and whether the tool transfers back."""


class RequestFingerprint(msgspec.Struct, frozen=True):
    """Identifies an agent by its last request: the key of preamble and tools, and a hash of the tools' names."""

    overhead: bytes = b""
    names: bytes = b""


class ActiveAgent(msgspec.Struct, frozen=True):
    """An agent that received control: its node, its name, and the tool and call id of the hand-off."""

    node: str
    name: str
    tool: str
    call_id: str
    look: RequestFingerprint = RequestFingerprint()


class PendingHandoff(msgspec.Struct, frozen=True):
    """A hand-off without an answer. `place` is the chain key of its message, `path` the nodes of its sender's path."""

    call_id: str
    tool: str
    place: bytes
    path: tuple[str, ...]


class HandoffState(msgspec.Struct, frozen=True):
    """The control state at one message of a list.

    `path` are the agents that received control, the outermost first; empty where the list's own agent has control.
    `asked` are hand-offs without an answer. `home` is the node of the list's own agent and `look` its last request.
    `known` are all agents so far: (node of the sender, name, node).
    """

    path: tuple[ActiveAgent, ...] = ()
    asked: tuple[PendingHandoff, ...] = ()
    known: tuple[tuple[str, str, str], ...] = ()
    look: RequestFingerprint = RequestFingerprint()
    home: str = ""

    @property
    def has_no_handoff(self) -> bool:
        """Whether the list has no hand-off."""
        return not self.known and not self.asked and not self.look.overhead


NO_HANDOFF = HandoffState()


class ToolPatterns:
    """Patterns of tool names such as `transfer_to_*`, where `*` stands for the target's name."""

    def __init__(self, patterns: Sequence[str]) -> None:
        # The longest pattern first: `transfer_to_*` must not match a name that a more specific pattern matches.
        ordered = sorted(patterns, key=len, reverse=True)
        self._patterns = [
            (re.compile(re.escape(pattern).replace(r"\*", "(.*)"), re.I), "back" in pattern) for pattern in ordered
        ]
        self._targets: dict[str, HandoffTarget | None] = {}

    def find_target(self, tool: str) -> HandoffTarget | None:
        """Returns the target in a tool's name; None where no pattern matches."""
        try:
            return self._targets[tool]
        except KeyError:
            if len(self._targets) >= 10_000:
                self._targets.clear()
            self._targets[tool] = target = self._match(tool)
            return target

    def _match(self, tool: str) -> HandoffTarget | None:
        for pattern, is_back in self._patterns:
            if (match := pattern.fullmatch(tool)) is not None:
                return (match.group(1) if match.groups() else tool).casefold(), is_back
        return None


def advance(
    state: HandoffState,
    conversation: Conversation,
    start: int,
    find_target: Callable[[str], HandoffTarget | None],
    label: bytes,
    max_agents: int,
) -> HandoffState:
    """Returns the state behind the last message, from the state before the message at `start`.

    `label` separates equal lists; there are at most `max_agents` agents in one list.
    """
    messages = conversation.messages
    for index in range(start, len(messages)):
        for part in messages[index].parts:
            if type(part) is ToolCall:
                if find_target(part.name) is not None:
                    path = tuple(agent.node for agent in state.path)
                    handoff = PendingHandoff(part.call_id, part.name, conversation.chain[index], path)
                    state = replace(state, asked=(*state.asked, handoff)[-16:])
            elif type(part) is ToolResult and state.asked:
                state = _apply_answer(state, part, find_target, label, max_agents)
    return state


def _apply_answer(
    state: HandoffState,
    result: ToolResult,
    find_target: Callable[[str], HandoffTarget | None],
    label: bytes,
    max_agents: int,
) -> HandoffState:
    handoff = next((pending for pending in reversed(state.asked) if pending.call_id == result.call_id), None)
    if handoff is None:
        return state
    state = replace(state, asked=tuple(pending for pending in state.asked if pending is not handoff))
    target = find_target(handoff.tool)
    # Of several hand-offs in one response, the first that is answered counts: then the sender no longer has control.
    if target is None or result.error or handoff.path != tuple(agent.node for agent in state.path):
        return state
    name, is_back = target
    for index, agent in enumerate(state.path):
        if agent.name == name:
            return replace(state, path=state.path[: index + 1])
    if is_back:
        return replace(state, path=state.path[:-1])
    sender = state.path[-1].node if state.path else ""
    node = next((node for parent, child, node in state.known if (parent, child) == (sender, name)), None)
    if node is None:
        if len(state.known) >= max_agents:
            return state
        node = "h:" + hashlib.sha256(b"handoff" + label + handoff.place + name.encode()).hexdigest()[:24]
        state = replace(state, known=(*state.known, (sender, name, node)))
    return replace(state, path=(*state.path, ActiveAgent(node, name, handoff.tool, handoff.call_id)))


def identify_sender(state: HandoffState, offered_tools: frozenset[str], overhead: bytes) -> HandoffState:
    """Returns the state with the sender of this request at the end of the path.

    `offered_tools` are the names of its tools, `overhead` is the key of its preamble and tools.
    """
    path = state.path
    while path and path[-1].tool in offered_tools:
        path = path[:-1]
    names = hashlib.sha256("\n".join(sorted(offered_tools)).encode()).digest()[:16]
    fingerprint = RequestFingerprint(overhead, names)
    if path and path[-1].look.overhead != overhead:
        fingerprints = [state.look, *(agent.look for agent in path)]
        # An agent in the path called the hand-off tool to the next one, so it offers it if its tools are the same.
        senders = [index for index in range(len(path)) if path[index].tool in offered_tools]
        same_overhead = [index for index in senders if fingerprints[index].overhead == overhead]
        same_names = [index for index in senders if fingerprints[index].names == names]
        if same_overhead or (same_names and path[-1].look.names != names):
            path = path[: (same_overhead or same_names)[-1]]
    if not path:
        return replace(state, path=(), look=fingerprint)
    return replace(state, path=(*path[:-1], replace(path[-1], look=fingerprint)))


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
