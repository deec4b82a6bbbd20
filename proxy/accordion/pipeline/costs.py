"""Computes the cost of an exchange, with its request at the last stage and the provider's report."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from accordion.accounting.cost_model import (
    ModelRequest,
    RequestCost,
    compute_cost,
    compute_unchanged_cost,
)
from accordion.accounting.token_meter import TokenMeter
from accordion.model.cache import LONGEST_NAME
from accordion.model.costs import ModelPrice, PriceTable
from accordion.model.records import ObservedResponse, Usage
from accordion.pipeline.prompt_cache import find_cache_rules
from accordion.pipeline.relay import ExchangeProgress
from accordion.pipeline.request import PreparedRequest

_RULES_WRITER = "extractive"
_MOST_TOKENS = 10**8
_CHARACTERS_PER_TOKEN = 4
"""About as many as in English text and in code."""


class CostCalculator(msgspec.Struct, frozen=True):
    """Computes costs."""

    prices: PriceTable
    token_meter: TokenMeter
    summary_writer: Callable[[str, bool], str] = lambda model, is_subagent: ""
    """Returns the configured model that writes summaries, by the request's model; empty for the request's own."""

    def compute(
        self, request: PreparedRequest, progress: ExchangeProgress, observed_response: ObservedResponse, at: float
    ) -> RequestCost | None:
        """Returns the cost of an exchange at the time `at`; None if it cost nothing."""
        usage = _credible(observed_response.usage)
        failed = progress.status >= 400 or progress.error or observed_response.error
        if request.is_token_count or (usage is None and failed):
            return None
        model = request.conversation.model
        price = self.prices.price(model)
        if request.needs_no_model:
            return self._compute_block_cost(request, at, price)
        node = request.session_match.base_node
        # The prompt cache of one model has nothing of another's.
        previous = node.cached if node is not None and node.model == model[:LONGEST_NAME] else None
        if request.rewritten_body is None:
            return compute_unchanged_cost(
                at, request.utilization.tokens, usage, find_cache_rules(request), previous, price
            )
        changed = self._describe_changed(request, progress, usage, at)
        return compute_cost(changed, previous, price, self._summary_price(request))

    def _compute_block_cost(self, request: PreparedRequest, at: float, price: ModelPrice | None) -> RequestCost | None:
        """Returns the cost of a compaction block: that of its summary. None if no model wrote it."""
        outcome = request.compaction_outcome
        if outcome is None or outcome.state != "compacted" or not outcome.input:
            return None
        only_summary = ModelRequest(
            at, 0, Usage(), summary_input=outcome.input, summary_output=outcome.output, rules=find_cache_rules(request)
        )
        return compute_cost(only_summary, None, price, self._summary_price(request))

    def estimate(self, request: PreparedRequest, at: float, characters: int) -> RequestCost:
        """Returns the cost of an exchange by our own count, for a response of `characters`."""
        usage = Usage(request.utilization.tokens, round(characters / _CHARACTERS_PER_TOKEN))
        unreported = ModelRequest(at, usage.input, usage, rules=find_cache_rules(request))
        return compute_cost(unreported, None, self.prices.price(request.conversation.model))

    def _describe_changed(
        self, request: PreparedRequest, progress: ExchangeProgress, usage: Usage | None, at: float
    ) -> ModelRequest:
        utilization, compaction, outcome = request.utilization, request.history.compaction, request.compaction_outcome
        tool_tokens = self._count_tool_tokens(request)
        if compaction is not None:
            # The tokens that it removed are counted without the tool that it adds.
            removed = compaction.tokens_saved - utilization.insertions
        else:
            removed = -tool_tokens - utilization.insertions
        is_new = outcome is not None and outcome.state == "compacted"
        loop = progress.tool_loop_usage
        first, earlier = (_credible(loop.first), _credible(loop.earlier)) if loop is not None else (usage, None)
        if first is None or usage is None:
            # Rounds without a report are not known. The first round counts, by its report or by our own count.
            earlier = None
        return ModelRequest(
            at=at,
            prompt=utilization.tokens,
            usage=first,
            removed=removed,
            added=tool_tokens + utilization.insertions,
            is_new_compaction=is_new,
            window=request.window.usable_input if request.window.is_known else 0,
            rules=find_cache_rules(request),
            last=usage if earlier is not None else None,
            earlier=earlier,
            summary_input=outcome.input if is_new and outcome is not None else 0,
            summary_output=outcome.output if is_new and outcome is not None else 0,
        )

    def _count_tool_tokens(self, request: PreparedRequest) -> int:
        """Returns the tokens of our tool's definition in the request, corrected as the rest of it."""
        offered, own = request.forwarded_history.conversation, request.conversation
        if not request.tool_name or offered.tools is own.tools:
            return 0
        model = request.actual_model
        tokens = self.token_meter.count_tools(offered, model) - self.token_meter.count_tools(own, model)
        return max(0, round(tokens * request.utilization.tokens / max(1, request.uncorrected_tokens)))

    def _summary_price(self, request: PreparedRequest) -> ModelPrice | None:
        """Returns the price of the model that wrote the summary; None if it is not known."""
        outcome = request.compaction_outcome
        if outcome is None or not outcome.input:
            return None
        configured = self.summary_writer(request.conversation.model, request.is_subagent)
        names = (configured, "" if outcome.writer == _RULES_WRITER else outcome.writer)
        return next((price for name in names if name and (price := self.prices.price(name)) is not None), None)


def _credible(usage: Usage | None) -> Usage | None:
    """Returns a report; None if no model reads or writes that much."""
    return None if usage is not None and usage.input + usage.output > _MOST_TOKENS else usage
