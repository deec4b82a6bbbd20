"""Settings of the whole process, which serves requests and does nothing else, and the return of its free memory.

`python -m bench overrides` and `soak` measure what each setting is worth; one that is worth nothing goes.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import sys
from collections.abc import Callable
from contextlib import suppress

from accordion.model.ports import Tasks
from accordion.model.records import Exchange

# Seconds after which a running thread must give up the interpreter. At Python's default of 5 ms, the threads of the
# store and of compactions would hold it while a request waits: 5.1 ms at p99 in place of 1.2 ms.
_SWITCH_INTERVAL = 0.0005
# New objects, and collections of the younger generation, before the next collection. Reference counting frees nearly
# all objects of a request, so at Python's default of 700 a collection finds little: 15 µs a small request for nothing.
_THRESHOLDS = (50_000, 20, 50)
# Heaps of the C library. At glibc's default of 8 a core, each thread of the store and of compactions has a heap of its
# own, and keeps free memory there that no other thread can use: 16 MB after 21 minutes in place of 4 to 5 MB.
_MAX_HEAPS = 2
_M_ARENA_MAX = -8
"""The number of this option in glibc's malloc.h."""
_TRIM_DELAY = 0.25
"""Seconds after a compaction: several compactions need it once, and most of what is written behind them is written."""


def set_up_interpreter() -> None:
    """Sets how often garbage is collected and threads change, and how many heaps the threads share."""
    gc.set_threshold(*_THRESHOLDS)
    sys.setswitchinterval(_SWITCH_INTERVAL)
    if "MALLOC_ARENA_MAX" not in os.environ:
        # Other C libraries have no such function.
        with suppress(AttributeError):
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _MAX_HEAPS)


# -- free memory ------------------------------------------------------------------------------------------------------


def find_trim() -> Callable[[int], object] | None:
    """Returns glibc's `malloc_trim`; None with another C library."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None)


class FreeMemoryObserver:
    """An exchange observer that returns free memory to the system after compactions.

    A compaction needs much memory for a moment. What caches keep of it lies between what is free again, so glibc
    returns nothing by itself: 20 MB after 200 conversations of 100,000 tokens. `trim` returns each page that is free,
    in a thread and in 1.2 ms of CPU.
    """

    def __init__(self, tasks: Tasks, trim: Callable[[int], object] | None, delay: float = _TRIM_DELAY) -> None:
        self._tasks, self._trim, self._delay = tasks, trim, delay
        self._is_scheduled = False

    def exchange(self, tenant: str, exchange: Exchange, traceparent: str) -> None:
        """Schedules a trim if the exchange made a compaction."""
        outcome = exchange.compaction
        if outcome is None or outcome.state != "compacted" or self._is_scheduled or self._trim is None:
            return
        self._is_scheduled = True
        self._tasks.spawn(self._trim_later(self._trim), "return free memory")

    async def _trim_later(self, trim: Callable[[int], object]) -> None:
        try:
            await asyncio.sleep(self._delay)
        finally:
            self._is_scheduled = False
        await self._tasks.offload(trim, 0)
