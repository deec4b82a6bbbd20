"""The costs of each day, by model and agent: rows that a worker only ever raises, and their sums.

A row belongs to one tenant, day (in UTC), upstream, model and agent, and to one worker; a reader adds up the rows. A
row says nothing about a conversation but the name of its agent: an erasure counts the costs of the agent as those of
agents without a name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from typing import Final

import msgspec

from accordion.model.cache import BoundedCache, count_entry
from accordion.model.costs import Costs
from accordion.model.ports import Key, Outbox
from accordion.model.tenant import ArchiveNamespace, TenantScope

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
    list adds up to `total`.
    """

    first: str
    last: str
    total: Costs
    days: tuple[DaySavings, ...]
    models: tuple[ModelSavings, ...]
    agents: tuple[AgentSavings, ...]


@dataclass(slots=True)
class _Row:
    """A row with its key. The costs of requests since the last write wait in `new_costs` and are added up then."""

    key: Key
    day_costs: DayCosts
    new_costs: list[Costs] = field(default_factory=list)

    def encode(self) -> bytes:
        self.day_costs.costs = sum(self.new_costs, self.day_costs.costs)
        self.new_costs.clear()
        return ENCODER.encode(self.day_costs)


_RowName = tuple[TenantScope, int, str, str, str]
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
    _rows: BoundedCache[_RowName, _Row] = field(default_factory=lambda: BoundedCache(_MOST_ROWS, count_entry))
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

    def _create_row(self, tenant: TenantScope, at: float, upstream: str, model: str, agent: str) -> _Row:
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
        row = _Row(Key(savings_collection(tenant), name), day_costs)
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
