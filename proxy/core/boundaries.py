"""Where a history may be cut: small rules, intersected.

A place is named by the index of the message before which the cut would be. A cut is legal where every rule allows it.
All of it is linear in the number of parts, whatever the ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate

from proxy.core.conversation import Message, Opaque, Reasoning, ToolCall, ToolResult

Rule = Callable[[Sequence[Message]], Iterable[tuple[int, int]]]
"""Gives ranges (first, last; inclusive) of messages that must stay together."""

Place = tuple[int, int]
"""A part: the index of its message, and its own within it."""


def pairs(messages: Sequence[Message]) -> dict[Place, Place]:
    """The place of each answered call by the place of its result.

    Matched by order: a result answers the latest open call of its id, so that an id that is used again is another
    pair, and of two calls of one id that were made at once each has its own.
    """
    return _matched(messages)[0]


def open_calls(messages: Sequence[Message]) -> frozenset[int]:
    """Indexes of messages that hold a call nobody has answered yet."""
    return frozenset(index for index, _ in open_places(messages))


def open_places(messages: Sequence[Message]) -> frozenset[Place]:
    """The calls that nobody has answered yet."""
    return frozenset(_matched(messages)[1])


def groups(messages: Sequence[Message]) -> tuple[tuple[int, int], ...]:
    """The list as ranges (first, last; inclusive) between legal cuts: each leaves as a whole or not at all."""
    if not messages:
        return ()
    # Ranges may overlap at will: each adds one where it begins to forbid cuts and takes it back where it ends.
    change = [0] * (len(messages) + 1)
    for rule in RULES:
        for first, last in rule(messages):
            change[first + 1] += 1
            change[last + 1] -= 1
    starts = [index for index, held in enumerate(accumulate(change[:-1])) if not held]
    return tuple(zip(starts, [start - 1 for start in starts[1:]] + [len(messages) - 1], strict=True))


def task_of(messages: Sequence[Message]) -> int:
    """The index of the task: the last message that holds user text and no tool result; -1 where there is none."""
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].has_user_text and not messages[index].has_tool_result:
            return index
    return -1


def opaque(message: Message) -> bool:
    """Whether something stands in a message that is not understood, be it within a result."""
    return any(
        isinstance(part, Opaque) or (isinstance(part, ToolResult) and any(isinstance(p, Opaque) for p in part.parts))
        for part in message.parts
    )


def refers(message: Message) -> bool:
    """Whether a message stands for an item that only the provider has, a call maybe: an `item_reference` of
    Responses."""
    return any(isinstance(part, Opaque) and part.kind == "item_reference" for part in message.parts)


def lone_reasoning(message: Message) -> bool:
    """Whether a message is nothing but reasoning: an item of Responses."""
    return _only(message, Reasoning)


def _matched(messages: Sequence[Message]) -> tuple[dict[Place, Place], list[Place]]:
    opened: dict[str, list[Place]] = {}
    matched: dict[Place, Place] = {}
    for index, message in enumerate(messages):
        for at, part in enumerate(message.parts):
            if isinstance(part, ToolCall):
                opened.setdefault(part.call_id, []).append((index, at))
            elif isinstance(part, ToolResult) and opened.get(part.call_id):
                matched[index, at] = opened[part.call_id].pop()
    return matched, [place for places in opened.values() for place in places]


def _pairs(messages: Sequence[Message]) -> Iterator[tuple[int, int]]:
    """A call stays with its result, and with all that stands between them."""
    for (result, _), (call, _) in pairs(messages).items():
        yield call, result


def _batches(messages: Sequence[Message]) -> Iterator[tuple[int, int]]:
    """A parallel batch stays whole: neither calls that follow each other nor results that do are parted."""
    for index in range(1, len(messages)):
        now, before = messages[index], messages[index - 1]
        if (_only(now, ToolCall) and _ends_with_call(before)) or (_only(now, ToolResult) and before.has_tool_result):
            yield index - 1, index


def _reasoned(messages: Sequence[Message]) -> Iterator[tuple[int, int]]:
    """Reasoning that stands alone stays with all that the model said and did next, up to what others said; so does a
    reference, which may stand for reasoning.

    OpenAI refuses a call or a message whose reasoning item is missing, and the other way round.
    """
    start = -1
    for index, message in enumerate(messages):
        if refers(message):
            start = index if start < 0 else start
        elif message.role != "assistant":
            start = -1
        elif lone_reasoning(message) and start < 0:
            start = index
        elif start >= 0:
            yield start, index


def _referred(messages: Sequence[Message]) -> Iterator[tuple[int, int]]:
    """A result whose call is nowhere in the list stays with the latest reference before it, which may stand for that
    call: a reference never leaves, and the provider refuses a call without its result."""
    if not any(map(refers, messages)):
        return
    matched, last = pairs(messages), -1
    for index, message in enumerate(messages):
        last = index if refers(message) else last
        for at, part in enumerate(message.parts):
            if last >= 0 and isinstance(part, ToolResult) and (index, at) not in matched:
                yield last, index


RULES: tuple[Rule, ...] = (_pairs, _batches, _reasoned, _referred)


def _only(message: Message, kind: type) -> bool:
    return bool(message.parts) and all(isinstance(part, kind) for part in message.parts)


def _ends_with_call(message: Message) -> bool:
    return bool(message.parts) and isinstance(message.parts[-1], ToolCall)
