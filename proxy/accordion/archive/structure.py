"""Reads JSON texts: selects the values at a path, and describes the structure."""

from __future__ import annotations

from itertools import islice
from typing import Any, Final

import msgspec

from accordion.archive.paths import InvalidPath, select
from accordion.archive.references import describe, describe_size

DOCUMENT_MOST: Final = 4_000_000
"""The most characters of a text that can be read by JSON path."""
_VALUES: Final = 2_000
_KEYS: Final = 20


def select_text(text: str, path: str) -> tuple[str, str]:
    """Returns the values at a JSON path as text, and a phrase that says how many were found.

    A string is returned as it is, any other value as indented JSON, several values one a line with their paths. Raises
    InvalidPath.
    """
    selection = select(parse_document(text), path, _VALUES)
    values, complete = selection.values, selection.complete
    if not values:
        shape = outline(text)
        raise InvalidPath(f"Nothing stands at {path[:200]}." + (f" {shape}" if shape else ""))
    if len(values) == 1 and complete:
        value_path, value = values[0]
        return render_value(value), f"the value at {value_path}"
    more = "" if complete else " or more"
    return "\n".join(f"{value_path}: {_compact(value)}" for value_path, value in values), (
        f"{len(values):,}{more} values at {path[:200]}"
    )


def value_at(text: str, path: str) -> str:
    """Returns the value at a path for insertion into another text.

    A string is returned as it is, any other value as JSON on one line, several values as a list. Raises InvalidPath.
    """
    selection = select(parse_document(text), path, _VALUES)
    if not selection.values or not selection.complete:
        raise InvalidPath("nothing stands there" if not selection.values else "too much stands there")
    values = [value for _, value in selection.values]
    value = values[0] if len(values) == 1 else values
    return value if isinstance(value, str) else _compact(value)


def parse_document(text: str) -> Any:
    """Parses a text as JSON; one object or array a line becomes a list. Raises InvalidPath."""
    if len(text) > DOCUMENT_MOST:
        raise InvalidPath("It is too large to be read by path; use offset or pattern.")
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        pass
    lines = [line for line in text.split("\n") if line.strip()]
    if len(lines) > 1 and all(line.lstrip()[:1] in ("{", "[") for line in lines):
        try:
            return [msgspec.json.decode(line) for line in lines]
        except (ValueError, RecursionError):
            pass
    raise InvalidPath("It is not JSON, so there is no path into it; use offset or pattern.")


def render_value(value: Any) -> str:
    """Renders a JSON value for reading: a string as it is, any other value as indented JSON."""
    if isinstance(value, str):
        return value
    return msgspec.json.format(msgspec.json.encode(value), indent=1).decode()


def outline(text: str) -> str:
    """Describes a text's structure in one or two lines: the fields of JSON, else characters and lines."""
    description = describe(text)
    if not description:
        return f"It has {describe_size(text)}."
    value = msgspec.json.decode(text)
    inner: Any = value
    subject = "It"
    if isinstance(value, list):
        inner, subject = value[0] if value else None, "Its first entry"
    if isinstance(inner, dict) and inner:
        kinds = ", ".join(f"{key[:60]} ({_kind(entry)})" for key, entry in islice(inner.items(), _KEYS))
        more = ", …" if len(inner) > _KEYS else ""
        description += f" {subject} has {kinds}{more}."
    return description


def _compact(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _kind(value: Any) -> str:
    if isinstance(value, dict):
        return f"object of {len(value):,}"
    if isinstance(value, list):
        return f"array of {len(value):,}"
    if isinstance(value, str):
        return f"text of {len(value):,}" if len(value) > 80 else "text"
    return "null" if value is None else "true or false" if isinstance(value, bool) else "number"
