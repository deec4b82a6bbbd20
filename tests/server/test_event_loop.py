from __future__ import annotations

import asyncio
import threading
import time

import pytest
import uvloop

from accordion.server.event_loop import LoopTasks, LoopWaiter


async def test_slow_work_runs_in_another_thread_and_gives_what_it_returns():
    tasks = LoopTasks()
    try:
        assert await tasks.offload(lambda one: (one, threading.get_ident()), 1) != (1, threading.get_ident())
    finally:
        await tasks.close()


async def test_work_that_needs_much_memory_runs_one_at_a_time():
    tasks, running, most = LoopTasks(), 0, 0

    def work() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        threading.Event().wait(0.01)
        running -= 1

    try:
        await asyncio.gather(*[tasks.offload_alone(work) for _ in range(6)])
        assert most == 1
    finally:
        await tasks.close()


async def test_an_error_in_a_thread_is_raised_to_the_caller():
    tasks = LoopTasks()
    try:
        with pytest.raises(ZeroDivisionError):
            await tasks.offload(lambda: 1 / 0)
    finally:
        await tasks.close()


async def test_a_repeated_task_continues_after_a_failure(caplog: pytest.LogCaptureFixture):
    tasks, runs, ended = LoopTasks(), 0, asyncio.Event()

    async def work() -> None:
        nonlocal runs
        runs += 1
        if runs < 3:
            raise ValueError(f"run {runs}")
        ended.set()

    tasks.repeat(work, 0, "bound the sessions")
    await ended.wait()
    await tasks.close()
    assert "bound the sessions failed, and is tried again in 0 seconds: run 1" in caplog.text
    assert "run 2" in caplog.text


def test_what_came_in_time_counts_though_uvloop_was_busy():
    async def work() -> bytes:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bytes] = loop.create_future()
        thread = threading.Thread(target=loop.call_soon_threadsafe, args=(answer.set_result, b"v"))
        thread.start()
        thread.join()
        time.sleep(0.03)  # noqa: ASYNC251  # The loop does other work for longer than the time-out.
        return await answer

    assert uvloop.run(LoopWaiter().wait_for(0.01, work())) == b"v"


async def test_work_that_takes_too_long_is_cancelled():
    with pytest.raises(TimeoutError):
        await LoopWaiter().wait_for(0.01, asyncio.Event().wait())
