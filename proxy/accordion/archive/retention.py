"""Limits each tenant's archive by bytes and by age; the least recently used entries are removed first.

Theory of operation: every value in the store has a time to live, so expiry by age needs no work. Entries beyond the
limit in bytes are removed in sweeps: a few times an hour for all tenants, and for one tenant when a write exceeds the
limit. One worker sweeps at a time, and no request waits for it. Whole entries are removed; values that a remaining
entry also needs stay, and count towards that entry from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import msgspec
from msgspec import structs

from accordion.archive import archive_entries
from accordion.archive.archive_entries import HOLDERS, ArchiveEntry, TenantTotals
from accordion.archive.shared_values import SharedValues
from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Clock, Key, KeyValueStore, Put, Tasks

EVERY = 1_200.0
"""Seconds between two sweeps of all tenants."""

_LEASE = 900.0
_HELD = b"held:"
"""Prefix of the last sweep's sum in the store, for workers that start between two sweeps."""
_LOW = 0.9
"""The share of the limit down to which a sweep removes, so that not every write starts another."""
_KEYS = 100_000
"""The number of values after which a batch of removed entries ends."""
_PAGE = 16
_DELETED = 200
_TENANTS = 10_000


class SweepResult(msgspec.Struct, frozen=True):
    """The result of a sweep.

    `held` are the bytes that all examined tenants have, at most: bytes that several workers wrote count for each of
    them. `entries` and `size` are the number and the bytes of removed entries. `tenants` is 0 for the sweep of one
    tenant.
    """

    held: int
    entries: int
    size: int
    tenants: int = 0


class Retention:
    """Keeps each tenant's archive within `max_bytes` and `retention` seconds.

    `told` is called with the result of every sweep of this worker.
    """

    def __init__(
        self,
        store: KeyValueStore,
        tasks: Tasks,
        clock: Clock,
        *,
        max_bytes: int = 2 * 2**30,
        retention: float = 30 * 86_400.0,
        told: Callable[[SweepResult], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._tasks = tasks
        self._clock = clock
        self._max = max_bytes
        self._retention = retention
        self._told = told
        self._sums: dict[str, int] = {}
        self._busy: set[str] = set()
        self._total: int | None = None
        """Bytes of all tenants: of the last sweep, plus the writes here since. None before the first."""

    def note_write(self, tenant: str, size: int) -> None:
        """Counts a write for a tenant. Starts the tenant's sweep where the write may exceed the limit."""
        known = self._sums.get(tenant)
        self._sums[tenant] = (known or 0) + size
        if self._total is not None:
            self._report(self._total + size)
        if len(self._sums) > _TENANTS:
            self._sums.pop(next(iter(self._sums)))
        if (known is None or known + size > self._max) and tenant not in self._busy:
            self._busy.add(tenant)
            self._tasks.spawn(self._on_bound_reached(tenant, learn=known is None), "bound the archive of a tenant")

    async def run_round(self) -> SweepResult | None:
        """Sweeps all tenants. To be called about every `EVERY` seconds, and at the start.

        Returns None where another worker does so or did recently, or the store is unavailable.
        """
        held = entries = size = tenants = 0
        with suppress(StoreUnavailable):
            async with self._store.lock(Key("", "bounds"), lease=_LEASE) as mine:
                mark = Key("", "bounds/round")
                if not mine:
                    return None
                if (before := await self._store.get(mark)) is not None:
                    if before.startswith(_HELD):
                        self._report(int(before.removeprefix(_HELD)))
                    return None
                await self._store.put(mark, b"1", ttl=EVERY * _LOW)
                after = ""
                while page := await self._store.scan(HOLDERS, after=after, limit=256):
                    after = page[-1][0]
                    for tenant, _ in page:
                        swept = await self.sweep(tenant)
                        held, entries, size = held + swept.held, entries + swept.entries, size + swept.size
                        tenants += 1
                await self._store.put(mark, _HELD + str(held).encode(), ttl=EVERY * _LOW)
            self._total = held
            swept = SweepResult(held, entries, size, tenants)
            self._told(swept)
            return swept
        return None

    def _report(self, total: int) -> None:
        """Reports the bytes of all tenants, as far as they are known without a sweep."""
        self._total = total
        self._told(SweepResult(total, 0, 0, tenants=1))

    async def _on_bound_reached(self, tenant: str, *, learn: bool) -> None:
        try:
            with suppress(StoreUnavailable):
                if learn:
                    sums = archive_entries.decode_sums(await self._store.get(archive_entries.sums_key(tenant)))
                    self._sums[tenant] = self._sums.get(tenant, 0) + sums.held
                if self._sums.get(tenant, 0) <= self._max:
                    return
                async with self._store.lock(Key("", f"bounds/{tenant}"), lease=_LEASE) as mine:
                    if mine:
                        swept = await self.sweep(tenant)
                        if swept.entries:
                            self._told(swept)
                            if self._total is not None:
                                self._report(max(0, self._total - swept.size))
                    else:
                        self._sums.pop(tenant, None)
        finally:
            self._busy.discard(tenant)

    # -- one tenant ---------------------------------------------------------------

    async def sweep(self, tenant: str) -> SweepResult:
        """Removes a tenant's entries that are too old or exceed the limit. Raises StoreUnavailable."""
        found: list[ArchiveEntry] = []
        async for page in archive_entries.entries(self._store, tenant):
            found += page
        found = sort_by_use(found)
        total, removed, freed = sum(entry.size for entry in found), 0, 0
        low = int(_LOW * self._max) if total > self._max else total
        while gone := self._choose_oldest(found, total, low):
            gone, named = await self._take_batch(tenant, gone)
            found = found[len(gone) :]
            stays = await self._remove(tenant, gone, named, found)
            size = sum(entry.size for entry in gone) - stays
            total, removed, freed = total - size, removed + len(gone), freed + size
        self._sums[tenant] = total
        if found:
            sums = archive_entries.encode(TenantTotals(total, self._clock.now()))
            await self._store.put(archive_entries.sums_key(tenant), sums, ttl=self._retention)
        else:
            await self._store.delete([archive_entries.sums_key(tenant), Key(HOLDERS, tenant)])
        return SweepResult(total, removed, freed)

    def _choose_oldest(self, found: Sequence[ArchiveEntry], total: int, low: int) -> list[ArchiveEntry]:
        """Returns the oldest entries, whose removal leaves at most `low` bytes.

        The newest entry always stays, as it is in use right now.
        """
        oldest, gone = self._clock.now() - self._retention, list[ArchiveEntry]()
        for entry in found:
            if not (entry.used < oldest or (total > low and len(gone) < len(found) - 1)):
                break
            gone.append(entry)
            total -= entry.size
        return gone

    async def _take_batch(self, tenant: str, gone: Sequence[ArchiveEntry]) -> tuple[list[ArchiveEntry], SharedValues]:
        """Returns as many of the entries as are removed in one batch, with their values."""
        taken, named = list[ArchiveEntry](), SharedValues()
        for at in range(0, len(gone), _PAGE):
            page = gone[at : at + _PAGE]
            taken += page
            for each in await archive_entries.contents(self._store, tenant, page):
                await self._tasks.offload(named.add, each)
            if len(named) > _KEYS:
                break
        return taken, named

    async def _remove(
        self, tenant: str, gone: Sequence[ArchiveEntry], named: SharedValues, rest: Sequence[ArchiveEntry]
    ) -> int:
        """Deletes entries, with the values that no other entry needs.

        Returns the bytes that stay because other entries need them.
        """
        more: dict[str, int] = {}
        # The newest first: shared values count towards the first entry found, and that one stays longest.
        for at in range(len(rest), 0, -_PAGE):
            page = rest[max(0, at - _PAGE) : at]
            read = await archive_entries.contents(self._store, tenant, page)
            kept = await self._tasks.offload(named.exclude_all, read)
            more.update((entry.name, size) for entry, size in zip(page, kept, strict=True) if size)
        await self._count_shared(tenant, more)
        collection = archive_entries.entries_collection(tenant)
        await delete(self._store, await self._tasks.offload(named.keys, tenant))
        await delete(self._store, [archive_entries.contents_key(tenant, each.id) for each in gone])
        await delete(self._store, [Key(collection, each.name) for each in gone])
        return sum(more.values())

    async def _count_shared(self, tenant: str, more: dict[str, int]) -> None:
        """Adds the bytes of shared values to the entries that stay."""
        collection = archive_entries.entries_collection(tenant)
        places = [Key(collection, name) for name in more]
        values = await self._store.get_many(places) if places else []
        puts = []
        for place, value in zip(places, values, strict=True):
            entry = archive_entries.decode_entry(value)
            if entry is not None:
                left = max(1.0, entry.used + self._retention - self._clock.now())
                grown = structs.replace(entry, size=entry.size + more[place.name])
                puts.append(Put(place, archive_entries.encode(grown), left))
        await self._store.write(puts)


def sort_by_use(found: Iterable[ArchiveEntry]) -> list[ArchiveEntry]:
    """Sorts entries by their last use, the oldest first.

    The use of a session counts for all its entries, and the use of a compaction for the compactions that it is based
    on, of whatever session.
    """
    known = list(found)
    sessions: dict[str, float] = {}
    for entry in known:
        sessions[entry.session] = max(entry.used, sessions.get(entry.session, 0.0))
    folds = {entry.id: entry for entry in known if entry.kind == "fold"}
    last = {name: sessions[entry.session] for name, entry in folds.items()}
    for name in sorted(last, key=lambda each: -last[each]):
        used, base = last[name], folds[name].base
        while base in last and last[base] < used:
            last[base] = used
            base = folds[base].base
    ages = [last[each.id] if each.kind == "fold" else sessions[each.session] for each in known]
    aged = [structs.replace(entry, used=used) for entry, used in zip(known, ages, strict=True)]
    return sorted(aged, key=lambda entry: (entry.used, entry.at, entry.name))


async def delete(store: KeyValueStore, keys: Iterable[Key]) -> int:
    """Deletes keys in small batches; returns how many had a value. Raises StoreUnavailable."""
    listed, count = list(keys), 0
    for at in range(0, len(listed), _DELETED):
        count += await store.delete(listed[at : at + _DELETED])
    return count
