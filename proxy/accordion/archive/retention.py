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
from accordion.archive.archive_entries import TENANTS_WITH_ARCHIVE, ArchiveEntry, SharedValues, TenantTotals
from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Clock, Key, KeyValueStore, Put, Tasks
from accordion.model.tenant import ArchiveNamespace

ROUND_SECONDS = 1_200.0
"""Seconds between two sweeps of all tenants."""

_ROUND_MARK_SECONDS = 0.9 * ROUND_SECONDS
"""Seconds for which a sweep of all tenants keeps other workers from another one; less than the time between two."""
_LEASE = 900.0
"""Seconds after which another worker may take the lock of a sweep."""
_SUM_PREFIX = b"held:"
"""Prefix of the last sweep's sum in the store, for workers that start between two sweeps."""
_TARGET_SHARE = 0.9
"""The share of the limit down to which a sweep removes, so that not every write starts another."""
_MAX_BATCH_VALUES = 100_000
"""Number of values from which on no more entries are added to a batch that is removed."""
_PAGE = 16
_DELETE_BATCH = 200
_TENANTS = 10_000


class SweepResult(msgspec.Struct, frozen=True):
    """The result of a sweep.

    `stored_bytes` are the bytes that all examined tenants have, at most: bytes that several workers wrote count for
    each of them. `entries` and `size` are the number and the bytes of removed entries. `tenants` is 0 for the sweep of
    one tenant.
    """

    stored_bytes: int
    entries: int
    size: int
    tenants: int = 0


class Retention:
    """Keeps each tenant's archive within `max_bytes` and `retention` seconds.

    `on_sweep` is called with the result of every sweep of this worker.
    """

    def __init__(
        self,
        store: KeyValueStore,
        tasks: Tasks,
        clock: Clock,
        *,
        max_bytes: int = 2 * 2**30,
        retention: float = 30 * 86_400.0,
        on_sweep: Callable[[SweepResult], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._tasks = tasks
        self._clock = clock
        self._max = max_bytes
        self._retention = retention
        self._on_sweep = on_sweep
        self._stored_bytes: dict[str, int] = {}
        self._sweeping: set[str] = set()
        self._total: int | None = None
        """Bytes of all tenants: of the last sweep, plus the writes here since. None before the first."""

    def note_write(self, namespace: ArchiveNamespace, size: int) -> None:
        """Counts a write for a tenant. Starts the tenant's sweep if the write may exceed the limit."""
        known_size = self._stored_bytes.get(namespace)
        self._stored_bytes[namespace] = (known_size or 0) + size
        if self._total is not None:
            self._report(self._total + size)
        if len(self._stored_bytes) > _TENANTS:
            self._stored_bytes.pop(next(iter(self._stored_bytes)))
        if (known_size is None or known_size + size > self._max) and namespace not in self._sweeping:
            self._sweeping.add(namespace)
            self._tasks.spawn(
                self._on_bound_reached(namespace, is_size_unknown=known_size is None), "bound the archive of a tenant"
            )

    async def run_round(self) -> SweepResult | None:
        """Sweeps all tenants. To be called about every `ROUND_SECONDS` seconds, and at the start.

        Returns None if another worker does so or did recently, or the store is unavailable.
        """
        stored_bytes = entries = size = tenants = 0
        with suppress(StoreUnavailable):
            async with self._store.lock(Key("", "bounds"), lease=_LEASE) as is_acquired:
                round_key = Key("", "bounds/round")
                if not is_acquired:
                    return None
                if (last_round := await self._store.get(round_key)) is not None:
                    if (total := last_round.removeprefix(_SUM_PREFIX)).isdigit() and total != last_round:
                        self._report(int(total))
                    return None
                await self._store.put(round_key, b"1", ttl=_ROUND_MARK_SECONDS)
                after = ""
                while page := await self._store.scan(TENANTS_WITH_ARCHIVE, after=after, limit=256):
                    after = page[-1][0]
                    for name, _ in page:
                        result = await self.sweep(ArchiveNamespace(name))
                        stored_bytes += result.stored_bytes
                        entries, size = entries + result.entries, size + result.size
                        tenants += 1
                await self._store.put(round_key, _SUM_PREFIX + str(stored_bytes).encode(), ttl=_ROUND_MARK_SECONDS)
            self._total = stored_bytes
            result = SweepResult(stored_bytes, entries, size, tenants)
            self._on_sweep(result)
            return result
        return None

    def _report(self, total: int) -> None:
        """Reports the bytes of all tenants, as far as they are known without a sweep."""
        self._total = total
        self._on_sweep(SweepResult(total, 0, 0, tenants=1))

    async def _on_bound_reached(self, namespace: ArchiveNamespace, *, is_size_unknown: bool) -> None:
        try:
            with suppress(StoreUnavailable):
                if is_size_unknown:
                    sums = archive_entries.decode_totals(await self._store.get(archive_entries.totals_key(namespace)))
                    self._stored_bytes[namespace] = self._stored_bytes.get(namespace, 0) + sums.stored_bytes
                if self._stored_bytes.get(namespace, 0) <= self._max:
                    return
                async with self._store.lock(Key("", f"bounds/{namespace}"), lease=_LEASE) as is_acquired:
                    if is_acquired:
                        result = await self.sweep(namespace)
                        if result.entries:
                            self._on_sweep(result)
                            if self._total is not None:
                                self._report(max(0, self._total - result.size))
                    else:
                        self._stored_bytes.pop(namespace, None)
        finally:
            self._sweeping.discard(namespace)

    # -- one tenant ---------------------------------------------------------------

    async def sweep(self, namespace: ArchiveNamespace) -> SweepResult:
        """Removes a tenant's entries that are too old or exceed the limit. Raises StoreUnavailable."""
        remaining: list[ArchiveEntry] = []
        async for page in archive_entries.scan_entries(self._store, namespace):
            remaining += page
        remaining = sort_by_use(remaining)
        total, removed_count, freed = sum(entry.size for entry in remaining), 0, 0
        target = int(_TARGET_SHARE * self._max) if total > self._max else total
        while oldest := self._choose_oldest(remaining, total, target):
            oldest, values = await self._load_batch(namespace, oldest)
            remaining = remaining[len(oldest) :]
            shared_bytes = await self._remove(namespace, oldest, values, remaining)
            size = sum(entry.size for entry in oldest) - shared_bytes
            total, removed_count, freed = total - size, removed_count + len(oldest), freed + size
        self._stored_bytes[namespace] = total
        if remaining:
            sums = archive_entries.encode(TenantTotals(total, self._clock.now()))
            await self._store.put(archive_entries.totals_key(namespace), sums, ttl=self._retention)
        else:
            await self._store.delete([archive_entries.totals_key(namespace), Key(TENANTS_WITH_ARCHIVE, namespace)])
        return SweepResult(total, removed_count, freed)

    def _choose_oldest(self, entries: Sequence[ArchiveEntry], total: int, target: int) -> list[ArchiveEntry]:
        """Returns the oldest entries, whose removal leaves at most `target` bytes.

        The newest entry always stays, as it is in use right now.
        """
        expiry, chosen = self._clock.now() - self._retention, list[ArchiveEntry]()
        for entry in entries:
            if not (entry.used < expiry or (total > target and len(chosen) < len(entries) - 1)):
                break
            chosen.append(entry)
            total -= entry.size
        return chosen

    async def _load_batch(
        self, namespace: ArchiveNamespace, entries: Sequence[ArchiveEntry]
    ) -> tuple[list[ArchiveEntry], SharedValues]:
        """Returns the entries that are removed in one batch, with their values."""
        batch, values = list[ArchiveEntry](), SharedValues()
        for at in range(0, len(entries), _PAGE):
            page = entries[at : at + _PAGE]
            batch += page
            for each in await archive_entries.load_contents(self._store, namespace, page):
                await self._tasks.offload(values.add, each)
            if len(values) > _MAX_BATCH_VALUES:
                break
        return batch, values

    async def _remove(
        self,
        namespace: ArchiveNamespace,
        entries: Sequence[ArchiveEntry],
        values: SharedValues,
        rest: Sequence[ArchiveEntry],
    ) -> int:
        """Deletes entries, with the values that no other entry needs.

        Returns the bytes that stay because other entries need them.
        """
        sizes_by_name: dict[str, int] = {}
        # The newest first: shared values count towards the first entry found, and that one stays longest.
        for at in range(len(rest), 0, -_PAGE):
            page = rest[max(0, at - _PAGE) : at]
            contents = await archive_entries.load_contents(self._store, namespace, page)
            shared_sizes = await self._tasks.offload(values.exclude_all, contents)
            sizes_by_name.update((entry.name, size) for entry, size in zip(page, shared_sizes, strict=True) if size)
        await self._count_shared(namespace, sizes_by_name)
        collection = archive_entries.entries_collection(namespace)
        await delete(self._store, await self._tasks.offload(values.keys, namespace))
        await delete(self._store, [archive_entries.contents_key(namespace, each.id) for each in entries])
        await delete(self._store, [Key(collection, each.name) for each in entries])
        return sum(sizes_by_name.values())

    async def _count_shared(self, namespace: ArchiveNamespace, sizes_by_name: dict[str, int]) -> None:
        """Adds the bytes of shared values to the entries that stay."""
        collection = archive_entries.entries_collection(namespace)
        keys = [Key(collection, name) for name in sizes_by_name]
        values = await self._store.get_many(keys) if keys else []
        puts = []
        for key, value in zip(keys, values, strict=True):
            entry = archive_entries.decode_entry(value)
            if entry is not None:
                seconds_left = max(1.0, entry.used + self._retention - self._clock.now())
                updated = structs.replace(entry, size=entry.size + sizes_by_name[key.name])
                puts.append(Put(key, archive_entries.encode(updated), seconds_left))
        await self._store.write(puts)


def sort_by_use(entries: Iterable[ArchiveEntry]) -> list[ArchiveEntry]:
    """Sorts entries by their last use, the oldest first.

    The use of a session counts for all its entries, and the use of a compaction for the compactions that it is based
    on, of whatever session.
    """
    entry_list = list(entries)
    sessions: dict[str, float] = {}
    for entry in entry_list:
        sessions[entry.session] = max(entry.used, sessions.get(entry.session, 0.0))
    compactions = {entry.id: entry for entry in entry_list if entry.kind == "compaction"}
    last_use_by_id = {name: sessions[entry.session] for name, entry in compactions.items()}
    for name in sorted(last_use_by_id, key=lambda each: -last_use_by_id[each]):
        used, base = last_use_by_id[name], compactions[name].base
        while base in last_use_by_id and last_use_by_id[base] < used:
            last_use_by_id[base] = used
            base = compactions[base].base
    last_uses = [
        last_use_by_id[each.id] if each.kind == "compaction" else sessions[each.session] for each in entry_list
    ]
    dated_entries = [structs.replace(entry, used=used) for entry, used in zip(entry_list, last_uses, strict=True)]
    return sorted(dated_entries, key=lambda entry: (entry.used, entry.at, entry.name))


async def delete(store: KeyValueStore, keys: Iterable[Key]) -> int:
    """Deletes keys in small batches; returns how many had a value. Raises StoreUnavailable."""
    all_keys, count = list(keys), 0
    for at in range(0, len(all_keys), _DELETE_BATCH):
        count += await store.delete(all_keys[at : at + _DELETE_BATCH])
    return count
