"""Replaces the oldest images where there are more than a provider takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from accordion.compaction.strategies.base import Archive, Draft, Section, media_of
from accordion.compaction.strategies.beside import order, replacement
from accordion.core.plan import Step


class ImagesOptions(Section, frozen=True):
    """`share`: down to which share of the limit old images are replaced, so that the next one breaks nothing anew."""

    share: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] = 0.5


class Images:
    """The oldest first; the newest message's and the task's only where there is no other way, pinned ones never."""

    name = "images"

    def __init__(self, options: ImagesOptions) -> None:
        self._share = options.share

    def propose(self, view: Draft) -> Sequence[Step | Archive]:
        """A Replace for each, none where the budget is kept."""
        if not 0 < view.images_at_most < view.images:
            return ()
        images, steps = view.images, []
        for last_resort, slot, part in order(view):
            most = view.images_at_most if last_resort else max(1, int(view.images_at_most * self._share))
            held = [m for m in media_of(view.slots[slot].message.parts[part]) if m.kind == "image"]
            if images <= most or not held:
                continue
            steps.append(replacement(view, slot, part))
            images -= len(held)
        return steps
