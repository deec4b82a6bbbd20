"""The settings that a command goes by."""

from __future__ import annotations

import os
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from accordion.core.errors import ConfigError

if TYPE_CHECKING:
    from accordion.settings import Settings


def settings_of(config: Path | None) -> Settings:
    """The settings of a config file; where it is wrong, says so and ends the command."""
    from accordion.settings import SettingsFile  # noqa: PLC0415  # not needed by all commands

    try:
        return SettingsFile(config, os.environ).settings
    except ConfigError as error:
        raise failed(error) from None


def confirmed(question: str) -> bool:
    """Whether the user says yes. The question goes to the standard error: the output is the command's answer. Where
    there is nobody to ask, the command ends."""
    # With `err=True` alone the last character of the question goes to the output.
    with redirect_stdout(sys.stderr):
        return typer.confirm(question)


def failed(error: ConfigError) -> typer.Exit:
    """Says what is wrong with a config."""
    typer.secho(f"config: {error.message}", fg=typer.colors.RED, err=True)
    return typer.Exit(2)
