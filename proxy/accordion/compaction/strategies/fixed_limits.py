"""The fallback strategy without a summary: keeps the newest messages within fixed limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from accordion.compaction.strategies.base import (
    ProposedStep,
    Strategy,
    StrategyOptions,
    StrategyView,
    group_slice,
)
from accordion.compaction.strategies.steps import replace_groups_before


class FixedLimitsOptions(StrategyOptions, frozen=True):
    """At most `messages` of the newest messages with at most `tokens` tokens stay."""

    messages: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 50
    tokens: Annotated[int, msgspec.Meta(ge=1, le=10**9)] = 8_000


class FixedLimits(Strategy):
    """Keeps groups from the newest to the first that does not fit. One note says how many messages were left out, and
    names their artifact. Calls and results stay together."""

    name = "fixed_limits"
    options_type = FixedLimitsOptions

    def __init__(self, options: FixedLimitsOptions) -> None:
        self._messages, self._tokens = options.messages, options.tokens

    def propose(self, view: StrategyView) -> Sequence[ProposedStep]:
        """Proposes one step, or none if everything fits."""
        live = set(view.live_slots)
        messages, tokens = self._messages, self._tokens
        for group in reversed(view.groups):
            messages -= sum(index in live for index in range(group[0], group[1] + 1))
            tokens -= sum(slot.tokens for slot in view.slots[group_slice(group)])
            if messages < 0 or tokens < 0:
                return replace_groups_before(view, group[1] + 1)
        return ()
