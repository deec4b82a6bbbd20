"""What is to be folded: a view of the list with what may be touched, and steps, which are intentions.

Strategies are pure functions from a view to steps. The planner lets only those through that touch what is free, and
the executor carries them out. Whatever a step takes out of the list is archived; no step has to say so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from accordion.core.boundaries import resumes
from accordion.core.conversation import Message
from accordion.core.values import base, dataclass

Kind = Literal["conversation", "generation"]
"""Conversation-level folds touch history; mid-generation folds touch only what was produced since the task."""

OURS = -1
"""The origin of a message that the client never sent: an earlier fold wrote it."""

WOVEN = -2
"""The origin of a message that no fold wrote and that is not as the client sent it: it tells what was read back, or it
was recalled."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One message of the list that would be forwarded.

    `origin` is its index in the client's list of messages, or OURS. `tokens` is what it counts. `edited` says that its
    text differs from what the client sent (an earlier fold changed parts of it). A slot that an earlier fold wrote in
    place of others has `first` and `last`, the client's messages that it stands for.
    """

    message: Message
    origin: int
    tokens: int
    edited: bool = False
    first: int = OURS
    last: int = OURS

    @property
    def summary(self) -> bool:
        """Whether an earlier fold wrote this in place of other messages."""
        return self.origin == OURS

    @property
    def says(self) -> bool:
        """Whether a person says something here, and no tool. What an earlier fold wrote does not count."""
        return not self.summary and self.message.has_user_text and not self.message.has_tool_result


def placed(slots: Sequence[Slot], leaving: Sequence[int]) -> int:
    """The slot of those that leave (ascending) whose place a block takes: the first; where the provider itself goes on
    from one that stays between them, the first behind that, or nobody would read the block. -1 where none leaves."""
    if not leaving:
        return -1
    last = max((at for at in range(leaving[0], leaving[-1]) if resumes(slots[at].message)), default=-1)
    return next(at for at in leaving if at > last)


@base(frozen=True, slots=True)
class View:
    """The list as strategies see it.

    `free[i]` tells whether slot i may be touched at all, `whole[i]` whether it may leave the list (free, and not held
    by a pinned result or an open call beside it). `groups` are ranges (first, last; inclusive) of slots that leave
    together or not at all; they cover the list in order. `tokens` counts everything that would be sent, `overhead` of
    it the system prompt, tools and what opens the answer. `target` is what the fold should come down to.
    """

    kind: Kind
    slots: tuple[Slot, ...]
    free: tuple[bool, ...]
    whole: tuple[bool, ...]
    groups: tuple[tuple[int, int], ...]
    tokens: int
    overhead: int
    target: int
    task: int
    """The slot of the task (the last message with user text and no tool result); -1 where there is none."""
    pinned: frozenset[str] = frozenset()
    """Call ids whose results no strategy touches."""


@dataclass(frozen=True, slots=True)
class Replace:
    """Part `part` of slot `slot` is to have `text` instead. `tokens` is what the part counts then."""

    slot: int
    part: int
    text: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Parts of a slot are to go; all of it where `parts` is empty."""

    slot: int
    parts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Summarize:
    """Slots `first` to `last` (inclusive) are to be replaced by one block of text of at most `budget` tokens.

    What is not free in between stays, around the block (see `placed`). `note` is a fixed text in place of a summary,
    for the fallback that needs none.
    """

    first: int
    last: int
    budget: int
    note: str = ""


Step = Replace | Drop | Summarize


@dataclass(frozen=True, slots=True)
class Proposal:
    """What one strategy wants, and what the list would count then."""

    strategy: str
    steps: tuple[Step, ...]
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Plan:
    """All that one fold is to do, in the order in which the strategies proposed it."""

    view: View
    proposals: tuple[Proposal, ...]

    @property
    def after(self) -> int:
        """What the list would count, in tokens; of a summary its budget."""
        return self.proposals[-1].after if self.proposals else self.view.tokens

    @property
    def steps(self) -> tuple[Step, ...]:
        """All steps in order; a later one wins over an earlier one of the same part."""
        return tuple(step for proposal in self.proposals for step in proposal.steps)
