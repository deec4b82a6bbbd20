"""What many proxies and sessions need of a store: plain arithmetic on costs that a small run measured.

Theory of operation. What a store does is taken for a sum: so much for each session that begins, for each turn, for each
turn in a session that is compacted (its content is stored), for each proxy that a session reaches, once more for each
that it reaches after it was compacted, and for each second of a proxy without requests. `measure_costs` computes these
costs from phases that differ in one of the numbers each; `Load.at_random` computes the numbers of a fleet; `predict`
multiplies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final

Figures = Mapping[str, float]
"""What a store did or holds, by the names of `cluster_usage.FIGURES`."""
SECONDS_A_DAY: Final = 86_400


@dataclass(frozen=True)
class Load:
    """How much of each kind of work there is."""

    sessions: float = 0.0
    turns: float = 0.0
    visits: float = 0.0
    """Sums over the sessions of the proxies that each reached."""
    compacted_turns: float = 0.0
    """The turns of the sessions that are compacted sooner or later."""
    compacted_visits: float = 0.0
    """Sums over the compacted sessions of the proxies that each reached after it was compacted, if turns hop."""
    idle_seconds: float = 0.0
    """Sums over the proxies of the seconds that each ran."""

    @classmethod
    def at_random(
        cls, lengths: Sequence[int], proxies: int, until_compacted: int, *, hops: bool = True, seconds: float = 0.0
    ) -> Load:
        """The load of sessions of these lengths, whose turns go to one of the proxies by chance each, or to the same.

        A session of `until_compacted` turns or more is compacted (0: none is).
        """
        compacted = [length for length in lengths if until_compacted and length >= until_compacted]
        visits = sum(expected_proxies(length, proxies) for length in lengths) if hops else len(lengths)
        later = sum(expected_proxies(length - until_compacted, proxies) for length in compacted) if hops else 0
        return cls(len(lengths), sum(lengths), visits, sum(compacted), later, proxies * seconds)


def expected_proxies(turns: int, proxies: int) -> float:
    """How many of the proxies so many turns reach if each goes to one of them by chance."""
    return proxies * (1 - (1 - 1 / proxies) ** turns)


@dataclass(frozen=True)
class UnitCosts:
    """What one of each kind of work costs, by figure."""

    sessions: Figures
    turns: Figures
    visits: Figures
    compacted_turns: Figures
    compacted_visits: Figures
    idle_seconds: Figures

    def predict(self, load: Load) -> dict[str, float]:
        """Returns what a load costs."""
        kinds: list[tuple[Figures, float]] = [
            (getattr(self, each.name), getattr(load, each.name)) for each in fields(load)
        ]
        return {figure: sum(costs[figure] * count for costs, count in kinds) for figure in self.turns}


@dataclass(frozen=True)
class Phase:
    """A measured run: its load and what the store did."""

    load: Load
    figures: Figures


def measure_costs(
    idle: Phase, single: Phase, staying: Phase, hopping: Phase, compacted_staying: Phase, compacted_hopping: Phase
) -> UnitCosts:
    """Returns the costs that explain the phases: one without requests, one of sessions of a single turn, one of longer
    sessions that stay with a proxy, one of such that hop, and both of sessions that are compacted."""
    costs: dict[str, dict[str, float]] = {each.name: {} for each in fields(Load)}
    for figure in idle.figures:
        known = costs["idle_seconds"]
        known[figure] = max(0.0, idle.figures[figure] / idle.load.idle_seconds)

        def rest(phase: Phase, *kinds: str, figure: str = figure) -> float:
            """What a phase cost beside these kinds of work."""
            explained = [costs[kind][figure] * float(getattr(phase.load, kind)) for kind in kinds]
            return phase.figures[figure] - sum(explained)

        # Two unknowns: a session of one turn costs both, a longer one the turn so many times. Each has one visit.
        first = rest(single, "idle_seconds") / single.load.sessions
        each = rest(staying, "idle_seconds") / staying.load.sessions
        turn = max(0.0, (each - first) / (staying.load.turns / staying.load.sessions - 1))
        costs["turns"][figure] = turn
        # The first visit of a session is part of what a session costs, until the cost of a visit is known.
        more_visits = hopping.load.visits - hopping.load.sessions
        session = max(0.0, first - turn)
        visit = max(0.0, (rest(hopping, "idle_seconds", "turns") - session * hopping.load.sessions) / more_visits)
        costs["visits"][figure], costs["sessions"][figure] = visit, session - visit
        plain = "idle_seconds", "turns", "visits", "sessions"
        more = rest(compacted_staying, *plain)
        costs["compacted_turns"][figure] = max(0.0, more / compacted_staying.load.compacted_turns)
        more = rest(compacted_hopping, *plain, "compacted_turns")
        costs["compacted_visits"][figure] = max(0.0, more / compacted_hopping.load.compacted_visits)
    return UnitCosts(**costs)


@dataclass(frozen=True)
class Assumptions:
    """A fleet in the large. `retention_days`: how long the store keeps a session after its last use."""

    proxies: int = 100
    sessions_a_day: float = 1_000_000 / 30
    turns: int = 40
    compacted_share: float = 0.3
    until_compacted: int = 20
    """The turn at which a session of so many turns is compacted first."""
    retention_days: float = 30.0
    peak: float = 3.0
    """The load in the busiest hour, in averages of the day."""
    hops: bool = True
    busy_share: float = 0.5
    """How much of a master's core is used at the peak at most."""
    master_bytes: float = 16 * 2**30
    """The memory of a master that may be used for data."""
    memory_factor: float = 1.0
    """The memory that a server uses, in bytes of its records."""


@dataclass(frozen=True)
class Need:
    """What a fleet needs of its store, at the peak."""

    turns_a_second: float
    commands_a_second: float
    bytes_in_a_second: float
    bytes_out_a_second: float
    cores: float
    """Cores of the masters, each fully used."""
    memory: float
    """Bytes of all masters together, without replicas."""
    masters_for_work: float
    masters_for_memory: float

    @property
    def bottleneck(self) -> str:
        """What decides the number of masters."""
        return "memory" if self.masters_for_memory >= self.masters_for_work else "CPU"

    @property
    def masters(self) -> int:
        """Masters, of which a cluster has three at least."""
        return max(3, -int(-max(self.masters_for_memory, self.masters_for_work) // 1))


def compute_need(costs: UnitCosts, fleet: Assumptions) -> Need:
    """Returns what a fleet needs, from the costs that were measured."""
    sessions = fleet.sessions_a_day
    turns = sessions * fleet.turns
    visits = sessions * (expected_proxies(fleet.turns, fleet.proxies) if fleet.hops else 1.0)
    compacted = sessions * fleet.compacted_share
    later = compacted * expected_proxies(fleet.turns - fleet.until_compacted, fleet.proxies) if fleet.hops else 0.0
    day = costs.predict(Load(sessions, turns, visits, compacted * fleet.turns, later))
    idle = costs.predict(Load(idle_seconds=fleet.proxies))
    second = {name: fleet.peak * value / SECONDS_A_DAY + idle[name] for name, value in day.items()}
    memory, cores = day["memory"] * fleet.retention_days * fleet.memory_factor, second["CPU ms"] / 1000
    return Need(
        fleet.peak * turns / SECONDS_A_DAY, second["commands"], second["bytes in"], second["bytes out"], cores, memory,
        cores / fleet.busy_share, memory / fleet.master_bytes,
    )  # fmt: skip
