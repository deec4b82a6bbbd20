"""Finds the config file: the one that the user names, else one of two usual places, and reads its bytes.

Many programs have a `config.yaml` in the working directory. One that belongs to another program is not used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import yaml

from accordion.config.settings import Settings
from accordion.model.errors import ConfigError
from accordion.model.suggestions import find_nearest

DEFAULT_FILES = (Path("config.local.yaml"), Path("config.yaml"))
"""The files of the working directory, in order. The first is a copy of the second that git ignores."""

COMMON_SECTIONS = frozenset(
    {
        *("archive", "budgets", "environment_variables", "limits", "logging", "memory", "prices", "retries", "server"),
        *("store", "thresholds", "timeouts", "upstreams", "windows"),
    }
)
"""The sections whose names other programs use, too. Any other section of ours shows that a file is Accordion's."""
_SECTIONS = frozenset(field.name for field in msgspec.structs.fields(Settings))
_LIKENESS = 0.8
"""From this likeness on, an unknown key is one of ours that is mistyped (`sevrer`), and not another program's."""
_KEY = re.compile(r"^(?:- )?[\"']?([A-Za-z][\w.-]*)[\"']?[ \t]*:", re.MULTILINE)
"""The beginning of a line with a top-level key."""
_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """The file to read. `is_required`: it must exist. `unused_file`: a sentence about a file that was passed over."""

    path: Path
    is_required: bool = False
    unused_file: str = ""


def find_config_file(path: Path | None, environ: Mapping[str, str], *, reads_folder: bool = True) -> ConfigFile:
    """Finds the file: `path`, else ACCORDION_CONFIG's, else the folder's, else the user's own, which need not exist.

    The folder's is ./config.local.yaml, else ./config.yaml. It counts only if `reads_folder` is set, and if it does not
    belong to another program.
    """
    named = path or (Path(environ["ACCORDION_CONFIG"]) if environ.get("ACCORDION_CONFIG") else None)
    if named:
        return ConfigFile(named.expanduser(), is_required=True)
    own = user_file(environ)
    if not reads_folder:
        return ConfigFile(own)
    unused_file = ""
    for file in DEFAULT_FILES:
        if file.is_file():
            if not (reason := why_foreign(read(ConfigFile(file)))):
                return ConfigFile(file)
            unused_file = _describe_unused(file, reason)
    folders_file = DEFAULT_FILES[-1]
    return ConfigFile(own if own.exists() or folders_file.exists() else folders_file, unused_file=unused_file)


def user_file(environ: Mapping[str, str]) -> Path:
    """Returns the path of the user's own config file, which need not exist."""
    return Path(environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "accordion" / "config.yaml"


def read(file: ConfigFile) -> bytes:
    """Returns the file's bytes; empty if it does not exist and need not. Raises ConfigError."""
    try:
        return file.path.read_bytes()
    except FileNotFoundError:
        if not file.is_required:
            return b""
        raise ConfigError(f"file not found: {file.path}") from None
    except OSError as error:
        raise ConfigError(f"cannot read {file.path}: {error.strerror}") from None


def why_foreign(data: bytes) -> str:
    """Returns why a file found by its name alone belongs to another program; empty if it is Accordion's.

    It is Accordion's if it has a section that only Accordion has, or if all its sections are Accordion's. A mistyped
    name counts as the one that is meant, so that it is reported as an error. A file without content has the defaults.
    """
    text = data.decode("utf-8-sig", errors="replace")
    try:
        tree = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - a safe loader
    except (yaml.YAMLError, ValueError, RecursionError):
        tree = text
    if tree is None:
        return ""
    keys = [str(key) for key in tree] if isinstance(tree, dict) else _KEY.findall(text)
    meant = {key: find_nearest(key, _SECTIONS, _LIKENESS) for key in keys}
    if set(meant.values()) - COMMON_SECTIONS - {""} or (keys and all(meant.values())):
        return ""
    foreign = [key for key in keys if not meant[key] and _KEY.fullmatch(f"{key}:")][:_MOST_NAMED]
    if not foreign:
        return "it has no section of Accordion's"
    names = ", ".join(f"`{key}`" for key in foreign)
    return f"Accordion has no section {names}, so the file seems to belong to another program"


def _describe_unused(file: Path, reason: str) -> str:
    return f"{file.absolute()} is not used: {reason}. To use it, name it with --config or in ACCORDION_CONFIG"
