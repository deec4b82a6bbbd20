"""Legal cuts of a history: small rules, intersected.

Each rule yields ranges of messages that must stay together; a cut is legal if no range of any rule forbids it.
A cut has the index of the message that follows it. Everything here is linear in the number of parts, whatever the ids.
The module also finds what such rules depend on: open calls, references to items that only the provider has, and
compactions that the provider made itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import accumulate, chain
from typing import NamedTuple

from accordion.model.conversation import (
    INSTRUCTION_ROLES,
    UNKNOWN_WORDS,
    Message,
    Opaque,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
)

Rule = Callable[[Sequence[Message]], Iterable[tuple[int, int]]]
"""Yields ranges (first, last; inclusive) of messages that must stay together."""

_HOSTED = "srvtoolu_"
_HOSTED_SEARCHES = frozenset({"tool_search_call", "tool_search_output", "mcp_list_tools"})
_LASTING_KINDS = _HOSTED_SEARCHES | {
    *("compaction", "compaction_trigger", "configuration_update", "item_reference", "output_config"),
    *("tool", "tools", "additional_tools", "tool_reference", "tool_addition", "tool_removal"),
}
"""Kinds of parts that hold for the rest of the list: a provider's compaction, tools, settings."""

PartPosition = tuple[int, int]
"""The position of a part: the index of its message, and the part's index within the message."""


class CallInHistory(NamedTuple):
    """A call in a history: the key of its message, its index in the message, and the call."""

    message_key: bytes
    part: int
    call: ToolCall


def match_results_to_calls(messages: Sequence[Message]) -> dict[PartPosition, PartPosition]:
    """Returns the position of each answered call by the position of its result.

    Matches by order: a result answers a call in the latest response that has an open call of this id, so an id that is
    used again makes another pair. Parallel calls with the same id are answered in their order. A result whose id no
    call has answers a call of the function that it names, if it names one.
    """
    return _match_calls(messages)[0]


def find_open_calls(messages: Sequence[Message]) -> frozenset[PartPosition]:
    """Returns the positions of the calls that have no result yet."""
    return frozenset(_match_calls(messages)[1])


def find_indivisible_groups(messages: Sequence[Message], standing: Collection[int] = ()) -> tuple[tuple[int, int], ...]:
    """Splits the list at every legal cut into ranges (first, last; inclusive): each leaves whole or not at all.

    `standing` are the indexes of instructions that belong to no round.
    """
    if not messages:
        return ()
    # Ranges may overlap. Each one adds 1 if it begins to forbid cuts and subtracts it where it ends.
    changes = [0] * (len(messages) + 1)
    for first, last in chain(_instruction_groups(messages, standing), *(rule(messages) for rule in RULES)):
        changes[first + 1] += 1
        changes[last + 1] -= 1
    starts = [index for index, range_count in enumerate(accumulate(changes[:-1])) if not range_count]
    return tuple(zip(starts, [start - 1 for start in starts[1:]] + [len(messages) - 1], strict=True))


def has_opaque_part(message: Message) -> bool:
    """Whether a message, or a tool result in it, contains a part that the proxy does not understand."""
    return any(
        isinstance(part, Opaque) or (isinstance(part, ToolResult) and any(isinstance(p, Opaque) for p in part.parts))
        for part in message.parts
    )


def has_lasting_part(message: Message) -> bool:
    """Whether a message, or a tool result in it, contains a part that holds for the rest of the list, or has no kind.

    What else the proxy does not understand belongs to its round.
    """
    parts = chain(message.parts, *(part.parts for part in message.parts if isinstance(part, ToolResult)))
    return any(isinstance(part, Opaque) and (not part.kind or part.kind in _LASTING_KINDS) for part in parts)


def is_instruction(message: Message) -> bool:
    """Whether a message instructs the model: a system or developer message, or one of an unknown role."""
    is_unknown = message.role == "other" and bool(message.parts) and not has_opaque_part(message)
    return message.role in INSTRUCTION_ROLES or is_unknown


def is_unknown_item(message: Message) -> bool:
    """Whether a message is an item of a type that the proxy does not know, such as a new kind of call."""
    return message.role == "other" and has_opaque_part(message) and not has_lasting_part(message)


def has_item_reference(message: Message) -> bool:
    """Whether a message refers to an item that only the provider has, such as a call: an `item_reference` of OpenAI
    Responses."""
    return any(isinstance(part, Opaque) and part.kind == "item_reference" for part in message.parts)


def is_model_item(message: Message) -> bool:
    """Whether a message of no role is an item of the model: one of a search for tools that the provider ran within the
    response, its list of tools, or an item of an unknown type."""
    is_search = any(isinstance(part, Opaque) and part.kind in _HOSTED_SEARCHES for part in message.parts)
    return message.role == "other" and (is_search or is_unknown_item(message))


def is_known_to_provider_only(message: Message) -> bool:
    """Whether a message stands for text that only the provider has.

    It is usually a response; at the start of a conversation it may be the user's own message.
    """
    part = message.parts[0] if message.parts else None
    return message.role == "assistant" and isinstance(part, Text) and part.text.startswith(UNKNOWN_WORDS)


def is_provider_compaction(message: Message) -> bool:
    """Whether a message is the provider's own compaction: the provider reads on from here and drops what is before.

    Sources: Messages, "Compaction" ("automatically drops all message blocks prior to the compaction block"; one without
    content "represents a failed compaction", a "no-op"); Responses, "Compaction" (the latest item carries what is
    needed).
    """
    # This runs for every message that is counted; a generator takes more than twice as long.
    for part in message.parts:  # noqa: SIM110
        if isinstance(part, Opaque) and part.kind == "compaction" and part.size:
            return True
    return False


def find_provider_compaction(messages: Sequence[Message], first: int = 0, end: int | None = None) -> int:
    """Returns the index of the last provider compaction in `messages[first:end]`; -1 if there is none."""
    for index in range((len(messages) if end is None else end) - 1, first - 1, -1):
        if is_provider_compaction(messages[index]):
            return index
    return -1


def survives_provider_compaction(message: Message, resumed: Message) -> bool:
    """Whether the provider still reads a message that precedes its compaction `resumed`.

    Nothing before a compaction block (Messages) is read. Before a compaction item (Responses), the provider reads what
    `/responses/compact` leaves there: messages of the user, the developer and the system.
    """
    return resumed.role == "other" and message.role in ("system", "developer", "user")


def find_skipped_messages(messages: Sequence[Message]) -> frozenset[int]:
    """Returns the indexes of the messages that the provider does not read, because it resumes from a later one."""
    last = find_provider_compaction(messages)
    if last <= 0:
        return frozenset()
    return frozenset(
        index for index in range(last) if not survives_provider_compaction(messages[index], messages[last])
    )


def find_waiting_program(messages: Sequence[Message], waiting: Iterable[PartPosition]) -> int:
    """Returns the index of the message whose program, run by the provider, waits for the results of its calls.

    Returns the number of messages if there is none. Only such results may follow this message.

    Sources: Anthropic, "Programmatic tool calling" ("your response message must contain only tool_result blocks");
    `program` of Responses.
    """
    return min(
        (index for index, part in waiting if _is_hosted_program(messages[index].parts[part])), default=len(messages)
    )


def _is_hosted_program(part: object) -> bool:
    return isinstance(part, ToolCall) and (part.call_id.startswith(_HOSTED) or part.name == "program")


def is_reasoning_only(message: Message) -> bool:
    """Whether a message contains only reasoning, as a reasoning item of OpenAI Responses does."""
    return _has_only(message, Reasoning)


class _OpenCalls:
    """The positions of the open calls of each response, by key. The number of other messages before it identifies a
    response."""

    def __init__(self) -> None:
        self._calls: dict[str, list[tuple[int, deque[PartPosition]]]] = {}

    def add(self, key: str, response: int, position: PartPosition) -> None:
        responses = self._calls.setdefault(key, [])
        if not responses or responses[-1][0] != response:
            responses.append((response, deque()))
        responses[-1][1].append(position)

    def take(self, key: str) -> PartPosition | None:
        """Removes the first call of the latest response that has one with this key."""
        if not (responses := self._calls.get(key)):
            return None
        calls = responses[-1][1]
        position = calls.popleft()
        if not calls:
            responses.pop()
        return position

    def positions(self) -> list[PartPosition]:
        """Returns the calls that are still open."""
        return [call for responses in self._calls.values() for _, calls in responses for call in calls]


def _match_calls(messages: Sequence[Message]) -> tuple[dict[PartPosition, PartPosition], list[PartPosition]]:
    calls, calls_by_result, unmatched = _OpenCalls(), dict[PartPosition, PartPosition](), list[PartPosition]()
    response = 0
    for index, message in enumerate(messages):
        response += message.role != "assistant"
        for part_index, part in enumerate(message.parts):
            if isinstance(part, ToolCall):
                calls.add(part.call_id, response, (index, part_index))
            elif isinstance(part, ToolResult):
                call = calls.take(part.call_id)
                if call is not None:
                    calls_by_result[index, part_index] = call
                elif part.name:
                    unmatched.append((index, part_index))
    open_calls = calls.positions()
    return (
        _match_by_name(messages, calls_by_result, open_calls, unmatched) if unmatched else (calls_by_result, open_calls)
    )


def _match_by_name(
    messages: Sequence[Message],
    calls_by_result: dict[PartPosition, PartPosition],
    open_calls: Sequence[PartPosition],
    results: Sequence[PartPosition],
) -> tuple[dict[PartPosition, PartPosition], list[PartPosition]]:
    """Matches the results to those of the open calls that are of the same function."""
    calls, matches = _OpenCalls(), dict(calls_by_result)
    responses = list(accumulate(message.role != "assistant" for message in messages))
    for position in sorted([*open_calls, *results]):
        index, part_index = position
        part = messages[index].parts[part_index]
        if isinstance(part, ToolCall):
            calls.add(part.name, responses[index], position)
        elif isinstance(part, ToolResult) and (call := calls.take(part.name)) is not None:
            matches[position] = call
    return matches, calls.positions()


def _pair_groups(messages: Sequence[Message]) -> Iterator[tuple[int, int]]:
    """Keeps a call together with its result and all messages between them."""
    for (result, _), (call, _) in match_results_to_calls(messages).items():
        yield call, result


def _approval_groups(messages: Sequence[Message]) -> Iterator[tuple[int, int]]:
    """Keeps a request for approval together with the calls that it led to.

    An approval without its calls looks as if it was just given, and the provider makes the calls once more.
    """
    requests: dict[str, int] = {}
    for index, message in enumerate(messages):
        for part in message.parts:
            if isinstance(part, ToolCall) and part.approval_id:
                if part.call_id == part.approval_id:
                    requests[part.approval_id] = index
                elif part.approval_id in requests:
                    yield requests[part.approval_id], index


def _instruction_groups(messages: Sequence[Message], standing: Collection[int]) -> Iterator[tuple[int, int]]:
    """Keeps an instruction within the list together with the message before it: both belong to one round."""
    for index in range(1, len(messages)):
        is_bound = messages[index - 1].role != "other" or is_instruction(messages[index - 1])
        if is_bound and is_instruction(messages[index]) and index not in standing and index - 1 not in standing:
            yield index - 1, index


def _batch_groups(messages: Sequence[Message]) -> Iterator[tuple[int, int]]:
    """Keeps a parallel batch whole: consecutive calls stay together, and so do consecutive results."""
    for index in range(1, len(messages)):
        message, previous_message = messages[index], messages[index - 1]
        if (_has_only(message, ToolCall) and _ends_with_call(previous_message)) or (
            _has_only(message, ToolResult) and previous_message.has_tool_result
        ):
            yield index - 1, index


def _reasoning_groups(messages: Sequence[Message]) -> Iterator[tuple[int, int]]:
    """Keeps a reasoning item together with the rest of the model's turn; so too a reference, which may be reasoning.

    OpenAI refuses a call or a message whose reasoning item is missing, and the other way round.
    """
    start = -1
    for index, message in enumerate(messages):
        if has_item_reference(message):
            if start < 0:
                start = index
            else:
                yield start, index
        elif message.role != "assistant":
            if not is_model_item(message):
                start = -1
            elif start >= 0:
                yield start, index
        elif is_reasoning_only(message) and start < 0:
            start = index
        elif start >= 0:
            yield start, index


def _reference_groups(messages: Sequence[Message]) -> Iterator[tuple[int, int]]:
    """Keeps a result without a call together with the latest message before it with a reference or with content that
    the proxy does not understand, which may be that call; and such items in a row together."""
    unclear = [has_opaque_part(message) for message in messages]
    if not any(unclear):
        return
    calls_by_result, reference = match_results_to_calls(messages), -1
    for index, message in enumerate(messages):
        if index and is_unknown_item(message) and is_unknown_item(messages[index - 1]):
            yield index - 1, index
        reference = index if unclear[index] else reference
        for part_index, part in enumerate(message.parts):
            if reference >= 0 and isinstance(part, ToolResult) and (index, part_index) not in calls_by_result:
                yield reference, index


RULES: tuple[Rule, ...] = (_pair_groups, _approval_groups, _batch_groups, _reasoning_groups, _reference_groups)


def _has_only(message: Message, kind: type) -> bool:
    return bool(message.parts) and all(isinstance(part, kind) for part in message.parts)


def _ends_with_call(message: Message) -> bool:
    return bool(message.parts) and isinstance(message.parts[-1], ToolCall)
