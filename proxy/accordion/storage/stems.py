"""Words as their stems: those of SQLite's full-text index, so that every store finds the same."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

COLUMNS = ("body", "context", "author")
Counts = dict[str, list[int]]
"""Of a text: for each stem how often it is there, by column."""

_TABLES = """
CREATE VIRTUAL TABLE words USING fts5 (body, context, author, content = '', tokenize = 'porter unicode61');
CREATE VIRTUAL TABLE stems USING fts5vocab (words, 'instance');
"""


def connect() -> sqlite3.Connection:
    """An index in memory that texts only pass through. Raises sqlite3.Error."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    prepare(connection)
    return connection


def prepare(connection: sqlite3.Connection) -> None:
    """Makes the index in a database in memory. Raises sqlite3.Error."""
    connection.executescript(_TABLES)


def counted(connection: sqlite3.Connection, texts: Sequence[tuple[str, str, str]]) -> list[Counts]:
    """The stems of texts, each given by its columns."""

    def count() -> list[Counts]:
        found: list[Counts] = [{} for _ in texts]
        rows = connection.execute("SELECT doc, term, col, count(*) FROM stems GROUP BY doc, term, col")
        for number, stem, column, times in rows:
            found[number - 1].setdefault(stem, [0] * len(COLUMNS))[COLUMNS.index(column)] = times
        return found

    return _passed(connection, texts, count)


def stemmed(connection: sqlite3.Connection, words: Sequence[str]) -> list[list[str]]:
    """The stems of each word: one as a rule, several where a mark divides it, none where it is nothing but marks."""

    def read() -> list[list[str]]:
        found: list[list[str]] = [[] for _ in words]
        for number, stem in connection.execute("SELECT doc, term FROM stems ORDER BY doc, offset"):
            found[number - 1].append(stem)
        return found

    return _passed(connection, [(word, "", "") for word in words], read)


def _passed(connection: sqlite3.Connection, texts: Sequence[tuple[str, str, str]], read: Callable[[], T]) -> T:
    """What `read` finds while the texts are in the index, numbered from 1."""
    connection.execute("BEGIN")
    try:
        connection.executemany(
            "INSERT INTO words (rowid, body, context, author) VALUES (?, ?, ?, ?)",
            [(number, *text) for number, text in enumerate(texts, 1)],
        )
        return read()
    finally:
        connection.execute("ROLLBACK")
