"""Reads a request body into a Conversation, at a cost that grows with its new messages.

A client sends its whole history with every request. The reader compares the body with those that it has read (block by
block: less than 0.1 ms for 800 KB) and reuses the messages of the longest beginning that they share. Only the rest is
parsed, keyed and cached (PrefixCache). The reader changes no byte of the body.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache
from threading import Lock

import msgspec

from accordion.model.cache import LONGEST_NAME
from accordion.model.conversation import Conversation, Message, Part, copy_wide_texts
from accordion.model.errors import TooManyMessages, Unreadable
from accordion.model.tenant import TenantScope
from accordion.protocols.base import WireProtocol
from accordion.protocols.json_spans import (
    FIELDS,
    SPACE,
    exceeds_count,
    items_of,
    split_at_list,
    split_body,
    split_entries,
)
from accordion.protocols.message_keys import (
    TooManyValues,
    chain_key,
    chain_start,
    content_key,
    identity_key,
    message_key,
)

# A prefix is indexed by the beginning of its body, at each of these lengths that it covers.
_INDEX_LENGTHS = (16_384, 2_048)
MIN_LENGTH = _INDEX_LENGTHS[-1]
"""Shorter bodies are not worth caching."""
_CANDIDATES = 8
# The memory of a cached message beside its bytes: objects, keys, the parsed text.
_OBJECTS = 700
# So many messages are compared at once: joining them costs less than comparing them one by one.
_BLOCK = 16


class BodyPrefix(msgspec.Struct, eq=False):
    """One body as it was read: its beginning, its list message by message, and the values computed from it."""

    head: bytes
    """The body up to the list's opening bracket, inclusive."""
    leading_fields: dict[str, bytes]
    """The fields in `head`."""
    pieces: tuple[bytes, ...]
    """In turn: the bytes before each message (commas, white space), and the message as it came."""
    end: int
    """The offset at which the last message ends."""
    entries: tuple[Message, ...]
    lead: int
    """How many of the entries belong to the preamble."""
    chain: tuple[bytes, ...]
    fields: dict[str, bytes]
    preamble: tuple[Part, ...]
    tools: tuple[str, ...]
    overhead_key: bytes
    identity: tuple[bytes, ...] = ()
    """As `chain`, but of identity keys; empty where they are the same."""
    size: int = 0
    """Estimated memory while it is cached, in bytes."""
    index_keys: list[tuple[object, ...]] = []

    def match(self, body: bytes) -> tuple[int, int]:
        """Returns how many of the messages `body` begins with, and the offset at which the last of them ends."""
        if not body.startswith(self.head):
            return 0, 0
        position, done, pieces = len(self.head), 0, self.pieces
        for size in (2 * _BLOCK, 2):
            while done < len(pieces):
                block = b"".join(pieces[done : done + size])
                if not body.startswith(block, position):
                    break
                position += len(block)
                done += size
        return min(done, len(pieces)) // 2, position


class PrefixCache:
    """The cached prefixes of one worker, within `budget` bytes; evicts the least recently used first."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._prefixes: OrderedDict[int, BodyPrefix] = OrderedDict()
        self._index: dict[tuple[object, ...], list[BodyPrefix]] = {}
        self.size = 0

    def find(self, protocol: WireProtocol, body: bytes, tenant: TenantScope) -> tuple[BodyPrefix | None, int, int]:
        """Returns the prefix that shares the longest beginning with `body`, how many messages, and their end."""
        best: BodyPrefix | None = None
        count = position = 0
        for length in _INDEX_LENGTHS:
            if len(body) < length:
                continue
            for prefix in reversed(self._index.get((tenant, protocol.name, body[:length]), ())):
                matched, end = prefix.match(body)
                if end > position:
                    best, count, position = prefix, matched, end
            if best is not None:
                self._prefixes.move_to_end(id(best))
                break
        return best, count, position

    def store(self, protocol: WireProtocol, body: bytes, tenant: TenantScope, prefix: BodyPrefix) -> None:
        """Caches a prefix whose head and entries `body` begins with, unless it is too large."""
        # Each message counts twice: its bytes, and its parsed parts.
        entries = 2 * prefix.end - len(prefix.head) + _OBJECTS * len(prefix.entries)
        prefix.size = entries + sum(map(len, prefix.fields.values())) + 1024
        if prefix.size > self._budget // 2:
            return
        for length in _INDEX_LENGTHS:
            if prefix.end >= length:
                index_key = (tenant, protocol.name, body[:length])
                prefix.index_keys.append(index_key)
                prefix.size += length
                bucket = self._index.setdefault(index_key, [])
                bucket.append(prefix)
                if len(bucket) > _CANDIDATES:
                    self.remove(bucket[0])
        if prefix.index_keys:
            self._prefixes[id(prefix)] = prefix
            self.size += prefix.size
            while self.size > self._budget:
                self.remove(next(iter(self._prefixes.values())))

    def remove(self, prefix: BodyPrefix) -> None:
        """Removes a prefix if it is cached."""
        if self._prefixes.pop(id(prefix), None) is None:
            return
        self.size -= prefix.size
        for index_key in prefix.index_keys:
            bucket = self._index[index_key]
            bucket.remove(prefix)
            if not bucket:
                del self._index[index_key]


_MODEL = msgspec.json.Decoder(str)

# A list that differs from a cached one in at most so many entries at its end replaces it in the cache, as the same
# conversation a turn later: clients move cache breakpoints and environment blocks there.
_CHANGING_ENTRIES = 4

# Limit of keys and values per message, on average: a message with a tool call has about twenty.
_VALUES_PER_MESSAGE = 25
# The least bytes of a key or a value: a digit, and a comma or a colon.
_MIN_BYTES_PER_VALUE = 2

# After a step over more bytes than this, other threads that wait for the interpreter may run.
_LARGE = 1 << 20

_UNDECODABLE = (msgspec.MsgspecError, RecursionError, UnicodeError, ValueError)


class BodyReader:
    """Reads bodies of every protocol, with a cache of `budget` bytes; evicts the least recently used prefix first.

    It rejects bodies with more than `max_messages` messages, or more than 25 times as many keys and values. Safe to use
    from several threads: only the cache is locked, not the reading. A step over a large body keeps every other thread
    from running, so `pause` is called after it.
    """

    def __init__(
        self, budget: int = 16 * 2**20, max_messages: int = 20_000, pause: Callable[[], object] = lambda: None
    ) -> None:
        self._pause = pause
        self._prefixes = PrefixCache(budget)
        self._max_messages = max_messages
        self._lock = Lock()

    @property
    def remembered_bytes(self) -> int:
        """The estimated memory of the cached prefixes, in bytes."""
        return self._prefixes.size

    def read(self, protocol: WireProtocol, body: bytes, tenant: TenantScope) -> Conversation:
        """Reads a request body. Raises Unreadable if it is not a readable JSON object, and TooManyMessages if it is too
        large; the proxy forwards such a body as it came."""
        try:
            if len(body) >= MIN_LENGTH:
                with self._lock:
                    cached_prefix, count, position = self._prefixes.find(protocol, body, tenant)
                if cached_prefix is not None and count:
                    self._check(body, position)
                    resumed = self._resume(protocol, body, tenant, cached_prefix, count, position)
                    if resumed is not None:
                        return resumed
            self._check(body, 0)
            return self._read_from_start(protocol, body, tenant)
        except TooManyValues as error:
            raise TooManyMessages(str(error)) from error
        except _UNDECODABLE as error:
            raise Unreadable(f"the body could not be read: {error}") from error

    def count_new_bytes(self, protocol: WireProtocol, body: bytes, tenant: TenantScope) -> int:
        """Returns how many bytes of a body follow its cached beginning."""
        with self._lock:
            return len(body) - self._prefixes.find(protocol, body, tenant)[2]

    def _check(self, body: bytes, position: int) -> None:
        limit = _VALUES_PER_MESSAGE * self._max_messages
        if len(body) - position > _MIN_BYTES_PER_VALUE * limit and exceeds_count(body, position, limit):
            raise TooManyMessages(
                f"more than {limit:,} keys and values, {_VALUES_PER_MESSAGE} for each of the {self._max_messages:,} "
                "messages of limits.messages_per_request"
            )

    def _pause_after(self, raw: bytes) -> None:
        if len(raw) > _LARGE:
            self._pause()

    def _read_from_start(self, protocol: WireProtocol, body: bytes, tenant: TenantScope) -> Conversation:
        split = split_body(body, protocol.messages_field) if len(body) >= MIN_LENGTH else None
        if split is not None:
            fields, wires = split.fields, split.entries
        else:
            raw = FIELDS.decode(body)
            self._pause_after(body)
            wires = _list_entries(raw.pop(protocol.messages_field, None))
            fields = {name: bytes(value) for name, value in raw.items()}
        self._pause_after(body)
        prefix = self._extend_prefix(
            protocol, tenant, _empty_prefix(tenant, protocol.name, len(protocol.overhead_fields)), wires, fields
        )
        if split is not None:
            prefix.head, prefix.leading_fields = split.head, split.leading_fields
            prefix.pieces, prefix.end = split.pieces, split.end
            with self._lock:
                self._prefixes.store(protocol, body, tenant, prefix)
        return _build_conversation(protocol, prefix)

    def _resume(
        self,
        protocol: WireProtocol,
        body: bytes,
        tenant: TenantScope,
        cached_prefix: BodyPrefix,
        count: int,
        position: int,
    ) -> Conversation | None:
        """Reads the rest of a body after the first `count` entries of `cached_prefix`; None where the list does not
        continue there."""
        follows = SPACE.match(body, position).end()  # type: ignore[union-attr]  # it always matches
        comma = body[follows : follows + 1] == b","
        list_opening = b'{"' + protocol.messages_field.encode() + b'":['
        remaining_body = list_opening + body[follows + comma :]
        raw = FIELDS.decode(remaining_body)
        if (list_span := split_at_list(remaining_body, protocol.messages_field, raw)) is None:
            return None
        wires = _list_entries(raw.pop(protocol.messages_field))
        if comma and not wires:
            return None
        new_pieces, end = split_entries(body, position, wires)
        if not _covers_list(new_pieces, wires, body, end, len(body) - len(remaining_body) + list_span[2]):
            return None
        fields = dict(cached_prefix.leading_fields)
        for name, value in raw.items():
            old_value, new_value = cached_prefix.fields.get(name), bytes(value)
            fields[name] = old_value if old_value == new_value else new_value
        messages = max(0, count - cached_prefix.lead)
        base = BodyPrefix(
            head=cached_prefix.head,
            leading_fields=cached_prefix.leading_fields,
            pieces=cached_prefix.pieces[: 2 * count] + new_pieces,
            end=end,
            entries=cached_prefix.entries[:count],
            lead=min(cached_prefix.lead, count),
            chain=cached_prefix.chain[: messages + 1],
            fields=cached_prefix.fields,
            preamble=cached_prefix.preamble,
            tools=cached_prefix.tools,
            # The old key is valid only with all of the old preamble.
            overhead_key=cached_prefix.overhead_key if count >= cached_prefix.lead else b"",
            identity=cached_prefix.identity[: messages + 1],
        )
        prefix = self._extend_prefix(protocol, tenant, base, wires, fields)
        with self._lock:
            if len(cached_prefix.entries) - count <= _CHANGING_ENTRIES:
                self._prefixes.remove(cached_prefix)
            self._prefixes.store(protocol, body, tenant, prefix)
        return _build_conversation(protocol, prefix)

    def _extend_prefix(
        self,
        protocol: WireProtocol,
        tenant: TenantScope,
        base: BodyPrefix,
        wires: list[bytes],
        fields: dict[str, bytes],
    ) -> BodyPrefix:
        """Returns `base` with more entries, and its overhead read again where it changed."""
        if len(base.entries) + len(wires) > self._max_messages:
            raise TooManyMessages(f"more than the {self._max_messages:,} messages of limits.messages_per_request")
        entries, chain, lead = list(base.entries), list(base.chain), base.lead
        identity, name = list(base.identity), protocol.name
        for wire in wires:
            message = protocol.read_message(wire)
            self._pause_after(wire)
            key = message_key(message.canonical, tenant, name)
            self._pause_after(wire)
            own_content_key = content_key(message.canonical, tenant, name)
            # The keys were made of the same texts, so each has its UTF-8 form by now.
            parts = copy_wide_texts(message.parts)
            entry = Message(key, message.role, parts, wire, protocol.count_breakpoints(wire), own_content_key)
            if lead == len(entries) and protocol.is_preamble(message):
                lead += 1
            else:
                if own_content_key and not identity:
                    identity = chain.copy()
                if identity:
                    identity.append(identity_key(identity[-1], entry, chain[0]))
                chain.append(chain_key(chain[-1], key))
            entries.append(entry)
        names = protocol.overhead_fields
        overhead = list(map(fields.get, names))
        old_overhead = list(map(base.fields.get, names)) if base.fields else [None] * len(names)
        if lead == base.lead and base.overhead_key and overhead == old_overhead:
            preamble, tools, overhead_key = base.preamble, base.tools, base.overhead_key
        else:
            preamble = (*protocol.read_preamble(fields), *(part for entry in entries[:lead] for part in entry.parts))
            tools = protocol.read_tools(fields)
            overhead_key = _overhead_key(tenant, overhead, entries[:lead])
        return BodyPrefix(
            base.head, base.leading_fields, base.pieces, base.end, tuple(entries), lead, tuple(chain),
            fields, preamble, tools, overhead_key, tuple(identity),
        )  # fmt: skip


def _build_conversation(protocol: WireProtocol, prefix: BodyPrefix) -> Conversation:
    fields = prefix.fields
    model = fields.get("model")
    return Conversation(
        protocol_name=protocol.name,
        # Many caches have models as keys. No model has a name that long.
        model=_MODEL.decode(model) if model and model[:1] == b'"' and len(model) <= LONGEST_NAME else "",
        messages=prefix.entries[prefix.lead :],
        lead=prefix.entries[: prefix.lead],
        chain=prefix.chain[1:],
        preamble=prefix.preamble,
        tools=prefix.tools,
        stream=protocol.is_streamed(fields),
        max_output=protocol.read_max_output(fields),
        continued_id=protocol.read_continued_id(fields),
        provider_state=protocol.provider_state(fields),
        envelope=fields,
        overhead_key=prefix.overhead_key,
        identity=prefix.identity[1:],
    )


def _covers_list(pieces: tuple[bytes, ...], wires: list[bytes], body: bytes, end: int, list_end: int) -> bool:
    """Whether `wires` are all entries of the list whose bracket closes at `list_end`."""
    # The pattern always matches.
    return len(pieces) == 2 * len(wires) and SPACE.match(body, end).end() == list_end  # type: ignore[union-attr]


def _list_entries(message_list: msgspec.Raw | None) -> list[bytes]:
    """Returns the list's entries as they came; a single value (a string as `input`) is one entry."""
    if message_list is None:
        return []
    if bytes(memoryview(message_list)[:1]) == b"[":
        return items_of(message_list)
    raw = bytes(message_list)
    return [raw] if raw[:1] in b'"{' else []


@lru_cache(1_024)
def _empty_prefix(tenant: TenantScope, protocol: str, overhead_fields: int) -> BodyPrefix:
    """Returns the prefix of a body that shares no cached beginning. It is never changed. `overhead_fields` is the
    number of the protocol's."""
    return BodyPrefix(
        b"",
        {},
        (),
        0,
        (),
        0,
        (chain_start(tenant, protocol),),
        {},
        (),
        (),
        _overhead_key(tenant, [None] * overhead_fields, []),
    )


def _overhead_key(tenant: TenantScope, fields: list[bytes | None], lead: list[Message]) -> bytes:
    values = [b"\0" * len(fields)]
    if any(fields):
        values = [b"\0" if value is None else len(value).to_bytes(8, "big") + value for value in fields]
    return hashlib.sha256(b"".join([tenant.key, *values, *[message.key for message in lead]])).digest()
