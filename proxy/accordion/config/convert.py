"""Converts plain values to sections, and msgspec's errors to ConfigErrors with the key's path and without values."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any, TypeVar, get_args

import msgspec

from accordion.config.value_types import decode
from accordion.config.yaml_text import child_path
from accordion.model.errors import ConfigError

_AT = re.compile(r"(?P<what>.*?)(?: - at `(?P<at>[^`]*)`)?", re.DOTALL)
_KEY = re.compile(r"Object (contains unknown|missing required) field `(.*)`", re.DOTALL)
_WORDS = {"object": "mapping", "array": "list", "str": "text", "int": "whole number", "float": "number"}

S = TypeVar("S", bound=msgspec.Struct)


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
        meant = difflib.get_close_matches(key[2], known, n=1)
        rest = f"did you mean `{meant[0]}`?" if meant else f"known here: {', '.join(known)}"
        return path, f"unknown key; {rest}"
    if what.startswith("Invalid enum value"):
        return path, f"expected one of {', '.join(_choices(at, kind))}"
    what = re.sub(r"`(\w+)( \| null)?`", lambda kind: _WORDS.get(kind[1], kind[1]), what)
    return path, what[:1].lower() + what[1:]


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
    return tuple(map(str, get_args(fields[name])))


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
