"""Notifies open pages of new exchanges, by server-sent events."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress

import msgspec

from accordion.model.errors import AccordionError
from accordion.model.records import Exchange

MAX_READERS = 64
"""Open pages per worker; each holds a connection."""
_TICK_SECONDS = 10.0
"""Exchanges of other workers are shown after so many seconds at most; it also keeps the connection open."""
_GATHER_SECONDS = 0.3
"""Seconds in which exchanges are gathered into one event."""
_RETRY = b"retry: 3000\n\n"
_TICK = b"event: tick\ndata: {}\n\n"


class TooManyReaders(AccordionError):
    """So many pages are open that another one is not updated by itself."""

    status = 503
    type = "unavailable"
    code = "too_many_pages"


class _Reader:
    """An open page of one tenant, and the sessions with exchanges that it was not told of."""

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.sessions: set[str] = set()
        self.has_news = asyncio.Event()
        self.is_replaced = False


class ExchangeFeed:
    """An observer (model/ports.py) that passes exchanges on to open pages."""

    def __init__(self) -> None:
        self._readers: set[_Reader] = set()

    def exchange(self, tenant: str, exchange: Exchange, traceparent: str) -> None:
        """Notifies the tenant's pages. Takes no time while none is open."""
        for reader in self._readers:
            if reader.tenant == tenant:
                reader.sessions.add(exchange.session)
                reader.has_news.set()

    def open(self, tenant: str, stopping: asyncio.Event | None) -> AsyncIterator[bytes]:
        """Returns the events for one page, until the server stops (`stopping`). Raises TooManyReaders.

        If all places are taken, a tenant with fewer pages than another gets one of that tenant's.
        """
        if len(self._readers) >= MAX_READERS:
            self._make_space(tenant)
        reader = _Reader(tenant)
        self._readers.add(reader)
        return self._stream(reader, stopping or asyncio.Event())

    def _make_space(self, tenant: str) -> None:
        """Ends the page of the tenant with the most pages. Raises TooManyReaders if that is `tenant`, or nearly."""
        counts = Counter(reader.tenant for reader in self._readers)
        largest, count = counts.most_common(1)[0]
        if count <= counts[tenant] + 1:
            raise TooManyReaders(f"{MAX_READERS} pages are open. This one is not updated by itself.")
        reader = next(reader for reader in self._readers if reader.tenant == largest)
        reader.is_replaced = True
        reader.has_news.set()
        self._readers.discard(reader)

    async def _stream(self, reader: _Reader, stopping: asyncio.Event) -> AsyncIterator[bytes]:
        stop = asyncio.ensure_future(stopping.wait())
        try:
            yield _RETRY
            while not stopping.is_set() and not reader.is_replaced:
                news = asyncio.ensure_future(reader.has_news.wait())
                try:
                    await asyncio.wait({news, stop}, timeout=_TICK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    news.cancel()
                if not reader.has_news.is_set():
                    yield _TICK
                    continue
                with suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.shield(stop), _GATHER_SECONDS)
                sessions, reader.sessions = sorted(reader.sessions), set()
                reader.has_news.clear()
                yield b"event: change\ndata: %s\n\n" % msgspec.json.encode({"sessions": sessions})
        finally:
            stop.cancel()
            self._readers.discard(reader)
