"""Prices of models: from the config, then from LiteLLM's table; docs/savings.md explains them.

The table's prices are US dollars for one token, for standard service. Its fields are LiteLLM's:

- `input_cost_per_token`, `cache_read_input_token_cost`, `cache_creation_input_token_cost`, `output_cost_per_token`.
  A missing cache price means that cached tokens cost as much as others.
- The same with `_above_200k_tokens` (and other sizes): prices for a whole request whose prompt is longer than that.
- `tiered_pricing`: a list of the same prices, each with the `range` of the prompt's length.

A row whose input and output cost nothing is no price: some providers bill by subscription, or by the hour. Nor is a row
that is far above any real price; the table has a few that are wrong by a factor of a thousand.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from accordion.model.costs import NANODOLLARS, ModelPrice, Rates
from accordion.providers.models.model_table import DATA, LONGEST_ID, NamedRows, candidate_names

MAX_CACHED_PRICES = 1_024
FIELDS = (
    "input_cost_per_token",
    "cache_read_input_token_cost",
    "cache_creation_input_token_cost",
    "output_cost_per_token",
)
"""The table's names of the four prices, in the order of `Rates`."""

_MOST_FOR_INPUT = 250_000
"""Nanodollars a token: 250 dollars for a million tokens."""
_ABOVE = re.compile(r"_above_(\d+)k_tokens$")

_RateTuple = tuple[float, float, float, float]
_PriceRow = tuple[tuple[int, _RateTuple], ...]
"""The rates of prompts with more than so many tokens; the first is for more than 0."""


class ModelPrices:
    """The PriceTable port (model/costs.py). Safe to use from several threads.

    `overrides` maps a name to the config's prices. `base_models` maps a configured name to an id of the table.
    """

    def __init__(
        self, overrides: Mapping[str, ModelPrice] | None = None, base_models: Mapping[str, str] | None = None
    ) -> None:
        self._overrides = dict(overrides or {})
        self._override_names = {next(candidate_names(m), m): p for m, p in self._overrides.items() if "/" not in m}
        self._base_models = dict(base_models or {})
        self._prices: dict[str, ModelPrice | None] = {}

    def price(self, model: str) -> ModelPrice | None:
        """Returns the price of a model by the clients' name; None where it is not known."""
        if model in self._prices:
            return self._prices[model]
        if not model or len(model) > LONGEST_ID:
            return None
        price = self._look_up(model)
        if len(self._prices) >= MAX_CACHED_PRICES:
            self._prices.clear()
        self._prices[model] = price
        return price

    def _look_up(self, model: str) -> ModelPrice | None:
        if (override := self._find_override(model)) is not None:
            return override
        row = _TABLE.find(self._base_models.get(model, model))
        if row is None:
            return None
        (_, rates), *tiers = row
        return ModelPrice(Rates(*rates), "table", tuple((above, Rates(*tier)) for above, tier in tiers))

    def _find_override(self, model: str) -> ModelPrice | None:
        if model in self._overrides or not self._overrides:
            return self._overrides.get(model)
        matches = (self._override_names.get(name) for name in candidate_names(model))
        return next((price for price in matches if price is not None), None)


def rates_from(values: Mapping[str, Any], suffix: str = "", base: _RateTuple | None = None) -> _RateTuple | None:
    """Returns the rates of a row's fields with `suffix`, in nanodollars a token; None without an input price.

    A missing price is that of `base`, or else the price of input (of output: 0).
    """
    figures = [values.get(name + suffix) for name in FIELDS]
    fallback = base
    if fallback is None:
        if figures[0] is None:
            return None
        same = round(figures[0] * NANODOLLARS, 6)
        fallback = same, same, same, 0.0
    rates = [
        round(figure * NANODOLLARS, 6) if figure is not None else default
        for figure, default in zip(figures, fallback, strict=True)
    ]
    # A price for long prompts may lack the cache's; then it grows as the price of input does.
    if base is not None and base[0]:
        for index in (1, 2):
            if figures[index] is None:
                rates[index] = base[index] * rates[0] / base[0]
    return rates[0], rates[1], rates[2], rates[3]


def _read_prices() -> dict[str, _PriceRow]:
    table = msgspec.json.decode((DATA / "models.json").read_bytes(), type=dict[str, dict[str, Any]])
    distinct_rows: dict[_PriceRow, _PriceRow] = {}
    rows = {}
    for model, values in table.items():
        row = _price_row(values)
        if row is not None:
            rows[model] = distinct_rows.setdefault(row, row)
    return rows


_TABLE = NamedRows(_read_prices)


def load_price_table() -> None:
    """Reads the table ahead of its first use, which takes some hundredths of a second; safe in a thread."""
    _TABLE.find("")


def _price_row(values: Mapping[str, Any]) -> _PriceRow | None:
    base = rates_from(values)
    tiers = list(_tiers_above(values, base)) if base is not None else []
    for entry in values.get("tiered_pricing") or ():
        if (rates := rates_from(entry)) is not None:
            tiers.append((int(entry["range"][0]), rates))
    tiers.sort()
    if base is None and tiers:
        base = tiers.pop(0)[1]
    if base is None or not (base[0] or base[3]) or base[0] > _MOST_FOR_INPUT:
        return None
    return ((0, base), *tiers)


def _tiers_above(values: Mapping[str, Any], base: _RateTuple) -> Iterable[tuple[int, _RateTuple]]:
    sizes = {int(match[1]) for name in values if (match := _ABOVE.search(name)) and "_1hr" not in name}
    for size in sorted(sizes):
        rates = rates_from(values, f"_above_{size}k_tokens", base)
        if rates is not None:
            yield size * 1_000, rates
