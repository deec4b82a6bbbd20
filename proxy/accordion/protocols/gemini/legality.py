"""Finds what the provider would reject in a list of Gemini's contents.

Calls and results are paired by their names and their number, not by ids: an id may be missing on either side.

Sources: the provider's own error texts ("Please ensure that function response turn comes immediately after a function
call turn", "Please ensure that the number of function response parts is equal to the number of function call parts of
the function call turn", "Unable to submit request because it must include at least one parts field"), and the guide
"Function calling".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from accordion.model.conversation import Message, Reasoning, ToolCall, ToolResult
from accordion.protocols.legality import EMPTY, FIRST, SILENT, UNKNOWN

_REASONING_ONLY = frozenset({Reasoning})


def find_gemini_problems(messages: Sequence[Message]) -> list[str]:
    """Checks a list of contents. Contents of one role in a row are one turn."""
    problems = [] if not messages or messages[0].role != "assistant" else [FIRST]
    open_calls, is_model_before = Counter[str](), False
    for index, message in enumerate(messages):
        is_model = message.role == "assistant"
        if is_model and not is_model_before:
            problems += _describe_unanswered(open_calls)
            open_calls = Counter()
        is_model_before = is_model
        if message.role == "other":
            problems.append(UNKNOWN)
        _check_content(message, index + 1 == len(messages), problems)
        _pair(message, open_calls, problems)
        if not is_model and not message.has_tool_result:
            problems += _describe_unanswered(open_calls)
            open_calls = Counter()
    if messages and messages[-1].role != "assistant":
        problems += _describe_unanswered(open_calls)
    return problems


def _check_content(message: Message, is_last: bool, problems: list[str]) -> None:
    if message.role != "assistant":
        problems += [] if message.parts else [EMPTY]
    elif not is_last and _REASONING_ONLY.issuperset(map(type, message.parts)):
        problems.append(SILENT)


def _pair(message: Message, open_calls: Counter[str], problems: list[str]) -> None:
    """Opens the calls of a content, and closes those that its results answer."""
    for part in message.parts:
        if isinstance(part, ToolCall):
            open_calls[part.call_id] += 1
        elif isinstance(part, ToolResult):
            if open_calls[part.call_id] > 0:
                open_calls[part.call_id] -= 1
            else:
                problems.append(f"The result of the call {part.call_id} answers no call before it.")


def _describe_unanswered(open_calls: Counter[str]) -> Iterable[str]:
    return [f"The call {call_id} is not answered." for call_id in open_calls.elements()]
