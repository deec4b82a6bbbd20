"""The config file of a command: loads it, reports its errors, writes a new one. Also asks for confirmation."""

from __future__ import annotations

import os
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

import typer

import accordion
from accordion.model.errors import ConfigError

if TYPE_CHECKING:
    from accordion.config import Settings

_TEMPLATE = "config.yaml"


def load_settings(config: Path | None, *, reads_folder: bool = True) -> Settings:
    """Loads the settings; `reads_folder`: also from ./config.yaml. Says if that file is not used.

    Prints the error of an invalid config file and exits.
    """
    from accordion.config import SettingsFile  # noqa: PLC0415  # not needed by all commands

    try:
        file = SettingsFile(config, os.environ, reads_folder=reads_folder)
    except ConfigError as error:
        raise config_error(error) from None
    if file.unused_file:
        typer.echo(file.unused_file, err=True)
    return file.settings


def ask_confirmation(question: str) -> bool:
    """Asks on the standard error and returns the answer; exits without a terminal."""
    # With `err=True` alone the last character of the question goes to the output.
    with redirect_stdout(sys.stderr):
        return typer.confirm(question)


def config_error(error: ConfigError) -> typer.Exit:
    """Prints a config error and returns the exit to raise."""
    typer.secho(f"config: {error.message}", fg=typer.colors.RED, err=True)
    return typer.Exit(2)


def _read_template() -> bytes:
    """Returns the repository's config.yaml: the wheel's copy, or the file itself in an editable installation."""
    from importlib.resources import files  # noqa: PLC0415  # not needed by the other commands

    packaged = files("accordion.config") / _TEMPLATE
    if packaged.is_file():
        return packaged.read_bytes()
    return (Path(accordion.__file__).parents[2] / _TEMPLATE).read_bytes()


def write_template(path: Path, *, overwrite: bool) -> Path:
    """Writes the template to the file `path`, or to config.yaml in the folder `path`. Returns the file.

    Raises FileExistsError for a file that exists, unless `overwrite` is set, and OSError where it cannot be written.
    """
    file = path / _TEMPLATE if path.is_dir() else path
    with file.open("wb" if overwrite else "xb") as output:
        output.write(_read_template())
    return file
