"""Leaving out messages behind one note: what several strategies come down to."""

from __future__ import annotations

from collections.abc import Sequence

from accordion.accounting.meter import MESSAGE
from accordion.archive.references import left_out, range_id
from accordion.compaction.strategies.base import Draft, estimated
from accordion.core.plan import Summarize


def left_out_before(view: Draft, cut: int) -> Sequence[Summarize]:
    """A step that leaves out every group that may leave and ends before slot `cut`; none where that saves nothing.

    The note counts the client's messages, those among them that an earlier fold had replaced.
    """
    groups = [group for group in view.whole_groups() if group[1] < cut]
    if not groups:
        return ()
    first, last = groups[0][0], groups[-1][1]
    leaving = {index: view.slots[index] for index in range(first, last + 1) if view.whole[index]}
    slots = leaving.values()
    # A block of an earlier fold stands for a stretch, in which something may have been kept that still stands there.
    stays = {slot.origin for index, slot in enumerate(view.slots) if index not in leaving}
    messages = len({place for slot in slots for place in range(slot.first, slot.last + 1)} - stays)
    note = left_out(messages, range_id(view.space, (slot.message.key for slot in slots)))
    budget = estimated(note)
    if budget + MESSAGE >= sum(slot.tokens for slot in slots):
        return ()
    return (Summarize(first, last, budget, note),)
