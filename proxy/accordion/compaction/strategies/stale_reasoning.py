"""The strategy that drops the reasoning of finished turns."""

from __future__ import annotations

from collections.abc import Sequence

from accordion.compaction.strategies.base import (
    ProposedStep,
    Strategy,
    StrategyView,
)
from accordion.model.boundaries import is_reasoning_only
from accordion.model.conversation import Reasoning
from accordion.model.plan import Drop


class StaleReasoning(Strategy):
    """Drops reasoning before the open tool turn, the oldest first.

    A reasoning item of Responses is dropped only if the next item has no id: by the id the provider knows the reasoning
    that belongs to it, and refuses one without the other.
    """

    name = "stale_reasoning"

    def propose(self, view: StrategyView) -> Sequence[ProposedStep]:
        """Proposes a Drop for each message with reasoning."""
        steps = []
        for index, slot in enumerate(view.slots[: view.open_turn]):
            if not view.free[index] or view.removed[index]:
                continue
            message = slot.message
            parts = tuple(at for at, part in enumerate(message.parts) if isinstance(part, Reasoning))
            if not parts or (is_reasoning_only(message) and _is_bound(view, index)):
                continue
            steps.append(Drop(index, parts))
        return steps


def _is_bound(view: StrategyView, index: int) -> bool:
    return index + 1 < len(view.slots) and b'"id"' in view.slots[index + 1].message.wire
