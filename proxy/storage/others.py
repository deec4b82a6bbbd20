"""What the workers of one machine tell each other at once: who put which place of a conversation on record last.

A worker that shares its store would else have to ask it wherever a conversation begins, and where it first goes on, for
another may have seen the same opening: a fourth of what a small request costs.
"""

from __future__ import annotations

import logging
import mmap
import os
from pathlib import Path

from proxy.core.ports import Others

_log = logging.getLogger("accordion")

SLOTS = 2**18
"""How many places are noted: the newest on each slot, of 8 bytes. At 1,000 requests a second they last for minutes."""

_PID = (1 << 22) - 1
"""A process id fits (Linux: pid_max is at most 2^22); the rest of a slot tells one place from another."""


class Anybody:
    """Workers that cannot be heard, such as those of other machines: each place may be theirs (core's Others)."""

    def wrote(self, place: str) -> None:
        """Nobody would hear it."""

    def mine(self, place: str) -> bool | None:
        """Never for sure."""
        return False


class Board:
    """The workers of one supervisor (core's Others), which all map the file at `path`.

    A slot is written in one go, so nothing needs a lock; another place may take it at any time. `worker` is this
    process's id: of a worker that was started again it is another, and what the former one wrote is not in its memory.
    """

    def __init__(self, path: Path, worker: int) -> None:
        with path.open("r+b") as file:
            self._slots = memoryview(mmap.mmap(file.fileno(), SLOTS * 8)).cast("Q")
        self._me = worker & _PID

    @staticmethod
    def make(path: Path) -> None:
        """Makes the file, with nothing on it."""
        with path.open("wb") as file:
            file.truncate(SLOTS * 8)

    def wrote(self, place: str) -> None:
        """See Others. A place's id is a hash, in hexadecimal digits."""
        name = int(place[:16], 16)
        self._slots[name % SLOTS] = name & ~_PID | self._me

    def mine(self, place: str) -> bool | None:
        """See Others."""
        name = int(place[:16], 16)
        last = self._slots[name % SLOTS]
        return last & _PID == self._me if last and (last ^ name) & ~_PID == 0 else None


def others_of(url: str, workers: int, board: str) -> Others | None:
    """The other workers that use the store at `url`, of which `board` is the file; None where there are none."""
    if not url.startswith(("sqlite:", "memory:")):
        return Anybody()
    if workers == 1:
        return None
    try:
        return Board(Path(board), os.getpid())
    except (OSError, ValueError):
        # Folders of temporary files are tidied up while programs run; a worker that starts later can do without.
        _log.info("the other workers cannot be heard: the store is asked where a conversation begins")
        return Anybody()
