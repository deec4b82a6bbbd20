"""Prices of models, and the costs of requests: as they were sent, and as they would have been without Accordion.

Amounts of money are whole nanodollars (a billionth of a US dollar), so that sums are exact in any order.
"""

from __future__ import annotations

from typing import Final, Literal, Protocol

import msgspec

NANODOLLARS: Final = 1_000_000_000
"""Nanodollars in a dollar."""

PriceSource = Literal["config", "table"]
Basis = Literal["reported", "estimate", "both"]
"""The origin of a figure: the provider's report, our own count, or both in parts."""


def to_dollars(nanodollars: int) -> float:
    """Returns US dollars."""
    return nanodollars / NANODOLLARS


class Rates(msgspec.Struct, frozen=True, gc=False):
    """Prices of one token in nanodollars; a price of 3 dollars for a million tokens is 3,000.

    `cached` is for input that is read from the provider's prompt cache, `cache_write` for input that is written to it.
    """

    input: float
    cached: float
    cache_write: float
    output: float


class ModelPrice(msgspec.Struct, frozen=True):
    """The prices of a model. `tiers` has (tokens, rates): the rates of longer prompts than that, the smallest first."""

    rates: Rates
    source: PriceSource
    tiers: tuple[tuple[int, Rates], ...] = ()

    def rates_for(self, prompt: int) -> Rates:
        """Returns the rates, also those of the output, for a prompt of `prompt` tokens."""
        rates = self.rates
        for above, tier in self.tiers:
            if prompt > above:
                rates = tier
        return rates


class PriceTable(Protocol):
    """The prices of models."""

    def price(self, model: str) -> ModelPrice | None:
        """Returns the price of a model by the clients' name; None if it is not known."""


class CachedPrompt(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The part of a prompt that the provider's prompt cache has after a request, in tokens.

    `sent` is of the prompt as it was sent, `original` of the client's own, had that been sent. `at` is the time of the
    request, in seconds since the epoch.
    """

    sent: int
    original: int
    at: float


class Costs(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Tokens and costs of requests. Costs are nanodollars; requests of unknown price add tokens only.

    `input`, `cached`, `cache_write` and `output` are tokens of all that was sent, further rounds of the tool loop
    included; `original_…` are those without Accordion. `original_output` differs from `output` by what the model wrote
    to call our tool. Own costs are parts of `sent_cost`, except `summary_cost`, which is for requests of our own.
    """

    requests: int = 0
    estimated: int = 0
    """Requests whose input is our own count, as the provider reported none."""
    unpriced: int = 0
    """Requests of unknown price."""
    over_window: int = 0
    """Requests that would not have fitted the window without Accordion; beyond the window they save nothing."""
    input: int = 0
    cached: int = 0
    cache_write: int = 0
    output: int = 0
    original_input: int = 0
    original_cached: int = 0
    original_output: int = 0
    summary_input: int = 0
    summary_output: int = 0
    sent_cost: int = 0
    original_cost: int = 0
    prefix_cost: int = 0
    """The cost of reading what the cache would have had, if a compaction had not changed the prompt."""
    insertion_cost: int = 0
    """The cost of our tool's definition, earlier tool rounds, and recalled excerpts."""
    read_cost: int = 0
    """The cost of further rounds within a response, in which the model read artifacts."""
    summary_cost: int = 0
    """The cost of the model's calls for summaries."""

    @property
    def spent(self) -> int:
        """All that was paid, summaries included."""
        return self.sent_cost + self.summary_cost

    @property
    def unsent(self) -> int:
        """The input tokens that were not sent, over all requests; negative if more was sent than without Accordion."""
        return self.original_input - self.input

    @property
    def own_cost(self) -> int:
        """The cost of compaction itself."""
        return self.prefix_cost + self.insertion_cost + self.read_cost + self.summary_cost

    @property
    def net(self) -> int:
        """The cost without Accordion, less all that was paid; negative if compaction cost more than it saved."""
        return self.original_cost - self.spent

    @property
    def saved(self) -> int:
        """The savings before the cost of compaction itself."""
        return self.net + self.own_cost

    @property
    def sent_basis(self) -> Basis:
        """The basis of what was sent."""
        if not self.estimated:
            return "reported"
        return "estimate" if self.estimated == self.requests else "both"

    @property
    def original_basis(self) -> Basis:
        """The basis of what would have been sent: the same if Accordion changed nothing, else an estimate."""
        is_unchanged = self.original_input == self.input and self.original_cost == self.sent_cost
        return self.sent_basis if is_unchanged and not self.summary_input else "estimate"

    def __add__(self, other: Costs) -> Costs:
        if not self.requests:
            # Costs without a request are nothing: the sum of a new session or row.
            return other
        # Written out, which takes less than half as long as a loop over the fields.
        return Costs(
            self.requests + other.requests,
            self.estimated + other.estimated,
            self.unpriced + other.unpriced,
            self.over_window + other.over_window,
            self.input + other.input,
            self.cached + other.cached,
            self.cache_write + other.cache_write,
            self.output + other.output,
            self.original_input + other.original_input,
            self.original_cached + other.original_cached,
            self.original_output + other.original_output,
            self.summary_input + other.summary_input,
            self.summary_output + other.summary_output,
            self.sent_cost + other.sent_cost,
            self.original_cost + other.original_cost,
            self.prefix_cost + other.prefix_cost,
            self.insertion_cost + other.insertion_cost,
            self.read_cost + other.read_cost,
            self.summary_cost + other.summary_cost,
        )
