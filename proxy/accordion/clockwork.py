"""The ports for time for work in the background, and for waiting, on asyncio."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")

_log = logging.getLogger("accordion")


class LoopClock:
    """Clock by the system and the running event loop."""

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()


class LoopTasks:
    """Tasks on the running event loop, and a pool of threads.

    The threads are not nicer than the event loop: one that steps back while it holds the interpreter holds up the loop
    as well, on a machine that has other things to do by seconds.
    """

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()
        self._pool = ThreadPoolExecutor(thread_name_prefix="slow")
        self._single = ThreadPoolExecutor(1, thread_name_prefix="large")

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        """Run in the background; failures are logged, never lost."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._done)

    def repeat(self, work: Callable[[], Awaitable[object]], seconds: float, name: str) -> None:
        """Run in the background now and every so many seconds; a failure is logged and ends nothing."""
        self.spawn(_repeated(work, seconds, name), name)

    def offload(self, call: Callable[..., T], *args: Any) -> Awaitable[T]:
        """Run a slow pure function in a thread."""
        return asyncio.get_running_loop().run_in_executor(self._pool, call, *args)

    def offload_alone(self, call: Callable[..., T], *args: Any) -> Awaitable[T]:
        """Run a slow pure function that needs much memory in a thread, one after the other."""
        return asyncio.get_running_loop().run_in_executor(self._single, call, *args)

    async def cancel(self) -> None:
        """Cancel what still runs, and wait for it to end."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def close(self) -> None:
        """The same, and take no more work."""
        await self.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._single.shutdown(wait=False, cancel_futures=True)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("%s failed: %s", task.get_name(), error, exc_info=error)


async def _repeated(work: Callable[[], Awaitable[object]], seconds: float, name: str) -> None:
    while True:
        try:
            await work()
        except Exception as error:
            _log.exception("%s failed, and is tried again in %g seconds: %s", name, seconds, error)
        await asyncio.sleep(seconds)


class LoopWaiting:
    """Waiting (compaction/waiting.py) on the running event loop."""

    def signal(self) -> asyncio.Event:
        """A new signal, which has not happened yet."""
        return asyncio.Event()

    async def within(self, seconds: float, work: Awaitable[T]) -> T:
        """What `work` gives. Raises TimeoutError after so many seconds; then the work is cancelled."""
        return await asyncio.wait_for(work, seconds)
