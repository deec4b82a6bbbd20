"""The bounds of what is kept of each tenant: by bytes and by age, the longest unused goes first.

What expires by age goes by itself in the store, where everything has a time to live. What exceeds the bytes is removed
in rounds, a few times an hour and when a write crosses the bound, by one worker at a time and never while a request
waits for it. Whole entries go; what an entry that stays names too stays with it, and is counted there from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from msgspec import structs

from accordion.archive import archive_entries
from accordion.archive.archive_entries import HOLDERS, ArchiveEntry, TenantTotals
from accordion.archive.shared_values import SharedValues
from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Clock, Key, KeyValueStore, Put, Tasks
from accordion.model.values import dataclass

EVERY = 1_200.0
"""Seconds between two rounds."""

_LEASE = 900.0
_HELD = b"held:"
"""Stands before the sum of a round in its mark, for workers that begin between two rounds."""
_LOW = 0.9
"""How far below the bound a round goes, so that not every write begins another."""
_KEYS = 100_000
"""So many keys are looked for at once in what stays."""
_PAGE = 16
_DELETED = 200
_TENANTS = 10_000


@dataclass(frozen=True, slots=True)
class SweepResult:
    """What a round came to: bytes that are held of all tenants that it looked at, at most (what several workers wrote
    counts for each); entries and bytes that were removed. `tenants` is 0 where only one was looked at."""

    held: int
    entries: int
    size: int
    tenants: int = 0


class Retention:
    """Keeps each tenant within `max_bytes` and `retention` seconds. `told` hears of every round that was made here."""

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
        """Bytes of all tenants: those of the last round, and what was written here since. None before the first."""

    def note_write(self, tenant: str, size: int) -> None:
        """Something was kept for a tenant. Where that may cross the bound, its round begins."""
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
        """Looks through all tenants; None where another worker does, or did of late, or the store is away. To be called
        about every `EVERY` seconds, and at the start."""
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
        """Says how many bytes all tenants hold, as far as that is known without looking through the archive."""
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
        """Removes what is too old or too much of a tenant. Raises StoreUnavailable."""
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
        """The oldest entries, those that must go so that no more than `low` bytes stay. The newest stays in any case:
        it is what is in use right now."""
        oldest, gone = self._clock.now() - self._retention, list[ArchiveEntry]()
        for entry in found:
            if not (entry.used < oldest or (total > low and len(gone) < len(found) - 1)):
                break
            gone.append(entry)
            total -= entry.size
        return gone

    async def _take_batch(self, tenant: str, gone: Sequence[ArchiveEntry]) -> tuple[list[ArchiveEntry], SharedValues]:
        """So many of these entries as are removed in one go, with what they name."""
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
        """Deletes entries with what no other names. Gives the bytes of them that stay for others' sake."""
        more: dict[str, int] = {}
        # The newest first: what stays is counted there from now on, and so for long.
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
        """Entries that stay count what they share with those that go."""
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
    """Entries by when they were last used, the oldest first. Who uses a session uses all of it, and who uses a fold
    those that it goes on from, of whatever session."""
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
    """Removes keys in small batches; gives how many held something. Raises StoreUnavailable."""
    listed, count = list(keys), 0
    for at in range(0, len(listed), _DELETED):
        count += await store.delete(listed[at : at + _DELETED])
    return count
