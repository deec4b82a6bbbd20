"""The strategy that keeps the newest `n` messages."""

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


class KeepLastNMessagesOptions(StrategyOptions, frozen=True):
    """`n`: how many messages stay, not counting system and developer messages."""

    n: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 50


class KeepLastNMessages(Strategy):
    """Replaces all messages before the last `n` by one note, except protected ones.

    Calls and their results stay together: if the n-th message is between them, both stay.
    """

    name = "keep_last_n_messages"
    options_type = KeepLastNMessagesOptions

    def __init__(self, options: KeepLastNMessagesOptions) -> None:
        self._n = options.n

    def propose(self, view: StrategyView) -> Sequence[ProposedStep]:
        """Proposes one step, or none if there are no more than `n` messages."""
        live = view.live_slots
        return replace_groups_before(view, live[-self._n]) if len(live) > self._n else ()
