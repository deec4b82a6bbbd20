"""The ledger: what every exchange was, the sums of each session and model. Written behind the reply, never before it.

Sums are kept as counters that each worker only ever raises, in a row of its own; a reader adds the rows up. So they are
right with many workers, and a write that comes twice or late does no harm.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import field
from functools import partial

import msgspec
from msgspec import structs

from accordion.core.budget import Utilization
from accordion.core.ports import Key, Observer, Outbox
from accordion.core.records import CompactionSeen, Exchange, Session, Totals, Unfolded, Usage
from accordion.core.values import dataclass

ENCODER = msgspec.msgpack.Encoder()
_UNREPORTED, _UNTOUCHED, _NOT_UNFOLDED = Usage(), CompactionSeen(""), Unfolded()
_MODELS = 1_024
# No provider has a longer id; what is longer is a mistake or worse, and not worth a row for ever.
_LONGEST = 200


class ModelRow(msgspec.Struct, omit_defaults=True):
    """The sums of one model at one upstream, as one worker saw them for one tenant; they grow in place."""

    model: str
    upstream: str
    updated: float
    utilization: Utilization
    totals: Totals = Totals()
    peak: float = 0.0
    """The highest utilization seen, as a share of the window."""


_Row = tuple[Key, ModelRow, Callable[[], bytes]]
"""Where a model's sums are kept, they themselves, and what writes them as they are then."""


def sessions_of(tenant: str) -> str:
    """The collection that lists a tenant's sessions; names are `session.row`."""
    return f"sessions/{tenant}"


def session_of(row: str) -> str:
    """The session of a row in that collection; `row` is the name."""
    return row.rsplit(".", 2)[0]


def models_of(tenant: str) -> str:
    """The collection that lists a tenant's models; names are `upstream|model|row`."""
    return f"models/{tenant}"


def exchanges_of(tenant: str, session: str) -> Key:
    """The log of a session's exchanges, from the second on: see Session.only."""
    return Key(f"exchanges/{tenant}/{session}", "log")


@dataclass(frozen=False, slots=True)
class Journal:
    """Records exchanges. `keep` is how many the store holds for each session, `retention` for how many seconds."""

    outbox: Outbox
    observers: Sequence[Observer]
    worker: str
    keep: int = 50
    retention: float = 30 * 86_400.0
    _models: OrderedDict[tuple[str, str, str], _Row] = field(default_factory=OrderedDict)
    _entered: int = 0

    def record(
        self, tenant: str, session: Session | None, row: str, exchange: Exchange, traceparent: str = ""
    ) -> Session | None:
        """Takes an exchange that has ended; returns the session with it added."""
        gain = gain_of(exchange)
        if session is not None:
            first, only = session.only, b"" if session.totals.requests else ENCODER.encode(exchange)
            session = session.after(exchange, gain, only)
            name = Key(sessions_of(tenant), f"{session.id}.{row}")
            self.outbox.put(name, partial(ENCODER.encode, session), self.retention)
            if not only:
                log = exchanges_of(tenant, session.id)
                if first:
                    self.outbox.append(log, partial(bytes, first), self.keep, self.retention)
                self.outbox.append(log, partial(ENCODER.encode, exchange), self.keep, self.retention)
        if 0 < len(exchange.model) <= _LONGEST:
            self._model(tenant, exchange, gain)
        for observer in self.observers:
            observer.exchange(tenant, exchange, traceparent)
        return session

    def _model(self, tenant: str, exchange: Exchange, gain: Totals) -> None:
        known = (tenant, exchange.upstream, exchange.model)
        name, row, write = self._models.get(known) or self._enter(known, exchange)
        row.updated, row.utilization, row.totals = exchange.at, exchange.utilization, row.totals + gain
        row.peak = max(row.peak, exchange.utilization.ratio)
        self._models.move_to_end(known)
        self.outbox.put(name, write, self.retention)

    def _enter(self, known: tuple[str, str, str], exchange: Exchange) -> _Row:
        # Each time a model enters memory it gets a row of its own, as sessions do, so that no row ever falls.
        self._entered += 1
        tenant, upstream, model = known
        row = ModelRow(model=model, upstream=upstream, updated=exchange.at, utilization=exchange.utilization)
        name = Key(models_of(tenant), f"{upstream}|{model}|{self.worker}.{self._entered}")
        held = self._models[known] = (name, row, partial(ENCODER.encode, row))
        if len(self._models) > _MODELS:
            self._models.popitem(last=False)
        return held


def gain_of(exchange: Exchange) -> Totals:
    """What an exchange adds to the sums. A summary is paid for once, by the request that made the fold; a fold saves
    something at every request that is forwarded with it."""
    usage, seen, back = exchange.usage or _UNREPORTED, exchange.compaction, exchange.unfolded
    failed = int(exchange.status >= 400 or bool(exchange.error))
    gain = Totals(1, failed, usage.input, usage.output, usage.cached, usage.cache_write, usage.reasoning)
    if seen is None and back is None:
        return gain
    seen, back = seen or _UNTOUCHED, back or _NOT_UNFOLDED
    made = seen.state == "folded"
    return structs.replace(
        gain,
        compactions=int(made),
        # A request that only asks for a count belongs to no session, and sends nothing that could be saved.
        saved=seen.saved if exchange.session else 0,
        summary_input=seen.input if made else 0,
        summary_output=seen.output if made else 0,
        unfold_calls=back.calls,
        unfold_rounds=back.rounds,
        unfold_input=back.input,
    )
