"""The ports for time, background tasks and waiting, implemented with asyncio."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from accordion.stores.time_limit import within

T = TypeVar("T")

_log = logging.getLogger("accordion")


class LoopClock:
    """The Clock port: the system's clocks."""

    def now(self) -> float:
        """Returns the seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Returns seconds that never decrease."""
        return time.monotonic()


class LoopTasks:
    """The Tasks port: tasks on the running event loop, and a pool of threads.

    The threads have the event loop's priority. A thread of lower priority may lose the processor while it holds the
    interpreter, and then stops the loop too, for seconds on a busy machine.
    """

    def __init__(self) -> None:
        self._running_tasks: set[asyncio.Task[Any]] = set()
        self._pool = ThreadPoolExecutor(thread_name_prefix="slow")
        self._single = ThreadPoolExecutor(1, thread_name_prefix="large")

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        """Runs a coroutine in the background and logs its failure."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._running_tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def repeat(self, work: Callable[[], Awaitable[object]], seconds: float, name: str) -> None:
        """Runs a function in the background now and every `seconds`; a failure is logged and does not end this."""
        self.spawn(_repeat(work, seconds, name), name)

    def offload(self, call: Callable[..., T], *args: Any) -> Awaitable[T]:
        """Runs a slow pure function in a thread."""
        return asyncio.get_running_loop().run_in_executor(self._pool, call, *args)

    def offload_alone(self, call: Callable[..., T], *args: Any) -> Awaitable[T]:
        """Runs a slow pure function that needs much memory in a thread, one at a time."""
        return asyncio.get_running_loop().run_in_executor(self._single, call, *args)

    async def cancel(self) -> None:
        """Cancels all running tasks and waits for their end."""
        for task in self._running_tasks:
            task.cancel()
        await asyncio.gather(*self._running_tasks, return_exceptions=True)

    async def close(self) -> None:
        """Cancels all running tasks and closes the pools of threads."""
        await self.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._single.shutdown(wait=False, cancel_futures=True)

    def _on_task_done(self, task: asyncio.Task[Any]) -> None:
        self._running_tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("%s failed: %s", task.get_name(), error, exc_info=error)


async def _repeat(work: Callable[[], Awaitable[object]], seconds: float, name: str) -> None:
    while True:
        try:
            await work()
        except Exception as error:
            _log.exception("%s failed, and is tried again in %g seconds: %s", name, seconds, error)
        await asyncio.sleep(seconds)


class LoopWaiter:
    """The Waiter port (model/ports.py) on the running event loop."""

    def create_signal(self) -> asyncio.Event:
        """Returns a new signal that is not set."""
        return asyncio.Event()

    async def wait_for(self, seconds: float, work: Awaitable[T]) -> T:
        """Returns the result of `work`. After `seconds`, cancels it and raises TimeoutError."""
        return await within(seconds, work)
