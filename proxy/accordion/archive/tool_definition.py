"""Defines the tool that reads archived artifacts, and parses the arguments of its calls."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, Final

import msgspec

from accordion.archive.reader import ReadRequest
from accordion.model.artifact_tool import ToolDefinition

NAME: Final = "read_artifact"
OTHER_NAME: Final = "accordion_read_artifact"
"""The name where the client has a tool of the first name."""

_DESCRIPTION: Final = (
    "Reads what was moved out of this conversation's window to save room: a tool result or a stretch of earlier "
    'messages, kept whole under an id that begins with "art_" and stands in its place. Use it before you repeat a '
    "call or rely on a detail that you no longer see. Without other arguments it gives all of what is short, else the "
    "beginning. Each answer says what of how much it shows and how to get the next part. In other tools' arguments, "
    '{"$artifact": "art_…", "path": "…"} (path optional) in place of a string is filled in for you, so that you need '
    "not quote."
)
_OTHER_NAME_NOTE: Final = f" It is meant wherever `{NAME}` is named together with such an id."
_SCHEMA: Final = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "offset": {"type": "integer", "description": "first line, from 1; negative: from the end"},
        "limit": {"type": "integer", "description": "most lines or matches"},
        "pattern": {"type": "string", "description": "RE2 regex: matching lines with numbers, and how many"},
        "path": {"type": "string", "description": "JSONPath into a JSON result, e.g. $.items[0].name"},
        "diff_with": {"type": "string", "description": "id of another read of the same thing: what changed"},
    },
    "required": ["id"],
    "additionalProperties": False,
}
_OFFER: Final = ToolDefinition(NAME, _DESCRIPTION, msgspec.json.encode(_SCHEMA))
_ID = re.compile(r"art_[0-9a-f]{12}(?![0-9a-f])", re.IGNORECASE)
_NUMBER = re.compile(r"\s*(-?\d{1,12})(?:\.0*)?\s*(?:lines?)?\s*\Z", re.IGNORECASE)
_MAX_NUMBER: Final = 1_000_000
_NULL_TEXTS: Final = ("null", "none", "undefined")
_MAX_ARGUMENTS: Final = 20_000
"""The most characters of arguments that are parsed."""
_ALIASES: Final = {
    "id": ("id", "artifact_id", "artifact", "$artifact", "ref", "reference"),
    "offset": ("offset", "start", "start_line", "line"),
    "limit": ("limit", "max_lines", "lines", "count"),
    "pattern": ("pattern", "regex", "query", "search"),
    "path": ("path", "json_path", "jsonpath"),
    "diff_with": ("diff_with", "diff", "compare_with"),
}
"""The names that models use for the arguments."""


def define_tool(used_names: Collection[str]) -> ToolDefinition:
    """Returns the tool under a name that is not in `used_names`. The same names give the same definition."""
    if NAME not in used_names:
        return _OFFER
    name, number = OTHER_NAME, 1
    while name in used_names:
        number += 1
        name = f"{OTHER_NAME}_{number}"
    return ToolDefinition(name, _DESCRIPTION + _OTHER_NAME_NOTE, _OFFER.schema)


def parse_arguments(arguments: str) -> ReadRequest:
    """Parses the arguments of a call; the id is empty where none is found.

    Never raises: numbers may be strings, an id may be within a sentence, fields may be null, unknown or missing, and
    the arguments may not be JSON.
    """
    fields = _fields(arguments)
    ids = [find_artifact_id(_text(fields, "id")), find_artifact_id(_text(fields, "diff_with"))]
    if not ids[0]:
        # The id has an unknown field name, or the arguments are not JSON.
        ids[0] = next((artifact_id for artifact_id in find_artifact_ids(arguments) if artifact_id != ids[1]), "")
    return ReadRequest(
        ids[0],
        max(-_MAX_NUMBER * 1_000, min(_MAX_NUMBER * 1_000, _number(fields, "offset"))),
        max(0, min(_MAX_NUMBER, _number(fields, "limit"))),
        _text(fields, "pattern"),
        _text(fields, "path").strip(),
        ids[1],
    )


def find_artifact_id(text: str) -> str:
    """Returns the first artifact id in a text, in lower case; empty where there is none."""
    return next(iter(find_artifact_ids(text)), "")


def find_artifact_ids(text: str) -> list[str]:
    """Returns the artifact ids in a text, in order and in lower case."""
    return [artifact_id.lower() for artifact_id in _ID.findall(text[:_MAX_ARGUMENTS])]


def _fields(arguments: str) -> dict[str, Any]:
    value: Any = None
    try:
        value = msgspec.json.decode(arguments[:_MAX_ARGUMENTS])
        if isinstance(value, str):
            # Encoded twice, or an id alone.
            value = msgspec.json.decode(value) if value.lstrip()[:1] == "{" else {"id": value}
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {}


def _text(fields: dict[str, Any], name: str) -> str:
    for each in _ALIASES[name]:
        value = fields.get(each)
        if isinstance(value, str) and value.strip():
            return "" if name != "pattern" and value.strip().lower() in _NULL_TEXTS else value
        if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str):
            return value[0]
        if isinstance(value, dict) and isinstance(value.get("$artifact"), str):
            return str(value["$artifact"])
    return ""


def _number(fields: dict[str, Any], name: str) -> int:
    for each in _ALIASES[name]:
        value = fields.get(each)
        if isinstance(value, bool) or value is None:
            continue
        if isinstance(value, int):
            return value
        if isinstance(value, float) and abs(value) < _MAX_NUMBER * 1_000:
            return int(value)
        if isinstance(value, str) and (match := _NUMBER.match(value.replace(",", ""))):
            return int(match[1])
    return 0
