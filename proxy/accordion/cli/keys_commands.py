"""The options of the commands `accordion keys …`. Their work is in cli/keys.py, which is imported when one runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from accordion.cli.config import ask_confirmation, load_settings

Config = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="Config file. Default: as for serve.", show_default=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

keys = typer.Typer(name="keys", help="Create, list and revoke proxy keys in the store.", no_args_is_help=True)


@keys.command()
def create(
    tenant: Annotated[str, typer.Argument(metavar="TENANT", help="Name of the tenant: letters, digits and _ . : -")],
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Create a key for a tenant and print it. It cannot be shown again."""
    from accordion.cli.keys import create as run  # noqa: PLC0415  # not needed by the other commands

    raise typer.Exit(run(load_settings(config), tenant, as_json))


@keys.command("list")
def list_keys(as_json: AsJson = False, config: Config = None) -> None:
    """List the keys of the config and of the store, without the keys themselves."""
    from accordion.cli.keys import list_keys as run  # noqa: PLC0415  # see above

    raise typer.Exit(run(load_settings(config), as_json))


@keys.command()
def revoke(
    key: Annotated[str, typer.Argument(metavar="ID", help="Id of the key, from `accordion keys list`.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    config: Config = None,
) -> None:
    """Revoke a key. Running proxies refuse it within two seconds."""
    from accordion.cli.keys import revoke as run  # noqa: PLC0415  # see above

    raise typer.Exit(run(load_settings(config), key, lambda question: yes or ask_confirmation(question)))
