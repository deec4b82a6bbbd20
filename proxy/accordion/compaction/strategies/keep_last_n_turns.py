"""Keeps the newest turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from accordion.compaction.strategies.base import Archive, Draft, Section
from accordion.compaction.strategies.notes import left_out_before
from accordion.core.plan import Step


class KeepLastNTurnsOptions(Section, frozen=True):
    """`n`: how many turns stay. A turn begins where the user says something."""

    n: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 10


class KeepLastNTurns:
    """Leaves out all before the last `n` turns but what is protected; one note stands in its place."""

    name = "keep_last_n_turns"

    def __init__(self, options: KeepLastNTurnsOptions) -> None:
        self._n = options.n

    def propose(self, view: Draft) -> Sequence[Step | Archive]:
        """One step, or none where there are no more turns."""
        begins = [index for index, slot in enumerate(view.slots) if not view.gone[index] and slot.says]
        return left_out_before(view, begins[-self._n]) if len(begins) > self._n else ()
