"""The layout of a plan over a history: changed parts, removed slots, and blocks of text in their place.

Pure bookkeeping: no text is written yet. The summary task and the archive content are made from a layout, then the
record.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate, pairwise

import msgspec

from accordion.model.boundaries import find_open_calls, has_item_reference, is_reasoning_only, match_results_to_calls
from accordion.model.compaction import Compaction
from accordion.model.conversation import Conversation, Message, ToolCall, ToolResult
from accordion.model.errors import AccordionError
from accordion.model.plan import Plan, Replace, Slot, Summarize, choose_block_slot
from accordion.model.records import FailureKind
from accordion.protocols.base import WireProtocol


class PlanNotApplicable(AccordionError):
    """A plan cannot be carried out, or would gain nothing. The message gives the reason; clients never see it."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class TextBlock(msgspec.Struct, frozen=True):
    """A text before slot `slot` that replaces the removed ones of the client's messages `first` to `last`. `note` is
    its text, empty if a summary is to be written."""

    slot: int
    first: int
    last: int
    budget: int
    note: str = ""
    keys: tuple[bytes, ...] = ()
    """The keys of the removed messages, edits included; the artifact id in a note is made of them."""


class PlanLayout(msgspec.Struct, frozen=True):
    """The changes to `slots`. `changes` are texts by slot and part, None for removed parts; `removed_slots` are removed
    completely; `covered_count` is how many of the client's messages the record covers."""

    slots: tuple[Slot, ...]
    original: Conversation
    earlier_compaction: Compaction | None
    changes: Mapping[int, Mapping[int, str | None]]
    removed_slots: frozenset[int]
    blocks: tuple[TextBlock, ...]
    covered_count: int

    @property
    def summary_block(self) -> TextBlock | None:
        """The block whose text is a summary; the last one, should there be several."""
        return next((block for block in reversed(self.blocks) if not block.note), None)

    def remaining_messages(self) -> list[Message]:
        """Returns the remaining messages as they were before the plan."""
        return [
            slot.message
            for index, slot in enumerate(self.slots)
            if index not in self.removed_slots and not slot.is_summary
        ]

    def messages_behind(self, block: TextBlock) -> list[int]:
        """Returns the indexes of the client's messages that a block replaces: those in its range that do not remain."""
        remaining = {
            slot.origin
            for index, slot in enumerate(self.slots)
            if index not in self.removed_slots and not slot.is_summary
        }
        return [index for index in range(block.first, block.last + 1) if index not in remaining]


def build_layout(
    plan: Plan, original: Conversation, earlier_compaction: Compaction | None, protocol: WireProtocol
) -> PlanLayout:
    """Builds the layout of a plan. `original` is the conversation as the client sent it, `earlier_compaction` the one
    applied in the plan's view. Raises PlanNotApplicable if there is nothing to do."""
    view = plan.view
    changes: dict[int, dict[int, str | None]] = {}
    removed: set[int] = set()
    owners: dict[int, int] = {}
    summaries: list[Summarize] = []
    for step in plan.steps:
        if isinstance(step, Summarize):
            # Protected slots stay around the block; a slot belongs to one block only.
            removable = [at for at in range(step.first, step.last + 1) if view.whole[at] and at not in owners]
            owners.update(dict.fromkeys(removable, len(summaries)))
            summaries.append(step)
            removed.update(removable)
        elif isinstance(step, Replace):
            changes.setdefault(step.slot, {})[step.part] = step.text
        elif step.parts:
            changes.setdefault(step.slot, {}).update(dict.fromkeys(step.parts))
        else:
            removed.add(step.slot)
    _remove_orphans(view.slots, protocol, changes)
    changed = {index: parts for index, parts in changes.items() if index not in removed and parts}
    affected = [view.slots[index] for index in (*changed, *removed)]
    if not affected:
        raise PlanNotApplicable("nothing_to_fold", "no message may be compacted")
    covered = max(
        earlier_compaction.covered if earlier_compaction is not None else 0, *(slot.last + 1 for slot in affected)
    )
    for index, successor in getattr(view, "orphan_reasoning", ()):
        # The calls that it led to are dropped in the covered part; behind it they are inserted in every request.
        if view.slots[successor].first < covered:
            removed.add(index)
            covered = max(covered, view.slots[index].last + 1)
    changed = {index: parts for index, parts in changed.items() if index not in removed}
    return PlanLayout(
        view.slots,
        original,
        earlier_compaction,
        changed,
        frozenset(removed),
        _build_blocks(view.slots, summaries, owners),
        covered,
    )


def _build_blocks(
    slots: Sequence[Slot], summaries: Sequence[Summarize], owners: Mapping[int, int]
) -> tuple[TextBlock, ...]:
    blocks = []
    for number, step in enumerate(summaries):
        own = [index for index, owner in owners.items() if owner == number]
        if own:
            first = min(slots[index].first for index in own)
            last = max(slots[index].last for index in own)
            keys = tuple(slots[index].message.key for index in sorted(own))
            blocks.append(TextBlock(choose_block_slot(slots, sorted(own)), first, last, step.budget, step.note, keys))
    return tuple(sorted(blocks, key=lambda block: block.slot))


# -- orphans -----------------------------------------------------------------------------------------------------------


def find_orphan_parts(
    messages: Sequence[Message], allows_late_answers: Callable[[Message], bool] = lambda _: False
) -> Iterator[tuple[int, int]]:
    """Yields (message, part) of calls without a result although messages follow, and of results without a call.

    Not orphans: calls at the end, which are still open; messages for which `allows_late_answers` is true; and results
    behind a reference to an item that only the provider has, which may be their call.
    """
    calls, has_reference = match_results_to_calls(messages), False
    end = len(messages)
    while end and messages[end - 1].has_tool_result:
        end -= 1
    while end and _has_tool_call(messages[end - 1]):
        end -= 1
    for index, message in enumerate(messages):
        has_reference = has_reference or has_item_reference(message)
        for number, part in enumerate(message.parts):
            is_orphan = isinstance(part, ToolResult) and (index, number) not in calls and not has_reference
            if is_orphan and not allows_late_answers(message):
                yield index, number
    yield from (
        (index, part)
        for index, part in find_open_calls(messages)
        if index < end and not allows_late_answers(messages[index])
    )


def _remove_orphans(slots: Sequence[Slot], protocol: WireProtocol, changes: dict[int, dict[int, str | None]]) -> None:
    """Adds the removal of orphans to the changes, as far as the protocol can express it. Nothing is invented in their
    place. Reasoning that led only to them is removed too."""
    messages, removed = [slot.message for slot in slots], set[int]()
    for index, part in find_orphan_parts(messages, protocol.allows_late_answers):
        with suppress(ValueError):
            if protocol.edit_message(messages[index], {part: None}) is None:
                removed.add(index)
            changes.setdefault(index, {})[part] = None
    for index in range(len(messages) - 1, -1, -1) if removed else ():
        if is_reasoning_only(messages[index]) and _find_reasoning_result(messages, index) <= removed:
            removed.add(index)
            changes.setdefault(index, {}).update(dict.fromkeys(range(len(messages[index].parts))))


def _find_reasoning_result(messages: Sequence[Message], index: int) -> set[int]:
    """Returns the indexes of the assistant's messages right behind a message; the message itself if there are none."""
    end = index + 1
    while end < len(messages) and messages[end].role == "assistant":
        end += 1
    return set(range(index + 1, end)) or {index}


def _has_tool_call(message: Message) -> bool:
    return any(isinstance(part, ToolCall) for part in message.parts)


# -- ranges ------------------------------------------------------------------------------------------------------------


def split_into_ranges(
    groups: Sequence[tuple[int, int]], first: int, last: int, weights: Sequence[int], max_tokens: int
) -> list[range]:
    """Splits the messages `first` to `last` into ranges of at most `max_tokens` each, cut between the given groups.

    A larger group is a range of its own. `weights[i]` are the tokens of message `first + i`. Ranges are filled from the
    front, so that a later compaction of the same beginning cuts at the same places.
    """
    result: list[range] = []
    start, tokens = first, 0
    for at in range(bisect_right(groups, first, key=lambda group: group[0]) - 1, len(groups)):
        begin, end = max(groups[at][0], first), min(groups[at][1], last)
        if begin > end:
            break
        group_tokens = sum(weights[begin - first : end - first + 1])
        if tokens and tokens + group_tokens > max_tokens:
            result.append(range(start, begin))
            start, tokens = begin, 0
        tokens += group_tokens
    if start <= last:
        result.append(range(start, last + 1))
    return result


def merge_oldest(costs: Sequence[int], room: int, merged_cost: int) -> list[range]:
    """Merges the oldest entries of a list until the total cost is at most `room`. Returns ranges of merged entries.

    Entry i alone costs `costs[i]`, any number of them merged `merged_cost`. Entries are merged in pairs, then pairs of
    pairs, always the same ones, so that a later compaction has the same ranges. If that is not enough, all but the
    newest are merged into one.
    """
    cost_by_start, total, size = dict(enumerate(costs)), sum(costs), 2
    while total > room and size <= len(costs):
        for start in range(0, len(costs) - size + 1, size):
            if total <= room:
                break
            total += merged_cost - sum(cost_by_start.pop(at, 0) for at in range(start, start + size))
            cost_by_start[start] = merged_cost
        size *= 2
    starts = sorted(cost_by_start)
    if total > room:
        sums = accumulate((cost_by_start[at] for at in reversed(starts)), initial=merged_cost)
        single_count = max(0, sum(each <= room for each in sums) - 1)
        starts = [0, *starts[len(starts) - single_count :]]
    return [range(start, stop) for start, stop in pairwise([*starts, len(costs)])]
