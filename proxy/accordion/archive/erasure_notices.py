"""What was erased, told to whoever may have it still: other workers' memory, and what waits on other machines.

A note of each erasure lies in the store, without a word of what was said. One key changes with every note, so that to
look for new ones costs one read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress

import msgspec

from accordion.archive import archive_entries
from accordion.archive.artifacts import tenant_name
from accordion.archive.shared_values import SharedValues
from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Append, Clock, ErasedWrites, Key, KeyValueStore, Put

Listener = Callable[[str, str | None], None]
"""Hears a tenant (see `tenant_of`) and the session that was erased; None: all of them."""

LOOK = 1.0
"""Seconds between two looks for what others erased."""
_HEARD = LOOK + 0.5
"""Seconds after which others have looked, and have written what they were writing then."""
_LONGEST = 86_400.0
"""Seconds that no reply lasts."""
_NOTES, _LAST = "erased", Key("", "erased/last")
_PAGE = 1_000


class ErasureNotice(msgspec.Struct, frozen=True, array_like=True):
    """One erasure; `at` is seconds since the epoch, `session` None where all of the tenant's were erased. `over`: that
    was the last of it, behind a note that everybody had time to hear."""

    tenant: str
    session: str | None
    at: float
    over: bool = False


_ENCODER, _DECODER = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(ErasureNotice)


class ErasureNotices:
    """Notes erasures, and hears of those that others noted. `retention` (seconds) is how long a note is kept: as long
    as what it is about could be anywhere. `wait` waits for so many seconds; None where nobody else uses the store."""

    def __init__(
        self,
        store: KeyValueStore,
        clock: Clock,
        retention: float,
        wait: Callable[[float], Awaitable[object]] | None = None,
    ) -> None:
        self._wait = wait
        self._store = store
        self._clock = clock
        self._retention = retention
        self._listeners: list[Listener] = []
        self._last: bytes | None = None
        self._began = clock.now()
        self._seen: dict[str, bytes] = {}
        self._told: dict[tuple[str, str | None], float] = {}
        """Of each erasure, when what it is about began at the latest, by the monotonic clock."""
        self._under_way: set[tuple[str, str | None]] = set()
        """Erasures of whose end nothing was heard yet."""

    def listen(self, listener: Listener) -> None:
        """Tells this listener of every erasure from now on. It must be quick and must not raise."""
        self._listeners.append(listener)

    async def note(self, tenant_key: bytes, session: str | None, *, over: bool = False) -> None:
        """Notes an erasure: no worker may use the erased values any more. Raises StoreUnavailable.

        `over`: they are gone, and what begins from here on is stored.
        """
        note = ErasureNotice(tenant_name(tenant_key), session, self._clock.now(), over)
        value = _ENCODER.encode(note)
        digest = hashlib.sha256(value).digest()
        for key, written in ((Key(_NOTES, _name(note)), value), (_LAST, digest)):
            await self._store.write([Put(key, written, self._retention, for_erasing=True)])
        self._seen = {**self._seen, _name(note): value}
        self._notify(note)

    @property
    def is_only_user(self) -> bool:
        """Whether nobody else uses the store."""
        return self._wait is None

    async def announce(self, tenant_key: bytes, session: str | None) -> None:
        """Notes it, and waits until others have heard, where there are any. Raises StoreUnavailable."""
        await self.note(tenant_key, session)
        if self._wait is not None:
            await self._wait(_HEARD)

    def was_erased_since(self, tenant_key: bytes, session: str, began: float) -> bool:
        """Whether the session, or all of its tenant's, was erased after `began` (seconds, by the monotonic clock), as
        far as this worker heard: then nothing that began there may be kept any more. Quick: it is asked at each
        reply."""
        if not self._told:
            return False
        tenant = tenant_name(tenant_key)
        return any(self._told.get((tenant, name), began) > began for name in (session, None))

    async def poll(self) -> None:
        """Learns what others erased. To be called every LOOK seconds; never fails. What was noted before this worker
        began is taken for known: it is nothing that it has in memory."""
        with suppress(StoreUnavailable):
            last = await self._store.get(_LAST) or b""
            if last == self._last:
                return
            while True:
                known, seen = self._seen, await self._notes()
                if self._seen is known:  # Else something was noted here meanwhile, and what was read may be older.
                    break
            first, self._last, self._seen = self._last is None, last, seen
            for note in _read(value for name, value in seen.items() if known.get(name) != value):
                if not first or note.at > self._began:
                    self._notify(note, self._seconds_since(note))

    def lists(self, key: Key) -> bool:
        """See ErasureLog."""
        return archive_entries.is_listing(key)

    async def find_erased(self, writes: Sequence[Put | Append]) -> ErasedWrites:
        """See ErasureLog. What others of these writes, or what the store has, need too is not among it."""
        notes = _read((await self._notes()).values())
        if not notes:
            return ErasedWrites()
        values = {write.key: write.value for write in writes if isinstance(write, Put)}
        logs = dict[Key, list[Append]]()
        for write in writes:
            if isinstance(write, Append):
                logs.setdefault(write.key, []).append(write)
        gone: dict[str, SharedValues] = {}
        stays = list[tuple[str, archive_entries.EntryContents]]()
        keys, appends = set[Key](), set[Append]()
        for key, value in values.items():
            tenant, entry = key.collection.removeprefix("held/"), archive_entries.decode_entry(value)
            if entry is None or key.collection != archive_entries.entries_collection(tenant):
                continue
            place, is_gone = (
                archive_entries.contents_key(tenant, entry.id),
                _covers(notes, tenant, entry.session, entry.at),
            )
            keys.update([key, place] if is_gone else [])
            named = [(_contents_of_entry(entry, values.get(place)), is_gone)]
            # A session that goes on has one entry, and what was said before and after the erasure is in one log.
            for append in logs.get(archive_entries.transcript_key(tenant, entry.session), ()):
                said = archive_entries.decode_transcript([(0, append.value)])
                is_gone = _covers(notes, tenant, entry.session, said[0].at if said else 0.0)
                appends.update([append] if is_gone else [])
                named.append((archive_entries.contents_of_log(tenant, entry.session, said), is_gone))
            for contents, is_gone in named:
                if is_gone:
                    gone.setdefault(tenant, SharedValues()).add(contents)
                else:
                    stays.append((tenant, contents))
        renewed = set[Key]()
        for tenant, each in gone.items():
            each.exclude_all(contents for other, contents in stays if other == tenant)
            # What was stored since may name the same content, and its rows may be among the writes.
            async for page in archive_entries.entries(self._store, tenant):
                newer = [entry for entry in page if not _covers(notes, tenant, entry.session, entry.at)]
                each.exclude_all(await archive_entries.contents(self._store, tenant, newer))
                renewed.update(key for entry in newer for key in archive_entries.keys_of(tenant, entry))
            keys.update(each.keys(tenant))
        return ErasedWrites(frozenset(keys), frozenset(appends), frozenset(keys - renewed))

    async def _notes(self) -> dict[str, bytes]:
        found, after = dict[str, bytes](), ""
        while page := await self._store.scan(_NOTES, after=after, limit=_PAGE):
            found.update(page)
            after = page[-1][0]
            if len(page) < _PAGE:
                break
        return found

    def _seconds_since(self, note: ErasureNotice) -> float:
        """How many seconds ago the last thing began that another's note is about: what begins before this worker hears
        of an erasure may go on from what is erased.

        Of one that it heard of in time, the end says no more than what began before it: what is said as soon as the
        erasure was answered is kept. Where machines' clocks are apart, it is at most a look ago, and not to come.
        """
        in_time = note.over and (note.tenant, note.session) in self._under_way
        return min(LOOK, max(0.0, self._clock.now() - note.at)) if in_time else 0.0

    def _notify(self, note: ErasureNotice, ago: float = 0.0) -> None:
        now, name = self._clock.monotonic(), (note.tenant, note.session)
        self._told[name] = max(now - ago, self._told.pop(name, now - ago))
        (self._under_way.discard if note.over else self._under_way.add)(name)
        while now - self._told[oldest := next(iter(self._told))] > _LONGEST:
            del self._told[oldest]
            self._under_way.discard(oldest)
        for listener in self._listeners:
            listener(note.tenant, note.session)


def _name(note: ErasureNotice) -> str:
    return f"{note.tenant}/{archive_entries.prefix(note.session) if note.session is not None else ''}"


def _covers(notes: Iterable[ErasureNotice], tenant: str, session: str, at: float) -> bool:
    return any(note.tenant == tenant and note.session in (None, session) and at <= note.at for note in notes)


def _contents_of_entry(entry: archive_entries.ArchiveEntry, value: bytes | None) -> archive_entries.EntryContents:
    """What belongs to an entry, except for a transcript's log; `value` is the record of its contents, if any."""
    keys = [(*entry.place, entry.size)] if entry.place is not None else []
    return archive_entries.decode_contents(value) or archive_entries.EntryContents(entry.session, keys=keys)


def _read(values: Iterable[bytes]) -> list[ErasureNotice]:
    notes = []
    for value in values:
        with suppress(msgspec.MsgspecError):
            notes.append(_DECODER.decode(value))
    return notes
