"""How full is every window, what did it cost, what happened last: one tenant's at a time.

The API and the CLI ask here; what they show is what the journal recorded, of every worker. It is also forgotten here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import groupby

import msgspec

from proxy.accounting.journal import ModelRow, exchanges_of, models_of, sessions_of
from proxy.archive.custody import Custody, Erased
from proxy.compaction.wishes import Wishes
from proxy.core.budget import Limits, Thresholds
from proxy.core.errors import StoreUnavailable
from proxy.core.ports import Key, Outbox, Store, Windows
from proxy.core.records import Exchange, Session, Totals
from proxy.identity.tenants import Caller

_SESSION = msgspec.msgpack.Decoder(Session)
_EXCHANGE = msgspec.msgpack.Decoder(Exchange)
_MODEL = msgspec.msgpack.Decoder(ModelRow)


@dataclass(frozen=True, slots=True)
class ModelView:
    """One model as one tenant used it, with its limits as separate figures."""

    row: ModelRow
    limits: Limits
    usable_input: int
    window_source: str


@dataclass(frozen=True, slots=True)
class SessionView:
    """One session with its last exchanges, oldest first."""

    session: Session
    limits: Limits
    exchanges: tuple[Exchange, ...]


@dataclass(frozen=True, slots=True)
class Observe:
    """Answers from the store, this worker's latest writes included. Every method may raise StoreUnavailable."""

    store: Store
    outbox: Outbox
    windows: Windows
    thresholds: dict[str, Thresholds]
    mode: Callable[[str], str] = lambda model: "auto"
    """Whether requests for a model are folded: `auto`, `observe` or `off`."""

    async def models(self, tenant: str) -> list[ModelView]:
        """Every model that the tenant used, the latest first."""
        await self._flush()
        rows = [_MODEL.decode(value) for _, value in await self._all(models_of(tenant))]
        rows.sort(key=lambda row: (row.upstream, row.model))
        merged = [_add_models(group) for _, group in groupby(rows, key=lambda row: (row.upstream, row.model))]
        merged.sort(key=lambda row: -row.updated)
        return [self._model(tenant, row) for row in merged]

    async def sessions(self, tenant: str, *, limit: int = 100, label: str = "") -> list[Session]:
        """The tenant's sessions, the latest first; of one client label only where `label` is given."""
        await self._flush()
        rows = [_SESSION.decode(value) for _, value in await self._all(sessions_of(tenant))]
        merged = [_add_sessions(group) for _, group in groupby(rows, key=lambda row: row.id)]
        found = [session for session in merged if not label or session.label == label]
        return sorted(found, key=lambda session: -session.updated)[:limit]

    async def session(self, tenant: str, session_id: str) -> SessionView | None:
        """One session with its last exchanges; None where the tenant has none of that id."""
        await self._flush()
        rows = await self.store.scan(sessions_of(tenant), prefix=f"{session_id}.")
        if not rows:
            return None
        session = _add_sessions(_SESSION.decode(value) for _, value in rows)
        if session.id != session_id:
            return None
        log = await self.store.read(exchanges_of(tenant, session_id))
        exchanges = sorted((_EXCHANGE.decode(value) for _, value in log), key=lambda exchange: exchange.at)
        size = session.utilization.window if session.utilization else 0
        return SessionView(session, self._limits(session.model, size), tuple(exchanges))

    async def forget(self, tenant: str, session_id: str | None = None) -> list[str]:
        """Removes what is on record of a session, or of all of the tenant's; gives the ids of those that there were.
        Sums by model stay: they tell of no conversation."""
        await self._flush()
        found: dict[str, list[Key]] = {}
        for name, value in await self._all(sessions_of(tenant), f"{session_id}." if session_id is not None else ""):
            each = _SESSION.decode(value).id
            if session_id in (None, each):
                found.setdefault(each, [exchanges_of(tenant, each)]).append(Key(sessions_of(tenant), name))
        for keys in found.values():
            await self.store.delete(keys)
        return list(found)

    def _model(self, tenant: str, row: ModelRow) -> ModelView:
        window = self.windows.window(row.model, row.upstream, "", tenant)
        size = row.utilization.window or window.size
        source = window.source if size == window.size else "learnt"
        return ModelView(row, self._limits(row.model, size), min(size, window.usable_input), source)

    def _limits(self, model: str, size: int) -> Limits:
        return (self.thresholds.get(model) or self.thresholds[""]).limits(size)

    async def _flush(self) -> None:
        try:
            await self.outbox.flush()
        except StoreUnavailable:
            # What could be read is still worth showing; reading says so itself where it cannot.
            return

    async def _all(self, collection: str, prefix: str = "") -> list[tuple[str, bytes]]:
        found: list[tuple[str, bytes]] = []
        while page := await self.store.scan(
            collection, prefix=prefix, after=found[-1][0] if found else "", limit=1_000
        ):
            found += page
            if len(page) < 1_000:
                break
        return found


async def erase(
    observe: Observe, custody: Custody, wishes: Wishes, caller: Caller, session_id: str | None = None
) -> tuple[int, Erased]:
    """Removes all that is kept and known of a session, or of all of the caller's; gives how many sessions were on
    record, and what was kept. Raises StoreUnavailable; then some is removed, and it can be asked for again."""
    # First what is on record, since that writes what waits to be written.
    sessions = await observe.forget(caller.tenant, session_id)
    for each in sessions:
        await wishes.pin(caller.tenant, each, frozenset())
        await wishes.done(caller.tenant, each)
    return len(sessions), await custody.erase(caller.space, session_id)


def _add_models(rows: Iterable[ModelRow]) -> ModelRow:
    rows = sorted(rows, key=lambda row: row.updated)
    totals = sum((row.totals for row in rows), Totals())
    return replace(rows[-1], totals=totals, peak=max(row.peak for row in rows))


def _add_sessions(rows: Iterable[Session]) -> Session:
    rows = sorted(rows, key=lambda row: row.updated)
    return replace(
        rows[-1],
        created=min(row.created for row in rows),
        forked_from=next((row.forked_from for row in rows if row.forked_from), ""),
        totals=sum((row.totals for row in rows), Totals()),
    )
