"""How full is every window, what did it cost, what happened last: one tenant's at a time.

The API and the CLI ask here; what they show is what the journal recorded, of every worker. It is also forgotten here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Set
from dataclasses import dataclass
from heapq import nsmallest
from itertools import groupby
from typing import NamedTuple

import msgspec
from msgspec import structs

from accordion.accounting.journal import ModelRow, exchanges_of, models_of, session_of, sessions_of
from accordion.archive.custody import Custody, Erased
from accordion.compaction.wishes import Wishes
from accordion.core.budget import Limits, Thresholds, Utilization
from accordion.core.delegation import Delegation
from accordion.core.errors import StoreUnavailable
from accordion.core.memories import Filter, Memories
from accordion.core.ports import Key, Outbox, Store, Windows
from accordion.core.records import Exchange, Session, Totals
from accordion.identity.erasing import forget_delegations, forget_places
from accordion.identity.lineage import Lineage
from accordion.identity.nodes import tenant_of
from accordion.identity.tenants import LISTED, REMEMBERED, Caller
from accordion.memory.entries import EVERY


class _Head(msgspec.Struct):
    """As much of a session's row as tells where it belongs in the list; read in a tenth of the time."""

    id: str
    updated: float = 0.0
    label: str = ""


_HEAD = msgspec.msgpack.Decoder(_Head)
_SESSION = msgspec.msgpack.Decoder(Session)
_EXCHANGE = msgspec.msgpack.Decoder(Exchange)
_MODEL = msgspec.msgpack.Decoder(ModelRow)


# So many rows are read at a time; what is done with them in between holds nobody up for as much as a millisecond.
_PAGE = 1_000


class Spot(NamedTuple):
    """Where a session stands in the list: the latest first, those of the same time by their ids."""

    before_now: float
    """The time when it was last updated, negated."""
    session: str


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
class AgentView:
    """One agent of a tree: its delegation, and its session where that is on record. `depth` counts from 0."""

    node: Delegation
    depth: int
    session: Session | None


@dataclass(frozen=True, slots=True)
class Observe:
    """Answers from the store, this worker's latest writes included. Every method may raise StoreUnavailable."""

    store: Store
    outbox: Outbox
    windows: Windows
    thresholds: dict[str, Thresholds]
    mode: Callable[[str], str] = lambda model: "auto"
    """Whether requests for a model are folded: `auto`, `observe` or `off`."""
    lineage: Lineage | None = None
    """Who knows the tree of delegations; None where nobody is asked for it."""
    keep: int = 50
    """So many exchanges of a session are shown at most."""
    has_answered: Callable[[], bool] = lambda: True
    """Whether the store answered at least once since the start."""
    configured: tuple[str, ...] = ()
    """The names of the configured models."""
    spooled: Store | None = None
    """The store with the writes that wait for it on this machine, which are erased with the rest."""

    @property
    def erasable(self) -> Store:
        """The store from which content is erased."""
        return self.spooled or self.store

    @property
    def is_ready(self) -> bool:
        """Whether requests should be sent here: the store answered at least once. Where it is away later, forwarding
        goes on without it."""
        return self.store.available or self.has_answered()

    async def models(self, tenant: str) -> list[ModelView]:
        """Every model that the tenant used, the latest first, then the configured models that it did not use."""
        await self._flush()
        rows = [_MODEL.decode(value) async for _, value in self._rows(models_of(tenant))]
        rows.sort(key=lambda row: (row.upstream, row.model))
        merged = [_add_models(group) for _, group in groupby(rows, key=lambda row: (row.upstream, row.model))]
        merged.sort(key=lambda row: -row.updated)
        used = {row.model for row in merged}
        unused = [ModelRow(name, name, 0.0, self._nothing(name)) for name in self.configured if name not in used]
        return [self._model(tenant, row) for row in (*merged, *unused)]

    async def sessions(
        self, tenant: str, *, limit: int = 100, label: str = "", after: Spot | None = None
    ) -> list[Session]:
        """The tenant's sessions, the latest first, from behind `after` on; of one client label only where `label` is
        given. There may be many thousands: only those that are given are read whole."""
        await self._flush()
        collection, spots, names = sessions_of(tenant), dict[str, Spot](), dict[str, list[str]]()
        async for name, value in self._rows(collection):
            head = _HEAD.decode(value)
            if not label or head.label == label:
                spot = Spot(-head.updated, head.id)
                spots[head.id] = min(spot, spots.get(head.id, spot))
                names.setdefault(head.id, []).append(name)
        listed = nsmallest(limit, (spot for spot in spots.values() if after is None or spot > after))
        keys = [Key(collection, name) for spot in listed for name in names[spot.session]]
        rows = [_SESSION.decode(value) for value in await self.store.get_many(keys) if value is not None]
        return [_add_sessions(group) for _, group in groupby(rows, key=lambda row: row.id)]

    async def session(self, tenant: str, session_id: str) -> SessionView | None:
        """One session with its last exchanges; None where the tenant has none of that id."""
        await self._flush()
        rows = await self._worked(tenant, session_id)
        if not rows:
            return None
        session = _add_sessions(rows)
        log = await self.store.read(exchanges_of(tenant, session_id))
        values = [*(row.only for row in rows if row.only), *(value for _, value in log)]
        exchanges = sorted(map(_EXCHANGE.decode, values), key=lambda exchange: exchange.at)
        size = session.utilization.window if session.utilization else 0
        return SessionView(session, self._limits(session.model, size), tuple(exchanges[-self.keep :]))

    async def tree(self, caller: Caller, session_id: str) -> list[AgentView] | None:
        """The agents of the tree that a session stands in, parents first; None where the caller has no such session.
        There are as many of them at most as a tree may have."""
        await self._flush()
        if self.lineage is None or await self._session(caller.tenant, session_id) is None:
            return None
        views: dict[str, AgentView] = {}
        for node in await self.lineage.tree(tenant_of(caller.space), f"s:{session_id}", anew=True):
            above = views.get(node.parent)
            session = node.session or (node.id[2:] if node.id[:2] == "s:" else "")
            held = await self._session(caller.tenant, session) if session else None
            views[node.id] = AgentView(node, above.depth + 1 if above is not None else 0, held)
        return list(views.values())

    async def forget(self, tenant: str, session_id: str | None = None) -> list[str]:
        """Removes what is on record of a session, or of all of the tenant's; gives the ids of those that there were.
        Sums by model stay: they tell of no conversation."""
        await self._flush()
        # What cannot be written, since the disk is full, is written never.
        waiting = await self.outbox.drop(
            lambda key: key.collection == sessions_of(tenant) and session_id in (None, session_of(key.name))
        )
        found = {session_of(key.name): [exchanges_of(tenant, session_of(key.name)), key] for key in waiting}
        logs = {keys[0] for keys in found.values()}
        await self.outbox.drop(logs.__contains__)
        prefix = f"{session_id}." if session_id is not None else ""
        async for name, value in self._rows(sessions_of(tenant), prefix, self.erasable):
            each = _HEAD.decode(value).id
            if session_id in (None, each):
                found.setdefault(each, [exchanges_of(tenant, each)]).append(Key(sessions_of(tenant), name))
        for keys in found.values():
            await self.erasable.delete(keys)
        return list(found)

    async def unlist(self, tenant: str) -> None:
        """Takes a tenant from the list of those that there are."""
        await self.erasable.delete([Key(LISTED, tenant)])

    async def forget_places(self, session_id: str, *, lists: bool = True) -> None:
        """Removes the places by which requests of a session are found, and where it `lists` their list; those that
        another session took over stay."""
        await forget_places(self.erasable, session_id, lists=lists)

    async def _session(self, tenant: str, session_id: str) -> Session | None:
        rows = await self._worked(tenant, session_id)
        return _add_sessions(rows) if rows else None

    async def _worked(self, tenant: str, session_id: str) -> list[Session]:
        """The rows of a session, one of each worker that had it."""
        found = await self.store.scan(sessions_of(tenant), prefix=f"{session_id}.")
        return [row for _, value in found if (row := _SESSION.decode(value)).id == session_id]

    def _nothing(self, model: str) -> Utilization:
        window = self.windows.window(model)
        return Utilization(window.size, window_known=window.source != "default")

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

    async def _rows(
        self, collection: str, prefix: str = "", store: Store | None = None
    ) -> AsyncIterator[tuple[str, bytes]]:
        """Names and values of a collection, ordered by name."""
        after = ""
        while page := await (store or self.store).scan(collection, prefix=prefix, after=after, limit=_PAGE):
            for row in page:
                yield row
            if len(page) < _PAGE:
                break
            after = page[-1][0]


async def erase(
    observe: Observe, custody: Custody, wishes: Wishes, caller: Caller, session_id: str | None = None
) -> tuple[int, Erased]:
    """Removes all that is kept and known of a session, or of all of the caller's; gives how many sessions were on
    record, and what was kept. Raises StoreUnavailable; then some is removed, and it can be asked for again."""
    space, erasures, sessions = caller.space, custody.erasures, set[str]()
    # From here on replies that were under way leave nothing any more.
    await erasures.note(space, session_id)
    known = {session_id} if session_id is not None else set(await custody.sessions(space))
    if not erasures.alone:
        # First so that no new request is a part of it; what others write until they hear of it is removed below.
        sessions = await _off_record(observe, wishes, caller, session_id, known, lists=False)
        await erasures.spread(space, session_id)
    sessions |= await _off_record(observe, wishes, caller, session_id, known | sessions)
    return len(sessions), await custody.erase(space, session_id)


async def _off_record(
    observe: Observe, wishes: Wishes, caller: Caller, session_id: str | None, known: Set[str], *, lists: bool = True
) -> set[str]:
    """Removes what is on record of a session, or of all of the caller's, `known` ones among them, without `lists` so
    that it can be removed again; gives those that had rows."""
    # First the rows, since that writes what waits to be written.
    sessions = set(await observe.forget(caller.tenant, session_id))
    for each in sorted(sessions | known):
        await wishes.pin(caller.tenant, each, frozenset())
        await wishes.done(caller.tenant, each)
        await observe.forget_places(each, lists=lists)
    await forget_delegations(observe.erasable, caller.space, session_id)
    if session_id is None:
        await observe.unlist(caller.tenant)
    return sessions


async def forget_memories(memories: Memories, store: Store, caller: Caller) -> tuple[int, int]:
    """Removes all of the caller's memories; gives how many there were, and how many there are then: what is being
    written meanwhile may be left. Raises StoreUnavailable."""
    before = await memories.erase(caller.space)
    after = await memories.count(caller.space, Filter(types=EVERY))
    if not after:
        await store.delete([Key(REMEMBERED, caller.tenant)])
    return before, after


def _add_models(rows: Iterable[ModelRow]) -> ModelRow:
    rows = sorted(rows, key=lambda row: row.updated)
    totals = sum((row.totals for row in rows), Totals())
    return structs.replace(rows[-1], totals=totals, peak=max(row.peak for row in rows))


def _add_sessions(rows: Iterable[Session]) -> Session:
    rows = sorted(rows, key=lambda row: row.updated)
    return structs.replace(
        rows[-1],
        created=min(row.created for row in rows),
        forked_from=next((row.forked_from for row in rows if row.forked_from), ""),
        totals=sum((row.totals for row in rows), Totals()),
    )
