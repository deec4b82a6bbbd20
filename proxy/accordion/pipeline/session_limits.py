"""Limits the size of each tenant's session records: rows, exchanges, prefix nodes and delegations.

All of these expire by age in the store. Records above the limit are removed in rounds, the longest unused sessions
first, by one worker at a time. A round reads a tenant's sessions twice and keeps none in memory: it sums up bytes by
the minute of last use, finds the minute before which sessions must go, and removes those.

A session's size is estimated from its rows, since reading all its records would cost more than they take.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Final

import msgspec

from accordion.accounting.ledger import MOST_EXCHANGES, exchanges_key, sessions_collection
from accordion.delegation.erasure import forget_delegations_of, forget_nodes
from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Key, KeyValueStore
from accordion.model.tenant import TenantScope
from accordion.sessions.tenants import TENANTS

ROUND_SECONDS: Final = 300.0
"""Seconds between two rounds."""

_ROUND_MARK_SECONDS: Final = 0.9 * ROUND_SECONDS
"""Seconds for which a finished round keeps other workers from the next one; less than the time between two."""
_TARGET_SHARE: Final = 0.9
"""Share of the limit down to which a round removes."""
_LEASE: Final = 900.0
"""Seconds after which another worker may take the lock."""
_MINUTE: Final = 60
_PAGE: Final = 500
"""Rows that are read, and sessions that are removed, at a time."""
_ROW, _EXCHANGE, _NODES = 150, 800, 1_000
"""Bytes of a row besides its value, of an exchange in the log, and of one exchange's nodes. Measured in SQLite."""


class _RequestCount(msgspec.Struct, frozen=True):
    requests: int = 0


class _SessionRow(msgspec.Struct):
    """The fields of a session's row that are needed here."""

    id: str
    updated: float = 0.0
    totals: _RequestCount = _RequestCount()


class _SessionSize(msgspec.Struct, frozen=True):
    """One session: its last use, its size in bytes, and the names of its rows."""

    id: str
    updated: float
    size: int
    names: tuple[str, ...]


_DECODER = msgspec.msgpack.Decoder(_SessionRow)


class SessionSizeLimit:
    """Keeps each tenant's sessions within `max_bytes`.

    `find_tenant` returns a tenant by its name.
    """

    def __init__(self, store: KeyValueStore, find_tenant: Callable[[str], TenantScope], *, max_bytes: int) -> None:
        self._store = store
        self._find_tenant = find_tenant
        self._max = max_bytes

    async def run_round(self) -> int | None:
        """Checks all tenants; returns how many sessions it removed.

        Returns None if another worker did this recently, or the store is unavailable. To be called about every
        `ROUND_SECONDS` seconds.
        """
        removed = 0
        with suppress(StoreUnavailable):
            async with self._store.lock(Key("", "session-bounds"), lease=_LEASE) as mine:
                round_mark = Key("", "session-bounds/round")
                if not mine or await self._store.get(round_mark) is not None:
                    return None
                await self._store.put(round_mark, b"1", ttl=_ROUND_MARK_SECONDS)
                async for name, _ in self._scan_rows(TENANTS):
                    removed += await self.sweep(self._find_tenant(name))
            return removed
        return None

    async def sweep(self, tenant: TenantScope) -> int:
        """Removes the longest unused sessions of a tenant that is above the limit; returns how many.

        Raises StoreUnavailable.
        """
        minutes = Counter[int]()
        async for each in self._scan_sessions(tenant):
            minutes[int(each.updated // _MINUTE)] += each.size
        total, last_removed = sum(minutes.values()), -1
        if total <= self._max:
            return 0
        # The newest minute always stays: it is in use.
        for minute in sorted(minutes)[:-1]:
            if total <= _TARGET_SHARE * self._max:
                break
            total, last_removed = total - minutes[minute], minute
        removed, page = 0, list[_SessionSize]()
        async for each in self._scan_sessions(tenant):
            if each.updated // _MINUTE <= last_removed:
                page.append(each)
            if len(page) >= _PAGE:
                removed, page = removed + await self._remove_sessions(tenant, page), []
        return removed + await self._remove_sessions(tenant, page)

    async def _remove_sessions(self, tenant: TenantScope, sessions: list[_SessionSize]) -> int:
        """Removes sessions with all their records."""
        if sessions:
            await forget_nodes(self._store, [each.id for each in sessions])
            logs = [exchanges_key(tenant, each.id) for each in sessions]
            rows = [Key(sessions_collection(tenant), name) for each in sessions for name in each.names]
            await self._store.delete([*logs, *rows])
            await forget_delegations_of(self._store, tenant, {each.id for each in sessions})
        return len(sessions)

    async def _scan_sessions(self, tenant: TenantScope) -> AsyncIterator[_SessionSize]:
        """Yields the sessions of a tenant. Each has a row from each worker, stored next to each other."""
        rows: list[tuple[str, int, _SessionRow]] = []
        async for name, value in self._scan_rows(sessions_collection(tenant)):
            try:
                row = _DECODER.decode(value)
            except msgspec.MsgspecError:
                continue
            if rows and rows[-1][2].id != row.id:
                yield self._measure_session(rows[0][2].id, rows)
                rows = []
            rows.append((name, len(value), row))
        if rows:
            yield self._measure_session(rows[0][2].id, rows)

    def _measure_session(self, session: str, rows: list[tuple[str, int, _SessionRow]]) -> _SessionSize:
        requests = sum(row.totals.requests for _, _, row in rows)
        size = sum(_ROW + len(name) + length for name, length, _ in rows)
        size += _NODES * requests + _EXCHANGE * (min(requests, MOST_EXCHANGES) if requests > 1 else 0)
        return _SessionSize(session, max(row.updated for _, _, row in rows), size, tuple(name for name, _, _ in rows))

    async def _scan_rows(self, collection: str) -> AsyncIterator[tuple[str, bytes]]:
        after = ""
        while page := await self._store.scan(collection, after=after, limit=_PAGE):
            for row in page:
                yield row
            after = page[-1][0]
