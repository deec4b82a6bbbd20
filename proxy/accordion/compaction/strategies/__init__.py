"""The registry of Accordion's own strategies: one line each, in order of loss.

The settings' pipeline decides which strategies run, and in which order. Those of other packages are found in
config/pipelines.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from accordion.compaction.strategies.base import Strategy, StrategyOptions
from accordion.compaction.strategies.compact_tool_results import REFERENCE, CompactToolResults
from accordion.compaction.strategies.delegated_digests import DelegatedDigests
from accordion.compaction.strategies.keep_newest import FixedLimits, KeepLastNMessages, KeepLastNTurns
from accordion.compaction.strategies.provider_limits import BodySizeLimit, ImageCountLimit
from accordion.compaction.strategies.stale_reasoning import StaleReasoning
from accordion.compaction.strategies.summarize import SummarizeHistory
from accordion.compaction.strategies.superseded import SupersededResults

_STRATEGIES: tuple[type[Strategy], ...] = (
    StaleReasoning,
    SupersededResults,
    CompactToolResults,
    DelegatedDigests,
    SummarizeHistory,
    KeepLastNTurns,
    KeepLastNMessages,
    FixedLimits,
    ImageCountLimit,
    BodySizeLimit,
)

STRATEGIES: Mapping[str, type[Strategy]] = {each.name: each for each in _STRATEGIES}
"""Accordion's own strategies by name."""

DEFAULT_STRATEGIES = (
    "stale_reasoning", "superseded", "compact_tool_results", "delegated_digests", "summarize", "fixed_limits",
)  # fmt: skip
"""The pipeline that runs if none is configured."""

_DEFAULT_OPTIONS: Mapping[str, Mapping[str, Any]] = {CompactToolResults.name: {"replacement": REFERENCE}}

_ALWAYS_APPLIED = (ImageCountLimit.name, BodySizeLimit.name)
"""The strategies for the provider's other limits. A pipeline may contain them to set their options."""


def default_options(name: str) -> StrategyOptions:
    """Returns the options of a strategy in the default pipeline."""
    return msgspec.convert(_DEFAULT_OPTIONS.get(name, {}), STRATEGIES[name].options_type)


def build_strategy(name: str, options: object = None) -> Strategy:
    """Builds Accordion's strategy of this name. `options`: its options or a mapping of them; the default ones if None.

    Raises ValueError for an unknown name or wrong options.
    """
    if name not in STRATEGIES:
        raise ValueError(f"there is no strategy {name!r}; there are {', '.join(STRATEGIES)}")
    strategy = STRATEGIES[name]
    return strategy(default_options(name) if options is None else convert_options(options, strategy.options_type))


def convert_options(options: object, options_type: type[StrategyOptions]) -> StrategyOptions:
    """Converts a mapping of options. Raises msgspec.ValidationError."""
    return msgspec.convert(options, options_type, dec_hook=lambda kind, value: kind.read(value))


def select_for_tokens(pipeline: Iterable[Strategy]) -> tuple[Strategy, ...]:
    """Returns the strategies of a pipeline that serve the token limit."""
    return tuple(each for each in pipeline if each.budget == "tokens")


def select_for_other_limits(pipeline: Iterable[Strategy]) -> tuple[Strategy, ...]:
    """Returns the strategies for the limits of images and bytes: Accordion's own, with the options that the pipeline
    sets, after those of other packages in the pipeline."""
    configured = {each.name: each for each in pipeline if each.budget != "tokens"}
    own = {name: configured.get(name) or build_strategy(name) for name in _ALWAYS_APPLIED}
    return (*(each for name, each in configured.items() if name not in own), *own.values())


def select_whole_groups(pipeline: Sequence[Strategy]) -> tuple[Strategy, ...]:
    """Returns the strategy for a compaction that may only put one summary in place of whole groups: the first of the
    pipeline that summarizes, else the fixed limits."""
    return next(((each,) for each in pipeline if each.summary_model is not None), (build_strategy(FixedLimits.name),))


def select_without_summary(pipeline: Sequence[Strategy]) -> tuple[Strategy, ...]:
    """Returns the pipeline for a compaction that must succeed and cannot have a summary: Accordion's own strategies
    that need none, and `fixed_limits` at least."""
    own = [each for each in pipeline if type(each) in _STRATEGIES and each.summary_model is None]
    if all(each.name != FixedLimits.name for each in own):
        own.append(build_strategy(FixedLimits.name))
    return tuple(own)


__all__ = [
    "DEFAULT_STRATEGIES",
    "STRATEGIES",
    "Strategy",
    "build_strategy",
    "convert_options",
    "default_options",
    "select_for_other_limits",
    "select_for_tokens",
    "select_whole_groups",
    "select_without_summary",
]
