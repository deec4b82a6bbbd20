"""The comparison with a hold-out in words and JSON, for the API, the page, the command line and the log."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

from msgspec import structs

from accordion.accounting.holdout import (
    CONFIDENCE,
    LEAST,
    CompactionStop,
    ComparedFigure,
    HoldoutComparison,
    Interval,
)

_TITLES = {
    "spent": "Dollars",
    "requests": "Requests",
    "reads": "Artifacts read back",
    "repeated_calls": "Repeated calls",
    "errors": "Errors",
}


class ComparedRow(NamedTuple):
    """One figure for each session, as texts. The last two have the estimate and its interval."""

    title: str
    compaction: str
    holdout: str
    difference: str
    change: str


def comparison_json(comparison: HoldoutComparison) -> dict[str, Any]:
    """Returns the comparison: a sentence, the number of sessions in both groups, each figure with its intervals, and
    the same for each model."""
    return {
        "verdict": comparison.verdict,
        "sentence": describe_comparison(comparison),
        "sessions": {
            "compaction": comparison.compaction,
            "holdout": comparison.holdout,
            "compacted_holdout": comparison.compacted_holdout,
            "least": LEAST,
        },
        "confidence": CONFIDENCE,
        "figures": {figure.name: _figure_json(figure) for figure in comparison.figures},
        "models": {each.model: comparison_json(each) for each in comparison.models},
    }


def stop_json(stop: CompactionStop) -> dict[str, Any]:
    """Returns a stop of compaction; times are in seconds since the epoch."""
    return {**structs.asdict(stop), "change": structs.asdict(stop.change), "sentence": describe_stop(stop)}


def _figure_json(figure: ComparedFigure) -> dict[str, Any]:
    return {
        "compaction": figure.compaction,
        "holdout": figure.holdout,
        "difference": structs.asdict(figure.difference),
        "change": structs.asdict(figure.change) if figure.change is not None else None,
    }


def list_compared_rows(comparison: HoldoutComparison) -> Iterator[ComparedRow]:
    """Yields the figures of a comparison as texts."""
    for figure in comparison.figures:
        mark = "$" if figure.name == "spent" else ""
        change = figure.change
        yield ComparedRow(
            _TITLES[figure.name],
            f"{mark}{_format_mean(figure.compaction)}",
            f"{mark}{_format_mean(figure.holdout)}",
            _describe_difference(figure.difference, mark),
            "" if change is None else _describe_change(change),
        )


def _describe_difference(difference: Interval, mark: str) -> str:
    value, low, high = (_sign(each) + mark + _format_mean(each) for each in structs.astuple(difference))
    return f"{value} ({low} to {high})"


def _describe_change(change: Interval) -> str:
    value, low, high = (_sign(each) + _describe_share(each) for each in structs.astuple(change))
    return f"{value} ({low.removesuffix(' %')} to {high})"


def _sign(value: float) -> str:
    return "-" if value < 0 else "+"


def _format_mean(value: float) -> str:
    """Formats a mean without its sign: four decimals below 1, as a session may cost less than a cent."""
    value = abs(value)
    return f"{value:,.4f}" if 0 < value < 1 else f"{value:,.2f}"


def describe_groups(comparison: HoldoutComparison) -> str:
    """Describes the groups and what is compared."""
    left = comparison.compacted_holdout
    compacted = f" (of these, {left:,} compacted later)" if left else ""
    return (
        f"Sessions that reached a trigger, each with its sub-agents: {comparison.compaction:,} with compaction, "
        f"{comparison.holdout:,} in the hold-out{compacted}. In brackets: the {CONFIDENCE:.0%} confidence interval."
    )


def describe_models(comparison: HoldoutComparison) -> list[str]:
    """Says for each model whether compaction pays, if there are several models, and enough sessions of it."""
    models = comparison.models if len(comparison.models) > 1 else ()
    return [describe_comparison(each) for each in models if each.verdict != "too_few"]


def describe_stop(stop: CompactionStop) -> str:
    """Says in sentences since when compaction is stopped for a model, why, and until when."""
    since, until = (datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d") for at in (stop.since, stop.until))
    return (
        f"Compaction is stopped for {stop.model} since {since}: it cost {_describe_cost(stop.change)}. Requests that "
        f"would not fit are compacted nevertheless. It is tried again on {until}."
    )


def describe_comparison(comparison: HoldoutComparison) -> str:
    """Says in a sentence whether compaction pays for this traffic, or for the model of the comparison."""
    verdict, subject = comparison.verdict, comparison.model or "this traffic"
    if verdict == "too_few":
        return (
            f"There are too few sessions to say whether compaction pays for {subject}: "
            f"{comparison.compaction:,} with compaction and {comparison.holdout:,} in the hold-out reached a trigger; "
            f"it takes {LEAST} of each."
        )
    change = comparison.cost_change
    if change is None:
        return (
            f"The prices of too few sessions are known to say whether compaction pays for {subject}: "
            "set prices.models in the config."
        )
    if verdict == "open":
        return (
            f"It is open whether compaction pays for {subject}: it costs between "
            f"{_describe_share(change.low)} less and {_describe_share(change.high)} more per session."
        )
    pays = "pays" if verdict == "pays" else "does not pay"
    return f"Compaction {pays} for {subject}: it costs {_describe_cost(change)}."


def _describe_cost(change: Interval) -> str:
    """Describes a change whose interval does not contain zero."""
    least, most = sorted((abs(change.low), abs(change.high)))
    return (
        f"{_describe_share(change.value)} {'less' if change.value < 0 else 'more'} per session "
        f"(between {_describe_share(least).removesuffix(' %')} and {_describe_share(most)})"
    )


def _describe_share(share: float) -> str:
    percent = 100 * abs(share)
    return f"{percent:,.0f} %" if percent >= 1 else f"{percent:.1f} %"
