"""What the workers of one machine tell each other at once: who put which place of a conversation on record.

A worker that shares its store would else have to ask it wherever a conversation begins, and where it first goes on, for
another may have seen the same opening. That takes a fourth to two fifths of what a small request costs.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from ctypes import Array, c_uint64

from accordion.model.ports import WorkerSync

Slots = Array[c_uint64]

SLOTS = 2**18
"""How many places are noted: the newest on each slot, of 8 bytes. At 1,000 requests a second they last for minutes."""

_PAUSE = 0.02
"""Seconds. What a worker takes to write is gathered for 0.05 (write_queue.py)."""

_PID = (1 << 22) - 1
"""The bits of a slot that hold a process id. On Linux every id fits (pid_max is at most 2^22); where ids are larger
they are cut off. The other bits tell one place from another."""

_SEVERAL = 0
"""In place of a process id: more than one worker wrote this place, and none need know what the others did."""


class _Waiting:
    async def wait_briefly(self) -> None:
        """See Others."""
        await asyncio.sleep(_PAUSE)


class UnknownWorkers(_Waiting):
    """Workers that cannot be heard, such as those of other machines: each place may be theirs (core's Others). `near`
    are those of this one, where a supervisor started several."""

    is_connected = False

    def __init__(self, near: SharedBoard | None = None) -> None:
        self._near = near

    def announce(self, place: str) -> None:
        """Others would not hear it than those that are near."""
        if self._near is not None:
            self._near.announce(place)

    def is_own(self, place: str) -> bool | None:
        """Never for sure."""
        return False

    def is_pending(self, place: str) -> bool:
        """See Others."""
        return self._near is not None and self._near.is_pending(place)


class SharedBoard(_Waiting):
    """The workers of one supervisor (core's Others), which all have the same `slots` in memory.

    A slot is written in one go, so nothing needs a lock; another place may take it at any time. `worker` is this
    process's id. A worker that was started again has another one: what its predecessor wrote is not in its memory.
    """

    is_connected = True

    def __init__(self, slots: Slots, worker: int) -> None:
        self._slots = slots
        self._me = worker & _PID

    def announce(self, place: str) -> None:
        """See Others. A place's id is a hash, in hexadecimal digits."""
        name = int(place[:16], 16)
        last, who = self._slots[name % SLOTS], self._me
        if last and (last ^ name) & ~_PID == 0 and last & _PID != who:
            who = _SEVERAL
        self._slots[name % SLOTS] = name & ~_PID | who

    def is_own(self, place: str) -> bool | None:
        """See Others."""
        name = int(place[:16], 16)
        last = self._slots[name % SLOTS]
        return last & _PID == self._me if last and (last ^ name) & ~_PID == 0 else None

    def is_pending(self, place: str) -> bool:
        """See Others."""
        return self.is_own(place) is False


def shared_slots() -> Slots:
    """Slots with nothing in them, for a supervisor to hand to the processes that it spawns."""
    slots: Slots = multiprocessing.get_context("spawn").RawArray(c_uint64, SLOTS)
    return slots


def worker_sync_for(url: str, workers: int, slots: Slots | None) -> WorkerSync | None:
    """The other workers that use the store at `url`; None where there are none. `slots` are those of a supervisor's
    workers: where there are any, the settings may say by now that there is one worker only."""
    if url == "memory://":
        return None
    near = SharedBoard(slots, os.getpid()) if slots is not None else None
    if not url.startswith("sqlite:"):
        return UnknownWorkers(near)
    return near or (None if workers == 1 else UnknownWorkers())
