"""The strategy that keeps the newest `n` turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from accordion.compaction.strategies.base import (
    ProposedStep,
    Strategy,
    StrategyOptions,
    StrategyView,
)
from accordion.compaction.strategies.steps import replace_groups_before


class KeepLastNTurnsOptions(StrategyOptions, frozen=True):
    """`n`: how many turns stay. A turn starts at a message with user text."""

    n: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 10


class KeepLastNTurns(Strategy):
    """Replaces all messages before the last `n` turns by one note, except protected ones."""

    name = "keep_last_n_turns"
    options_type = KeepLastNTurnsOptions

    def __init__(self, options: KeepLastNTurnsOptions) -> None:
        self._n = options.n

    def propose(self, view: StrategyView) -> Sequence[ProposedStep]:
        """Proposes one step, or none if there are no more than `n` turns."""
        starts = [index for index, slot in enumerate(view.slots) if not view.removed[index] and slot.has_user_text]
        return replace_groups_before(view, starts[-self._n]) if len(starts) > self._n else ()
