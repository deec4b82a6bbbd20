"""Writes a config.yaml with every setting, its default and its explanation."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import accordion

_NAME = "config.yaml"


def read_template() -> bytes:
    """Returns the repository's config.yaml: the wheel's copy, or the file itself in an editable installation."""
    packaged = files("accordion.config") / _NAME
    if packaged.is_file():
        return packaged.read_bytes()
    return (Path(accordion.__file__).parents[2] / _NAME).read_bytes()


def write_template(path: Path, *, overwrite: bool) -> Path:
    """Writes the template to the file `path`, or to config.yaml in the folder `path`. Returns the file.

    Raises FileExistsError for a file that exists, unless `overwrite` is set, and OSError where it cannot be written.
    """
    file = path / _NAME if path.is_dir() else path
    with file.open("wb" if overwrite else "xb") as output:
        output.write(read_template())
    return file
