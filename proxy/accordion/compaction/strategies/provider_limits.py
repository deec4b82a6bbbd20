"""The strategies for the provider's limits of images and bytes.

They replace the oldest images, or the largest parts, of a request that the provider would refuse.
"""

from __future__ import annotations

from collections.abc import Sequence

from accordion.compaction.strategies.base import (
    ProposedStep,
    Strategy,
    StrategyOptions,
    StrategyView,
    count_images,
)
from accordion.compaction.strategies.steps import list_replaceable_parts, part_bytes, replace_with_reference
from accordion.model.shares import PositiveShare


class ImagesOptions(StrategyOptions, frozen=True):
    """`share`: old images are replaced down to this share of the limit, so that the next one does not exceed it."""

    share: PositiveShare = PositiveShare(0.5)


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
            count = count_images(view.slots[slot].message.parts[part])
            if images <= max_count or not count:
                continue
            steps.append(replace_with_reference(view, slot, part))
            images -= count
        return steps


class BodyOptions(StrategyOptions, frozen=True):
    """`share`: old parts are replaced down to this share of the limit, so that the next one does not exceed it."""

    share: PositiveShare = PositiveShare(0.5)


class BodySizeLimit(Strategy):
    """Replaces media and results, the largest first; those of the newest message and of the task only as a last resort,
    pinned ones never."""

    name = "body"
    options_type = BodyOptions
    budget = "bytes"

    def __init__(self, options: BodyOptions) -> None:
        self._share = options.share

    def propose(self, view: StrategyView) -> Sequence[ProposedStep]:
        """Proposes a Replace for each part, none if the request is within the limit."""
        if not view.is_exceeded(self.budget):
            return ()
        sized = [
            (last_resort, -part_bytes(view, slot, part), slot, part)
            for last_resort, slot, part in list_replaceable_parts(view)
        ]
        size, steps = view.body_size, []
        for last_resort, negative_bytes, slot, part in sorted(sized):
            max_size = view.max_body_size if last_resort else int(view.max_body_size * self._share)
            step = replace_with_reference(view, slot, part)
            gain = -negative_bytes - len(step.text.encode())
            if size <= max_size or gain <= 0:
                continue
            steps.append(step)
            size -= gain
        return steps
