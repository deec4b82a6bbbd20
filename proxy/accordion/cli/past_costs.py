"""What recorded requests cost, and what they would have cost with Accordion, from a replay with compaction.

Theory of operation. The provider's report is of the client's own prompt, so the cost without Accordion is exact. The
prompt with Accordion is smaller by the share that the replay removed. Its part in the prompt cache follows from the
report: while a compaction is only applied again, the same share of the previous prompt is a cache read; a new
compaction leaves only the beginning that both prompts have. With that as the provider's report,
`accounting/cost_model.py` computes the costs, as it does for a running proxy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from msgspec.structs import replace

from accordion.accounting.cost_model import AUTOMATIC, ModelRequest, compute_cost
from accordion.cli.replay_compaction import CompactedRequest
from accordion.model.costs import CachedPrompt, Costs, PriceTable
from accordion.model.records import Usage

_SUMMARY_STEP = "summarize"
_SUMMARY_SHARE = 0.05
"""The tokens of a summary as a share of what it replaces; an estimate, as no model writes one in a replay."""


class PastCost(NamedTuple):
    """The costs of a recorded request; `sent` is with Accordion, `original` what was on record.

    Without `is_reported`, the recorded request is an estimate, too.
    """

    model: str
    costs: Costs
    is_reported: bool


def compute_past_costs(
    rows: Iterable[CompactedRequest], prices: PriceTable, has_model_summaries: Callable[[str], bool]
) -> Iterator[PastCost]:
    """Yields the cost of each request of one conversation, in order; none for requests that could not be parsed.

    `has_model_summaries` says whether a model would write the summaries of a model's requests.
    """
    cached: CachedPrompt | None = None
    model = ""
    for row in rows:
        if row.limits is None:
            cached = None
            continue
        if row.model != model:
            cached, model = None, row.model
        price = prices.price(model)
        original = compute_cost(_describe_original(row), cached and _original_part(cached), price)
        sent = original
        if row.state in ("folded", "replayed"):
            is_summarized = has_model_summaries(model)
            sent = compute_cost(_describe_sent(row, original.costs, cached, is_summarized), cached, price)
        costs = _combine(sent.costs, original.costs, is_changed=sent is not original)
        yield PastCost(model, costs, row.reported is not None)
        cached = _combine_cached(sent.cached, original.cached)


def _describe_original(row: CompactedRequest) -> ModelRequest:
    """Describes the request as the client sent it."""
    # Nothing says what a client marked whose provider reported nothing.
    rules = AUTOMATIC if row.reported is None else row.cache_rules
    return ModelRequest(row.at, row.original.tokens, row.reported, rules=rules)


def _describe_sent(
    row: CompactedRequest, original: Costs, previous: CachedPrompt | None, is_summarized: bool
) -> ModelRequest:
    """Describes the request as it would have been sent, with the report that a provider would have given."""
    scale = original.input / max(1, row.original.tokens)
    tokens = min(original.input, round(row.forwarded.tokens * scale))
    is_new = row.state == "folded"
    if is_new:
        cached = min(original.cached, round(row.forwarded.cached * scale))
    else:
        cached = min(tokens, _repeated_cached(original, previous, tokens))
    unmarked = original.input - original.cached - original.cache_write
    has_writes = original.cache_write or (not row.cache_rules.is_automatic and original.cached)
    written = max(0, tokens - cached - unmarked) if has_writes else 0
    summarized = sum(removed for name, removed in row.steps if name == _SUMMARY_STEP) if is_summarized else 0
    summary_tokens = round(summarized * _SUMMARY_SHARE)
    return ModelRequest(
        at=row.at,
        prompt=tokens,
        usage=Usage(tokens, original.output, cached, written),
        removed=original.input - tokens,
        added=round((row.tool_tokens + row.forwarded.utilization.insertions) * scale),
        is_new_compaction=is_new,
        rules=row.cache_rules,
        summary_input=round((summarized + summary_tokens) * scale),
        summary_output=summary_tokens,
    )


def _repeated_cached(original: Costs, previous: CachedPrompt | None, tokens: int) -> int:
    """Returns the cache reads of a prompt whose compaction is only applied again."""
    if previous is None or previous.original <= 0:
        return original.cached * tokens // max(1, original.input)
    if original.cached > previous.original:
        return previous.sent + original.cached - previous.original
    return original.cached * previous.sent // previous.original


def _combine(sent: Costs, original: Costs, *, is_changed: bool) -> Costs:
    """Returns the costs of what would have been sent, beside those of what was."""
    return replace(
        sent,
        estimated=max(original.estimated, int(is_changed)),
        original_input=original.input,
        original_cached=original.cached,
        original_output=original.output,
        original_cost=original.sent_cost,
    )


def _original_part(cached: CachedPrompt) -> CachedPrompt:
    return CachedPrompt(cached.original, cached.original, cached.at)


def _combine_cached(sent: CachedPrompt | None, original: CachedPrompt | None) -> CachedPrompt | None:
    if sent is None or original is None:
        return original and CachedPrompt(0, original.sent, original.at)
    return CachedPrompt(sent.sent, original.sent, original.at)
