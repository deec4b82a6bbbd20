"""Logging: readable lines or JSON lines on standard error, without content and credentials.

No module should log either. As a second defence, the formatters here replace texts that look like credentials, cut long
texts, and use only plain values of `extra`.
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
_REDACTED = "***"

# The attributes of every record, and those that uvicorn adds for its own formatter. All others come from `extra`.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}

_CREDENTIALS: tuple[tuple[re.Pattern[str], str], ...] = (
    # A header or field that holds one, as text, in JSON, or in the repr of a dict or of a list of pairs.
    (
        re.compile(
            r"""(?ix) \b( (?:proxy-)?authorization | (?:set-)?cookie
                | [\w-]{0,40}(?:api[-_]?key|secret|passwo?r?d|(?:access|auth|refresh)[-_]?token)[\w-]* )
            (\\?["']?\s*[:=,]\s*(?:b(?=\\?["']))?\\?["']?) (?:(?:bearer|basic)\s+)? [^\s"',;&)}\]\\]+""",
        ),
        rf"\1\2{_REDACTED}",
    ),
    (re.compile(r"\b([Bb]earer|BEARER|Basic)\s+[\w.~+/=:-]{8,}"), rf"\1 {_REDACTED}"),
    # user:password@ in a URL
    (re.compile(r"(\w://)[^\s/@]*@"), rf"\1{_REDACTED}@"),
    # The providers' own forms; a JSON Web Token last.
    (
        re.compile(r"\b(sk|pk|rk|gsk|xai|hf|pplx|ghp|gho|github_pat|AKIA|ASIA|AIza)([-_]?)[\w-]{12,}"),
        rf"\1\2{_REDACTED}",
    ),
    (re.compile(r"\beyJ[\w-]{6,}\.[\w-]+(?:\.[\w-]*)?"), _REDACTED),
)


def configure(level: str, format: Literal["text", "json"], stream: TextIO | None = None) -> None:
    """Sets up logging for the whole process; may be called again to change it.

    `level` (debug, info, warning, error) is for the proxy and uvicorn. Other libraries log from warning on, since their
    lower levels may quote requests. uvicorn must be started with `log_config=None`.
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
    # Without a handler, uvicorn does not build its access lines.
    logging.getLogger("uvicorn.error").setLevel(logging.NOTSET)


def redact(text: str) -> str:
    """Returns `text` with `***` in place of everything that looks like a credential."""
    for pattern, replacement in _CREDENTIALS:
        text = pattern.sub(replacement, text)
    return text


class TextFormatter(logging.Formatter):
    """A line a record: time (UTC), level, logger, request id, message, other fields. A traceback follows, indented."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line."""
        fields = _format_fields(record)
        request = fields.pop("request_id", None)
        line = f"{_format_time(record)} {record.levelname:<7} {_format_logger(record)}" + (
            f" [{request}]" if request else ""
        )
        line = " ".join([f"{line}: {_format_message(record)}", *(f"{name}={value}" for name, value in fields.items())])
        # A line break in a message would let its author forge log lines.
        line = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in line)
        return line + "".join(f"\n    {part}" for part in _format_traceback(record).splitlines())


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, the fields given by `extra`, traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line."""
        line = {"time": _format_time(record), "level": record.levelname.lower(), "logger": _format_logger(record)}
        line |= {"message": _format_message(record)} | {
            name: value for name, value in _format_fields(record).items() if name not in line
        }
        if traceback := _format_traceback(record):
            line["traceback"] = traceback
        return msgspec.json.encode(line).decode()


def _format_logger(record: logging.LogRecord) -> str:
    # Uvicorn logs its start and its end with this logger, too, which are no errors.
    return "uvicorn" if record.name == "uvicorn.error" else record.name


def _format_time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _format_message(record: logging.LogRecord) -> str:
    return _truncate(_escape_unprintable(record.getMessage()), _LONGEST_MESSAGE)


def _format_fields(record: logging.LogRecord) -> dict[str, Any]:
    """Returns the plain values of `extra`."""
    extra: Mapping[str, object] = {name: value for name, value in vars(record).items() if name not in _STANDARD}
    fields: dict[str, Any] = {}
    for name, value in extra.items():
        if isinstance(value, str):
            # As a pair, since the name may show that the value is a credential.
            redacted = redact(f"{name}={_escape_unprintable(value)}").partition("=")[2]
            fields[name] = _truncate(redacted, _LONGEST_FIELD)
        elif isinstance(value, bool | int | float):
            fields[name] = value
    return fields


def _format_traceback(record: logging.LogRecord) -> str:
    """Returns the last lines of the traceback, which are the most useful ones."""
    if record.exc_info and not record.exc_text:
        record.exc_text = logging.Formatter().formatException(record.exc_info)
    lines = (record.exc_text or "").splitlines()[-_MOST_LINES:]
    return "\n".join(_truncate(_escape_unprintable(line), _LONGEST_MESSAGE) for line in lines)


def _escape_unprintable(text: str) -> str:
    """Returns `text` with escapes for characters that no stream can write."""
    return text.encode("utf-8", "backslashreplace").decode()


def _truncate(text: str, max_length: int) -> str:
    # Only the beginning is searched: a message of megabytes must not block the process.
    redacted = redact(text[: 4 * max_length])
    if len(text) <= 4 * max_length and len(redacted) <= max_length:
        return redacted
    return f"{redacted[:max_length]}… ({len(text)} characters)"
