"""Hand-offs: agents that share one list and pass it on by calling a tool, such as `transfer_to_billing`.

Read from the list alone: who a request is from follows from the hand-offs that were answered before it, and from the
tools that it offers itself. An agent that offers `transfer_to_x` is not x; so a tool of that name that hands nothing
over changes nothing. Everything here is a function of a state and of messages; a state is kept for each place of a
list, so that only what is new is read.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence

import msgspec

from accordion.core.conversation import Conversation, ToolCall, ToolResult
from accordion.core.values import dataclass, replace

Target = tuple[str, bool]
"""The name that a hand-off names, and whether it is one back."""


@dataclass(frozen=True, slots=True)
class Look:
    """What an agent's last request looked like: the key of its preamble and tools, and a hash of its tools' names."""

    overhead: bytes = b""
    names: bytes = b""


@dataclass(frozen=True, slots=True)
class Hop:
    """An agent that was handed to: its `node`, its `name`, the `tool` that led here and the id of that call."""

    node: str
    name: str
    tool: str
    call_id: str
    look: Look = Look()


@dataclass(frozen=True, slots=True)
class Asked:
    """A hand-off that is not answered yet. `place` is the chain key of its message, `path` the nodes of who made it."""

    call_id: str
    tool: str
    place: bytes
    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Handed:
    """Who has the word at one place of a list.

    `path` are the agents handed to, outermost first; empty where nobody was, or all was handed back. `home` is the node
    of the list's own agent and `look` its last request; `known` are the nodes by the node that handed to them and by
    name.
    """

    path: tuple[Hop, ...] = ()
    asked: tuple[Asked, ...] = ()
    known: tuple[tuple[str, str, str], ...] = ()
    look: Look = Look()
    home: str = ""

    @property
    def plain(self) -> bool:
        """Whether nothing was ever handed over."""
        return not self.known and not self.asked and not self.look.overhead


NOBODY = Handed()


class Patterns:
    """Which tools hand over, by patterns such as `transfer_to_*`; what the `*` stands for is the name."""

    def __init__(self, patterns: Sequence[str]) -> None:
        # The longest fixed text first: `transfer_to_*` must not read a name out of what is more closely described.
        ordered = sorted(patterns, key=len, reverse=True)
        self._patterns = [(re.compile(re.escape(one).replace(r"\*", "(.*)"), re.I), "back" in one) for one in ordered]
        self._found: dict[str, Target | None] = {}

    def target(self, tool: str) -> Target | None:
        """Whom a tool hands over to; None where it hands nothing over."""
        try:
            return self._found[tool]
        except KeyError:
            if len(self._found) >= 10_000:
                self._found.clear()
            self._found[tool] = found = self._match(tool)
            return found

    def _match(self, tool: str) -> Target | None:
        for pattern, back in self._patterns:
            if (match := pattern.fullmatch(tool)) is not None:
                return (match.group(1) if match.groups() else tool).casefold(), back
        return None


def advance(
    state: Handed,
    conversation: Conversation,
    start: int,
    target: Callable[[str], Target | None],
    label: bytes,
    most: int,
) -> Handed:
    """The state behind the last message, from that before the message at `start`. `label` divides equal lists; `most`
    bounds how many agents are told apart. Reads new messages only."""
    messages = conversation.messages
    for index in range(start, len(messages)):
        for part in messages[index].parts:
            if type(part) is ToolCall:
                if target(part.name) is not None:
                    path = tuple(hop.node for hop in state.path)
                    asked = Asked(part.call_id, part.name, conversation.chain[index], path)
                    state = replace(state, asked=(*state.asked, asked)[-16:])
            elif type(part) is ToolResult and state.asked:
                state = _answered(state, part, target, label, most)
    return state


def _answered(
    state: Handed, result: ToolResult, target: Callable[[str], Target | None], label: bytes, most: int
) -> Handed:
    asked = next((one for one in reversed(state.asked) if one.call_id == result.call_id), None)
    if asked is None:
        return state
    state = replace(state, asked=tuple(one for one in state.asked if one is not asked))
    found = target(asked.tool)
    # Of several hand-offs in one reply the first that is answered counts: whoever made the others has no word any more.
    if found is None or result.error or asked.path != tuple(hop.node for hop in state.path):
        return state
    name, back = found
    for index, hop in enumerate(state.path):
        if hop.name == name:
            return replace(state, path=state.path[: index + 1])
    if back:
        return replace(state, path=state.path[:-1])
    above = state.path[-1].node if state.path else ""
    node = next((node for parent, one, node in state.known if (parent, one) == (above, name)), None)
    if node is None:
        if len(state.known) >= most:
            return state
        node = "h:" + hashlib.sha256(b"handoff" + label + asked.place + name.encode()).hexdigest()[:24]
        state = replace(state, known=(*state.known, (above, name, node)))
    return replace(state, path=(*state.path, Hop(node, name, asked.tool, asked.call_id)))


def settled(state: Handed, offered: frozenset[str], overhead: bytes) -> Handed:
    """The state with whoever sends this request at the end of its path: `offered` are the names of its tools,
    `overhead` the key of its preamble and tools."""
    path = state.path
    while path and path[-1].tool in offered:
        path = path[:-1]
    look = Look(overhead, hashlib.sha256("\n".join(sorted(offered)).encode()).digest()[:16])
    if path and path[-1].look.overhead != overhead:
        looks = [state.look, *(hop.look for hop in path)]
        # Whoever is in the path handed on to the next there, so it offers that very tool, if its tools are the same.
        before = [index for index in range(len(path)) if path[index].tool in offered]
        same = [index for index in before if looks[index].overhead == overhead]
        alike = [index for index in before if looks[index].names == look.names]
        if same or (alike and path[-1].look.names != look.names):
            path = path[: (same or alike)[-1]]
    if not path:
        return replace(state, path=(), look=look)
    return replace(state, path=(*path[:-1], replace(path[-1], look=look)))


def tool_names(tools: Sequence[str]) -> frozenset[str]:
    """The names in tool definitions, as they stand on the wire in any dialect."""
    found = set()
    for text in tools:
        try:
            tool = _tool(text)
        except msgspec.MsgspecError:
            continue
        found.add(tool.name or (tool.function.name if tool.function is not None else ""))
    return frozenset(found - {""})


class _Function(msgspec.Struct):
    name: str = ""


class _Tool(msgspec.Struct):
    name: str = ""
    function: _Function | None = None


_tool = msgspec.json.Decoder(_Tool).decode
