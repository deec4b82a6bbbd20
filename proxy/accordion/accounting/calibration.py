"""Learns from the usage that providers report: corrections of token counts, and how long responses are.

A correction is the ratio of reported to counted input tokens, a plain number. Each model at each upstream has one, the
median of the latest few reports. Each session has its own: it starts from the model's and moves half-way to each
report. One odd report (a model behind a router, a cached part left out) changes either only a little.

Agents ask for far more output (`max_tokens`) than any response has. The space that is kept free for a response is a
multiple of the longest one of the session and of the model's latest ones.
"""

from __future__ import annotations

from statistics import median
from threading import Lock
from typing import NamedTuple

import msgspec

from accordion.model.budget import Window
from accordion.model.cache import LONGEST_NAME, BoundedCache, count_entry

UNKNOWN = 1.0
"""The correction of a session without reports."""

LEAST_RATIO, MOST_RATIO = 0.5, 3.0
"""The limits of the ratio, since no tokenizer differs more from ours. A report beyond them covers something else too
(see `is_credible`). If it is used all the same, for a list with media, it is clamped to them, and does not change the
model's correction."""

MOST_ADDED = 1 / 16
"""The share of a window that a provider's own instructions may take, such as those for its own tools."""

MOST_STEP = 1.5
"""A report that differs from its session's correction by more than this factor is clamped to it."""

LEAST_COUNTED = 64
"""Exchanges with fewer counted tokens are ignored: fixed overheads dominate them."""

LEAST_OUTPUT = 8_192
"""Minimum number of tokens that are kept free for a response, if the request asks for as many."""

MAX_OUTPUTS, LEAST_OUTPUTS = 64, 4
"""How many of the latest lengths of a model's responses are stored, and from what number on they are used."""

MAX_RATIOS = 9
MODELS_AT_MOST = 1_024


class ReportedCount(NamedTuple):
    """The tokens of an exchange's list: by our count, and as the provider reported them (0: not reported)."""

    counted: int
    reported: int


class CorrectionRatios(msgspec.Struct, frozen=True):
    """The latest ratios of reported to counted tokens, oldest first; `factor` is their median (1.0 without any)."""

    latest: tuple[float, ...] = ()
    factor: float = UNKNOWN

    def add(self, ratio: float) -> CorrectionRatios:
        """Returns the ratios with one more report."""
        latest = (*self.latest, round(ratio, 4))[-MAX_RATIOS:]
        return CorrectionRatios(latest, median(latest))


class Calibrations:
    """The corrections of models. Sessions store their own, as one number each. Safe to use from several threads."""

    def __init__(self) -> None:
        self._changed: set[tuple[str, str]] = set()
        self._models: BoundedCache[tuple[str, str], CorrectionRatios] = BoundedCache(
            MODELS_AT_MOST, count_entry, lambda model, _: self._changed.discard(model)
        )
        self._changed_outputs: set[tuple[str, str]] = set()
        self._outputs: BoundedCache[tuple[str, str], tuple[int, ...]] = BoundedCache(
            MODELS_AT_MOST, count_entry, lambda model, _: self._changed_outputs.discard(model)
        )
        self._lock = Lock()

    def factor(self, upstream: str, model: str, session: float = UNKNOWN) -> float:
        """Returns the factor of a count: the session's correction, else the model's at that upstream, else 1.0."""
        if session != UNKNOWN:
            return session
        ratios = self._models.get((upstream, model))
        return UNKNOWN if ratios is None else ratios.factor

    def learn(self, upstream: str, model: str, session: float, counted: int, reported: int) -> float:
        """Learns from a report of `reported` input tokens for `counted`; returns the session's new correction.

        Nothing changes if nothing was reported (0), or too little was counted. The caller leaves out reports that
        are not credible.
        """
        if reported <= 0 or counted < LEAST_COUNTED:
            return session
        ratio = _clamp(reported / counted, LEAST_RATIO, MOST_RATIO)
        with self._lock:
            model_ratios = self._models.get((upstream, model)) or CorrectionRatios()
            if ratio == reported / counted and len(model) <= LONGEST_NAME:
                self._models[upstream, model] = model_ratios.add(ratio)
                self._changed.add((upstream, model))
        former = session if session != UNKNOWN else model_ratios.factor
        if session == UNKNOWN and not model_ratios.latest:
            return round(ratio, 4)
        target = _clamp(ratio, former / MOST_STEP, former * MOST_STEP)
        return round(former + (target - former) / 2, 4)

    def learn_output(self, upstream: str, model: str, tokens: int) -> None:
        """Learns the length of a response, in tokens."""
        if tokens <= 0 or len(model) > LONGEST_NAME:
            return
        name = upstream, model
        with self._lock:
            former = self._outputs.get(name) or ()
            self._outputs[name] = latest = (*former, tokens)[-MAX_OUTPUTS:]
            if len(former) < LEAST_OUTPUTS or max(latest) != max(former):
                self._changed_outputs.add(name)

    def output_space(self, upstream: str, model: str, asked: int, longest: int, factor: float) -> int:
        """Returns the tokens to keep free for a response if the request asks for `asked`.

        That is `factor` times the longest response, of the session (`longest`) or of the model lately; never less than
        LEAST_OUTPUT, never more than `asked`. It is `asked` if too few responses are known, or `factor` is 0.
        """
        outputs = self._outputs.get((upstream, model)) or ()
        if asked <= LEAST_OUTPUT or not factor or len(outputs) < LEAST_OUTPUTS:
            return asked
        return min(asked, max(LEAST_OUTPUT, round(factor * max(longest, *outputs))))

    def restore_outputs(self, model: tuple[str, str], latest: tuple[int, ...]) -> None:
        """Restores the lengths of a model's responses from another run, unless this run has its own."""
        with self._lock:
            if model not in self._outputs and len(self._outputs) < MODELS_AT_MOST and latest:
                self._outputs[model] = latest[-MAX_OUTPUTS:]

    def drain_output_changes(self) -> dict[tuple[str, str], tuple[int, ...]]:
        """Returns the lengths of the responses of the models that changed since the last call."""
        with self._lock:
            changed, self._changed_outputs = self._changed_outputs, set()
            return {model: lengths for model in changed if (lengths := self._outputs.get(model)) is not None}

    def restore(self, model: tuple[str, str], latest: tuple[float, ...]) -> None:
        """Restores the ratios of a model at an upstream from another run, unless this run has its own."""
        with self._lock:
            if model not in self._models and len(self._models) < MODELS_AT_MOST and latest:
                ratios = tuple(_clamp(ratio, LEAST_RATIO, MOST_RATIO) for ratio in latest[-MAX_RATIOS:])
                self._models[model] = CorrectionRatios(ratios, median(ratios))

    def drain_changes(self) -> dict[tuple[str, str], tuple[float, ...]]:
        """Returns the ratios of the models that changed since the last call, by upstream and model."""
        with self._lock:
            changed, self._changed = self._changed, set()
            return {model: ratios.latest for model in changed if (ratios := self._models.get(model)) is not None}


def correction_from_report(counted: int, reported: int) -> float:
    """Returns the correction by a single report; UNKNOWN if nothing was reported or too little counted."""
    if reported <= 0 or counted < LEAST_COUNTED:
        return UNKNOWN
    return _clamp(reported / counted, LEAST_RATIO, MOST_RATIO)


def is_credible(reported: int, counted: int, text: int, window: Window) -> bool:
    """Whether a provider can have read `reported` tokens for a list that it answered.

    `counted` is our own count of the list, `text` the part of it that was counted, not estimated (all but media and
    parts of unknown kinds). The provider answered, so the list fits the `window`, if that is known. No tokenizer
    makes less than `LEAST_RATIO` of the text, or more than `MOST_RATIO` of a list of text only; a provider adds its own
    instructions, but at most `MOST_ADDED` of its window.
    """
    if window.is_known and reported > window.size:
        return False
    if reported < LEAST_RATIO * text:
        return False
    return text < counted or reported <= MOST_RATIO * counted + MOST_ADDED * window.size


def estimate_tokens(counted: int, last: ReportedCount | None, factor: float) -> int:
    """Estimates the input tokens of a list with `counted` tokens.

    `last` has the figures of an exchange whose forwarded list is a prefix of this one under the same preamble and
    tools. With it, the estimate is its reported tokens plus the corrected count of the rest; else the corrected count
    of all. A report of 0 is none.
    """
    if last is None or last.reported <= 0:
        return round(counted * factor)
    return last.reported + round(max(0, counted - last.counted) * factor)


def _clamp(value: float, least: float, most: float) -> float:
    return min(most, max(least, value))
