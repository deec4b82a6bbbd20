"""The file beside an SQLite store through which its workers share slots (worker_sync.py), whoever started them.

Theory of operation. Each worker maps the file into its memory, so a slot that one of them writes is at once in the
memory of all. Nothing has to be registered: two servers see each other's slots, whichever started first. As long as a
worker runs it has a shared lock on the file. A worker that gets an exclusive lock is alone, so it clears the slots of
earlier runs, whose nodes are all in the store.
"""

from __future__ import annotations

import errno
import mmap
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

from accordion.stores.sqlite_path import file_identity

if sys.platform != "win32":
    import fcntl

SLOTS = 2**18
"""Slots, of 8 bytes, each for its newest node. At 1,000 requests a second an entry lasts for minutes."""

_SIZE = 8 * SLOTS
_MAX_CLEARING = 0.5
"""Seconds to wait for a worker that clears the slots, which takes it some milliseconds."""


class SlotsFile:
    """The file with the slots of all workers on the SQLite file `store`.

    Raises OSError where the file cannot be created, mapped, or is not one of slots.
    """

    def __init__(self, store: Path) -> None:
        real_path = Path(os.path.realpath(store))
        self.path = real_path.with_name(f"{real_path.name}-workers")
        self._open()

    def _open(self) -> None:
        handle = os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            if os.fstat(handle).st_size not in (0, _SIZE):
                raise OSError(f"{self.path} has another size than a file of Accordion's")
            if _lock_exclusive(handle):
                _clear(handle)
            _lock_shared(handle)
            self._map = mmap.mmap(handle, _SIZE)
        except BaseException:
            os.close(handle)
            raise
        status = os.fstat(handle)
        self._handle, self._identity = handle, (status.st_dev, status.st_ino)
        self.slots = memoryview(self._map).cast("Q")
        """The slots."""

    def renew(self) -> bool:
        """Opens the file at the path if it is not the open one; returns whether it did. Raises OSError."""
        if file_identity(self.path) == self._identity:
            return False
        handle = self._handle
        self._open()
        os.close(handle)
        return True

    def close(self) -> None:
        """Ends the use of the slots."""
        self.slots.release()
        self._map.close()
        os.close(self._handle)


def _lock_exclusive(handle: int) -> bool:
    """Takes an exclusive lock if no other worker has the file open; returns whether it did."""
    if sys.platform == "win32":
        # Whether another worker has the file open is not known there; an empty file is new.
        return os.fstat(handle).st_size == 0
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _lock_shared(handle)
        return False
    return True


def _lock_shared(handle: int) -> None:
    """Takes a shared lock, or replaces an exclusive one by it."""
    if sys.platform == "win32":
        return
    end = time.monotonic() + _MAX_CLEARING
    while True:
        with suppress(BlockingIOError):
            return fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if time.monotonic() >= end:
            raise OSError("another process has a lock on the file")
        time.sleep(0.005)


def _clear(handle: int) -> None:
    """Writes zeros over the whole file, so that it has its space on the disk, without which a later write would fail.

    Raises OSError; then the file is empty.
    """
    try:
        if os.write(handle, bytes(_SIZE)) < _SIZE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
        os.ftruncate(handle, 0)
        raise
