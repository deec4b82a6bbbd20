"""Shares of a whole, as people write them: `0.6` or `60%`."""

from __future__ import annotations

import re
from typing import Self

_SHARE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)( ?%)?")


class Share(float):
    """A share from 0 to 1, written as such a number or as a percentage, such as 60%."""

    __slots__ = ()

    @classmethod
    def read(cls, value: object) -> Self:
        """Raises ValueError for anything but a share; for a number up to 100, with a suggestion."""
        match = _SHARE.fullmatch(value.strip()) if isinstance(value, str) else None
        is_percentage = match is not None and match[2] is not None
        if match is not None:
            value = float(match[1]) / (100 if is_percentage else 1)
        if isinstance(value, int | float) and not isinstance(value, bool):
            if 0 <= value <= 1:
                return cls(value)
            if 1 < value <= 100 and not is_percentage:
                raise ValueError(f"Expected a share; did you mean {value / 100:g} or {value:g}%?")
        raise ValueError("Expected a share: a number from 0 to 1, or a percentage such as 60%")


class PositiveShare(Share):
    """A share above 0."""

    __slots__ = ()

    @classmethod
    def read(cls, value: object) -> Self:
        """As for `Share`; raises ValueError for 0, too."""
        share = super().read(value)
        if not share:
            raise ValueError("Expected a share above 0, such as 0.5 or 50%")
        return share
