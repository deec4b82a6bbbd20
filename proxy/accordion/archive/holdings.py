"""What is held of a tenant: an entry for everything that was put away together, so that it can be bounded, given out
and erased.

An entry is small, for all of a tenant's are looked at to find the oldest. What belongs to it stands in its contents: of
a fold in a record of its own, of a transcript in its log. None of it is sealed: there are hashes, sizes and times in
it, and nothing that anybody said; who removes what is too old does not know the tenants' keys.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterable, Sequence
from hashlib import sha256
from typing import Literal, TypeVar

import msgspec

from accordion.archive.artifacts import Artifact, tenant_of
from accordion.core.ports import Key, Put, Store

__all__ = ["BEHIND", "HELD", "HOLDERS", "Contents", "Entry", "Kind", "Recorded", "Sums", "entries", "put", "tenant_of"]

T = TypeVar("T")

Kind = Literal["fold", "read", "transcript", "overlay", "summary", "item", "link"]
"""A fold with what it took out; an artifact that somebody read; what was said in a session; a weave or a recall; a
summary that was prepared; what a reply said that the client only names; a reply that the client goes on from by its
id."""

HOLDERS = "holders"
"""The collection that lists tenants of whom anything is held."""

HELD = "held/"
"""Begins the names of the collections that list what is held of a tenant."""

OVERHEAD = 100
"""Bytes that a value takes beside itself, roughly."""

_PAGE = 256


class Sums(msgspec.Struct, frozen=True, array_like=True):
    """What a tenant held when it was last looked through, in bytes, and when."""

    held: int = 0
    at: float = 0.0


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One entry. `size` is in bytes, of what nobody had put away before as far as its writer knew; times in seconds
    since the epoch. `base` is the id of the fold that it goes on from, which is in use as long as this one. `place` is
    the key of the only value of an entry that has no contents.
    """

    kind: Kind
    id: str
    session: str
    at: float
    used: float
    size: int
    base: str = ""
    place: tuple[str, str] | None = None

    @property
    def name(self) -> str:
        """Its name in the tenant's collection; those of a session stand together."""
        return f"{prefix(self.session)}{self.kind}/{self.id}"


class Contents(msgspec.Struct, frozen=True, array_like=True):
    """What belongs to an entry: rows by message key, with sizes (0 where another entry is known to count it);
    artifacts by scope; other keys, with sizes."""

    session: str
    rows: list[tuple[bytes, int]] = []
    artifacts: list[tuple[bytes, list[str]]] = []
    keys: list[tuple[str, str, int]] = []


BEHIND = -1
"""In place of an index: behind what the provider keeps."""


class Recorded(msgspec.Struct, frozen=True, array_like=True):
    """One entry of a transcript's log: from the message `start` on the session's list is that of `keys`. Where `start`
    is BEHIND, they stand behind a reply that the provider keeps.

    `place` is the chain key where the request ended, `after` the one that `keys` follow (empty: not known, or at the
    beginning). `at` is when its exchange had ended, in seconds since the epoch.

    `sizes` are those of the rows, likewise 0 where they are counted elsewhere. `head` names the record of the system
    prompt and the tools, `lead` the rows of list entries that belong to the system prompt; both only where they are
    other than before.

    `variants` and `lead_variants` tell messages apart that say the same in other bytes, 8 bytes for each key; a row is
    kept under both. Where they are zeros the row is that of a compaction, under the key alone, with the same bytes.
    Earlier entries have none, and their rows are kept under the key alone.
    """

    start: int
    keys: list[bytes]
    sizes: list[int]
    at: float
    dialect: str = ""
    model: str = ""
    head: bytes = b""
    head_size: int = 0
    lead: list[bytes] = []
    lead_sizes: list[int] = []
    place: bytes = b""
    after: bytes = b""
    variants: bytes = b""
    lead_variants: bytes = b""

    @property
    def rows(self) -> list[bytes]:
        """Under which keys the rows of `keys` are kept."""
        return _rows(self.keys, self.variants)

    @property
    def lead_rows(self) -> list[bytes]:
        """The same of `lead`."""
        return _rows(self.lead, self.lead_variants)

    @property
    def size(self) -> int:
        """Bytes that it counts, itself included."""
        return sum(self.sizes) + sum(self.lead_sizes) + self.head_size + 40 * len(self.keys) + OVERHEAD


KEY = 32
"""Bytes of a message's key."""
VARIANT = 8
"""Bytes of a variant. Those of one message are few."""
SHARED = bytes(VARIANT)
"""The variant of a message whose row under the key alone has its very bytes."""


def _rows(keys: list[bytes], variants: bytes) -> list[bytes]:
    each = [variants[at : at + VARIANT] for at in range(0, len(keys) * VARIANT, VARIANT)]
    return [key if variant == SHARED else key + variant for key, variant in zip(keys, each, strict=True)]


def variant_of(wire: bytes) -> bytes:
    """What tells a message of these bytes apart from others that say the same."""
    return sha256(wire).digest()[:VARIANT]


def is_exact(row: bytes) -> bool:
    """Whether a row's key tells its message apart from those that say the same in other bytes."""
    return len(row) > KEY


_ENCODER = msgspec.msgpack.Encoder()
_ENTRY, _CONTENTS = msgspec.msgpack.Decoder(Entry), msgspec.msgpack.Decoder(Contents)
_RECORDED, _SUMS = msgspec.msgpack.Decoder(Recorded), msgspec.msgpack.Decoder(Sums)
encode = _ENCODER.encode


def decode_sums(value: bytes | None) -> Sums:
    """The kept sums of a tenant; zero where there are none that can be read."""
    return _decoded(_SUMS, value) or Sums()


def decode_recorded(log: Iterable[tuple[int, bytes]]) -> list[Recorded]:
    """The entries of a transcript's log that can be read, in order."""
    return [entry for _, value in log if (entry := _decoded(_RECORDED, value)) is not None]


# -- where it is kept ------------------------------------------------------------------------------------------------


def collection_of(tenant: str) -> str:
    """The collection of a tenant's entries."""
    return f"{HELD}{tenant}"


def is_listing(key: Key) -> bool:
    """Whether an entry or its contents are kept under a key."""
    return key.collection.startswith(HELD) or (not key.collection and key.name.startswith("contents/"))


def prefix(session: str) -> str:
    """What the names of a session's entries begin with."""
    return hashlib.sha256(session.encode("utf-8", "surrogatepass")).hexdigest()[:24] + "/"


def contents_key(tenant: str, entry_id: str) -> Key:
    """Where the contents of an entry are."""
    return Key("", f"contents/{tenant}/{entry_id}")


def keys_of(tenant: str, entry: Entry) -> tuple[Key, Key]:
    """Where an entry itself is, and where its contents are."""
    return Key(collection_of(tenant), entry.name), contents_key(tenant, entry.id)


def transcript_key(tenant: str, session: str) -> Key:
    """The log of a session's transcript."""
    return Key("", f"transcript/{tenant}/{prefix(session)}")


def sums_key(tenant: str) -> Key:
    """What a tenant held when it was last looked through."""
    return Key("", f"sums/{tenant}")


def read_id(artifact: Artifact) -> str:
    """What the entry of an artifact is called that somebody read."""
    digest = hashlib.sha256(artifact.scope + artifact.session.encode("utf-8", "surrogatepass"))
    return f"{artifact.id}.{digest.hexdigest()[:16]}"


def head_key(head: bytes) -> Key:
    """Where a system prompt and tools are kept that stand beside the list. Its name is the tenant's own already."""
    return Key("", f"head/{head.hex()}")


# -- what is written -------------------------------------------------------------------------------------------------


def put(tenant: str, entry: Entry, ttl: float, contents: Contents | None = None) -> list[Put]:
    """The writes that keep an entry."""
    puts = [Put(Key(collection_of(tenant), entry.name), encode(entry), ttl)]
    if contents is not None:
        puts.append(Put(contents_key(tenant, entry.id), encode(contents), ttl))
    return puts


def contents_of(session: str, rows: dict[bytes, int], artifacts: Iterable[Artifact], keys: Iterable[Key]) -> Contents:
    """The contents of an entry; `rows` are message keys with the sizes that the entry counts."""
    scopes: dict[bytes, dict[str, None]] = {}
    for each in artifacts:
        scopes.setdefault(each.scope, {})[each.id] = None
    return Contents(
        session, list(rows.items()), [(scope, list(ids)) for scope, ids in scopes.items()],
        [(key.collection, key.name, 0) for key in keys],
    )  # fmt: skip


# -- what is read ----------------------------------------------------------------------------------------------------


async def entries(store: Store, tenant: str, session: str | None = None) -> AsyncIterator[list[Entry]]:
    """The entries of a tenant, or of one session, page by page; those of a session in a row. Raises
    StoreUnavailable."""
    collection, after = collection_of(tenant), ""
    within = prefix(session) if session is not None else ""
    while page := await store.scan(collection, prefix=within, after=after, limit=_PAGE):
        after = page[-1][0]
        found = [entry for _, value in page if (entry := decode_entry(value)) is not None]
        yield [entry for entry in found if session is None or entry.session == session]


async def contents(store: Store, tenant: str, found: Sequence[Entry]) -> list[Contents]:
    """What belongs to entries, in their order; what is not there any more is empty. Raises StoreUnavailable."""
    kept = [entry for entry in found if entry.kind in ("fold", "read")]
    values = await store.get_many([contents_key(tenant, entry.id) for entry in kept]) if kept else []
    read = {entry.name: decode_contents(value) for entry, value in zip(kept, values, strict=True)}
    made = []
    for entry in found:
        if entry.kind == "transcript":
            log = decode_recorded(await store.read(transcript_key(tenant, entry.session)))
            made.append(contents_of_log(tenant, entry.session, log))
        elif entry.place is not None:
            made.append(Contents(entry.session, keys=[(*entry.place, entry.size)]))
        else:
            made.append(read.get(entry.name) or Contents(entry.session))
    return made


async def fold_of(store: Store, tenant: str, fold: str) -> tuple[Entry, Contents] | None:
    """The entry of a fold by its id; None where there is none. Raises StoreUnavailable."""
    found = decode_contents(await store.get(contents_key(tenant, fold)))
    if found is None:
        return None
    name = Entry("fold", fold, found.session, 0, 0, 0).name
    value = await store.get(Key(collection_of(tenant), name))
    entry = decode_entry(value)
    return (entry, found) if entry is not None else None


def contents_of_log(tenant: str, session: str, log: Sequence[Recorded]) -> Contents:
    """The contents of a transcript's entry, by the entries of its log."""
    rows: dict[bytes, int] = {}
    keys = {transcript_key(tenant, session): sum(OVERHEAD + 40 * len(each.keys) for each in log)}
    for each in log:
        pairs = (*zip(each.rows, each.sizes, strict=False), *zip(each.lead_rows, each.lead_sizes, strict=False))
        for key, size in pairs:
            rows[key] = max(size, rows.get(key, 0))
        if each.head:
            place = head_key(each.head)
            keys[place] = max(each.head_size, keys.get(place, 0))
    return Contents(session, list(rows.items()), keys=[(key.collection, key.name, size) for key, size in keys.items()])


def decode_entry(value: bytes | None) -> Entry | None:
    """A kept entry; None where there is none, or none that can be read."""
    return _decoded(_ENTRY, value)


def decode_contents(value: bytes | None) -> Contents | None:
    """Kept contents; None where there are none, or none that can be read."""
    return _decoded(_CONTENTS, value)


def _decoded(decoder: msgspec.msgpack.Decoder[T], value: bytes | None) -> T | None:
    try:
        return decoder.decode(value) if value is not None else None
    except ValueError:
        return None
