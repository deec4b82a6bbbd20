"""The last steps before a request is refused, if nothing else brought it below the hard limit.

First the oldest removable groups are left out. Then, if that is enough, one note replaces all removable messages, a
summary included. Otherwise the largest results of the newest batch are sliced, then the largest parts of the opening
request and of the task. Each step removes no more than necessary.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from msgspec.structs import replace

from accordion.accounting.token_meter import MESSAGE
from accordion.archive.references import sliced_text
from accordion.compaction.strategies.base import StrategyView, estimate_tokens, media_parts, text_of
from accordion.compaction.strategies.steps import replace_groups_before, replace_with_reference
from accordion.model.conversation import Message, Text, ToolResult
from accordion.model.plan import PlanStep, Replace

NAME = "last_resort"

_MIN_TOKENS = 200
"""Minimum number of tokens that remain of a sliced part."""

_SAFETY = 0.95
"""Factor on the characters that would fit by a part's average tokens per character, which vary within it."""


def drop_oldest_groups(view: StrategyView) -> Iterator[PlanStep]:
    """Leaves out the oldest groups, as many as necessary."""
    excess, end = view.tokens - view.limit, 0
    # The note in their place counts too.
    excess += estimate_tokens("." * 250)
    for group in view.removable_groups():
        if excess <= 0:
            break
        excess -= view.count_group_tokens(group)
        end = group[1] + 1
    yield from replace_groups_before(view, end)


def replace_with_note(view: StrategyView) -> Iterator[PlanStep]:
    """Replaces all removable messages by one note. Its tokens are counted, not estimated: here few of them matter."""
    for step in replace_groups_before(view, len(view.slots)):
        # Counts are cached by key.
        note = Message(b"note/" + step.note.encode(), "user", (Text(step.note),), b"")
        yield replace(step, budget=max(1, ceil(view.count_message(note) * view.scale) - MESSAGE))


def slice_largest_parts(view: StrategyView) -> Iterator[Replace]:
    """Slices the largest reachable parts until the rest fits: first of the newest batch, last of the task."""
    excess = view.tokens - view.limit
    for _, negative_tokens, slot, part in sorted(_list_sliceable_parts(view)):
        if excess <= 0:
            return
        tokens = -negative_tokens
        step = _slice_part(view, slot, part, tokens, excess)
        if step is not None:
            excess -= tokens - step.tokens
            yield step


def _list_sliceable_parts(view: StrategyView) -> Iterator[tuple[int, int, int, int]]:
    """Yields (rank, negative tokens, slot, part) of the parts that are large enough."""
    for index, slot in enumerate(view.slots):
        if view.removed[index] or not view.reachable[index]:
            continue
        rank = {view.opening_request: 2, view.task: 3}.get(index, 0 if index >= view.newest_batch else 1)
        for at, part in enumerate(slot.message.parts):
            is_sliceable = isinstance(part, ToolResult) or slot.message.role == "user"
            if (
                is_sliceable
                and view.is_replaceable(index, at)
                and (tokens := view.count_part_tokens(index)[at]) > _MIN_TOKENS
            ):
                yield rank, -tokens, index, at


def _slice_part(view: StrategyView, slot: int, part: int, tokens: int, excess_tokens: int) -> Replace | None:
    message = view.slots[slot].message
    content = message.parts[part]
    if media_parts(content):
        step = replace_with_reference(view, slot, part)
        return step if step.tokens < tokens else None
    text, artifact = text_of(content), view.artifact_id_of(slot, part)
    frame_tokens = estimate_tokens(sliced_text("", "", artifact, len(text)))
    room = max(_MIN_TOKENS, tokens - excess_tokens) - frame_tokens
    characters = int(room * _SAFETY * len(text) / tokens)
    if not 0 < characters < len(text):
        return None
    head = characters * 2 // 3
    tail = text[len(text) - (characters - head) :]
    return Replace(slot, part, sliced_text(text[:head], tail, artifact, len(text) - characters), room + frame_tokens)
