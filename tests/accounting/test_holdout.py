"""The hold-out: who is in it, and what the comparison with it says."""

from __future__ import annotations

import random
from math import log

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from accordion.accounting.holdout import (
    LEAST,
    Holdout,
    HoldoutAssignment,
    HoldoutComparison,
    HoldoutUnits,
    Interval,
    update_entry,
)
from accordion.model.budget import HoldoutGroup
from accordion.model.records import HoldoutEntry
from accordion.model.tenant import TenantScope
from tests.holdouts import compared, groups, row, spread

TENANT, OTHER_TENANT = TenantScope("a", b"key of a"), TenantScope("b", b"key of b")
NAMES = st.text(min_size=1, max_size=60)
SHARES = st.floats(min_value=0.001, max_value=1.0)


def group_of(share: float, name: str, tenant: TenantScope = TENANT) -> HoldoutGroup:
    assignment = Holdout(share).assign(tenant, name)
    assert assignment is not None
    return assignment.group


# -- assignment --------------------------------------------------------------------------------------------------------


@given(NAMES, SHARES)
def test_an_agent_tree_is_always_in_the_same_group(name: str, share: float) -> None:
    again = TenantScope(TENANT.name, bytes(bytearray(TENANT.key)))
    assert Holdout(share).assign(TENANT, name) == Holdout(share).assign(again, name)


@given(NAMES, SHARES, SHARES)
def test_a_larger_share_takes_no_session_out_of_the_hold_out(name: str, first: float, second: float) -> None:
    smaller, larger = sorted((first, second))
    assert (group_of(smaller, name), group_of(larger, name)) != ("holdout", "compaction")


@given(NAMES)
def test_all_are_in_a_hold_out_of_the_whole_and_none_in_one_of_nothing(name: str) -> None:
    assert group_of(1.0, name) == "holdout"
    assert Holdout().assign(TENANT, name) is None


def test_a_tree_without_a_name_is_in_no_group() -> None:
    assert Holdout(0.5).assign(TENANT, "") is None


@pytest.mark.parametrize("share", [0.05, 0.5])
def test_the_hold_out_has_its_share_of_the_sessions(share: float) -> None:
    held_out = sum(group_of(share, f"s:s-{number:024x}") == "holdout" for number in range(10_000))
    # Five standard deviations of a binomial distribution.
    assert abs(held_out - 10_000 * share) < 5 * (10_000 * share * (1 - share)) ** 0.5


def test_tenants_are_assigned_independently_and_by_names_that_reveal_nothing() -> None:
    names = [f"m:session-{number}" for number in range(400)]
    same = sum(group_of(0.5, name) == group_of(0.5, name, OTHER_TENANT) for name in names)
    assert 140 < same < 260
    first, second = (Holdout(0.5).assign(tenant, names[0]) for tenant in (TENANT, OTHER_TENANT))
    assert first is not None
    assert second is not None
    assert first.unit != second.unit
    assert "session-0" not in first.unit


# -- the part of a session ---------------------------------------------------------------------------------------------


def test_a_session_keeps_the_group_with_which_it_entered_the_comparison() -> None:
    first, later = HoldoutAssignment("u", "compaction"), HoldoutAssignment("u", "holdout")
    entry = update_entry(None, first, "", "m", 2)
    assert entry == HoldoutEntry("u", "", 2)
    entry = update_entry(entry, first, "compaction", "m", 0)
    assert update_entry(entry, later, "holdout", "another", 1) == HoldoutEntry("u", "compaction", 3, "m")


def test_a_sub_agent_whose_main_agent_is_found_late_moves_to_its_group() -> None:
    entry = HoldoutEntry("own", "compaction", 1, "m")
    moved = update_entry(entry, HoldoutAssignment("main", "holdout"), "", "m", 0)
    assert moved == HoldoutEntry("main", "holdout", 1, "m")


# -- the comparison ----------------------------------------------------------------------------------------------------


def change_of(comparison: HoldoutComparison) -> Interval:
    change = comparison.figures[0].change
    assert change is not None
    return change


def test_without_a_hold_out_there_is_no_comparison() -> None:
    units = HoldoutUnits()
    units.add(replace(row("u", ""), holdout=None))
    assert units.compare(0.0) is None


def test_only_sessions_that_reached_a_trigger_are_compared() -> None:
    rows = [row("a", ""), row("b", "compaction"), row("c", "holdout")]
    comparison = compared(rows)
    assert (comparison.compaction, comparison.holdout, comparison.figures) == (1, 1, ())


def test_a_session_is_compared_with_its_sub_agents_and_all_its_workers() -> None:
    rows = groups([2.0] * LEAST, [1.0] * LEAST)
    # A sub-agent that reached no trigger itself, and a part of another worker.
    rows += [row("gpt-5-compaction-0", "", 30.0, requests=5, errors=3)]
    rows += [row("gpt-5-compaction-0", "compaction", 4.0, repeated_calls=30)]
    figures = {figure.name: figure for figure in compared(rows).figures}
    assert figures["spent"].compaction == pytest.approx((2.0 * LEAST + 34.0) / LEAST)
    assert figures["requests"].compaction == pytest.approx((LEAST + 6) / LEAST)
    assert figures["errors"].compaction == pytest.approx(3 / LEAST)
    assert figures["repeated_calls"].compaction == pytest.approx(1.0)
    assert figures["repeated_calls"].holdout == 0.0


def test_a_session_of_the_hold_out_that_was_compacted_stays_in_its_group() -> None:
    rows = [row("a", "holdout", compactions=2), row("b", "holdout")]
    comparison = compared(rows)
    assert (comparison.holdout, comparison.compacted_holdout) == (2, 1)


def test_equal_names_of_two_tenants_are_two_sessions() -> None:
    assert compared([row("u", "compaction"), row("u", "compaction", tenant="b")]).compaction == 2


def test_sessions_from_before_the_first_day_do_not_count() -> None:
    rows = [row("a", "compaction", updated=5.0), row("b", "compaction", updated=10.0)]
    assert compared(rows, since=10.0).compaction == 1


def test_each_model_has_a_comparison_of_its_own() -> None:
    rows = groups(spread(2.0, 60), spread(1.0, 30), "dear") + groups(spread(0.5, 60), spread(1.0, 30), "cheap")
    # A sub-agent counts for the model of its main agent, which was due first.
    rows.append(replace(row("dear-holdout-0", "holdout", 0.0, model="cheap"), created=2.0))
    cheap, dear = compared(rows).models
    assert [(each.model, each.compaction, each.holdout, each.verdict) for each in (cheap, dear)] == [
        ("cheap", 60, 30, "pays"),
        ("dear", 60, 30, "costs"),
    ]
    assert compared(rows).compaction == 120


def test_the_interval_of_a_difference_has_known_values() -> None:
    # Means 12 and 10; variances 4.1379 each; t is 2.0017 for 58 degrees of freedom.
    rows = groups([10.0, 14.0] * 15, [8.0, 12.0] * 15)
    spent = compared(rows).figures[0]
    assert (spent.compaction, spent.holdout) == (12.0, 10.0)
    half = 2.00172 * (2 * 4.137931 / 30) ** 0.5
    assert (spent.difference.value, spent.difference.high) == (pytest.approx(2.0), pytest.approx(2.0 + half, rel=1e-4))
    assert spent.change is not None
    assert spent.change.value == pytest.approx(0.2)
    # Squared coefficients of variation; the smaller counts as the mean of both.
    first, second = 4.137931 / 144, 4.137931 / 100
    variance = ((first + second) / 2 + second) / 30
    assert log(1 + spent.change.high) == pytest.approx(log(1.2) + 2.002 * variance**0.5, rel=1e-3)


def test_figures_that_are_zero_everywhere_have_no_relative_change() -> None:
    reads = next(figure for figure in compared(groups([1.0] * LEAST, [1.0] * LEAST)).figures if figure.name == "reads")
    assert (reads.difference, reads.change) == (Interval(0.0, 0.0, 0.0), None)


@pytest.mark.parametrize(("sigma", "count"), [(0.6, 30), (1.0, 30), (1.4, 60)])
def test_95_of_100_intervals_contain_the_true_value_with_a_heavy_tail(sigma: float, count: int) -> None:
    draw = random.Random(7)
    attempts, inside = 400, 0
    for _ in range(attempts):
        held_out = [draw.lognormvariate(0.0, sigma) for _ in range(count)]
        with_compaction = [0.9 * draw.lognormvariate(0.0, sigma) for _ in range(10 * count)]
        change = change_of(compared(groups(with_compaction, held_out)))
        inside += change.low <= -0.1 <= change.high
    # Three standard errors below 95 %.
    assert inside / attempts > 0.917


def test_intervals_become_narrower_with_more_sessions() -> None:
    draw = random.Random(3)
    widths = []
    for count in (40, 1_000):
        costs = [draw.lognormvariate(0.0, 1.0) for _ in range(5 * count)]
        change = change_of(compared(groups(costs[count:], costs[:count])))
        widths.append(log((1 + change.high) / (1 + change.low)))
    assert widths[1] < widths[0] / 3


def test_the_change_is_that_of_the_means() -> None:
    change = change_of(compared(groups(spread(3.0, 40), spread(2.0, 40))))
    assert change.value == pytest.approx(0.5)
    assert log(1 + change.high) - log(1.5) == pytest.approx(log(1.5) - log(1 + change.low))
