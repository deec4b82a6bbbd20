"""The strategies, in the order of what they lose: one line each, one file each.

The order in which a request's fold runs them is that of the pipeline in the settings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from accordion.compaction.strategies.base import Strategy
from accordion.compaction.strategies.body import Body, BodyOptions
from accordion.compaction.strategies.compact_tool_results import (
    REFERENCE,
    CompactToolResults,
    CompactToolResultsOptions,
)
from accordion.compaction.strategies.delegated_digests import DelegatedDigests, DelegatedDigestsOptions
from accordion.compaction.strategies.fixed_limits import FixedLimits, FixedLimitsOptions
from accordion.compaction.strategies.images import Images, ImagesOptions
from accordion.compaction.strategies.keep_last_n_messages import KeepLastNMessages, KeepLastNMessagesOptions
from accordion.compaction.strategies.keep_last_n_turns import KeepLastNTurns, KeepLastNTurnsOptions
from accordion.compaction.strategies.stale_reasoning import StaleReasoning, StaleReasoningOptions
from accordion.compaction.strategies.summarize import SummarizeOptions, Summarizing
from accordion.compaction.strategies.superseded import Superseded, SupersededOptions

_REGISTERED: tuple[tuple[type[msgspec.Struct], Callable[[Any], Strategy], str], ...] = (
    (StaleReasoningOptions, StaleReasoning, StaleReasoning.name),
    (SupersededOptions, Superseded, Superseded.name),
    (CompactToolResultsOptions, CompactToolResults, CompactToolResults.name),
    (DelegatedDigestsOptions, DelegatedDigests, DelegatedDigests.name),
    (SummarizeOptions, Summarizing, Summarizing.name),
    (KeepLastNTurnsOptions, KeepLastNTurns, KeepLastNTurns.name),
    (KeepLastNMessagesOptions, KeepLastNMessages, KeepLastNMessages.name),
    (FixedLimitsOptions, FixedLimits, FixedLimits.name),
    (ImagesOptions, Images, Images.name),
    (BodyOptions, Body, Body.name),
)

STRATEGIES: Mapping[str, type[msgspec.Struct]] = {name: options for options, _, name in _REGISTERED}
"""The type of each strategy's options, by its name."""

SHIPPED = (
    "stale_reasoning", "superseded", "compact_tool_results", "delegated_digests", "summarize", "fixed_limits",
)  # fmt: skip
"""The pipeline that is used where none is configured."""

_SHIPPED_OPTIONS: Mapping[str, Mapping[str, Any]] = {CompactToolResults.name: {"replacement": REFERENCE}}

_MADE = {name: make for _, make, name in _REGISTERED}


def shipped(name: str) -> msgspec.Struct:
    """The options that a strategy has in the pipeline that is shipped."""
    return msgspec.convert(_SHIPPED_OPTIONS.get(name, {}), STRATEGIES[name])


def build(name: str, options: object = None) -> Strategy:
    """The strategy of that name with options of its type (or a mapping of them); as it is shipped without. Raises
    ValueError for an unknown name or wrong options."""
    if name not in STRATEGIES:
        raise ValueError(f"there is no strategy {name!r}; there are {', '.join(STRATEGIES)}")
    return _MADE[name](shipped(name) if options is None else msgspec.convert(options, STRATEGIES[name]))


__all__ = ["SHIPPED", "STRATEGIES", "Strategy", "build", "shipped"]
