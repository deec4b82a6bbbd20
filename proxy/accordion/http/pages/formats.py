"""Formats figures and times for people."""

from __future__ import annotations

from datetime import UTC, datetime

from accordion.model.costs import Basis, Costs, to_dollars

_BASES: dict[Basis, str] = {
    "reported": "reported by the providers",
    "estimate": "estimated",
    "both": "reported by the providers in part, else estimated",
}


def format_number(value: float) -> str:
    """Formats a whole number with commas."""
    return f"{value:,.0f}"


def format_share(value: float) -> str:
    """Formats a share as a percentage."""
    return f"{value:.1%}"


def format_time(at: float) -> str:
    """Formats seconds since the epoch, in UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S") if at else "never"


def format_machine_time(at: float) -> str:
    """Formats seconds since the epoch for the `datetime` attribute."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


def format_age(at: float, now: float) -> str:
    """Formats how long ago a time is."""
    if not at:
        return "never"
    seconds = max(0, int(now - at))
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size} {unit} ago"
    return f"{seconds} s ago"


def format_seconds(seconds: float) -> str:
    """Formats a duration."""
    return f"{seconds * 1_000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def format_dollars(nanodollars: int) -> str:
    """Formats an amount of money, with more digits below a dollar."""
    dollars = to_dollars(nanodollars)
    digits = 2 if abs(dollars) >= 1 or not nanodollars else 4
    return f"{'−' if dollars < 0 else ''}${abs(dollars):,.{digits}f}"


def describe_basis(costs: Costs) -> str:
    """Describes what stands behind the costs."""
    text = f"What was paid is {_BASES[costs.sent_basis]}; the rest is {_BASES[costs.original_basis]}."
    if costs.unpriced:
        text += f" {costs.unpriced:,} of {costs.requests:,} requests have no price and count as tokens only."
    return text
