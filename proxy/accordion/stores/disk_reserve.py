"""Reserved disk space next to an SQLite file that only erasures may use, so that they work on a full disk."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import suppress
from pathlib import Path

from accordion.model.errors import StoreFull
from accordion.stores.sqlite_file import empty_log, is_full

SIZE = 2 * 2**20
"""Bytes of the reserve. A deletion needs it because it writes to the write-ahead log first, in small steps."""
MARGIN = 2**20
"""Bytes that must be free in addition, for the write-ahead log of ordinary writes."""


class DiskReserve:
    """A file of `SIZE` bytes next to a database, which an erasure removes when the disk is full.

    While the file is missing and cannot be created again, ordinary writes are refused, so that no worker uses the space
    that erasures need. They are allowed if the database has free pages of `MARGIN` bytes, since it does not grow
    then.
    """

    def __init__(self, database: Path) -> None:
        real_path = Path(os.path.realpath(database))
        self.path, self._wal = (real_path.with_name(real_path.name + suffix) for suffix in ("-reserve", "-wal"))

    def check(self, connection: sqlite3.Connection, size: int) -> None:
        """Checks the disk before an ordinary write of `size` bytes; creates the file if it is missing.

        Raises StoreFull if the disk has no space for the write in addition to the reserve.
        """
        if not self._has_space(size):
            count, page_size = (
                connection.execute(f"PRAGMA {x}").fetchone()[0] for x in ("freelist_count", "page_size")
            )
            empty_log(connection)
            if not self._has_space(size) and count * page_size < max(size, MARGIN):
                raise StoreFull("the disk of the store is full: delete something, or make room on the disk")

    def release(self) -> bool:
        """Removes the file if the disk has less free space than the file takes; returns whether it has."""
        with suppress(OSError):
            if shutil.disk_usage(self.path.parent).free < SIZE:
                self.path.unlink(missing_ok=True)
                return True
        return False

    def _has_space(self, size: int) -> bool:
        """Whether the disk has the reserve, and space for what the write-ahead log has after a write of `size` bytes.

        Without that space the log could not be emptied, and a deletion would need more space than there is.
        """
        try:
            free, log_size = shutil.disk_usage(self.path.parent).free, _size(self._wal) + size
            if _size(self.path) != SIZE and free >= SIZE + MARGIN:
                self.path.touch(0o600)
                self.path.write_bytes(bytes(SIZE))
            return _size(self.path) == SIZE and (log_size <= SIZE // 2 or free >= log_size + size)
        except OSError as error:
            # After any other error ordinary writes go on without the reserve.
            return not is_full(error)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
