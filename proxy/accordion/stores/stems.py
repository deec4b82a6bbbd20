"""Stems of words, from SQLite's full-text index, so that every store has the same search results."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

COLUMNS = ("body", "context", "author")
Counts = dict[str, list[int]]
"""The stems of a text with their counts by column."""

_TABLES = """
CREATE VIRTUAL TABLE words USING fts5 (body, context, author, content = '', tokenize = 'porter unicode61');
CREATE VIRTUAL TABLE stems USING fts5vocab (words, 'instance');
"""


def connect() -> sqlite3.Connection:
    """Opens an index in memory, which holds texts only during a call. Raises sqlite3.Error."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    prepare(connection)
    return connection


def prepare(connection: sqlite3.Connection) -> None:
    """Creates the index in a database in memory. Raises sqlite3.Error."""
    connection.executescript(_TABLES)


def count_stems(connection: sqlite3.Connection, texts: Sequence[tuple[str, str, str]]) -> list[Counts]:
    """Counts the stems of texts, each given by its columns."""

    def count() -> list[Counts]:
        counts: list[Counts] = [{} for _ in texts]
        rows = connection.execute("SELECT doc, term, col, count(*) FROM stems GROUP BY doc, term, col")
        for number, stem, column, stem_count in rows:
            counts[number - 1].setdefault(stem, [0] * len(COLUMNS))[COLUMNS.index(column)] = stem_count
        return counts

    return _index_and_read(connection, texts, count)


def stem_words(connection: sqlite3.Connection, words: Sequence[str]) -> list[list[str]]:
    """Returns the stems of each word: usually one, several for a word with punctuation, none for punctuation alone."""

    def read() -> list[list[str]]:
        stems_by_word: list[list[str]] = [[] for _ in words]
        for number, stem in connection.execute("SELECT doc, term FROM stems ORDER BY doc, offset"):
            stems_by_word[number - 1].append(stem)
        return stems_by_word

    return _index_and_read(connection, [(word, "", "") for word in words], read)


def _index_and_read(connection: sqlite3.Connection, texts: Sequence[tuple[str, str, str]], read: Callable[[], T]) -> T:
    """Returns the result of `read` while the index holds the texts, numbered from 1."""
    connection.execute("BEGIN")
    try:
        connection.executemany(
            "INSERT INTO words (rowid, body, context, author) VALUES (?, ?, ?, ?)",
            [(number, *text) for number, text in enumerate(texts, 1)],
        )
        return read()
    finally:
        connection.execute("ROLLBACK")
