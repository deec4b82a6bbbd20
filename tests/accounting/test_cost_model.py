"""Costs of requests: by hand, and by their rules."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from accordion.accounting.cost_model import AUTOMATIC, MARKED, ModelRequest, compute_cost
from accordion.model.costs import CachedPrompt, Costs, ModelPrice, Rates, to_dollars
from accordion.model.records import Usage

# 3 dollars for a million tokens of input, 0.30 for cached input, 3.75 for cache writes, 15 for output.
PRICE = ModelPrice(Rates(3_000, 300, 3_750, 15_000), "config")


def cost(request: ModelRequest, previous: CachedPrompt | None = None) -> Costs:
    return compute_cost(request, previous, PRICE).costs


def test_an_unchanged_request_costs_the_same_with_and_without_accordion() -> None:
    request = ModelRequest(0.0, 0, Usage(input=10_000, cached=8_000, cache_write=1_500, output=100), rules=MARKED)
    costs = cost(request)
    assert costs.sent_cost == costs.original_cost == 500 * 3_000 + 8_000 * 300 + 1_500 * 3_750 + 100 * 15_000
    assert (costs.net, costs.own_cost, costs.saved) == (0, 0, 0)


def test_a_new_compaction_pays_for_the_prefix_and_the_summary() -> None:
    before = CachedPrompt(98_000, 98_000, at=0.0)
    request = ModelRequest(
        60.0,
        0,
        Usage(input=30_000, cached=5_000, cache_write=25_000, output=500),
        removed=70_000,
        is_new_compaction=True,
        rules=MARKED,
        summary_input=60_000,
        summary_output=1_000,
    )
    costs = cost(request, before)
    # Without Accordion: 98,000 of the 100,000 tokens are a cache read.
    assert costs.original_input == 100_000
    assert costs.original_cached == 98_000
    assert costs.original_cost == 98_000 * 300 + 2_000 * 3_750 + 500 * 15_000
    assert costs.sent_cost == 5_000 * 300 + 25_000 * 3_750 + 500 * 15_000
    # But for the broken prefix, 28,000 of the 30,000 tokens were a cache read.
    assert costs.prefix_cost == 23_000 * (3_750 - 300)
    assert costs.summary_cost == 60_000 * 3_000 + 1_000 * 15_000
    assert costs.net == costs.original_cost - costs.sent_cost - costs.summary_cost < 0
    assert costs.saved == 70_000 * 300


def test_a_repeated_compaction_saves_cache_reads_only() -> None:
    before = CachedPrompt(30_000, 100_000, at=60.0)
    request = ModelRequest(
        70.0, 0, Usage(input=31_000, cached=30_000, cache_write=1_000, output=100), removed=70_000, rules=MARKED
    )
    costs = cost(request, before)
    assert (costs.original_input, costs.original_cached) == (101_000, 100_000)
    assert costs.net == costs.saved == 70_000 * 300


def test_a_repeated_compaction_after_the_cache_expired_saves_whole_writes() -> None:
    before = CachedPrompt(30_000, 100_000, at=60.0)
    request = ModelRequest(
        9_000.0, 0, Usage(input=31_000, cached=0, cache_write=31_000, output=100), removed=70_000, rules=MARKED
    )
    costs = cost(request, before)
    assert (costs.original_input, costs.original_cached) == (101_000, 0)
    assert costs.net == 70_000 * 3_750


def test_a_new_compaction_after_the_cache_expired_breaks_nothing() -> None:
    request = ModelRequest(
        9_000.0, 0, Usage(input=30_000, cache_write=30_000), removed=70_000, is_new_compaction=True, rules=MARKED
    )
    costs = cost(request, CachedPrompt(98_000, 98_000, at=0.0))
    assert (costs.prefix_cost, costs.original_cached) == (0, 0)
    assert costs.net == 70_000 * 3_750


def test_an_automatic_cache_takes_whole_steps_and_long_prompts_only() -> None:
    after = compute_cost(ModelRequest(5.0, 0, Usage(input=1_300)), None, PRICE).cached
    assert after == CachedPrompt(1_280, 1_280, 5.0)
    assert compute_cost(ModelRequest(5.0, 0, Usage(input=1_000)), None, PRICE).cached is None


def test_a_marked_cache_takes_what_the_provider_reports() -> None:
    usage = Usage(input=9_000, cached=6_000, cache_write=2_000)
    assert compute_cost(ModelRequest(5.0, 0, usage, rules=MARKED), None, PRICE).cached == CachedPrompt(
        8_000, 8_000, 5.0
    )
    assert compute_cost(ModelRequest(5.0, 0, Usage(input=9_000), rules=MARKED), None, PRICE).cached is None


def test_reported_cache_reads_and_writes_are_parts_of_the_input() -> None:
    free_writes = ModelPrice(Rates(3_000, 300, 0, 0), "config")
    report = Usage(input=1_000, cached=900, cache_write=900)
    unchanged = compute_cost(ModelRequest(0.0, 0, report), None, free_writes).costs
    assert (unchanged.cached, unchanged.cache_write, unchanged.sent_cost) == (900, 100, 900 * 300)
    rounds = ModelRequest(0.0, 0, report, removed=100, last=report, earlier=report)
    costs = compute_cost(rounds, None, free_writes).costs
    assert (costs.input, costs.cached, costs.cache_write, costs.sent_cost) == (2_000, 1_800, 200, 1_800 * 300)


def test_without_a_report_our_count_and_the_rules_of_the_cache_are_taken() -> None:
    costs = cost(ModelRequest(20.0, 5_000), CachedPrompt(4_096, 4_096, at=0.0))
    assert (costs.input, costs.cached, costs.output, costs.estimated) == (5_000, 4_096, 0, 1)
    assert cost(ModelRequest(4_000.0, 5_000), CachedPrompt(4_096, 4_096, at=0.0)).cached == 0


def test_an_unknown_price_gives_tokens_and_no_dollars() -> None:
    request = ModelRequest(0.0, 0, Usage(input=1_000, output=50), removed=500)
    costs = compute_cost(request, None, None).costs
    assert (costs.input, costs.original_input, costs.unpriced) == (1_000, 1_500, 1)
    assert (costs.sent_cost, costs.original_cost) == (0, 0)


def test_tokens_beyond_the_window_count_as_nothing_saved() -> None:
    request = ModelRequest(0.0, 0, Usage(input=50_000), removed=100_000, window=128_000)
    costs = cost(request)
    assert (costs.original_input, costs.over_window) == (128_000, 1)


def test_further_rounds_are_a_cost_of_their_own() -> None:
    first, last = Usage(input=10_000, output=40), Usage(input=12_000, cached=10_000, output=300)
    costs = cost(ModelRequest(0.0, 0, first, removed=5_000, last=last, earlier=first))
    assert (costs.input, costs.cached, costs.output) == (22_000, 10_000, 340)
    assert (costs.original_input, costs.original_output) == (15_000, 300)
    assert costs.read_cost == 40 * 15_000 + 2_000 * 3_000 + 10_000 * 300
    assert costs.saved == 5_000 * 3_000


def test_what_accordion_adds_costs_its_share_of_the_prompt() -> None:
    costs = cost(ModelRequest(0.0, 0, Usage(input=10_000), removed=-1_000, added=1_000))
    assert costs.insertion_cost == 1_000 * 3_000
    assert costs.net == -costs.insertion_cost
    assert costs.saved == 0


def test_a_longer_prompt_may_have_another_price() -> None:
    price = ModelPrice(Rates(1_000, 1_000, 1_000, 0), "table", ((200_000, Rates(2_000, 2_000, 2_000, 0)),))
    request = ModelRequest(0.0, 0, Usage(input=150_000), removed=100_000)
    costs = compute_cost(request, None, price).costs
    assert (costs.sent_cost, costs.original_cost) == (150_000 * 1_000, 250_000 * 2_000)


TOKENS = st.integers(0, 300_000)
USAGES = st.builds(
    lambda uncached, cached, written, output: Usage(uncached + cached + written, output, cached, written),
    TOKENS, TOKENS, TOKENS, TOKENS,
)  # fmt: skip
PREVIOUS = st.none() | st.builds(CachedPrompt, TOKENS, TOKENS, st.floats(0, 100))
REQUESTS = st.builds(
    ModelRequest,
    st.floats(100, 10_000),
    TOKENS,
    st.none() | USAGES,
    st.integers(-10_000, 500_000),
    st.integers(0, 10_000),
    st.booleans(),
    st.sampled_from([0, 128_000, 1_000_000]),
    st.sampled_from([MARKED, AUTOMATIC]),
    st.none() | USAGES,
    st.none(),
    TOKENS,
    TOKENS,
)


@given(REQUESTS, PREVIOUS)
def test_costs_are_never_negative_but_the_net_may_be(request: ModelRequest, previous: CachedPrompt | None) -> None:
    costs = cost(request, previous)
    assert all(value >= 0 for value in structs.astuple(costs))
    assert costs.saved - costs.own_cost == costs.net == costs.original_cost - costs.spent
    assert 0 <= costs.original_cached <= costs.original_input


@given(REQUESTS, PREVIOUS)
def test_a_request_that_was_not_changed_saves_and_costs_nothing(
    request: ModelRequest, previous: CachedPrompt | None
) -> None:
    unchanged = structs.replace(
        request, removed=0, added=0, is_new_compaction=False, last=None, summary_input=0, summary_output=0
    )
    costs = cost(unchanged, previous)
    assert (costs.net, costs.own_cost, costs.saved) == (0, 0, 0)


def test_costs_add_up_field_by_field() -> None:
    names = Costs.__struct_fields__
    one = Costs(**{name: index + 1 for index, name in enumerate(names)})
    two = Costs(**{name: 100 * (index + 1) for index, name in enumerate(names)})
    assert structs.asdict(one + two) == {name: 101 * (index + 1) for index, name in enumerate(names)}


@pytest.mark.parametrize(("prompt", "expected"), [(0, 1), (200_000, 1), (200_001, 2), (500_000, 3)])
def test_the_rates_are_those_of_the_highest_tier_below_the_prompt(prompt: int, expected: float) -> None:
    tiers = ((200_000, Rates(2, 2, 2, 2)), (256_000, Rates(3, 3, 3, 3)))
    assert ModelPrice(Rates(1, 1, 1, 1), "table", tiers).rates_for(prompt).input == expected


def example_figures() -> dict[str, float]:
    """The dollars of the example in docs/savings.md, by the first words of their rows."""
    text = (Path(__file__).parents[2] / "docs" / "savings.md").read_text("utf-8")
    rows = re.findall(r"^\| ([^|]+) \|[^|]*\| ([^|]*[0-9.]+[^|]*) \|$", text.partition("## An example")[2], re.M)
    return {name.strip("* "): float(dollars.strip("* ").replace("−", "-")) for name, dollars in rows}


def test_the_example_in_the_documents_is_what_the_model_computes() -> None:
    summary = {"summary_input": 60_000, "summary_output": 1_000}
    usage = Usage(input=30_000, cached=5_000, cache_write=25_000, output=500)
    made = ModelRequest(60.0, 0, usage, removed=70_000, is_new_compaction=True, rules=MARKED, **summary)
    costs, cached = compute_cost(made, CachedPrompt(98_000, 98_000, at=0.0), PRICE)
    figures = {
        "sent": costs.sent_cost,
        "summary": costs.summary_cost,
        "spent": costs.spent,
        "without Accordion": costs.original_cost,
        "broken prefix": costs.prefix_cost,
        "own cost": costs.own_cost,
        "saved": costs.saved,
        "net": costs.net,
    }
    assert example_figures() == {name: to_dollars(figure) for name, figure in figures.items()}
    usage = Usage(input=31_000, cached=30_000, cache_write=1_000, output=500)
    later, _ = compute_cost(ModelRequest(90.0, 0, usage, removed=70_000, rules=MARKED), cached, PRICE)
    assert (later.original_input, later.original_cached, later.net) == (101_000, 100_000, 21_000_000)
    assert -(costs.net // later.net) + 1 == 14
    usage = Usage(input=31_000, cache_write=31_000, output=500)
    paused, _ = compute_cost(ModelRequest(3_700.0, 0, usage, removed=70_000, rules=MARKED), cached, PRICE)
    assert paused.net == 262_500_000
