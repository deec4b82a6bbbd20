"""Prices: from the shipped table, and from the config."""

import json
from pathlib import Path

import pytest

from accordion.composition.tables import build_prices
from accordion.config.load import build
from accordion.model.costs import ModelPrice, Rates
from accordion.model.errors import ConfigError
from accordion.providers.models.model_table import DATA
from accordion.providers.models.prices import ModelPrices, load_price_table, rates_from

SONNET = Rates(3_000, 300, 3_750, 15_000)
LITELLM = """
model_list:
  - model_name: fast
    litellm_params: {model: openai/gpt-4o}
    model_info: {MODEL_INFO}
"""


@pytest.mark.parametrize(
    "model",
    ["claude-sonnet-4-5", "claude-sonnet-4-5-20250929", "anthropic/claude-sonnet-4-5", "claude-sonnet-4.5"],
)
def test_a_model_has_the_price_of_the_table_in_all_forms_of_its_name(model: str) -> None:
    price = ModelPrices().price(model)
    assert price is not None
    assert (price.rates, price.source) == (SONNET, "table")


def test_a_missing_cache_price_is_that_of_input() -> None:
    price = ModelPrices().price("gpt-4o")
    assert price is not None
    assert price.rates == Rates(2_500, 1_250, 2_500, 10_000)


def test_long_prompts_have_the_prices_of_their_tier() -> None:
    price = ModelPrices().price("gemini-2.5-pro")
    assert price is not None
    assert price.rates_for(200_000).input == 1_250
    assert price.rates_for(200_001) == Rates(2_500, 250, 250, 15_000)


def test_tiers_that_are_listed_are_read_too() -> None:
    price = ModelPrices().price("dashscope/qwen-flash")
    assert price is not None
    assert (price.rates_for(256_000).input, price.rates_for(256_001).input) == (50, 250)


@pytest.mark.parametrize("model", ["nobody-knows-it", "", "x" * 300])
def test_an_unknown_model_has_no_price(model: str) -> None:
    assert ModelPrices().price(model) is None


def test_a_row_that_costs_nothing_is_no_price() -> None:
    table = json.loads((DATA / "models.json").read_bytes())
    free = [
        name
        for name, row in table.items()
        if row.get("input_cost_per_token") == 0 == row.get("output_cost_per_token") and "tiered_pricing" not in row
    ]
    assert free
    prices = ModelPrices()
    for name in free:
        price = prices.price(name)
        assert price is None or price.rates.input or price.rates.output


def test_a_price_that_is_wrong_by_a_factor_of_a_thousand_is_none() -> None:
    # The table has 3,200 dollars for a million tokens of input.
    assert ModelPrices().price("azure_ai/jais-30b-chat") is None


def test_every_price_of_the_table_is_possible() -> None:
    table = json.loads((DATA / "models.json").read_bytes())
    prices = ModelPrices()
    known = [price for name in table if (price := prices.price(name)) is not None]
    assert len(known) > 2_500
    for price in known:
        for rates in (price.rates, *(tier for _, tier in price.tiers)):
            assert 0 <= rates.input <= 250_000
            # Three rows are rounded differently.
            assert 0 <= rates.cached <= 1.001 * rates.input
            assert 0 <= rates.output <= 1_000_000


def test_a_tier_without_cache_prices_has_them_in_the_same_ratio() -> None:
    base = rates_from({"input_cost_per_token": 1e-6, "cache_read_input_token_cost": 1e-7, "output_cost_per_token": 0.0})
    assert base == (1_000, 100, 1_000, 0)
    above = rates_from({"input_cost_per_token_above_200k_tokens": 2e-6}, "_above_200k_tokens", base)
    assert above == (2_000, 200, 2_000, 0)


def configured(text: str) -> ModelPrices:
    return build_prices(build(text.encode(), {}, {}))


def test_configured_prices_replace_those_of_the_table() -> None:
    prices = configured("prices: {models: {claude-sonnet-4-5: {input: 1, output: 2, cached_input: 0.5}}}")
    expected = ModelPrice(Rates(1_000, 500, 1_000, 2_000), "config")
    assert prices.price("claude-sonnet-4-5") == expected
    # A date behind the name is the same model.
    assert prices.price("claude-sonnet-4-5-20250929") == expected
    assert prices.price("gpt-4o") is not None


def test_a_price_of_zero_that_is_configured_is_a_price() -> None:
    price = configured("prices: {models: {local: {input: 0, output: 0}}}").price("local")
    assert price == ModelPrice(Rates(0, 0, 0, 0), "config")


def test_a_configured_name_has_the_price_of_its_model() -> None:
    price = configured(LITELLM.replace("MODEL_INFO", "")).price("fast")
    assert price is not None
    assert (price.rates.input, price.source) == (2_500, "table")


def test_litellms_keys_are_prices_too_and_those_of_the_section_come_first() -> None:
    info = "input_cost_per_token: 0.000001, output_cost_per_token: '0.000002'"
    text = LITELLM.replace("MODEL_INFO", info)
    assert configured(text).price("fast") == ModelPrice(Rates(1_000, 1_000, 1_000, 2_000), "config")
    both = configured(text + "prices: {models: {fast: {input: 9, output: 9}}}")
    assert both.price("fast") == ModelPrice(Rates(9_000, 9_000, 9_000, 9_000), "config")


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("prices: {models: {m: {input: 3}}}", "$.prices.models.m.output"),
        ("prices: {models: {m: {input: -1, output: 1}}}", "$.prices.models.m.input"),
        ("prices: {models: {m: {input: 1, output: free}}}", "$.prices.models.m.output"),
        ("prices: {models: {m: {input: 1, output: 1, cached: 1}}}", "$.prices.models.m.cached"),
        (
            LITELLM.replace("MODEL_INFO", "input_cost_per_token: much"),
            "$.model_list[0].model_info.input_cost_per_token",
        ),
        (LITELLM.replace("MODEL_INFO", "input_cost_per_token: 3"), "$.model_list[0].model_info.input_cost_per_token"),
    ],
)
def test_a_wrong_price_is_an_error_with_its_path(text: str, path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(text.encode(), {}, {})
    assert caught.value.path == path


def test_the_table_is_read_once_by_a_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    load_price_table()
    monkeypatch.setattr("accordion.providers.models.prices.DATA", tmp_path)
    assert ModelPrices().price("claude-sonnet-4-5-20250929") is not None
