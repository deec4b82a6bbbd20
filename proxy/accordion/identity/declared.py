"""What a request says of its delegation in our own words: headers, or the same names in the body's `metadata`.

Unlike the marks of other clients these are a promise: what is malformed is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from accordion.core.errors import BadRequest
from accordion.core.values import dataclass

DELEGATION, PARENT, AGENT = "x-accordion-delegation", "x-accordion-parent", "x-accordion-agent"
HEADERS = frozenset(name.encode() for name in (DELEGATION, PARENT, AGENT))
_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


@dataclass(frozen=True, slots=True)
class Declared:
    """A delegation by its client's own word. `param` and `parent_param` tell where the names stood."""

    delegation: str
    parent: str = ""
    param: str = DELEGATION
    parent_param: str = PARENT


def declarations(headers: Mapping[bytes, bytes], metadata: bytes | None) -> tuple[Declared | None, str]:
    """The delegation that a request declares, if any, and its agent's name. A header goes before a field. Raises
    BadRequest, with the name of the header or field, where one is malformed or names itself."""
    if HEADERS.isdisjoint(headers) and (not metadata or b"x-accordion-" not in metadata):
        return None, ""
    fields = _fields(metadata)
    node, param = _said(headers, fields, DELEGATION)
    parent, parent_param = _said(headers, fields, PARENT)
    name, name_param = _said(headers, fields, AGENT)
    for value, where in ((node, param), (parent, parent_param)):
        if value is not None and not _ID.fullmatch(value):
            raise BadRequest(f"{where} must have 1 to 128 characters, of letters, digits and _ . : -", param=where)
    if name is not None and not (0 < len(name) <= 128 and name.isprintable()):
        raise BadRequest(f"{name_param} must have 1 to 128 printable characters", param=name_param)
    if node is None:
        if parent is not None:
            raise BadRequest(f"{parent_param} needs {DELEGATION} as well, to name the child", param=parent_param)
        return None, name or ""
    if node == parent:
        raise BadRequest(f"{parent_param} names the delegation itself", param=parent_param)
    return Declared(node, parent or "", param, parent_param), name or ""


def printable(raw: bytes) -> str:
    """A name that another client gave; empty where it is no name."""
    text = raw.decode("utf-8", "replace").strip() if raw else ""
    return text if len(text) <= 128 and text.isprintable() else ""


def _fields(metadata: bytes | None) -> Mapping[str, object]:
    try:
        given = msgspec.json.decode(metadata or b"{}")
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return {}
    return given if isinstance(given, dict) else {}


def _said(headers: Mapping[bytes, bytes], fields: Mapping[str, object], name: str) -> tuple[str | None, str]:
    """What was said under a name, and where; None where nothing was."""
    raw = headers.get(name.encode())
    if raw is not None:
        return raw.decode("utf-8", "replace"), name
    value = fields.get(name) if fields else None
    # What is no text is no name either: it is refused as such.
    return (None, name) if value is None else (value if isinstance(value, str) else "", f"metadata.{name}")
