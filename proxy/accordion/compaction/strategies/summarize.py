"""History becomes one summary and a verbatim tail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from accordion.accounting.meter import MESSAGE
from accordion.compaction.strategies.base import Archive, Draft, Section
from accordion.core.plan import Step, Summarize

_LEAST_BUDGET = 128
"""Tokens under which a summary can say nothing."""
_FRAME = 120
"""Tokens of a summary's label, headings and references, about."""
_LEAST_SHARE = 0.1
"""Of the target, which a summary may have in any case where the limit leaves twice as much."""

_INSTRUCTED_SHARE = 0.4
"""Of what the limit leaves beside what stays, which standing instructions may have in any case."""

_INSTRUCTED_LEAST = 280
"""Tokens of a summary in which a few instructions and the line about the others stand: corrections of the opening,
which stays, must not be left out."""


class SummarizeOptions(Section, frozen=True):
    """`threshold`: nothing is done at or below so many messages. `model` writes the summary; without one it is what
    the settings for summaries say. `keep_last_n` messages stay verbatim in any case.

    Of the room that the target leaves beside what is protected, `budget_share` is for the summary, or more where the
    users' standing instructions need it (up to two fifths of what the limit leaves), at most `max_summary_tokens`; the
    verbatim tail has the rest. Where hardly any
    is left, the summary has a tenth of the target above it.
    """

    threshold: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 0
    model: Annotated[str, msgspec.Meta(min_length=1, max_length=256)] | None = None
    keep_last_n: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 0
    budget_share: Annotated[float, msgspec.Meta(gt=0.0, lt=1.0)] = 0.7
    max_summary_tokens: Annotated[int, msgspec.Meta(ge=_LEAST_BUDGET, le=10**7)] | None = None


class Summarizing:
    """Summarises from the oldest group that may leave up to the tail, an earlier summary included.

    What is protected in between stays verbatim, and is never part of what is summarised.
    """

    name = "summarize"

    def __init__(self, options: SummarizeOptions) -> None:
        self.model = options.model or ""
        self._options = options

    def propose(self, view: Draft) -> Sequence[Step | Archive]:
        """One step, or none where there is nothing new to summarise."""
        options, live = self._options, view.live
        groups = view.whole_groups()
        if len(live) <= options.threshold or not groups:
            return ()
        # The block is a message, and costs what any does.
        stays = view.tokens - sum(map(view.group_tokens, groups)) + MESSAGE
        room = max(0, view.target - stays)
        # Where what stays takes nearly all of the target, a little more than that is better than next to nothing told.
        least = min(int(view.target * _LEAST_SHARE), (view.limit - stays) // 2)
        instructed = sum(
            view.instructions(view.slots[at].message) for first, last in groups for at in range(first, last + 1)
        )
        budget = max(_LEAST_BUDGET, int(room * options.budget_share), least)
        if instructed:
            # Messages in the tail are worth less than a user's instruction that has no place, and so is some room above
            # the target.
            above = max(int((view.limit - stays) * _INSTRUCTED_SHARE), _INSTRUCTED_LEAST)
            budget = max(budget, min(max(room, above), int(instructed * view.scale) + _FRAME))
        if options.max_summary_tokens is not None:
            budget = min(budget, options.max_summary_tokens)
        verbatim = live[-options.keep_last_n] if 0 < options.keep_last_n < len(live) else len(view.slots)
        if options.keep_last_n >= len(live):
            return ()
        covered, tail = list(groups), room - budget
        while covered and (covered[-1][1] >= verbatim or view.group_tokens(covered[-1]) <= tail):
            tail -= view.group_tokens(covered.pop())
        return self._over(view, covered, budget)

    def _over(self, view: Draft, covered: Sequence[tuple[int, int]], budget: int) -> Sequence[Step]:
        slots = [view.slots[index] for first, last in covered for index in range(first, last + 1)]
        if all(slot.summary for slot in slots if slot.message.parts):
            return ()
        budget = min(budget, sum(slot.tokens for slot in slots) // 2)
        if budget < _LEAST_BUDGET // 2:
            return ()
        return (Summarize(covered[0][0], covered[-1][1], budget),)
