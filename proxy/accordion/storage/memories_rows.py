"""What the memories say to a tenant's file: functions of an open connection, those that write within a transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, Final

from accordion.core.memories import Candidate, Change, Conflict, Embedded, Entity, Filter, Listing, Memory, Relation
from accordion.storage import memories_chunks as chunks
from accordion.storage import memories_columns as columns
from accordion.storage import memories_index as index
from accordion.storage import memories_records as records
from accordion.storage.memories_index import Changed
from accordion.storage.memories_labels import key
from accordion.storage.memories_veil import Veil
from accordion.storage.stems import Counts


def write(
    connection: sqlite3.Connection,
    veil: Veil,
    change: Change,
    embedded: Sequence[Embedded],
    counts: Sequence[Counts],
) -> tuple[tuple[Entity, ...], bool]:
    """See the port. `embedded` and the stems' `counts` go with `change.put`. Tells besides whether anything was
    taken out."""
    for memory_id, revision in change.require:
        found = _one(connection, "SELECT revision FROM memory WHERE id = ?", veil.name(memory_id))
        if (found is None) != (not revision) or (found is not None and found != veil.name(revision)):
            raise Conflict(f"memory {memory_id} was changed meanwhile")
    for entry in change.markers:
        if not _add(connection, "marker", _marker(veil, entry)):
            raise Conflict(f"{entry[0]} exists already")
    changed = Changed(connection, veil)
    _delete(connection, veil, changed, change.delete)
    for memory, kept, stems in zip(change.put, embedded, counts, strict=True):
        _put(connection, veil, changed, memory, kept, stems)
    changed.settle()
    fresh = tuple(entity for entity in change.entities if _add(connection, "entity", _entity(veil, entity)))
    for relation in change.relations:
        _add(connection, "relation", _relation(veil, relation))
    return fresh, changed.dropped


def get(connection: sqlite3.Connection, veil: Veil, ids: Sequence[str]) -> list[Memory | None]:
    """See the port."""
    found = {}
    for memory_id in dict.fromkeys(ids):
        value = _one(connection, "SELECT value FROM memory WHERE id = ?", veil.name(memory_id))
        found[memory_id] = None if value is None else records.memory(veil, value)
    return [found[memory_id] for memory_id in ids]


def listed(
    connection: sqlite3.Connection, veil: Veil, wanted: Filter, behind: columns.Place | None, limit: int
) -> Listing:
    """See the port."""
    found = columns.newest(index.held(connection, veil, wanted), wanted, behind)
    rows = found[: limit if limit >= 0 else None]
    values = [_one(connection, "SELECT value FROM memory WHERE row = ?", row) for row in rows]
    shown = [(row, records.memory(veil, value)) for row, value in zip(rows, values, strict=True)]
    return columns.listing(shown, more=len(rows) < len(found))


def page(connection: sqlite3.Connection, veil: Veil, behind: int, limit: int) -> list[tuple[int, Memory]]:
    """Memories with their rows, the oldest first, from behind a row on."""
    statement = "SELECT row, value FROM memory WHERE row > ? ORDER BY row LIMIT ?"
    return [(row, records.memory(veil, value)) for row, value in connection.execute(statement, (behind, limit))]


def count(connection: sqlite3.Connection, veil: Veil, wanted: Filter) -> int:
    """See the port."""
    return columns.count(index.held(connection, veil, wanted), wanted)


def candidates(
    connection: sqlite3.Connection, veil: Veil, stems: Sequence[Sequence[str]], vector: bytes, wanted: Filter, pool: int
) -> list[Candidate]:
    """See the port; of each word the stems."""
    held = index.held(connection, veil, wanted, stems, vector)
    made = []
    for pick in columns.picked(held, vector, wanted, pool):
        value, tokens = connection.execute("SELECT value, tokens FROM memory WHERE row = ?", (pick.row,)).fetchone()
        scores = pick.lexical, pick.dense, pick.lexical_rank, pick.dense_rank
        made.append(Candidate(records.memory(veil, value), *scores, records.tokens(veil, tokens)))
    return made


def marker(connection: sqlite3.Connection, veil: Veil, name: str) -> bytes | None:
    """See the port."""
    value = _one(connection, "SELECT value FROM marker WHERE name = ?", veil.name(name))
    return None if value is None else records.marker(veil, value)[1]


def markers(connection: sqlite3.Connection, veil: Veil) -> list[tuple[str, bytes]]:
    """All markers."""
    return [records.marker(veil, value) for (value,) in connection.execute("SELECT value FROM marker")]


def relations(connection: sqlite3.Connection, veil: Veil, entity: str, limit: int) -> list[Relation]:
    """See the port."""
    where, values = ("start = ?1 OR end = ?1", (veil.name(key(entity)),)) if entity else ("1", ())
    found = connection.execute(
        f"SELECT value FROM relation WHERE {where} ORDER BY row LIMIT {int(limit)}",  # noqa: S608
        values,
    )
    return [records.relation(veil, value) for (value,) in found]


def entities(connection: sqlite3.Connection, veil: Veil, limit: int) -> list[Entity]:
    """See the port."""
    found = [records.entity(veil, value) for (value,) in connection.execute("SELECT value FROM entity")]
    found.sort(key=lambda entity: (key(entity.name), entity.type))
    return found[: limit if limit >= 0 else None]


def erase(connection: sqlite3.Connection) -> int:
    """Empties every table."""
    found: int = _one(connection, "SELECT count(*) FROM memory")
    for table in ("veil", "memory", "chunk", "entity", "relation", "marker"):
        connection.execute(f"DELETE FROM {table}")  # noqa: S608
    return found


def secret(connection: sqlite3.Connection) -> bytes:
    """What the tenant's veil is made of; empty where there is none."""
    return _one(connection, "SELECT secret FROM veil") or b""


def rewrite(connection: sqlite3.Connection, old: Veil, new: Veil) -> bool:
    """Puts everything under another veil; whether there was anything."""
    for row, value, tokens in connection.execute("SELECT row, value, tokens FROM memory").fetchall():
        memory = records.memory(old, value)
        connection.execute(
            "UPDATE memory SET id = ?, revision = ?, tokens = ?, value = ? WHERE row = ?",
            (*_memory_row(new, memory, records.tokens(old, tokens)), row),
        )
    index.rewrite(connection, old, new)
    _again(connection, "entity", [_entity(new, entity) for entity in entities(connection, old, -1)])
    _again(connection, "relation", [_relation(new, relation) for relation in relations(connection, old, "", -1)])
    _again(connection, "marker", [_marker(new, each) for each in markers(connection, old)])
    connection.execute("DELETE FROM veil")
    connection.execute("INSERT INTO veil (secret) VALUES (?)", (new.held,))
    return any(_one(connection, f"SELECT 1 FROM {table} LIMIT 1") for table in ("memory", *_COLUMNS))  # noqa: S608


def _put(
    connection: sqlite3.Connection, veil: Veil, changed: Changed, memory: Memory, kept: Embedded, stems: Counts
) -> None:
    _remove(connection, veil, changed, memory.id)
    row = connection.execute(
        "INSERT INTO memory (id, revision, tokens, value) VALUES (?, ?, ?, ?)", _memory_row(veil, memory, kept.tokens)
    ).lastrowid
    lead = columns.row_entry(memory, sum(sum(times) for times in stems.values()))
    changed.put(row or 0, chunks.entry(lead, stems, columns.labels(memory), kept.vector))


def _remove(connection: sqlite3.Connection, veil: Veil, changed: Changed, memory_id: str) -> Memory | None:
    """Takes a memory out of every index, and leaves its relations and entities alone."""
    found = connection.execute("SELECT row, value FROM memory WHERE id = ?", (veil.name(memory_id),)).fetchone()
    if not found:
        return None
    changed.drop(found[0])
    connection.execute("DELETE FROM memory WHERE row = ?", (found[0],))
    return records.memory(veil, found[1])


def _delete(connection: sqlite3.Connection, veil: Veil, changed: Changed, ids: Sequence[str]) -> None:
    """The same, with the relations that they told of, and the entities that nothing else speaks of."""
    spoken_of = set[str]()
    for memory_id in ids:
        memory = _remove(connection, veil, changed, memory_id)
        told = connection.execute("DELETE FROM relation WHERE memory = ?", (veil.name(memory_id),))
        changed.dropped |= told.rowcount > 0
        if memory is not None:
            spoken_of.update(key(name) for name in memory.entities)
    for name in changed.unlabelled({f"e:{name}" for name in spoken_of}):
        connection.execute("DELETE FROM relation WHERE start = ?1 OR end = ?1", (veil.name(name[2:]),))
        connection.execute("DELETE FROM entity WHERE key = ?", (veil.name(name[2:]),))


# -- rows ------------------------------------------------------------------------------------------------------------

_COLUMNS: Final = {
    "entity": "key, type, value",
    "relation": "name, start, end, memory, value",
    "marker": "name, value",
}


def _memory_row(veil: Veil, memory: Memory, tokens: bytes) -> tuple[str | bytes, ...]:
    names = veil.name(memory.id), veil.name(memory.revision)
    return *names, records.sealed_tokens(veil, tokens), records.sealed(veil, memory)


def _entity(veil: Veil, entity: Entity) -> tuple[str | bytes, ...]:
    return veil.name(key(entity.name)), veil.name(entity.type), records.sealed(veil, entity)


def _relation(veil: Veil, relation: Relation) -> tuple[str | bytes, ...]:
    ends = key(relation.start), key(relation.end)
    name = veil.name("\0".join((*ends, relation.type, relation.memory)))
    ties = (veil.name(end) for end in (*ends, relation.memory))
    return name, *ties, records.sealed(veil, relation)


def _marker(veil: Veil, entry: tuple[str, bytes]) -> tuple[str | bytes, ...]:
    return veil.name(entry[0]), records.sealed(veil, entry)


def _add(connection: sqlite3.Connection, table: str, row: tuple[str | bytes, ...]) -> bool:
    """Whether it is new."""
    marks = ", ".join("?" * len(row))
    done = connection.execute(f"INSERT OR IGNORE INTO {table} ({_COLUMNS[table]}) VALUES ({marks})", row)  # noqa: S608
    return done.rowcount > 0


def _again(connection: sqlite3.Connection, table: str, rows: Sequence[tuple[str | bytes, ...]]) -> None:
    """These rows and no others."""
    connection.execute(f"DELETE FROM {table}")  # noqa: S608
    for row in rows:
        _add(connection, table, row)


def _one(connection: sqlite3.Connection, statement: str, *values: object) -> Any:
    """The one value that is asked for, or None."""
    found = connection.execute(statement, values).fetchone()
    return found[0] if found else None
