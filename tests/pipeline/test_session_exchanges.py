"""Reading a session's log of exchanges: by pages, by points, and after an erasure."""

from __future__ import annotations

import msgspec
import pytest

from accordion.accounting.ledger import ENCODER, exchanges_key
from accordion.model.records import CompactionOutcome, Exchange, Session
from accordion.model.tenant import TenantScope
from accordion.pipeline.session_exchanges import NO_POSITION, RequestPoints, read_page
from accordion.stores.memory_store import InMemoryStore
from tests.http.exchanges import exchange

TENANT = TenantScope("t", b"key")
ROW = Session("s-1", "t", 0.0)
KEY = exchanges_key(TENANT, "s-1")


def at(time: float, outcome: CompactionOutcome | None = None) -> Exchange:
    return msgspec.structs.replace(exchange(), at=time, compaction=outcome)


async def log_of(*exchanges: Exchange) -> InMemoryStore:
    store = InMemoryStore()
    await store.append(KEY, [ENCODER.encode(each) for each in exchanges])
    return store


async def list_pages(store: InMemoryStore, rows: list[Session], limit: int) -> list[list[tuple[int, float]]]:
    pages, before = [], None
    while True:
        page = await read_page(store, TENANT, rows, before, limit)
        pages.append([(each.position, each.exchange.at) for each in page.exchanges])
        if (before := page.older) is None:
            return pages


async def test_pages_lead_from_the_newest_exchange_to_the_oldest() -> None:
    store = await log_of(*(at(float(number)) for number in range(5)))
    assert await list_pages(store, [ROW], 2) == [[(4, 4.0), (3, 3.0)], [(2, 2.0), (1, 1.0)], [(0, 0.0)]]
    assert await list_pages(store, [ROW], 5) == [[(number, float(number)) for number in (4, 3, 2, 1, 0)]]


async def test_a_trimmed_log_ends_with_its_oldest_entry() -> None:
    store = InMemoryStore()
    await store.append(KEY, [ENCODER.encode(at(float(number))) for number in range(5)], keep=3)
    assert await list_pages(store, [ROW], 2) == [[(4, 4.0), (3, 3.0)], [(2, 2.0)]]


@pytest.mark.parametrize(("time", "page"), [(9.0, 0), (2.5, 1), (1.5, 1), (0.5, 2), (-1.0, 2)])
async def test_the_only_exchange_of_a_worker_is_on_the_page_of_its_time(time: float, page: int) -> None:
    store = await log_of(*(at(float(number)) for number in range(5)))
    row = msgspec.structs.replace(ROW, only_exchange=ENCODER.encode(at(time)))
    pages = await list_pages(store, [ROW, row], 2)
    assert [(NO_POSITION, time) in each for each in pages] == [number == page for number in range(3)]
    assert sum(map(len, pages)) == 6


async def test_points_are_read_once_and_continue_with_new_exchanges() -> None:
    made = CompactionOutcome("compacted", id="f-1", before=900, after=300, saved=600)
    store, points = await log_of(at(1.0), at(2.0, made)), RequestPoints(1_000_000)
    first = await points.read(store, TENANT, [ROW])
    assert [(each.position, each.compaction) for each in first] == [(0, ""), (1, "f-1")]
    assert first[1].came == first[1].sent + 600
    await store.append(KEY, [ENCODER.encode(at(3.0, msgspec.structs.replace(made, state="replayed")))])
    second = await points.read(store, TENANT, [ROW])
    assert second[:2] == first
    assert (second[2].position, second[2].compaction) == (2, "")


async def test_points_of_an_erased_session_are_not_remembered() -> None:
    store, points = await log_of(at(1.0), at(2.0)), RequestPoints(1_000_000)
    await points.read(store, TENANT, [ROW])
    await store.delete([KEY])
    assert await points.read(store, TENANT, [ROW]) == []
    await store.append(KEY, [ENCODER.encode(at(5.0)), ENCODER.encode(at(6.0)), ENCODER.encode(at(7.0))])
    assert [each.at for each in await points.read(store, TENANT, [ROW])] == [5.0, 6.0, 7.0]
