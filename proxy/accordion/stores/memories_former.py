"""Reads what versions up to 0.1 wrote: memories with their index in chunks (SQLite) or in lists (Redis).

A store converts a tenant's data once, at the first call (see `StoredMemories._convert`).
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from accordion.model.memories import Embedding, Entity, Memory, MemoryChange, Relation
from accordion.stores.sealed_names import SealedNames

TABLES: Final = ("veil", "memory", "chunk", "entity", "relation", "marker")
"""The tables of a tenant's file."""

HASHES: Final = ("counters", "veil", "values", "tokens", "vectors", "names", "relations", "markers")
"""The hashes of a tenant in Redis that have its data. The field `change` of `counters` counts the changes.

It is read first: a change that is made meanwhile then has a higher number.
"""
KEYS: Final = (*HASHES, "heads", "rows", "words", "labels", "places", "entities", "numbers", "ends")
"""All keys of a tenant in Redis."""

_MEMORY = msgspec.msgpack.Decoder(Memory)
_ENTITY = msgspec.msgpack.Decoder(Entity)
_RELATION = msgspec.msgpack.Decoder(Relation)
_MARKER = msgspec.msgpack.Decoder(tuple[str, bytes])


class OpenedMemories(msgspec.Struct, frozen=True):
    """The data of an earlier version, as a change that writes them, with the embeddings of its memories."""

    change: MemoryChange
    embeddings: list[Embedding]


class FormerMemories(msgspec.Struct, frozen=True):
    """The sealed data of an earlier version.

    `state` and `index` are the records of these kinds that exist already; `token` changes with the data. `memories` are
    (row, memory, tokens) in the order of their writing. `vectors` are (name of the seal, kind in Redis, value).
    """

    state: dict[str, bytes]
    index: dict[str, bytes]
    token: bytes
    secret: bytes
    memories: Sequence[tuple[int, bytes, bytes]]
    vectors: Sequence[tuple[str, str, bytes]]
    entities: Sequence[bytes]
    relations: Sequence[bytes]
    markers: Sequence[bytes]

    def open(self, sealed_names: SealedNames) -> OpenedMemories:
        """Opens all data. Raises StoreUnavailable if that is not possible."""

        def opened(kind: str, values: Iterable[bytes]) -> Iterable[bytes]:
            return (sealed_names.open(f"memories/{kind}", value) for value in values)

        vectors = dict(_open_vectors(sealed_names, self.vectors))
        embeddings = [
            Embedding(vectors.get(row, b""), sealed_names.open("memories/tokens", tokens))
            for row, _, tokens in self.memories
        ]
        change = MemoryChange(
            put=tuple(map(_MEMORY.decode, opened("Memory", (value for _, value, _ in self.memories)))),
            entities=tuple(map(_ENTITY.decode, opened("Entity", self.entities))),
            relations=tuple(map(_RELATION.decode, opened("Relation", self.relations))),
            markers=tuple(map(_MARKER.decode, opened("tuple", self.markers))),
        )
        return OpenedMemories(change, embeddings)


def _open_vectors(sealed_names: SealedNames, vectors: Sequence[tuple[str, str, bytes]]) -> Iterable[tuple[int, bytes]]:
    """Yields rows with their vectors.

    In SQLite, a value is sealed as a whole; it has for each kind of vector its length (2 bytes), how many (2), and the
    vectors, each after its row (4). In Redis, a value has vectors of one kind, each after its row and sealed alone.
    """
    for name, kind, value in vectors:
        if kind:
            length = int(kind.split(".")[1])
            # Sealed values of equal length are equally long. Without a secret, they are as they were.
            is_sealed = bool(sealed_names.sealed_secret)
            for row, vector in _split(value, len(sealed_names.seal(name, bytes(length))) if is_sealed else length):
                yield row, sealed_names.open(name, vector) if is_sealed else vector
            continue
        chunk, at = sealed_names.open(name, value), 0
        while at < len(chunk):
            length, count = struct.unpack_from("<HH", chunk, at)
            end = at + 4 + count * (4 + length)
            yield from _split(chunk[at + 4 : end], length)
            at = end


def _split(packed: bytes, width: int) -> Iterable[tuple[int, bytes]]:
    for at in range(0, len(packed), 4 + width):
        yield int.from_bytes(packed[at : at + 4], "little"), packed[at + 4 : at + 4 + width]


def read_file(connection: sqlite3.Connection) -> FormerMemories:
    """Reads a tenant's file. The caller begins a transaction: the token would be that of a later write without one."""

    def values(statement: str) -> list[bytes]:
        return [value for (value,) in connection.execute(statement)]

    memories = connection.execute("SELECT row, value, tokens FROM memory ORDER BY row").fetchall()
    return FormerMemories(
        state={},
        index={},
        token=file_token(connection),
        secret=next(iter(values("SELECT secret FROM veil")), b""),
        memories=memories,
        vectors=[
            (f"memories/vectors/{number}", "", value)
            for number, value in connection.execute("SELECT number, vectors FROM chunk")
        ],
        entities=values("SELECT value FROM entity"),
        relations=values("SELECT value FROM relation ORDER BY row"),
        markers=values("SELECT value FROM marker"),
    )


def file_token(connection: sqlite3.Connection) -> bytes:
    """Returns the token of a tenant's file."""
    # Markers and entities are not replaced. A new memory or relation has the highest row, which may be the row of a
    # deleted one.
    statement = """SELECT (SELECT max(row) FROM memory), (SELECT value FROM memory ORDER BY row DESC LIMIT 1),
        (SELECT max(row) FROM relation), (SELECT value FROM relation ORDER BY row DESC LIMIT 1),
        (SELECT count(*) FROM memory), (SELECT count(*) FROM entity), (SELECT count(*) FROM marker)"""
    return repr(connection.execute(statement).fetchone()).encode()


def read_hashes(
    state: dict[str, bytes], index: dict[str, bytes], hashes: Mapping[str, dict[bytes, bytes]]
) -> FormerMemories:
    """Reads a tenant's hashes in Redis, by the names of `HASHES`. Before a relation is a header for the scripts."""
    values, tokens, relations = hashes["values"], hashes["tokens"], hashes["relations"]
    rows = sorted(values, key=int)
    return FormerMemories(
        state=state,
        index=index,
        token=hashes["counters"].get(b"change", b""),
        secret=hashes["veil"].get(b"secret", b""),
        memories=[(int(row), values[row], tokens.get(row, b"")) for row in rows],
        vectors=[("memories/vector", field.decode(), value) for field, value in hashes["vectors"].items()],
        entities=list(hashes["names"].values()),
        relations=[
            value[4 + int.from_bytes(value[:4], "little") :]
            for value in (relations[number] for number in sorted(relations, key=int))
        ],
        markers=list(hashes["markers"].values()),
    )
