"""Renders the page's templates, and formats figures and times for people.

Jinja2 is imported for the first page: most proxies are never looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any

from accordion.http.holdout_text import describe_comparison, describe_groups
from accordion.model.costs import Basis, Costs, to_dollars

if TYPE_CHECKING:
    from jinja2 import Environment

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


def render_template(name: str, values: Mapping[str, Any]) -> str:
    """Returns the HTML of a template."""
    return _environment().get_template(name).render(values)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415  # see above

    environment = Environment(
        loader=PackageLoader("accordion.http.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters |= {
        "number": format_number,
        "share": format_share,
        "time": format_time,
        "machine_time": format_machine_time,
        "age": format_age,
        "seconds": format_seconds,
        "dollars": format_dollars,
        "basis": describe_basis,
        "sentence": describe_comparison,
        "groups": describe_groups,
    }
    return environment
