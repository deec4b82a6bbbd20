"""A plan, laid out over the list: what is changed, what leaves, where a block of text stands instead.

Pure bookkeeping: nothing is written yet. The summary and the archive are made from a layout, then the record.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate, pairwise

from accordion.core.boundaries import lone_reasoning, open_places, pairs, refers
from accordion.core.conversation import Conversation, Message, ToolCall, ToolResult
from accordion.core.edits import Compaction
from accordion.core.errors import AccordionError
from accordion.core.plan import Plan, Replace, Slot, Summarize, placed
from accordion.core.values import dataclass
from accordion.dialects.base import Dialect


class Unfit(AccordionError):
    """A plan that cannot be carried out, or whose outcome would be no better; the reason is told. Never shown to a
    client."""


@dataclass(frozen=True, slots=True)
class Block:
    """A text in place of others: before slot `slot`, for the client's messages `first` to `last` as far as they left.
    `note` is its text where no summary is wanted."""

    slot: int
    first: int
    last: int
    budget: int
    note: str = ""
    keys: tuple[bytes, ...] = ()
    """The keys of the messages that left the list, as it stood: what the id in a note is made of."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What is to be done to `slots`. `changes` are texts (or None, to take out) by slot and part, `gone` the slots that
    leave as a whole, `covered` how many of the client's messages the record has to tell of."""

    slots: tuple[Slot, ...]
    client: Conversation
    base: Compaction | None
    changes: Mapping[int, Mapping[int, str | None]]
    gone: frozenset[int]
    blocks: tuple[Block, ...]
    covered: int

    @property
    def summarized(self) -> Block | None:
        """The block that a summary has to be written for; the last, were there several."""
        return next((block for block in reversed(self.blocks) if not block.note), None)

    def kept(self) -> list[Message]:
        """The messages that stay in sight, as they were."""
        return [slot.message for index, slot in enumerate(self.slots) if index not in self.gone and not slot.summary]

    def behind(self, block: Block) -> list[int]:
        """The client's messages that a block stands for, by index: all of its stretch that is nowhere else in sight."""
        seen = {slot.origin for index, slot in enumerate(self.slots) if index not in self.gone and not slot.summary}
        return [index for index in range(block.first, block.last + 1) if index not in seen]


def laid_out(plan: Plan, client: Conversation, base: Compaction | None, dialect: Dialect) -> Layout:
    """Lays a plan out. `client` is the list as the client sent it, `base` the fold that the plan's view was made with.
    Raises Unfit where there is nothing to do."""
    view = plan.view
    changes: dict[int, dict[int, str | None]] = {}
    gone: set[int] = set()
    owners: dict[int, int] = {}
    summaries: list[Summarize] = []
    for step in plan.steps:
        if isinstance(step, Summarize):
            # What is held fast stays around the block; a block of this plan is not taken into another one.
            leaving = [index for index in range(step.first, step.last + 1) if view.whole[index] and index not in owners]
            owners.update(dict.fromkeys(leaving, len(summaries)))
            summaries.append(step)
            gone.update(leaving)
        elif isinstance(step, Replace):
            changes.setdefault(step.slot, {})[step.part] = step.text
        elif step.parts:
            changes.setdefault(step.slot, {}).update(dict.fromkeys(step.parts))
        else:
            gone.add(step.slot)
    _repair(view.slots, dialect, changes)
    changed = {index: parts for index, parts in changes.items() if index not in gone and parts}
    touched = [view.slots[index] for index in (*changed, *gone)]
    if not touched:
        raise Unfit("no message may be compacted")
    covered = max(base.covered if base is not None else 0, *(slot.last + 1 for slot in touched))
    for index, place in getattr(view, "orphans", ()):
        # What it led to is dropped with what is covered; behind that it is put back at every request.
        if view.slots[place].first < covered:
            gone.add(index)
            covered = max(covered, view.slots[index].last + 1)
    changed = {index: parts for index, parts in changed.items() if index not in gone}
    return Layout(view.slots, client, base, changed, frozenset(gone), _blocks(view.slots, summaries, owners), covered)


def _blocks(slots: Sequence[Slot], summaries: Sequence[Summarize], owners: Mapping[int, int]) -> tuple[Block, ...]:
    blocks = []
    for number, step in enumerate(summaries):
        own = [index for index, owner in owners.items() if owner == number]
        if own:
            first = min(slots[index].first for index in own)
            last = max(slots[index].last for index in own)
            keys = tuple(slots[index].message.key for index in sorted(own))
            blocks.append(Block(placed(slots, sorted(own)), first, last, step.budget, step.note, keys))
    return tuple(sorted(blocks, key=lambda block: block.slot))


# -- orphans -----------------------------------------------------------------------------------------------------------


def unpaired(
    messages: Sequence[Message], waits: Callable[[Message], bool] = lambda _: False
) -> Iterator[tuple[int, int]]:
    """Calls that nobody answered though the talk went on, and results that answer no call: (message, part).

    Calls at the end of the list are open, which is no fault, and so are those that `waits` names; nor is a result that
    it names, or one behind a reference to an item that only the provider has, which may be its call.
    """
    matched, referred = pairs(messages), False
    ends = len(messages)
    while ends and messages[ends - 1].has_tool_result:
        ends -= 1
    while ends and _calls(messages[ends - 1]):
        ends -= 1
    for index, message in enumerate(messages):
        referred = referred or refers(message)
        for number, part in enumerate(message.parts):
            lost = isinstance(part, ToolResult) and (index, number) not in matched and not referred
            if lost and not waits(message):
                yield index, number
    yield from (place for place in open_places(messages) if place[0] < ends and not waits(messages[place[0]]))


def _repair(slots: Sequence[Slot], dialect: Dialect, changes: dict[int, dict[int, str | None]]) -> None:
    """Takes orphans out, as far as the dialect can; what stands beside them stays, and nothing is made up in their
    place. Reasoning that led to nothing else leaves with them."""
    messages, left = [slot.message for slot in slots], set[int]()
    for index, part in unpaired(messages, dialect.waits):
        with suppress(ValueError):
            if dialect.edit(messages[index], {part: None}) is None:
                left.add(index)
            changes.setdefault(index, {})[part] = None
    for index in range(len(messages) - 1, -1, -1) if left else ():
        if lone_reasoning(messages[index]) and _led_to(messages, index) <= left:
            left.add(index)
            changes.setdefault(index, {}).update(dict.fromkeys(range(len(messages[index].parts))))


def _led_to(messages: Sequence[Message], index: int) -> set[int]:
    """What the model said and did right behind a message, up to what others said; the message itself where nothing."""
    end = index + 1
    while end < len(messages) and messages[end].role == "assistant":
        end += 1
    return set(range(index + 1, end)) or {index}


def _calls(message: Message) -> bool:
    return any(isinstance(part, ToolCall) for part in message.parts)


# -- ranges ------------------------------------------------------------------------------------------------------------


def stretches(
    ranges: Sequence[tuple[int, int]], first: int, last: int, weights: Sequence[int], most: int
) -> list[range]:
    """The messages `first` to `last` in stretches of at most `most` tokens each, cut between the groups `ranges`; a
    group that alone has more is a stretch of its own. `weights[i]` are the tokens of message `first + i`.

    Stretches are made from the front, so that a later fold of the same beginning cuts at the same places.
    """
    out: list[range] = []
    start, held = first, 0
    for at in range(bisect_right(ranges, first, key=lambda group: group[0]) - 1, len(ranges)):
        begin, end = max(ranges[at][0], first), min(ranges[at][1], last)
        if begin > end:
            break
        size = sum(weights[begin - first : end - first + 1])
        if held and held + size > most:
            out.append(range(start, begin))
            start, held = begin, 0
        held += size
    if start <= last:
        out.append(range(start, last + 1))
    return out


def gathered(costs: Sequence[int], room: int, joint: int) -> list[range]:
    """What of a list stands alone and what as one entry, so that it comes to `room` at most: entry i alone costs
    `costs[i]`, any number of them as one `joint`.

    The oldest are gathered first: two as one, then two of those, always the same ones, so that a later fold has them
    too; where that is not enough, all but the newest are one.
    """
    runs, left, size = dict(enumerate(costs)), sum(costs), 2
    while left > room and size <= len(costs):
        for start in range(0, len(costs) - size + 1, size):
            if left <= room:
                break
            left += joint - sum(runs.pop(at, 0) for at in range(start, start + size))
            runs[start] = joint
        size *= 2
    starts = sorted(runs)
    if left > room:
        sums = accumulate((runs[at] for at in reversed(starts)), initial=joint)
        alone = max(0, sum(each <= room for each in sums) - 1)
        starts = [0, *starts[len(starts) - alone :]]
    return [range(start, stop) for start, stop in pairwise([*starts, len(costs)])]
