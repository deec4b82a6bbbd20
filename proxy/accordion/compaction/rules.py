"""The rules for steps: filters out the steps of a strategy that would make the history illegal.

A replacement changes a free part. A drop keeps calls and results together, and reasoning with what it led to. A summary
starts and ends between groups. So no strategy, ours or a third party's, can break a rule.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence

from accordion.accounting.token_meter import MESSAGE
from accordion.compaction.strategies.base import NO_ARGUMENTS, REMOVED_PART, DeferredReplace, ProposedStep, StrategyView
from accordion.model.boundaries import has_item_reference, is_model_item, is_reasoning_only
from accordion.model.conversation import Opaque, Part, Reasoning, ToolCall, ToolResult
from accordion.model.plan import Drop, Replace, Summarize

Unit = tuple[ProposedStep, ...]
"""Steps that are legal only together: all of them are applied, or none."""

Group = tuple[int, int]


def filter_steps(view: StrategyView, steps: Sequence[ProposedStep], *, last_resort: bool = False) -> Iterator[Unit]:
    """Yields the legal steps in order, in units that belong together. `last_resort`: reachable slots count as free.

    Of steps that contradict each other, the first one counts.
    """
    changes = _AcceptedChanges(view)
    for unit in _list_legal_units(view, steps, last_resort):
        if not any(map(changes.contradict, unit)):
            for step in unit:
                changes.add(step)
            yield unit


class _AcceptedChanges:
    """The changes of the steps that were accepted so far. The view shows the history before all of them."""

    def __init__(self, view: StrategyView) -> None:
        self._view = view
        self._starts = [first for first, _ in view.groups]
        self._replaced_slots: set[int] = set()
        """Slots that a block of text replaces."""
        self._dropped: dict[int, set[int]] = {}
        """The dropped parts, by slot."""
        self._changed_groups: set[int] = set()
        """Groups with a drop of more than reasoning."""
        self._groups_without_reasoning: set[int] = set()
        """Groups with a drop of reasoning alone."""

    def add(self, step: ProposedStep) -> None:
        """Adds an accepted step."""
        if isinstance(step, Summarize):
            self._replaced_slots.update(
                index for index in range(step.first, step.last + 1) if self._view.removable[index]
            )
        elif isinstance(step, Drop):
            parts = step.parts or range(len(self._view.slots[step.slot].message.parts))
            self._dropped.setdefault(step.slot, set()).update(parts)
            is_reasoning = _drops_only_reasoning(self._view, step)
            groups = self._groups_without_reasoning if is_reasoning else self._changed_groups
            groups.add(self._group(step.slot))

    def contradict(self, step: ProposedStep) -> bool:
        """Whether a step relies on something that has changed since the view was built."""
        if isinstance(step, Summarize):
            return not self._replaced_slots.isdisjoint(range(step.first, step.last + 1))
        if step.slot in self._replaced_slots:
            return True
        dropped = self._dropped.get(step.slot, set())
        if not isinstance(step, Drop):
            return step.part in dropped
        group = self._group(step.slot)
        if _drops_only_reasoning(self._view, step):
            return group in self._changed_groups or not dropped.isdisjoint(step.parts)
        return group in self._changed_groups or group in self._groups_without_reasoning

    def _group(self, slot: int) -> int:
        return bisect_right(self._starts, slot) - 1


def _list_legal_units(view: StrategyView, steps: Sequence[ProposedStep], last_resort: bool) -> Iterator[Unit]:
    """Yields the units that are legal by themselves."""
    starts = [first for first, _ in view.groups]
    drops: dict[int, dict[int, set[int]]] = {}
    for step in steps:
        if isinstance(step, Drop) and _is_droppable(view, step) and not _drops_only_reasoning(view, step):
            parts = step.parts or range(len(view.slots[step.slot].message.parts))
            group = drops.setdefault(bisect_right(starts, step.slot) - 1, {})
            group.setdefault(step.slot, set()).update(parts)
    drops_parts = any(isinstance(step, Drop) and step.parts for step in steps)
    calling_slots = _find_calling_slots(view, range(len(view.slots)), {}) if drops_parts else set[int]()
    for step in steps:
        if isinstance(step, Summarize):
            if (snapped := _snap_to_groups(view, step)) is not None:
                yield (snapped,)
        elif not isinstance(step, Drop):
            if _is_replaceable(view, step, last_resort):
                yield (step,)
        elif not _is_droppable(view, step):
            continue
        elif _drops_only_reasoning(view, step):
            if _is_stale_reasoning(view, step.slot, calling_slots):
                yield (step,)
        elif (requested := drops.pop(number := bisect_right(starts, step.slot) - 1, None)) is not None:
            yield from _group_drops(view, view.groups[number], requested)


def _is_droppable(view: StrategyView, step: Drop) -> bool:
    if not 0 <= step.slot < len(view.slots) or view.removed[step.slot] or not view.free[step.slot]:
        return False
    return all(0 <= part < len(view.slots[step.slot].message.parts) for part in step.parts)


def _is_replaceable(view: StrategyView, step: Replace | DeferredReplace, last_resort: bool) -> bool:
    if not 0 <= step.slot < len(view.slots) or view.removed[step.slot]:
        return False
    if not view.free[step.slot] and not (last_resort and view.reachable[step.slot]):
        return False
    parts = view.slots[step.slot].message.parts
    if not 0 <= step.part < len(parts) or parts[step.part] == REMOVED_PART:
        return False
    return view.is_replaceable(step.slot, step.part) or _empties_arguments(view, step)


def _empties_arguments(view: StrategyView, step: Replace | DeferredReplace) -> bool:
    """Whether a step removes the arguments of a call that has its result."""
    call = view.slots[step.slot].message.parts[step.part]
    if not isinstance(call, ToolCall) or not isinstance(step, Replace) or step.text != NO_ARGUMENTS:
        return False
    return (step.slot, step.part) not in view.open_calls and call.call_id not in view.pinned


def _snap_to_groups(view: StrategyView, step: Summarize) -> Summarize | None:
    """Narrows a summary step to whole removable groups; None if it contains none, or would not be shorter."""
    within = [group for group in view.removable_groups() if step.first <= group[0] and group[1] <= step.last]
    if not 0 < step.budget < sum(map(view.count_group_tokens, within)) - MESSAGE:
        return None
    return Summarize(within[0][0], within[-1][1], step.budget, step.note)


# -- reasoning ----------------------------------------------------------------


def _drops_only_reasoning(view: StrategyView, step: Drop) -> bool:
    parts = view.slots[step.slot].message.parts
    return bool(step.parts) and all(isinstance(parts[part], Reasoning) for part in step.parts)


def _is_stale_reasoning(view: StrategyView, slot: int, calling_slots: Collection[int]) -> bool:
    """Whether reasoning alone may be dropped: its turn is over, it led to no call, and no item with an id needs it."""
    if slot >= view.open_turn or slot in calling_slots:
        return False
    return not (is_reasoning_only(view.slots[slot].message) and _has_item_id(view, slot + 1))


def _find_calling_slots(view: StrategyView, slots: range, remaining: Mapping[int, Sequence[int]]) -> set[int]:
    """Returns the slots of replies at or behind which the same reply has a call, or content that may be one.
    `remaining` are the parts that stay, of slots that change.

    Reasoning stays with the calls that it led to: DeepSeek, Kimi and GLM refuse them without it in any turn, and
    Messages does while the turn is open, as it is once more if the client asks for its answer again.
    """
    found, has_call = set[int](), False
    for slot in reversed(slots):
        message = view.slots[slot].message
        if message.role != "assistant" and not is_model_item(message):
            has_call = False
            continue
        parts = remaining.get(slot, range(len(message.parts)))
        calls = any(isinstance(message.parts[at], ToolCall | Opaque) for at in parts)
        has_call = has_call or (calls and not view.removed[slot])
        if has_call:
            found.add(slot)
    return found


def _has_item_id(view: StrategyView, slot: int) -> bool:
    """Whether an item has an id, by which the provider knows the reasoning that belongs to it."""
    return slot < len(view.slots) and not view.removed[slot] and b'"id"' in view.slots[slot].message.wire


# -- drops --------------------------------------------------------------------


def _group_drops(view: StrategyView, group: Group, requested: dict[int, set[int]]) -> Iterator[Unit]:
    """Yields the drops within a group as one unit, or nothing."""
    slots = range(group[0], group[1] + 1)
    remaining = {
        slot: [at for at, _ in _remaining_parts(view, slot) if at not in requested.get(slot, ())] for slot in slots
    }
    if not any(remaining.values()):
        if view.removable[group[0]]:
            yield tuple(Drop(slot) for slot in slots if not view.removed[slot])
        return
    if any(has_item_reference(view.slots[slot].message) for slot in slots) or any(
        _ends_in_thinking(view, at, remaining) for at in requested
    ):
        return
    dropped = [
        (slot, at, part) for slot in requested for at, part in _remaining_parts(view, slot) if at in requested[slot]
    ]
    calling_slots = _find_calling_slots(view, slots, remaining)
    if (
        all(_is_removable(view, *position) for position in dropped)
        and _has_whole_pairs(view, slots, remaining)
        and _keeps_reasoning_whole(view, slots, remaining)
        and not any(isinstance(part, Reasoning) and slot in calling_slots for slot, _, part in dropped)
    ):
        yield tuple(Drop(slot, tuple(sorted(requested[slot]))) for slot in sorted(requested))


def _remaining_parts(view: StrategyView, slot: int) -> Iterator[tuple[int, Part]]:
    return ((at, part) for at, part in enumerate(view.slots[slot].message.parts) if part != REMOVED_PART)


def _is_removable(view: StrategyView, slot: int, at: int, part: Part) -> bool:
    if isinstance(part, Reasoning):
        return slot < view.open_turn or is_reasoning_only(view.slots[slot].message)
    if isinstance(part, ToolCall | ToolResult):
        return part.call_id not in view.pinned and (slot, at) not in view.open_calls
    return not isinstance(part, Opaque)


def _ends_in_thinking(view: StrategyView, slot: int, remaining: dict[int, list[int]]) -> bool:
    """Whether the rest of a reply would end in thinking after other content: providers refuse that."""
    is_thinking = [isinstance(view.slots[slot].message.parts[at], Reasoning) for at in remaining[slot]]
    return bool(is_thinking) and is_thinking[-1] and not all(is_thinking)


def _has_whole_pairs(view: StrategyView, slots: range, remaining: dict[int, list[int]]) -> bool:
    """Whether no call is left without its result or its approval, and no result or approval without its call."""
    approvals: dict[str, bool] = {}
    for slot in slots:
        for at, part in _remaining_parts(view, slot):
            call = view.calls.get((slot, at)) if isinstance(part, ToolResult) else None
            # A call and its result are always in the same group.
            if call is not None and (at in remaining[slot]) != (call[1] in remaining[call[0]]):
                return False
            if isinstance(part, ToolCall) and part.approval_id:
                stays = at in remaining[slot]
                if approvals.setdefault(part.approval_id, stays) != stays:
                    return False
    return True


def _keeps_reasoning_whole(view: StrategyView, slots: range, remaining: dict[int, list[int]]) -> bool:
    """Whether no separate reasoning item loses what it led to, and no item with an id loses its reasoning."""
    reasoning_slot, has_outcome = -1, False
    for slot in (*slots, -1):
        message = view.slots[slot].message if slot >= 0 else None
        if message is not None and is_reasoning_only(message):
            reasoning_slot, has_outcome = slot, False
        elif message is not None and (message.role == "assistant" or is_model_item(message)):
            has_outcome = has_outcome or bool(remaining[slot])
            if reasoning_slot >= 0 and not remaining[reasoning_slot] and remaining[slot] and _has_item_id(view, slot):
                return False
        else:
            if reasoning_slot >= 0 and remaining[reasoning_slot] and not has_outcome:
                return False
            reasoning_slot = -1
    return True
