"""Reads a file's YAML to plain values, and converts these to sections. Errors name the key, and contain no value.

Repeated keys are rejected, and references to the environment replaced. msgspec's errors become ConfigErrors with the
key's path.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec
import yaml

from accordion.config.value_types import decode
from accordion.config.yaml_errors import describe_yaml_error
from accordion.model.errors import ConfigError
from accordion.model.suggestions import describe_choices, find_nearest

# `$${` stands for `${` itself; a `${` that is none of these is an error rather than a text.
_REFERENCE = re.compile(r"\$(\$\{)|\$\{(?:([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\})?")
_LITELLM = "os.environ/"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLAIN_KEY = re.compile(r"[\w-]+")
_TIMESTAMP = "tag:yaml.org,2002:timestamp"
_AT = re.compile(r"(?P<what>.*?)(?: - at `(?P<at>[^`]*)`)?", re.DOTALL)
_KEY = re.compile(r"Object (contains unknown|missing required) field `(.*)`", re.DOTALL)
_ENUM_VALUE = re.compile(r"Invalid enum value '?(.*?)'?", re.DOTALL)
_GLUED_KEY = re.compile(r"([a-z_]+):[^\s/]")
_WORDS = {
    "object": "mapping",
    "array": "list",
    "str": "text",
    "int": "whole number",
    "float": "number",
    "bool": "true or false",
}

S = TypeVar("S", bound=msgspec.Struct)


class _NoValue(yaml.MarkedYAMLError):
    """A scalar that cannot be converted to a value."""


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # libyaml's is 8 times as fast
    """The safe loader, except that repeated keys are errors and dates stay texts."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise ConfigError(f"key `{key.value}` on line {line} is already set on line {seen[key.value]}")
            if isinstance(key, yaml.ScalarNode):
                seen[key.value] = line
        mapping: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return mapping

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        # A wrong tag, or a text that only resembles a number (`0x_`), raises the errors of Python's conversions.
        try:
            return super().construct_object(node, deep=deep)
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError):
            kind = node.tag.rpartition(":")[2]
            raise _NoValue(None, None, f"this is not of the kind `{kind}`", node.start_mark) from None


# `api_version: 2024-02-01` is meant as a text.
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_tree(text: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """Returns the file as nested plain values, without keys that have no value, so that these have their defaults.

    Raises ConfigError for invalid YAML (with line and column), a repeated key, a key that is no text, and a reference
    to a variable that is not set. No error contains a value.
    """
    try:
        tree = yaml.load(text, Loader=_Loader)  # noqa: S506 - a safe loader
        tree = _expand_node(tree, environ, "$")
    except yaml.MarkedYAMLError as error:
        raise ConfigError(describe_yaml_error(error, text)) from None
    except yaml.YAMLError:
        raise ConfigError("invalid YAML: the file contains a control character") from None
    except RecursionError:
        raise ConfigError("invalid YAML: nested too deeply, or an alias that contains itself") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        hint = "" if isinstance(tree, list) else _find_missing_space(tree)
        raise ConfigError(f"expected a mapping of sections such as `server:`{hint}")
    return tree


def expand(text: str, environ: Mapping[str, str], path: str) -> str:
    """Replaces `${NAME}`, `${NAME:-default}` and `os.environ/NAME` (only as the whole text) in `text`.

    As in a shell, the default also replaces an empty variable. Inserted values are not expanded again. Raises
    ConfigError with the key's `path` and the variable if it is not set or the reference is malformed.
    """
    if text.startswith(_LITELLM):
        name = text[len(_LITELLM) :]
        if not _NAME.fullmatch(name):
            raise ConfigError("`os.environ/` must be followed by the name of one variable", path=path)
        return _variable(name, environ, path)

    def expand_reference(match: re.Match[str]) -> str:
        literal, name, default = match.groups()
        if literal:
            return str(literal)
        if not name:
            raise ConfigError(
                "malformed reference: write ${NAME} or ${NAME:-default}, and $${ for a plain ${", path=path
            )
        if default is not None:
            return environ.get(name) or str(default)
        return _variable(name, environ, path)

    return _REFERENCE.sub(expand_reference, text)


def child_path(path: str, key: str) -> str:
    """Returns the path of a key below `path`."""
    return f"{path}.{key}" if _PLAIN_KEY.fullmatch(key) else f'{path}["{key}"]'


def _variable(name: str, environ: Mapping[str, str], path: str) -> str:
    try:
        return environ[name]
    except KeyError:
        raise ConfigError(f"environment variable {name} is not set", path=path) from None


def _expand_node(node: Any, environ: Mapping[str, str], path: str) -> Any:
    if isinstance(node, str):
        return expand(node, environ, path)
    if isinstance(node, list):
        return [_expand_node(entry, environ, f"{path}[{index}]") for index, entry in enumerate(node)]
    if not isinstance(node, dict):
        return node
    for key in node:
        if not isinstance(key, str):
            raise ConfigError(f"key `{key}` is not a text; put it in quotes", path=path)
    return {
        key: _expand_node(value, environ, child_path(path, key)) for key, value in node.items() if value is not None
    }


def _find_missing_space(value: object) -> str:
    """Returns a hint if a text that stands for a mapping begins like `port:8787`."""
    match = _GLUED_KEY.match(value) if isinstance(value, str) else None
    return f"; write a space after the colon of `{match[1]}`" if match else ""


# -- sections ---------------------------------------------------------------------------------------------------------


def convert(tree: Mapping[str, Any], kind: type[S], root: str = "$") -> S:
    """Converts `tree` to a `kind`. Raises ConfigError, whose path begins with `root`."""
    try:
        # Not strict, so that a variable's text may be a number.
        return msgspec.convert(tree, kind, strict=False, dec_hook=decode)
    except msgspec.ValidationError as error:
        at, message = _translate(str(error), tree, kind)
        raise ConfigError(message, path=root + at.removeprefix("$")) from None


def _translate(message: str, tree: Mapping[str, Any], kind: type[msgspec.Struct]) -> tuple[str, str]:
    """Returns the path and the message for one of msgspec's errors; for an unknown key, with the nearest known one."""
    match = _AT.fullmatch(message)
    what, at = (match["what"], match["at"] or "$") if match else (message, "$")
    path = _path_with_key(at, tree, kind)
    if key := _KEY.fullmatch(what):
        known = _known_keys(at, kind)
        path = child_path(path, key[2])
        if key[1].startswith("missing"):
            return path, "this key is required"
        nearest = find_nearest(key[2], known)
        rest = f"did you mean `{nearest}`?" if nearest else f"known here: {', '.join(known)}"
        return path, f"unknown key; {rest}"
    if value := _ENUM_VALUE.fullmatch(what):
        return path, f"expected {describe_choices(value[1], _choices(at, kind))}"
    what = re.sub(r"`(\w+)( \| null)?`", lambda kind: _WORDS.get(kind[1], kind[0]), what)
    return path, what[:1].lower() + what[1:] + _advise(what, at, tree)


def _advise(what: str, at: str, tree: Mapping[str, Any]) -> str:
    """Returns what to do where a list stands for a mapping, or the like; empty if that is not known."""
    if "expected mapping, got list" in what.lower():
        return "; remove the `-` before its keys"
    if "expected list, got mapping" in what.lower():
        return "; write `- ` before each entry"
    return _find_missing_space(_value_at(at, tree)) if "expected mapping, got text" in what.lower() else ""


def _value_at(at: str, tree: Mapping[str, Any]) -> object:
    """Returns the value at one of msgspec's paths; None if the path has a part that is no plain key."""
    value: Any = tree
    for name in at.split(".")[1:]:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _path_with_key(at: str, tree: Mapping[str, Any], kind: type[msgspec.Struct]) -> str:
    """Returns the path with the key's name in place of `[...]`, which msgspec writes for mappings with free keys."""
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
            msgspec.convert(lone, kind, strict=False, dec_hook=decode)
        except msgspec.ValidationError:
            return child_path(head, name) + rest
    return at


def _known_keys(at: str, kind: type[msgspec.Struct]) -> list[str]:
    return [field.name for field in msgspec.structs.fields(_struct_at(at, kind)) if field.name != "options"]


def _choices(at: str, kind: type[msgspec.Struct]) -> tuple[str, ...]:
    section, _, name = at.rpartition(".")
    fields = {field.name: field.type for field in msgspec.structs.fields(_struct_at(section, kind))}
    return tuple(_words_of(fields[name]))


def _words_of(kind: Any) -> Iterator[str]:
    """Yields the words that a Literal allows, also as a part of another type."""
    for part in get_args(kind):
        if get_origin(kind) is Literal:
            yield str(part)
        else:
            yield from _words_of(part)


def _struct_at(at: str, root: type[msgspec.Struct]) -> type[msgspec.Struct]:
    struct = root
    for name in re.findall(r"\.(\w+)", at):
        fields = {field.name: field.type for field in msgspec.structs.fields(struct)}
        struct = _struct_in(fields[name]) or struct
    return struct


def _struct_in(kind: Any) -> type[msgspec.Struct] | None:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind
    return next((struct for part in get_args(kind) if (struct := _struct_in(part))), None)
