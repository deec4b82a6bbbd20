"""What of a strategy's steps may be done: strategies cannot break rules, what is not allowed is left undone.

A replacement touches a free part; a drop leaves pairs whole and reasoning with what it led to; a summary begins and
ends between groups.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from accordion.compaction.sketch import GONE
from accordion.compaction.strategies.base import Archive, Draft
from accordion.core.boundaries import lone_reasoning, refers
from accordion.core.conversation import Opaque, Part, Reasoning, ToolCall, ToolResult
from accordion.core.plan import Drop, Replace, Step, Summarize

Unit = tuple[Step | Archive, ...]
"""Steps that are only legal together."""

Group = tuple[int, int]


def permitted(view: Draft, steps: Sequence[Step | Archive], *, beyond: bool = False) -> Iterator[Unit]:
    """The steps that may be done, in their order. `beyond`: also to what is only within reach."""
    starts = [first for first, _ in view.groups]
    drops: dict[int, dict[int, set[int]]] = {}
    for step in steps:
        if isinstance(step, Drop) and _exists(view, step) and not _only_reasoning(view, step):
            parts = step.parts or range(len(view.slots[step.slot].message.parts))
            group = drops.setdefault(bisect_right(starts, step.slot) - 1, {})
            group.setdefault(step.slot, set()).update(parts)
    for step in steps:
        if isinstance(step, Summarize):
            if (snapped := _snapped(view, step)) is not None:
                yield (snapped,)
        elif not isinstance(step, Drop):
            if _replaceable(view, step, beyond):
                yield (step,)
        elif not _exists(view, step):
            continue
        elif _only_reasoning(view, step):
            if _stale(view, step.slot):
                yield (step,)
        elif (asked := drops.pop(number := bisect_right(starts, step.slot) - 1, None)) is not None:
            yield from _dropped(view, view.groups[number], asked)


def _exists(view: Draft, step: Drop) -> bool:
    if not 0 <= step.slot < len(view.slots) or view.gone[step.slot] or not view.free[step.slot]:
        return False
    return all(0 <= part < len(view.slots[step.slot].message.parts) for part in step.parts)


def _replaceable(view: Draft, step: Replace | Archive, beyond: bool) -> bool:
    if not 0 <= step.slot < len(view.slots) or view.gone[step.slot]:
        return False
    if not view.free[step.slot] and not (beyond and view.reach[step.slot]):
        return False
    parts = view.slots[step.slot].message.parts
    return 0 <= step.part < len(parts) and parts[step.part] != GONE and view.replaceable(step.slot, step.part)


def _snapped(view: Draft, step: Summarize) -> Summarize | None:
    """The same from the first to the last group within it that may leave."""
    within = [group for group in view.whole_groups() if step.first <= group[0] and group[1] <= step.last]
    if not within or step.budget <= 0:
        return None
    return Summarize(within[0][0], within[-1][1], step.budget, step.note)


# -- reasoning ----------------------------------------------------------------


def _only_reasoning(view: Draft, step: Drop) -> bool:
    parts = view.slots[step.slot].message.parts
    return bool(step.parts) and all(isinstance(parts[part], Reasoning) for part in step.parts)


def _stale(view: Draft, slot: int) -> bool:
    """Whether reasoning may go by itself: its turn is over, and the provider does not ask for it."""
    return slot < view.turn and not (lone_reasoning(view.slots[slot].message) and _named(view, slot + 1))


def _named(view: Draft, slot: int) -> bool:
    """Whether an item bears an id, by which the provider knows what reasoning it came with."""
    return slot < len(view.slots) and not view.gone[slot] and b'"id"' in view.slots[slot].message.wire


# -- drops --------------------------------------------------------------------


def _dropped(view: Draft, group: Group, asked: dict[int, set[int]]) -> Iterator[Unit]:
    """The drops within a group, all or none."""
    places = range(group[0], group[1] + 1)
    left = {slot: [at for at, _ in _standing(view, slot) if at not in asked.get(slot, ())] for slot in places}
    if not any(left.values()):
        if view.whole[group[0]]:
            yield tuple(Drop(slot) for slot in places if not view.gone[slot])
        return
    if any(refers(view.slots[slot].message) for slot in places) or any(_thinks_last(view, at, left) for at in asked):
        return
    going = [(slot, at, part) for slot in asked for at, part in _standing(view, slot) if at in asked[slot]]
    if all(_may_go(view, *place) for place in going) and _paired(view, places, left) and _reasoned(view, places, left):
        yield tuple(Drop(slot, tuple(sorted(asked[slot]))) for slot in sorted(asked))


def _standing(view: Draft, slot: int) -> Iterator[tuple[int, Part]]:
    return ((at, part) for at, part in enumerate(view.slots[slot].message.parts) if part != GONE)


def _may_go(view: Draft, slot: int, at: int, part: Part) -> bool:
    if isinstance(part, Reasoning):
        return slot < view.turn or lone_reasoning(view.slots[slot].message)
    if isinstance(part, ToolCall | ToolResult):
        return part.call_id not in view.pinned and (slot, at) not in view.open
    return not isinstance(part, Opaque)


def _thinks_last(view: Draft, slot: int, left: dict[int, list[int]]) -> bool:
    """Whether what is left of a reply ends in thinking, behind something that was said: providers refuse that."""
    thinks = [isinstance(view.slots[slot].message.parts[at], Reasoning) for at in left[slot]]
    return bool(thinks) and thinks[-1] and not all(thinks)


def _paired(view: Draft, places: range, left: dict[int, list[int]]) -> bool:
    """Whether no call is left without its result, and no result without its call."""
    for slot in places:
        for at, part in _standing(view, slot):
            call = view.calls.get((slot, at)) if isinstance(part, ToolResult) else None
            # A pair never reaches out of its group.
            if call is not None and (at in left[slot]) != (call[1] in left[call[0]]):
                return False
    return True


def _reasoned(view: Draft, places: range, left: dict[int, list[int]]) -> bool:
    """Whether no lone reasoning is left without what it led to, nor the other way round where that bears an id."""
    alone, led = -1, False
    for slot in (*places, -1):
        message = view.slots[slot].message if slot >= 0 else None
        if message is not None and lone_reasoning(message):
            alone, led = slot, False
        elif message is not None and message.role == "assistant":
            led = led or bool(left[slot])
            if alone >= 0 and not left[alone] and left[slot] and _named(view, slot):
                return False
        else:
            if alone >= 0 and left[alone] and not led:
                return False
            alone = -1
    return True
