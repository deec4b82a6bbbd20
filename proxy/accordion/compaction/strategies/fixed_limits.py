"""The fallback that needs no summary: the newest messages within fixed limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from accordion.compaction.strategies.base import Archive, Draft, Section, slice_of
from accordion.compaction.strategies.notes import left_out_before
from accordion.core.plan import Step


class FixedLimitsOptions(Section, frozen=True):
    """How many of the newest messages and tokens stay at most, whichever is tighter."""

    messages: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 50
    tokens: Annotated[int, msgspec.Meta(ge=1, le=10**9)] = 8_000


class FixedLimits:
    """Walks from the newest group to the oldest and stops at the first that does not fit; pairs stay whole, one note
    says how many messages were left out and where they are kept."""

    name = "fixed_limits"

    def __init__(self, options: FixedLimitsOptions) -> None:
        self._messages, self._tokens = options.messages, options.tokens

    def propose(self, view: Draft) -> Sequence[Step | Archive]:
        """One step, or none where everything fits."""
        live = set(view.live)
        messages, tokens = self._messages, self._tokens
        for group in reversed(view.groups):
            messages -= sum(index in live for index in range(group[0], group[1] + 1))
            tokens -= sum(slot.tokens for slot in view.slots[slice_of(group)])
            if messages < 0 or tokens < 0:
                return left_out_before(view, group[1] + 1)
        return ()
