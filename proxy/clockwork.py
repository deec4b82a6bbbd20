"""The ports for time for work in the background, and for waiting, on asyncio."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

_log = logging.getLogger("accordion")

_NICE = 5
"""How much a thread for slow work steps back behind the event loop; it still gets a quarter of a busy core."""


class LoopClock:
    """Clock by the system and the running event loop."""

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()


class LoopTasks:
    """Tasks on the running event loop, and a pool of threads that let the event loop go first."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()
        self._pool = ThreadPoolExecutor(thread_name_prefix="slow", initializer=_step_back)

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        """Run in the background; failures are logged, never lost."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._done)

    def offload(self, call: Callable[..., T], *args: Any) -> Awaitable[T]:
        """Run a slow pure function in a thread."""
        return asyncio.get_running_loop().run_in_executor(self._pool, call, *args)

    async def close(self) -> None:
        """Cancel what still runs, and wait for it to end."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("%s failed: %s", task.get_name(), error, exc_info=error)


def _step_back() -> None:
    """Lets other threads go first. Only Linux knows a niceness of threads; elsewhere it would be the process's."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.getpriority(os.PRIO_PROCESS, 0) + _NICE)


class LoopWaiting:
    """Waiting (compaction/waiting.py) on the running event loop."""

    def signal(self) -> asyncio.Event:
        """A new signal, which has not happened yet."""
        return asyncio.Event()

    async def within(self, seconds: float, work: Awaitable[T]) -> T:
        """What `work` gives. Raises TimeoutError after so many seconds; then the work is cancelled."""
        return await asyncio.wait_for(work, seconds)
