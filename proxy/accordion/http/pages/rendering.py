"""Renders the page's templates. Jinja2 is imported for the first page: most proxies are never looked at."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from accordion.http.holdout_text import describe_comparison, describe_groups
from accordion.http.pages.formats import (
    describe_basis,
    format_age,
    format_dollars,
    format_machine_time,
    format_number,
    format_seconds,
    format_share,
    format_time,
)

if TYPE_CHECKING:
    from jinja2 import Environment


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
