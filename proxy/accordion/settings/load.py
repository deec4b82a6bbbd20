"""From a file, the environment and the command line to checked settings."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import msgspec

from accordion.core.errors import ConfigError
from accordion.settings.checks import check
from accordion.settings.convert import convert
from accordion.settings.litellm_file import take_over, variables_of
from accordion.settings.pipelines import read_pipelines
from accordion.settings.text import read_tree, step
from accordion.settings.values import LitellmParams, Logging, ModelInfo, Settings

ENVIRONMENT: Mapping[str, str] = {
    "ACCORDION_HOST": "server.host",
    "ACCORDION_PORT": "server.port",
    "ACCORDION_STORE": "store.url",
    "ACCORDION_ARCHIVE_KEY": "archive.key",
    "ACCORDION_OPENAI_BASE_URL": "upstreams.openai.base_url",
    "ACCORDION_ANTHROPIC_BASE_URL": "upstreams.anthropic.base_url",
}
"""Variables that stand for one key each. ACCORDION_CONFIG names the file, ACCORDION_LOG sets `logging`."""

DEFAULT_FILE = Path("config.yaml")

_LEVELS, _FORMATS = (get_args(kind.type) for kind in msgspec.structs.fields(Logging))
_INFO = frozenset(field.name for field in msgspec.structs.fields(ModelInfo)) - {"options"}
_LITELLMS = frozenset({"max_tokens", "db_model"})
"""Keys of LiteLLM's `model_info` that look like keys of ours."""
_PARAMS = frozenset(field.name for field in msgspec.structs.fields(LitellmParams)) - {"options"}


@dataclass(frozen=True, slots=True)
class _Layer:
    """A value that goes over the file's: its dotted key, and where it comes from in words."""

    key: str
    value: object
    source: str


def load(path: Path | None, environ: Mapping[str, str], overrides: Mapping[str, object] | None = None) -> Settings:
    """Settings from the file `path`, else the one that ACCORDION_CONFIG names, else ./config.yaml if there is one.

    `overrides` come from the command line: dotted keys such as "server.port"; None means not given. A variable that
    is empty counts as not set. Raises ConfigError, whose `path` is that of the key (`$` for the file as a whole).
    """
    file, required = find(path, environ)
    return build(read(file, required), environ, overrides or {})


def find(path: Path | None, environ: Mapping[str, str]) -> tuple[Path, bool]:
    """The file to read, and whether it must exist."""
    named = path or (Path(environ["ACCORDION_CONFIG"]) if environ.get("ACCORDION_CONFIG") else None)
    return (named.expanduser(), True) if named else (DEFAULT_FILE, False)


def read(file: Path, required: bool) -> bytes:
    """The file's bytes; none where it need not exist and does not. Raises ConfigError."""
    try:
        return file.read_bytes()
    except FileNotFoundError:
        if not required:
            return b""
        raise ConfigError(f"file not found: {file}") from None
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from None


def build(data: bytes, environ: Mapping[str, str], overrides: Mapping[str, object]) -> Settings:
    """Checked settings from a file's bytes and what goes over them. Raises ConfigError."""
    try:
        text = data.decode("utf-8-sig")
        tree = read_tree(text, {**variables_of(text), **environ})
    except UnicodeDecodeError:
        raise ConfigError("the file is not encoded in UTF-8") from None
    take_over(tree)
    layers = [*_from_environment(environ), *_from_command_line(overrides)]
    for layer in layers:
        _put(tree, layer)
    _gather_options(tree)
    try:
        read_pipelines(tree)
        settings = convert(tree, Settings)
        check(settings)
    except ConfigError as error:
        sources = [layer.source for layer in layers if f"$.{layer.key}" == error.path]
        if not sources:
            raise
        raise ConfigError(f"{error.message.partition(': ')[2]} (from {sources[-1]})", path=error.path) from None
    return settings


def _from_environment(environ: Mapping[str, str]) -> list[_Layer]:
    layers = [_Layer(key, environ[name], name) for name, key in ENVIRONMENT.items() if environ.get(name)]
    for word in filter(None, (w.strip().lower() for w in environ.get("ACCORDION_LOG", "").split(","))):
        if word not in (*_LEVELS, *_FORMATS):
            allowed = ", ".join((*_LEVELS, *_FORMATS))
            raise ConfigError(
                f"expected one or more of {allowed}, separated by commas (from ACCORDION_LOG)", path="$.logging"
            )
        layers.append(_Layer("logging.level" if word in _LEVELS else "logging.format", word, "ACCORDION_LOG"))
    return layers


def _from_command_line(overrides: Mapping[str, object]) -> list[_Layer]:
    return [_Layer(key, value, "the command line") for key, value in overrides.items() if value is not None]


def _put(tree: dict[str, Any], layer: _Layer) -> None:
    *sections, last = layer.key.split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
        if not isinstance(tree, dict):
            return  # The file is wrong here; converting it says so.
    tree[last] = layer.value


def _gather_options(tree: dict[str, Any]) -> None:
    """Moves LiteLLM's own keys of an entry below `options`. One that is nearly a key of ours is an error."""
    models = tree.get("model_list")
    for index, model in enumerate(models if isinstance(models, list) else ()):
        params = model.get("litellm_params") if isinstance(model, dict) else None
        if not isinstance(params, dict):
            continue
        _gather(params, _PARAMS, f"$.model_list[{index}].litellm_params", 0.85)
        if isinstance(info := model.get("model_info"), dict):
            _gather(info, _INFO, f"$.model_list[{index}].model_info", 0.7)


def _gather(section: dict[str, Any], known: Collection[str], path: str, cutoff: float) -> None:
    options = {name: section.pop(name) for name in list(section) if name not in known}
    for name in options:
        if name not in _LITELLMS and (meant := difflib.get_close_matches(name, known, n=1, cutoff=cutoff)):
            raise ConfigError(f"unknown key; did you mean `{meant[0]}`?", path=step(path, name))
    if options:
        section["options"] = options
