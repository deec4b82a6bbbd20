"""The ledger: a record of every exchange, the totals of each session and model, and the costs of each day.

It is written after the response, never before it. Totals and costs are counters that each worker only ever raises, in a
row of its own; a reader adds up the rows. So they are right with many workers, and a write that comes twice or late
does no harm.

A row of costs belongs to one tenant, day (in UTC), upstream, model and agent. It says nothing about a conversation but
the name of its agent: an erasure counts the costs of the agent as those of agents without a name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from typing import Final

import msgspec
from msgspec import structs

from accordion.accounting.holdout import CompactionStop
from accordion.model.budget import Utilization
from accordion.model.cache import BoundedCache, count_entry
from accordion.model.costs import Costs
from accordion.model.ports import Key, Observer, Outbox
from accordion.model.records import CompactionOutcome, Exchange, Session, ToolLoopUsage, Totals, Usage
from accordion.model.tenant import ArchiveNamespace, TenantScope

# -- costs of each day -------------------------------------------------------------------------------------------------


ENCODER = msgspec.msgpack.Encoder()
DAY: Final = 86_400
DAYS: Final = 400
"""Days for which rows stay: a year, and the month to compare with it."""
_SECONDS = float(DAYS * DAY)
OTHER = "other"
"""The model and the agent of requests beyond the number of rows that one tenant may have."""
_MOST_ROWS = 4_096
_MOST_ROWS_OF_TENANT = 200
"""Rows of one tenant and day; clients choose the names of models and agents."""
_LONGEST = 200
"""No provider has a longer id of a model. A longer one is a mistake or an attack, and gets no row of its own."""


class DayCosts(msgspec.Struct, omit_defaults=True):
    """The costs of one day (`YYYY-MM-DD`), model and agent, of one worker and one tenant; they grow in place.

    `agent` is empty for an agent without a name.
    """

    day: str
    upstream: str
    model: str
    agent: str = ""
    costs: Costs = Costs()


class DaySavings(msgspec.Struct, frozen=True):
    """The costs of one day."""

    day: str
    costs: Costs


class ModelSavings(msgspec.Struct, frozen=True):
    """The costs of one model at one upstream."""

    model: str
    upstream: str
    costs: Costs


class AgentSavings(msgspec.Struct, frozen=True):
    """The costs of the agents of one name; empty for agents without one."""

    agent: str
    costs: Costs


class SavingsReport(msgspec.Struct, frozen=True):
    """A tenant's costs from the day `first` to the day `last` (both included): in all, by day, model and agent.

    The latest day is the first of `days`, the most expensive model and agent the first of `models` and `agents`. Each
    list adds up to `total`. `stops` has the models for which compaction is stopped now, because it does not pay.
    """

    first: str
    last: str
    total: Costs
    days: tuple[DaySavings, ...]
    models: tuple[ModelSavings, ...]
    agents: tuple[AgentSavings, ...]
    stops: tuple[CompactionStop, ...] = ()


@dataclass(slots=True)
class _DayRow:
    """A row with its key. The costs of requests since the last write wait in `new_costs` and are added up then."""

    key: Key
    day_costs: DayCosts
    new_costs: list[Costs] = field(default_factory=list)

    def encode(self) -> bytes:
        self.day_costs.costs = sum(self.new_costs, self.day_costs.costs)
        self.new_costs.clear()
        return ENCODER.encode(self.day_costs)


_DayRowName = tuple[TenantScope, int, str, str, str]
"""Tenant, number of the day, upstream, model and agent."""


def savings_collection(tenant: TenantScope) -> str:
    """Returns the collection with a tenant's costs; names begin with the day."""
    return f"savings/{tenant.name}"


def day_name(at: float) -> str:
    """Returns the day of a time in seconds since the epoch, in UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d")


@dataclass(slots=True)
class SavingsLedger:
    """Adds up the costs of requests in rows of the store, where they stay for `DAYS` days."""

    outbox: Outbox
    worker: str
    _rows: BoundedCache[_DayRowName, _DayRow] = field(default_factory=lambda: BoundedCache(_MOST_ROWS, count_entry))
    _row_count: int = 0
    _day: int = 0
    _rows_of_tenant: dict[TenantScope, int] = field(default_factory=dict)
    """The number of rows by tenant, for the day `_day`."""

    def add(self, tenant: TenantScope, at: float, upstream: str, model: str, agent: str, costs: Costs) -> None:
        """Adds the costs of a request at the time `at`."""
        name = tenant, int(at // DAY), upstream, model, agent
        row = self._rows.get(name)
        if row is None:
            row = self._create_row(tenant, at, upstream, model, agent)
        row.new_costs.append(costs)
        self.outbox.put(row.key, row.encode, _SECONDS)

    def forget_agents(self, namespace: ArchiveNamespace) -> None:
        """Adds nothing more to the rows of a tenant's named agents: their next requests get rows of their own."""
        for name, _ in self._rows.items():
            if name[4] and name[0].archive_namespace == namespace:
                self._rows.pop(name)

    def _create_row(self, tenant: TenantScope, at: float, upstream: str, model: str, agent: str) -> _DayRow:
        day = int(at // DAY)
        if day != self._day:
            self._day = day
            self._rows_of_tenant.clear()
            self._rows.clear()
        count = self._rows_of_tenant.get(tenant, 0)
        if count >= _MOST_ROWS_OF_TENANT or len(model) > _LONGEST or len(agent) > _LONGEST:
            model, agent = OTHER, OTHER
            if (row := self._rows.get((tenant, day, upstream, model, agent))) is not None:
                return row
        self._rows_of_tenant[tenant] = count + 1
        # Each time a row enters memory it gets a name of its own, so that no row's sums decrease.
        self._row_count += 1
        day_costs = DayCosts(day_name(at), upstream, model, agent)
        name = f"{day_costs.day}|{upstream}|{model}|{agent}|{self.worker}.{self._row_count}"
        row = _DayRow(Key(savings_collection(tenant), name), day_costs)
        self._rows[tenant, day, upstream, model, agent] = row
        return row


def build_report(rows: Sequence[DayCosts], first: str, last: str) -> SavingsReport:
    """Adds up rows."""
    days = _group(rows, lambda row: (row.day,))
    models = _group(rows, lambda row: (row.model, row.upstream))
    agents = _group(rows, lambda row: (row.agent,))
    return SavingsReport(
        first,
        last,
        sum((row.costs for row in rows), Costs()),
        tuple(DaySavings(name[0], costs) for name, costs in reversed(days)),
        tuple(ModelSavings(name[0], name[1], costs) for name, costs in _most_expensive_first(models)),
        tuple(AgentSavings(name[0], costs) for name, costs in _most_expensive_first(agents)),
    )


_Named = tuple[tuple[str, ...], Costs]


def _group(rows: Iterable[DayCosts], name: Callable[[DayCosts], tuple[str, ...]]) -> list[_Named]:
    """Adds up the rows of each name, ordered by name."""
    ordered = sorted(rows, key=name)
    return [(key, sum((row.costs for row in group), Costs())) for key, group in groupby(ordered, key=name)]


def _most_expensive_first(named: list[_Named]) -> list[_Named]:
    return sorted(named, key=lambda each: (-each[1].spent, -each[1].input, each[0]))


# -- exchanges and totals ----------------------------------------------------------------------------------------------


_NO_USAGE, _NOT_COMPACTED, _NO_TOOL_LOOP = Usage(), CompactionOutcome(""), ToolLoopUsage()
MOST_EXCHANGES: Final = 20_000
"""Exchanges of each session in the store, the newest. Totals count every request."""
_MODELS = 1_024


class ModelTotals(msgspec.Struct, omit_defaults=True):
    """The totals of one model at one upstream, of one worker and one tenant; they grow in place."""

    model: str
    upstream: str
    updated: float
    utilization: Utilization
    totals: Totals = Totals()
    peak: float = 0.0
    """The highest utilization, as a share of the window."""


_ModelRow = tuple[Key, ModelTotals, Callable[[], bytes]]
"""The key of a model's totals, the totals, and a function that encodes them at the time of the write."""


def sessions_collection(tenant: TenantScope) -> str:
    """Returns the collection that lists a tenant's sessions; names are `session.row`."""
    return f"sessions/{tenant.name}"


def session_of(row: str) -> str:
    """Returns the session of a row in that collection, by its name."""
    return row.rsplit(".", 2)[0]


def models_collection(tenant: TenantScope) -> str:
    """Returns the collection that lists a tenant's models; names are `upstream|model|row`."""
    return f"models/{tenant.name}"


def exchanges_key(tenant: TenantScope, session: str) -> Key:
    """Returns the key of the log of a session's exchanges, from the second on (see Session.only_exchange)."""
    return Key(f"exchanges/{tenant.name}/{session}", "log")


def session_of_record(key: Key) -> tuple[str, str] | None:
    """Returns the tenant and the session of a session's row or log of exchanges; None for the key of anything else."""
    kind, _, rest = key.collection.partition("/")
    if kind == "sessions":
        return rest, session_of(key.name)
    tenant, _, session = rest.rpartition("/")
    return (tenant, session) if kind == "exchanges" else None


@dataclass(slots=True)
class Ledger:
    """Records exchanges. The store has the last MOST_EXCHANGES of each session, for `retention` seconds."""

    outbox: Outbox
    observers: Sequence[Observer]
    worker: str
    retention: float = 30 * 86_400.0
    savings: SavingsLedger = field(init=False)
    _models: BoundedCache[tuple[TenantScope, str, str], _ModelRow] = field(
        default_factory=lambda: BoundedCache(_MODELS, count_entry)
    )
    _row_count: int = 0

    def __post_init__(self) -> None:
        self.savings = SavingsLedger(self.outbox, self.worker)

    def record(
        self, tenant: TenantScope, session: Session | None, row: str, exchange: Exchange, traceparent: str = ""
    ) -> Session | None:
        """Records an exchange that has ended; returns the session with it added."""
        gain = totals_of_exchange(exchange)
        if exchange.costs is not None:
            agent = (exchange.agent.name if exchange.agent is not None else "") or (session.agent if session else "")
            self.savings.add(tenant, exchange.at, exchange.upstream, exchange.model, agent, exchange.costs)
        if session is not None:
            first_exchange = session.only_exchange
            only_exchange = b"" if session.totals.requests else ENCODER.encode(exchange)
            session = session.after(exchange, gain, only_exchange)
            key = Key(sessions_collection(tenant), f"{session.id}.{row}")
            self.outbox.put(key, partial(ENCODER.encode, session), self.retention)
            if not only_exchange:
                log = exchanges_key(tenant, session.id)
                if first_exchange:
                    self.outbox.append(log, partial(bytes, first_exchange), MOST_EXCHANGES, self.retention)
                self.outbox.append(log, partial(ENCODER.encode, exchange), MOST_EXCHANGES, self.retention)
        if 0 < len(exchange.model) <= _LONGEST:
            self._add_to_model(tenant, exchange, gain)
        self.notify(tenant, exchange, traceparent)
        return session

    def notify(self, tenant: TenantScope, exchange: Exchange, traceparent: str = "") -> None:
        """Tells the observers of an exchange that has ended."""
        for observer in self.observers:
            observer.exchange(tenant.name, exchange, traceparent)

    def _add_to_model(self, tenant: TenantScope, exchange: Exchange, gain: Totals) -> None:
        model_key = (tenant, exchange.upstream, exchange.model)
        key, model_totals, encode = self._models.get(model_key) or self._create_row(tenant, exchange)
        model_totals.updated, model_totals.utilization, model_totals.totals = (
            exchange.at,
            exchange.utilization,
            model_totals.totals + gain,
        )
        model_totals.peak = max(model_totals.peak, exchange.utilization.ratio)
        self.outbox.put(key, encode, self.retention)

    def _create_row(self, tenant: TenantScope, exchange: Exchange) -> _ModelRow:
        # Each time a model enters memory it gets a row of its own, as sessions do, so that no row's totals decrease.
        self._row_count += 1
        upstream, model = exchange.upstream, exchange.model
        model_totals = ModelTotals(
            model=model, upstream=upstream, updated=exchange.at, utilization=exchange.utilization
        )
        key = Key(models_collection(tenant), f"{upstream}|{model}|{self.worker}.{self._row_count}")
        entry = self._models[tenant, upstream, model] = (key, model_totals, partial(ENCODER.encode, model_totals))
        return entry


def _tokens_not_sent(exchange: Exchange) -> int:
    """Returns the tokens by which compaction shortened what was sent: of what would have been sent without it.

    Without it, no more than the window would have been sent, as in the costs. A request that only asks for a count
    belongs to no session, and sends nothing that could be saved.
    """
    outcome, used = exchange.compaction, exchange.utilization
    if outcome is None or not exchange.session:
        return 0
    return min(outcome.saved, max(0, used.window - used.tokens)) if used.is_window_known else outcome.saved


def totals_of_exchange(exchange: Exchange) -> Totals:
    """Returns the totals of a single exchange.

    A summary counts once, with the request that made the compaction; a compaction saves tokens at every request that is
    forwarded with it.
    """
    usage, compaction, tool_loop = exchange.usage or _NO_USAGE, exchange.compaction, exchange.tool_loop
    failed = int(exchange.has_failed)
    gain = Totals(1, failed, usage.input, usage.output, usage.cached, usage.cache_write, usage.reasoning)
    if compaction is None and tool_loop is None:
        return gain
    compaction, tool_loop = compaction or _NOT_COMPACTED, tool_loop or _NO_TOOL_LOOP
    is_new = compaction.state == "compacted"
    return structs.replace(
        gain,
        compactions=int(is_new),
        saved=_tokens_not_sent(exchange),
        summary_input=compaction.input if is_new else 0,
        summary_output=compaction.output if is_new else 0,
        read_back_calls=tool_loop.calls,
        read_back_rounds=tool_loop.rounds,
        read_back_input=tool_loop.input,
    )
