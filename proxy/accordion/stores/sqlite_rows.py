"""The SQLite store's statements, as functions of an open connection. `now` is in seconds since the epoch.

Functions that write expect an open transaction. A value or log that has expired counts as missing.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from accordion.model.ports import Key, Put
from accordion.stores.batches import LogAppend, name_bounds, name_bytes, name_text

_STRIDE = 2**32
_SIZES = (32, 8, 1)
"""Numbers of rows in one statement.

Each statement releases the interpreter's lock and has to wait to get it back, and while a statement runs, a thread that
wakes up seldom gets the core.
"""


def _statements_by_size(start: str, row: str, end: str = "", sizes: Sequence[int] = _SIZES) -> dict[int, str]:
    """Returns one statement for each size; `row` is repeated between `start` and `end`."""
    return {size: f"{start} {', '.join([row] * size)} {end}" for size in sizes}


_PUT = _statements_by_size(
    "INSERT INTO entry (collection, name, expires, value) VALUES",
    "(?, ?, ?, ?)",
    "ON CONFLICT (collection, name) DO UPDATE SET expires = excluded.expires, value = excluded.value",
)
# Replaces an expired value. A value that has not expired stays, and its row is not returned.
_PUT_ABSENT = _statements_by_size(
    "INSERT INTO entry (collection, name, expires, value) VALUES",
    "(?, ?, ?, ?)",
    "ON CONFLICT (collection, name) DO UPDATE SET expires = excluded.expires, value = excluded.value "
    "WHERE expires <= ? RETURNING collection, name",
)
_GET_MANY = _statements_by_size(
    "SELECT input.column1, value FROM (VALUES",
    "(?, ?, ?, ?)",
    ") AS input CROSS JOIN entry ON collection = input.column2 AND name = input.column3 "
    "WHERE expires IS NULL OR expires > input.column4",
    (256, *_SIZES),
)
# A log that has expired stays, and its row is not returned: its entries must be deleted first.
_EXTEND = _statements_by_size(
    "INSERT INTO log (collection, name, expires, next) VALUES",
    "(?, ?, ?, ?)",
    "ON CONFLICT (collection, name) DO UPDATE SET expires = excluded.expires, next = next + excluded.next "
    "WHERE expires IS NULL OR expires > ? RETURNING collection, name, id, next",
)
_ADD = _statements_by_size("INSERT INTO log_entry (id, value) VALUES", "(?, ?)")
# CROSS JOIN fixes the order of the join: for each range of the input, its entries.
_TRIM = _statements_by_size(
    "DELETE FROM log_entry WHERE id IN (SELECT log_entry.id FROM (VALUES",
    "(?, ?)",
    ") AS input CROSS JOIN log_entry ON log_entry.id >= input.column1 AND log_entry.id < input.column2)",
)
_BYTES_PER_STEP = 256 * 1024
"""Bytes of a large value that one transaction overwrites on a full disk."""
_ENTRIES_PER_STEP = 16
"""Entries of a log that one transaction deletes on a full disk."""
_LIVE = "collection = ? AND name = ? AND (expires IS NULL OR expires > ?)"
_GET = f"SELECT value FROM entry WHERE {_LIVE}"  # noqa: S608
_DELETE = f"DELETE FROM entry WHERE {_LIVE}"  # noqa: S608
_LOG = f"SELECT id, next FROM log WHERE {_LIVE}"  # noqa: S608
_LOG_ID = "SELECT id FROM log WHERE collection = ? AND name = ?"
_CLEAR = "DELETE FROM log_entry WHERE id >= ? AND id < ?"
_READ = f"""
SELECT log_entry.id - log.id * {_STRIDE}, log_entry.value FROM log JOIN log_entry
ON log_entry.id >= log.id * {_STRIDE} + CASE WHEN ?1 < 0 THEN max(0, log.next + ?1) ELSE ?1 END
AND log_entry.id < (log.id + 1) * {_STRIDE}
WHERE collection = ?2 AND name = ?3 AND (expires IS NULL OR expires > ?4) ORDER BY log_entry.id LIMIT ?5
"""  # noqa: S608
_SCAN = """
SELECT name, value FROM entry
WHERE collection = ? AND name {} ? AND name < ? AND (expires IS NULL OR expires > ?) ORDER BY name LIMIT ?
"""
_SCAN_FROM, _SCAN_AFTER = _SCAN.format(">="), _SCAN.format(">")
_LOCK = """
INSERT INTO lock (collection, name, token, until) VALUES (?, ?, ?, ?)
ON CONFLICT (collection, name) DO UPDATE SET token = excluded.token, until = excluded.until WHERE until <= ?
"""
_PURGE_END = "SELECT max(id) FROM (SELECT id FROM {} WHERE id > ? ORDER BY id LIMIT ?)"
_PURGE_LOG = "DELETE FROM log_entry WHERE id IN (SELECT id FROM log_entry WHERE id >= ? AND id < ? LIMIT ?)"


def key_columns(key: Key) -> tuple[bytearray, bytearray]:
    """Returns a key as its two columns.

    They are bytearrays because Python binds these directly; for bytes it searches for an adapter each time, which takes
    longer than to copy a small row.
    """
    return bytearray(name_bytes(key.collection)), bytearray(name_bytes(key.name))


def get(connection: sqlite3.Connection, key: Key, now: float) -> bytes | None:
    """Returns the value of a key, or None."""
    row = connection.execute(_GET, (*key_columns(key), now)).fetchone()
    return None if row is None else row[0]


def get_many(connection: sqlite3.Connection, keys: Iterable[Key], now: float) -> list[bytes | None]:
    """Returns the values in the order of the keys."""
    rows = [(at, *key_columns(key), now) for at, key in enumerate(keys)]
    values: dict[int, bytes] = dict(_run_batched(connection, _GET_MANY, rows))
    return [values.get(at) for at in range(len(rows))]


def put_all(connection: sqlite3.Connection, puts: Iterable[Put], now: float) -> None:
    """Sets the values of keys."""
    _run_batched(connection, _PUT, [_row(put, now) for put in puts])


def put_absent(connection: sqlite3.Connection, puts: Sequence[Put], now: float) -> dict[Key, bytes]:
    """Sets the values of different keys that have none; returns the values of the other keys."""
    new_rows = _run_batched(connection, _PUT_ABSENT, [_row(put, now) for put in puts], now)
    if len(new_rows) == len(puts):
        return {}
    new_keys = set(new_rows)
    keys = [put.key for put in puts if (name_bytes(put.key.collection), name_bytes(put.key.name)) not in new_keys]
    return {key: value for key, value in zip(keys, get_many(connection, keys, now), strict=True) if value is not None}


def put_if_absent(connection: sqlite3.Connection, put: Put, now: float) -> bytes:
    """Sets the value of a key that has none; returns the key's value afterwards."""
    return put_absent(connection, (put,), now).get(put.key, put.value)


def delete(connection: sqlite3.Connection, keys: Iterable[Key], now: float) -> int:
    """Deletes values and logs; returns the number of keys that had any."""
    count = 0
    for key in keys:
        value_count = connection.execute(_DELETE, (*key_columns(key), now)).rowcount
        log = connection.execute(_LOG, (*key_columns(key), now)).fetchone()
        if log is not None:
            _delete_log(connection, log[0])
        count += bool(value_count) or log is not None
    return count


def overwrite_piece(connection: sqlite3.Connection, key: Key, at: int, now: float) -> int:
    """Overwrites up to `_BYTES_PER_STEP` bytes of a large value from `at` on; returns their number.

    Returns 0 if the value is not large. Once all of it is overwritten, makes the value empty, without overwriting
    its pages again, and returns 0.
    """
    row = connection.execute(f"SELECT id, length(value) FROM entry WHERE {_LIVE}", (*key_columns(key), now)).fetchone()  # noqa: S608
    if row is None or row[1] <= _BYTES_PER_STEP:
        return 0
    if at < row[1]:
        size = min(_BYTES_PER_STEP, row[1] - at)
        with connection.blobopen("entry", "value", row[0]) as value:
            value.seek(at)
            value.write(bytes(size))
        return int(size)
    connection.execute("PRAGMA secure_delete = FAST")
    try:
        connection.execute("UPDATE entry SET value = zeroblob(0) WHERE id = ?", (row[0],))
    finally:
        connection.execute("PRAGMA secure_delete = ON")
    return 0


def shorten(connection: sqlite3.Connection, key: Key, now: float) -> int:
    """Deletes up to `_ENTRIES_PER_STEP` entries of a log; returns their number, 0 if there are none."""
    log = connection.execute(_LOG, (*key_columns(key), now)).fetchone()
    if log is None:
        return 0
    return connection.execute(_PURGE_LOG, (log[0] * _STRIDE, (log[0] + 1) * _STRIDE, _ENTRIES_PER_STEP)).rowcount


def append_all(connection: sqlite3.Connection, log_appends: Iterable[LogAppend], now: float) -> None:
    """Adds entries to the ends of logs; runs of the same log are added one after the other."""
    batch: dict[Key, LogAppend] = {}
    for log_append in log_appends:
        if log_append.key in batch:
            _append_batch(connection, batch.values(), now)
            batch = {}
        batch[log_append.key] = log_append
    _append_batch(connection, batch.values(), now)


def append(connection: sqlite3.Connection, log_append: LogAppend, now: float) -> int:
    """Adds entries to the end of one log; returns the position of the last one."""
    _append_batch(connection, (log_append,), now)
    return last_position(connection, log_append.key, now)


def last_position(connection: sqlite3.Connection, key: Key, now: float) -> int:
    """Returns the position of the last entry that a log ever got; -1 if there is no log."""
    row = connection.execute(_LOG, (*key_columns(key), now)).fetchone()
    return -1 if row is None else int(row[1]) - 1


def read(
    connection: sqlite3.Connection, key: Key, start: int, limit: int | None, now: float
) -> list[tuple[int, bytes]]:
    """Returns entries of a log with their positions."""
    return connection.execute(_READ, (start, *key_columns(key), now, -1 if limit is None else max(0, limit))).fetchall()


def scan(
    connection: sqlite3.Connection, collection: str, prefix: str, after: str, limit: int, now: float
) -> list[tuple[str, bytes]]:
    """Returns names and values of a collection, ordered by name."""
    low, is_excluded, high = name_bounds(prefix, after)
    statement = _SCAN_AFTER if is_excluded else _SCAN_FROM
    rows = connection.execute(statement, (name_bytes(collection), low, high, now, max(0, limit)))
    return [(name_text(name), value) for name, value in rows]


def lock(connection: sqlite3.Connection, key: Key, token: bytes, lease: float, now: float) -> bool:
    """Takes a lock that is free or has expired; returns whether it did."""
    return connection.execute(_LOCK, (*key_columns(key), token, now + lease, now)).rowcount == 1


def unlock(connection: sqlite3.Connection, key: Key, token: bytes) -> None:
    """Releases a lock if it still has this token."""
    connection.execute("DELETE FROM lock WHERE collection = ? AND name = ? AND token = ?", (*key_columns(key), token))


def purge(connection: sqlite3.Connection, after: tuple[int, int], rows: int, now: float) -> tuple[int, int]:
    """Deletes expired rows, in one step that checks about `rows` rows of each table at most.

    `after` has the ids of the last value and log of the step before. Returns the ids for the next step; 0 means that
    the end was reached. An index on the time would cost more at each write than these steps do.
    """
    connection.execute("DELETE FROM lock WHERE until <= ?", (now,))
    end = connection.execute(_PURGE_END.format("entry"), (after[0], rows)).fetchone()[0] or 0
    connection.execute("DELETE FROM entry WHERE id > ? AND id <= ? AND expires <= ?", (after[0], end, now))
    return end, _purge_logs(connection, after[1], rows, now)


def _row(put: Put, now: float) -> tuple[bytearray, bytearray, float | None, bytearray]:
    return *key_columns(put.key), None if put.ttl is None else now + put.ttl, bytearray(put.value)


def _run_batched(
    connection: sqlite3.Connection, statements: dict[int, str], rows: Sequence[tuple[Any, ...]], *end: Any
) -> list[Any]:
    """Runs a statement for all rows, many at a time; returns its result rows. `end` has parameters after the rows'."""
    at, results = 0, []
    for size, statement in statements.items():
        while len(rows) - at >= size:
            fields = [*chain.from_iterable(rows[at : at + size]), *end]
            results += connection.execute(statement, fields).fetchall()
            at += size
            yield_core()
    return results


def yield_core() -> None:
    """Yields the core to a waiting thread, which may be the event loop with its requests."""
    if hasattr(os, "sched_yield"):
        os.sched_yield()


def _append_batch(connection: sqlite3.Connection, log_appends: Iterable[LogAppend], now: float) -> None:
    """Adds entries to the ends of different logs. Deletes an expired log and creates it again."""
    appends_by_name = {
        (name_bytes(log_append.key.collection), name_bytes(log_append.key.name)): log_append
        for log_append in log_appends
    }
    logs = [
        (
            bytearray(collection),
            bytearray(name),
            None if log_append.ttl is None else now + log_append.ttl,
            len(log_append.values),
        )
        for (collection, name), log_append in appends_by_name.items()
    ]
    log_rows = _run_batched(connection, _EXTEND, logs, now)
    if len(log_rows) < len(logs):
        live_names = {(collection, name) for collection, name, _, _ in log_rows}
        expired = [log for key, log in zip(appends_by_name, logs, strict=True) if key not in live_names]
        for log in expired:
            _delete_log(connection, connection.execute(_LOG_ID, log[:2]).fetchone()[0])
        log_rows += _run_batched(connection, _EXTEND, expired, now)
    entries: list[tuple[int, bytearray]] = []
    trimmed_ranges: list[tuple[int, int]] = []
    for collection, name, log, next_position in log_rows:
        log_append, start = appends_by_name[collection, name], log * _STRIDE
        entries += enumerate(map(bytearray, log_append.values), start + next_position - len(log_append.values))
        if log_append.keep is not None and next_position > log_append.keep:
            trimmed_ranges.append((start, start + next_position - log_append.keep))
    _run_batched(connection, _ADD, entries)
    _run_batched(connection, _TRIM, trimmed_ranges)


def _delete_log(connection: sqlite3.Connection, log: int) -> None:
    connection.execute(_CLEAR, (log * _STRIDE, (log + 1) * _STRIDE))
    connection.execute("DELETE FROM log WHERE id = ?", (log,))


def _purge_logs(connection: sqlite3.Connection, after: int, rows: int, now: float) -> int:
    end = connection.execute(_PURGE_END.format("log"), (after, rows)).fetchone()[0] or 0
    expired = connection.execute("SELECT id FROM log WHERE id > ? AND id <= ? AND expires <= ?", (after, end, now))
    remaining = rows
    for (log,) in expired.fetchall():
        remaining -= connection.execute(_PURGE_LOG, (log * _STRIDE, (log + 1) * _STRIDE, remaining)).rowcount
        if remaining <= 0:
            return int(log) - 1
        connection.execute("DELETE FROM log WHERE id = ?", (log,))
    return int(end)
