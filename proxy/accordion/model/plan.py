"""The plan of a compaction: the view that strategies read, and the steps that they propose.

A strategy is a pure function from a view to steps. The planner accepts only steps that touch free slots; `apply` in
`compaction/` carries them out. Everything that a step removes from the list is archived; a step need not say so.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from accordion.model.boundaries import is_provider_compaction
from accordion.model.budget import CompactionKind
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


class View(msgspec.Struct, frozen=True):
    """The list as strategies see it.

    `free[i]` is True if slot i may be changed, `removable[i]` if it may leave the list: it is free, and its group
    has no pinned result and no open call. `groups` are ranges (first, last; inclusive) of slots that leave together or
    not at all; they cover the list in order. `tokens` counts everything that would be sent; `overhead` is the part of
    the system prompt, the tools and the tokens that begin the response. `target` is the goal of the compaction, in
    tokens.
    """

    kind: CompactionKind
    slots: tuple[Slot, ...]
    free: tuple[bool, ...]
    removable: tuple[bool, ...]
    groups: tuple[tuple[int, int], ...]
    tokens: int
    overhead: int
    target: int
    task: int
    """The slot of the task (the last message with user text and no tool result); -1 if there is none."""
    pinned: frozenset[str] = frozenset()
    """The call ids of results that no strategy may touch."""


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


class Proposal(msgspec.Struct, frozen=True):
    """The steps of one strategy, and the tokens of the list before and after them."""

    strategy: str
    steps: tuple[PlanStep, ...]
    before: int
    after: int


class Plan(msgspec.Struct, frozen=True):
    """All steps of one compaction, in the order in which the strategies proposed them."""

    view: View
    proposals: tuple[Proposal, ...]

    @property
    def after(self) -> int:
        """The tokens of the list after all steps; a summary counts with its budget."""
        return self.proposals[-1].after if self.proposals else self.view.tokens

    @property
    def steps(self) -> tuple[PlanStep, ...]:
        """All steps in order. Of two steps for the same part the later one takes effect."""
        return tuple(step for proposal in self.proposals for step in proposal.steps)
