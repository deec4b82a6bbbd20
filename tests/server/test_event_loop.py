from __future__ import annotations

import asyncio
import threading

import pytest

from accordion.server.event_loop import LoopTasks


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
