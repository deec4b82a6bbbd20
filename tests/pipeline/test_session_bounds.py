"""The bound on what the store holds of a tenant's sessions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from accordion.accounting.ledger import ENCODER, exchanges_key, sessions_collection
from accordion.model.ports import Key, KeyValueStore
from accordion.model.records import Session, Totals
from accordion.model.tenant import TenantScope
from accordion.pipeline.session_limits import SessionSizeLimit
from accordion.sessions.prefix_nodes import ENCODER as POINTS
from accordion.sessions.prefix_nodes import PrefixNode, first_node_id, node_key, session_nodes_collection
from accordion.sessions.tenants import TENANTS
from accordion.stores.memory_store import InMemoryStore
from accordion.stores.open import open_store
from tests.fakes import FickleStore

TENANT = TenantScope("default", b"tenant key " * 3)


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[KeyValueStore]:
    kind = request.param
    made = InMemoryStore() if kind == "memory" else open_store(f"sqlite:///{tmp_path}/sessions.db", timeout=5.0)
    yield made
    await made.close()


def bounds(store: KeyValueStore, max_bytes: int) -> SessionSizeLimit:
    return SessionSizeLimit(store, lambda name: TENANT, max_bytes=max_bytes)


async def record(store: KeyValueStore, name: str, updated: float, requests: int = 5) -> str:
    """One session as the proxy records it: a row, a log, two places and where it stands among delegations."""
    session = f"s-{name}"
    row = Session(session, TENANT.name, updated, updated=updated, totals=Totals(requests=requests))
    await store.put(Key(TENANTS, TENANT.name), b"")
    await store.put(Key(sessions_collection(TENANT), f"{session}.w.1"), ENCODER.encode(row))
    await store.append(exchanges_key(TENANT, session), [b"exchange"] * requests)
    for place in (first_node_id(session), f"more-{name}"):
        await store.put(node_key(place), POINTS.encode(PrefixNode(session)))
    await store.put(Key(session_nodes_collection(session), f"more-{name}"), b"")
    await store.put(Key(f"seated/{TENANT.delegation_namespace}", session), b"s:" + session.encode())
    return session


async def traces(store: KeyValueStore, session: str) -> int:
    """How many of these things the store still holds of a session."""
    name = session.removeprefix("s-")
    keys = [node_key(name), node_key(f"more-{name}"), Key(f"seated/{TENANT.delegation_namespace}", session)]
    found = [value for value in await store.get_many(keys) if value is not None]
    rows = await store.scan(sessions_collection(TENANT), prefix=f"{session}.")
    listed = await store.scan(session_nodes_collection(session))
    return len(found) + len(rows) + len(listed) + len(await store.read(exchanges_key(TENANT, session)))


async def test_the_longest_unused_sessions_go_first_with_all_that_belongs_to_them(store):
    sessions = [await record(store, f"{number:03}", updated=60.0 * number) for number in range(100)]
    assert await bounds(store, 100_000).sweep(TENANT) > 80
    left = [await traces(store, session) for session in sessions]
    assert left == sorted(left)
    assert left[0] == 0
    assert left[-1] == 10
    assert await bounds(store, 100_000).sweep(TENANT) == 0


async def test_sessions_within_the_bound_stay(store):
    sessions = [await record(store, f"{number:03}", updated=60.0 * number) for number in range(10)]
    assert await bounds(store, 200_000).sweep(TENANT) == 0
    assert [await traces(store, session) for session in sessions] == [10] * 10


async def test_the_newest_sessions_stay_however_large_they_are(store):
    await record(store, "old", updated=0.0)
    new = await record(store, "new", updated=600.0, requests=400)
    assert await bounds(store, 1_000).sweep(TENANT) == 1
    assert await traces(store, new) > 10


async def test_a_session_that_one_of_its_workers_used_lately_stays(store):
    busy = await record(store, "busy", updated=0.0)
    row = Session(busy, TENANT.name, 0.0, updated=6_000.0, totals=Totals(requests=1))
    await store.put(Key(sessions_collection(TENANT), f"{busy}.other.1"), ENCODER.encode(row))
    for number in range(40):
        await record(store, f"{number:03}", updated=60.0 * number)
    await bounds(store, 100_000).sweep(TENANT)
    assert await traces(store, busy) == 11


async def test_one_worker_looks_through_the_tenants_at_a_time(store):
    for number in range(40):
        await record(store, f"{number:03}", updated=60.0 * number)
    assert (await bounds(store, 100_000).run_round() or 0) > 10
    assert await bounds(store, 100_000).run_round() is None


async def test_a_store_that_is_away_is_looked_through_later():
    store = FickleStore()
    store.away = True
    assert await bounds(store, 100_000).run_round() is None
