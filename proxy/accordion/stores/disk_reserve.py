"""Reserved disk space next to an SQLite file that only erasures may use, so that they work on a full disk."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
from contextlib import suppress
from pathlib import Path

from accordion.model.errors import StoreFull
from accordion.stores.sqlite_file import empty_log

SIZE = 2 * 2**20
"""Bytes of the reserve. A deletion needs it because it writes to the write-ahead log first, in small steps."""
MARGIN = 2**20
"""Bytes that must be free in addition, for the write-ahead log of ordinary writes."""
FULL = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR | (19 << 8)})
"""SQLite's codes for a full disk; the second, SQLITE_IOERR_SHMSIZE, concerns the index of the write-ahead log."""
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})


def is_full(error: BaseException) -> bool:
    """Whether an error of SQLite or of the operating system means that the disk is full."""
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", -1)
        return code in FULL or code & 0xFF == sqlite3.SQLITE_FULL
    return isinstance(error, OSError) and error.errno in _NO_SPACE


def free_bytes(folder: Path) -> int:
    """Returns the free bytes of a folder's disk. Raises OSError."""
    return shutil.disk_usage(folder).free


class DiskReserve:
    """A file of `SIZE` bytes next to a database, which an erasure removes when the disk is full.

    While the file is missing and cannot be created again, ordinary writes are refused, so that no worker uses the space
    that erasures need. They are allowed if the database has free pages of `MARGIN` bytes, since it does not grow
    then.
    """

    def __init__(self, database: Path) -> None:
        real_path = Path(os.path.realpath(database))
        self.path, self._wal = (real_path.with_name(real_path.name + suffix) for suffix in ("-reserve", "-wal"))
        self._is_supported = True

    def check(self, connection: sqlite3.Connection, size: int) -> None:
        """Checks the disk before an ordinary write of `size` bytes; creates the file if it is missing.

        Raises StoreFull if the disk has no space for the write in addition to the reserve.
        """
        has_space = self._log_fits(connection, size) and (self._exists() or self._create())
        if not has_space and _free_page_bytes(connection) < max(size, MARGIN):
            raise StoreFull("the disk of the store is full: delete something, or make room on the disk")

    def release(self) -> bool:
        """Removes the file if the disk has less free space than the file takes; returns whether it has."""
        with suppress(OSError):
            if free_bytes(self.path.parent) < SIZE:
                self.path.unlink(missing_ok=True)
                return True
        return False

    def _log_fits(self, connection: sqlite3.Connection, size: int) -> bool:
        """Whether the disk has space for the content of the write-ahead log after a write of `size` bytes.

        Without that space the log could not be emptied, and a deletion would need more space than there is. If the
        space is short, empties the log and checks again. Raises sqlite3.Error.
        """
        log_size = _size(self._wal)
        if log_size + size <= SIZE // 2 or free_bytes(self._wal.parent) >= log_size + 2 * size:
            return True
        empty_log(connection)
        return free_bytes(self._wal.parent) >= 2 * size

    def _exists(self) -> bool:
        return not self._is_supported or _size(self.path) == SIZE

    def _create(self) -> bool:
        """Creates the file; returns False only if the disk is full.

        After any other error the reserve is not tried again, and ordinary writes go on without it.
        """
        try:
            if free_bytes(self.path.parent) < SIZE + MARGIN:
                return False
            _fill(self.path)
        except OSError as error:
            with suppress(OSError):
                self.path.unlink(missing_ok=True)
            if is_full(error):
                return False
            self._is_supported = False
        return True


def _free_page_bytes(connection: sqlite3.Connection) -> int:
    """Returns the bytes of the database's free pages."""
    count, size = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("freelist_count", "page_size"))
    return int(count * size)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _fill(path: Path) -> None:
    handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(handle, 0, SIZE)
        else:
            os.write(handle, bytes(SIZE))
    finally:
        os.close(handle)
