"""What a list as it is forwarded has beyond the one that folds are planned on, and with what of it that goes.

A fold drops what was read back or recalled behind messages that it covers (dressing.py). So to a plan it is a part of
the message that it stands before, or in the place of.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, takewhile

from accordion.core.boundaries import lone_reasoning, refers
from accordion.core.conversation import Message, Reasoning, ToolCall
from accordion.core.edits import Folded
from accordion.core.plan import WOVEN
from accordion.core.values import replace
from accordion.dialects.base import Dialect
from accordion.dialects.spans import fields_of, is_object


def longer(folded: Folded, shown: Folded, count: Callable[[Message], int]) -> dict[int, int]:
    """By how many tokens the list `shown` is longer than `folded`, by the place in `folded` of the message that it goes
    with: a fold that covers that message drops it. `count` counts a message."""
    found: Counter[int] = Counter()
    for place, mine, woven in _differences(folded, shown):
        found[place] += sum(map(count, woven)) - sum(map(count, mine))
    return {place: more for place, more in found.items() if more > 0}


def orphans(folded: Folded, shown: Folded) -> tuple[tuple[int, int], ...]:
    """The places in `folded` of reasoning that led to calls of our tool, which the client does not have: kept without
    them, it would miss what the provider knows to follow it. Where it led to something else as well, all reasoning
    before that is among them: only so is what stays taken for an item by itself. Each with the place of the message
    that those calls go with."""
    found: list[tuple[int, int]] = []
    for place, mine, woven in _differences(folded, shown):
        alone = _alone(woven, {call for message in mine for call in _calls(message)})
        # A client may name an item by its id alone.
        ids = {_id(message) for message in woven if message.key in alone} - {b""}
        found += [
            (place + at, place)
            for at, message in enumerate(mine)
            if message.key in alone or ((refers(message) or lone_reasoning(message)) and _id(message) in ids)
        ]
    return tuple(found)


def _id(message: Message) -> bytes:
    return fields_of(message.wire).get("id", b"") if is_object(message.wire) else b""


def _alone(messages: Sequence[Message], known: set[str]) -> set[bytes]:
    """The keys of such reasoning."""
    found: set[bytes] = set()
    for at in range(len(messages) - 2, -1, -1):
        one, other = messages[at], messages[at + 1]
        if lone_reasoning(one) and (other.key in found or _hidden(other, known)):
            found.add(one.key)
            led = takewhile(lambda each: not each.has_tool_result, messages[at + 1 :])
            if not all(lone_reasoning(each) or _hidden(each, known) for each in led):
                found |= {each.key for each in messages[:at] if lone_reasoning(each)}
    return found


def _hidden(message: Message, known: set[str]) -> bool:
    calls = _calls(message)
    return bool(calls) and not known.intersection(calls)


def unbound(dialect: Dialect, shown: Folded, before: Folded, read: Callable[[bytes], Message]) -> Folded:
    """The list `shown` without the thinking behind the first place in which it is not as `before`: it is bound to what
    stood before it then. `read` makes a Message of written JSON."""
    listing, former = shown.conversation.messages, before.conversation.messages
    same = sum(1 for _ in takewhile(lambda pair: pair[0].wire == pair[1].wire, zip(listing, former, strict=False)))
    kept, messages = list(range(same)), dict(enumerate(listing))
    for at in range(same, len(listing)):
        thoughts = [number for number, part in enumerate(listing[at].parts) if isinstance(part, Reasoning)]
        wire = dialect.edit(listing[at], dict.fromkeys(thoughts)) if thoughts else listing[at].wire
        if wire is not None:
            kept.append(at)
            messages[at] = read(wire) if thoughts else listing[at]
    told = replace(
        shown.conversation,
        messages=tuple(messages[at] for at in kept),
        chain=tuple(shown.conversation.chain[at] for at in kept),
    )
    origins, spans = tuple(shown.origins[at] for at in kept), tuple(map(_spans(shown).__getitem__, kept))
    return replace(shown, conversation=told, origins=origins, spans=spans)


def _differences(folded: Folded, shown: Folded) -> Iterator[tuple[int, Sequence[Message], Sequence[Message]]]:
    """Where the lists differ: the place in `folded`, the messages there, and those of `shown` in their place. A newer
    fold than that of `shown` may be in force: what it covers is left aside."""
    own, until = folded.conversation.messages, folded.compaction.covered if folded.compaction is not None else 0
    if shown.conversation.messages is own:
        return
    covered, newer = sum(first < until for first, _, _ in folded.spans), folded.compaction != shown.compaction
    last, messages = len(own) - 1, shown.conversation.messages
    spans = _spans(shown)
    for (woven, span), group in groupby(range(len(messages)), lambda at: (shown.origins[at] == WOVEN, spans[at])):
        if newer and span[0] < until:
            continue
        run = list(group)
        place = min(covered + span[0] - until, last)
        if woven:
            # A recall that stands by itself is in the place of none: its span ends before it begins.
            yield place, own[place : place + span[1] - span[0] + 1], [messages[at] for at in run]
            continue
        mine = own[run[0] if run[0] < covered and not newer else place]
        if mine is not messages[run[0]]:
            # A recall was joined to it. To one of the fold's own it stays joined until what follows is covered.
            yield max(place, min(covered, last)), (mine,), (messages[run[0]],)


def _spans(folded: Folded) -> tuple[tuple[int, int, bool], ...]:
    return folded.spans or tuple((at, at, False) for at in folded.origins)


def _calls(message: Message) -> list[str]:
    return [part.call_id for part in message.parts if isinstance(part, ToolCall)]
