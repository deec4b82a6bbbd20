"""Logging: readable lines or JSON lines on standard error, never content or credentials.

The first line of defence is that nobody logs either. The second stands here: what looks like a credential is replaced,
what is long is cut, and only plain values are taken from `extra`.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

import msgspec

_HANDLER = "accordion"
_LONGEST_MESSAGE = 2_000
_LONGEST_FIELD = 200
_MOST_LINES = 200
_HIDDEN = "***"

# What every record has, and what uvicorn adds for its own formatter; all else came by `extra`.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}

_NO_FAILURES = (
    "ASGI callable returned without completing response.",
    "ASGI callable returned without completing handshake.",
)

_CREDENTIALS: tuple[tuple[re.Pattern[str], str], ...] = (
    # A header or field that holds one, as text, in JSON, or in the repr of a dict or of a list of pairs.
    (
        re.compile(
            r"""(?ix) \b( (?:proxy-)?authorization | (?:set-)?cookie
                | [\w-]{0,40}(?:api[-_]?key|secret|passwo?r?d|(?:access|auth|refresh)[-_]?token)[\w-]* )
            (\\?["']?\s*[:=,]\s*(?:b(?=\\?["']))?\\?["']?) (?:(?:bearer|basic)\s+)? [^\s"',;&)}\]\\]+""",
        ),
        rf"\1\2{_HIDDEN}",
    ),
    (re.compile(r"\b([Bb]earer|BEARER|Basic)\s+[\w.~+/=:-]{8,}"), rf"\1 {_HIDDEN}"),
    # user:password@ in a URL
    (re.compile(r"(\w://)[^\s/@]*@"), rf"\1{_HIDDEN}@"),
    # The providers' own forms; a JSON Web Token last.
    (re.compile(r"\b(sk|pk|rk|gsk|xai|hf|pplx|ghp|gho|github_pat|AKIA|ASIA|AIza)([-_]?)[\w-]{12,}"), rf"\1\2{_HIDDEN}"),
    (re.compile(r"\beyJ[\w-]{6,}\.[\w-]+(?:\.[\w-]*)?"), _HIDDEN),
)


def configure(level: str, format: Literal["text", "json"], stream: TextIO | None = None) -> None:
    """Sets up logging for the whole process; may be called again to change it.

    `level` (debug, info, warning, error) is that of the proxy and of uvicorn; libraries speak from warning on, since
    what they say below that may quote requests. uvicorn is to be started with `log_config=None`.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.set_name(_HANDLER)
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    root = logging.getLogger()
    for old in [old for old in root.handlers if old.get_name() == _HANDLER]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("accordion").setLevel(level.upper())
    # Below info uvicorn logs heads and frames of WebSockets.
    logging.getLogger("uvicorn").setLevel(max(logging.INFO, logging.getLevelName(level.upper())))
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = name != "uvicorn.access"
    # Without a handler in reach, uvicorn does not even make its access lines.
    server = logging.getLogger("uvicorn.error")
    server.setLevel(logging.NOTSET)
    for old_filter in [old for old in server.filters if isinstance(old, CutReplies)]:
        server.removeFilter(old_filter)
    server.addFilter(CutReplies())


def redact(text: str) -> str:
    """`text` with all that looks like a credential replaced by `***`."""
    for pattern, replacement in _CREDENTIALS:
        text = pattern.sub(replacement, text)
    return text


class CutReplies(logging.Filter):
    """Keeps back three lines of uvicorn's: about a reply without an end, since that is how a reply is ended which the
    upstream cut; about a WebSocket that was not opened, since that is how one is refused; and its access line of
    WebSockets, which holds the query."""

    def filter(self, record: logging.LogRecord) -> bool:
        """False for these lines."""
        said = str(record.msg)
        return said not in _NO_FAILURES and '"WebSocket %s"' not in said


class TextFormatter(logging.Formatter):
    """A line a record: time (UTC), level, logger, request id, message, other fields. A traceback follows, indented."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        fields = _fields(record)
        request = fields.pop("request_id", None)
        line = f"{_time(record)} {record.levelname:<7} {record.name}" + (f" [{request}]" if request else "")
        line = " ".join([f"{line}: {_message(record)}", *(f"{name}={value}" for name, value in fields.items())])
        # A line break in a message would let its author write lines of their own.
        line = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in line)
        return line + "".join(f"\n    {part}" for part in _traceback(record).splitlines())


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, the fields given by `extra`, traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line = {"time": _time(record), "level": record.levelname.lower(), "logger": record.name}
        line |= {"message": _message(record)} | {
            name: value for name, value in _fields(record).items() if name not in line
        }
        if traceback := _traceback(record):
            line["traceback"] = traceback
        return msgspec.json.encode(line).decode()


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _message(record: logging.LogRecord) -> str:
    return _cut(_printable(record.getMessage()), _LONGEST_MESSAGE)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """What `extra` gave, plain values only."""
    given: Mapping[str, object] = {name: value for name, value in vars(record).items() if name not in _STANDARD}
    fields: dict[str, Any] = {}
    for name, value in given.items():
        if isinstance(value, str):
            # As a pair, so that the name tells a credential too.
            shown = redact(f"{name}={_printable(value)}").partition("=")[2]
            fields[name] = _cut(shown, _LONGEST_FIELD)
        elif isinstance(value, bool | int | float):
            fields[name] = value
    return fields


def _traceback(record: logging.LogRecord) -> str:
    """The traceback's last lines; its end says most."""
    if record.exc_info and not record.exc_text:
        record.exc_text = logging.Formatter().formatException(record.exc_info)
    lines = (record.exc_text or "").splitlines()[-_MOST_LINES:]
    return "\n".join(_cut(_printable(line), _LONGEST_MESSAGE) for line in lines)


def _printable(text: str) -> str:
    """`text` without what no stream can write."""
    return text.encode("utf-8", "backslashreplace").decode()


def _cut(text: str, longest: int) -> str:
    # Only what may be shown is searched: a message of megabytes must not hold up the process.
    shown = redact(text[: 4 * longest])
    if len(text) <= 4 * longest and len(shown) <= longest:
        return shown
    return f"{shown[:longest]}… ({len(text)} characters)"
