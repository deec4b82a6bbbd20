"""The chunks of the search index (see memories_chunks.py) in a tenant's file: reading and changing them."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from accordion.model.memories import MemoryFilter
from accordion.stores import memories_chunks as chunks
from accordion.stores import memories_columns as columns
from accordion.stores.sealed_names import SealedNames

_PARTS = ("rows", "words", "vectors")
_ALL = "SELECT number, rows, words, vectors FROM chunk"


def read_columns(
    connection: sqlite3.Connection,
    sealed_names: SealedNames,
    memory_filter: MemoryFilter,
    stems: Sequence[Sequence[str]] = (),
    vector: bytes = b"",
) -> columns.SearchColumns:
    """Reads the columns that a filter needs, and those that stems and a vector need, if given."""
    parts = ("rows", "words" if stems else "x''", "vectors" if vector else "x''")
    chunk_rows = connection.execute(f"SELECT number, {', '.join(parts)} FROM chunk ORDER BY number")  # noqa: S608
    labels = [name for group in columns.label_groups(memory_filter) for name in group]
    return chunks.select(
        [_open_parts(sealed_names, number, *each) for number, *each in chunk_rows], labels, stems, vector
    )


def reseal(connection: sqlite3.Connection, old: SealedNames, new: SealedNames) -> None:
    """Seals all chunks with another secret."""
    for number, *parts in connection.execute(_ALL).fetchall():
        _write(connection, new, number, _open_parts(old, number, *parts))


class ChunkChanges:
    """The chunks that a change affects. Each is read and written once.

    The number of a chunk is the first row that it was created with. A change writes its new rows as a separate chunk,
    so that writes are small. When the last of 32 neighbouring rows is added, they are merged into one chunk.
    """

    def __init__(self, connection: sqlite3.Connection, sealed_names: SealedNames) -> None:
        self._connection, self._sealed_names = connection, sealed_names
        self._loaded_chunks: dict[int, dict[int, chunks.ChunkEntry]] = {}
        self._new_rows: dict[int, chunks.ChunkEntry] = {}
        self.has_removals = False
        """Whether the change removed anything."""

    def put(self, row: int, entry: chunks.ChunkEntry) -> None:
        """Adds a row."""
        self._new_rows[row] = entry

    def remove(self, row: int) -> None:
        """Removes a row."""
        self.has_removals = True
        if self._new_rows.pop(row, None) is None:
            statement = "SELECT max(number) FROM chunk WHERE number <= ?"
            (number,) = self._connection.execute(statement, (row,)).fetchone()
            if number not in self._loaded_chunks:
                self._loaded_chunks |= self._read(number, number)
            self._loaded_chunks[number].pop(row)

    def finish_and_find_unused_labels(self, labels: set[str]) -> set[str]:
        """Writes the changes; returns the labels that no memory has any more."""
        self.finish()
        if not labels:
            return labels
        chunk_rows = self._connection.execute("SELECT number, rows FROM chunk")
        return chunks.find_unused_labels(
            (self._sealed_names.open(_part_name(number, "rows"), part) for number, part in chunk_rows), labels
        )

    def finish(self) -> None:
        """Writes the changes."""
        for number, entries in self._loaded_chunks.items():
            self._write(number, entries)
        groups: dict[int, dict[int, chunks.ChunkEntry]] = {}
        for row, entry in self._new_rows.items():
            groups.setdefault(row // chunks.ROWS * chunks.ROWS, {})[row] = entry
        for first_row, group in groups.items():
            last_row = first_row + chunks.ROWS - 1
            for number, entries in self._read(first_row, last_row).items() if last_row in group else ():
                group.update(entries)
                self._write(number, {})
            self._write(min(group), group)
        self._loaded_chunks.clear()
        self._new_rows.clear()

    def _read(self, first_row: int, last_row: int) -> dict[int, dict[int, chunks.ChunkEntry]]:
        chunk_rows = self._connection.execute(f"{_ALL} WHERE number BETWEEN ? AND ?", (first_row, last_row))
        return {number: chunks.unpack(_open_parts(self._sealed_names, number, *parts)) for number, *parts in chunk_rows}

    def _write(self, number: int, entries: dict[int, chunks.ChunkEntry]) -> None:
        if entries:
            _write(self._connection, self._sealed_names, number, chunks.pack(entries))
        else:
            self._connection.execute("DELETE FROM chunk WHERE number = ?", (number,))


def _write(connection: sqlite3.Connection, sealed_names: SealedNames, number: int, parts: chunks.Parts) -> None:
    sealed = [sealed_names.seal(_part_name(number, name), part) for name, part in zip(_PARTS, parts, strict=True)]
    connection.execute(
        "INSERT OR REPLACE INTO chunk (number, rows, words, vectors) VALUES (?, ?, ?, ?)", (number, *sealed)
    )


def _open_parts(sealed_names: SealedNames, number: int, rows: bytes, words: bytes, vectors: bytes) -> chunks.Parts:
    """Opens a chunk's parts. Parts that were not read are empty."""
    parts = [
        sealed_names.open(_part_name(number, name), part) if part else b""
        for name, part in zip(_PARTS, (rows, words, vectors), strict=True)
    ]
    return parts[0], parts[1], parts[2]


def _part_name(number: int, part: str) -> str:
    return f"memories/{part}/{number}"
