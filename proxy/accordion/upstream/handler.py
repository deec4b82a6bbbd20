"""aiohttp's side of a connection, with one timer for all that is waited for on it."""

from __future__ import annotations

import asyncio

from aiohttp.client_proto import ResponseHandler

from accordion.core.deadlines import Deadline


class Handler(ResponseHandler):
    """aiohttp sets a new timer with each piece that arrives, and drops the last one. The limit is the same here."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._silence = Deadline(loop, self._on_read_timeout)

    def _reschedule_timeout(self) -> None:
        if self._read_timeout:
            self._silence.put_off(self._read_timeout)
        else:
            self._silence.lift()

    def _drop_timeout(self) -> None:
        self._silence.lift()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Nothing is waited for any more."""
        super().connection_lost(exc)
        self._silence.close()
