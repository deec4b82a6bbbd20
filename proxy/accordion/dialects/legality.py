"""What a provider would refuse about a list of messages, one function a dialect.

Sentences are the same wherever in the list a fault stands, so that those of an edited list can be compared with those
of the client's own: clients send odd lists that providers accept. Only parts and roles are looked at, each once.

Pairs are matched by order, never by a set of ids: an id that is used again is another pair.

Sources: the providers' own error texts ("An assistant message with 'tool_calls' must be followed by tool messages
responding to each 'tool_call_id'", "No tool output found for function call …", "`tool_use` ids were found without
`tool_result` blocks immediately after", "reasoning … was provided without its required following item", "The final
block in an assistant message cannot be `thinking`", "text content blocks must contain non-whitespace text").
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from accordion.core.conversation import INSTRUCTING, Message, Opaque, Reasoning, Role, Text, ToolCall, ToolResult
from accordion.dialects.shared import HOSTED

FIRST = "The list does not begin with the user."
SILENT = "A message of the assistant says nothing."
EMPTY = "A message of the user is empty."
UNKNOWN = "A message has no role that is known."
THINKING = "A message of the assistant ends in thinking."
BLANK = "A block of text holds only white space."
REASONING = "A reasoning item is not followed by what it led to."
TRIGGER = "A compaction trigger is not the last item."

_REASONS = frozenset({Reasoning})


class _Calls:
    """Calls that wait for their results, in order."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[str, list[int]] = {}

    def made(self, call_id: str, at: int = 0) -> None:
        self._waiting.setdefault(call_id, []).append(at)

    def answered(self, call_id: str) -> bool:
        """Whether such a call waited; it does no longer."""
        places = self._waiting.get(call_id)
        if not places:
            return False
        places.pop()
        if not places:
            del self._waiting[call_id]
        return True

    def lost(self, before: int = 1) -> Iterable[str]:
        """A sentence for each call from before the place `before` that waits. None waits afterwards."""
        if not self._waiting:
            return ()
        waiting, self._waiting = self._waiting, {}
        return [
            f"The call {call_id} is not answered."
            for call_id, places in waiting.items()
            for at in places
            if at < before
        ]


def chat_problems(messages: Sequence[Message]) -> list[str]:
    """For Chat Completions: tool messages directly behind the assistant's message whose calls they answer."""
    found = _opening(messages, INSTRUCTING)
    calls = _Calls()
    for message in messages:
        if message.role == "tool":
            for part in message.parts:
                if isinstance(part, ToolResult) and not calls.answered(part.call_id):
                    found.append(_stray(part.call_id))
            continue
        found += calls.lost()
        if message.role == "assistant":
            if _REASONS.issuperset(map(type, message.parts)):
                found.append(SILENT)
            for part in message.parts:
                if isinstance(part, ToolCall):
                    calls.made(part.call_id)
        elif message.role == "other":
            found.append(UNKNOWN)
    if messages and messages[-1].role != "assistant":
        found += calls.lost()
    return found


def messages_problems(messages: Sequence[Message]) -> list[str]:
    """For Messages: results first in what the user says next. Messages of the user in a row are one to the provider."""
    found = _opening(messages, INSTRUCTING)
    calls, hosted, front = _Calls(), _Calls(), True
    for at, message in enumerate(messages):
        if message.role == "user":
            front = _answers(message, calls, front, found)
            continue
        found += calls.lost()
        front = True
        if message.role == "assistant":
            _reply(message, calls, hosted, found)
            if not message.parts and at + 1 < len(messages):
                found.append(SILENT)
        elif message.role not in INSTRUCTING:
            found.append(UNKNOWN)
    if messages and messages[-1].role != "assistant":
        found += calls.lost()
    return found


def _answers(message: Message, calls: _Calls, front: bool, found: list[str]) -> bool:
    """Looks at a user's message; `front` says whether only results came before it since the last reply. Gives the same
    for what comes behind it."""
    for part in message.parts:
        if not isinstance(part, ToolResult):
            front = False
            if isinstance(part, Text) and part.text.isspace():
                found.append(BLANK)
        elif not calls.answered(part.call_id):
            found.append(_stray(part.call_id))
        elif not front:
            found.append(f"The result of the call {part.call_id} does not come first in its message.")
    if not message.parts:
        found.append(EMPTY)
    return front


def _reply(message: Message, calls: _Calls, hosted: _Calls, found: list[str]) -> None:
    """Looks at an assistant's message: results that stand in it are of the provider's own tools."""
    for part in message.parts:
        if isinstance(part, ToolCall):
            (hosted if part.call_id.startswith(HOSTED) else calls).made(part.call_id)
        elif isinstance(part, ToolResult):
            if not (hosted.answered(part.call_id) or calls.answered(part.call_id)):
                found.append(_stray(part.call_id))
        elif isinstance(part, Text) and part.text.isspace():
            found.append(BLANK)
    if message.parts and isinstance(message.parts[-1], Reasoning):
        found.append(THINKING)


def responses_problems(messages: Sequence[Message]) -> list[str]:
    """For Responses: each output behind its call, an output for each call unless nothing but the model's own items
    follows it, reasoning before an item of the model's. Parallel calls and outputs may stand in any such order."""
    found = _opening(messages, {*INSTRUCTING, "other"})
    calls, heard, reasoned = _Calls(), -1, False
    for at, message in enumerate(messages):
        if message.role == "other":
            if any(isinstance(p, Opaque) and p.kind == "compaction_trigger" for p in message.parts):
                found += [TRIGGER] if at + 1 < len(messages) else []
        elif message.role != "assistant":
            heard = at
            if reasoned:
                found.append(REASONING)
        elif not message.parts:
            found.append(SILENT)
        reasoned = message.role == "assistant" and _only_reasons(message)
        for part in message.parts:
            if isinstance(part, ToolCall):
                calls.made(part.call_id, at)
            elif isinstance(part, ToolResult) and not calls.answered(part.call_id):
                found.append(_stray(part.call_id))
    if reasoned:
        found.append(REASONING)
    return [*found, *calls.lost(before=heard)]


def _only_reasons(message: Message) -> bool:
    return bool(message.parts) and all(isinstance(part, Reasoning) for part in message.parts)


def _opening(messages: Sequence[Message], silent: Iterable[Role]) -> list[str]:
    """Whether the first who speaks, apart from the roles `silent`, is the user."""
    skipped = frozenset(silent)
    first = next((message.role for message in messages if message.role not in skipped), "user")
    return [] if first == "user" else [FIRST]


def _stray(call_id: str) -> str:
    return f"The result of the call {call_id} answers no call before it."
