"""How what left the window comes back."""

from __future__ import annotations

from typing import Annotated

import msgspec

from accordion.settings.base import Section


class Recalls(Section, frozen=True):
    """How much is recalled for one turn; 0 tokens: nothing."""

    tokens: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 1_500
    sources: Annotated[int, msgspec.Meta(ge=1, le=20)] = 3


class Unfold(Section, frozen=True):
    """Whether and how often the model reads back, and how much is recalled without its asking."""

    tool: bool = True
    max_rounds: Annotated[int, msgspec.Meta(ge=1, le=100)] = 8
    recall: Recalls = Recalls()
