"""The stored format of compactions and their keys: a version byte, then MessagePack, compressed.

The id is a hash of the rest, so that a damaged record is detected.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import msgspec
from msgspec.structs import replace

from accordion.model.compaction import Cause, Compaction, Entry, ReplacementMessage, StepRecord, VerbatimRange
from accordion.model.plan import PlanKind
from accordion.model.ports import Key
from accordion.model.tenant import ScopePrefix
from accordion.protocols.zstd import ZstdError, compress, decompress

_VERSION = b"\x01"
_MAX_UNPACKED_BYTES = 256 * 2**20
"""No valid record unpacks to more bytes; one that claims to is damaged."""
MAX_LEVELS = 6
"""At most so many compactions at one anchor: a compacted history that is still too long is compacted again."""


class _EntryRecord(msgspec.Struct, array_like=True):
    first: int
    last: int
    wire: bytes | None = None
    is_edited: bool = False


class _CompactionRecord(msgspec.Struct, array_like=True):
    id: str
    anchor: bytes
    covered: int
    entries: list[_EntryRecord]
    kind: PlanKind
    cause: Cause
    utilization: float | None
    steps: list[tuple[str, int, int]]
    before: int
    after: int
    generation: int
    at: float
    writer: str
    input: int
    output: int
    removed: int
    artifacts: list[str]
    narrative: str
    narrated: int
    narrated_from: int


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_CompactionRecord)


def with_content_id(compaction: Compaction) -> Compaction:
    """Returns the compaction with its id, a hash of its content."""
    bare = _ENCODER.encode(_to_record(replace(compaction, id="")))
    return replace(compaction, id="f-" + hashlib.sha256(bare).hexdigest()[:24])


def encode(compaction: Compaction) -> bytes:
    """Encodes a compaction for the store."""
    return _VERSION + compress(_ENCODER.encode(_to_record(compaction)))


def decode(value: bytes | None) -> Compaction | None:
    """Decodes a stored compaction; None if there is none, it is damaged, or of a later version."""
    if value is None or value[:1] != _VERSION:
        return None
    try:
        plain = decompress(value[1:], limit=_MAX_UNPACKED_BYTES)
        compaction = _from_record(_DECODER.decode(plain))
    except (ZstdError, msgspec.MsgspecError, ValueError):
        return None
    return compaction if with_content_id(compaction).id == compaction.id else None


def memory_size(compaction: Compaction) -> int:
    """Estimates the bytes of a compaction in memory."""
    entries = sum(
        150 + (len(entry.wire) if isinstance(entry, ReplacementMessage) else 0) for entry in compaction.entries
    )
    return 1_000 + entries + 80 * len(compaction.artifacts) + 2 * len(compaction.narrative)


# -- where it is kept ------------------------------------------------------------------------------------------------


@lru_cache(4_096)
def compaction_key(label: ScopePrefix, anchor: bytes, level: int) -> Key:
    """Returns the key of the compaction at this anchor and level; `level` others lie below it."""
    return Key("", f"fold/{label.hex()}/{anchor.hex()}/{level}")


def is_compaction_key(key: Key) -> bool:
    """Whether this is the key of a compaction."""
    return key.name.startswith("fold/")


def compaction_keys(label: ScopePrefix, anchor: bytes) -> list[Key]:
    """Returns the keys of all levels at an anchor."""
    return [compaction_key(label, anchor, level) for level in range(MAX_LEVELS)]


def parse_key(key: Key) -> tuple[ScopePrefix, bytes, int]:
    """Returns label, anchor and level of a key made by `compaction_key`."""
    _, label, anchor, level = key.name.split("/")
    return ScopePrefix(bytes.fromhex(label)), bytes.fromhex(anchor), int(level)


def race_key(label: ScopePrefix, last_chain_key: bytes, cause: Cause) -> Key:
    """Returns the key that workers compete for when they compact the same history for the same cause."""
    return Key("", f"folding/{label.hex()}/{last_chain_key.hex()}/{cause}")


# -- how it is written -----------------------------------------------------------------------------------------------


def _to_record(compaction: Compaction) -> _CompactionRecord:
    return _CompactionRecord(
        compaction.id,
        compaction.anchor,
        compaction.covered,
        [_entry_to_record(entry) for entry in compaction.entries],
        compaction.kind,
        compaction.cause,
        compaction.utilization,
        [(step.compactor, step.before, step.after) for step in compaction.steps],
        compaction.before,
        compaction.after,
        compaction.generation,
        compaction.at,
        compaction.writer,
        compaction.input,
        compaction.output,
        compaction.removed,
        list(compaction.artifacts),
        compaction.narrative,
        compaction.narrated,
        compaction.narrated_from,
    )


def _from_record(record: _CompactionRecord) -> Compaction:
    return Compaction(
        id=record.id,
        anchor=record.anchor,
        covered=record.covered,
        entries=tuple(_entry_from_record(entry) for entry in record.entries),
        kind=record.kind,
        cause=record.cause,
        utilization=record.utilization,
        steps=tuple(StepRecord(*step) for step in record.steps),
        before=record.before,
        after=record.after,
        generation=record.generation,
        at=record.at,
        writer=record.writer,
        input=record.input,
        output=record.output,
        removed=record.removed,
        artifacts=tuple(record.artifacts),
        narrative=record.narrative,
        narrated=record.narrated,
        narrated_from=record.narrated_from,
    )


def _entry_to_record(entry: Entry) -> _EntryRecord:
    if isinstance(entry, VerbatimRange):
        return _EntryRecord(entry.first, entry.last)
    return _EntryRecord(entry.first, entry.last, entry.wire, entry.is_edited)


def _entry_from_record(entry: _EntryRecord) -> Entry:
    if entry.wire is None:
        return VerbatimRange(entry.first, entry.last)
    return ReplacementMessage(entry.wire, entry.first, entry.last, entry.is_edited)
