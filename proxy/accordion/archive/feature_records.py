"""The records that features keep in the store for each tenant, and their erasure.

Theory of operation. All features share one collection for each tenant, and each has name prefixes of its own in it. So
an erasure reaches all that any feature ever wrote, also after the feature was left out of the program: a feature erases
its own records, since it knows what its other workers have in memory, and the core deletes all others.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from accordion.model.ports import Key, KeyValueStore
from accordion.model.tenant import TenantScope

TENANTS_WITH_FEATURE_RECORDS = "tenants/memories"
"""The collection that lists the tenants for whom features keep records; an entry stays until the tenant is erased."""
_PAGE = 256


class FeatureRecords(msgspec.Struct, frozen=True, kw_only=True):
    """The records of one feature, in the collection `TenantScope.feature_collection` of each tenant.

    `noun` is the plural that people read. `prefixes` begin the names of all its records. `count` returns the number of
    what people call by the noun. `erase` removes all records of a tenant; what is written meanwhile may remain. Both
    raise StoreUnavailable.
    """

    noun: str
    prefixes: tuple[str, ...]
    count: Callable[[KeyValueStore, TenantScope], Awaitable[int]]
    erase: Callable[[KeyValueStore, TenantScope], Awaitable[object]]


class ErasedRecords(msgspec.Struct, frozen=True):
    """The number of a feature's records, which people call by `noun`, before and after an erasure."""

    noun: str
    before: int
    after: int


async def erase_feature_records(
    store: KeyValueStore, tenant: TenantScope, all_records: Sequence[FeatureRecords]
) -> list[ErasedRecords]:
    """Removes all that features keep for a tenant, with or without the feature; returns the counts of each feature.

    Records that are being written meanwhile may remain. Raises StoreUnavailable.
    """
    erased = list[ErasedRecords]()
    for records in all_records:
        before = await records.count(store, tenant)
        await records.erase(store, tenant)
        erased.append(ErasedRecords(records.noun, before, await records.count(store, tenant)))
    await _delete_all_others(store, tenant, tuple(prefix for each in all_records for prefix in each.prefixes))
    if not any(each.after for each in erased):
        await store.delete([Key(TENANTS_WITH_FEATURE_RECORDS, tenant.name)])
    return erased


async def _delete_all_others(store: KeyValueStore, tenant: TenantScope, prefixes: tuple[str, ...]) -> None:
    """Deletes the records whose names begin with none of the prefixes: those of features that were left out."""
    collection, after = tenant.feature_collection, ""
    while rows := await store.scan(collection, after=after, limit=_PAGE):
        after = rows[-1][0]
        await store.delete([Key(collection, name) for name, _ in rows if not name.startswith(prefixes)])
