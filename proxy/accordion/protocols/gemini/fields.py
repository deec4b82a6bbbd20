"""The names of fields in Gemini's JSON: protobuf's JSON form accepts each in lower camel case and in snake case."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, TypeVar

from accordion.protocols.json_values import as_mapping

Value = TypeVar("Value")

_CAPITAL = re.compile("[A-Z]")
_UNDERSCORE = re.compile("_([a-z0-9])")


@lru_cache(256)
def snake_case(name: str) -> str:
    """Returns the other spelling of a name in lower camel case."""
    return _CAPITAL.sub(lambda match: "_" + match[0].lower(), name)


@lru_cache(256)
def camel_case(name: str) -> str:
    """Returns a name in lower camel case, whatever its spelling."""
    return _UNDERSCORE.sub(lambda match: match[1].upper(), name) if "_" in name else name


def spelling(value: Mapping[str, Any], name: str) -> str:
    """Returns the spelling of a name (given in lower camel case) that an object has; `name` itself if it has none."""
    other = snake_case(name)
    return other if other in value and name not in value else name


def get(value: Mapping[str, Value], name: str) -> Value | None:
    """Returns the field of this name (given in lower camel case), in either spelling; None where there is none."""
    found = value.get(name)
    return value.get(snake_case(name)) if found is None else found


def dig(value: Any, *names: str) -> Any:
    """Returns the field at the end of a path of names within objects; None where it is not there."""
    for name in names:
        value = get(as_mapping(value), name)
    return value


def both_spellings(names: Iterable[str]) -> tuple[str, ...]:
    """Returns each name in both spellings."""
    return tuple(dict.fromkeys(each for name in names for each in (name, snake_case(name))))
