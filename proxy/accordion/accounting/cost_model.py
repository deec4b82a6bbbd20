"""Computes the costs of requests, their costs without Accordion, and the cost of compaction itself.

Pure functions over the requests of one conversation, in order. docs/savings.md explains each figure.

Theory of operation. If Accordion changed nothing, both costs are the provider's own report. If it did, the
client's own prompt is the one that was sent, with the removed tokens and without ours. Its part in the prompt cache
follows from the report: as long as a compaction is only applied again, the same share of the previous prompt is a cache
read with and without it. A new compaction breaks the prefix: there the previous prompt of the client counts as a cache
read as long as the provider keeps it.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from accordion.model.costs import CachedPrompt, Costs, ModelPrice, Rates
from accordion.model.records import Usage


class CacheRules(NamedTuple):
    """A provider's rules for its prompt cache: after `lifetime` seconds without use a prompt is gone.

    An automatic cache takes every prompt of `minimum` tokens or more, in steps of `step` tokens. Any other takes the
    part that the client marks, and the provider reports the tokens of it. If the provider documents no lifetime
    (`is_lifetime_known` is False), `lifetime` is assumed.
    """

    lifetime: float
    is_automatic: bool
    minimum: int = 0
    step: int = 1
    is_lifetime_known: bool = True


MARKED = CacheRules(300.0, is_automatic=False)
"""Anthropic: breakpoints of the client; five minutes, renewed by each read (its guide to prompt caching)."""
AUTOMATIC = CacheRules(1_800.0, is_automatic=True, minimum=1_024, step=128)
"""OpenAI: prompts of 1,024 tokens or more in steps of 128, for 30 minutes (its guide to prompt caching; older models:
mostly 5 to 10 minutes). Others with automatic caches count by the same rules."""


USUAL_RATES = Rates(1.0, 0.1, 1.0, 5.0)
"""Prices relative to uncached input, about as the big providers have them, for comparisons without a known price."""


class ModelRequest(msgspec.Struct, frozen=True):
    """One request to a model, with all that its cost depends on. Counts are tokens, `at` seconds since the epoch.

    `prompt` is our count of what was sent, used if `usage` (the provider's report of the first round) is None.
    `removed` is by how much the client's own prompt is longer than the one that was sent (negative: shorter); `added`
    are the tokens that Accordion added. If there are several rounds, `last` is the report of the last one, and
    `earlier` the sum of those before it.
    """

    at: float
    prompt: int
    usage: Usage | None = None
    removed: int = 0
    added: int = 0
    is_new_compaction: bool = False
    """Whether a compaction was made for this request, so that its prompt differs from the one before."""
    window: int = 0
    """The longest prompt that the model accepts; 0: not known."""
    rules: CacheRules = AUTOMATIC
    last: Usage | None = None
    earlier: Usage | None = None
    summary_input: int = 0
    summary_output: int = 0


class RequestCost(NamedTuple):
    """The cost of a request, and the tokens that the provider's cache has after it; None if it has none."""

    costs: Costs
    cached: CachedPrompt | None


class _Prompt(NamedTuple):
    """A prompt: its tokens, those read from the cache, and those written to it."""

    tokens: int
    cached: int
    written: int

    def cost(self, rates: Rates) -> float:
        return input_cost(rates, self.tokens, self.cached, self.written)


def input_cost(rates: Rates, tokens: int, cached: int = 0, written: int = 0) -> float:
    """Returns the cost of a prompt, in the unit of `rates`."""
    return (tokens - cached - written) * rates.input + cached * rates.cached + written * rates.cache_write


def compute_cost(
    request: ModelRequest,
    previous: CachedPrompt | None,
    price: ModelPrice | None,
    summary_price: ModelPrice | None = None,
) -> RequestCost:
    """Returns the cost of one request. `previous` has the tokens that were in the cache after the request before it.

    `summary_price` is that of the model that wrote the summary; without it, the request's own price is taken.
    """
    if not (request.removed or request.added or request.is_new_compaction or request.last or request.summary_input):
        return compute_unchanged_cost(request.at, request.prompt, request.usage, request.rules, previous, price)
    sent = _sent_prompt(request, previous)
    original = _original_prompt(request, sent, previous)
    last = request.last or request.usage or Usage()
    earlier = request.earlier or Usage()
    latest = sent if request.earlier is None else _reported_prompt(last)
    # Without further rounds, the first prompt is all that was sent.
    rounds = (sent,) if request.earlier is None else (_reported_prompt(earlier), latest)
    costs = Costs(
        requests=1,
        estimated=int(request.usage is None),
        unpriced=int(price is None),
        over_window=int(0 < request.window < sent.tokens + request.removed),
        input=sum(prompt.tokens for prompt in rounds),
        cached=sum(prompt.cached for prompt in rounds),
        cache_write=sum(prompt.written for prompt in rounds),
        output=earlier.output + last.output,
        original_input=original.tokens,
        original_cached=original.cached,
        original_output=last.output,
        summary_input=request.summary_input,
        summary_output=request.summary_output,
    )
    if price is not None:
        costs = _with_money(costs, request, sent, original, price, summary_price or price)
    return RequestCost(costs, _cached_after(request, latest, original))


def compute_unchanged_cost(
    at: float,
    prompt: int,
    usage: Usage | None,
    rules: CacheRules,
    previous: CachedPrompt | None,
    price: ModelPrice | None,
) -> RequestCost:
    """Returns the cost of a request that Accordion did not change. ModelRequest describes the parameters.

    Most requests are such, and each pays for this function: it builds nothing that it does not return.
    """
    if usage is None:
        tokens, output = prompt, 0
        cached, written = _estimate_cached(at, prompt, rules, previous), 0
    else:
        tokens, output = usage.input, usage.output
        cached, written = _cached_tokens(usage) if usage.cached or usage.cache_write else (0, 0)
    cost = 0
    if price is not None:
        rates = price.rates_for(tokens) if price.tiers else price.rates
        cost = round(input_cost(rates, tokens, cached, written) + output * rates.output)
    costs = Costs(
        1, int(usage is None), int(price is None), 0, tokens, cached, written, output, tokens, cached, output, 0, 0,
        cost, cost,
    )  # fmt: skip
    in_cache = _automatically_cached(rules, tokens) if rules.is_automatic else cached + written
    return RequestCost(costs, CachedPrompt(in_cache, in_cache, at) if in_cache else None)


def _with_money(
    costs: Costs,
    request: ModelRequest,
    sent: _Prompt,
    original: _Prompt,
    price: ModelPrice,
    summary_price: ModelPrice,
) -> Costs:
    """Returns the costs of a changed request with its amounts of money."""
    rates, original_rates = price.rates_for(sent.tokens), price.rates_for(original.tokens)
    first_input = sent.cost(rates)
    if request.earlier is None:
        sent_cost = first_input + costs.output * rates.output
        read_cost = 0.0
    else:
        last = request.last or Usage()
        all_rates = price.rates_for(last.input)
        sent_cost = input_cost(all_rates, costs.input, costs.cached, costs.cache_write) + costs.output * rates.output
        read_cost = sent_cost - first_input - last.output * rates.output
    original_cost = original.cost(original_rates) + costs.original_output * original_rates.output
    prefix_cost = first_input - _unbroken_prompt(request, sent, original).cost(rates)
    # What Accordion added is priced like the prompt that it is a part of.
    insertion_cost = first_input * min(1.0, request.added / max(1, sent.tokens))
    summary_rates = summary_price.rates_for(request.summary_input)
    summary_cost = request.summary_input * summary_rates.input + request.summary_output * summary_rates.output
    return msgspec.structs.replace(
        costs,
        sent_cost=round(sent_cost),
        original_cost=round(original_cost),
        prefix_cost=max(0, round(prefix_cost)),
        insertion_cost=round(insertion_cost),
        read_cost=max(0, round(read_cost)),
        summary_cost=round(summary_cost),
    )


def _sent_prompt(request: ModelRequest, previous: CachedPrompt | None) -> _Prompt:
    """Returns the prompt that was sent, by the provider's report, or by our count and the rules of the cache."""
    if request.usage is not None:
        return _reported_prompt(request.usage)
    cached = 0
    if not request.is_new_compaction:
        cached = _estimate_cached(request.at, request.prompt, request.rules, previous)
    return _Prompt(request.prompt, cached, 0)


def _reported_prompt(usage: Usage) -> _Prompt:
    return _Prompt(usage.input, *_cached_tokens(usage))


def _cached_tokens(usage: Usage) -> tuple[int, int]:
    """Returns the reported cache reads and writes; together they are no more than the input."""
    cached = min(usage.cached, usage.input)
    return cached, min(usage.cache_write, usage.input - cached)


def _estimate_cached(at: float, prompt: int, rules: CacheRules, previous: CachedPrompt | None) -> int:
    """Returns the cache reads of a prompt that repeats the one before, by the rules of the cache."""
    return min(previous.sent, prompt) if previous is not None and _is_alive(at, rules, previous) else 0


def _original_prompt(request: ModelRequest, sent: _Prompt, previous: CachedPrompt | None) -> _Prompt:
    """Returns the client's own prompt, at most as long as the window, with its part in the cache."""
    tokens = max(0, sent.tokens + request.removed)
    if request.window:
        # A longer prompt would have been refused, or the client would have compacted it.
        tokens = min(tokens, max(request.window, sent.tokens))
    cached = min(_original_cached(request, sent, previous), tokens)
    # The end of the prompt after the client's last mark is not written.
    unmarked = sent.tokens - sent.cached - sent.written
    is_written = sent.written or (not request.rules.is_automatic and sent.cached)
    written = max(0, tokens - cached - unmarked) if is_written else 0
    return _Prompt(tokens, cached, written)


def _original_cached(request: ModelRequest, sent: _Prompt, previous: CachedPrompt | None) -> int:
    """Returns the tokens of the client's own prompt that would have been read from the cache."""
    if previous is None:
        # It is not known what was sent before. A compaction that was only applied again was sent before.
        return max(0, sent.cached + request.removed) if sent.cached and not request.is_new_compaction else sent.cached
    if request.is_new_compaction:
        return max(sent.cached, previous.original if _is_alive(request.at, request.rules, previous) else 0)
    if previous.sent <= 0:
        return sent.cached
    if sent.cached > previous.sent:
        return previous.original + sent.cached - previous.sent
    return sent.cached * previous.original // previous.sent


def _unbroken_prompt(request: ModelRequest, sent: _Prompt, original: _Prompt) -> _Prompt:
    """Returns the sent prompt as the cache would have had it, if a compaction had not broken its prefix.

    Without the break, only what was new to the cache in the client's own prompt is new.
    """
    if not request.is_new_compaction:
        return sent
    new = original.tokens - original.cached
    cached = max(sent.cached, sent.tokens - new)
    unmarked = sent.tokens - sent.cached - sent.written
    return _Prompt(sent.tokens, cached, max(0, sent.tokens - cached - unmarked) if sent.written else 0)


def _cached_after(request: ModelRequest, sent: _Prompt, original: _Prompt) -> CachedPrompt | None:
    """Returns the tokens that the cache has after a request; None if it has none."""
    rules = request.rules
    if rules.is_automatic:
        in_cache = _automatically_cached(rules, sent.tokens), _automatically_cached(rules, original.tokens)
    else:
        in_cache = sent.cached + sent.written, original.cached + original.written
    return CachedPrompt(*in_cache, request.at) if any(in_cache) else None


def _automatically_cached(rules: CacheRules, tokens: int) -> int:
    return tokens - tokens % rules.step if tokens >= rules.minimum else 0


def _is_alive(at: float, rules: CacheRules, previous: CachedPrompt) -> bool:
    """Whether the cache still has what it had after the previous request."""
    return at - previous.at <= rules.lifetime
