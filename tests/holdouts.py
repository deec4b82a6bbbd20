"""Sessions of a hold-out, with what they cost."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from accordion.accounting.holdout import HoldoutComparison, HoldoutUnits
from accordion.accounting.ledger import ENCODER, sessions_collection
from accordion.model.budget import HoldoutGroup
from accordion.model.costs import Costs
from accordion.model.ports import Key, KeyValueStore
from accordion.model.records import HoldoutEntry, Session, Totals
from accordion.model.tenant import TenantScope


def row(
    unit: str,
    group: HoldoutGroup,
    dollars: float = 1.0,
    *,
    tenant: str = "a",
    updated: float = 10.0,
    model: str = "gpt-5",
    **figures: int,
) -> Session:
    repeated, unpriced = figures.pop("repeated_calls", 0), figures.pop("unpriced", 0)
    costs = Costs(requests=1, unpriced=unpriced, sent_cost=round(dollars * 1e9))
    totals = Totals(**{"requests": 1, **figures})
    entry = HoldoutEntry(unit, group, repeated, model if group else "")
    return Session(unit, tenant, 1.0, updated=updated, totals=totals, costs=costs, holdout=entry)


def groups(compaction: list[float], holdout: list[float], model: str = "gpt-5") -> list[Session]:
    """The sessions of a model with these costs in dollars."""
    costs: dict[HoldoutGroup, list[float]] = {"compaction": compaction, "holdout": holdout}
    return [
        row(f"{model}-{group}-{number}", group, dollars, model=model)
        for group in costs
        for number, dollars in enumerate(costs[group])
    ]


def compared(rows: list[Session], since: float = 0.0) -> HoldoutComparison:
    units = HoldoutUnits()
    for each in rows:
        units.add(each)
    comparison = units.compare(since)
    assert comparison is not None
    return comparison


def spread(mean: float, count: int) -> list[float]:
    """Costs around a mean, half of them a quarter above and half a quarter below."""
    return [mean * 0.75, mean * 1.25] * (count // 2)


async def write_sessions(store: KeyValueStore, now: float, tenant: str, rows: Sequence[Session]) -> None:
    """Writes the records of a tenant's sessions, each with a request at the time `now`."""
    collection = sessions_collection(TenantScope(tenant, b""))
    for row in rows:
        record = replace(row, tenant=tenant, updated=now)
        await store.put(Key(collection, f"{row.id}.worker.1"), ENCODER.encode(record))
