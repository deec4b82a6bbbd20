"""The options of the commands `accordion keys …`. Their work is in cli/keys.py, which is imported when one runs."""

from __future__ import annotations

from math import isfinite
from typing import Annotated, Any

import typer

from accordion.cli.config import ask_confirmation, load_settings
from accordion.cli.installation import own_command
from accordion.cli.options import Config

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

TokensPerDay = Annotated[
    int | None, typer.Option(min=0, max=10**15, help="Limit of tokens a day (UTC); 0: none.", show_default=False)
]
DollarsPerDay = Annotated[
    float | None, typer.Option(min=0, max=10**9, help="Limit of US dollars a day (UTC); 0: none.", show_default=False)
]
RequestsPerMinute = Annotated[
    int | None, typer.Option(min=0, max=10**9, help="Limit of requests a minute; 0: none.", show_default=False)
]

keys = typer.Typer(name="keys", help="Create, limit, list and revoke proxy keys in the store.", no_args_is_help=True)


@keys.command()
def create(
    tenant: Annotated[str, typer.Argument(metavar="TENANT", help="Name of the tenant: letters, digits and _ . : -")],
    tokens_per_day: TokensPerDay = None,
    dollars_per_day: DollarsPerDay = None,
    requests_per_minute: RequestsPerMinute = None,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Create a key for a tenant and print it. It cannot be shown again."""
    from accordion.accounting.key_limits import KeyLimits  # noqa: PLC0415  # not needed by the other commands
    from accordion.cli.keys import create as run  # noqa: PLC0415

    limits = KeyLimits(**_named_limits(tokens_per_day, dollars_per_day, requests_per_minute))
    raise typer.Exit(run(load_settings(config), tenant, limits, as_json))


@keys.command()
def limit(
    key: Annotated[str, typer.Argument(metavar="ID", help=f"Id of the key, from `{own_command('keys list')}`.")],
    tokens_per_day: TokensPerDay = None,
    dollars_per_day: DollarsPerDay = None,
    requests_per_minute: RequestsPerMinute = None,
    config: Config = None,
) -> None:
    """Change the limits of a key; those that are not named stay."""
    from accordion.cli.keys import limit as run  # noqa: PLC0415  # see above

    changes = _named_limits(tokens_per_day, dollars_per_day, requests_per_minute)
    if not changes:
        raise typer.BadParameter("Name a limit, such as --requests-per-minute 60.")
    raise typer.Exit(run(load_settings(config), key, changes))


def _named_limits(tokens: int | None, dollars: float | None, requests: int | None) -> dict[str, Any]:
    """Returns the limits that a command names. Raises BadParameter for an amount that is no number."""
    if dollars is not None and not isfinite(dollars):
        raise typer.BadParameter("--dollars-per-day must be a number.")
    limits = {"tokens_per_day": tokens, "dollars_per_day": dollars, "requests_per_minute": requests}
    return {name: limit for name, limit in limits.items() if limit is not None}


@keys.command("list")
def list_keys(as_json: AsJson = False, config: Config = None) -> None:
    """List the keys of the config and of the store, without the keys themselves."""
    from accordion.cli.keys import list_keys as run  # noqa: PLC0415  # see above

    raise typer.Exit(run(load_settings(config), as_json))


@keys.command()
def revoke(
    key: Annotated[str, typer.Argument(metavar="ID", help=f"Id of the key, from `{own_command('keys list')}`.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    config: Config = None,
) -> None:
    """Revoke a key. Running proxies refuse it within two seconds."""
    from accordion.cli.keys import revoke as run  # noqa: PLC0415  # see above

    raise typer.Exit(run(load_settings(config), key, lambda question: yes or ask_confirmation(question)))
