"""Packs and reads a tenant's entries in Redis or Valkey, sealed with SealedNames."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from accordion.model.memories import Embedding, Entity, Memory, MemoryChange, Relation
from accordion.stores import memories_columns as columns
from accordion.stores import memories_records as records
from accordion.stores.memories_columns import fold_case
from accordion.stores.nearest_vectors import KIND_BYTES
from accordion.stores.sealed_names import SealedNames
from accordion.stores.stems import Counts, count_stems

_ENCODER = msgspec.msgpack.Encoder()
_VECTOR = "memories/vector"
"""The name under which vectors are sealed."""


class PackedChange(msgspec.Struct, frozen=True):
    """A change in the script's format, and the descriptions of its conflicts."""

    change: bytes
    conflicts: Mapping[bytes, str]


def pack_change(
    connection: sqlite3.Connection,
    sealed_names: SealedNames,
    change: MemoryChange,
    memories: Sequence[Memory],
    embeddings: Sequence[Embedding],
) -> PackedChange:
    """Packs a change with `memories` instead of its own. `connection` belongs to stems.py."""
    counts = (
        count_stems(connection, [(memory.content, memory.context, memory.author) for memory in memories])
        if memories
        else []
    )
    packed = _ENCODER.encode(
        {
            "require": [
                (sealed_names.name(memory), revision and sealed_names.name(revision))
                for memory, revision in change.require
            ],
            "markers": [
                (sealed_names.name(each[0]), _raw(records.seal_record(sealed_names, each))) for each in change.markers
            ],
            "delete": [sealed_names.name(memory) for memory in change.delete],
            "put": [_pack_memory(sealed_names, *each) for each in zip(memories, embeddings, counts, strict=True)],
            "entities": [_pack_entity(sealed_names, entity) for entity in change.entities],
            "relations": [_pack_relation(sealed_names, relation) for relation in change.relations],
        }
    )
    conflicts = {
        f"memory {at}".encode(): f"memory {memory} was changed meanwhile"
        for at, (memory, _) in enumerate(change.require, 1)
    }
    conflicts |= {f"marker {at}".encode(): f"{name} exists already" for at, (name, _) in enumerate(change.markers, 1)}
    return PackedChange(packed, conflicts)


def seal_label(sealed_names: SealedNames, name: str) -> str:
    """Returns a label with a sealed name. Its kind stays readable."""
    return name[:2] + sealed_names.name(name[2:])


def open_relation(sealed_names: SealedNames, value: bytes) -> Relation:
    """Opens a relation, after the header for the scripts."""
    return records.open_relation(sealed_names, value[4 + int.from_bytes(value[:4], "little") :])


def vector_kind(vector: bytes) -> str:
    """Returns the kind of a vector: its embedder and its length. Only vectors of one kind are compared."""
    return f"{vector[:KIND_BYTES].hex()}.{len(vector)}"


def split_vectors(sealed_names: SealedNames, chunks: Mapping[bytes, bytes]) -> Iterable[tuple[str, bytes, bytes]]:
    """Splits chunks by field into vectors: the kind of each, its row (four bytes) and the vector."""
    for field, chunk in chunks.items():
        name = field.decode().rpartition(".")[0]
        width = 4 + len(sealed_names.seal_fixed_width(_VECTOR, bytes(int(name.rpartition(".")[2]))))
        for at in range(0, len(chunk), width):
            stored = chunk[at + 4 : at + width]
            yield name, chunk[at : at + 4], sealed_names.open(_VECTOR, stored) if sealed_names.sealed_secret else stored


def comparable_vectors(sealed_names: SealedNames, chunks: Mapping[bytes, bytes], vector: bytes) -> list[bytes]:
    """Returns the chunks of vectors comparable with `vector`, in the format of memories_columns.py."""
    prefix = (vector_kind(vector) + ".").encode()
    comparable = {name: chunk for name, chunk in chunks.items() if name.startswith(prefix)}
    if not sealed_names.sealed_secret:
        return list(comparable.values())
    return [
        b"".join(part for _, row, each in split_vectors(sealed_names, {name: comparable[name]}) for part in (row, each))
        for name in comparable
    ]


def _pack_memory(sealed_names: SealedNames, memory: Memory, embedding: Embedding, stems: Counts) -> tuple[Any, ...]:
    words = sum(sum(times) for times in stems.values())
    return (
        sealed_names.name(memory.id),
        sealed_names.name(memory.revision),
        _raw(records.seal_record(sealed_names, memory)),
        _raw(records.seal_tokens(sealed_names, embedding.tokens)),
        _raw(columns.row_entry(memory, words)),
        [(sealed_names.name(stem), _raw(columns.posting_entry(times))) for stem, times in stems.items()],
        [seal_label(sealed_names, name) for name in columns.labels_of(memory)],
        vector_kind(embedding.vector),
        _raw(sealed_names.seal_fixed_width(_VECTOR, embedding.vector)),
    )


def _pack_entity(sealed_names: SealedNames, entity: Entity) -> tuple[str, str, msgspec.Raw]:
    return (
        sealed_names.name(fold_case(entity.name)),
        sealed_names.name(entity.type),
        _raw(records.seal_record(sealed_names, entity)),
    )


def _pack_relation(sealed_names: SealedNames, relation: Relation) -> tuple[str, list[str], msgspec.Raw]:
    start, end = fold_case(relation.start), fold_case(relation.end)
    unique = sealed_names.name("\0".join((start, end, relation.type, relation.memory)))
    ends = ["", *(seal_label(sealed_names, f"e:{name}") for name in (start, end))]
    if relation.memory:
        ends.append(seal_label(sealed_names, f"m:{relation.memory}"))
    ends = list(dict.fromkeys(ends))
    header = _ENCODER.encode((unique, ends))
    value = len(header).to_bytes(4, "little") + header + records.seal_record(sealed_names, relation)
    return unique, ends, _raw(value)


def _raw(value: bytes) -> msgspec.Raw:
    """Encodes bytes as a msgpack string, because the server's Lua does not read newer types."""
    return msgspec.Raw(b"\xdb" + len(value).to_bytes(4, "big") + value)
