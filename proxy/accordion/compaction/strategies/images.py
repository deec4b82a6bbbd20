"""The strategy for the image limit: replaces the oldest images of a request with too many for the provider."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from accordion.compaction.strategies.base import (
    ProposedStep,
    Strategy,
    StrategyOptions,
    StrategyView,
    media_parts,
)
from accordion.compaction.strategies.steps import list_replaceable_parts, replace_with_reference


class ImagesOptions(StrategyOptions, frozen=True):
    """`share`: old images are replaced down to this share of the limit, so that the next one does not exceed it."""

    share: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] = 0.5


class ImageCountLimit(Strategy):
    """Replaces the oldest images first; the newest message's and the task's as a last resort, pinned ones never."""

    name = "images"
    options_type = ImagesOptions
    budget = "images"

    def __init__(self, options: ImagesOptions) -> None:
        self._share = options.share

    def propose(self, view: StrategyView) -> Sequence[ProposedStep]:
        """Proposes a Replace for each part, none if the request is within the limit."""
        if not view.is_exceeded(self.budget):
            return ()
        images, steps = view.images, []
        for last_resort, slot, part in list_replaceable_parts(view):
            max_count = view.max_images if last_resort else max(1, int(view.max_images * self._share))
            count = sum(medium.kind == "image" for medium in media_parts(view.slots[slot].message.parts[part]))
            if images <= max_count or not count:
                continue
            steps.append(replace_with_reference(view, slot, part))
            images -= count
        return steps
