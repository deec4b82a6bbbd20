"""A tenant's chunks (see `memories_chunks`) in its file: read for a search, and changed."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from accordion.core.memories import Filter
from accordion.storage import memories_chunks as chunks
from accordion.storage import memories_columns as columns
from accordion.storage.memories_veil import Veil

_PARTS = ("rows", "words", "vectors")
_ALL = "SELECT number, rows, words, vectors FROM chunk"


def held(
    connection: sqlite3.Connection,
    veil: Veil,
    wanted: Filter,
    stems: Sequence[Sequence[str]] = (),
    vector: bytes = b"",
) -> columns.Held:
    """What choosing by a filter needs; where there are stems or a vector, what weighing by them does too."""
    parts = ("rows", "words" if stems else "x''", "vectors" if vector else "x''")
    found = connection.execute(f"SELECT number, {', '.join(parts)} FROM chunk ORDER BY number")  # noqa: S608
    labels = [name for group in columns.groups(wanted) for name in group]
    return chunks.held([_opened(veil, number, *each) for number, *each in found], labels, stems, vector)


def rewrite(connection: sqlite3.Connection, old: Veil, new: Veil) -> None:
    """Puts all chunks under another veil."""
    for number, *parts in connection.execute(_ALL).fetchall():
        _write(connection, new, number, _opened(old, number, *parts))


class Changed:
    """The chunks that a change touches, each read and written once.

    A chunk is called by the first row that it was made with. What a change adds is a chunk of its own, so that little
    is written; when the last of 32 neighbouring rows comes, all of them are gathered in one."""

    def __init__(self, connection: sqlite3.Connection, veil: Veil) -> None:
        self._connection, self._veil = connection, veil
        self._former: dict[int, dict[int, chunks.Entry]] = {}
        self._fresh: dict[int, chunks.Entry] = {}
        self.dropped = False
        """Whether anything was taken out."""

    def put(self, row: int, entry: chunks.Entry) -> None:
        """Adds a row."""
        self._fresh[row] = entry

    def drop(self, row: int) -> None:
        """Takes a row out."""
        self.dropped = True
        if self._fresh.pop(row, None) is None:
            statement = "SELECT max(number) FROM chunk WHERE number <= ?"
            (number,) = self._connection.execute(statement, (row,)).fetchone()
            if number not in self._former:
                self._former |= self._read(number, number)
            self._former[number].pop(row)

    def unlabelled(self, labels: set[str]) -> set[str]:
        """Those of the labels under which no memory is listed any more. Writes what was changed."""
        self.settle()
        if not labels:
            return labels
        found = self._connection.execute("SELECT number, rows FROM chunk")
        return chunks.unlabelled((self._veil.open(_place(number, "rows"), part) for number, part in found), labels)

    def settle(self) -> None:
        """Writes what was changed."""
        for number, entries in self._former.items():
            self._write(number, entries)
        groups: dict[int, dict[int, chunks.Entry]] = {}
        for row, entry in self._fresh.items():
            groups.setdefault(row // chunks.ROWS * chunks.ROWS, {})[row] = entry
        for first, group in groups.items():
            last = first + chunks.ROWS - 1
            for number, entries in self._read(first, last).items() if last in group else ():
                group.update(entries)
                self._write(number, {})
            self._write(min(group), group)
        self._former.clear()
        self._fresh.clear()

    def _read(self, first: int, last: int) -> dict[int, dict[int, chunks.Entry]]:
        found = self._connection.execute(f"{_ALL} WHERE number BETWEEN ? AND ?", (first, last))
        return {number: chunks.unpacked(_opened(self._veil, number, *parts)) for number, *parts in found}

    def _write(self, number: int, entries: dict[int, chunks.Entry]) -> None:
        if entries:
            _write(self._connection, self._veil, number, chunks.packed(entries))
        else:
            self._connection.execute("DELETE FROM chunk WHERE number = ?", (number,))


def _write(connection: sqlite3.Connection, veil: Veil, number: int, parts: chunks.Parts) -> None:
    sealed = [veil.seal(_place(number, name), part) for name, part in zip(_PARTS, parts, strict=True)]
    connection.execute(
        "INSERT OR REPLACE INTO chunk (number, rows, words, vectors) VALUES (?, ?, ?, ?)", (number, *sealed)
    )


def _opened(veil: Veil, number: int, rows: bytes, words: bytes, vectors: bytes) -> chunks.Parts:
    """A chunk's parts; those that were not read are empty."""
    parts = [
        veil.open(_place(number, name), part) if part else b""
        for name, part in zip(_PARTS, (rows, words, vectors), strict=True)
    ]
    return parts[0], parts[1], parts[2]


def _place(number: int, part: str) -> str:
    return f"memories/{part}/{number}"
