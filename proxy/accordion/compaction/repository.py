"""The repository of compactions: finds the one that applies to a conversation, and publishes new ones.

Theory of operation. A client sends its whole history with every request. Each message has a chain key, a hash over all
messages up to it. A compaction is stored under the chain key of the last message that it covers, its anchor. The
compaction that applies to a request is the deepest one whose anchor lies on the request's chain; a history that was
rewound or forked has a shallower one on its chain, or none.

`find` looks in memory first. For each chain key at which a request ended, this worker remembers what it found, so that
the next request of the conversation looks only at its new messages. The store is asked if other workers may know more.

`publish` writes with `put_if_absent`, so that all workers agree on one compaction. A compaction of an already compacted
history may have the same anchor; it lies one level higher, and the uppermost level applies.

If a client sends earlier messages in another form, the chain has no anchor any more. The anchor is then found by the
identity key of its message, and the compaction is adapted to the client's new form (`adapt_compaction`).

The stored format is a version byte, then MessagePack, compressed. The id is a hash of the content, so that a damaged
record is detected.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from functools import lru_cache
from typing import Literal

import msgspec

from accordion.archive.sealing import PlainSealer
from accordion.compaction.apply import find_new_problem
from accordion.model.cache import BoundedCache
from accordion.model.compaction import (
    Cause,
    CompactedConversation,
    CompactedList,
    CompactedPrefix,
    Compaction,
    adapt_compaction,
    apply_prefix,
    build_prefix,
    scope_prefix,
    with_content_id,
    without_compaction,
)
from accordion.model.conversation import Conversation
from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Key, KeyValueStore, Sealer
from accordion.model.tenant import ConversationRef, ScopePrefix, TenantScope
from accordion.protocols.base import WireProtocol
from accordion.protocols.written_messages import WrittenMessageReader
from accordion.protocols.zstd import ZstdError, compress, decompress

# -- the stored format -------------------------------------------------------------------------------------------------


_VERSION = b"\x01"
_MAX_UNPACKED_BYTES = 256 * 2**20
"""No valid record unpacks to more bytes; one that claims to is damaged."""
_MAX_LEVELS = 6
"""Maximum number of compactions at one anchor: a compacted history that is still too long is compacted again."""


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Compaction)


def encode(compaction: Compaction) -> bytes:
    """Encodes a compaction for the store."""
    return _VERSION + compress(_ENCODER.encode(compaction))


def decode(value: bytes | None) -> Compaction | None:
    """Decodes a stored compaction; None if there is none, it is damaged, or of another format."""
    if value is None or value[:1] != _VERSION:
        return None
    try:
        plain = decompress(value[1:], limit=_MAX_UNPACKED_BYTES)
        compaction = _DECODER.decode(plain)
    except (ZstdError, msgspec.MsgspecError, ValueError):
        return None
    return compaction if with_content_id(compaction) == compaction else None


def memory_size(compaction: Compaction) -> int:
    """Estimates the bytes of a compaction in memory."""
    entries = sum(150 + len(entry.wire or b"") for entry in compaction.entries)
    return 1_000 + entries + 80 * len(compaction.artifacts) + 2 * len(compaction.narrative)


@lru_cache(1_024)
def _compaction_key(prefix: ScopePrefix, anchor: bytes, level: int) -> Key:
    """Returns the key of the compaction at this anchor and level; `level` others lie below it."""
    return Key("", f"compaction/{prefix.hex()}/{anchor.hex()}/{level}")


def is_compaction_key(key: Key) -> bool:
    """Whether this is the key of a compaction."""
    return key.name.startswith("compaction/")


def compaction_keys(prefix: ScopePrefix, anchor: bytes) -> list[Key]:
    """Returns the keys of all levels at an anchor."""
    return [_compaction_key(prefix, anchor, level) for level in range(_MAX_LEVELS)]


def parse_key(key: Key) -> tuple[ScopePrefix, bytes, int]:
    """Returns prefix, anchor and level of a key made by `_compaction_key`."""
    _, prefix, anchor, level = key.name.split("/")
    return ScopePrefix(bytes.fromhex(prefix)), bytes.fromhex(anchor), int(level)


def form_key(prefix: ScopePrefix, identity_key: bytes) -> Key:
    """Returns the key for the anchor of the newest compaction whose last covered message has this identity key."""
    return Key("", f"form/{prefix.hex()}/{identity_key.hex()}")


def race_key(prefix: ScopePrefix, last_chain_key: bytes, cause: Cause) -> Key:
    """Returns the key that workers compete for when they compact the same history for the same cause."""
    return Key("", f"compaction_claim/{prefix.hex()}/{last_chain_key.hex()}/{cause}")


# -- the repository ----------------------------------------------------------------------------------------------------


_BATCHES = (64, 512)
_BATCH = 1_024
"""Chain keys per batch read from the store, the newest first: a recent compaction is found in the first batch."""
_SAME_LIST_SECONDS = 900.0
"""Seconds in which all workers use the same compaction of the same history. Clients send a request again after a
timeout, which for most is ten minutes."""
_LOOKUP_SIZE = 350
"""Bytes of memory per remembered look-up."""
_LIST_ENTRY_SIZE = 300
"""Bytes of memory per message of a compacted list."""


class _CachedPrefix(msgspec.Struct, frozen=True):
    prefix: CompactedPrefix
    size: int
    """Estimated bytes of the prefix."""
    compacted_list: CompactedList | None = None


class CompactedPrefixCache:
    """Applies compactions to conversations, so that each request costs only its new messages.

    Remembers compacted prefixes within `capacity` bytes, the newest always.
    """

    def __init__(self, message_reader: WrittenMessageReader, capacity: int) -> None:
        self._reader = message_reader
        self._prefixes = BoundedCache[str, _CachedPrefix](capacity)

    def apply(
        self, protocol: WireProtocol, tenant: TenantScope, conversation: Conversation, compaction: Compaction
    ) -> CompactedConversation:
        """Returns the conversation with this compaction applied. Raises ValueError if it is not valid for it."""
        known = self._prefixes.get(compaction.id)
        if known is None or not known.prefix.is_valid_for(conversation):
            prefix = build_prefix(conversation, compaction, self._reader.reader_for(protocol, tenant))
            size = sum(message.size for message in prefix.messages)
            self._prefixes.put(compaction.id, _CachedPrefix(prefix, size), size)
            return apply_prefix(conversation, compaction, prefix)
        history = apply_prefix(conversation, compaction, known.prefix, known.compacted_list)
        chain, last = history.conversation.chain, conversation.chain[-1]
        compacted_list = CompactedList(len(conversation.chain), last, history.origins, history.spans, chain)
        size = known.size + _LIST_ENTRY_SIZE * len(chain)
        self._prefixes.put(compaction.id, _CachedPrefix(known.prefix, known.size, compacted_list), size)
        return history

    def forget(self) -> None:
        """Empties the cache."""
        self._prefixes.clear()


_Source = Literal["memory", "store"]
"""Where a compaction was looked up: in memory alone, or in the store too."""


class _CachedCompaction(msgspec.Struct, frozen=True):
    compaction: Compaction
    level: int
    size: int
    is_local_only: bool
    """Whether it applies in this worker alone, as far as is known."""
    source: Compaction | None = None
    """The published compaction from which it was adapted, if it was."""


class AppliedCompaction(msgspec.Struct, frozen=True):
    """The compaction that was applied to a request, and the number of messages that it covers; "" and 0: none."""

    compaction_id: str
    covered_count: int


class CompactionRepository:
    """The compactions that this worker has in memory, and those in the store.

    Memory is bounded by `capacity` bytes for compactions, by `list_capacity` bytes for compacted prefixes, and by
    `lookups_capacity` bytes for remembered look-ups. The store keeps a compaction for `retention` seconds, sealed by
    `sealer`; one that cannot be opened counts as absent. `on_use` is called with each compaction that a request finds.
    """

    def __init__(
        self,
        store: KeyValueStore,
        *,
        capacity: int = 64 * 2**20,
        list_capacity: int = 32 * 2**20,
        retention: float = 30 * 86_400.0,
        message_reader: WrittenMessageReader | None = None,
        on_use: Callable[[ConversationRef, Conversation, Compaction], None] = lambda *_: None,
        sealer: Sealer | None = None,
        lookups_capacity: int = 12 * 2**20,
    ) -> None:
        self._store = store
        self._sealer: Sealer = sealer or PlainSealer()
        self._capacity = capacity
        self._retention = retention
        self._on_use = on_use
        self._max_lookups = max(1, lookups_capacity // 3 // _LOOKUP_SIZE)
        # Plain dictionaries: a history that is new here is looked up once for each of its messages, and a look-up in a
        # BoundedCache takes four times as long.
        self._cached: OrderedDict[bytes, _CachedCompaction] = OrderedDict()
        self._size = 0
        self._known_lookups: OrderedDict[bytes, tuple[int, int]] = OrderedDict()
        """By prefix and last chain key of a list: the change count when it was looked up, and the index of the last
        message that its deepest compaction covers, or -1."""
        self._last_change_by_root: OrderedDict[bytes, int] = OrderedDict()
        """By prefix and first chain key: the change count when a compaction of this history was last added."""
        self._prefix_cache = CompactedPrefixCache(message_reader or WrittenMessageReader(), list_capacity)
        self._oldest_valid_change = self._change_count = 0
        """How often a compaction was added to memory, and the count below which remembered look-ups may be outdated."""
        self._last_eviction = 0
        """The change count when a compaction was last evicted."""
        self._undone = frozenset[str]()
        """The ids of the compactions that somebody undid."""
        self._failed_reads = 0
        """How often the store could not be read."""
        self._waiting_tenants: dict[ScopePrefix, TenantScope] = {}
        """Tenant keys by prefix, for compactions that wait for the store and so apply in this worker alone."""

    @property
    def size(self) -> int:
        """Estimated bytes of the compactions in memory."""
        return self._size

    async def find(
        self,
        protocol: WireProtocol,
        ref: ConversationRef,
        conversation: Conversation,
        *,
        check_store: bool,
        previous_compaction: AppliedCompaction | None = None,
        has_same_form: bool = True,
        had_other_form: bool = False,
    ) -> CompactedConversation:
        """Returns the conversation with the compaction that applies to it, if there is one.

        The store is asked if `check_store` is true (other workers may know more), and for compactions that this worker
        evicted. `previous_compaction` is what applied to the request before, if that is known: then only that one is
        looked up. While the store is unavailable, memory and the spool count, and the next request asks again.
        `has_same_form`, `had_other_form`: see SessionMatch.
        """
        chain = conversation.chain
        if not chain:
            return without_compaction(conversation)
        prefix, failed_reads = scope_prefix(ref), self._failed_reads
        index, cached, source = await self._find_deepest(ref.tenant, prefix, chain, check_store, previous_compaction)
        if not has_same_form or (had_other_form and source != "memory"):
            index, cached = await self._find_in_other_form(protocol, ref.tenant, prefix, conversation, index, cached)
        history = self._apply_entry(protocol, ref.tenant, conversation, cached)
        if hides_newest_message(history, conversation):
            index, cached, source = await self._find_deepest(ref.tenant, prefix, chain[:-1], check_store)
            history = self._apply_entry(protocol, ref.tenant, conversation, cached)
        # While the store is unavailable, the spool answers for it, and has only a part.
        if self._failed_reads == failed_reads and (source == "memory" or self._store.is_available):
            self._remember_lookup(prefix, chain, index)
        if history.compaction is not None and cached is not None:
            self._on_use(ref, conversation, cached.source or history.compaction)
        return history

    async def _find_deepest(
        self,
        tenant: TenantScope,
        prefix: ScopePrefix,
        chain: Sequence[bytes],
        check_store: bool,
        previous_compaction: AppliedCompaction | None = None,
    ) -> tuple[int, _CachedCompaction | None, _Source]:
        """Returns index and entry of the deepest compaction, and where it was looked up."""
        index, cached, positions = self._find_in_memory(prefix, chain)
        if check_store and previous_compaction is not None:
            if (cached.compaction.id if cached is not None else "") == previous_compaction.compaction_id:
                return index, cached, "store"
            if index < previous_compaction.covered_count <= len(chain):
                loaded = await self._load_previous(tenant, prefix, chain, previous_compaction)
                if loaded is not None:
                    return previous_compaction.covered_count - 1, loaded, "store"
        if check_store:
            positions = _list_deeper_positions(chain, index, cached)
        if not positions:
            return index, cached, "store" if check_store else "memory"
        index, cached = await self._find_in_store(tenant, prefix, chain, index, cached, positions)
        published_index, published, _ = self._find_in_memory(prefix, chain)
        if published is not None and published_index >= index:
            # Another request of this worker may have published it since the store was read.
            index, cached = published_index, published
        return index, cached, "store"

    async def _load_previous(
        self, tenant: TenantScope, prefix: ScopePrefix, chain: Sequence[bytes], previous_compaction: AppliedCompaction
    ) -> _CachedCompaction | None:
        """Loads the compaction that applied to the request before; None if the store has another one there."""
        anchor = chain[previous_compaction.covered_count - 1]
        stored = await self._find_uppermost(tenant, prefix, anchor)
        if stored is None or stored[0].id != previous_compaction.compaction_id:
            return None
        self._cache(prefix, chain[0], *stored, is_local_only=self._is_waiting_for_store(tenant, prefix))
        return self._cached[prefix + anchor]

    def knows_position(self, ref: ConversationRef, chain_key: bytes) -> bool:
        """Whether this worker knows which compaction applies to the history that ends at this chain key."""
        name = scope_prefix(ref) + chain_key
        return name in self._known_lookups or name in self._cached

    def find_local(
        self, protocol: WireProtocol, ref: ConversationRef, conversation: Conversation
    ) -> CompactedConversation:
        """Returns the same as `find`, from memory only."""
        prefix, chain = scope_prefix(ref), conversation.chain
        history = self._apply_entry(protocol, ref.tenant, conversation, self._find_in_memory(prefix, chain)[1])
        if hides_newest_message(history, conversation):
            return self._apply_entry(protocol, ref.tenant, conversation, self._find_in_memory(prefix, chain[:-1])[1])
        return history

    def _apply_entry(
        self, protocol: WireProtocol, tenant: TenantScope, conversation: Conversation, cached: _CachedCompaction | None
    ) -> CompactedConversation:
        if cached is None:
            return without_compaction(conversation)
        try:
            return self._prefix_cache.apply(protocol, tenant, conversation, cached.compaction)
        except ValueError:
            # The compaction removed an unanswered call that is answered now: the history must be compacted anew.
            return without_compaction(conversation)

    def apply(
        self, protocol: WireProtocol, tenant: TenantScope, conversation: Conversation, compaction: Compaction
    ) -> CompactedConversation:
        """Returns the conversation with this compaction applied. Raises ValueError if it is not valid for it."""
        return self._prefix_cache.apply(protocol, tenant, conversation, compaction)

    async def is_gone(self, ref: ConversationRef, compaction: Compaction) -> bool:
        """Whether the store no longer has a published compaction: it was emptied or replaced, or its time is over."""
        prefix, failed_reads = scope_prefix(ref), self._failed_reads
        cached = self._cached.get(prefix + compaction.anchor)
        if cached is not None and cached.source is not None:
            return False
        is_there = await self._find_uppermost(ref.tenant, prefix, compaction.anchor) is not None
        # While the store is away, the spool answers for it, and has only a part.
        return not is_there and self._failed_reads == failed_reads and self._store.is_available

    async def publish(
        self, ref: ConversationRef, root: bytes, compaction: Compaction, *, last_chain_key: bytes = b""
    ) -> Compaction:
        """Publishes a compaction to all workers. Returns the winner: if another worker was first, that one's.

        `root` is the chain key of the client's first message, `last_chain_key` that of the last message of the history
        that was compacted, earlier compactions included. Raises StoreUnavailable; then the compaction applies nowhere.
        """
        prefix = scope_prefix(ref)
        if last_chain_key:
            # Workers that measure differently choose different anchors for the same history, so they compete for a key
            # made of the history itself. It holds the whole record, so that a loser can publish the winner's compaction
            # should the winner fail before it does.
            key = race_key(prefix, last_chain_key, compaction.cause)
            compaction = await self._put_first(ref.tenant, key, compaction, _SAME_LIST_SECONDS) or compaction
        winner, level = await self._put_on_own_level(ref.tenant, prefix, compaction)
        if winner.identity_key:
            await self._store.put(form_key(prefix, winner.identity_key), winner.anchor, ttl=self._retention)
        self._cache(prefix, root, winner, level, is_local_only=self._is_waiting_for_store(ref.tenant, prefix))
        return winner

    async def _put_on_own_level(
        self, tenant: TenantScope, prefix: ScopePrefix, compaction: Compaction
    ) -> tuple[Compaction, int]:
        """Stores a compaction above those that it was made from. Returns the one that applies there, and the level."""
        # While the store is unavailable it cannot tell the lower levels, so those known in memory count.
        level = 0 if self._store.is_available else self._next_level(prefix, compaction)
        while True:
            key = _compaction_key(prefix, compaction.anchor, level)
            stored = await self._put_first(tenant, key, compaction, self._retention)
            is_last = level == _MAX_LEVELS - 1
            # An unreadable record does not win.
            if stored is not None and (is_last or _wins(stored, compaction)):
                return stored, level
            if is_last:
                return compaction, level
            level += 1

    def _is_waiting_for_store(self, tenant: TenantScope, prefix: ScopePrefix) -> bool:
        """Whether a compaction just written or found waits for the store; then another one may still win."""
        if self._store.is_available:
            return False
        if len(self._waiting_tenants) >= self._max_lookups:
            self._waiting_tenants.clear()
        self._waiting_tenants[prefix] = tenant
        return True

    async def _put_first(self, tenant: TenantScope, key: Key, compaction: Compaction, ttl: float) -> Compaction | None:
        """Returns the first compaction written under a key; None if it cannot be read."""
        value = self._encrypt(tenant, key, compaction)
        stored = await self._store.put_if_absent(key, value, ttl=ttl)
        return compaction if stored == value else self._decrypt(tenant, key, stored)

    def _encrypt(self, tenant: TenantScope, key: Key, compaction: Compaction) -> bytes:
        return self._sealer.seal(tenant, key.path, encode(compaction))

    def _decrypt(self, tenant: TenantScope, key: Key, value: bytes | None) -> Compaction | None:
        """Decodes a stored compaction; None if there is none, it is unreadable, or somebody undid it."""
        compaction = decode(self._sealer.open(tenant, key.path, value) if value is not None else None)
        return None if compaction is not None and compaction.id in self._undone else compaction

    def adopt(self, key: Key, value: bytes) -> None:
        """Replaces a compaction that waited for the store by the one that another worker published first."""
        prefix, anchor, level = parse_key(key)
        if prefix not in self._waiting_tenants:
            # An earlier run spooled it: it is not in memory, and `find` will read the store's.
            return
        compaction = self._decrypt(self._waiting_tenants[prefix], key, value)
        if compaction is not None and compaction.anchor == anchor:
            self._cache(prefix, b"", compaction, level)

    def set_undone(self, compaction_ids: frozenset[str]) -> None:
        """Sets the compactions that do not apply to any request, since somebody undid them."""
        self._undone = compaction_ids
        self.forget()

    def forget(self) -> None:
        """Empties memory after an erasure or an undone compaction, since the store's content is no longer known."""
        for cache in (self._cached, self._known_lookups, self._last_change_by_root):
            cache.clear()
        self._prefix_cache.forget()
        self._size = 0
        self._oldest_valid_change = self._change_count = self._change_count + 1

    # -- in memory ----------------------------------------------------------------

    def _next_level(self, prefix: ScopePrefix, compaction: Compaction) -> int:
        """Returns how many compactions lie below a new one at its anchor, as far as this worker knows."""
        below = self._cached.get(prefix + compaction.anchor)
        return 0 if below is None else min(below.level + 1, _MAX_LEVELS - 1)

    def _find_in_memory(
        self, prefix: ScopePrefix, chain: Sequence[bytes]
    ) -> tuple[int, _CachedCompaction | None, Sequence[int]]:
        """Returns index and entry of the deepest compaction in memory, and the positions where a deeper one may have
        been evicted."""
        cached, lookups, deepest_known, may_be_evicted = self._cached, self._known_lookups, -1, False
        index = len(chain) - 1
        while index > deepest_known:
            name = prefix + chain[index]
            if name in cached:
                cached.move_to_end(name)
                return index, cached[name], ()
            if name in lookups:
                count, known_index = lookups[name]
                deepest_known = max(deepest_known, known_index)
                if count >= self._oldest_valid_change and count >= self._last_change_by_root.get(prefix + chain[0], 0):
                    # No compaction of this history was added since, so there is no deeper one.
                    # Jumps to the message that the look-up named.
                    index = known_index + 1
                else:
                    may_be_evicted = may_be_evicted or count < self._last_eviction
            index -= 1
        entry, evicted = None, -1
        while index >= 0 and (entry := cached.get(prefix + chain[index])) is None:
            evicted = max(evicted, index if index == deepest_known else -1)
            index -= 1
        if may_be_evicted:
            # The compaction that was added since belongs to another branch, or it was evicted before its first use.
            return index, entry, _list_deeper_positions(chain, index, entry)
        return index, entry, (evicted,) if evicted >= 0 else ()

    def _remember_lookup(self, prefix: ScopePrefix, chain: Sequence[bytes], index: int) -> None:
        name, lookups = prefix + chain[-1], self._known_lookups
        lookups[name] = (self._change_count, index)
        lookups.move_to_end(name)
        if len(lookups) > self._max_lookups:
            lookups.popitem(last=False)

    def _cache(
        self,
        prefix: ScopePrefix,
        root: bytes,
        compaction: Compaction,
        level: int,
        *,
        is_local_only: bool = False,
        source: Compaction | None = None,
    ) -> None:
        """Adds a compaction to memory. Invalidates the remembered look-ups of this history; all, if `root` is empty."""
        name = prefix + compaction.anchor
        known = self._cached.pop(name, None)
        if known is not None:
            self._size -= known.size
        entry = _CachedCompaction(compaction, level, memory_size(compaction), is_local_only, source)
        self._cached[name] = entry
        self._size += entry.size
        self._change_count += 1
        while self._size > self._capacity and len(self._cached) > 1:
            _, evicted = self._cached.popitem(last=False)
            self._size -= evicted.size
            self._last_eviction = self._change_count
        if not root:
            self._oldest_valid_change = self._change_count
            return
        self._last_change_by_root[prefix + root] = self._change_count
        self._last_change_by_root.move_to_end(prefix + root)
        while len(self._last_change_by_root) > self._max_lookups:
            _, change = self._last_change_by_root.popitem(last=False)
            self._oldest_valid_change = max(self._oldest_valid_change, change)

    # -- in the store -------------------------------------------------------------

    async def _find_in_store(
        self,
        tenant: TenantScope,
        prefix: ScopePrefix,
        chain: Sequence[bytes],
        index: int,
        cached: _CachedCompaction | None,
        positions: Sequence[int],
    ) -> tuple[int, _CachedCompaction | None]:
        """Returns the deepest compaction that the store has after the cached one or on a higher level of its anchor.

        A cached one that applies in this worker alone may also be replaced at its own level. The store is asked for
        these positions only.
        """
        level = cached.level + (not cached.is_local_only) if cached is not None else 0
        sizes, start = iter(_BATCHES), 0
        while start < len(positions):
            batch = positions[start : start + next(sizes, _BATCH)]
            start += len(batch)
            keys = [_compaction_key(prefix, chain[at], level if at == index else 0) for at in batch]
            values = await self._read(keys)
            for at, value in zip(batch, values, strict=True):
                if value is None:
                    continue
                uppermost = await self._find_uppermost(tenant, prefix, chain[at])
                if uppermost is not None:
                    is_local_only = self._is_waiting_for_store(tenant, prefix)
                    self._cache(prefix, chain[0], *uppermost, is_local_only=is_local_only)
                    return at, self._cached[prefix + chain[at]]
        return index, cached

    async def _find_in_other_form(
        self,
        protocol: WireProtocol,
        tenant: TenantScope,
        prefix: ScopePrefix,
        conversation: Conversation,
        index: int,
        cached: _CachedCompaction | None,
    ) -> tuple[int, _CachedCompaction | None]:
        """Returns the deepest compaction whose covered messages say the same as the conversation's, adapted to it.

        It is not published, since every worker adapts it in the same way.
        """
        async for source, level in self._load_by_identity(tenant, prefix, conversation, index):
            is_adapted = source.anchor not in conversation.chain
            compaction = adapt_compaction(conversation, source) if is_adapted else source
            if compaction is None:
                continue
            if is_adapted:
                compaction = with_content_id(compaction)
                if compaction.id in self._undone:
                    continue
            if self._is_valid(protocol, tenant, conversation, compaction):
                self._cache(
                    prefix,
                    conversation.chain[0],
                    compaction,
                    0 if is_adapted else level,
                    is_local_only=is_adapted or self._is_waiting_for_store(tenant, prefix),
                    source=source if is_adapted else None,
                )
                return compaction.covered_count - 1, self._cached[prefix + compaction.anchor]
        return index, cached

    async def _load_by_identity(
        self, tenant: TenantScope, prefix: ScopePrefix, conversation: Conversation, index: int
    ) -> AsyncIterator[tuple[Compaction, int]]:
        """Yields the compactions whose last covered message has an identity key of the conversation after `index`.

        A compaction of messages whose keys are their identity keys has its own place in the store under that key.
        """
        identity = list(dict.fromkeys(conversation.identity_chain[index + 1 :]))[::-1]
        sizes, start = iter(_BATCHES), 0
        while start < len(identity):
            batch = identity[start : start + next(sizes, _BATCH)]
            start += len(batch)
            keys = [form_key(prefix, key) for key in batch] + [_compaction_key(prefix, key, 0) for key in batch]
            values = await self._read(keys)
            for key, form, own in zip(batch, values, values[len(batch) :], strict=False):
                for anchor in (form, key if own is not None else None):
                    stored = await self._find_uppermost(tenant, prefix, anchor) if anchor is not None else None
                    if stored is not None:
                        yield stored

    def _is_valid(
        self, protocol: WireProtocol, tenant: TenantScope, conversation: Conversation, compaction: Compaction
    ) -> bool:
        """Whether a provider would take the conversation with this compaction as far as it takes the client's own."""
        try:
            history = self._prefix_cache.apply(protocol, tenant, conversation, compaction)
        except ValueError:
            return False
        return not find_new_problem(protocol, conversation.messages, history.conversation.messages)

    async def _read(self, keys: Sequence[Key]) -> list[bytes | None]:
        """Returns the values of these keys; while the store is unavailable, those that the spool has.

        It raises if it has none of them. Others that are asked for next may still be there.
        """
        try:
            return await self._store.get_many(keys)
        except StoreUnavailable:
            self._failed_reads += 1
            return [None] * len(keys)

    async def _find_uppermost(
        self, tenant: TenantScope, prefix: ScopePrefix, anchor: bytes
    ) -> tuple[Compaction, int] | None:
        """Returns the readable compaction on the highest level of an anchor, with its level."""
        keys = compaction_keys(prefix, anchor)
        stored = list(zip(keys, await self._read(keys), strict=True))
        for level in reversed(range(_MAX_LEVELS)):
            compaction = self._decrypt(tenant, *stored[level])
            if compaction is not None and compaction.anchor == anchor:
                return compaction, level
        return None


def _wins(stored: Compaction, own: Compaction) -> bool:
    """Whether a record that is stored on a level applies instead of this worker's own, which else lies above it."""
    if own.cause == "overflow" and stored.cause != "overflow":
        # It may have been made before the provider reported the overflow.
        return stored.generation > own.generation
    # This compaction was made from a record of a lower generation.
    return stored.generation >= own.generation


def hides_newest_message(history: CompactedConversation, conversation: Conversation) -> bool:
    """Whether a summary covers the newest message, which the model must answer: the history was rewound to the
    compaction's anchor."""
    return history.compaction is not None and history.origins[-1] != len(conversation.messages) - 1


def _list_deeper_positions(chain: Sequence[bytes], index: int, cached: _CachedCompaction | None) -> Sequence[int]:
    """Returns the positions behind the cached compaction, and its own if there is one; the deepest first."""
    return range(len(chain) - 1, index - (cached is not None), -1)
