"""Replaces messages by one note; shared by the strategies that only leave messages out."""

from __future__ import annotations

from collections.abc import Sequence

from accordion.accounting.token_meter import MESSAGE
from accordion.archive.references import omission_note, range_id
from accordion.compaction.strategies.base import StrategyView, estimate_tokens
from accordion.model.plan import Summarize


def replace_groups_before(view: StrategyView, end: int) -> Sequence[Summarize]:
    """Returns a step that replaces all removable groups that end before slot `end`; none if that saves nothing.

    The note counts the client's messages, including those that an earlier compaction replaced.
    """
    groups = [group for group in view.removable_groups() if group[1] < end]
    if not groups:
        return ()
    first, last = groups[0][0], groups[-1][1]
    removable = {index: view.slots[index] for index in range(first, last + 1) if view.whole[index]}
    slots = removable.values()
    # A block of an earlier compaction spans a range that may contain messages which are still there.
    staying = {slot.origin for index, slot in enumerate(view.slots) if index not in removable}
    messages = len({origin for slot in slots for origin in range(slot.first, slot.last + 1)} - staying)
    note = omission_note(messages, range_id(view.tenant_key, (slot.message.key for slot in slots)))
    budget = estimate_tokens(note)
    if budget + MESSAGE >= sum(slot.tokens for slot in slots):
        return ()
    return (Summarize(first, last, budget, note),)
