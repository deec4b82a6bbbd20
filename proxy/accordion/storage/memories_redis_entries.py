"""What a tenant's memories look like in Redis or Valkey, under the tenant's veil: packed for the scripts, and read."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from accordion.core.memories import Change, Embedded, Entity, Memory, Relation
from accordion.core.values import dataclass
from accordion.storage import memories_columns as columns
from accordion.storage import memories_records as records
from accordion.storage.memories_labels import key
from accordion.storage.memories_veil import Veil
from accordion.storage.nearest import SIGN
from accordion.storage.stems import Counts, counted

_ENCODER = msgspec.msgpack.Encoder()
_VECTOR = "memories/vector"
"""The place that vectors are sealed for."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A change as the script reads it, and what its conflicts are called."""

    change: bytes
    conflicts: Mapping[bytes, str]


def packed(
    connection: sqlite3.Connection, veil: Veil, change: Change, put: Sequence[Memory], embedded: Sequence[Embedded]
) -> Packed:
    """A change under a veil, with `put` in place of its own. `connection` is to the stems."""
    counts = counted(connection, [(memory.content, memory.context, memory.author) for memory in put]) if put else []
    packed = _ENCODER.encode(
        {
            "require": [(veil.name(memory), revision and veil.name(revision)) for memory, revision in change.require],
            "markers": [(veil.name(each[0]), _raw(records.sealed(veil, each))) for each in change.markers],
            "delete": [veil.name(memory) for memory in change.delete],
            "put": [_entry(veil, *each) for each in zip(put, embedded, counts, strict=True)],
            "entities": [_entity(veil, entity) for entity in change.entities],
            "relations": [_relation(veil, relation) for relation in change.relations],
        }
    )
    conflicts = {
        f"memory {at}".encode(): f"memory {memory} was changed meanwhile"
        for at, (memory, _) in enumerate(change.require, 1)
    }
    conflicts |= {f"marker {at}".encode(): f"{name} exists already" for at, (name, _) in enumerate(change.markers, 1)}
    return Packed(packed, conflicts)


def label(veil: Veil, name: str) -> str:
    """A label: what kind it is of stays to be seen."""
    return name[:2] + veil.name(name[2:])


def relation(veil: Veil, value: bytes) -> Relation:
    """A relation that was read, behind what the scripts read of it."""
    return records.relation(veil, value[4 + int.from_bytes(value[:4], "little") :])


def kind(vector: bytes) -> str:
    """What vectors that may be compared share: whose they are, and their length."""
    return f"{vector[:SIGN].hex()}.{len(vector)}"


def vectors(veil: Veil, chunks: Mapping[bytes, bytes]) -> Iterable[tuple[str, bytes, bytes]]:
    """The vectors of chunks by field: the kind of each, its row (four bytes) and itself."""
    for field, chunk in chunks.items():
        name = field.decode().rpartition(".")[0]
        width = 4 + len(veil.sealed(_VECTOR, bytes(int(name.rpartition(".")[2]))))
        for at in range(0, len(chunk), width):
            held = chunk[at + 4 : at + width]
            yield name, chunk[at : at + 4], veil.open(_VECTOR, held) if veil.held else held


def near(veil: Veil, chunks: Mapping[bytes, bytes], vector: bytes) -> list[bytes]:
    """The chunks of vectors that may be compared with one, as `memories_columns` reads them."""
    lead = (kind(vector) + ".").encode()
    fitting = {name: chunk for name, chunk in chunks.items() if name.startswith(lead)}
    if not veil.held:
        return list(fitting.values())
    return [
        b"".join(part for _, row, each in vectors(veil, {name: fitting[name]}) for part in (row, each))
        for name in fitting
    ]


def _entry(veil: Veil, memory: Memory, kept: Embedded, stems: Counts) -> tuple[Any, ...]:
    words = sum(sum(times) for times in stems.values())
    return (
        veil.name(memory.id),
        veil.name(memory.revision),
        _raw(records.sealed(veil, memory)),
        _raw(records.sealed_tokens(veil, kept.tokens)),
        _raw(columns.row_entry(memory, words)),
        [(veil.name(stem), _raw(columns.posting(times))) for stem, times in stems.items()],
        [label(veil, name) for name in columns.labels(memory)],
        kind(kept.vector),
        _raw(veil.sealed(_VECTOR, kept.vector)),
    )


def _entity(veil: Veil, entity: Entity) -> tuple[str, str, msgspec.Raw]:
    return veil.name(key(entity.name)), veil.name(entity.type), _raw(records.sealed(veil, entity))


def _relation(veil: Veil, relation: Relation) -> tuple[str, list[str], msgspec.Raw]:
    start, end = key(relation.start), key(relation.end)
    unique = veil.name("\0".join((start, end, relation.type, relation.memory)))
    ends = ["", *(label(veil, f"e:{name}") for name in (start, end))]
    if relation.memory:
        ends.append(label(veil, f"m:{relation.memory}"))
    ends = list(dict.fromkeys(ends))
    head = _ENCODER.encode((unique, ends))
    value = len(head).to_bytes(4, "little") + head + records.sealed(veil, relation)
    return unique, ends, _raw(value)


def _raw(value: bytes) -> msgspec.Raw:
    """Bytes as a msgpack string: the servers' Lua reads nothing newer."""
    return msgspec.Raw(b"\xdb" + len(value).to_bytes(4, "big") + value)
