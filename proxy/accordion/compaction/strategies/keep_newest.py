"""The strategies that keep the newest part of a conversation: `n` turns, `n` messages, or what fixed limits allow."""

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
