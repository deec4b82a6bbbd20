"""SQL of a tenant's file of memories, as functions of an open connection.

The functions with the names of MemoryStore's methods implement them. Functions that write need a transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, Final

from accordion.model.memories import (
    Conflict,
    Embedding,
    Entity,
    Memory,
    MemoryChange,
    MemoryFilter,
    MemoryPage,
    Relation,
    SearchCandidate,
)
from accordion.stores import memories_chunks as chunks
from accordion.stores import memories_columns as columns
from accordion.stores import memories_index as index
from accordion.stores import memories_records as records
from accordion.stores.memories_columns import fold_case
from accordion.stores.memories_index import ChunkChanges
from accordion.stores.sealed_names import SealedNames
from accordion.stores.stems import Counts


def write(
    connection: sqlite3.Connection,
    sealed_names: SealedNames,
    change: MemoryChange,
    embeddings: Sequence[Embedding],
    counts: Sequence[Counts],
) -> tuple[tuple[Entity, ...], bool]:
    """See MemoryStore. `embeddings` and `counts` (of stems) belong to `change.put`.

    Also returns whether anything was removed.
    """
    for memory_id, revision in change.require:
        stored = _select_one(connection, "SELECT revision FROM memory WHERE id = ?", sealed_names.name(memory_id))
        if (stored is None) != (not revision) or (stored is not None and stored != sealed_names.name(revision)):
            raise Conflict(f"memory {memory_id} was changed meanwhile")
    for entry in change.markers:
        if not _add(connection, "marker", _marker_row(sealed_names, entry)):
            raise Conflict(f"{entry[0]} exists already")
    changes = ChunkChanges(connection, sealed_names)
    _delete(connection, sealed_names, changes, change.delete)
    for memory, embedding, stems in zip(change.put, embeddings, counts, strict=True):
        _put(connection, sealed_names, changes, memory, embedding, stems)
    changes.finish()
    new_entities = tuple(
        entity for entity in change.entities if _add(connection, "entity", _entity_row(sealed_names, entity))
    )
    for relation in change.relations:
        _add(connection, "relation", _relation_row(sealed_names, relation))
    return new_entities, changes.has_removals


def get(connection: sqlite3.Connection, sealed_names: SealedNames, ids: Sequence[str]) -> list[Memory | None]:
    """See MemoryStore."""
    by_id = {}
    for memory_id in dict.fromkeys(ids):
        value = _select_one(connection, "SELECT value FROM memory WHERE id = ?", sealed_names.name(memory_id))
        by_id[memory_id] = None if value is None else records.open_memory(sealed_names, value)
    return [by_id[memory_id] for memory_id in ids]


def list_memories(
    connection: sqlite3.Connection,
    sealed_names: SealedNames,
    memory_filter: MemoryFilter,
    after: columns.ListPosition | None,
    limit: int,
) -> MemoryPage:
    """See MemoryStore."""
    matches = columns.newest_rows(index.read_columns(connection, sealed_names, memory_filter), memory_filter, after)
    rows = matches[: limit if limit >= 0 else None]
    values = [_select_one(connection, "SELECT value FROM memory WHERE row = ?", row) for row in rows]
    memories = [(row, records.open_memory(sealed_names, value)) for row, value in zip(rows, values, strict=True)]
    return columns.make_page(memories, has_more=len(rows) < len(matches))


def read_page(
    connection: sqlite3.Connection, sealed_names: SealedNames, after: int, limit: int
) -> list[tuple[int, Memory]]:
    """Returns memories with their rows, the oldest first, after a row."""
    statement = "SELECT row, value FROM memory WHERE row > ? ORDER BY row LIMIT ?"
    return [
        (row, records.open_memory(sealed_names, value)) for row, value in connection.execute(statement, (after, limit))
    ]


def count_memories(connection: sqlite3.Connection, sealed_names: SealedNames, memory_filter: MemoryFilter) -> int:
    """See MemoryStore."""
    return columns.count(index.read_columns(connection, sealed_names, memory_filter), memory_filter)


def find_candidates(
    connection: sqlite3.Connection,
    sealed_names: SealedNames,
    stems: Sequence[Sequence[str]],
    vector: bytes,
    memory_filter: MemoryFilter,
    pool: int,
) -> list[SearchCandidate]:
    """See MemoryStore. `stems` are the stems of each word."""
    search_columns = index.read_columns(connection, sealed_names, memory_filter, stems, vector)
    candidates = []
    for chosen in columns.choose_rows(search_columns, vector, memory_filter, pool):
        value, tokens = connection.execute("SELECT value, tokens FROM memory WHERE row = ?", (chosen.row,)).fetchone()
        scores = chosen.lexical, chosen.dense, chosen.lexical_rank, chosen.dense_rank
        candidates.append(
            SearchCandidate(
                records.open_memory(sealed_names, value), *scores, records.open_tokens(sealed_names, tokens)
            )
        )
    return candidates


def get_marker(connection: sqlite3.Connection, sealed_names: SealedNames, name: str) -> bytes | None:
    """See MemoryStore."""
    value = _select_one(connection, "SELECT value FROM marker WHERE name = ?", sealed_names.name(name))
    return None if value is None else records.open_marker(sealed_names, value)[1]


def list_markers(connection: sqlite3.Connection, sealed_names: SealedNames) -> list[tuple[str, bytes]]:
    """Returns all markers."""
    return [records.open_marker(sealed_names, value) for (value,) in connection.execute("SELECT value FROM marker")]


def list_relations(
    connection: sqlite3.Connection, sealed_names: SealedNames, entity: str, limit: int
) -> list[Relation]:
    """See MemoryStore."""
    condition, values = ("start = ?1 OR end = ?1", (sealed_names.name(fold_case(entity)),)) if entity else ("1", ())
    result_rows = connection.execute(
        f"SELECT value FROM relation WHERE {condition} ORDER BY row LIMIT {int(limit)}",  # noqa: S608
        values,
    )
    return [records.open_relation(sealed_names, value) for (value,) in result_rows]


def list_entities(connection: sqlite3.Connection, sealed_names: SealedNames, limit: int) -> list[Entity]:
    """See MemoryStore."""
    entities = [records.open_entity(sealed_names, value) for (value,) in connection.execute("SELECT value FROM entity")]
    entities.sort(key=lambda entity: (fold_case(entity.name), entity.type))
    return entities[: limit if limit >= 0 else None]


def erase(connection: sqlite3.Connection) -> int:
    """Empties every table."""
    number: int = _select_one(connection, "SELECT count(*) FROM memory")
    for table in ("veil", "memory", "chunk", "entity", "relation", "marker"):
        connection.execute(f"DELETE FROM {table}")  # noqa: S608
    return number


def read_secret(connection: sqlite3.Connection) -> bytes:
    """Returns the tenant's sealed secret; empty where there is none."""
    return _select_one(connection, "SELECT secret FROM veil") or b""


def reseal(connection: sqlite3.Connection, old: SealedNames, new: SealedNames) -> bool:
    """Seals everything with another secret; returns whether there was anything."""
    for row, value, tokens in connection.execute("SELECT row, value, tokens FROM memory").fetchall():
        memory = records.open_memory(old, value)
        connection.execute(
            "UPDATE memory SET id = ?, revision = ?, tokens = ?, value = ? WHERE row = ?",
            (*_memory_row(new, memory, records.open_tokens(old, tokens)), row),
        )
    index.reseal(connection, old, new)
    _replace_all(connection, "entity", [_entity_row(new, entity) for entity in list_entities(connection, old, -1)])
    _replace_all(
        connection, "relation", [_relation_row(new, relation) for relation in list_relations(connection, old, "", -1)]
    )
    _replace_all(connection, "marker", [_marker_row(new, each) for each in list_markers(connection, old)])
    connection.execute("DELETE FROM veil")
    connection.execute("INSERT INTO veil (secret) VALUES (?)", (new.sealed_secret,))
    return any(_select_one(connection, f"SELECT 1 FROM {table} LIMIT 1") for table in ("memory", *_COLUMNS))  # noqa: S608


def _put(
    connection: sqlite3.Connection,
    sealed_names: SealedNames,
    changes: ChunkChanges,
    memory: Memory,
    embedding: Embedding,
    stems: Counts,
) -> None:
    _remove(connection, sealed_names, changes, memory.id)
    row = connection.execute(
        "INSERT INTO memory (id, revision, tokens, value) VALUES (?, ?, ?, ?)",
        _memory_row(sealed_names, memory, embedding.tokens),
    ).lastrowid
    row_entry = columns.row_entry(memory, sum(sum(times) for times in stems.values()))
    changes.put(row or 0, chunks.make_entry(row_entry, stems, columns.labels_of(memory), embedding.vector))


def _remove(
    connection: sqlite3.Connection, sealed_names: SealedNames, changes: ChunkChanges, memory_id: str
) -> Memory | None:
    """Removes a memory from every index, but not its relations and entities."""
    stored = connection.execute(
        "SELECT row, value FROM memory WHERE id = ?", (sealed_names.name(memory_id),)
    ).fetchone()
    if not stored:
        return None
    changes.remove(stored[0])
    connection.execute("DELETE FROM memory WHERE row = ?", (stored[0],))
    return records.open_memory(sealed_names, stored[1])


def _delete(
    connection: sqlite3.Connection, sealed_names: SealedNames, changes: ChunkChanges, ids: Sequence[str]
) -> None:
    """Removes memories with their relations, and the entities that no other memory names."""
    entity_names = set[str]()
    for memory_id in ids:
        memory = _remove(connection, sealed_names, changes, memory_id)
        deletion = connection.execute("DELETE FROM relation WHERE memory = ?", (sealed_names.name(memory_id),))
        changes.has_removals |= deletion.rowcount > 0
        if memory is not None:
            entity_names.update(fold_case(name) for name in memory.entities)
    for name in changes.finish_and_find_unused_labels({f"e:{name}" for name in entity_names}):
        connection.execute("DELETE FROM relation WHERE start = ?1 OR end = ?1", (sealed_names.name(name[2:]),))
        connection.execute("DELETE FROM entity WHERE key = ?", (sealed_names.name(name[2:]),))


# -- rows ------------------------------------------------------------------------------------------------------------

_COLUMNS: Final = {
    "entity": "key, type, value",
    "relation": "name, start, end, memory, value",
    "marker": "name, value",
}


def _memory_row(sealed_names: SealedNames, memory: Memory, tokens: bytes) -> tuple[str | bytes, ...]:
    names = sealed_names.name(memory.id), sealed_names.name(memory.revision)
    return *names, records.seal_tokens(sealed_names, tokens), records.seal_record(sealed_names, memory)


def _entity_row(sealed_names: SealedNames, entity: Entity) -> tuple[str | bytes, ...]:
    return (
        sealed_names.name(fold_case(entity.name)),
        sealed_names.name(entity.type),
        records.seal_record(sealed_names, entity),
    )


def _relation_row(sealed_names: SealedNames, relation: Relation) -> tuple[str | bytes, ...]:
    ends = fold_case(relation.start), fold_case(relation.end)
    name = sealed_names.name("\0".join((*ends, relation.type, relation.memory)))
    names = (sealed_names.name(end) for end in (*ends, relation.memory))
    return name, *names, records.seal_record(sealed_names, relation)


def _marker_row(sealed_names: SealedNames, entry: tuple[str, bytes]) -> tuple[str | bytes, ...]:
    return sealed_names.name(entry[0]), records.seal_record(sealed_names, entry)


def _add(connection: sqlite3.Connection, table: str, row: tuple[str | bytes, ...]) -> bool:
    """Adds a row unless it exists; returns whether it is new."""
    placeholders = ", ".join("?" * len(row))
    cursor = connection.execute(f"INSERT OR IGNORE INTO {table} ({_COLUMNS[table]}) VALUES ({placeholders})", row)  # noqa: S608
    return cursor.rowcount > 0


def _replace_all(connection: sqlite3.Connection, table: str, rows: Sequence[tuple[str | bytes, ...]]) -> None:
    """Replaces all rows of a table."""
    connection.execute(f"DELETE FROM {table}")  # noqa: S608
    for row in rows:
        _add(connection, table, row)


def _select_one(connection: sqlite3.Connection, statement: str, *values: object) -> Any:
    """Returns the first value of a query, or None."""
    row = connection.execute(statement, values).fetchone()
    return row[0] if row else None
