"""Goals and other compactors' figures for the quality measurement, as they were published with its tool.

Shares are in per cent; `cost` is cache-weighted input relative to sending everything. The others were measured at a
window of 32,000 tokens and a trigger of half of it, the later ones on a smaller sample of the same recordings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Goal:
    """The goals at one window size; figures with a retrieval need a way to read the archive."""

    fits: float
    far: float
    far_retr: float
    code_retr: float
    prefix: float
    cost: float


GOALS: Final[Mapping[int, Goal]] = {
    32_000: Goal(fits=99, far=80, far_retr=95, code_retr=88, prefix=92, cost=0.35),
    128_000: Goal(fits=100, far=90, far_retr=97, code_retr=93, prefix=97, cost=0.55),
    8_000: Goal(fits=95, far=55, far_retr=93, code_retr=85, prefix=80, cost=0.60),
}

PUBLISHED_AT: Final = 32_000

# Name, reduction, fits, far, far with one retrieval, code, code with one retrieval, valid, prefix, cost.
Row = tuple[str, float, float, float, float, float, float, float, float, float]

PUBLISHED: Final[Sequence[Row]] = (
    ("send everything", 0, 29, 100, 100, 100, 100, 100, 100, 1.00),
    ("last 50 messages or 8k tokens", 90, 100, 19, 19, 15, 15, 100, 53, 0.52),
    ("last 10 turns", 85, 94, 46, 46, 43, 43, 100, 15, 1.08),
    ("mask tool results older than 10", 60, 69, 81, 81, 73, 73, 100, 63, 1.24),
    ("drop oldest until it fits", 82, 100, 48, 48, 34, 34, 100, 59, 0.82),
    ("the same, cutting rarely", 86, 100, 30, 30, 23, 23, 100, 90, 0.32),
    ("archive old results behind references", 81, 96, 52, 91, 46, 85, 100, 74, 0.77),
    # From here on with a smaller sample.
    ("sticky cut and a plain extract", 84, 100, 77, 77, 22, 22, 100, 87, 0.37),
    ("CliffCompaction 0.1", 86, 100, 45, 45, 22, 22, 100, 89, 0.34),
    ("ctxkeeper 1.2, its recall at its best", 86, 100, 82, 97, 26, 78, 100, 83, 0.41),
    ("context-guardian 0.12", 88, 99, 71, 75, 11, 17, 20, 52, 0.62),
    ("awecompress 0.2", 60, 66, 90, 90, 60, 60, 100, 97, 0.52),
    ("LangChain SummarizationMiddleware", 77, 93, 80, 80, 47, 47, 100, 72, 0.95),
    ("distil 1.58 (smaller sample)", 34, 73, 100, 100, 96, 100, 100, 100, 0.64),
    ("Headroom 0.42 (smaller sample)", 3, 50, 98, 100, 100, 100, 100, 99, 1.00),
)
