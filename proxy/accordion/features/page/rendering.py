"""Renders the page's templates, and formats figures and times for people.

Jinja2 is imported for the first page: most proxies are never looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any

from accordion.accounting.holdout_text import describe_comparison, describe_groups, describe_models, describe_stop
from accordion.model.costs import Basis, Costs, to_dollars

if TYPE_CHECKING:
    from jinja2 import Environment

_BASES: dict[Basis, str] = {
    "reported": "reported by the providers",
    "estimate": "estimated",
    "both": "reported by the providers in part, else estimated",
}
_HALF_CENT = 0.005


def format_number(value: float) -> str:
    """Formats a whole number with commas."""
    return f"{value:,.0f}"


def format_share(value: float) -> str:
    """Formats a share as a percentage."""
    return f"{value:.1%}"


def format_estimate(value: float) -> str:
    """Formats a whole number that is not exact."""
    return f"~{format_number(value)}"


def capitalize(text: str) -> str:
    """Makes the first letter a capital. Jinja's own filter also puts all others in lower case, which spoils names."""
    return text[:1].upper() + text[1:]


def format_time(at: float) -> str:
    """Formats seconds since the epoch, in UTC. The page's script puts the reader's own time in its place."""
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


def format_dollars(nanodollars: int, basis: Basis = "reported") -> str:
    """Formats an amount of money in cents, with `~` before an amount that is not wholly reported."""
    dollars = to_dollars(nanodollars)
    sign, amount = "−" if dollars < 0 else "", abs(dollars)
    if 0 < amount < _HALF_CENT:
        return f"{sign}<$0.01"
    return f"{'' if basis == 'reported' or not nanodollars else '~'}{sign}${amount:,.2f}"


_CLIENTS: Mapping[str, str] = {
    "claude-code": "Claude Code",
    "codex": "Codex",
    "opencode": "OpenCode",
    "gemini-cli": "Gemini CLI",
    "geminicli": "Gemini CLI",
    "qwencode": "Qwen Code",
    "openai-agents": "OpenAI Agents SDK",
    "openai/python": "OpenAI SDK",
    "asyncopenai/python": "OpenAI SDK",
    "anthropic/python": "Anthropic SDK",
    "asyncanthropic/python": "Anthropic SDK",
    "litellm": "LiteLLM",
    "ai-sdk": "AI SDK",
    "langchain": "LangChain",
    "pydantic-ai": "Pydantic AI",
}


def format_client(name: str) -> str:
    """Formats the name of a client, as client_metadata.py reads it, without its version."""
    return _CLIENTS.get(name.rpartition("/")[0] or name, name)


def describe_basis(costs: Costs) -> str:
    """Describes what stands behind the costs."""
    if costs.sent_basis == costs.original_basis:
        text = f"All figures are {_BASES[costs.sent_basis]}."
    else:
        text = f"What was paid is {_BASES[costs.sent_basis]}; the rest is {_BASES[costs.original_basis]}."
    if costs.unpriced:
        text += f" {costs.unpriced:,} of {costs.requests:,} requests have no price and count as tokens only."
    return text


def render_template(name: str, values: Mapping[str, Any], packages: tuple[str, ...] = ()) -> str:
    """Returns the HTML of a template of the page, or of one of the packages, which extends a template of the page."""
    return _environment(packages).get_template(name).render(values)


@cache
def _environment(packages: tuple[str, ...]) -> Environment:
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined  # noqa: PLC0415  # see above

    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package) for package in ("accordion.features.page", *packages)]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters |= {
        "capitalize": capitalize,
        "number": format_number,
        "estimate": format_estimate,
        "share": format_share,
        "time": format_time,
        "machine_time": format_machine_time,
        "age": format_age,
        "seconds": format_seconds,
        "dollars": format_dollars,
        "client": format_client,
        "basis": describe_basis,
        "sentence": describe_comparison,
        "groups": describe_groups,
        "by_model": describe_models,
        "stop": describe_stop,
    }
    return environment
