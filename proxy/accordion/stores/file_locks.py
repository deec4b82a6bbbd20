"""Locks on files, which a process keeps until it closes the file or ends."""

from __future__ import annotations

import sys
import time

if sys.platform != "win32":
    import fcntl

_PAUSE = 0.002


def lock_file(handle: int, seconds: float = 0.0, *, is_shared: bool = False) -> None:
    """Locks an open file. Raises BlockingIOError if another process has it locked for longer than `seconds`.

    Windows has no such locks: there nothing is locked.
    """
    if sys.platform != "win32":
        end = time.monotonic() + seconds
        while True:
            try:
                return fcntl.flock(handle, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= end:
                    raise
            time.sleep(_PAUSE)
