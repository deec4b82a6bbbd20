"""Remembers the latest warnings and errors of the log, so that the page can show them."""

from __future__ import annotations

import logging
from collections import deque
from typing import Final

import msgspec

from accordion.server.logging_setup import redact

MOST_LINES: Final = 50
_LONGEST: Final = 500


class LogLine(msgspec.Struct, frozen=True):
    """A line of the log, without its fields, traceback and credentials. `at` is in seconds since the epoch."""

    at: float
    level: str
    text: str


class RecentLog(logging.Handler):
    """A handler of the proxy's logger that remembers the latest lines from WARNING on, in the memory of this worker."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._lines: deque[LogLine] = deque(maxlen=MOST_LINES)

    def emit(self, record: logging.LogRecord) -> None:
        """Remembers a line."""
        try:
            text = redact(record.getMessage()[: 4 * _LONGEST])
        except Exception:
            self.handleError(record)
            return
        self._lines.appendleft(LogLine(record.created, record.levelname.lower(), text[:_LONGEST]))

    @property
    def lines(self) -> list[LogLine]:
        """The latest lines, the latest first."""
        return list(self._lines)
