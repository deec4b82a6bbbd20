"""Shares between the workers of one machine which of them recorded which prefix node.

Without it, a worker that shares its store must read the store at the start of every conversation and at its first
continuation, since another worker may have recorded the same opening. These reads take 25 to 40 % of the time of a
small request.

A supervisor gives its workers one array in shared memory. A node's id is a hash; a part of it selects a slot of the
array, and the slot stores other bits of the id and the process id of the worker that recorded the node.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from ctypes import Array, c_uint64

from accordion.model.ports import WorkerSync

Slots = Array[c_uint64]

SLOTS = 2**18
"""Slots of the array, of 8 bytes, each for its newest node. At 1,000 requests a second an entry lasts for minutes."""

_PAUSE = 0.02
"""Seconds of `wait_briefly`. A worker's writes are sent to the store every 0.05 s (write_queue.py)."""

_PID = (1 << 22) - 1
"""The bits of a slot for the process id; the other bits identify the node.

On Linux every process id fits (pid_max is at most 2^22); larger ids of other systems are cut off.
"""

_SEVERAL = 0
"""Stands for the process id of a node that several workers recorded; none of them may know all of its records."""


class _Waiting:
    async def wait_briefly(self) -> None:
        """See WorkerSync."""
        await asyncio.sleep(_PAUSE)


class UnknownWorkers(_Waiting):
    """A WorkerSync for workers that cannot be reached, such as those on other machines.

    Any node may have been recorded by one of them. `near` is the board of this machine's workers, where a supervisor
    started several.
    """

    is_connected = False

    def __init__(self, near: SharedBoard | None = None) -> None:
        self._near = near

    def announce(self, place: str) -> None:
        """Tells only the workers of this machine."""
        if self._near is not None:
            self._near.announce(place)

    def is_own(self, place: str) -> bool | None:
        """Returns False, since another worker may always have recorded the node."""
        return False

    def is_pending(self, place: str) -> bool:
        """See WorkerSync."""
        return self._near is not None and self._near.is_pending(place)


class SharedBoard(_Waiting):
    """A WorkerSync for the workers of one supervisor, which have the same `slots` in shared memory.

    A slot is written at once, so no lock is needed; another node may replace its entry at any time. `worker` is this
    process's id. A restarted worker has another id, since the records of its predecessor are not in its memory.
    """

    is_connected = True

    def __init__(self, slots: Slots, worker: int) -> None:
        self._slots = slots
        self._me = worker & _PID

    def announce(self, place: str) -> None:
        """See WorkerSync. A node's id is a hash in hexadecimal digits."""
        name = int(place[:16], 16)
        last, who = self._slots[name % SLOTS], self._me
        if last and (last ^ name) & ~_PID == 0 and last & _PID != who:
            who = _SEVERAL
        self._slots[name % SLOTS] = name & ~_PID | who

    def is_own(self, place: str) -> bool | None:
        """See WorkerSync."""
        name = int(place[:16], 16)
        last = self._slots[name % SLOTS]
        return last & _PID == self._me if last and (last ^ name) & ~_PID == 0 else None

    def is_pending(self, place: str) -> bool:
        """See WorkerSync."""
        return self.is_own(place) is False


def shared_slots() -> Slots:
    """Creates empty slots, which a supervisor passes to the processes that it spawns."""
    slots: Slots = multiprocessing.get_context("spawn").RawArray(c_uint64, SLOTS)
    return slots


def worker_sync_for(url: str, workers: int, slots: Slots | None) -> WorkerSync | None:
    """Returns the WorkerSync for a store's URL; None where no other worker can use the store.

    `slots` are those of a supervisor's workers. Where they exist they are used even if `workers` is 1, since the
    setting may have changed after the workers were started.
    """
    if url == "memory://":
        return None
    near = SharedBoard(slots, os.getpid()) if slots is not None else None
    if not url.startswith("sqlite:"):
        return UnknownWorkers(near)
    return near or (None if workers == 1 else UnknownWorkers())
