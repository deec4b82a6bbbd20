"""Transcripts: the messages that the client sent in a session, byte for byte.

Theory of operation. The transcript of a session is a log (`transcript_log`) of lists of message keys; the messages
themselves are rows of the archive, which forked sessions and compactions share. A request holds the whole conversation
so far, so `TranscriptStore.record` gathers requests, and a background task writes a batch of them half a second later.
`ProgressTable` has how far each session is recorded; `_plan` makes of that and a request the list of new messages
(`WritePlan`), and `PackedRows` the writes. Whatever is not known to be stored is written with the next request that
holds it. No request to a provider ever waits for a transcript.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Literal

import msgspec
from msgspec.structs import replace

from accordion.archive import archive_entries
from accordion.archive.archive import Archive
from accordion.archive.archive_entries import AFTER_PROVIDER_HISTORY, OVERHEAD, ArchiveEntry, TranscriptEntry
from accordion.archive.artifacts import make_packer, row_key
from accordion.archive.differences import count_common_prefix
from accordion.archive.transcript_log import (
    LogState,
    OriginalHistory,
    Transcript,
    build_body,
    fields_json,
    load_transcript,
    options_digest,
    replay_log,
    system_json,
)
from accordion.model.cache import BoundedCache, count_entry
from accordion.model.conversation import Conversation, Message
from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Append, Clock, Key, Put, Tasks
from accordion.model.tenant import ArchiveNamespace, TenantScope
from accordion.protocols.registry import PROTOCOLS

Record = Literal["off", "compacted", "all"]
"""The sessions that are recorded: none, those with a compaction (from their first one on), or all."""

SessionKey = tuple[TenantScope, str]
"""A tenant's key and a session."""

_MAX_BATCH = 32
"""Requests that are written at once."""
_GATHER_SECONDS = 0.5
"""Seconds that new requests wait for others: a transaction costs several times as much as a message in it."""
_MAX_INLINE_PACK = 32_768
"""Bytes that are compressed at once; more of them in a thread, so that requests need not wait."""
_MAX_ENTRIES = 256
"""Entries of a log after which the whole list is written again, in one entry."""
_MAX_LOG = 8_192
"""Entries that the store keeps of a log."""
_PAGE = 256


class TranscriptStore:
    """Records sessions in an archive, and reads their transcripts.

    `mode` selects the sessions. `wait` waits for a number of seconds; without it no requests are gathered. The progress
    of the last `sessions` is cached; for others the store is read.
    """

    def __init__(
        self,
        archive: Archive,
        tasks: Tasks,
        clock: Clock,
        mode: Record = "compacted",
        wait: Callable[[float], Awaitable[object]] | None = None,
        sessions: int = 4_000,
    ) -> None:
        self._archive = archive
        self._tasks = tasks
        self._clock = clock
        self._mode = mode
        self._wait = wait
        self._progress = ProgressTable(sessions)
        self._gathered: dict[SessionKey, list[RecordedRequest]] = {}
        self._is_writing = False

    # -- recording ----------------------------------------------------------------

    def record(
        self,
        tenant: TenantScope,
        session: str,
        conversation: Conversation,
        *,
        compacted: bool,
        after: bytes = b"",
        is_new_list: bool = False,
    ) -> None:
        """Records a request of a session, as the client sent it. Fast: a background task writes the new messages.

        `compacted` is whether a compaction is in force for it, or the client makes one itself; `after` the chain key of
        the part that the provider keeps, if that is known; `is_new_list`: see RecordedRequest.
        """
        if not self._is_new(tenant, session, conversation, compacted=compacted):
            return
        request = RecordedRequest(tenant, session, conversation, self._clock.now(), after, is_new_list)
        requests = self._gathered.setdefault(request.session_key, [])
        if requests and _is_prefix_of(requests[-1].conversation, conversation):
            requests[-1] = replace(request, is_new_list=is_new_list or requests[-1].is_new_list)
        else:
            requests.append(request)
        if not self._is_writing:
            self._is_writing = True
            self._tasks.spawn(self._write_gathered(), "record the transcript")

    async def record_at_once(
        self,
        tenant: TenantScope,
        session: str,
        conversation: Conversation,
        extra_puts: Sequence[Put],
        *,
        compacted: bool,
        after: bytes = b"",
    ) -> None:
        """Records a request that its client will not send again: writes it now, in one batch with `extra_puts`.

        If the session is erased meanwhile, none of it is written. Raises StoreUnavailable; then the request must be
        recorded again.
        """
        if not self._is_new(tenant, session, conversation, compacted=compacted):
            await self._archive.write(extra_puts)
            return
        request = RecordedRequest(tenant, session, conversation, self._clock.now(), after)
        with self._progress.writing() as write:
            await self._write([request], write, extra_puts)

    async def flush(self) -> None:
        """Writes the gathered requests. Raises StoreUnavailable; then those of a batch are lost."""
        while self._gathered:
            batch = [request for requests in self._gathered.values() for request in requests][:_MAX_BATCH]
            with self._progress.writing() as write:
                try:
                    await self._write(batch, write)
                except Exception:
                    self._remove(batch)
                    raise
            self._remove(batch)

    def _remove(self, batch: Sequence[RecordedRequest]) -> None:
        ids = {id(request) for request in batch}
        rest = {key: [each for each in requests if id(each) not in ids] for key, requests in self._gathered.items()}
        self._gathered = {key: requests for key, requests in rest.items() if requests}

    def forget(self, namespace: ArchiveNamespace, session: str | None = None) -> None:
        """Forgets the progress of an erased session, or of all of a tenant's (a `Listener` of ErasureNotices).

        A session that goes on is recorded from its beginning again.
        """

        def is_erased(key: SessionKey) -> bool:
            return session in (None, key[1]) and key[0].archive_namespace == namespace

        self._progress.forget(is_erased, erased=True)
        self._gathered = {key: requests for key, requests in self._gathered.items() if not is_erased(key)}

    def begin_anew(self) -> None:
        """Forgets all progress, since the store was emptied: sessions are recorded from their beginning again."""
        self._progress.forget(lambda _: True, erased=False)

    def _is_new(self, tenant: TenantScope, session: str, conversation: Conversation, *, compacted: bool) -> bool:
        """Whether a request is to be recorded, and may hold something that is not recorded yet."""
        if self._mode == "off" or not session or not conversation.chain:
            return False
        progress = self._progress.get((tenant, session))
        if progress is None:
            return compacted or self._mode == "all"
        options = options_digest(tenant, conversation)
        return (progress.last, progress.head, progress.options) != (
            conversation.chain[-1], _head_digest(progress, conversation), options
        )  # fmt: skip

    async def _write_gathered(self) -> None:
        """Gathers requests for a while and writes them, until no more come."""
        try:
            while self._gathered:
                if self._wait is not None:
                    await self._wait(_GATHER_SECONDS)
                with suppress(StoreUnavailable):
                    await self.flush()
        finally:
            self._is_writing = False

    async def _write(
        self, batch: Sequence[RecordedRequest], write: PendingWrite, extra_puts: Sequence[Put] = ()
    ) -> None:
        new_progress: dict[SessionKey, RecordedProgress] = {}
        plans = [plan for request in batch if (plan := await self._plan(request, new_progress, write)) is not None]
        while batch := [each for each in batch if not write.is_erased(each.session_key)]:
            plans = [plan for plan in plans if not write.is_erased(plan.request.session_key)]
            is_small = sum(plan.bulk for plan in plans) <= _MAX_INLINE_PACK
            writes, sizes = self._pack_plans(plans) if is_small else await self._tasks.offload(self._pack_plans, plans)
            if not any(write.is_erased(each.session_key) for each in batch):
                if plans or extra_puts:
                    await self._archive.write([*writes, *extra_puts], minor=not extra_puts)
                new_progress.update((key, replace(new_progress[key], size=size)) for key, size in sizes.items())
                break
        for key, progress in new_progress.items():
            self._progress.note(key, progress, write)

    async def _plan(
        self, request: RecordedRequest, new_progress: dict[SessionKey, RecordedProgress], write: PendingWrite
    ) -> WritePlan | None:
        """Plans the writes for a request and adds to `new_progress`; returns None if nothing is new."""
        key = request.session_key
        progress = new_progress.get(key) or self._progress.get(key)
        conversation, chain, now = request.conversation, request.conversation.chain, self._clock.now()
        # If the provider keeps the earlier messages, a request has only the new ones.
        is_appended = conversation.is_kept_by_provider
        if request.is_new_list:
            progress, start = RecordedProgress(0, b"", b"", now, 0, 0), 0
        elif progress is not None and not self._is_stale(progress, now) and _continues(progress, conversation):
            start = progress.count
        else:
            try:
                progress, log = await self._find_progress(request)
            except StoreUnavailable:
                # The store is unavailable. The whole request is written: the spool may take it until the store is back.
                progress, log = RecordedProgress(0, b"", b"", now, 0, 0), replay_log(())
            keys = [message.key for message in conversation.messages]
            common = len(log.keys) if is_appended else count_common_prefix(log.keys[: log.listed], keys)
            start = common if is_appended else await self._archive.first_missing(log.rows[:common])
            # Should the store go away half-way, its log names messages that it does not have.
            last = b"" if is_appended or not start else chain[start - 1]
            self._progress.note(key, replace(progress, count=start, last=last), write)
        if is_appended and progress.last == chain[-1]:
            return None
        is_rewrite = not is_appended and self._is_stale(progress, now)
        start = 0 if is_rewrite else start
        messages = conversation.messages if is_appended else conversation.messages[start:]
        current_head = _head_digest(progress, conversation)
        head = current_head if is_rewrite or progress.head != current_head else b""
        current_options = options_digest(request.tenant, conversation)
        options = current_options if is_rewrite or progress.options != current_options else b""
        since, entries = (now, 0) if start == 0 else (progress.since, progress.entries + 1)
        count = start + len(messages)
        new_progress[key] = RecordedProgress(
            count, chain[-1], current_head, since, entries, progress.size, current_options
        )
        if not messages and not head and not options:
            return None
        first = AFTER_PROVIDER_HISTORY if is_appended else start
        lead = conversation.lead if head else ()
        return WritePlan(request, first, messages, lead, head, options, is_rewrite, progress.size)

    def _is_stale(self, progress: RecordedProgress, now: float) -> bool:
        """Whether the whole transcript is to be written again: rows expire some time after they were written."""
        return now - progress.since >= self._archive.renewal_seconds or progress.entries >= _MAX_ENTRIES

    async def _find_progress(self, request: RecordedRequest) -> tuple[RecordedProgress, LogState]:
        """Reads how far a session is recorded, by this worker or others.

        A log may name rows that the store does not have: it is written first, and its writer may have taken rows for
        stored that were in a store before this one.
        """
        store = self._archive.store
        key = archive_entries.transcript_key(request.tenant.archive_namespace, request.session)
        state = replay_log(archive_entries.decode_transcript(await store.read(key)))
        digests = [digest for digest in (state.head, state.options) if digest]
        keys = [*map(archive_entries.fields_key, digests), *map(row_key, state.lead_rows)]
        head, options = (state.head, state.options) if keys and None not in await store.get_many(keys) else (b"", b"")
        since = state.since if state.keys else self._clock.now()
        return RecordedProgress(len(state.keys), b"", head, since, state.entries, state.size, options), state

    def _pack_plans(self, plans: Sequence[WritePlan]) -> tuple[list[Put | Append], dict[SessionKey, int]]:
        """Returns the writes, the listings first, and the new size of each transcript. Slow if much is new."""
        pack, listings = PackedRows(self._archive), list[Put | Append]()
        sizes: dict[SessionKey, int] = {}
        for plan in plans:
            request, conversation = plan.request, plan.request.conversation
            key, protocol = request.session_key, PROTOCOLS[conversation.protocol_name]
            previous_key = conversation.chain[plan.start - 1] if plan.start > 0 else b""
            entry = TranscriptEntry(
                plan.start,
                [message.key for message in plan.messages],
                [pack.add_message(plan, message) for message in plan.messages],
                request.at,
                conversation.protocol_name,
                conversation.model,
                plan.head,
                pack.add_fields(plan, plan.head, protocol.overhead_fields) if plan.head else 0,
                [message.key for message in plan.lead],
                [pack.add_message(plan, message) for message in plan.lead],
                conversation.chain[-1],
                request.after if plan.start == AFTER_PROVIDER_HISTORY else previous_key,
                pack.variants(plan.messages),
                pack.variants(plan.lead),
                plan.options,
                pack.add_fields(plan, plan.options, protocol.option_fields) if plan.options else 0,
                request.is_new_list,
            )
            sizes[key] = entry.size + (0 if plan.is_rewrite else sizes.get(key, plan.size))
            listings += self._listing_writes(plan, entry, sizes[key])
        return [*listings, *pack.puts.values()], sizes

    def _listing_writes(self, plan: WritePlan, entry: TranscriptEntry, size: int) -> list[Put | Append]:
        request, namespace = plan.request, plan.request.tenant.archive_namespace
        listing = ArchiveEntry("transcript", "", request.session, request.at, request.at, size)
        log = Append(
            archive_entries.transcript_key(namespace, request.session),
            archive_entries.encode(entry),
            _MAX_LOG,
            self._archive.retention,
        )
        return [*self._archive.entry_puts(request.tenant, listing), log]

    # -- reading ------------------------------------------------------------------

    async def find(self, tenant: TenantScope, session: str) -> Transcript | None:
        """Returns the transcript of a session; None if there is none. Raises StoreUnavailable."""
        return await load_transcript(self._archive, tenant, session)

    async def read(self, tenant: TenantScope, session: str, first: int, last: int) -> list[bytes | None]:
        """Returns the client's messages `first` to `last` (inclusive) as JSON; None for one that has expired.

        The system prompt is number 0; if the list itself begins with system messages there are several. Raises
        StoreUnavailable.
        """
        transcript = await self.find(tenant, session)
        if transcript is None:
            return []
        offset = transcript.system is not None
        keys = transcript.rows[max(0, first - offset) : max(0, last + 1 - offset)]
        head = [system_json(transcript)] if offset and first <= 0 <= last else []
        return [*head, *await self.load_rows(tenant, keys)]

    async def original(
        self, tenant: TenantScope, session: str, *, is_newest_list: bool = False
    ) -> OriginalHistory | None:
        """Returns the whole uncompacted history as a request body of its protocol; None if there is no transcript.

        It begins with the lists that the client's own compactions replaced, unless only the newest list is wanted.
        Raises StoreUnavailable.
        """
        transcript = await self.find(tenant, session)
        if transcript is None:
            return None
        lead, earlier = len(transcript.lead), () if is_newest_list else transcript.earlier_rows
        rows = (*transcript.rows[:lead], *earlier, *transcript.rows[lead:])
        return build_body(transcript, await self.load_rows(tenant, rows), lead + len(earlier))

    async def load_rows(self, tenant: TenantScope, keys: Sequence[bytes]) -> list[bytes | None]:
        """Returns stored messages as JSON; None for one that has expired. Raises StoreUnavailable."""
        wires: list[bytes | None] = []
        for at in range(0, len(keys), _PAGE):
            page = keys[at : at + _PAGE]
            rows = await self._archive.load_rows(tenant, page)
            wires += [rows.get(key) for key in page]
        return wires


def _head_digest(progress: RecordedProgress, conversation: Conversation) -> bytes:
    """Returns the digest of the system prompt and tools beside the list.

    A request that continues a thread leaves them out, and they stay as they were.
    """
    return progress.head if conversation.is_threaded else conversation.overhead_key


def _continues(progress: RecordedProgress, conversation: Conversation) -> bool:
    """Whether a request holds all that is recorded, and perhaps more after it."""
    if conversation.is_kept_by_provider:
        return True
    chain = conversation.chain
    return progress.count <= len(chain) and (progress.count == 0 or chain[progress.count - 1] == progress.last)


# -- gathered requests -------------------------------------------------------------------------------------------------


class RecordedRequest(msgspec.Struct, frozen=True):
    """A request of a session that is to be recorded.

    `at` is when its exchange ended, in seconds since the epoch, `after` the chain key of the part that the provider
    keeps. `is_new_list`: the client's own compaction put it in place of the list before, which stays in the transcript.
    """

    tenant: TenantScope
    session: str
    conversation: Conversation
    at: float
    after: bytes = b""
    is_new_list: bool = False

    @property
    def session_key(self) -> SessionKey:
        """The tenant and the session."""
        return self.tenant, self.session


def _envelope_bytes(conversation: Conversation) -> int:
    return sum(map(len, conversation.envelope.values()))


def _is_prefix_of(one: Conversation, other: Conversation) -> bool:
    """Whether a request is the beginning of another, with the same system prompt and tools."""
    if one.is_kept_by_provider or other.is_kept_by_provider or one.overhead_key != other.overhead_key:
        return False
    return len(one.chain) <= len(other.chain) and other.chain[len(one.chain) - 1] == one.chain[-1]


# -- rows to be written ------------------------------------------------------------------------------------------------


class WritePlan(msgspec.Struct, frozen=True):
    """The messages of a request that are to be written, from its message `start` on (see TranscriptEntry).

    A rewrite has all rows, also those that are known to be stored. `size` is that of the transcript before.
    """

    request: RecordedRequest
    start: int
    messages: tuple[Message, ...]
    lead: tuple[Message, ...]
    head: bytes
    options: bytes
    is_rewrite: bool
    size: int

    @property
    def bulk(self) -> int:
        """The bytes that are compressed, at most."""
        fields = _envelope_bytes(self.request.conversation) if self.head else 0
        return fields + sum([len(message.wire) for message in (*self.lead, *self.messages)])


class PackedRows:
    """The rows of a batch, each packed once. `add_…` return the bytes of a row, 0 if another entry counts it."""

    def __init__(self, archive: Archive) -> None:
        self.puts: dict[Key, Put] = {}
        self._archive = archive
        self._pack: Callable[[bytes], bytes] = make_packer()
        self._variants: dict[tuple[bytes, bytes], bytes] = {}

    def variants(self, messages: Iterable[Message]) -> bytes:
        """Returns the variants of messages, for their TranscriptEntry."""
        return b"".join([self._variant(message) for message in messages])

    def _variant(self, message: Message) -> bytes:
        name = message.key, archive_entries.variant_key(message.wire)
        variant = self._variants.get(name)
        if variant is None:
            # Decided once, since the archive may forget its writes meanwhile.
            is_shared = self._archive.has_variant(*name)
            variant = self._variants[name] = archive_entries.SHARED if is_shared else name[1]
        return variant

    def add_message(self, plan: WritePlan, message: Message) -> int:
        """Adds the row of a message."""
        variant = self._variant(message)
        key = row_key(message.key if variant == archive_entries.SHARED else message.key + variant)
        if not plan.is_rewrite and self._archive.has_row(key):
            return 0
        return self._put(plan, key, message.wire)

    def add_fields(self, plan: WritePlan, digest: bytes, names: Sequence[str]) -> int:
        """Adds fields beside the list: those of these names, which have this digest."""
        text = fields_json(plan.request.conversation.envelope, names)
        return self._put(plan, archive_entries.fields_key(digest), text)

    def _put(self, plan: WritePlan, key: Key, value: bytes) -> int:
        if key in self.puts:
            return 0
        put = self.puts[key] = self._archive.sealed_put(plan.request.tenant, key, self._pack(value))
        return len(put.value) + OVERHEAD


# -- progress ----------------------------------------------------------------------------------------------------------


class RecordedProgress(msgspec.Struct, frozen=True):
    """The recorded part of a session: `count` messages, of which the last has the chain key `last`.

    `head` is the digest of the system prompt and tools, `options` that of the options. `since` is when the whole list
    was last written, in seconds since the epoch, `entries` the number of log entries since, `size` the bytes that the
    transcript counts.
    """

    count: int
    last: bytes
    head: bytes
    since: float
    entries: int
    size: int
    options: bytes = b""


class PendingWrite:
    """A write that has begun, with the sessions that were forgotten since."""

    def __init__(self) -> None:
        self.forgotten: list[tuple[Callable[[SessionKey], bool], bool]] = []
        """Functions that tell whether a session was forgotten, each with whether that was an erasure."""

    def is_stale(self, key: SessionKey) -> bool:
        """Whether the progress that a session had when the write began is no longer valid."""
        return any(matches(key) for matches, _ in self.forgotten)

    def is_erased(self, key: SessionKey) -> bool:
        """Whether a session was erased since the write began, so that nothing of it may be written."""
        return any(erased and matches(key) for matches, erased in self.forgotten)


class ProgressTable:
    """The progress of the `sessions` that this worker recorded last."""

    def __init__(self, sessions: int) -> None:
        self._progress: BoundedCache[SessionKey, RecordedProgress] = BoundedCache(sessions, count_entry)
        self._writes: set[PendingWrite] = set()

    def get(self, key: SessionKey) -> RecordedProgress | None:
        """Returns the progress of a session, if it is known."""
        return self._progress.get(key)

    @contextmanager
    def writing(self) -> Iterator[PendingWrite]:
        """Tracks a write for as long as the context lasts."""
        write = PendingWrite()
        self._writes.add(write)
        try:
            yield write
        finally:
            self._writes.discard(write)

    def note(self, key: SessionKey, progress: RecordedProgress, write: PendingWrite) -> None:
        """Stores the progress of a session, unless the session was forgotten since the write began."""
        if write.is_stale(key):
            return
        self._progress[key] = progress

    def forget(self, matches: Callable[[SessionKey], bool], *, erased: bool) -> None:
        """Forgets the progress of these sessions; if they are `erased`, writes that have begun leave them out."""
        for key, _ in self._progress.items():
            if matches(key):
                self._progress.pop(key)
        for write in self._writes:
            write.forgotten.append((matches, erased))
