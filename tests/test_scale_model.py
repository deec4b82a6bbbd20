"""The simulation of many proxies on one store (bench/scale_model.py)."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.scale_model import Assumptions, Load, Phase, UnitCosts, compute_need, expected_proxies, measure_costs

COSTS = UnitCosts(
    sessions={"commands": 20.0, "CPU ms": 0.2, "bytes in": 900.0, "bytes out": 50.0, "memory": 2_000.0},
    turns={"commands": 10.0, "CPU ms": 0.1, "bytes in": 500.0, "bytes out": 20.0, "memory": 1_000.0},
    visits={"commands": 5.0, "CPU ms": 0.05, "bytes in": 100.0, "bytes out": 300.0, "memory": 100.0},
    compacted_turns={"commands": 8.0, "CPU ms": 0.3, "bytes in": 4_000.0, "bytes out": 600.0, "memory": 5_000.0},
    compacted_visits={"commands": 30.0, "CPU ms": 0.1, "bytes in": 50.0, "bytes out": 9_000.0, "memory": 0.0},
    idle_seconds={"commands": 3.0, "CPU ms": 0.1, "bytes in": 90.0, "bytes out": 30.0, "memory": 0.0},
)
LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=20)


@given(st.integers(2, 40), st.integers(2, 30), st.integers(20, 60), st.integers(1, 19))
def test_the_costs_of_a_store_that_does_a_sum_of_work_are_found_again(proxies, short, long, until):
    def phase(lengths: list[int], seconds: float, *, hops: bool = False, compacts: int = 0) -> Phase:
        load = Load.at_random(lengths, proxies, compacts, hops=hops, seconds=seconds)
        return Phase(load, COSTS.predict(load))

    found = measure_costs(
        phase([], 10.0),
        phase([1] * 50, 4.0),
        phase([short] * 20, 9.0),
        phase([short] * 20, 9.0, hops=True),
        phase([long] * 20, 30.0, compacts=until),
        phase([long] * 20, 30.0, hops=True, compacts=until),
    )
    load = Load.at_random([3, 17, 50], 100, 30, seconds=5.0)
    predicted = COSTS.predict(load)
    assert found.predict(load) == pytest.approx(predicted, rel=1e-6)


@given(LENGTHS, st.integers(1, 50), st.integers(0, 40))
def test_a_load_at_random_has_at_most_one_visit_a_turn_and_a_proxy(lengths, proxies, until):
    load = Load.at_random(lengths, proxies, until)
    assert len(lengths) <= load.visits + 1e-6 <= sum(min(length, proxies) for length in lengths) + 2e-6
    assert load.compacted_visits <= load.visits
    assert load.compacted_turns <= load.turns == sum(lengths)
    assert Load.at_random(lengths, proxies, until, hops=False).visits == len(lengths)


def test_the_expected_number_of_proxies_is_that_of_many_trials():
    chance = random.Random(1)
    trials = [len({chance.randrange(8) for _ in range(10)}) for _ in range(20_000)]
    assert sum(trials) / len(trials) == pytest.approx(expected_proxies(10, 8), rel=0.01)


def test_a_fleet_needs_the_sum_of_its_work_at_the_peak():
    fleet = Assumptions(
        proxies=10, sessions_a_day=86_400, turns=1, compacted_share=0.0, retention_days=2.0, peak=2.0, hops=False,
        busy_share=0.5, master_bytes=1e8,
    )  # fmt: skip
    need = compute_need(COSTS, fleet)
    assert need.turns_a_second == 2
    assert need.commands_a_second == 2 * (20 + 10 + 5) + 10 * 3
    assert need.bytes_out_a_second == 2 * (50 + 20 + 300) + 10 * 30
    assert need.cores == pytest.approx((2 * 0.35 + 10 * 0.1) / 1000)
    assert need.memory == 2 * 86_400 * 3_100
    assert (need.masters, need.bottleneck) == (6, "memory")


def test_more_proxies_and_longer_retention_never_need_less():
    small, large = Assumptions(proxies=4, retention_days=7.0), Assumptions()
    one, other = compute_need(COSTS, small), compute_need(COSTS, large)
    assert one.commands_a_second < other.commands_a_second
    assert one.memory < other.memory
    stays = compute_need(COSTS, Assumptions(hops=False))
    assert stays.commands_a_second < other.commands_a_second
    assert stays.bottleneck == "memory"
