"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from accordion.cli.installation import own_command

Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        help="Config file. Default: the file in ACCORDION_CONFIG, then ./config.local.yaml, then ./config.yaml, then "
        "~/.config/accordion/config.yaml.",
        show_default=False,
    ),
]

Tenant = Annotated[
    str | None,
    typer.Option(
        "--tenant",
        help=f"Tenant to use: a name from `{own_command('tenants')}`, an unambiguous prefix of one, or `local`.",
        show_default=False,
    ),
]
