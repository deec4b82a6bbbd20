"""Removes results from one range of a list, with their calls and the reasoning that produced only these.

A range begins and ends where no call waits for its result, so the removal depends on nothing outside of the range. All
functions are pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from accordion.model.boundaries import PartPosition, has_item_reference, is_reasoning_only, match_results_to_calls
from accordion.model.conversation import Message, Reasoning, ToolCall, ToolResult
from accordion.protocols.base import WireProtocol
from accordion.protocols.legality import FIRST

_MAX_ATTEMPTS = 8
"""The most results that are tried as the one that stays, where a provider would refuse the list without all."""


class ResultRemoval(msgspec.Struct, frozen=True):
    """The changes to a range; indexes count from its beginning.

    `removed_parts` has the removed parts, by message. `edited_messages` has the JSON of the messages that keep a part;
    the other messages in `removed_parts` are removed whole. `removed_calls` has the call of each removed result (or
    None), `unremovable_results` the results that must stay.
    """

    removed_parts: Mapping[int, frozenset[int]]
    edited_messages: Mapping[int, bytes]
    removed_calls: Mapping[PartPosition, PartPosition | None]
    unremovable_results: frozenset[PartPosition]


def split_into_ranges(messages: Sequence[Message], start: int) -> Iterator[tuple[int, int, bool]]:
    """Splits the list from `start` on after each message of the user or a tool with no pending call.

    Yields the first index, the end, and whether the range ends at such a message.
    """
    open_calls: Counter[str] = Counter()
    first = start
    for index in range(start, len(messages)):
        message = messages[index]
        for part in message.parts:
            if isinstance(part, ToolCall):
                open_calls[part.call_id] += 1
            elif isinstance(part, ToolResult) and part.call_id in open_calls:
                open_calls[part.call_id] -= 1
                if not open_calls[part.call_id]:
                    del open_calls[part.call_id]
        if not open_calls and message.role in ("user", "tool"):
            yield first, index + 1, True
            first = index + 1
    if first < len(messages):
        yield first, len(messages), False


def remove_results(
    protocol: WireProtocol,
    messages: Sequence[Message],
    hidden_positions: Collection[PartPosition],
    has_provider_history: bool,
) -> ResultRemoval:
    """Removes the results at `hidden_positions` from a range.

    `has_provider_history` says that only the provider may know calls from before the range. A result stays where its
    call cannot be removed: where the protocol does not allow the edit, or a reference of Responses may refer to the
    call or its reasoning. Where a provider would refuse the remaining list, one more result stays, or all of them.
    """
    hidden_positions = sorted(position for position in hidden_positions if _is_result(messages, position))
    fixed_messages, calls_by_result = _find_output_behind_references(messages), match_results_to_calls(messages)
    # After a reference, a result may belong to a call that only the provider has; it refuses that call without result.
    reference = next((index for index, message in enumerate(messages) if has_item_reference(message)), len(messages))
    reference = -1 if has_provider_history else reference
    pairs: dict[PartPosition, PartPosition | None] = {}
    for position in hidden_positions:
        call = calls_by_result.get(position)
        if not (reference < position[0] if call is None else call[0] in fixed_messages):
            pairs[position] = call
    for attempt in _list_attempts(pairs):
        removal = _remove_pairs(protocol, messages, attempt)
        if not _becomes_illegal(protocol, messages, removal):
            break
    return ResultRemoval(
        removal.removed_parts,
        removal.edited_messages,
        removal.removed_calls,
        frozenset(hidden_positions) - removal.removed_calls.keys(),
    )


def _is_result(messages: Sequence[Message], position: PartPosition) -> bool:
    parts = messages[position[0]].parts
    return 0 <= position[1] < len(parts) and isinstance(parts[position[1]], ToolResult)


def _list_attempts(pairs: dict[PartPosition, PartPosition | None]) -> Iterator[dict[PartPosition, PartPosition | None]]:
    """Yields all pairs, then all but one, then none."""
    yield pairs
    for excepted in list(reversed(pairs))[:_MAX_ATTEMPTS]:
        yield {position: call for position, call in pairs.items() if position != excepted}
    yield {}


def _remove_pairs(
    protocol: WireProtocol, messages: Sequence[Message], pairs: Mapping[PartPosition, PartPosition | None]
) -> ResultRemoval:
    """Removes pairs; those that the protocol cannot remove stay, with the pairs that depend on them."""
    remaining = dict(pairs)
    while True:
        removed_parts: dict[int, set[int]] = {}
        for position in (*remaining, *filter(None, remaining.values())):
            removed_parts.setdefault(position[0], set()).add(position[1])
        removed_messages = _remove_reasoning(messages, removed_parts)
        wires: dict[int, bytes] = {}
        unremovable: set[PartPosition] = set()
        for index, parts in removed_parts.items():
            if index not in removed_messages:
                unremovable |= _edit_message(protocol, messages[index], index, parts, wires)
        if not unremovable:
            return ResultRemoval(
                {index: frozenset(parts) for index, parts in removed_parts.items()}, wires, remaining, frozenset()
            )
        remaining = {
            result: call for result, call in remaining.items() if result not in unremovable and call not in unremovable
        }


def _edit_message(
    protocol: WireProtocol, message: Message, index: int, parts: Collection[int], wires: dict[int, bytes]
) -> set[PartPosition]:
    """Edits a message; returns the positions of parts that the protocol cannot remove."""
    try:
        wire = protocol.edit_message(message, dict.fromkeys(parts))
    except ValueError:
        output_parts = [part for part in parts if not isinstance(message.parts[part], Reasoning)]
        return {(index, part) for part in output_parts if not _can_remove(protocol, message, part)} or {
            (index, part) for part in output_parts
        }
    if wire is not None:
        wires[index] = wire
    return set()


def _can_remove(protocol: WireProtocol, message: Message, part: int) -> bool:
    try:
        protocol.edit_message(message, {part: None})
    except ValueError:
        return False
    return True


def _remove_reasoning(messages: Sequence[Message], removed_parts: dict[int, set[int]]) -> set[int]:
    """Adds to `removed_parts` the reasoning that produced only removed output; returns the wholly removed messages.

    Reasoning produces the model's output after it, up to the next reasoning: within a message, or, as an item of its
    own, up to the next message that is not the model's. A message's reasoning is also removed where nothing else
    remains.
    """
    for index, parts in removed_parts.items():
        _remove_reasoning_within(messages[index], parts)
    removed_messages = {index for index, parts in removed_parts.items() if len(parts) == len(messages[index].parts)}
    has_output, is_output_removed = False, False  # whether output follows, and whether all of it is removed
    starts_group = True  # whether the output that follows belongs to other reasoning
    for index in range(max(removed_messages, default=-1), -1, -1):
        message = messages[index]
        if has_item_reference(message):
            # The reference stays, and may be output of the reasoning before it.
            has_output, is_output_removed, starts_group = True, False, False
        elif message.role != "assistant":
            has_output, is_output_removed, starts_group = False, False, True
        elif is_reasoning_only(message):
            if has_output and is_output_removed:
                removed_parts[index] = set(range(len(message.parts)))
                removed_messages.add(index)
            starts_group = True
        else:
            is_output_removed = index in removed_messages and (starts_group or is_output_removed)
            has_output, starts_group = True, False
    return removed_messages


def _remove_reasoning_within(message: Message, removed: set[int]) -> None:
    reasoning_indexes = [at for at, part in enumerate(message.parts) if isinstance(part, Reasoning)]
    if len(removed) + len(reasoning_indexes) == len(message.parts):
        removed.update(reasoning_indexes)
        return
    end, is_output_removed = len(message.parts), True
    for at in reversed(reasoning_indexes):
        output = range(at + 1, end)
        # Consecutive reasoning parts produce the same output.
        is_output_removed = (
            all(after in removed for after in output) if output else is_output_removed and end < len(message.parts)
        )
        if is_output_removed:
            removed.add(at)
        end = at


def _find_output_behind_references(messages: Sequence[Message]) -> set[int]:
    """Returns the messages of the model after a reference in the same response.

    The reference may be their reasoning, which the provider refuses without its output.
    """
    output, has_reference = set(), False
    for index, message in enumerate(messages):
        if has_item_reference(message):
            has_reference = True
        elif message.role != "assistant":
            has_reference = False
        elif has_reference:
            output.add(index)
    return output


def _becomes_illegal(protocol: WireProtocol, messages: Sequence[Message], removal: ResultRemoval) -> bool:
    """Whether the removal adds a problem for which a provider refuses the list.

    The rule about the first role is left out; it concerns the whole list.
    """
    if not removal.removed_calls:
        return False
    remaining = [
        message if index not in removal.removed_parts else _read_message(protocol, removal.edited_messages[index])
        for index, message in enumerate(messages)
        if index not in removal.removed_parts or index in removal.edited_messages
    ]
    new_problems = Counter(protocol.find_problems(remaining)) - Counter(protocol.find_problems(messages))
    return any(problem != FIRST for problem in new_problems)


def _read_message(protocol: WireProtocol, wire: bytes) -> Message:
    parsed = protocol.read_message(wire)
    return Message(b"", parsed.role, parsed.parts, wire)
