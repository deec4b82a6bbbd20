"""The ledger: a record of every exchange, and the totals of each session and model.

It is written after the response, never before it. Totals are counters that each worker only ever raises, in a row of
its own; a reader adds up the rows. So they are right with many workers, and a write that comes twice or late does no
harm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec
from msgspec import structs

from accordion.accounting.savings import SavingsLedger
from accordion.model.budget import Utilization
from accordion.model.cache import BoundedCache, count_entry
from accordion.model.ports import Key, Observer, Outbox
from accordion.model.records import CompactionOutcome, Exchange, Session, ToolLoopUsage, Totals, Usage
from accordion.model.tenant import TenantScope

ENCODER = msgspec.msgpack.Encoder()
_NO_USAGE, _NOT_COMPACTED, _NO_TOOL_LOOP = Usage(), CompactionOutcome(""), ToolLoopUsage()
EXCHANGES = 50
"""Exchanges of each session in the store: enough to see what went wrong lately. Totals count every request."""
_MODELS = 1_024
# No provider has a longer id. A longer one is a mistake or an attack, and gets no row.
_LONGEST = 200


class ModelTotals(msgspec.Struct, omit_defaults=True):
    """The totals of one model at one upstream, of one worker and one tenant; they grow in place."""

    model: str
    upstream: str
    updated: float
    utilization: Utilization
    totals: Totals = Totals()
    peak: float = 0.0
    """The highest utilization, as a share of the window."""


_Row = tuple[Key, ModelTotals, Callable[[], bytes]]
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
    """Records exchanges. The store has the last EXCHANGES of each session, for `retention` seconds."""

    outbox: Outbox
    observers: Sequence[Observer]
    worker: str
    retention: float = 30 * 86_400.0
    savings: SavingsLedger = field(init=False)
    _models: BoundedCache[tuple[TenantScope, str, str], _Row] = field(
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
                    self.outbox.append(log, partial(bytes, first_exchange), EXCHANGES, self.retention)
                self.outbox.append(log, partial(ENCODER.encode, exchange), EXCHANGES, self.retention)
        if 0 < len(exchange.model) <= _LONGEST:
            self._add_to_model(tenant, exchange, gain)
        for observer in self.observers:
            observer.exchange(tenant.name, exchange, traceparent)
        return session

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

    def _create_row(self, tenant: TenantScope, exchange: Exchange) -> _Row:
        # Each time a model enters memory it gets a row of its own, as sessions do, so that no row's totals decrease.
        self._row_count += 1
        upstream, model = exchange.upstream, exchange.model
        model_totals = ModelTotals(
            model=model, upstream=upstream, updated=exchange.at, utilization=exchange.utilization
        )
        key = Key(models_collection(tenant), f"{upstream}|{model}|{self.worker}.{self._row_count}")
        entry = self._models[tenant, upstream, model] = (key, model_totals, partial(ENCODER.encode, model_totals))
        return entry


def totals_of_exchange(exchange: Exchange) -> Totals:
    """Returns the totals of a single exchange.

    A summary counts once, with the request that made the compaction; a compaction saves tokens at every request that is
    forwarded with it.
    """
    usage, compaction, tool_loop = exchange.usage or _NO_USAGE, exchange.compaction, exchange.tool_loop
    failed = int(exchange.status >= 400 or bool(exchange.error))
    gain = Totals(1, failed, usage.input, usage.output, usage.cached, usage.cache_write, usage.reasoning)
    if compaction is None and tool_loop is None:
        return gain
    compaction, tool_loop = compaction or _NOT_COMPACTED, tool_loop or _NO_TOOL_LOOP
    is_new = compaction.state == "folded"
    return structs.replace(
        gain,
        compactions=int(is_new),
        # A request that only asks for a count belongs to no session, and sends nothing that could be saved.
        saved=compaction.saved if exchange.session else 0,
        summary_input=compaction.input if is_new else 0,
        summary_output=compaction.output if is_new else 0,
        unfold_calls=tool_loop.calls,
        unfold_rounds=tool_loop.rounds,
        unfold_input=tool_loop.input,
    )
