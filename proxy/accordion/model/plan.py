"""The slots of a list, and the steps that change them.

A strategy is a pure function from a view to steps. The planner accepts only steps that touch free slots; `apply` in
`compaction/` carries them out. Everything that a step removes from the list is archived; a step need not say so.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from accordion.model.boundaries import is_provider_compaction
from accordion.model.conversation import Message

WRITTEN_BY_COMPACTION = -1
"""The origin of a message that the client never sent: an earlier compaction wrote it."""

INSERTED = -2
"""The origin of a message that an insertion added or changed: a tool round, a recalled excerpt or memories."""


class Slot(msgspec.Struct, frozen=True):
    """One message of the list that would be forwarded.

    `origin` is its index in the client's list of messages, `WRITTEN_BY_COMPACTION` or `INSERTED`. `is_edited` is True
    if an earlier compaction changed parts of it. `first` and `last` (inclusive) are the client's messages that the
    slot stands for.
    """

    message: Message
    origin: int
    tokens: int
    is_edited: bool = False
    first: int = WRITTEN_BY_COMPACTION
    last: int = WRITTEN_BY_COMPACTION

    @property
    def is_summary(self) -> bool:
        """Whether an earlier compaction wrote this message in place of others."""
        return self.origin == WRITTEN_BY_COMPACTION

    @property
    def has_user_text(self) -> bool:
        """Whether the slot has text of the user and no tool result. A summary does not count."""
        return not self.is_summary and self.message.has_user_text and not self.message.has_tool_result


def choose_block_slot(slots: Sequence[Slot], leaving_slots: Sequence[int]) -> int:
    """Returns the slot, of those that leave (ascending), whose position the summary block takes.

    It is the first one after the last user's text that stays between them, so that no request stands behind the summary
    of what came of it; and after the last provider compaction, since the provider does not read what is before it.
    Returns -1 if no slot leaves.
    """
    if not leaving_slots:
        return -1
    staying = set(range(leaving_slots[0], leaving_slots[-1])).difference(leaving_slots)
    precede = (at for at in staying if slots[at].has_user_text or is_provider_compaction(slots[at].message))
    last = max(precede, default=-1)
    return next(index for index in leaving_slots if index > last)


class Replace(msgspec.Struct, frozen=True):
    """A step that replaces part `part` of slot `slot` by `text`, which has `tokens` tokens (-1: the planner estimates
    them)."""

    slot: int
    part: int
    text: str
    tokens: int = -1


class Drop(msgspec.Struct, frozen=True):
    """A step that removes parts of a slot, or the whole slot if `parts` is empty."""

    slot: int
    parts: tuple[int, ...] = ()


class Summarize(msgspec.Struct, frozen=True):
    """A step that replaces slots `first` to `last` (inclusive) by one block of text of at most `budget` tokens.

    Slots between them that are not free stay, around the block (see `choose_block_slot`). `note` is a fixed text in
    place of a summary, for the fallback strategy.
    """

    first: int
    last: int
    budget: int
    note: str = ""


PlanStep = Replace | Drop | Summarize
