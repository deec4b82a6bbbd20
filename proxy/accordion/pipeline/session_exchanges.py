"""Reads the exchanges of a session: pages of them for lists, and a point of each for charts.

The ledger (accounting/ledger.py) appends each exchange to the session's log. An exchange is known by its position in
the log, which never changes. The first exchange that a worker records is in the session's row until a second one
follows. So a session may have a few exchanges without a position; a page contains those of its time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Final

import msgspec

from accordion.accounting.ledger import MOST_EXCHANGES, exchanges_key
from accordion.model.budget import Utilization
from accordion.model.cache import BoundedCache
from accordion.model.ports import Key, KeyValueStore
from accordion.model.records import Exchange, Session
from accordion.model.stored_values import decode_all, decode_stored
from accordion.model.tenant import TenantScope

NO_POSITION: Final = -1
_PAGE: Final = 1_000
"""Entries that are read at a time. To decode them delays other requests by about a millisecond."""
_POINT_SIZE: Final = 200
"""Bytes of a point in memory."""


class NumberedExchange(msgspec.Struct, frozen=True):
    """An exchange with its position in the session's log; NO_POSITION if it is not in the log."""

    position: int
    exchange: Exchange


class ExchangePage(msgspec.Struct, frozen=True):
    """Some exchanges of a session, newest first. `older` is the cursor of the next page; None at the end."""

    exchanges: tuple[NumberedExchange, ...]
    older: int | None


class _OutcomeHead(msgspec.Struct, frozen=True):
    state: str
    id: str = ""
    saved: int = 0
    before: int = 0
    after: int = 0
    kind: str = ""
    cause: str = ""
    reason: str = ""
    writer: str = ""


class _ExchangeHead(msgspec.Struct, frozen=True):
    """The fields of an exchange that a point has; decoded in a tenth of the time."""

    at: float
    status: int
    utilization: Utilization
    error: str = ""
    compaction: _OutcomeHead | None = None


class RequestPoint(msgspec.Struct, frozen=True, gc=False):
    """The figures of one exchange for charts and lists of compactions, in tokens.

    `came` is the size of the client's list, `sent` that of the forwarded one; both are 0 for a request that was not
    measured. `compaction` is the id of the compaction that was made for it. The fields behind it are those of its
    outcome.
    """

    position: int
    at: float
    came: int
    sent: int
    window: int
    has_failed: bool
    compaction: str = ""
    before: int = 0
    after: int = 0
    kind: str = ""
    cause: str = ""
    reason: str = ""
    writer: str = ""


_EXCHANGE = msgspec.msgpack.Decoder(Exchange)
_HEAD = msgspec.msgpack.Decoder(_ExchangeHead)


async def read_page(
    store: KeyValueStore, tenant: TenantScope, rows: Sequence[Session], before: int | None, limit: int
) -> ExchangePage:
    """Returns the newest exchanges of a session, or the newest of those before the position `before`.

    `rows` are the session's rows, one of each worker. Raises StoreUnavailable.
    """
    key = exchanges_key(tenant, rows[0].id)
    if before is None:
        log, newer = await store.read(key, start=-limit), None
    else:
        start = max(0, before - limit)
        log = [entry for entry in await store.read(key, start, before - start + 1) if entry[0] <= before]
        newer = decode_stored(_EXCHANGE, log.pop()[1]) if log and log[-1][0] == before else None
    numbered = [
        NumberedExchange(position, exchange)
        for position, value in log
        if (exchange := decode_stored(_EXCHANGE, value)) is not None
    ]
    is_oldest = len(log) < limit or log[0][0] == 0
    unlogged = decode_all(_EXCHANGE, (row.only_exchange for row in rows if row.only_exchange))
    between = [
        NumberedExchange(NO_POSITION, exchange)
        for exchange in unlogged
        if (before is None or (newer is not None and exchange.at < newer.at))
        and (is_oldest or not numbered or exchange.at >= numbered[0].exchange.at)
    ]
    exchanges = sorted([*between, *numbered], key=lambda each: each.exchange.at)
    return ExchangePage(tuple(reversed(exchanges)), None if is_oldest else log[0][0])


async def scan_exchanges(
    store: KeyValueStore, tenant: TenantScope, rows: Sequence[Session]
) -> AsyncIterator[tuple[Exchange, ...]]:
    """Yields all exchanges of a session, oldest first, in parts. Raises StoreUnavailable."""
    unlogged = tuple(decode_all(_EXCHANGE, (row.only_exchange for row in rows if row.only_exchange)))
    if unlogged:
        yield unlogged
    key, start = exchanges_key(tenant, rows[0].id), 0
    while log := await store.read(key, start, _PAGE):
        yield tuple(decode_all(_EXCHANGE, (value for _, value in log)))
        start = log[-1][0] + 1


class RequestPoints:
    """The points of all requests of sessions, oldest first.

    Remembers them within `capacity` bytes, so that an open page of a long session reads only its new requests.
    """

    def __init__(self, capacity: int) -> None:
        self._known = BoundedCache[Key, tuple[bytes, tuple[RequestPoint, ...]]](
            capacity, lambda key, known: len(key.path) + len(known[0]) + _POINT_SIZE * len(known[1])
        )
        """By log: the last entry that was read, and the points up to it."""

    async def read(self, store: KeyValueStore, tenant: TenantScope, rows: Sequence[Session]) -> list[RequestPoint]:
        """Returns the points of a session, given its rows. Raises StoreUnavailable."""
        unlogged = _build_points((NO_POSITION, row.only_exchange) for row in rows if row.only_exchange)
        logged = await self._read_log(store, exchanges_key(tenant, rows[0].id))
        return sorted([*unlogged, *logged], key=lambda point: point.at)

    async def _read_log(self, store: KeyValueStore, key: Key) -> tuple[RequestPoint, ...]:
        last, points = self._known.get(key) or (b"", ())
        if points and await store.read(key, points[-1].position, 1) != [(points[-1].position, last)]:
            # The session was erased, and its log began anew.
            self._known.pop(key)
            points = ()
        start, new = points[-1].position + 1 if points else 0, list[RequestPoint]()
        while log := await store.read(key, start, _PAGE):
            new += _build_points(log)
            start, last = log[-1][0] + 1, log[-1][1]
        if new:
            points = (*points, *new)[-MOST_EXCHANGES:]
            self._known[key] = last, points
        return points


def _build_points(log: Iterable[tuple[int, bytes]]) -> list[RequestPoint]:
    heads = ((position, decode_stored(_HEAD, value)) for position, value in log)
    return [_build_point(position, head) for position, head in heads if head is not None]


def _build_point(position: int, head: _ExchangeHead) -> RequestPoint:
    used, outcome = head.utilization, head.compaction
    has_failed = head.status >= 400 or bool(head.error)
    if outcome is None:
        return RequestPoint(position, head.at, used.tokens, used.tokens, used.window, has_failed)
    came = used.tokens + outcome.saved
    if outcome.state != "compacted":
        return RequestPoint(position, head.at, came, used.tokens, used.window, has_failed)
    return RequestPoint(
        position, head.at, came, used.tokens, used.window, has_failed,
        outcome.id, outcome.before, outcome.after, outcome.kind, outcome.cause, outcome.reason, outcome.writer,
    )  # fmt: skip
