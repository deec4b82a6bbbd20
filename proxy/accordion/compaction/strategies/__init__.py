"""The registry of compaction strategies: one line and one file each, in order of loss.

The settings' pipeline decides which of them run, and in which order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from accordion.compaction.strategies.base import CompactionStrategy
from accordion.compaction.strategies.body import BodyOptions, BodySizeLimit
from accordion.compaction.strategies.compact_tool_results import (
    REFERENCE,
    CompactToolResults,
    CompactToolResultsOptions,
)
from accordion.compaction.strategies.delegated_digests import DelegatedDigests, DelegatedDigestsOptions
from accordion.compaction.strategies.fixed_limits import FixedLimits, FixedLimitsOptions
from accordion.compaction.strategies.images import ImageCountLimit, ImagesOptions
from accordion.compaction.strategies.keep_last_n_messages import KeepLastNMessages, KeepLastNMessagesOptions
from accordion.compaction.strategies.keep_last_n_turns import KeepLastNTurns, KeepLastNTurnsOptions
from accordion.compaction.strategies.stale_reasoning import StaleReasoning, StaleReasoningOptions
from accordion.compaction.strategies.summarize import SummarizeHistory, SummarizeOptions
from accordion.compaction.strategies.superseded import SupersededOptions, SupersededResults

_STRATEGY_CLASSES: tuple[tuple[type[msgspec.Struct], Callable[[Any], CompactionStrategy], str], ...] = (
    (StaleReasoningOptions, StaleReasoning, StaleReasoning.name),
    (SupersededOptions, SupersededResults, SupersededResults.name),
    (CompactToolResultsOptions, CompactToolResults, CompactToolResults.name),
    (DelegatedDigestsOptions, DelegatedDigests, DelegatedDigests.name),
    (SummarizeOptions, SummarizeHistory, SummarizeHistory.name),
    (KeepLastNTurnsOptions, KeepLastNTurns, KeepLastNTurns.name),
    (KeepLastNMessagesOptions, KeepLastNMessages, KeepLastNMessages.name),
    (FixedLimitsOptions, FixedLimits, FixedLimits.name),
    (ImagesOptions, ImageCountLimit, ImageCountLimit.name),
    (BodyOptions, BodySizeLimit, BodySizeLimit.name),
)

STRATEGIES: Mapping[str, type[msgspec.Struct]] = {name: options for options, _, name in _STRATEGY_CLASSES}
"""The options type of each strategy, by name."""

DEFAULT_STRATEGIES = (
    "stale_reasoning", "superseded", "compact_tool_results", "delegated_digests", "summarize", "fixed_limits",
)  # fmt: skip
"""The pipeline that runs if none is configured."""

_DEFAULT_OPTIONS: Mapping[str, Mapping[str, Any]] = {CompactToolResults.name: {"replacement": REFERENCE}}

_STRATEGY_BY_NAME = {name: strategy for _, strategy, name in _STRATEGY_CLASSES}


def default_options(name: str) -> msgspec.Struct:
    """Returns the options of a strategy in the default pipeline."""
    return msgspec.convert(_DEFAULT_OPTIONS.get(name, {}), STRATEGIES[name])


def build_strategy(name: str, options: object = None) -> CompactionStrategy:
    """Builds the strategy of this name. `options`: its options or a mapping of them; the default ones if None.

    Raises ValueError for an unknown name or wrong options.
    """
    if name not in STRATEGIES:
        raise ValueError(f"there is no strategy {name!r}; there are {', '.join(STRATEGIES)}")
    return _STRATEGY_BY_NAME[name](
        default_options(name) if options is None else msgspec.convert(options, STRATEGIES[name])
    )


__all__ = ["DEFAULT_STRATEGIES", "STRATEGIES", "CompactionStrategy", "build_strategy", "default_options"]
