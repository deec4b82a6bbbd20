"""Finds what a provider would reject in a list of messages: one function for each protocol.

A sentence does not depend on the problem's position in the list, so that the problems of an edited list can be compared
with those of the client's own list: clients send odd lists that providers accept. Only parts and roles are read, each
once.

Calls and results are paired by order, never by a set of ids: an id that is used again is another pair. Gemini's are
paired by their names and their number: an id may be missing on either side.

Sources: the providers' own error texts ("An assistant message with 'tool_calls' must be followed by tool messages
responding to each 'tool_call_id'", "No tool output problems for function call …", "`tool_use` ids were problems without
`tool_result` blocks immediately after", "reasoning … was provided without its required following item", "The final
block in an assistant message cannot be `thinking`", "text content blocks must contain non-whitespace text", "Please
ensure that function response turn comes immediately after a function call turn", "Please ensure that the number of
function response parts is equal to the number of function call parts of the function call turn", "Unable to submit
request because it must include at least one parts field"), and Gemini's guide "Function calling".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from accordion.model.conversation import INSTRUCTION_ROLES, Message, Opaque, Reasoning, Role, Text, ToolCall, ToolResult
from accordion.protocols.json_values import HOSTED

FIRST = "The list does not begin with the user."
SILENT = "A message of the assistant says nothing."
EMPTY = "A message of the user is empty."
UNKNOWN = "A message has no role that is known."
THINKING = "A message of the assistant ends in thinking."
BLANK = "A block of text holds only white space."
REASONING = "A reasoning item is not followed by what it led to."
TRIGGER = "A compaction trigger is not the last item."

_REASONING_ONLY = frozenset({Reasoning})


class _OpenCalls:
    """Calls that wait for their results, in order."""

    __slots__ = ("_positions_by_id",)

    def __init__(self) -> None:
        self._positions_by_id: dict[str, list[int]] = {}

    def open(self, call_id: str, at: int = 0) -> None:
        """Adds a call, made at the position `at`."""
        self._positions_by_id.setdefault(call_id, []).append(at)

    def close(self, call_id: str) -> bool:
        """Removes a call that has its result; False if there was none."""
        positions = self._positions_by_id.get(call_id)
        if not positions:
            return False
        positions.pop()
        if not positions:
            del self._positions_by_id[call_id]
        return True

    def describe_unanswered(self, before: int = 1) -> Iterable[str]:
        """Removes all calls; returns a sentence for each that was made before the position `before`."""
        if not self._positions_by_id:
            return ()
        waiting, self._positions_by_id = self._positions_by_id, {}
        return [
            f"The call {call_id} is not answered."
            for call_id, positions in waiting.items()
            for position in positions
            if position < before
        ]


def find_chat_problems(messages: Sequence[Message]) -> list[str]:
    """Checks Chat Completions: tool messages directly follow the assistant message whose calls they answer."""
    problems = _check_first_speaker(messages, INSTRUCTION_ROLES)
    calls = _OpenCalls()
    for message in messages:
        if message.role == "tool":
            for part in message.parts:
                if isinstance(part, ToolResult) and not calls.close(part.call_id):
                    problems.append(_describe_stray_result(part.call_id))
            continue
        problems += calls.describe_unanswered()
        if message.role == "assistant":
            if _REASONING_ONLY.issuperset(map(type, message.parts)):
                problems.append(SILENT)
            for part in message.parts:
                if isinstance(part, ToolCall):
                    calls.open(part.call_id)
        elif message.role == "other":
            problems.append(UNKNOWN)
    if messages and messages[-1].role != "assistant":
        problems += calls.describe_unanswered()
    return problems


def find_messages_problems(messages: Sequence[Message]) -> list[str]:
    """Checks Messages: results come first in the next user message. The provider joins user messages in a row."""
    problems = _check_first_speaker(messages, INSTRUCTION_ROLES)
    calls, hosted_calls, only_results = _OpenCalls(), _OpenCalls(), True
    for index, message in enumerate(messages):
        if message.role == "user":
            only_results = _check_user_message(message, calls, only_results, problems)
            continue
        problems += calls.describe_unanswered()
        only_results = True
        if message.role == "assistant":
            _check_assistant_message(message, calls, hosted_calls, problems)
            if not message.parts and index + 1 < len(messages):
                problems.append(SILENT)
        elif message.role not in INSTRUCTION_ROLES:
            problems.append(UNKNOWN)
    if messages and messages[-1].role != "assistant":
        problems += calls.describe_unanswered()
    return problems


def _check_user_message(message: Message, calls: _OpenCalls, only_results: bool, problems: list[str]) -> bool:
    """Checks a user message. `only_results` tells whether only results came since the last assistant message; returns
    the same for the next message."""
    for part in message.parts:
        if not isinstance(part, ToolResult):
            only_results = False
            if isinstance(part, Text) and part.text.isspace():
                problems.append(BLANK)
        elif not calls.close(part.call_id):
            problems.append(_describe_stray_result(part.call_id))
        elif not only_results:
            problems.append(f"The result of the call {part.call_id} does not come first in its message.")
    if not message.parts:
        problems.append(EMPTY)
    return only_results


def _check_assistant_message(
    message: Message, calls: _OpenCalls, hosted_calls: _OpenCalls, problems: list[str]
) -> None:
    """Checks an assistant message: results in it belong to the provider's own tools."""
    for part in message.parts:
        if isinstance(part, ToolCall):
            (hosted_calls if part.call_id.startswith(HOSTED) else calls).open(part.call_id)
        elif isinstance(part, ToolResult):
            if not (hosted_calls.close(part.call_id) or calls.close(part.call_id)):
                problems.append(_describe_stray_result(part.call_id))
        elif isinstance(part, Text) and part.text.isspace():
            problems.append(BLANK)
    if message.parts and isinstance(message.parts[-1], Reasoning):
        problems.append(THINKING)


def find_responses_problems(messages: Sequence[Message]) -> list[str]:
    """Checks Responses: each output follows its call, each call has an output unless only items of the model follow it,
    reasoning precedes an item of the model, and approvals stand with the calls that they led to. Parallel calls and
    outputs may come in any such order."""
    problems = _check_first_speaker(messages, {*INSTRUCTION_ROLES, "other"})
    calls, last_input, after_reasoning = _OpenCalls(), -1, False
    for index, message in enumerate(messages):
        if message.role == "other":
            if any(isinstance(part, Opaque) and part.kind == "compaction_trigger" for part in message.parts):
                problems += [TRIGGER] if index + 1 < len(messages) else []
        elif message.role != "assistant":
            last_input = index
            if after_reasoning:
                problems.append(REASONING)
        elif not message.parts:
            problems.append(SILENT)
        after_reasoning = message.role == "assistant" and _is_reasoning_only(message)
        for part in message.parts:
            if isinstance(part, ToolCall):
                calls.open(part.call_id, index)
            elif isinstance(part, ToolResult) and not calls.close(part.call_id):
                problems.append(_describe_stray_result(part.call_id))
    if after_reasoning:
        problems.append(REASONING)
    return [*problems, *_find_approval_problems(messages), *calls.describe_unanswered(before=last_input)]


def _find_approval_problems(messages: Sequence[Message]) -> Iterable[str]:
    """Returns a sentence for each call whose approval is not before it, and for each earlier approval without a call:
    the provider would make that call now."""
    requested, approved, last_reply = set[str](), dict[str, int](), -1
    for index, message in enumerate(messages):
        last_reply = index if message.role == "assistant" else last_reply
        for part in message.parts:
            if isinstance(part, ToolResult):
                if part.call_id in requested and not part.error:
                    approved[part.call_id] = index
            elif isinstance(part, ToolCall) and part.approval_id:
                approved.pop(part.approval_id, None)
                if part.approval_id == part.call_id:
                    requested.add(part.call_id)
                elif part.approval_id not in requested:
                    yield f"The approval {part.approval_id} of a call is missing."
    for approval_id, index in approved.items():
        if index < last_reply:
            yield f"The approval {approval_id} led to no call."


def _is_reasoning_only(message: Message) -> bool:
    return bool(message.parts) and all(isinstance(part, Reasoning) for part in message.parts)


def _check_first_speaker(messages: Sequence[Message], ignored: Iterable[Role]) -> list[str]:
    """Checks that the first message, apart from the roles `ignored`, is the user's."""
    skipped_roles = frozenset(ignored)
    first_role = next((message.role for message in messages if message.role not in skipped_roles), "user")
    return [] if first_role == "user" else [FIRST]


def _describe_stray_result(call_id: str) -> str:
    return f"The result of the call {call_id} answers no call before it."


# -- Gemini ------------------------------------------------------------------------------------------------------------


def find_gemini_problems(messages: Sequence[Message]) -> list[str]:
    """Checks a list of contents. Contents of one role in a row are one turn."""
    problems = [] if not messages or messages[0].role != "assistant" else [FIRST]
    calls, is_model_before = _GeminiCalls(), False
    for index, message in enumerate(messages):
        is_model = message.role == "assistant"
        if is_model and not is_model_before:
            problems += calls.describe_unpaired()
        is_model_before = is_model
        if message.role == "other":
            problems.append(UNKNOWN)
        _check_gemini_content(message, index + 1 == len(messages), problems)
        calls.add(message)
        if not is_model and not message.has_tool_result:
            problems += calls.describe_unpaired()
    is_model_last = bool(messages) and messages[-1].role == "assistant"
    return problems + calls.describe_unpaired(may_be_open=is_model_last)


def _check_gemini_content(message: Message, is_last: bool, problems: list[str]) -> None:
    if message.role != "assistant":
        problems += [] if message.parts else [EMPTY]
    elif not is_last and _REASONING_ONLY.issuperset(map(type, message.parts)):
        problems.append(SILENT)


class _GeminiCalls:
    """The calls of a turn of the model and the results after it."""

    def __init__(self) -> None:
        self._names_by_id: dict[str, list[str]] = {}
        """The names of the open calls."""
        self._stray: list[ToolResult] = []

    def add(self, message: Message) -> None:
        """Adds the calls and results of a content."""
        for part in message.parts:
            if isinstance(part, ToolCall):
                self._names_by_id.setdefault(part.call_id, []).append(part.name)
            elif isinstance(part, ToolResult):
                if names := self._names_by_id.get(part.call_id):
                    names.pop()
                else:
                    self._stray.append(part)

    def describe_unpaired(self, *, may_be_open: bool = False) -> list[str]:
        """Removes everything; returns a sentence for each result without a call, and unless `may_be_open` for each call
        without a result."""
        open_calls = [(call_id, name) for call_id, names in self._names_by_id.items() for name in names]
        open_names = Counter(name for _, name in open_calls)
        problems = []
        for result in self._stray:
            if result.name and open_names[result.name] > 0:
                open_names[result.name] -= 1
            else:
                problems.append(_describe_stray_result(result.call_id))
        for call_id, name in open_calls:
            if open_names[name] > 0 and not may_be_open:
                open_names[name] -= 1
                problems.append(f"The call {call_id} is not answered.")
        self._names_by_id, self._stray = {}, []
        return problems
