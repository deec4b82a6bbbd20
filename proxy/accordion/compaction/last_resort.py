"""What is done when nothing else brought a request below the hard limit: the last steps before it is refused.

First all that may still leave does, the oldest first; then, where that is enough, one note stands for it all in place
of a summary; else the largest result of the newest batch is sliced, then the largest parts of the task and of the
opening request. No more is taken than it takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from accordion.accounting.meter import MESSAGE
from accordion.archive.references import artifact_id, sliced
from accordion.compaction.strategies.base import Draft, estimated, media_of, text_of
from accordion.compaction.strategies.beside import replacement
from accordion.compaction.strategies.notes import left_out_before
from accordion.core.conversation import Message, Text, ToolResult
from accordion.core.plan import Replace, Step
from accordion.core.values import replace

NAME = "last_resort"

_LEAST = 200
"""Tokens that are left of what is sliced, at least."""

_SAFETY = 0.95
"""Of what would fit by a part's own rate of characters to tokens; that rate is not the same all through it."""


def leaving(view: Draft) -> Iterator[Step]:
    """Leaves out the oldest groups, as many as it takes."""
    over, cut = view.tokens - view.limit, 0
    # The note in their place counts too.
    over += estimated("." * 250)
    for group in view.whole_groups():
        if over <= 0:
            break
        over -= view.group_tokens(group)
        cut = group[1] + 1
    yield from left_out_before(view, cut)


def noted(view: Draft) -> Iterator[Step]:
    """One note in place of all that may leave. It is counted, not estimated: here the least room is of use."""
    for step in left_out_before(view, len(view.slots)):
        # Counts are remembered by key.
        note = Message(b"note/" + step.note.encode(), "user", (Text(step.note),), b"")
        yield replace(step, budget=max(1, ceil(view.count(note) * view.scale) - MESSAGE))


def slices(view: Draft) -> Iterator[Replace]:
    """Slices the largest parts within reach until the rest fits: of the newest batch first, of the task last."""
    over = view.tokens - view.limit
    for _, less, slot, part in sorted(_candidates(view)):
        if over <= 0:
            return
        step = _sliced(view, slot, part, -less, over)
        if step is not None:
            over -= -less - step.tokens
            yield step


def _candidates(view: Draft) -> Iterator[tuple[int, int, int, int]]:
    """(rank, less the tokens, slot, part) of what is large enough."""
    for index, slot in enumerate(view.slots):
        if view.gone[index] or not view.reach[index]:
            continue
        rank = {view.opening: 2, view.task: 3}.get(index, 0 if index >= view.unread else 1)
        for at, part in enumerate(slot.message.parts):
            fitting = isinstance(part, ToolResult) or slot.message.role == "user"
            if fitting and view.replaceable(index, at) and (tokens := view.part_tokens(index)[at]) > _LEAST:
                yield rank, -tokens, index, at


def _sliced(view: Draft, slot: int, part: int, tokens: int, over: int) -> Replace | None:
    message = view.slots[slot].message
    found = message.parts[part]
    if media_of(found):
        step = replacement(view, slot, part)
        return step if step.tokens < tokens else None
    text, kept = text_of(found), artifact_id(view.space, message.key, part)
    frame = estimated(sliced("", "", kept, len(text)))
    room = max(_LEAST, tokens - over) - frame
    keep = int(room * _SAFETY * len(text) / tokens)
    if not 0 < keep < len(text):
        return None
    head = keep * 2 // 3
    tail = text[len(text) - (keep - head) :]
    return Replace(slot, part, sliced(text[:head], tail, kept, len(text) - keep), room + frame)
