"""The store of insertions: tool rounds and recalls that were sent once, and must be sent with every later request.

Like compactions they are found by content: by the chain key of the client message after which they stand, the anchor.
`composer.py` puts them in place.
"""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial

import msgspec

from accordion.archive.archive import Archive
from accordion.archive.erasure_notices import ErasureNotices
from accordion.archive.sealing import SEALED
from accordion.model.compaction import SCOPE_PREFIX_LENGTH, scope_prefix
from accordion.model.errors import StoreUnavailable
from accordion.model.insertions import Insertion, RecallInsertion, ToolRound, ToolRoundInsertion
from accordion.model.ports import Clock, Key, Outbox, Put
from accordion.model.tenant import NO_TENANT, ConversationRef, ScopePrefix, TenantScope
from accordion.protocols.zstd import ZstdError, compress, decompress

_log = logging.getLogger("accordion")

_PREFIX = "insertion/"
_VERSION = b"\x01"
_MAX_UNPACKED_BYTES = 64 * 2**20
"""No valid value unpacks to more bytes; one that claims to is damaged."""
_MAX_TOOL_ROUND_INSERTIONS = 4
"""Maximum number of newest replies to one request that are kept: a client may ask again, and continue any of them."""
_BATCH = 1_024
_OVERLAP = 8
"""Anchors before the last one of an earlier request that are asked for again. If the client repeated that request, what
another worker recalled for it stands before its newest turn."""
_NAME_SIZE = 450
"""Bytes of memory per name of evicted insertions or of a loaded history."""
_EVICTED_DIVISOR, _LOADED_DIVISOR = 4, 16
"""The capacity divided by these is for the names of evicted insertions, and of loaded histories."""
_RENEWAL_DIVISOR = 4
"""An insertion in use is written anew after the retention time divided by this number."""


class StoredInsertions(msgspec.Struct, frozen=True):
    """The insertions at one anchor, in order, and the session that they are listed under."""

    session: str = ""
    insertions: tuple[Insertion, ...] = ()


class _CachedInsertions(msgspec.Struct, frozen=True):
    stored: StoredInsertions
    size: int
    stored_at: float
    """The time of its last write to the store, in seconds since the epoch."""


class InsertionStore:
    """The insertions of this worker's memory, within `capacity` bytes including all names, and those in the store.

    The store keeps them for `retention` seconds (by default the archive's), longer while they are in use. They contain
    archived text, so they are sealed, listed and erased like the archive.

    One anchor has at most one recall in front of its turn and one behind it: the first one sent, or for session
    memories the last one, since a second request for them may give others. It also has the newest few tool rounds.
    """

    def __init__(
        self,
        archive: Archive,
        outbox: Outbox,
        clock: Clock,
        erasures: ErasureNotices,
        *,
        capacity: int = 16 * 2**20,
        retention: float | None = None,
    ) -> None:
        self._archive = archive
        self._erasures = erasures
        self._outbox = outbox
        self._clock = clock
        self._max_evicted, self._max_loaded = (
            capacity // divisor // _NAME_SIZE for divisor in (_EVICTED_DIVISOR, _LOADED_DIVISOR)
        )
        self._capacity = capacity - _NAME_SIZE * (self._max_evicted + self._max_loaded)
        self._retention = archive.retention if retention is None else retention
        self._cached: OrderedDict[bytes, _CachedInsertions] = OrderedDict()
        self._anchors: dict[bytes, set[bytes]] = {}
        """Anchors of the cached insertions, by prefix: most requests have none or few."""
        self._tenants: dict[ScopePrefix, TenantScope] = {}
        self._size = 0
        self._evicted = set[bytes]()
        """Anchors whose insertions were evicted or could not be read, so that the store is asked for them."""
        self._knows_all_evicted = True
        """Whether `_evicted` has all evicted anchors. If not, each history that is not in `_loaded` is loaded once
        more."""
        self._loaded = dict[bytes, int]()
        """By the last chain key of a loaded history, the number of messages before the first anchor that was asked for;
        replaced by a new one after an erasure."""

    @property
    def size(self) -> int:
        """Estimated bytes of the insertions and names in memory."""
        return self._size + _NAME_SIZE * (len(self._evicted) + len(self._loaded))

    async def add(self, ref: ConversationRef, insertion: Insertion, started_at: float) -> bool:
        """Adds an insertion: for this worker at once, for all workers when this returns.

        While the store is unavailable, the write waits in the outbox. Returns False without adding it if the session
        was erased after `started_at` (when the request came, in seconds by the monotonic clock).
        """
        if self._erasures.was_erased_since(ref.tenant, ref.session, started_at):
            return False
        writes = await self.add_and_build_writes(ref, insertion)
        try:
            await self._archive.write(writes)
        except StoreUnavailable:
            _log.debug(
                "the store is unavailable; until it is back, only this worker knows a text that the model read back"
            )
            self.write_later(ref.tenant, writes)
        return True

    async def add_and_build_writes(self, ref: ConversationRef, insertion: Insertion) -> list[Put]:
        """Adds an insertion for this worker, and returns the writes that publish it to all workers."""
        prefix = scope_prefix(ref)
        name, key = prefix + insertion.anchor, _insertion_key(prefix, insertion.anchor)
        cached = self._cached.get(name)
        merged = _merge(
            StoredInsertions(ref.session, (insertion,)), cached.stored if cached is not None else StoredInsertions()
        )
        self._cache(ref.tenant, name, merged, self._clock.now())
        with suppress(StoreUnavailable):
            stored = self._decode_value(ref.tenant, key, await self._archive.store.get(key), insertion.anchor)
            merged = _merge(merged, stored)
            self._cache(ref.tenant, name, merged, self._clock.now())
        return self._build_writes(ref.tenant, key, merged)

    def write_later(self, tenant: TenantScope, writes: Iterable[Put]) -> None:
        """Queues writes of which some may be insertions; those are merged with what the store has by then."""
        for put in writes:
            if is_insertion_key(put.key):
                merge = partial(self._merge_with_stored, tenant, put)
                self._outbox.merge(put.key, merge, lambda: None, put.ttl)
            else:
                self._outbox.put(put.key, partial(bytes, put.value), put.ttl)

    def merge_values(self, key: Key, waiting: bytes, stored: bytes) -> bytes | None:
        """Merges a value that waited for the store and the store's own.

        Returns None if the key is no insertion's, or if they are encrypted and this worker has no insertion of
        the tenant's conversation in memory.
        """
        if not is_insertion_key(key):
            return None
        tenant = self._tenants.get(_prefix_and_anchor(key)[0])
        if tenant is None and SEALED in (waiting[:1], stored[:1]):
            return None
        return self._merge_with_stored(tenant or NO_TENANT, Put(key, waiting), stored)

    async def find(
        self, ref: ConversationRef, chain: Sequence[bytes], covered_count: int, *, check_store: bool
    ) -> tuple[Insertion, ...]:
        """Returns the insertions from `chain[covered_count - 1]` on, in the chain's order.

        At one anchor the recalls come first, then the newest tool rounds. `chain` is that of the client's own
        conversation.

        If `check_store` is true (other workers may know more), the store is asked for what is new since this worker
        asked for an earlier list of the history. It is also asked for insertions that this worker evicted or could not
        read. While the store is unavailable, memory alone counts.
        """
        prefix, first = scope_prefix(ref), max(0, covered_count - 1)
        chain_keys = chain[first:]
        if not self._knows_all_evicted and not check_store:
            check_store = all(self._loaded.get(prefix + key, len(chain)) > first for key in reversed(chain_keys))
        is_read = not check_store or await self._load_history(ref.tenant, prefix, chain, first, _OVERLAP)
        if is_read and self._evicted and (evicted := [key for key in chain_keys if prefix + key in self._evicted]):
            await self._load_from_store(ref.tenant, prefix, evicted)
        anchors = self._anchors.get(prefix)
        if not anchors:
            return ()
        insertions, now = list[Insertion](), self._clock.now()
        for anchor in filter(anchors.__contains__, chain_keys):
            name = prefix + anchor
            cached = self._cached[name]
            insertions += cached.stored.insertions
            self._cached.move_to_end(name)
            if now - cached.stored_at > self._retention / _RENEWAL_DIVISOR:
                self._cached[name] = _CachedInsertions(cached.stored, cached.size, now)
                writes = self._build_writes(ref.tenant, _insertion_key(prefix, anchor), cached.stored)
                self.write_later(ref.tenant, writes)
        return tuple(insertions)

    async def find_at(self, ref: ConversationRef, anchor: bytes, *, check_store: bool) -> tuple[Insertion, ...]:
        """Returns the insertions at one anchor. `check_store`: see `find`."""
        return await self.find(ref, (anchor,), 1, check_store=check_store)

    def hash_insertions(self, ref: ConversationRef, chain: Sequence[bytes], covered_count: int) -> bytes:
        """Returns a hash of the insertions that this worker's memory has where `find` looks.

        It is empty if the store may have more of them, since this worker evicted some or could not read them.
        """
        prefix, chain_keys = scope_prefix(ref), chain[max(0, covered_count - 1) :]
        if not self._knows_all_evicted or (self._evicted and any(prefix + key in self._evicted for key in chain_keys)):
            return b""
        anchors = self._anchors.get(prefix)
        if not anchors:
            return b"0"
        present = [key for key in chain_keys if key in anchors]
        values = [_pack(StoredInsertions("", self._cached[prefix + anchor].stored.insertions)) for anchor in present]
        return hashlib.sha256(b"".join((*present, *values))).digest()[:8] if present else b"0"

    async def load(self, ref: ConversationRef, chain: Sequence[bytes]) -> None:
        """Loads the insertions of a history from the store, each anchor once. If the history was loaded before, loads
        only the new anchors and the one before them, which may have got a reply since."""
        await self._load_history(ref.tenant, scope_prefix(ref), chain, 0, 0)

    def forget(self) -> None:
        """Empties memory after an erasure, since the store's content is no longer known."""
        self._cached.clear()
        self._anchors.clear()
        self._tenants.clear()
        self._evicted.clear()
        self._knows_all_evicted, self._loaded = True, {}
        self._size = 0

    # -- in memory ----------------------------------------------------------------

    def _cache(self, tenant: TenantScope, name: bytes, stored: StoredInsertions, stored_at: float) -> None:
        self._evicted.discard(name)
        if (former := self._cached.pop(name, None)) is not None:
            self._size -= former.size
        self._cached[name] = cached = _CachedInsertions(stored, sum(map(_memory_size, stored.insertions)), stored_at)
        prefix, anchor = ScopePrefix(name[:SCOPE_PREFIX_LENGTH]), name[SCOPE_PREFIX_LENGTH:]
        self._anchors.setdefault(prefix, set()).add(anchor)
        self._tenants[prefix] = tenant
        self._size += cached.size
        while self._size > self._capacity and len(self._cached) > 1:
            oldest_name, oldest = self._cached.popitem(last=False)
            self._size -= oldest.size
            self._forget_anchor(oldest_name)
            self._remember_evicted(oldest_name)

    def _remember_evicted(self, name: bytes) -> None:
        self._evicted.add(name)
        if len(self._evicted) > self._max_evicted:
            self._evicted.clear()
            self._knows_all_evicted, self._loaded = False, {}

    def _forget_anchor(self, name: bytes) -> None:
        prefix = ScopePrefix(name[:SCOPE_PREFIX_LENGTH])
        anchors = self._anchors[prefix]
        anchors.discard(name[SCOPE_PREFIX_LENGTH:])
        if not anchors:
            del self._anchors[prefix], self._tenants[prefix]

    # -- in the store -------------------------------------------------------------

    async def _load_history(
        self, tenant: TenantScope, prefix: ScopePrefix, chain: Sequence[bytes], first: int, overlap: int
    ) -> bool:
        """Loads the insertions at `chain[first]` and after it; if an earlier list of the history was loaded, only those
        from `overlap` anchors before its last one on. Returns whether the store was available."""
        loaded, start = self._loaded, first
        for at in reversed(range(first, len(chain))):
            if (earlier := loaded.get(prefix + chain[at], len(chain))) <= first:
                first, start = max(first, at - overlap), earlier
                break
        is_read = await self._load_from_store(tenant, prefix, chain[first:])
        if is_read and first < len(chain):
            if len(loaded) >= self._max_loaded:
                loaded.clear()
            loaded[prefix + chain[-1]] = start
        return is_read

    async def _load_from_store(self, tenant: TenantScope, prefix: ScopePrefix, anchors: Sequence[bytes]) -> bool:
        """Merges the store's insertions at these anchors into memory. Returns whether the store was available.

        If it was not, the spool may have had a part, and the other anchors are asked for again.
        """
        store, is_complete = self._archive.store, True
        for start in range(0, len(anchors), _BATCH):
            batch = anchors[start : start + _BATCH]
            keys = [_insertion_key(prefix, anchor) for anchor in batch]
            values: Sequence[bytes | None] = [None] * len(batch)
            is_read = False
            with suppress(StoreUnavailable):
                values = await store.get_many(keys)
                is_read = store.is_available
            is_complete = is_complete and is_read
            for anchor, key, value in zip(batch, keys, values, strict=True):
                self._evicted.discard(prefix + anchor)
                if value is not None:
                    self._merge_from_store(tenant, prefix + anchor, self._decode_value(tenant, key, value, anchor))
                elif not is_read:
                    self._remember_evicted(prefix + anchor)
        return is_complete

    def _merge_from_store(self, tenant: TenantScope, name: bytes, stored: StoredInsertions) -> None:
        cached = self._cached.get(name)
        merged = stored if cached is None else _merge(cached.stored, stored)
        if merged.insertions and (cached is None or merged != cached.stored):
            self._cache(tenant, name, merged, max(insertion.at for insertion in merged.insertions))

    def _decode_value(self, tenant: TenantScope, key: Key, value: bytes | None, anchor: bytes) -> StoredInsertions:
        return decode(self._archive.open_value(tenant, key, value), anchor)

    def _build_writes(self, tenant: TenantScope, key: Key, stored: StoredInsertions) -> list[Put]:
        return self._archive.single_value_puts(
            tenant, stored.session, "insertion", key, encode(stored), ttl=self._retention
        )

    def _merge_with_stored(self, tenant: TenantScope, put: Put, value: bytes | None) -> bytes:
        """Returns the value to write for a put of insertions, if the store has `value`."""
        if value is None:
            return put.value
        anchor = _prefix_and_anchor(put.key)[1]
        own, stored = (self._decode_value(tenant, put.key, each, anchor) for each in (put.value, value))
        return self._archive.sealed_put(tenant, put.key, encode(_merge(own, stored))).value


def is_insertion_key(key: Key) -> bool:
    """Whether a key of the store is that of the insertions at an anchor."""
    return not key.collection and key.name.startswith(_PREFIX)


def _insertion_key(prefix: ScopePrefix, anchor: bytes) -> Key:
    return Key("", f"{_PREFIX}{prefix.hex()}/{anchor.hex()}")


def _prefix_and_anchor(key: Key) -> tuple[ScopePrefix, bytes]:
    prefix, anchor = key.name.removeprefix(_PREFIX).split("/")
    return ScopePrefix(bytes.fromhex(prefix)), bytes.fromhex(anchor)


def _merge(one: StoredInsertions, other: StoredInsertions) -> StoredInsertions:
    """Merges the insertions at one anchor: the first recall on either side and the newest tool rounds."""
    insertions = list(dict.fromkeys((*one.insertions, *other.insertions)))
    recalls = sorted((each for each in insertions if isinstance(each, RecallInsertion)), key=_recall_order)
    tool_rounds = sorted(
        (each for each in insertions if isinstance(each, ToolRoundInsertion)), key=lambda each: each.at, reverse=True
    )
    first_recalls = {bool(each.before): each for each in reversed(recalls)}
    chosen = (first_recalls[side] for side in (True, False) if side in first_recalls)
    return StoredInsertions(one.session or other.session, (*chosen, *tool_rounds[:_MAX_TOOL_ROUND_INSERTIONS]))


def _recall_order(recall: RecallInsertion) -> tuple[bool, float, bytes]:
    """Sort key for the recalls at one side of an anchor; the first one is kept."""
    return not recall.names, -recall.at if recall.names else recall.at, recall.wire


def _memory_size(insertion: Insertion) -> int:
    """Estimates the bytes of an insertion in memory."""
    if isinstance(insertion, RecallInsertion):
        return 500 + len(insertion.wire)
    wires = [wire for each in insertion.rounds for wire in (*each.response, *each.results)]
    return 700 + 2 * len(insertion.text) + sum(50 + len(wire) for wire in wires)


# -- stored format: a version byte, then MessagePack, compressed, with a checksum -----------------------------------


class _ToolRoundRecord(msgspec.Struct, array_like=True, tag=0):
    rounds: list[tuple[list[bytes], list[bytes]]]
    calls: list[str]
    text: str
    at: float


class _RecallRecord(msgspec.Struct, array_like=True, tag=1):
    wire: bytes
    at: float
    artifacts: list[str]
    names: list[str] = []
    before: int = 0


class _StoredValue(msgspec.Struct, array_like=True):
    session: str
    insertions: list[_ToolRoundRecord | _RecallRecord]


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_StoredValue)


def encode(stored: StoredInsertions) -> bytes:
    """Encodes the insertions at one anchor for the store."""
    return _VERSION + compress(_pack(stored), has_checksum=True)


def _pack(stored: StoredInsertions) -> bytes:
    records = [
        _RecallRecord(each.wire, each.at, list(each.artifacts), list(each.names), each.before)
        if isinstance(each, RecallInsertion)
        else _ToolRoundRecord(
            [(list(one.response), list(one.results)) for one in each.rounds], list(each.calls), each.text, each.at
        )
        for each in stored.insertions
    ]
    return _ENCODER.encode(_StoredValue(stored.session, records))


def decode(value: bytes | None, anchor: bytes) -> StoredInsertions:
    """Decodes the stored insertions at an anchor; none if the value is damaged or of a later version."""
    if value is None or value[:1] != _VERSION:
        return StoredInsertions()
    try:
        content = _DECODER.decode(decompress(value[1:], limit=_MAX_UNPACKED_BYTES))
    except (ZstdError, msgspec.MsgspecError, ValueError):
        return StoredInsertions()
    return StoredInsertions(content.session, tuple(_read_record(each, anchor) for each in content.insertions))


def _read_record(record: _ToolRoundRecord | _RecallRecord, anchor: bytes) -> Insertion:
    if isinstance(record, _RecallRecord):
        return RecallInsertion(
            anchor, record.wire, record.at, tuple(record.artifacts), tuple(record.names), record.before
        )
    rounds = tuple(ToolRound(tuple(response), tuple(results)) for response, results in record.rounds)
    return ToolRoundInsertion(anchor, rounds, tuple(record.calls), record.text, record.at)
