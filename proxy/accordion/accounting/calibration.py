"""Counts, corrected by the usage that providers report.

A correction is the ratio of reported to counted input tokens. Each model at each upstream has one, the median of the
latest few reports, and each session its own, which follows its reports by halves and starts from the model's. One odd
report (a model behind a router, a cached part left out) moves either but little. Both are plain numbers.
"""

from __future__ import annotations

from collections import OrderedDict
from statistics import median
from threading import Lock

from accordion.core.budget import Window
from accordion.core.cache import LONGEST_NAME
from accordion.core.values import dataclass

UNKNOWN = 1.0
"""The correction of a session that nothing has been reported for."""

LEAST_RATIO, MOST_RATIO = 0.5, 3.0
"""No tokenizer differs more from ours. A report beyond is of something else too (see `is_credible`); where it is learnt
from all the same, since it is of media, it counts as one of these, and says nothing of the model."""

MOST_ADDED = 1 / 16
"""The share of a window that instructions of a provider's own may take, such as those for its own tools."""

MOST_STEP = 1.5
"""A report further off than this factor from what its session has seen so far counts as this far off."""

LEAST_COUNTED = 64
"""Exchanges of fewer counted tokens say nothing: fixed overheads rule them."""

KEPT = 9
MODELS_AT_MOST = 1_024

Carried = tuple[int, int]
"""What was counted for an exchange's list, and what was reported for it, in tokens."""


@dataclass(frozen=True, slots=True)
class Ratios:
    """The latest ratios of reported to counted tokens, oldest first, and their median: what a count is multiplied by
    (1.0 while nothing is known)."""

    latest: tuple[float, ...] = ()
    factor: float = UNKNOWN

    def seen(self, ratio: float) -> Ratios:
        """With one more report."""
        latest = (*self.latest, round(ratio, 4))[-KEPT:]
        return Ratios(latest, median(latest))


class Calibrations:
    """The corrections of models; those of sessions stay with the sessions, as one number each. Safe in threads."""

    def __init__(self) -> None:
        self._models: OrderedDict[tuple[str, str], Ratios] = OrderedDict()
        self._fresh: set[tuple[str, str]] = set()
        self._lock = Lock()

    def factor(self, upstream: str, model: str, session: float = UNKNOWN) -> float:
        """What a count is multiplied by: the session's own correction, else the model's at that upstream, else 1.0."""
        if session != UNKNOWN:
            return session
        return self._models.get((upstream, model), Ratios()).factor

    def learn(self, upstream: str, model: str, session: float, counted: int, reported: int) -> float:
        """Take a report of `reported` input tokens for `counted`; returns the session's new correction.

        Nothing changes where nothing was reported (0), or where too little was counted. Reports that are not credible
        are to be left out before.
        """
        if reported <= 0 or counted < LEAST_COUNTED:
            return session
        ratio = _within(reported / counted, LEAST_RATIO, MOST_RATIO)
        with self._lock:
            known = self._models.get((upstream, model), Ratios())
            if ratio == reported / counted and len(model) <= LONGEST_NAME:
                self._models[upstream, model] = known.seen(ratio)
                self._models.move_to_end((upstream, model))
                self._fresh.add((upstream, model))
                if len(self._models) > MODELS_AT_MOST:
                    self._fresh.discard(self._models.popitem(last=False)[0])
        before = session if session != UNKNOWN else known.factor
        if session == UNKNOWN and not known.latest:
            return round(ratio, 4)
        near = _within(ratio, before / MOST_STEP, before * MOST_STEP)
        return round(before + (near - before) / 2, 4)

    def take(self, model: tuple[str, str], latest: tuple[float, ...]) -> None:
        """Takes the latest ratios of a model at an upstream that another run had, unless this one has its own."""
        with self._lock:
            if model not in self._models and len(self._models) < MODELS_AT_MOST and latest:
                held = tuple(_within(ratio, LEAST_RATIO, MOST_RATIO) for ratio in latest[-KEPT:])
                self._models[model] = Ratios(held, median(held))

    def fresh(self) -> dict[tuple[str, str], tuple[float, ...]]:
        """The latest ratios by upstream and model, of those that something was reported for since this was asked."""
        with self._lock:
            fresh, self._fresh = self._fresh, set()
            return {model: self._models[model].latest for model in fresh}


def on_record(counted: int, reported: int) -> float:
    """The correction that one report on record speaks for; UNKNOWN where it says nothing."""
    if reported <= 0 or counted < LEAST_COUNTED:
        return UNKNOWN
    return _within(reported / counted, LEAST_RATIO, MOST_RATIO)


def is_credible(reported: int, counted: int, text: int, window: Window) -> bool:
    """Whether a provider can have read `reported` tokens for a list that it answered; one that it cannot have read
    says nothing.

    `counted` is our own count of the list, `text` the part of it that was counted and not reckoned (all but media and
    what is not understood). The answer came, so the list fits the `window`, where that is known. No tokenizer makes
    less than `LEAST_RATIO` of the text, or more than `MOST_RATIO` of a list that is nothing but text; a provider adds
    instructions of its own, but no more than `MOST_ADDED` of its window.
    """
    if window.known and reported > window.size:
        return False
    if reported < LEAST_RATIO * text:
        return False
    return text < counted or reported <= MOST_RATIO * counted + MOST_ADDED * window.size


def estimate(counted: int, last: Carried | None, factor: float) -> int:
    """Input tokens of a list that counts `counted`.

    With `last`, the figures of an exchange whose forwarded list is a prefix of this one under the same preamble and
    tools: what was reported for it, plus the corrected count of what is new. Else the corrected count of all. A report
    of 0 is none.
    """
    if last is None or last[1] <= 0:
        return round(counted * factor)
    return last[1] + round(max(0, counted - last[0]) * factor)


def _within(value: float, least: float, most: float) -> float:
    return min(most, max(least, value))
