"""The strategy that drops the reasoning of finished answers."""

from __future__ import annotations

from collections.abc import Sequence

from accordion.compaction.strategies.base import (
    ProposedStep,
    Strategy,
    StrategyView,
)
from accordion.model.conversation import Reasoning
from accordion.model.plan import Drop


class StaleReasoning(Strategy):
    """Drops reasoning before the open tool turn, the oldest first.

    The rules (rules.py) leave out what a provider demands: reasoning that led to calls, and a reasoning item of
    Responses whose next item has an id.
    """

    name = "stale_reasoning"

    def propose(self, view: StrategyView) -> Sequence[ProposedStep]:
        """Proposes a Drop for each message with reasoning."""
        return [
            Drop(index, parts)
            for index, slot in enumerate(view.slots[: view.open_turn])
            if (parts := tuple(at for at, part in enumerate(slot.message.parts) if isinstance(part, Reasoning)))
        ]
