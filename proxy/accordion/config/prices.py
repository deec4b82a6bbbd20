"""The section `prices`, and LiteLLM's keys for prices in `model_list`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from accordion.config.value_types import ConfigSection
from accordion.model.costs import ModelPrice, Rates
from accordion.providers.models.prices import FIELDS, rates_from

Dollars = Annotated[float, msgspec.Meta(ge=0, le=10_000)]
"""US dollars for a million tokens."""
_MOST_FOR_A_TOKEN = 0.01
_NANODOLLARS_A_TOKEN = 1_000
"""The price of a token in nanodollars, where a million tokens cost a dollar."""


class ModelPriceConfig(ConfigSection, frozen=True):
    """The prices of one model. Cached input and cache writes cost as much as other input if they are not set."""

    input: Dollars
    output: Dollars
    cached_input: Dollars | None = None
    cache_write: Dollars | None = None

    def price(self) -> ModelPrice:
        """Returns the price."""
        cached = self.input if self.cached_input is None else self.cached_input
        cache_write = self.input if self.cache_write is None else self.cache_write
        figures = (self.input, cached, cache_write, self.output)
        return ModelPrice(Rates(*(figure * _NANODOLLARS_A_TOKEN for figure in figures)), "config")


class PricesConfig(ConfigSection, frozen=True):
    """The `prices` section: prices that replace those of the model table."""

    models: dict[str, ModelPriceConfig] = msgspec.field(default_factory=dict)


def price_from_litellm(values: Mapping[str, Any]) -> ModelPrice | None:
    """Returns the price in an entry's `model_info` or `litellm_params`; None if they have none.

    Raises ValueError for a price that is not a number of at least 0; its argument is the key.
    """
    prices: dict[str, float] = {}
    for name in FIELDS:
        value = values.get(name)
        if value is None:
            continue
        try:
            prices[name] = float(value)
        except (TypeError, ValueError):
            raise ValueError(name) from None
        if not 0 <= prices[name] <= _MOST_FOR_A_TOKEN:
            raise ValueError(name)
    rates = rates_from(prices)
    return ModelPrice(Rates(*rates), "config") if rates is not None else None
