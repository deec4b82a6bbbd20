"""Drops the reasoning of turns that are over."""

from __future__ import annotations

from collections.abc import Sequence

from accordion.compaction.strategies.base import Archive, Draft, Section
from accordion.core.boundaries import lone_reasoning
from accordion.core.conversation import Reasoning
from accordion.core.plan import Drop, Step


class StaleReasoningOptions(Section, frozen=True):
    """No options."""


class StaleReasoning:
    """Reasoning before the open tool turn, the oldest first.

    An item of Responses that is nothing but reasoning goes only where the next item bears no id: an id tells the
    provider which reasoning it came with, and it refuses one without the other.
    """

    name = "stale_reasoning"

    def __init__(self, options: StaleReasoningOptions) -> None:
        pass

    def propose(self, view: Draft) -> Sequence[Step | Archive]:
        """A Drop for each message that holds some."""
        steps = []
        for index, slot in enumerate(view.slots[: view.turn]):
            if not view.free[index] or view.gone[index]:
                continue
            message = slot.message
            parts = tuple(at for at, part in enumerate(message.parts) if isinstance(part, Reasoning))
            if not parts or (lone_reasoning(message) and _bound(view, index)):
                continue
            steps.append(Drop(index, parts))
        return steps


def _bound(view: Draft, index: int) -> bool:
    return index + 1 < len(view.slots) and b'"id"' in view.slots[index + 1].message.wire
