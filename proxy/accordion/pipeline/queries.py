"""Answers questions about one tenant's records: how full each window is, its cost, and its last exchanges.

The API and the CLI use these queries, over the ledger records of every worker. Erasure of these records is here, too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Set
from contextlib import suppress
from functools import partial
from heapq import nsmallest
from itertools import groupby
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from accordion.accounting.holdout import DAYS_COMPARED, STOPS, CompactionStop, HoldoutComparison, HoldoutUnits
from accordion.accounting.ledger import (
    DAY,
    DAYS,
    ENCODER,
    DayCosts,
    ModelTotals,
    SavingsReport,
    build_report,
    day_name,
    exchanges_key,
    models_collection,
    savings_collection,
    session_of,
    sessions_collection,
)
from accordion.archive.erasure import ErasureResult, ExportAndErasure
from accordion.archive.feature_records import TENANTS_WITH_FEATURE_RECORDS
from accordion.compaction.session_overrides import SessionOverrideStore
from accordion.delegation.erasure import forget_delegations, forget_nodes
from accordion.delegation.tracker import DelegationTracker
from accordion.model.budget import Thresholds, TokenLimits, Utilization
from accordion.model.costs import Costs, PriceTable
from accordion.model.delegation import DelegationNode, node_kind
from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Key, KeyValueStore, Outbox, WindowTable
from accordion.model.records import Exchange, HoldoutEntry, Session, Totals
from accordion.model.stored_values import decode_all, decode_stored
from accordion.model.tenant import TenantScope
from accordion.pipeline.session_exchanges import (
    ExchangePage,
    NumberedExchange,
    RequestPoint,
    RequestPoints,
    read_page,
    scan_exchanges,
)
from accordion.pipeline.session_filter import SessionFilter, SessionHead
from accordion.sessions.session_names import SessionNames, SessionTitle
from accordion.sessions.tenants import TENANTS, Caller


class _HoldoutHead(msgspec.Struct):
    """The field of a session's row that is read to find those with a hold-out; decoded in a tenth of the time."""

    holdout: HoldoutEntry | None = None


_HOLDOUT_HEAD = msgspec.msgpack.Decoder(_HoldoutHead)
_SESSION_HEAD = msgspec.msgpack.Decoder(SessionHead)
_ALL = SessionFilter()
_SESSION = msgspec.msgpack.Decoder(Session)
_MODEL = msgspec.msgpack.Decoder(ModelTotals)
_DAY_COSTS = msgspec.msgpack.Decoder(DayCosts)
_STOP = msgspec.msgpack.Decoder(CompactionStop)
_DELETED_AT_ONCE = 1_000


# Rows read at a time. Processing one page delays other requests by less than a millisecond.
_PAGE = 1_000

NEWEST_EXCHANGES: Final = 50
"""Exchanges of a session that are shown with it."""


class SessionPosition(NamedTuple):
    """A session's position in the list: latest first, then by id."""

    before_now: float
    """The time of the last update, negated."""
    session: str


class SessionList(msgspec.Struct, frozen=True):
    """A page of sessions. `last` is the position of its last one if others come after it.

    `models` and `clients` are the names of all the tenant's sessions, in order.
    """

    sessions: list[Session]
    last: SessionPosition | None
    models: list[str]
    clients: list[str]


class ModelView(msgspec.Struct, frozen=True):
    """One tenant's use of one model, with the model's limits."""

    row: ModelTotals
    limits: TokenLimits
    usable_input: int
    window_source: str


class SessionView(msgspec.Struct, frozen=True):
    """One session with its NEWEST_EXCHANGES, oldest first."""

    session: Session
    limits: TokenLimits
    exchanges: tuple[Exchange, ...]


class AgentView(msgspec.Struct, frozen=True):
    """One agent of a tree: its delegation, and its session if that is on record. `depth` counts from 0."""

    node: DelegationNode
    depth: int
    session: Session | None


class Queries(msgspec.Struct, frozen=True):
    """Reads the store, this worker's latest writes included. Every method may raise StoreUnavailable."""

    store: KeyValueStore
    outbox: Outbox
    window_table: WindowTable
    session_names: SessionNames
    thresholds: dict[str, Thresholds]
    mode: Callable[[str], str] = lambda model: "auto"
    """Whether requests for a model are compacted: `auto`, `observe` or `off`."""
    delegation_tracker: DelegationTracker | None = None
    """Holds the tree of delegations; None if it is not queried."""
    store_has_answered: Callable[[], bool] = lambda: True
    """Whether the store answered at least once since the start."""
    configured_models: tuple[str, ...] = ()
    """The names of the configured models."""
    spooled_store: KeyValueStore | None = None
    """The store with the writes that wait for it on this machine, which are erased as well."""
    prices: PriceTable | None = None
    """The present prices; None if they are not queried."""
    request_points: RequestPoints = msgspec.field(default_factory=lambda: RequestPoints(0))
    """The points of sessions that were read lately."""
    retention: float = 30 * 86_400.0
    """Seconds for which the records of sessions stay after their last change."""
    stops_if_worse: bool = False
    """Whether compaction is stopped for models where it does not pay."""

    @property
    def erasable_store(self) -> KeyValueStore:
        """The store from which content is erased."""
        return self.spooled_store or self.store

    @property
    def is_ready(self) -> bool:
        """Whether this process should receive requests: the store answered at least once.

        If the store becomes unavailable later, forwarding continues without it.
        """
        return self.store.is_available or self.store_has_answered()

    async def list_models(self, tenant: TenantScope) -> list[ModelView]:
        """Lists the models that the tenant used, latest first, then the configured models that it did not use."""
        await self.outbox.flush()
        values = [value async for _, value in self._scan_rows(models_collection(tenant))]
        rows = list(decode_all(_MODEL, values))
        rows.sort(key=lambda row: (row.upstream, row.model))
        merged = [_add_models(group) for _, group in groupby(rows, key=lambda row: (row.upstream, row.model))]
        merged.sort(key=lambda row: -row.updated)
        used = {row.model for row in merged}
        unused = [
            ModelTotals(name, name, 0.0, self._empty_utilization(name))
            for name in self.configured_models
            if name not in used
        ]
        return [self._view_model(tenant, row) for row in (*merged, *unused)]

    async def list_sessions(
        self, tenant: TenantScope, *, limit: int = 100, selection: SessionFilter | None = None
    ) -> list[Session]:
        """Lists the tenant's latest sessions that `selection` has, latest first; without one, of all."""
        return (await self.search_sessions(tenant, selection or _ALL, limit)).sessions

    async def search_sessions(
        self, tenant: TenantScope, selection: SessionFilter, limit: int, after: SessionPosition | None = None
    ) -> SessionList:
        """Returns a page of the tenant's sessions that `selection` has, latest first: those that come after `after`.

        There may be many thousands: only the returned ones are decoded whole.
        """
        await self.outbox.flush()
        collection, rows_of = sessions_collection(tenant), dict[str, list[tuple[str, SessionHead]]]()
        async for name, value in self._scan_rows(collection):
            head = decode_stored(_SESSION_HEAD, value)
            if head is None:
                continue
            rows = rows_of.get(head.id)
            if rows is None:
                rows_of[head.id] = [(name, head)]
            else:
                rows.append((name, head))
        is_selective, read_title = selection != _ALL, partial(self.session_names.read_title, tenant)
        # Plain tuples: a session's position takes three times as long to make.
        positions, models, clients = list[tuple[float, str]](), set[str](), set[str]()
        for session_id, rows in rows_of.items():
            heads = [head for _, head in rows]
            latest = max(heads, key=_updated) if len(heads) > 1 else heads[0]
            models.add(latest.model)
            clients.add(latest.client)
            position = (-latest.updated, session_id)
            # A name that outlives its session is no session.
            is_listed = latest.updated and (after is None or position > after)
            if is_listed and (not is_selective or selection.matches(latest, heads, read_title)):
                positions.append(position)
        listed = [SessionPosition(*position) for position in nsmallest(limit + 1, positions)]
        keys = [Key(collection, name) for position in listed[:limit] for name, _ in rows_of[position.session]]
        found = list(decode_all(_SESSION, filter(None, await self.store.get_many(keys))))
        sessions = [self._add_sessions(tenant, list(group)) for _, group in groupby(found, key=lambda row: row.id)]
        following = listed[limit - 1] if len(listed) > limit else None
        return SessionList(sessions, following, sorted(models - {""}), sorted(clients - {""}))

    async def rename_session(self, tenant: TenantScope, session: Session, name: str, now: float) -> None:
        """Gives a session a name; an empty one restores the automatic name. Raises StoreUnavailable."""
        await self.session_names.rename(self.store, tenant, session, name, now, self.retention)

    async def find_session(self, tenant: TenantScope, session_id: str) -> SessionView | None:
        """Returns one session with its last exchanges; None if the tenant has none with that id."""
        await self.outbox.flush()
        rows = await self._load_session_rows(tenant, session_id)
        if not rows:
            return None
        session = self._add_sessions(tenant, rows)
        page = await read_page(self.store, tenant, rows, None, NEWEST_EXCHANGES)
        exchanges = [each.exchange for each in reversed(page.exchanges)][-NEWEST_EXCHANGES:]
        return SessionView(session, self.limits_of(session), tuple(exchanges))

    async def list_exchanges(self, tenant: TenantScope, session: Session) -> list[Exchange]:
        """Returns the last exchanges of a listed session, oldest first."""
        page = await read_page(self.store, tenant, [session], None, NEWEST_EXCHANGES)
        return [each.exchange for each in reversed(page.exchanges)][-NEWEST_EXCHANGES:]

    async def read_exchanges(
        self, tenant: TenantScope, session_id: str, before: int | None = None, limit: int = NEWEST_EXCHANGES
    ) -> ExchangePage | None:
        """Returns a page of a session's exchanges: the newest, or those before a position.

        None if the tenant has no such session.
        """
        await self.outbox.flush()
        rows = await self._load_session_rows(tenant, session_id)
        return await read_page(self.store, tenant, rows, before, limit) if rows else None

    async def read_points(self, tenant: TenantScope, session_id: str) -> list[RequestPoint]:
        """Returns a point for each exchange of a session, oldest first; none if the tenant has no such session."""
        await self.outbox.flush()
        rows = await self._load_session_rows(tenant, session_id)
        return await self.request_points.read(self.store, tenant, rows) if rows else []

    async def find_compaction_exchange(
        self, tenant: TenantScope, session_id: str, compaction_id: str
    ) -> NumberedExchange | None:
        """Returns the exchange for which a compaction was made; None if it is not on record."""
        points = await self.read_points(tenant, session_id)
        point = next((point for point in points if point.compaction == compaction_id), None)
        if point is None:
            return None
        page = await self.read_exchanges(tenant, session_id, point.position + 1 if point.position >= 0 else None)
        entries = page.exchanges if page is not None else ()
        return next((each for each in entries if each.position == point.position), None)

    async def scan_exchanges(self, tenant: TenantScope, session_id: str) -> AsyncIterator[tuple[Exchange, ...]]:
        """Yields all exchanges of a session, oldest first, in parts."""
        await self.outbox.flush()
        if rows := await self._load_session_rows(tenant, session_id):
            async for part in scan_exchanges(self.store, tenant, rows):
                yield part

    async def list_session_ids(self, tenant: TenantScope) -> list[str]:
        """Returns the ids of all sessions on record."""
        await self.outbox.flush()
        names = [name async for name, _ in self._scan_rows(sessions_collection(tenant))]
        return list(dict.fromkeys(map(session_of, names)))

    def limits_of(self, session: Session) -> TokenLimits:
        """Returns the limits for a session's window."""
        return self._limits_for(session.model, session.utilization.window if session.utilization else 0)

    async def read_savings(self, tenant: TenantScope, now: float, days: int = 30) -> SavingsReport:
        """Returns a tenant's costs of the last `days` days (in UTC, today included), by day, model and agent.

        Each session has its own in `Session.costs`.
        """
        await self.outbox.flush()
        last, first = day_name(now), day_name(now - (min(days, DAYS) - 1) * DAY)
        values = [
            value
            async for name, value in self._scan_rows(savings_collection(tenant), after=first)
            if name[: len(last)] <= last
        ]
        report = build_report(list(decode_all(_DAY_COSTS, values)), first, last)
        return replace(report, stops=tuple(await self.read_stops(now, tenant)))

    async def read_stops(self, now: float, tenant: TenantScope | None = None) -> list[CompactionStop]:
        """Returns the models for which compaction is stopped, of one tenant or of all."""
        if not self.stops_if_worse:
            return []
        prefix = f"{tenant.name}|" if tenant is not None else ""
        values = [value async for _, value in self._scan_rows(STOPS, prefix)]
        return [stop for stop in decode_all(_STOP, values) if stop.until > now]

    async def read_holdout(
        self, tenants: Iterable[TenantScope], now: float, days: int = DAYS_COMPARED
    ) -> HoldoutComparison | None:
        """Compares the sessions of these tenants with those in the hold-out; None if there was no hold-out.

        Only sessions on record with a request in the last `days` days count.
        """
        await self.outbox.flush()
        units = HoldoutUnits()
        for tenant in tenants:
            async for _, value in self._scan_rows(sessions_collection(tenant)):
                head = decode_stored(_HOLDOUT_HEAD, value)
                if head is not None and head.holdout is not None:
                    for session in decode_all(_SESSION, [value]):
                        units.add(session)
        return units.compare((now // DAY - (min(days, DAYS) - 1)) * DAY)

    async def list_tenants(self) -> set[str]:
        """Returns the names of the tenants with sessions or records of features."""
        await self.outbox.flush()
        return {name for each in (TENANTS, TENANTS_WITH_FEATURE_RECORDS) async for name, _ in self._scan_rows(each)}

    async def scan_titles(self, tenant: TenantScope, session_id: str | None) -> AsyncIterator[tuple[str, SessionTitle]]:
        """Yields the titles of a tenant's sessions that have one, or of one session, with their ids."""
        await self.outbox.flush()
        rows = list[SessionHead]()
        async for _, value in self._scan_rows(sessions_collection(tenant), f"{session_id}." if session_id else ""):
            rows += decode_all(_SESSION_HEAD, [value])
        for each, group in groupby(rows, key=lambda row: row.id):
            title = self.session_names.read_title(tenant, list(group))
            if title.name and session_id in (None, each):
                yield each, title

    async def list_agents(self, caller: Caller, session_id: str) -> list[AgentView] | None:
        """Lists the agents of the tree that a session belongs to, parents first.

        Returns None if the caller has no such session. A tree's maximum size bounds the number of agents.
        """
        await self.outbox.flush()
        if self.delegation_tracker is None or await self._load_session(caller.tenant, session_id) is None:
            return None
        views: dict[str, AgentView] = {}
        for node in await self.delegation_tracker.load_tree(caller.tenant, f"s:{session_id}", recompute=True):
            above = views.get(node.parent)
            session = node.session or (node.id[2:] if node_kind(node.id) == "session" else "")
            recorded = await self._load_session(caller.tenant, session) if session else None
            views[node.id] = AgentView(node, above.depth + 1 if above is not None else 0, recorded)
        return list(views.values())

    async def forget_sessions(self, tenant: TenantScope, session_id: str | None = None) -> list[str]:
        """Removes the records of one session, or of all of the tenant's; returns the ids of those that existed.

        Sums by model stay, since they reveal no conversation.
        """
        await self.outbox.flush()
        found = dict[str, list[Key]]()
        prefix = f"{session_id}." if session_id is not None else ""
        async for name, _ in self._scan_rows(sessions_collection(tenant), prefix, self.erasable_store):
            each = session_of(name)
            if session_id in (None, each):
                found.setdefault(each, [exchanges_key(tenant, each)]).append(Key(sessions_collection(tenant), name))
        all_keys = [key for keys in found.values() for key in keys]
        for start in range(0, len(all_keys), _DELETED_AT_ONCE):
            await self.erasable_store.delete(all_keys[start : start + _DELETED_AT_ONCE])
        return list(found)

    async def list_agent_names(self, tenant: TenantScope, session_id: str) -> set[str]:
        """Returns the names of the agents in a session's records."""
        await self.outbox.flush()
        session = await self._load_session(tenant, session_id)
        if session is None:
            return set()
        names = {session.agent}
        async for exchanges in self.scan_exchanges(tenant, session_id):
            names.update(each.agent.name for each in exchanges if each.agent is not None)
        return names - {""}

    async def forget_agents(self, tenant: TenantScope, names: Set[str] | None) -> None:
        """Counts the costs of these agents, or of all if `names` is None, as those of agents without a name."""
        collection, store = savings_collection(tenant), self.erasable_store
        async for name, value in self._scan_rows(collection, store=store):
            row = decode_stored(_DAY_COSTS, value)
            if row is None:
                await store.delete([Key(collection, name)])
                continue
            if not row.agent or (names is not None and row.agent not in names):
                continue
            unnamed = Key(collection, f"{row.day}|{row.upstream}|{row.model}||{name.rpartition('|')[2]}")
            # A full disk takes no new row; the name must go all the same.
            with suppress(StoreUnavailable):
                await store.put(unnamed, ENCODER.encode(replace(row, agent="")), ttl=float(DAYS * DAY))
            await store.delete([Key(collection, name)])

    async def forget_tenant(self, tenant: TenantScope) -> None:
        """Removes a tenant from the list of tenants, and the stops of its models."""
        store = self.erasable_store
        stops = [Key(STOPS, name) async for name, _ in self._scan_rows(STOPS, f"{tenant.name}|", store)]
        await store.delete([Key(TENANTS, tenant.name), *stops])

    async def forget_nodes(self, sessions: Iterable[str], *, with_index: bool = True) -> None:
        """Removes the prefix nodes by which the requests of sessions are found, and their index if `with_index`.

        Nodes that another session took over stay.
        """
        await forget_nodes(self.erasable_store, sessions, with_index=with_index)

    def _add_sessions(self, tenant: TenantScope, rows: list[Session]) -> Session:
        rows.sort(key=lambda row: row.updated)
        title = self.session_names.read_title(tenant, rows)
        return replace(
            rows[-1],
            created=min(row.created for row in rows),
            forked_from=next((row.forked_from for row in rows if row.forked_from), ""),
            totals=sum((row.totals for row in rows), Totals()),
            costs=sum((row.costs for row in rows), Costs()),
            name=title.name,
            project=title.project,
        )

    async def _load_session(self, tenant: TenantScope, session_id: str) -> Session | None:
        rows = await self._load_session_rows(tenant, session_id)
        return self._add_sessions(tenant, rows) if rows else None

    async def _load_session_rows(self, tenant: TenantScope, session_id: str) -> list[Session]:
        """Returns the rows of a session, one for each worker that handled it."""
        found = await self.store.scan(sessions_collection(tenant), prefix=f"{session_id}.")
        rows = [row for row in decode_all(_SESSION, [value for _, value in found]) if row.id == session_id]
        return rows if any(row.updated for row in rows) else []

    def _empty_utilization(self, model: str) -> Utilization:
        window = self.window_table.window(model)
        return Utilization(window.size, is_window_known=window.is_known)

    def _view_model(self, tenant: TenantScope, row: ModelTotals) -> ModelView:
        window = self.window_table.window(row.model, row.upstream, "", tenant.name)
        size = row.utilization.window or window.size
        source = window.source if size == window.size else "learnt"
        return ModelView(row, self._limits_for(row.model, size), min(size, window.usable_input), source)

    def _limits_for(self, model: str, size: int) -> TokenLimits:
        return (self.thresholds.get(model) or self.thresholds[""]).limits(size)

    async def _scan_rows(
        self, collection: str, prefix: str = "", store: KeyValueStore | None = None, after: str = ""
    ) -> AsyncIterator[tuple[str, bytes]]:
        """Yields names and values of a collection, ordered by name, that come after the name `after`."""
        while page := await (store or self.store).scan(collection, prefix=prefix, after=after, limit=_PAGE):
            for row in page:
                yield row
            if len(page) < _PAGE:
                break
            after = page[-1][0]


async def erase(
    queries: Queries,
    erasure: ExportAndErasure,
    session_overrides: SessionOverrideStore,
    caller: Caller,
    session_id: str | None = None,
) -> tuple[int, ErasureResult]:
    """Removes everything stored about a session, or about all of the caller's.

    Returns how many sessions were on record, and the result of the erasure. Raises StoreUnavailable; then only a part
    is removed, and the call can be repeated.
    """
    tenant, erasures, sessions = caller.tenant, erasure.erasures, set[str]()
    # From here on, responses that are under way leave no records.
    await erasures.publish(tenant, session_id)
    known = {session_id} if session_id is not None else set(await erasure.list_sessions(tenant))
    agents = await queries.list_agent_names(tenant, session_id) if session_id is not None else None
    if not erasures.is_only_user:
        # First, so that no new request joins a session. Records that other workers write until they are notified are
        # removed below.
        sessions = await _erase_session_rows(queries, session_overrides, caller, session_id, known, with_index=False)
        await queries.forget_agents(tenant, agents)
        await erasures.announce(tenant, session_id)
    sessions |= await _erase_session_rows(queries, session_overrides, caller, session_id, known | sessions)
    await queries.forget_agents(tenant, agents)
    return len(sessions), await erasure.erase(tenant, session_id)


async def _erase_session_rows(
    queries: Queries,
    session_overrides: SessionOverrideStore,
    caller: Caller,
    session_id: str | None,
    known_sessions: Set[str],
    *,
    with_index: bool = True,
) -> set[str]:
    """Removes the records of a session, or of all of the caller's and of `known_sessions`; returns those that had rows.

    Without `with_index` the index stays, so that the removal can be repeated.
    """
    # Rows come first, since this also handles the writes that wait.
    sessions = set(await queries.forget_sessions(caller.tenant, session_id))
    erased = sorted(sessions | known_sessions)
    await session_overrides.forget(caller.tenant, erased)
    await queries.forget_nodes(erased, with_index=with_index)
    await forget_delegations(queries.erasable_store, caller.tenant, session_id)
    if session_id is None:
        await queries.forget_tenant(caller.tenant)
    return sessions


def _updated(row: SessionHead) -> float:
    return row.updated


def _add_models(rows: Iterable[ModelTotals]) -> ModelTotals:
    rows = sorted(rows, key=lambda row: row.updated)
    totals = sum((row.totals for row in rows), Totals())
    return replace(rows[-1], totals=totals, peak=max(row.peak for row in rows))
