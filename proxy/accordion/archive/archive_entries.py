"""The listing of a tenant's archive: an entry for each group of values that was stored together.

Retention, export and erasure go by these entries. An entry is small, since all of a tenant's are read to find the
oldest. The keys that belong to it are in its contents: a separate record for a compaction, the log for a transcript.
None of this is encrypted, for retention does not know the tenants' keys: it has hashes, sizes and times, and no text.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterable, Sequence
from hashlib import sha256
from typing import Literal, TypeVar

import msgspec

from accordion.archive.artifacts import Artifact, artifact_keys, row_key
from accordion.model.ports import Key, KeyValueStore, Put
from accordion.model.tenant import ArchiveNamespace

__all__ = [
    "AFTER_PROVIDER_HISTORY",
    "ENTRIES_PREFIX",
    "TENANTS_WITH_ARCHIVE",
    "ArchiveEntry",
    "EntryContents",
    "Kind",
    "TenantTotals",
    "TranscriptEntry",
    "build_entry_puts",
    "scan_entries",
]

T = TypeVar("T")

Kind = Literal["compaction", "read", "transcript", "insertion", "summary", "item", "link"]
"""A compaction with its removed content; an artifact that a person read; the transcript of a session; an insertion (a
tool round or an excerpt); a prepared summary; an item of a response that the client only names; a response that the
client continues by its id."""

TENANTS_WITH_ARCHIVE = "holders"
"""The collection that lists the tenants with anything in the archive."""

ENTRIES_PREFIX = "held/"
"""The prefix of the collections that list the entries of a tenant."""

OVERHEAD = 100
"""Bytes that a value takes beside itself, roughly."""

_PAGE = 256


class TenantTotals(msgspec.Struct, frozen=True, array_like=True):
    """The bytes of a tenant at its last sweep, and the time of that."""

    stored_bytes: int = 0
    at: float = 0.0


class ArchiveEntry(msgspec.Struct, frozen=True, array_like=True):
    """One entry.

    `size` is in bytes, without the values that were stored before as far as its writer knew; times are in seconds since
    the epoch. `base` is the id of the compaction that it continues, which is in use as long as this one. `value_key` is
    the key of the only value of an entry without contents.
    """

    kind: Kind
    id: str
    session: str
    at: float
    used: float
    size: int
    base: str = ""
    value_key: tuple[str, str] | None = None

    @property
    def name(self) -> str:
        """Its name in the tenant's collection; those of a session are next to each other."""
        return f"{session_prefix(self.session)}{self.kind}/{self.id}"


class EntryContents(msgspec.Struct, frozen=True, array_like=True):
    """The values that belong to an entry: rows by message key, artifacts by scope, other keys.

    Rows and keys have sizes, 0 if another entry is known to count them.
    """

    session: str
    rows: list[tuple[bytes, int]] = []
    artifacts: list[tuple[bytes, list[str]]] = []
    keys: list[tuple[str, str, int]] = []


AFTER_PROVIDER_HISTORY = -1
"""In place of an index: after the messages that the provider keeps."""


class TranscriptEntry(msgspec.Struct, frozen=True, array_like=True):
    """One entry of a transcript's log: from the message `start` on, the session's list is that of `keys`.

    If `start` is AFTER_PROVIDER_HISTORY, they follow a response that the provider keeps. `end` is the chain key at the
    end of the request, `after` the one that `keys` follow (empty: not known, or at the beginning). `at` is when its
    exchange ended, in seconds since the epoch.

    `sizes` are those of the rows, 0 if another entry counts them. `head` names the record of the system prompt and
    the tools, `lead` the rows of list entries that belong to the system prompt, `options` the record of the options (as
    `temperature`); each only if it has changed.

    `variants` and `lead_variants` distinguish messages with equal content and other bytes, 8 bytes for each key; a row
    is stored under key and variant. If they are zeros the row is that of a compaction, under the key alone, with the
    same bytes. Earlier entries have none, and their rows are stored under the key alone.
    """

    start: int
    keys: list[bytes]
    sizes: list[int]
    at: float
    protocol_name: str = ""
    model: str = ""
    head: bytes = b""
    head_size: int = 0
    lead: list[bytes] = []
    lead_sizes: list[int] = []
    end: bytes = b""
    after: bytes = b""
    variants: bytes = b""
    lead_variants: bytes = b""
    options: bytes = b""
    options_size: int = 0
    is_new_list: bool = False
    """Whether the client's own compaction put this list in place of the one before, which stays in the transcript."""

    @property
    def rows(self) -> list[bytes]:
        """The keys of the rows of `keys`."""
        return _rows(self.keys, self.variants)

    @property
    def lead_rows(self) -> list[bytes]:
        """The keys of the rows of `lead`."""
        return _rows(self.lead, self.lead_variants)

    @property
    def size(self) -> int:
        """The bytes that it counts, its own included."""
        fields = self.head_size + self.options_size
        return sum(self.sizes) + sum(self.lead_sizes) + fields + 40 * len(self.keys) + OVERHEAD


KEY = 32
"""Bytes of a message's key."""
VARIANT = 8
"""Bytes of a variant; a message has few variants."""
SHARED = bytes(VARIANT)
"""The variant of a message whose row under the key alone has its very bytes."""


def _rows(keys: list[bytes], variants: bytes) -> list[bytes]:
    each = [variants[at : at + VARIANT] for at in range(0, len(keys) * VARIANT, VARIANT)]
    return [key if variant == SHARED else key + variant for key, variant in zip(keys, each, strict=True)]


def variant_key(wire: bytes) -> bytes:
    """Returns the variant of a message: a short hash of its bytes."""
    return sha256(wire).digest()[:VARIANT]


def is_exact(row: bytes) -> bool:
    """Whether the key of a row has a variant, so that its bytes are exactly those of the message."""
    return len(row) > KEY


_ENCODER = msgspec.msgpack.Encoder()
_ENTRY, _CONTENTS = msgspec.msgpack.Decoder(ArchiveEntry), msgspec.msgpack.Decoder(EntryContents)
_TRANSCRIPT, _SUMS = msgspec.msgpack.Decoder(TranscriptEntry), msgspec.msgpack.Decoder(TenantTotals)
encode = _ENCODER.encode


def decode_totals(value: bytes | None) -> TenantTotals:
    """Decodes the totals of a tenant; zero if there are none that can be read."""
    return _decode(_SUMS, value) or TenantTotals()


def decode_transcript(log: Iterable[tuple[int, bytes]]) -> list[TranscriptEntry]:
    """Decodes the entries of a transcript's log in order, without those that cannot be read."""
    return [entry for _, value in log if (entry := _decode(_TRANSCRIPT, value)) is not None]


# -- keys --------------------------------------------------------------------------------------------------------------


def entries_collection(namespace: ArchiveNamespace) -> str:
    """Returns the collection of a tenant's entries."""
    return f"{ENTRIES_PREFIX}{namespace}"


def namespace_of(key: Key) -> ArchiveNamespace | None:
    """Returns the tenant of an entry's key; None for any other key."""
    return (
        ArchiveNamespace(key.collection.removeprefix(ENTRIES_PREFIX))
        if key.collection.startswith(ENTRIES_PREFIX)
        else None
    )


def session_prefix(session: str) -> str:
    """Returns the prefix of the names of a session's entries."""
    return hashlib.sha256(session.encode("utf-8", "surrogatepass")).hexdigest()[:24] + "/"


def contents_key(namespace: ArchiveNamespace, entry_id: str) -> Key:
    """Returns the key of an entry's contents."""
    return Key("", f"contents/{namespace}/{entry_id}")


def keys_of(namespace: ArchiveNamespace, entry: ArchiveEntry) -> tuple[Key, Key]:
    """Returns the keys of an entry and of its contents."""
    return Key(entries_collection(namespace), entry.name), contents_key(namespace, entry.id)


def transcript_key(namespace: ArchiveNamespace, session: str) -> Key:
    """Returns the key of the log of a session's transcript."""
    return Key("", f"transcript/{namespace}/{session_prefix(session)}")


def totals_key(namespace: ArchiveNamespace) -> Key:
    """Returns the key of a tenant's totals."""
    return Key("", f"sums/{namespace}")


def read_id(artifact: Artifact) -> str:
    """Returns the id of the entry of an artifact that a person read."""
    digest = hashlib.sha256(artifact.scope + artifact.session.encode("utf-8", "surrogatepass"))
    return f"{artifact.id}.{digest.hexdigest()[:16]}"


def fields_key(digest: bytes) -> Key:
    """Returns the key of the record of a request's fields beside its list. Their digest is the tenant's own already."""
    return Key("", f"head/{digest.hex()}")


# -- writing -----------------------------------------------------------------------------------------------------------


def build_entry_puts(
    namespace: ArchiveNamespace, entry: ArchiveEntry, ttl: float, contents: EntryContents | None = None
) -> list[Put]:
    """Returns the writes that store an entry, and its contents if any."""
    puts = [Put(Key(entries_collection(namespace), entry.name), encode(entry), ttl)]
    if contents is not None:
        puts.append(Put(contents_key(namespace, entry.id), encode(contents), ttl))
    return puts


def contents_of(
    session: str, rows: dict[bytes, int], artifacts: Iterable[Artifact], keys: Iterable[Key]
) -> EntryContents:
    """Builds the contents of an entry; `rows` are message keys with the sizes that the entry counts."""
    scopes: dict[bytes, dict[str, None]] = {}
    for each in artifacts:
        scopes.setdefault(each.scope, {})[each.id] = None
    return EntryContents(
        session, list(rows.items()), [(scope, list(ids)) for scope, ids in scopes.items()],
        [(key.collection, key.name, 0) for key in keys],
    )  # fmt: skip


# -- reading -----------------------------------------------------------------------------------------------------------


async def scan_entries(
    store: KeyValueStore, namespace: ArchiveNamespace, session: str | None = None, unreadable: set[Key] | None = None
) -> AsyncIterator[list[ArchiveEntry]]:
    """Yields the entries of a tenant, or of one session, page by page; those of a session come in a row.

    Those that cannot be read are left out; their keys are added to `unreadable`. Raises StoreUnavailable.
    """
    collection, after = entries_collection(namespace), ""
    name_prefix = session_prefix(session) if session is not None else ""
    while page := await store.scan(collection, prefix=name_prefix, after=after, limit=_PAGE):
        after = page[-1][0]
        entries = {name: decode_entry(value) for name, value in page}
        if unreadable is not None:
            unreadable.update(Key(collection, name) for name, entry in entries.items() if entry is None)
        yield [entry for entry in entries.values() if entry is not None and session in (None, entry.session)]


async def load_contents(
    store: KeyValueStore,
    namespace: ArchiveNamespace,
    tenant_entries: Sequence[ArchiveEntry],
    unreadable: set[Key] | None = None,
) -> list[EntryContents]:
    """Reads the contents of entries, in their order; those that are gone are empty.

    So are those that cannot be read; their keys are added to `unreadable`. Raises StoreUnavailable.
    """
    unreadable = unreadable if unreadable is not None else set()
    with_record = [entry for entry in tenant_entries if entry.kind in ("compaction", "read")]
    keys = [contents_key(namespace, entry.id) for entry in with_record]
    values = await store.get_many(keys) if keys else []
    records = {entry.name: decode_contents(value) for entry, value in zip(with_record, values, strict=True)}
    unreadable.update(key for key, value in zip(keys, values, strict=True) if value and decode_contents(value) is None)
    results = []
    for entry in tenant_entries:
        if entry.kind == "transcript":
            key = transcript_key(namespace, entry.session)
            stored_log = await store.read(key)
            log = decode_transcript(stored_log)
            unreadable.update({key} if len(log) < len(stored_log) else ())
            results.append(contents_of_log(namespace, entry.session, log))
        elif entry.value_key is not None:
            results.append(EntryContents(entry.session, keys=[(*entry.value_key, entry.size)]))
        else:
            results.append(records.get(entry.name) or EntryContents(entry.session))
    return results


async def find_compaction_entry(
    store: KeyValueStore, namespace: ArchiveNamespace, compaction_id: str
) -> tuple[ArchiveEntry, EntryContents] | None:
    """Finds the entry of a compaction by its id; None if there is none. Raises StoreUnavailable."""
    record = decode_contents(await store.get(contents_key(namespace, compaction_id)))
    if record is None:
        return None
    name = ArchiveEntry("compaction", compaction_id, record.session, 0, 0, 0).name
    value = await store.get(Key(entries_collection(namespace), name))
    entry = decode_entry(value)
    return (entry, record) if entry is not None else None


def contents_of_log(namespace: ArchiveNamespace, session: str, log: Sequence[TranscriptEntry]) -> EntryContents:
    """Builds the contents of a transcript's entry from its log."""
    rows: dict[bytes, int] = {}
    keys = {transcript_key(namespace, session): sum(OVERHEAD + 40 * len(each.keys) for each in log)}
    for each in log:
        pairs = (*zip(each.rows, each.sizes, strict=False), *zip(each.lead_rows, each.lead_sizes, strict=False))
        for key, size in pairs:
            rows[key] = max(size, rows.get(key, 0))
        for digest, size in ((each.head, each.head_size), (each.options, each.options_size)):
            if digest:
                record = fields_key(digest)
                keys[record] = max(size, keys.get(record, 0))
    return EntryContents(
        session, list(rows.items()), keys=[(key.collection, key.name, size) for key, size in keys.items()]
    )


def decode_entry(value: bytes | None) -> ArchiveEntry | None:
    """Decodes an entry; None if there is none, or none that can be read."""
    return _decode(_ENTRY, value)


def decode_contents(value: bytes | None) -> EntryContents | None:
    """Decodes contents; None if there are none, or none that can be read."""
    return _decode(_CONTENTS, value)


def _decode(decoder: msgspec.msgpack.Decoder[T], value: bytes | None) -> T | None:
    try:
        return decoder.decode(value) if value is not None else None
    except ValueError:
        return None


class SharedValues:
    """The values of some entries, each once, with its size. There may be very many: use it in a thread."""

    def __init__(self, contents: Iterable[EntryContents] = ()) -> None:
        self._rows: dict[bytes, int] = {}
        self._artifacts: dict[str, dict[bytes, set[str]]] = {}
        self._keys: dict[tuple[str, str], int] = {}
        for each in contents:
            self.add(each)

    def __len__(self) -> int:
        artifacts = sum(len(ids) for scopes in self._artifacts.values() for ids in scopes.values())
        return len(self._rows) + len(self._keys) + 2 * artifacts

    def add(self, contents: EntryContents) -> None:
        """Adds the values of an entry."""
        for row, size in contents.rows:
            self._rows[row] = max(size, self._rows.get(row, 0))
        for collection, name, size in contents.keys:
            self._keys[collection, name] = max(size, self._keys.get((collection, name), 0))
        for scope, ids in contents.artifacts:
            self._artifacts.setdefault(contents.session, {}).setdefault(scope, set()).update(ids)

    def exclude(self, contents: EntryContents) -> int:
        """Removes the values that another entry has too; returns the bytes that were counted for them."""
        rows, keys, size = self._rows, self._keys, 0
        for row, _ in contents.rows:
            if row in rows:
                size += rows.pop(row)
        for collection, name, _ in contents.keys:
            if (collection, name) in keys:
                size += keys.pop((collection, name))
        # Records of artifacts are never shared between sessions.
        session_artifacts = self._artifacts.get(contents.session, {})
        for scope, ids in contents.artifacts:
            if scope in session_artifacts:
                session_artifacts[scope].difference_update(ids)
        return size

    def exclude_all(self, contents: Iterable[EntryContents]) -> list[int]:
        """Removes the values of several entries; returns the bytes for each."""
        return [self.exclude(each) for each in contents]

    def keys(self, namespace: ArchiveNamespace) -> list[Key]:
        """Returns the keys of all values."""
        keys = [row_key(row) for row in self._rows]
        keys += [Key(*key) for key in self._keys]
        for session, scopes in self._artifacts.items():
            for scope, ids in scopes.items():
                for each in ids:
                    keys += artifact_keys(namespace, each, scope, session)
        return keys
