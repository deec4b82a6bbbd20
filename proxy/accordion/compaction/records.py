"""Where a compaction is kept in the store, and how it is written down: a version byte, then MessagePack, compressed.

The id is a hash of the rest, so that a record that was damaged is known.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import msgspec
import zstandard

from accordion.core.edits import Cause, Compaction, Entry, Kept, StepRecord, Written
from accordion.core.plan import Kind
from accordion.core.ports import Key
from accordion.core.values import replace

_VERSION = b"\x01"
_MOST = 256 * 2**20
"""No record unpacks to more; one that says so is damaged."""
LABEL = 16
LEVELS = 6
"""Folds that may lie upon each other at one anchor: of a list that was folded and still was too long."""


class _Entry(msgspec.Struct, array_like=True):
    first: int
    last: int
    wire: bytes | None = None
    edited: bool = False


class _Record(msgspec.Struct, array_like=True):
    id: str
    anchor: bytes
    covered: int
    entries: list[_Entry]
    kind: Kind
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
_DECODER = msgspec.msgpack.Decoder(_Record)


def identified(compaction: Compaction) -> Compaction:
    """The compaction with the id that its content gives it."""
    bare = _ENCODER.encode(_record(replace(compaction, id="")))
    return replace(compaction, id="f-" + hashlib.sha256(bare).hexdigest()[:24])


def encode(compaction: Compaction) -> bytes:
    """The compaction as the store keeps it."""
    return _VERSION + zstandard.ZstdCompressor().compress(_ENCODER.encode(_record(compaction)))


def decode(value: bytes | None) -> Compaction | None:
    """A kept compaction; None where there is none, or none that can be read (damaged, or of a later version)."""
    if value is None or value[:1] != _VERSION:
        return None
    try:
        plain = zstandard.ZstdDecompressor().decompress(value[1:], max_output_size=_MOST)
        compaction = _compaction(_DECODER.decode(plain))
    except (zstandard.ZstdError, msgspec.MsgspecError, ValueError, MemoryError):
        return None
    return compaction if identified(compaction).id == compaction.id else None


def size_of(compaction: Compaction) -> int:
    """What it takes in memory, in bytes, roughly."""
    entries = sum(150 + (len(entry.wire) if isinstance(entry, Written) else 0) for entry in compaction.entries)
    return 1_000 + entries + 80 * len(compaction.artifacts) + 2 * len(compaction.narrative)


# -- where it is kept ------------------------------------------------------------------------------------------------


@lru_cache(4_096)
def label_of(space: bytes, scope: bytes) -> bytes:
    """A prefix for the folds of one scope of one tenant, of LABEL bytes."""
    return hashlib.sha256(len(space).to_bytes(4, "big") + space + scope).digest()[:LABEL]


def key_of(label: bytes, anchor: bytes, level: int) -> Key:
    """Where a fold is kept: the one with this anchor that lies on `level` others."""
    return Key("", f"fold/{label.hex()}/{anchor.hex()}/{level}")


def is_compaction(key: Key) -> bool:
    """Whether a compaction is kept under this key."""
    return key.name.startswith("fold/")


def keys_of(label: bytes, anchor: bytes) -> list[Key]:
    """Every place where folds with this anchor are kept."""
    return [key_of(label, anchor, level) for level in range(LEVELS)]


def place_of(key: Key) -> tuple[bytes, bytes, int]:
    """Label, anchor and level of a key that `key_of` made."""
    _, label, anchor, level = key.name.split("/")
    return bytes.fromhex(label), bytes.fromhex(anchor), int(level)


def meeting(label: bytes, of: bytes, cause: Cause) -> Key:
    """Where workers meet that fold the same list for the same cause. `of` is the chain key of its last message."""
    return Key("", f"folding/{label.hex()}/{of.hex()}/{cause}")


# -- how it is written -----------------------------------------------------------------------------------------------


def _record(compaction: Compaction) -> _Record:
    return _Record(
        compaction.id,
        compaction.anchor,
        compaction.covered,
        [_entry(entry) for entry in compaction.entries],
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


def _compaction(record: _Record) -> Compaction:
    return Compaction(
        id=record.id,
        anchor=record.anchor,
        covered=record.covered,
        entries=tuple(_read(entry) for entry in record.entries),
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


def _entry(entry: Entry) -> _Entry:
    if isinstance(entry, Kept):
        return _Entry(entry.first, entry.last)
    return _Entry(entry.first, entry.last, entry.wire, entry.edited)


def _read(entry: _Entry) -> Entry:
    if entry.wire is None:
        return Kept(entry.first, entry.last)
    return Written(entry.wire, entry.first, entry.last, entry.edited)
