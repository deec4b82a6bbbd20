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
    waiting: Counter[str] = Counter()
    first = start
    for index in range(start, len(messages)):
        message = messages[index]
        for part in message.parts:
            if isinstance(part, ToolCall):
                waiting[part.call_id] += 1
            elif isinstance(part, ToolResult) and part.call_id in waiting:
                waiting[part.call_id] -= 1
                if not waiting[part.call_id]:
                    del waiting[part.call_id]
        if not waiting and message.role in ("user", "tool"):
            yield first, index + 1, True
            first = index + 1
    if first < len(messages):
        yield first, len(messages), False


def remove_results(
    protocol: WireProtocol,
    messages: Sequence[Message],
    hidden_places: Collection[PartPosition],
    has_provider_history: bool,
) -> ResultRemoval:
    """Removes the results at `hidden_places` from a range.

    `has_provider_history` says that only the provider may know calls from before the range. A result stays where its
    call cannot be removed: where the protocol does not allow the edit, or a reference of Responses may refer to the
    call or its reasoning. Where a provider would refuse the remaining list, one more result stays, or all of them.
    """
    hidden_places = sorted(place for place in hidden_places if _is_result(messages, place))
    fixed_outputs, calls_by_result = _find_output_behind_references(messages), match_results_to_calls(messages)
    # After a reference, a result may belong to a call that only the provider has; it refuses that call without result.
    reference = next((index for index, message in enumerate(messages) if has_item_reference(message)), len(messages))
    reference = -1 if has_provider_history else reference
    pairs: dict[PartPosition, PartPosition | None] = {}
    for place in hidden_places:
        call = calls_by_result.get(place)
        if not (reference < place[0] if call is None else call[0] in fixed_outputs):
            pairs[place] = call
    for attempt in _list_attempts(pairs):
        removal = _remove_pairs(protocol, messages, attempt)
        if not _becomes_illegal(protocol, messages, removal):
            break
    return ResultRemoval(
        removal.removed_parts,
        removal.edited_messages,
        removal.removed_calls,
        frozenset(hidden_places) - removal.removed_calls.keys(),
    )


def _is_result(messages: Sequence[Message], place: PartPosition) -> bool:
    parts = messages[place[0]].parts
    return 0 <= place[1] < len(parts) and isinstance(parts[place[1]], ToolResult)


def _list_attempts(takes: dict[PartPosition, PartPosition | None]) -> Iterator[dict[PartPosition, PartPosition | None]]:
    """Yields all pairs, then all but one, then none."""
    yield takes
    for left in list(reversed(takes))[:_MAX_ATTEMPTS]:
        yield {place: call for place, call in takes.items() if place != left}
    yield {}


def _remove_pairs(
    protocol: WireProtocol, messages: Sequence[Message], takes: Mapping[PartPosition, PartPosition | None]
) -> ResultRemoval:
    """Removes pairs; those that the protocol cannot remove stay, with the pairs that depend on them."""
    taken = dict(takes)
    while True:
        gone: dict[int, set[int]] = {}
        for place in (*taken, *filter(None, taken.values())):
            gone.setdefault(place[0], set()).add(place[1])
        whole = _remove_reasoning(messages, gone)
        wires: dict[int, bytes] = {}
        stuck: set[PartPosition] = set()
        for index, parts in gone.items():
            if index not in whole:
                stuck |= _edit_message(protocol, messages[index], index, parts, wires)
        if not stuck:
            return ResultRemoval({index: frozenset(parts) for index, parts in gone.items()}, wires, taken, frozenset())
        taken = {result: call for result, call in taken.items() if result not in stuck and call not in stuck}


def _edit_message(
    protocol: WireProtocol, message: Message, index: int, parts: Collection[int], wires: dict[int, bytes]
) -> set[PartPosition]:
    """Edits a message; returns the positions of parts that the protocol cannot remove."""
    try:
        wire = protocol.edit_message(message, dict.fromkeys(parts))
    except ValueError:
        own = [part for part in parts if not isinstance(message.parts[part], Reasoning)]
        return {(index, part) for part in own if not _may_leave(protocol, message, part)} or {
            (index, part) for part in own
        }
    if wire is not None:
        wires[index] = wire
    return set()


def _may_leave(protocol: WireProtocol, message: Message, part: int) -> bool:
    try:
        protocol.edit_message(message, {part: None})
    except ValueError:
        return False
    return True


def _remove_reasoning(messages: Sequence[Message], removed: dict[int, set[int]]) -> set[int]:
    """Adds to `removed` the reasoning that produced only removed output; returns the wholly removed messages.

    Reasoning produces the model's output after it, up to the next reasoning: within a message, or, as an item of its
    own, up to the next message that is not the model's. A message's reasoning is also removed where nothing else
    remains.
    """
    for index, parts in removed.items():
        _remove_reasoning_within(messages[index], parts)
    whole = {index for index, parts in removed.items() if len(parts) == len(messages[index].parts)}
    led, lost = False, False  # whether output follows, and whether all of it is removed
    fresh = True  # whether the output that follows belongs to other reasoning
    for index in range(max(whole, default=-1), -1, -1):
        message = messages[index]
        if has_item_reference(message):
            # The reference stays, and may be output of the reasoning before it.
            led, lost, fresh = True, False, False
        elif message.role != "assistant":
            led, lost, fresh = False, False, True
        elif is_reasoning_only(message):
            if led and lost:
                removed[index] = set(range(len(message.parts)))
                whole.add(index)
            fresh = True
        else:
            lost = index in whole and (fresh or lost)
            led, fresh = True, False
    return whole


def _remove_reasoning_within(message: Message, removed: set[int]) -> None:
    reasons = [at for at, part in enumerate(message.parts) if isinstance(part, Reasoning)]
    if len(removed) + len(reasons) == len(message.parts):
        removed.update(reasons)
        return
    end, follows = len(message.parts), True
    for at in reversed(reasons):
        led = range(at + 1, end)
        # Consecutive reasoning parts produce the same output.
        follows = all(after in removed for after in led) if led else follows and end < len(message.parts)
        if follows:
            removed.add(at)
        end = at


def _find_output_behind_references(messages: Sequence[Message]) -> set[int]:
    """Returns the messages of the model after a reference in the same response.

    The reference may be their reasoning, which the provider refuses without its output.
    """
    found, referred = set(), False
    for index, message in enumerate(messages):
        if has_item_reference(message):
            referred = True
        elif message.role != "assistant":
            referred = False
        elif referred:
            found.add(index)
    return found


def _becomes_illegal(protocol: WireProtocol, messages: Sequence[Message], removal: ResultRemoval) -> bool:
    """Whether the removal adds a problem for which a provider refuses the list.

    The rule about the first role is left out; it concerns the whole list.
    """
    if not removal.removed_calls:
        return False
    left = [
        message if index not in removal.removed_parts else _read_message(protocol, removal.edited_messages[index])
        for index, message in enumerate(messages)
        if index not in removal.removed_parts or index in removal.edited_messages
    ]
    found = Counter(protocol.find_problems(left)) - Counter(protocol.find_problems(messages))
    return any(sentence != FIRST for sentence in found)


def _read_message(protocol: WireProtocol, wire: bytes) -> Message:
    read = protocol.read_message(wire)
    return Message(b"", read.role, read.parts, wire)
