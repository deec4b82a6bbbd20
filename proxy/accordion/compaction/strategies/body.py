"""Replaces the largest parts where a request has more bytes than a provider takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from accordion.compaction.strategies.base import Archive, Draft, Section
from accordion.compaction.strategies.beside import bytes_of, order, replacement
from accordion.core.plan import Step


class BodyOptions(Section, frozen=True):
    """`share`: down to which share of the limit old parts are replaced, so that the next one breaks nothing anew."""

    share: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] = 0.5


class Body:
    """Media and results, the largest first; those of the newest message and of the task only where there is no other
    way, pinned ones never."""

    name = "body"

    def __init__(self, options: BodyOptions) -> None:
        self._share = options.share

    def propose(self, view: Draft) -> Sequence[Step | Archive]:
        """A Replace for each, none where the budget is kept."""
        if not 0 < view.size_at_most < view.size:
            return ()
        sized = [(last_resort, -bytes_of(view, slot, part), slot, part) for last_resort, slot, part in order(view)]
        size, steps = view.size, []
        for last_resort, less, slot, part in sorted(sized):
            most = view.size_at_most if last_resort else int(view.size_at_most * self._share)
            step = replacement(view, slot, part)
            gain = -less - len(step.text.encode())
            if size <= most or gain <= 0:
                continue
            steps.append(step)
            size -= gain
        return steps
