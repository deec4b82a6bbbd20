"""The records that features keep in the store: erased and counted for one tenant, with the feature or without it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from accordion.archive.feature_records import (
    TENANTS_WITH_FEATURE_RECORDS,
    ErasedRecords,
    FeatureRecords,
    erase_feature_records,
)
from accordion.model.ports import Key, KeyValueStore
from accordion.model.tenant import TenantScope
from accordion.stores.memory_store import InMemoryStore

MINE, THEIRS = TenantScope("mine", b"key of mine"), TenantScope("theirs", b"key of theirs")


@dataclass
class Notes:
    """A feature that keeps notes; `late` is written as soon as all were erased."""

    late: str = ""

    async def count(self, store: KeyValueStore, tenant: TenantScope) -> int:
        return len(await store.scan(tenant.feature_collection, prefix="note/"))

    async def erase(self, store: KeyValueStore, tenant: TenantScope) -> None:
        rows = await store.scan(tenant.feature_collection, prefix="note/")
        await store.delete([Key(tenant.feature_collection, name) for name, _ in rows])
        if self.late:
            await store.put(Key(tenant.feature_collection, self.late), b"late")

    def records(self) -> FeatureRecords:
        return FeatureRecords(noun="notes", prefixes=("note/",), count=self.count, erase=self.erase)


async def store_with(*names: str) -> InMemoryStore:
    """A store in which both tenants have records of these names."""
    store = InMemoryStore()
    for tenant in (MINE, THEIRS):
        await store.put(Key(TENANTS_WITH_FEATURE_RECORDS, tenant.name), b"")
        for name in names:
            await store.put(Key(tenant.feature_collection, name), b"value")
    return store


async def names_of(store: KeyValueStore, collection: str) -> list[str]:
    return [name for name, _ in await store.scan(collection)]


@pytest.mark.parametrize("all_records", [(), (Notes().records(),)])
async def test_an_erasure_removes_the_records_of_every_feature(all_records: tuple[FeatureRecords, ...]) -> None:
    many = [f"album/{number:03}" for number in range(600)]
    store = await store_with("note/1", "note/2", *many)
    erased = await erase_feature_records(store, MINE, all_records)
    assert erased == [ErasedRecords(each.noun, 2, 0) for each in all_records]
    assert await names_of(store, MINE.feature_collection) == []
    assert len(await names_of(store, THEIRS.feature_collection)) == 602
    assert await names_of(store, TENANTS_WITH_FEATURE_RECORDS) == [THEIRS.name]


async def test_a_feature_may_leave_a_record_that_says_nothing() -> None:
    store = await store_with("note/1")
    await erase_feature_records(store, MINE, (Notes(late="note/9").records(),))
    assert await names_of(store, MINE.feature_collection) == ["note/9"]


async def test_a_tenant_stays_listed_while_it_has_records() -> None:
    store = await store_with("note/1")
    erased = await erase_feature_records(store, MINE, (Notes(late="note/9").records(),))
    assert erased == [ErasedRecords("notes", 1, 1)]
    assert await names_of(store, TENANTS_WITH_FEATURE_RECORDS) == [MINE.name, THEIRS.name]
