"""Notifies all workers of erasures: of values in their memory, and of writes that wait on other machines.

Theory of operation: each erasure has a notice in the store, without any content of a conversation. A second key changes
with every notice, so that a check for new notices costs one read. `poll` checks every `CHECK_INTERVAL` seconds and
calls the listeners. `find_erased` checks pending writes against the notices before they are stored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress

import msgspec

from accordion.archive import archive_entries
from accordion.archive.archive_entries import SharedValues
from accordion.archive.retention import delete
from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Append, Clock, ErasedWrites, Key, KeyValueStore, Put
from accordion.model.tenant import ArchiveNamespace, TenantScope

Listener = Callable[[ArchiveNamespace, str | None], None]
"""Called with a tenant and the erased session; None: all of the tenant's sessions."""

CHECK_INTERVAL = 1.0
"""Seconds between two checks for erasures of other workers."""
_DELIVERY_SECONDS = CHECK_INTERVAL + 0.5
"""Seconds after which other workers have checked, and have finished the writes of that moment."""
_LONGEST = 86_400.0
"""Seconds that no response lasts."""
_NOTICES, _LAST = "erased", Key("", "erased/last")
_PAGE = 1_000


class ErasureNotice(msgspec.Struct, frozen=True, array_like=True):
    """One erasure, at `at` seconds since the epoch. `session` is None if all of the tenant's were erased.

    `is_complete`: the erasure is complete; an earlier notice gave every worker time to react.
    """

    namespace: ArchiveNamespace
    session: str | None
    at: float
    is_complete: bool = False


_ENCODER, _DECODER = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(ErasureNotice)


class ErasureNotices:
    """Publishes erasures and receives those of other workers.

    `retention` is the time for which a notice is stored, in seconds: as long as erased values may exist anywhere.
    `wait` waits for a number of seconds; None if no other process uses the store.
    """

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
        self._listeners_to_others: list[Listener] = []
        self._last: bytes | None = None
        self._started_at = clock.now()
        self._received: dict[str, bytes] = {}
        self._erased_at: dict[tuple[str, str | None], float] = {}
        """By erasure, the monotonic time: requests that began before it may use erased values."""
        self._unfinished: set[tuple[str, str | None]] = set()
        """Erasures whose end was not announced yet."""

    def listen(self, listener: Listener) -> None:
        """Calls the listener at every erasure from now on. It must be quick and must not raise."""
        self._listeners.append(listener)

    def listen_to_others(self, listener: Listener) -> None:
        """Calls the listener at every erasure of another worker. It must be quick and must not raise."""
        self._listeners_to_others.append(listener)

    async def publish(self, tenant: TenantScope, session: str | None, *, is_complete: bool = False) -> None:
        """Publishes an erasure: no worker may use the erased values any more. Raises StoreUnavailable.

        `is_complete`: the values are removed, and requests that begin from now on are stored.
        """
        notice = ErasureNotice(tenant.archive_namespace, session, self._clock.now(), is_complete)
        value = _ENCODER.encode(notice)
        digest = hashlib.sha256(value).digest()
        for key, content in ((Key(_NOTICES, _name(notice)), value), (_LAST, digest)):
            await self._store.write([Put(key, content, self._retention, for_erasing=True)])
        self._received = {**self._received, _name(notice): value}
        self._notify(notice)

    @property
    def is_only_user(self) -> bool:
        """Whether no other process uses the store."""
        return self._wait is None

    async def announce(self, tenant: TenantScope, session: str | None) -> None:
        """Publishes an erasure, and waits until other workers have received it, if there are any.

        Raises StoreUnavailable.
        """
        await self.publish(tenant, session)
        if self._wait is not None:
            await self._wait(_DELIVERY_SECONDS)

    def was_erased_since(self, tenant: TenantScope, session: str, started_at: float) -> bool:
        """Whether the session, or all of its tenant's, was erased after `started_at`, as far as this worker knows.

        `started_at` is in seconds, by the monotonic clock. If so, nothing of a request that began then may be stored
        any more. Quick: it is called at each response.
        """
        if not self._erased_at:
            return False
        namespace = tenant.archive_namespace
        return any(self._erased_at.get((namespace, name), started_at) > started_at for name in (session, None))

    async def poll(self) -> None:
        """Receives the erasures of other workers. To be called every `CHECK_INTERVAL` seconds; never fails.

        Notices from before this worker started are skipped: its memory never had the values that they erased.
        """
        with suppress(StoreUnavailable):
            last = await self._store.get(_LAST) or b""
            if last == self._last:
                return
            while True:
                previous, received = self._received, await self._load_notices()
                if self._received is previous:  # Else a notice was published here meanwhile.
                    break
            is_first, self._last, self._received = self._last is None, last, received
            for notice in _decode_notices(value for name, value in received.items() if previous.get(name) != value):
                if not is_first or notice.at > self._started_at:
                    self._notify(notice, self._seconds_since(notice))
                    for listener in self._listeners_to_others:
                        listener(notice.namespace, notice.session)

    async def remove_if_erased(
        self, tenant: TenantScope, session: str, started_at: float, writes: Sequence[Put | Append]
    ) -> bool:
        """Removes writes of a session from the store if the session was erased after `started_at`; returns whether it
        was.

        To be called after the writes. An erasure publishes its notice before it searches the store, so it finds these
        writes, or its notice is found here. Never fails: while the store is unavailable the writes wait in the spool,
        which checks them for erasures too.
        """
        await self.poll()
        if not self.was_erased_since(tenant, session, started_at):
            return False
        with suppress(StoreUnavailable):
            await delete(self._store, (await self.find_erased(writes)).stored_keys)
        return True

    async def find_erased(self, writes: Sequence[Put | Append]) -> ErasedWrites:
        """Returns those of the pending writes, and of the keys that they list, that were erased.

        Values that other pending writes or stored entries need are left out. Raises StoreUnavailable.
        """
        notices = _decode_notices((await self._load_notices()).values())
        if not notices:
            return ErasedWrites()
        values = {write.key: write.value for write in writes if isinstance(write, Put)}
        logs = dict[Key, list[Append]]()
        for write in writes:
            if isinstance(write, Append):
                logs.setdefault(write.key, []).append(write)
        erased_values: dict[ArchiveNamespace, SharedValues] = {}
        other_contents = list[tuple[ArchiveNamespace, archive_entries.EntryContents]]()
        keys, appends = set[Key](), set[Append]()
        for key, value in values.items():
            namespace, entry = archive_entries.namespace_of(key), archive_entries.decode_entry(value)
            if entry is None or namespace is None:
                continue
            contents_key, is_erased = (
                archive_entries.contents_key(namespace, entry.id),
                _covers(notices, namespace, entry.session, entry.at),
            )
            keys.update([key, contents_key] if is_erased else [])
            all_contents = [(_contents_of_entry(entry, values.get(contents_key)), is_erased)]
            # A continued session has one entry, and one log for the messages before and after the erasure.
            for append in logs.get(archive_entries.transcript_key(namespace, entry.session), ()):
                log_entries = archive_entries.decode_transcript([(0, append.value)])
                is_erased = _covers(notices, namespace, entry.session, log_entries[0].at if log_entries else 0.0)
                appends.update([append] if is_erased else [])
                all_contents.append((archive_entries.contents_of_log(namespace, entry.session, log_entries), is_erased))
            for contents, is_erased in all_contents:
                if is_erased:
                    erased_values.setdefault(namespace, SharedValues()).add(contents)
                else:
                    other_contents.append((namespace, contents))
        needed_keys = set[Key]()
        for namespace, each in erased_values.items():
            each.exclude_all(contents for other, contents in other_contents if other == namespace)
            # Entries that were stored since may need the same values, whose rows may be among the writes.
            async for page in archive_entries.scan_entries(self._store, namespace):
                newer = [entry for entry in page if not _covers(notices, namespace, entry.session, entry.at)]
                each.exclude_all(await archive_entries.load_contents(self._store, namespace, newer))
                needed_keys.update(key for entry in newer for key in archive_entries.keys_of(namespace, entry))
            keys.update(each.keys(namespace))
        return ErasedWrites(frozenset(keys), frozenset(appends), frozenset(keys - needed_keys))

    async def _load_notices(self) -> dict[str, bytes]:
        notices, after = dict[str, bytes](), ""
        while page := await self._store.scan(_NOTICES, after=after, limit=_PAGE):
            notices.update(page)
            after = page[-1][0]
            if len(page) < _PAGE:
                break
        return notices

    def _seconds_since(self, notice: ErasureNotice) -> float:
        """Returns how many seconds ago the last request may have begun that another worker's erasure affects.

        Without an earlier notice it is 0: any request that began before this worker received the erasure may continue
        from erased values. If the worker received the first notice in time, the final notice affects only requests that
        began before it, so that requests after the erasure's answer are stored. As machines' clocks may differ, it is 0
        to `CHECK_INTERVAL` seconds.
        """
        in_time = notice.is_complete and (notice.namespace, notice.session) in self._unfinished
        return min(CHECK_INTERVAL, max(0.0, self._clock.now() - notice.at)) if in_time else 0.0

    def _notify(self, notice: ErasureNotice, seconds_ago: float = 0.0) -> None:
        now, name = self._clock.monotonic(), (notice.namespace, notice.session)
        self._erased_at[name] = max(now - seconds_ago, self._erased_at.pop(name, now - seconds_ago))
        (self._unfinished.discard if notice.is_complete else self._unfinished.add)(name)
        while now - self._erased_at[oldest := next(iter(self._erased_at))] > _LONGEST:
            del self._erased_at[oldest]
            self._unfinished.discard(oldest)
        for listener in self._listeners:
            listener(notice.namespace, notice.session)


def _name(notice: ErasureNotice) -> str:
    return f"{notice.namespace}/{archive_entries.session_prefix(notice.session) if notice.session is not None else ''}"


def _covers(notices: Iterable[ErasureNotice], namespace: ArchiveNamespace, session: str, at: float) -> bool:
    return any(
        notice.namespace == namespace and notice.session in (None, session) and at <= notice.at for notice in notices
    )


def _contents_of_entry(entry: archive_entries.ArchiveEntry, value: bytes | None) -> archive_entries.EntryContents:
    """Returns the contents of an entry, without a transcript's log.

    `value` is the record of its contents, if any.
    """
    keys = [(*entry.value_key, entry.size)] if entry.value_key is not None else []
    return archive_entries.decode_contents(value) or archive_entries.EntryContents(entry.session, keys=keys)


def _decode_notices(values: Iterable[bytes]) -> list[ErasureNotice]:
    notices = []
    for value in values:
        with suppress(msgspec.MsgspecError):
            notices.append(_DECODER.decode(value))
    return notices
