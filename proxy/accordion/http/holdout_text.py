"""The comparison with a hold-out in words and JSON, for the API, the page and the command line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from msgspec import structs

from accordion.accounting.holdout import CONFIDENCE, LEAST, ComparedFigure, HoldoutComparison, Interval

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
    """Returns the comparison: a sentence, the number of sessions in both groups, and each figure with its intervals."""
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
    }


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


def describe_comparison(comparison: HoldoutComparison) -> str:
    """Says in a sentence whether compaction pays for this traffic."""
    verdict = comparison.verdict
    if verdict == "too_few":
        return (
            "There are too few sessions to say whether compaction pays for this traffic: "
            f"{comparison.compaction:,} with compaction and {comparison.holdout:,} in the hold-out reached a trigger; "
            f"it takes {LEAST} of each."
        )
    change = next((figure.change for figure in comparison.figures if figure.name == "spent"), None)
    if change is None:
        return (
            "The prices of too few sessions are known to say whether compaction pays for this traffic: "
            "set prices.models in the config."
        )
    if verdict == "open":
        return (
            "It is open whether compaction pays for this traffic: it costs between "
            f"{_describe_share(change.low)} less and {_describe_share(change.high)} more per session."
        )
    word, pays = ("less", "pays") if verdict == "pays" else ("more", "does not pay")
    least, most = sorted((abs(change.low), abs(change.high)))
    return (
        f"Compaction {pays} for this traffic: it costs {_describe_share(change.value)} {word} per session "
        f"(between {_describe_share(least).removesuffix(' %')} and {_describe_share(most)})."
    )


def _describe_share(share: float) -> str:
    percent = 100 * abs(share)
    return f"{percent:,.0f} %" if percent >= 1 else f"{percent:.1f} %"
