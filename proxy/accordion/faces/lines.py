"""Exchanges that failed, as lines of the log: a request id that a client was told leads somewhere."""

from __future__ import annotations

import logging

from accordion.core.records import Exchange

_log = logging.getLogger("accordion")

# Who went away is not told anything, and nothing went wrong.
_QUIET = ("", "client_disconnected")


class Lines:
    """An Observer that says which requests failed: a warning where the way to the provider did, else for information.
    Never what was said, by either side."""

    def exchange(self, tenant: str, exchange: Exchange, traceparent: str) -> None:
        """Writes a line where an exchange failed."""
        error = exchange.error
        if error in _QUIET:
            return
        told = {
            "request_id": exchange.request_id,
            "error": error,
            "status": exchange.status,
            "upstream": exchange.upstream,
            "session": exchange.session,
            "seconds": round(exchange.duration, 3),
        }
        level = logging.WARNING if error.startswith("upstream_") else logging.INFO
        _log.log(level, "a request failed", extra={name: value for name, value in told.items() if value != ""})
