"""Loads the settings of a command, and asks for confirmation."""

from __future__ import annotations

import os
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from accordion.model.errors import ConfigError

if TYPE_CHECKING:
    from accordion.config import Settings


def load_settings(config: Path | None) -> Settings:
    """Loads the settings. Prints the error of an invalid config file and exits."""
    from accordion.config import SettingsFile  # noqa: PLC0415  # not needed by all commands

    try:
        return SettingsFile(config, os.environ).settings
    except ConfigError as error:
        raise config_error(error) from None


def ask_confirmation(question: str) -> bool:
    """Asks on the standard error and returns the answer; exits without a terminal."""
    # With `err=True` alone the last character of the question goes to the output.
    with redirect_stdout(sys.stderr):
        return typer.confirm(question)


def config_error(error: ConfigError) -> typer.Exit:
    """Prints a config error and returns the exit to raise."""
    typer.secho(f"config: {error.message}", fg=typer.colors.RED, err=True)
    return typer.Exit(2)
