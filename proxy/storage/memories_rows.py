"""What the memories say to a tenant's file: functions of an open connection, those that write within a transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec

from proxy.core.memories import Candidate, Change, Conflict, Embedded, Entity, Filter, Memory, MemoryType, Relation
from proxy.memory.ranking import AUTHOR_WEIGHT, BODY_WEIGHT, CONTEXT_WEIGHT, fuse
from proxy.storage.memories_labels import HIDDEN, groups, key, labels
from proxy.storage.nearest import nearest

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Memory)

_BM25 = f"bm25(words, {BODY_WEIGHT}, {CONTEXT_WEIGHT}, {AUTHOR_WEIGHT})"
_JOINED = "memory JOIN content USING (row)"


def write(
    connection: sqlite3.Connection, change: Change, embedded: Sequence[Embedded]
) -> tuple[tuple[Entity, ...], bool]:
    """See the port. `embedded` goes with `change.put`. Tells besides whether anything was deleted or replaced."""
    for memory_id, revision in change.require:
        found = connection.execute("SELECT revision FROM memory WHERE id = ?", (memory_id,)).fetchone()
        if (found[0] if found else "") != revision or (found and not revision):
            raise Conflict(f"memory {memory_id} was changed meanwhile")
    for name, value in change.markers:
        try:
            connection.execute("INSERT INTO marker (name, value) VALUES (?, ?)", (name, value))
        except sqlite3.IntegrityError:
            raise Conflict(f"{name} exists already") from None
    removed = [_delete(connection, memory_id) for memory_id in change.delete]
    removed += [_put(connection, memory, kept) for memory, kept in zip(change.put, embedded, strict=True)]
    fresh = tuple(entity for entity in change.entities if _add_entity(connection, entity))
    connection.executemany(
        "INSERT OR IGNORE INTO relation (start_key, end_key, start, end, type, memory) VALUES (?, ?, ?, ?, ?, ?)",
        [(key(r.start), key(r.end), r.start, r.end, r.type, r.memory) for r in change.relations],
    )
    return fresh, any(removed)


def get(connection: sqlite3.Connection, ids: Sequence[str]) -> list[Memory | None]:
    """See the port."""
    found = {}
    for memory_id in dict.fromkeys(ids):
        row = connection.execute(f"SELECT value FROM {_JOINED} WHERE id = ?", (memory_id,)).fetchone()  # noqa: S608
        found[memory_id] = _DECODER.decode(row[0]) if row else None
    return [found[memory_id] for memory_id in ids]


def listed(connection: sqlite3.Connection, wanted: Filter, after: str, limit: int) -> list[Memory]:
    """See the port. Behind an id that is not there comes nothing."""
    where, values = _where(wanted)
    if after:
        where += " AND (created, memory.row) < (SELECT created, row FROM memory WHERE id = ?)"
        values.append(after)
    rows = connection.execute(
        f"SELECT value FROM {_JOINED} WHERE {where} ORDER BY created DESC, memory.row DESC LIMIT ?",  # noqa: S608
        (*values, limit),
    )
    return [_DECODER.decode(value) for (value,) in rows]


def ids(connection: sqlite3.Connection) -> list[str]:
    """All memories' ids, newest first."""
    return [found for (found,) in connection.execute("SELECT id FROM memory ORDER BY created DESC, row DESC")]


def count(connection: sqlite3.Connection, wanted: Filter) -> int:
    """See the port."""
    where, values = _where(wanted)
    return int(connection.execute(f"SELECT count(*) FROM memory WHERE {where}", values).fetchone()[0])  # noqa: S608


def candidates(
    connection: sqlite3.Connection, words: Sequence[str], vector: bytes, wanted: Filter, pool: int
) -> list[Candidate]:
    """See the port."""
    where, values = _where(wanted)
    known: dict[str, tuple[int, MemoryType]] = {}
    lexical: dict[str, float] = {}
    if words:
        query = " OR ".join('"' + word.replace('"', '""') + '"' for word in words)
        found = connection.execute(
            f"SELECT id, memory.row, type, {_BM25} AS score FROM words JOIN memory ON memory.row = words.rowid "  # noqa: S608
            f"WHERE words MATCH ? AND {where} ORDER BY score LIMIT ?",
            (query, *values, pool),
        )
        for memory_id, row, kind, score in found:
            known[memory_id], lexical[memory_id] = (row, kind), -score
    dense: dict[str, float] = {}
    if vector:
        rows = connection.execute(f"SELECT id, row, type, vector FROM memory WHERE {where}", values).fetchall()  # noqa: S608
        for at, cosine in nearest(vector, [each[3] for each in rows], pool):
            memory_id, row, kind, _ = rows[at]
            known[memory_id], dense[memory_id] = (row, kind), cosine
    fused = fuse(list(lexical), list(dense), {found: kind for found, (_, kind) in known.items()}, pool)
    contents = _contents(connection, [known[memory_id][0] for memory_id, _, _ in fused])
    made = []
    for memory_id, by_words, by_vector in fused:
        memory, tokens = contents[known[memory_id][0]]
        scores = lexical.get(memory_id, 0.0), dense.get(memory_id, 0.0)
        made.append(Candidate(memory, *scores, by_words, by_vector, tokens))
    return made


def _contents(connection: sqlite3.Connection, wanted: Sequence[int]) -> dict[int, tuple[Memory, bytes]]:
    """Memories by row, each with its tokens."""
    found = connection.execute(f"SELECT row, value, tokens FROM content WHERE row IN ({_marks(wanted)})", wanted)  # noqa: S608
    return {row: (_DECODER.decode(value), tokens) for row, value, tokens in found}


def marker(connection: sqlite3.Connection, name: str) -> bytes | None:
    """See the port."""
    found = connection.execute("SELECT value FROM marker WHERE name = ?", (name,)).fetchone()
    return found[0] if found else None


def markers(connection: sqlite3.Connection, after: str, limit: int) -> list[tuple[str, bytes]]:
    """Markers by name, from behind one on."""
    found = connection.execute("SELECT name, value FROM marker WHERE name > ? ORDER BY name LIMIT ?", (after, limit))
    return found.fetchall()


def relations(connection: sqlite3.Connection, entity: str, limit: int) -> list[Relation]:
    """See the port."""
    where, values = ("start_key = ?1 OR end_key = ?1", (key(entity),)) if entity else ("1", ())
    rows = connection.execute(
        f"SELECT start, end, type, memory FROM relation WHERE {where} ORDER BY row LIMIT {int(limit)}",  # noqa: S608
        values,
    )
    return [Relation(*row) for row in rows]


def entities(connection: sqlite3.Connection, limit: int) -> list[Entity]:
    """See the port."""
    return [Entity(*row) for row in connection.execute("SELECT name, type FROM entity ORDER BY key LIMIT ?", (limit,))]


def erase(connection: sqlite3.Connection) -> int:
    """Empties every table."""
    found = count_all(connection)
    for table in ("memory", "content", "label", "entity", "relation", "marker"):
        connection.execute(f"DELETE FROM {table}")  # noqa: S608
    connection.execute("INSERT INTO words (words) VALUES ('delete-all')")
    return found


def forget(connection: sqlite3.Connection, pages: int) -> bool:
    """Writes at most so many pages of the full-text index anew, which until then knows the words of what was deleted;
    whether there is more to do. A negative number begins it."""
    before = connection.total_changes
    connection.execute("INSERT INTO words (words, rank) VALUES ('merge', ?)", (pages,))
    # The statement itself counts as one change.
    return connection.total_changes - before >= 2


def count_all(connection: sqlite3.Connection) -> int:
    """Memories of every type."""
    return int(connection.execute("SELECT count(*) FROM memory").fetchone()[0])


def _put(connection: sqlite3.Connection, memory: Memory, kept: Embedded) -> bool:
    """Whether it took the place of another."""
    former = _remove(connection, memory.id)
    row = connection.execute(
        "INSERT INTO memory (id, type, project, conversation, created, revision, vector) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (memory.id, memory.type, memory.project, memory.conversation, memory.created, memory.revision, kept.vector),
    ).lastrowid
    connection.execute(
        "INSERT INTO content (row, tokens, value) VALUES (?, ?, ?)", (row, kept.tokens, _ENCODER.encode(memory))
    )
    connection.execute(
        "INSERT INTO words (rowid, body, context, author) VALUES (?, ?, ?, ?)",
        (row, memory.content, memory.context, memory.author),
    )
    connection.executemany("INSERT INTO label (name, row) VALUES (?, ?)", [(name, row) for name in labels(memory)])
    return former is not None


def _remove(connection: sqlite3.Connection, memory_id: str) -> Memory | None:
    """Takes a memory out of every index, and leaves its relations and entities alone."""
    found = connection.execute(f"SELECT memory.row, value FROM {_JOINED} WHERE id = ?", (memory_id,)).fetchone()  # noqa: S608
    if not found:
        return None
    row, memory = found[0], _DECODER.decode(found[1])
    connection.execute(
        "INSERT INTO words (words, rowid, body, context, author) VALUES ('delete', ?, ?, ?, ?)",
        (row, memory.content, memory.context, memory.author),
    )
    connection.executemany("DELETE FROM label WHERE name = ? AND row = ?", [(name, row) for name in labels(memory)])
    connection.execute("DELETE FROM memory WHERE row = ?", (row,))
    connection.execute("DELETE FROM content WHERE row = ?", (row,))
    return memory


def _delete(connection: sqlite3.Connection, memory_id: str) -> bool:
    """The same, with the relations that it told of, and the entities that nothing else speaks of."""
    memory = _remove(connection, memory_id)
    connection.execute("DELETE FROM relation WHERE memory = ?", (memory_id,))
    for name in {key(name) for name in memory.entities} if memory else ():
        if not connection.execute("SELECT 1 FROM label WHERE name = ? LIMIT 1", (f"e:{name}",)).fetchone():
            connection.execute("DELETE FROM relation WHERE start_key = ?1 OR end_key = ?1", (name,))
            connection.execute("DELETE FROM entity WHERE key = ?", (name,))
    return memory is not None


def _add_entity(connection: sqlite3.Connection, entity: Entity) -> bool:
    """Whether it is new."""
    done = connection.execute(
        "INSERT OR IGNORE INTO entity (key, type, name) VALUES (?, ?, ?)", (key(entity.name), entity.type, entity.name)
    )
    return done.rowcount > 0


def _where(wanted: Filter) -> tuple[str, list[Any]]:
    """The condition on `memory`, and its values."""
    parts: list[str] = []
    values: list[Any] = []
    types = wanted.types or HIDDEN
    parts.append(f"type {'' if wanted.types else 'NOT '}IN ({_marks(types)})")
    values += types
    for names in groups(wanted):
        parts.append(f"memory.row IN (SELECT row FROM label WHERE name IN ({_marks(names)}))")  # noqa: S608
        values += names
    exact = (("project = ?", wanted.project), ("created >= ?", wanted.since), ("created <= ?", wanted.until))
    for condition, value in (*exact, ("conversation = ?", wanted.conversation or None)):
        if value is not None:
            parts.append(condition)
            values.append(value)
    return " AND ".join(parts), values


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))
