"""How a compaction is written down in the store: a version byte, then MessagePack, compressed.

The id is a hash of the rest, so that a record that was damaged is known.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

import msgspec
import zstandard

from proxy.core.edits import Cause, Compaction, Entry, Kept, StepRecord, Written
from proxy.core.plan import Kind

_VERSION = b"\x01"
_MOST = 256 * 2**20
"""No record unpacks to more; one that says so is damaged."""


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
    )


def _entry(entry: Entry) -> _Entry:
    if isinstance(entry, Kept):
        return _Entry(entry.first, entry.last)
    return _Entry(entry.first, entry.last, entry.wire, entry.edited)


def _read(entry: _Entry) -> Entry:
    if entry.wire is None:
        return Kept(entry.first, entry.last)
    return Written(entry.wire, entry.first, entry.last, entry.edited)
