"""The hold-out: a share of the sessions that is not compacted, and what compaction changes for all others.

Theory of operation. A keyed hash of the tenant's key and the name of an agent tree decides the group. So all workers
decide alike and nothing is stored; a larger share adds sessions and moves none. Up to the first compaction that is due
by a trigger, both groups are treated alike. From there on they differ, so the comparison has the trees in which one was
due, whatever was done afterwards (the intention to treat): a session of the hold-out that reaches the hard limit is
compacted and stays in its group. If it changed its group, the hold-out would lose its longest sessions.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import exp, log, sqrt
from operator import attrgetter, mul
from statistics import NormalDist
from typing import Final, Literal

import msgspec
from msgspec import structs

from accordion.model.budget import HoldoutGroup
from accordion.model.costs import to_dollars
from accordion.model.records import HoldoutEntry, Session
from accordion.model.tenant import TenantScope

LEAST: Final = 30
"""The least sessions of each group for a comparison. With fewer, one long session decides."""
CONFIDENCE: Final = 0.95
"""The share of intervals that contain the true value."""
_NORMAL_QUANTILE = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)

DAYS_COMPARED: Final = 30
"""Days of which sessions are compared, if nobody asks for others."""
STOPS: Final = "compaction_stops"
"""The collection of `CompactionStop`; names are `tenant|model`."""

Verdict = Literal["too_few", "unpriced", "pays", "costs", "open"]
"""What a comparison says about dollars: there are too few sessions; too few with known prices; compaction costs less;
it costs more; the interval has both."""


class HoldoutAssignment(msgspec.Struct, frozen=True):
    """The group of an agent tree. `unit` is its name in records: a keyed hash."""

    unit: str
    group: HoldoutGroup


class Holdout(msgspec.Struct, frozen=True):
    """Assigns agent trees to the groups. `share` is that of the hold-out, from 0.0 to 1.0; 0.0: there is none."""

    share: float = 0.0

    def assign(self, tenant: TenantScope, tree: str) -> HoldoutAssignment | None:
        """Returns the group of an agent tree by its name; None if there is no hold-out or no name."""
        if not self.share or not tree:
            return None
        digest = hmac.digest(tenant.key, b"holdout:" + tree.encode(), hashlib.sha256)
        is_held_out = int.from_bytes(digest[:8]) < self.share * 2**64
        return HoldoutAssignment(digest[:12].hex(), "holdout" if is_held_out else "compaction")


def update_entry(
    entry: HoldoutEntry | None, assignment: HoldoutAssignment, group: HoldoutGroup, model: str, repeated_calls: int
) -> HoldoutEntry:
    """Returns a session's part in the comparison after a request for a model. `group` is that of a due compaction; else
    empty."""
    entry = entry or HoldoutEntry("")
    calls = entry.repeated_calls + repeated_calls
    if not entry.group:
        return HoldoutEntry(assignment.unit, group, calls, model if group else "")
    # If the unit is another one, the main agent of a sub-agent was found late.
    kept_group = entry.group if entry.unit == assignment.unit else assignment.group
    return HoldoutEntry(assignment.unit, kept_group, calls, entry.model)


# -- the comparison ----------------------------------------------------------------------------------------------------


class Interval(msgspec.Struct, frozen=True):
    """An estimate with its confidence interval."""

    value: float
    low: float
    high: float


class ComparedFigure(msgspec.Struct, frozen=True):
    """A figure for each session: the mean of both groups, and by how much compaction changes it.

    `difference` is the mean with compaction less that of the hold-out. `change` is the same as a share of the latter;
    None if a mean is zero.
    """

    name: str
    compaction: float
    holdout: float
    difference: Interval
    change: Interval | None


class HoldoutComparison(msgspec.Struct, frozen=True):
    """Both groups, counted in agent trees: a session together with those of its sub-agents.

    `compacted_holdout` is the number in the hold-out that were compacted nevertheless. `figures` is empty if there are
    too few sessions; `spent` is missing if too few have known prices. `models` compares the sessions of each model
    (`model`), by the model for which a compaction was first due.
    """

    compaction: int
    holdout: int
    compacted_holdout: int
    figures: tuple[ComparedFigure, ...] = ()
    model: str = ""
    models: tuple[HoldoutComparison, ...] = ()

    @property
    def cost_change(self) -> Interval | None:
        """By which share compaction changes the dollars of a session; None if that is not known."""
        return next((figure.change for figure in self.figures if figure.name == "spent"), None)

    @property
    def verdict(self) -> Verdict:
        """What the comparison says about dollars."""
        if not self.figures:
            return "too_few"
        change = self.cost_change
        if change is None:
            return "unpriced"
        return "pays" if change.high < 0 else "costs" if change.low > 0 else "open"


class CompactionStop(msgspec.Struct, frozen=True):
    """Compaction is stopped for a tenant's sessions of a model, because they cost more with it (`change`).

    It begins and ends at a time in seconds since the epoch.
    """

    tenant: str
    model: str
    since: float
    until: float
    change: Interval


@dataclass(slots=True)
class _Unit:
    """The sums of one agent tree."""

    group: HoldoutGroup = ""
    model: str = ""
    compared_since: float = 0.0
    updated: float = 0.0
    compactions: int = 0
    unpriced: int = 0
    spent: int = 0
    requests: int = 0
    reads: int = 0
    repeated_calls: int = 0
    errors: int = 0

    def add(self, row: Session, entry: HoldoutEntry) -> None:
        if entry.group and (not self.group or row.created < self.compared_since):
            self.group, self.model, self.compared_since = entry.group, entry.model, row.created
        self.updated = max(self.updated, row.updated)
        self.compactions += row.totals.compactions
        self.unpriced += row.costs.unpriced
        self.spent += row.costs.spent
        self.requests += row.totals.requests
        self.reads += row.totals.read_back_calls
        self.repeated_calls += entry.repeated_calls
        self.errors += row.totals.errors


@dataclass(slots=True)
class HoldoutUnits:
    """The agent trees of a hold-out, with the sums of their sessions."""

    _units: dict[tuple[str, str], _Unit] = field(default_factory=dict)
    """By tenant and name."""

    def add(self, row: Session) -> None:
        """Adds the row of a session, of any worker. One without a part in the comparison is ignored."""
        if row.holdout is not None:
            self._units.setdefault((row.tenant, row.holdout.unit), _Unit()).add(row, row.holdout)

    def compare(self, since: float) -> HoldoutComparison | None:
        """Compares the groups; None if there was no hold-out.

        Only agent trees with a request at the time `since` or later count (seconds since the epoch).
        """
        if not self._units:
            return None
        recent = [unit for unit in self._units.values() if unit.updated >= since and unit.group]
        models = defaultdict[str, list[_Unit]](list)
        for unit in recent:
            models[unit.model].append(unit)
        return structs.replace(
            _compare_units(recent), models=tuple(_compare_units(models[model], model) for model in sorted(models))
        )


def _compare_units(units: Sequence[_Unit], model: str = "") -> HoldoutComparison:
    compaction = [unit for unit in units if unit.group == "compaction"]
    holdout = [unit for unit in units if unit.group == "holdout"]
    compacted_holdout = sum(unit.compactions > 0 for unit in holdout)
    figures = tuple(_compare_figures(compaction, holdout))
    return HoldoutComparison(len(compaction), len(holdout), compacted_holdout, figures, model)


def _compare_figures(compaction: Sequence[_Unit], holdout: Sequence[_Unit]) -> Iterator[ComparedFigure]:
    if min(len(compaction), len(holdout)) < LEAST:
        return
    first, second = ([to_dollars(unit.spent) for unit in group if not unit.unpriced] for group in (compaction, holdout))
    if min(len(first), len(second)) >= LEAST:
        yield _compare("spent", first, second)
    for name in ("requests", "reads", "repeated_calls", "errors"):
        read = attrgetter(name)
        yield _compare(name, list(map(read, compaction)), list(map(read, holdout)))


class _Sample(msgspec.Struct, frozen=True):
    """The number, the mean and the variance of a figure in one group."""

    count: int
    mean: float
    variance: float


def _compare(name: str, compaction: Sequence[float], holdout: Sequence[float]) -> ComparedFigure:
    """Compares the means of a figure.

    The relative change is the log response ratio (Hedges, Gurevitch and Curtis 1999, "The meta-analysis of response
    ratios in experimental ecology"): the logarithm of a ratio of means is nearly normal where the means are not, since
    costs of sessions have a heavy tail. Its variance is the sum of the squared coefficients of variation, each divided
    by the number of sessions. The difference is Welch's (1947, "The generalization of Student's problem when several
    different population variances are involved").
    """
    first, second = _sample(compaction), _sample(holdout)
    change = None
    if first.mean > 0 and second.mean > 0:
        relative = [structs.replace(sample, variance=sample.variance / sample.mean**2) for sample in (first, second)]
        logarithm = _estimate(log(first.mean / second.mean), *relative)
        change = Interval(*(exp(each) - 1 for each in (logarithm.value, logarithm.low, logarithm.high)))
    difference = _estimate(first.mean - second.mean, first, second)
    return ComparedFigure(name, first.mean, second.mean, difference, change)


def _sample(values: Sequence[float]) -> _Sample:
    count = len(values)
    mean = sum(values) / count
    deviations = [value - mean for value in values]
    return _Sample(count, mean, sum(map(mul, deviations, deviations)) / (count - 1))


def _estimate(value: float, first: _Sample, second: _Sample) -> Interval:
    """Returns the interval of a difference between two groups.

    A small group seldom has one of the rare long sessions, and then its own variance is far too small. So each group
    counts with the variance of both together if that is larger. With log-normal costs and 30 sessions in
    the hold-out, 87 to 94 % of the intervals would contain the true value without this; with it, 96 to 97 % do.
    """
    pooled = ((first.count - 1) * first.variance + (second.count - 1) * second.variance) / (
        first.count + second.count - 2
    )
    parts = [max(sample.variance, pooled) / sample.count for sample in (first, second)]
    total = sum(parts)
    if not total:
        return Interval(value, value, value)
    freedom = total**2 / sum(part**2 / (sample.count - 1) for part, sample in zip(parts, (first, second), strict=True))
    half = _student_quantile(freedom) * sqrt(total)
    return Interval(value, value - half, value + half)


def _student_quantile(freedom: float) -> float:
    """Returns the quantile of Student's distribution for `CONFIDENCE` (Abramowitz and Stegun 26.7.5).

    From ten degrees of freedom on, it differs by less than 0.001.
    """
    z = _NORMAL_QUANTILE
    return (
        z
        + (z**3 + z) / (4 * freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    )
