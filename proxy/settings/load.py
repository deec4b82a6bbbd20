"""From a file, the environment and the command line to checked settings."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import msgspec

from proxy.core.errors import ConfigError
from proxy.settings.checks import check
from proxy.settings.kinds import decode
from proxy.settings.text import read_tree, step
from proxy.settings.values import LitellmParams, Logging, Settings

ENVIRONMENT: Mapping[str, str] = {
    "ACCORDION_HOST": "server.host",
    "ACCORDION_PORT": "server.port",
    "ACCORDION_STORE": "store.url",
    "ACCORDION_OPENAI_BASE_URL": "upstreams.openai.base_url",
    "ACCORDION_ANTHROPIC_BASE_URL": "upstreams.anthropic.base_url",
}
"""Variables that stand for one key each. ACCORDION_CONFIG names the file, ACCORDION_LOG sets `logging`."""

DEFAULT_FILE = Path("config.yaml")

_AT = re.compile(r"(?P<what>.*?)(?: - at `(?P<at>[^`]*)`)?", re.DOTALL)
_KEY = re.compile(r"Object (contains unknown|missing required) field `(.*)`", re.DOTALL)
_WORDS = {"object": "mapping", "array": "list", "str": "text", "int": "whole number", "float": "number"}
_LEVELS, _FORMATS = (get_args(kind.type) for kind in msgspec.structs.fields(Logging))
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
        raise ConfigError(f"there is no file {file}") from None
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None


def build(data: bytes, environ: Mapping[str, str], overrides: Mapping[str, object]) -> Settings:
    """Checked settings from a file's bytes and what goes over them. Raises ConfigError."""
    try:
        tree = read_tree(data.decode("utf-8-sig"), environ)
    except UnicodeDecodeError:
        raise ConfigError("the file is not UTF-8") from None
    layers = [*_from_environment(environ), *_from_command_line(overrides)]
    for layer in layers:
        _put(tree, layer)
    _gather_options(tree)
    try:
        settings = _convert(tree)
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
                f"expected some of {allowed}, with a comma between (from ACCORDION_LOG)", path="$.logging"
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
    """Moves LiteLLM's own keys of `litellm_params` below `options`. One that is nearly a key of ours is an error."""
    models = tree.get("model_list")
    for index, model in enumerate(models if isinstance(models, list) else ()):
        params = model.get("litellm_params") if isinstance(model, dict) else None
        if not isinstance(params, dict):
            continue
        options = {name: params.pop(name) for name in list(params) if name not in _PARAMS}
        for name in options:
            if meant := difflib.get_close_matches(name, _PARAMS, n=1, cutoff=0.85):
                path = step(f"$.model_list[{index}].litellm_params", name)
                raise ConfigError(f"unknown key; did you mean `{meant[0]}`?", path=path)
        if options:
            params["options"] = options


def _convert(tree: dict[str, Any]) -> Settings:
    try:
        # Not strict, so that the text which a variable gives may stand for a number.
        return msgspec.convert(tree, Settings, strict=False, dec_hook=decode)
    except msgspec.ValidationError as error:
        raise _translate(str(error), tree) from None


def _translate(message: str, tree: dict[str, Any]) -> ConfigError:
    """msgspec's words as ours: the key's own path, the nearest known key, and never a value."""
    match = _AT.fullmatch(message)
    what, at = (match["what"], match["at"] or "$") if match else (message, "$")
    path = _named(at, tree)
    if key := _KEY.fullmatch(what):
        known = _known_keys(at)
        path = step(path, key[2])
        if key[1].startswith("missing"):
            return ConfigError("this key is required", path=path)
        meant = difflib.get_close_matches(key[2], known, n=1)
        rest = f"did you mean `{meant[0]}`?" if meant else f"known here: {', '.join(known)}"
        return ConfigError(f"unknown key; {rest}", path=path)
    if what.startswith("Invalid enum value"):
        return ConfigError(f"expected one of {', '.join(_choices(at))}", path=path)
    what = re.sub(r"`(\w+)( \| null)?`", lambda kind: _WORDS.get(kind[1], kind[1]), what)
    return ConfigError(what[:1].lower() + what[1:], path=path)


def _named(at: str, tree: dict[str, Any]) -> str:
    """msgspec writes `[...]` for the key of a mapping with free keys; the path with that key's name in its place."""
    head, mark, rest = at.partition("[...]")
    if not mark:
        return at
    sections = head.split(".")[1:]
    node: Any = tree
    for section in sections:
        node = node[section]
    for name, value in node.items():
        lone: Any = {name: value}
        for section in reversed(sections):
            lone = {section: lone}
        try:
            msgspec.convert(lone, Settings, strict=False, dec_hook=decode)
        except msgspec.ValidationError:
            return step(head, name) + rest
    return at


def _known_keys(at: str) -> list[str]:
    return [field.name for field in msgspec.structs.fields(_struct_at(at)) if field.name != "options"]


def _choices(at: str) -> tuple[str, ...]:
    section, _, name = at.rpartition(".")
    fields = {field.name: field.type for field in msgspec.structs.fields(_struct_at(section))}
    return tuple(map(str, get_args(fields[name])))


def _struct_at(at: str) -> type[msgspec.Struct]:
    found: type[msgspec.Struct] = Settings
    for name in re.findall(r"\.(\w+)", at):
        fields = {field.name: field.type for field in msgspec.structs.fields(found)}
        found = _struct_in(fields[name]) or found
    return found


def _struct_in(kind: Any) -> type[msgspec.Struct] | None:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind
    return next((found for part in get_args(kind) if (found := _struct_in(part))), None)
