"""Keeps the newest messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from accordion.compaction.strategies.base import Archive, Draft, Section
from accordion.compaction.strategies.notes import left_out_before
from accordion.core.plan import Step


class KeepLastNMessagesOptions(Section, frozen=True):
    """`n`: how many messages stay, those of system and developer not counted."""

    n: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 50


class KeepLastNMessages:
    """Leaves out all before the last `n` messages but what is protected; one note stands in its place.

    Calls and their results stay together: where the n-th message falls between them, both stay.
    """

    name = "keep_last_n_messages"

    def __init__(self, options: KeepLastNMessagesOptions) -> None:
        self._n = options.n

    def propose(self, view: Draft) -> Sequence[Step | Archive]:
        """One step, or none where there are no more messages."""
        live = view.live
        return left_out_before(view, live[-self._n]) if len(live) > self._n else ()
