"""Where a history may be cut: small rules, intersected.

A place is named by the index of the message before which the cut would be. A cut is legal where every rule allows it.
All of it is linear in the number of parts, whatever the ids.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate

from accordion.core.conversation import UNHEARD, Message, Opaque, Reasoning, Text, ToolCall, ToolResult

Rule = Callable[[Sequence[Message]], Iterable[tuple[int, int]]]
"""Gives ranges (first, last; inclusive) of messages that must stay together."""

_HOSTED = "srvtoolu_"

Place = tuple[int, int]
"""A part: the index of its message, and its own within it."""


def pairs(messages: Sequence[Message]) -> dict[Place, Place]:
    """The place of each answered call by the place of its result.

    Matched by order: a result answers a call of the latest reply that left one of its id open, so that an id that is
    used again is another pair; calls of one id that were made at once are answered in their order.
    """
    return _matched(messages)[0]


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


def unheard(message: Message) -> bool:
    """Whether a message stands for words that only the provider has. They are a reply's as a rule; where nobody has
    spoken before they may be what the user asked."""
    part = message.parts[0] if message.parts else None
    return message.role == "assistant" and isinstance(part, Text) and part.text.startswith(UNHEARD)


def resumes(message: Message) -> bool:
    """Whether the provider goes on from here and drops what is before: a compaction block or item of its own.

    Sources: Messages, "Compaction" ("automatically drops all message blocks prior to the compaction block"; one without
    content "represents a failed compaction", a "no-op"); Responses, "Compaction" (the latest item carries what is
    needed).
    """
    # Asked of every message that is counted: a generator would take more than twice as long.
    for part in message.parts:  # noqa: SIM110
        if isinstance(part, Opaque) and part.kind == "compaction" and part.size:
            return True
    return False


def resumption(messages: Sequence[Message], first: int = 0, end: int | None = None) -> int:
    """The last of `messages[first:end]` from which the provider goes on; -1 where there is none."""
    for index in range((len(messages) if end is None else end) - 1, first - 1, -1):
        if resumes(messages[index]):
            return index
    return -1


def outlasts(message: Message, resumed: Message) -> bool:
    """Whether a message before the one that the provider resumes from is read all the same. Nothing is before a block;
    before an item by itself, what `/responses/compact` leaves there: all but what the model, tools and provider said.
    """
    return resumed.role == "other" and message.role in ("system", "developer", "user")


def passed_over(messages: Sequence[Message]) -> frozenset[int]:
    """The places of the messages that the provider does not read: it resumes from a later one."""
    last = resumption(messages)
    if last <= 0:
        return frozenset()
    return frozenset(index for index in range(last) if not outlasts(messages[index], messages[last]))


def running(messages: Sequence[Message], waiting: Iterable[Place]) -> int:
    """The message with the code that the provider runs, and that waits for the results of calls it made; the number of
    messages where there is none. Nothing but such results may stand behind it.

    Sources: Anthropic, "Programmatic tool calling" ("your response message must contain only tool_result blocks");
    `program` of Responses.
    """
    return min((at for at, part in waiting if _runs(messages[at].parts[part])), default=len(messages))


def _runs(part: object) -> bool:
    return isinstance(part, ToolCall) and (part.call_id.startswith(_HOSTED) or part.name == "program")


def lone_reasoning(message: Message) -> bool:
    """Whether a message is nothing but reasoning: an item of Responses."""
    return _only(message, Reasoning)


def _matched(messages: Sequence[Message]) -> tuple[dict[Place, Place], list[Place]]:
    # By id, what each reply left open; replies are told apart by how much others had said before.
    opened: dict[str, list[tuple[int, deque[Place]]]] = {}
    matched: dict[Place, Place] = {}
    heard = 0
    for index, message in enumerate(messages):
        heard += message.role != "assistant"
        for at, part in enumerate(message.parts):
            if isinstance(part, ToolCall):
                replies = opened.setdefault(part.call_id, [])
                if not replies or replies[-1][0] != heard:
                    replies.append((heard, deque()))
                replies[-1][1].append((index, at))
            elif isinstance(part, ToolResult) and (replies := opened.get(part.call_id, [])):
                places = replies[-1][1]
                matched[index, at] = places.popleft()
                if not places:
                    replies.pop()
    return matched, [place for replies in opened.values() for _, places in replies for place in places]


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
            if start < 0:
                start = index
            else:
                yield start, index
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
