"""The strategy that replaces the beginning of the history by one summary, and keeps a verbatim tail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from accordion.accounting.token_meter import MESSAGE
from accordion.compaction.strategies.base import (
    ProposedStep,
    Strategy,
    StrategyOptions,
    StrategyView,
)
from accordion.model.plan import PlanStep, Summarize
from accordion.model.shares import PositiveShare

_MIN_BUDGET = 128
"""A summary of fewer tokens can say nothing."""
_FRAME_TOKENS = 120
"""Estimated tokens of a summary's label, headings and references."""
_SECTION_SHARE = 0.8
"""Share of a summary that its instructions may fill."""
_MIN_SHARE = 0.1
"""Share of the target that a summary always gets, if the limit leaves twice as much."""

_INSTRUCTIONS_SHARE = 0.4
"""Share of the tokens between protected content and limit that standing instructions always get."""

_MIN_INSTRUCTIONS_SHARE = 0.15
"""Share of the limit that standing instructions get even beside a result that fills the window. The result is cut."""

_MIN_INSTRUCTIONS_BUDGET = 280
"""Tokens of a summary with a few instructions and the line about the others. The opening request stays verbatim, so
its corrections must not be left out."""


class SummarizeOptions(StrategyOptions, frozen=True):
    """`threshold`: the strategy does nothing at or below this number of messages. `model` writes the summary; by
    default the settings for summaries decide. The newest `keep_last_n` messages always stay verbatim.

    Of the room that the target leaves beside protected messages, `budget_share` is for the summary. It is more if the
    users' standing instructions need it (up to two fifths of what the limit leaves, or 15 % of the limit), and at most
    `max_summary_tokens`. The verbatim tail gets the rest. If hardly any room is left, the summary gets a tenth of the
    target above it.
    """

    threshold: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 0
    model: Annotated[str, msgspec.Meta(min_length=1, max_length=256)] | None = None
    keep_last_n: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 0
    budget_share: PositiveShare = PositiveShare(0.7)
    max_summary_tokens: Annotated[int, msgspec.Meta(ge=_MIN_BUDGET, le=10**7)] | None = None

    def __post_init__(self) -> None:
        """Raises ValueError if nothing is left for the newest messages."""
        if self.budget_share >= 1.0:
            raise ValueError("Expected a share below 1: the newest messages get the rest - at `$.budget_share`")


class SummarizeHistory(Strategy):
    """Summarizes the removable groups from the oldest up to the tail, an earlier summary included.

    Protected messages in between stay verbatim and are not summarized.
    """

    name = "summarize"
    options_type = SummarizeOptions

    def __init__(self, options: SummarizeOptions) -> None:
        self.summary_model = options.model or ""
        self._options = options

    def propose(self, view: StrategyView) -> Sequence[ProposedStep]:
        """Proposes one step, or none if there is nothing new to summarize."""
        options, live = self._options, view.live_slots
        groups = view.removable_groups()
        if len(live) <= options.threshold or not groups:
            return ()
        # The summary is a message, and has a message's overhead.
        staying_tokens = view.tokens - sum(map(view.count_group_tokens, groups)) + MESSAGE
        room = max(0, view.target - staying_tokens)
        # If protected messages take nearly all of the target, exceeding it a little is better than an empty summary.
        left = view.limit - staying_tokens
        min_budget = min(int(view.target * _MIN_SHARE), left // 2)
        instruction_tokens = self._count_instruction_tokens(view, groups)
        budget = max(_MIN_BUDGET, int(room * options.budget_share), min_budget)
        if instruction_tokens:
            # A user's instruction is worth more than messages in the tail, and than meeting the target exactly.
            above_target = max(
                int(left * _INSTRUCTIONS_SHARE),
                int(view.limit * _MIN_INSTRUCTIONS_SHARE),
                # Where nothing is left, the newest results are cut.
                min(_MIN_INSTRUCTIONS_BUDGET, left) if left > 0 else _MIN_INSTRUCTIONS_BUDGET,
            )
            budget = max(budget, min(max(room, above_target), instruction_tokens))
        if options.max_summary_tokens is not None:
            budget = min(budget, options.max_summary_tokens)
        tail_start = live[-options.keep_last_n] if 0 < options.keep_last_n < len(live) else len(view.slots)
        if options.keep_last_n >= len(live):
            return ()
        covered, tail_tokens = list(groups), room - budget
        while covered and (covered[-1][1] >= tail_start or view.count_group_tokens(covered[-1]) <= tail_tokens):
            tail_tokens -= view.count_group_tokens(covered.pop())
        return self._build_step(view, covered, budget, instruction_tokens)

    def _count_instruction_tokens(self, view: StrategyView, groups: Sequence[tuple[int, int]]) -> int:
        """Estimates the tokens of a summary that lists all instructions of some groups."""
        tokens = sum(
            view.count_instruction_tokens(view.slots[at].message)
            for first, last in groups
            for at in range(first, last + 1)
        )
        return int(tokens * view.scale / _SECTION_SHARE) + _FRAME_TOKENS if tokens else 0

    def _build_step(
        self, view: StrategyView, groups: Sequence[tuple[int, int]], budget: int, instruction_tokens: int
    ) -> Sequence[PlanStep]:
        slots = [view.slots[index] for first, last in groups for index in range(first, last + 1)]
        if all(slot.is_summary for slot in slots if slot.message.parts):
            return ()
        # A summary has half of what it replaces, and more only for instructions.
        covered_tokens = sum(slot.tokens for slot in slots)
        instruction_budget = min(instruction_tokens, covered_tokens - 1)
        budget = min(budget, max(covered_tokens // 2, instruction_budget))
        if budget < _MIN_BUDGET // 2:
            return ()
        return (Summarize(groups[0][0], groups[-1][1], budget),)
