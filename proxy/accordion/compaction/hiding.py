"""What leaves one stretch of a list so that some of its results are not seen: the results with their calls, and the
reasoning that led to nothing else.

A stretch begins and ends where no call waits for its result, so that what leaves it depends on nothing outside of it.
Pure: JSON is edited, nothing is kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from accordion.core.boundaries import Place, lone_reasoning, pairs, refers
from accordion.core.conversation import Message, Reasoning, ToolCall, ToolResult
from accordion.core.values import dataclass
from accordion.dialects.base import Dialect
from accordion.dialects.legality import FIRST

_TRIED = 8
"""So many results are tried as the one that has to stay where a provider would refuse the list without them all."""


@dataclass(frozen=True, slots=True)
class Hiding:
    """What is done to a stretch. `gone` are the parts that leave, by message; `wires` the JSON of the messages of which
    something stays; all others in `gone` leave as a whole. `taken` gives the call of each hidden result (None where it
    has none), `kept` the results that have to stay. Places count from the beginning of the stretch."""

    gone: Mapping[int, frozenset[int]]
    wires: Mapping[int, bytes]
    taken: Mapping[Place, Place | None]
    kept: frozenset[Place]


def stretches(messages: Sequence[Message], start: int) -> Iterator[tuple[int, int, bool]]:
    """The list from `start` on, cut behind each message of the user's or of a tool after which no call waits: first,
    end, and whether it was such a cut that ended it."""
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


def hide(dialect: Dialect, messages: Sequence[Message], wanted: Collection[Place], held: bool) -> Hiding:
    """Takes the results at the places `wanted` out of a stretch. `held` tells whether calls may be known to the
    provider alone, from before the stretch.

    A result stays where its call cannot leave: what the dialect does not edit, what a reference of Responses may stand
    for or be the reasoning of. Where a provider would refuse what is left, one more stays, or all of them.
    """
    wanted = sorted(place for place in wanted if _is_result(messages, place))
    led, matched = _led_by_reference(messages), pairs(messages)
    # Behind this a result may answer a call that only the provider has, which it refuses without the result.
    elsewhere = next((index for index, message in enumerate(messages) if refers(message)), len(messages))
    elsewhere = -1 if held else elsewhere
    takes: dict[Place, Place | None] = {}
    for place in wanted:
        call = matched.get(place)
        if not (elsewhere < place[0] if call is None else call[0] in led):
            takes[place] = call
    for attempt in _attempts(takes):
        hiding = _carried(dialect, messages, attempt)
        if not _refused(dialect, messages, hiding):
            break
    return Hiding(hiding.gone, hiding.wires, hiding.taken, frozenset(wanted) - hiding.taken.keys())


def _is_result(messages: Sequence[Message], place: Place) -> bool:
    parts = messages[place[0]].parts
    return 0 <= place[1] < len(parts) and isinstance(parts[place[1]], ToolResult)


def _attempts(takes: dict[Place, Place | None]) -> Iterator[dict[Place, Place | None]]:
    """All of them, all but one, none."""
    yield takes
    for left in list(reversed(takes))[:_TRIED]:
        yield {place: call for place, call in takes.items() if place != left}
    yield {}


def _carried(dialect: Dialect, messages: Sequence[Message], takes: Mapping[Place, Place | None]) -> Hiding:
    """Carries out what can be: pairs that the dialect cannot take out stay, and so do those that go with them."""
    taken = dict(takes)
    while True:
        gone: dict[int, set[int]] = {}
        for place in (*taken, *filter(None, taken.values())):
            gone.setdefault(place[0], set()).add(place[1])
        whole = _reason(messages, gone)
        wires: dict[int, bytes] = {}
        stuck: set[Place] = set()
        for index, parts in gone.items():
            if index not in whole:
                stuck |= _edited(dialect, messages[index], index, parts, wires)
        if not stuck:
            return Hiding({index: frozenset(parts) for index, parts in gone.items()}, wires, taken, frozenset())
        taken = {result: call for result, call in taken.items() if result not in stuck and call not in stuck}


def _edited(
    dialect: Dialect, message: Message, index: int, parts: Collection[int], wires: dict[int, bytes]
) -> set[Place]:
    """Edits a message; gives the places that the dialect does not take out."""
    try:
        wire = dialect.edit(message, dict.fromkeys(parts))
    except ValueError:
        own = [part for part in parts if not isinstance(message.parts[part], Reasoning)]
        return {(index, part) for part in own if not _may_leave(dialect, message, part)} or {
            (index, part) for part in own
        }
    if wire is not None:
        wires[index] = wire
    return set()


def _may_leave(dialect: Dialect, message: Message, part: int) -> bool:
    try:
        dialect.edit(message, {part: None})
    except ValueError:
        return False
    return True


def _reason(messages: Sequence[Message], gone: dict[int, set[int]]) -> set[int]:
    """Adds to `gone` the reasoning that led to nothing but what leaves; gives the messages of which nothing stays.

    Reasoning leads to what the model said and did behind it, up to other reasoning: within a message, or, as an item of
    its own, up to what others said. What a message reasons leaves too where nothing else of it stays.
    """
    for index, parts in gone.items():
        _reason_within(messages[index], parts)
    whole = {index for index, parts in gone.items() if len(parts) == len(messages[index].parts)}
    led, lost = False, False  # whether something follows, and whether all of it leaves
    fresh = True  # whether what follows is other reasoning's
    for index in range(max(whole, default=-1), -1, -1):
        message = messages[index]
        if refers(message):
            # It may be what the reasoning before it led to, and stays.
            led, lost, fresh = True, False, False
        elif message.role != "assistant":
            led, lost, fresh = False, False, True
        elif lone_reasoning(message):
            if led and lost:
                gone[index] = set(range(len(message.parts)))
                whole.add(index)
            fresh = True
        else:
            lost = index in whole and (fresh or lost)
            led, fresh = True, False
    return whole


def _reason_within(message: Message, gone: set[int]) -> None:
    reasons = [at for at, part in enumerate(message.parts) if isinstance(part, Reasoning)]
    if len(gone) + len(reasons) == len(message.parts):
        gone.update(reasons)
        return
    end, follows = len(message.parts), True
    for at in reversed(reasons):
        led = range(at + 1, end)
        # Thoughts in a row lead to the same.
        follows = all(after in gone for after in led) if led else follows and end < len(message.parts)
        if follows:
            gone.add(at)
        end = at


def _led_by_reference(messages: Sequence[Message]) -> set[int]:
    """What the model said and did in a reply that holds a reference before: it may stand for the reasoning that led
    there, which the provider refuses without what it led to."""
    found, referred = set(), False
    for index, message in enumerate(messages):
        if refers(message):
            referred = True
        elif message.role != "assistant":
            referred = False
        elif referred:
            found.add(index)
    return found


def _refused(dialect: Dialect, messages: Sequence[Message], hiding: Hiding) -> bool:
    """Whether a provider would refuse what is left for a reason that it did not have before. Who speaks first is a
    question to the whole list."""
    if not hiding.taken:
        return False
    left = [
        message if index not in hiding.gone else _read(dialect, hiding.wires[index])
        for index, message in enumerate(messages)
        if index not in hiding.gone or index in hiding.wires
    ]
    found = Counter(dialect.problems(left)) - Counter(dialect.problems(messages))
    return any(sentence != FIRST for sentence in found)


def _read(dialect: Dialect, wire: bytes) -> Message:
    read = dialect.message(wire)
    return Message(b"", read.role, read.parts, wire)
