"""Reads requests for sessions: the filters of a list, its cursor, and a name. The API and the page share them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

import msgspec

from accordion.accounting.ledger import DAY
from accordion.model.errors import BadRequest
from accordion.pipeline.queries import SessionPosition
from accordion.pipeline.session_filter import SessionFilter
from accordion.sessions.session_names import MOST_CHARACTERS

MOST_TEXT: Final = 200
"""The longest text of a filter, in characters."""
_TIME = re.compile(r"[0-9]{1,15}(\.[0-9]{1,15})?", re.ASCII)
_ANSWERS: Final = {"": None, "true": True, "false": False}


class _Name(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request that names a session."""

    name: str


_NAME = msgspec.json.Decoder(_Name)


def read_filter(params: Mapping[str, str]) -> SessionFilter:
    """Reads `q`, `label`, `model`, `client`, `compacted`, `failed`, `since` and `until`. Raises BadRequest."""
    return SessionFilter(
        text=_read_text(params, "q"),
        label=_read_text(params, "label"),
        model=_read_text(params, "model"),
        client=_read_text(params, "client"),
        is_compacted=_read_answer(params, "compacted"),
        has_failed=_read_answer(params, "failed"),
        since=_read_day(params, "since"),
        until=until + DAY if (until := _read_day(params, "until")) else 0.0,
    )


def write_cursor(position: SessionPosition | None) -> str:
    """Returns the cursor of the page after this position; empty if there is none."""
    return f"{-position.before_now!r}:{position.session}" if position is not None else ""


def read_cursor(cursor: str, name: str) -> SessionPosition | None:
    """Reads a cursor; `name` is that of its parameter. Raises BadRequest."""
    updated, colon, session = cursor.partition(":")
    if not cursor:
        return None
    if not (colon and session and _TIME.fullmatch(updated)):
        raise BadRequest(f"{name} must be the value of `next` in the previous page.", param=name)
    return SessionPosition(-float(updated), session)


def decode_name(body: bytes) -> str:
    """Decodes the body of a request that names a session. Raises BadRequest."""
    try:
        return check_name(_NAME.decode(body).name)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f'Send {{"name": "…"}}. {error}.', param="name") from error


def check_name(name: str) -> str:
    """Returns a name without white space around it. Raises BadRequest for one that is no line of text."""
    name = name.strip()
    if len(name) > MOST_CHARACTERS or not name.isprintable():
        raise BadRequest(f"A name is one line of at most {MOST_CHARACTERS} characters.", param="name")
    return name


def _read_text(params: Mapping[str, str], name: str) -> str:
    text = params.get(name, "").strip()
    if len(text) > MOST_TEXT:
        raise BadRequest(f"{name} has at most {MOST_TEXT} characters.", param=name)
    return text


def _read_answer(params: Mapping[str, str], name: str) -> bool | None:
    answer = params.get(name, "")
    if answer not in _ANSWERS:
        raise BadRequest(f"{name} must be true or false.", param=name)
    return _ANSWERS[answer]


def _read_day(params: Mapping[str, str], name: str) -> float:
    """Returns the beginning of a day in UTC, in seconds since the epoch; 0.0 if none is named."""
    text = params.get(name, "")
    if not text:
        return 0.0
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise BadRequest(f"{name} must be a day, such as 2026-01-31.", param=name) from None
