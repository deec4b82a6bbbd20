"""Free memory is returned to the system after compactions, once for several that are made at the same time."""

from __future__ import annotations

import asyncio
import platform
import subprocess
import sys

import pytest

from accordion.model.records import CompactionOutcome
from accordion.server.event_loop import LoopTasks
from accordion.server.free_memory import FreeMemoryObserver
from tests.http.exchanges import exchange

_PROGRAM = """
from accordion.server.free_memory import find_trim

def resident_kilobytes():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))

pieces = [bytes(20_000) for _ in range(2_000)]
remaining = pieces[::8]
del pieces
before = resident_kilobytes()
find_trim()(0)
print(before - resident_kilobytes())
"""


def observe(observer: FreeMemoryObserver, state: str | None) -> None:
    outcome = CompactionOutcome(state) if state is not None else None
    observer.exchange("", exchange(compaction=outcome), "")


async def test_several_compactions_need_one_return() -> None:
    tasks, calls = LoopTasks(), list[int]()
    observer = FreeMemoryObserver(tasks, calls.append, delay=0.01)
    try:
        for expected in (1, 2):
            for _ in range(3):
                observe(observer, "folded")
            await asyncio.sleep(0.1)
            assert calls == [0] * expected
    finally:
        await tasks.close()


@pytest.mark.parametrize("state", [None, "replayed", "observed", "holdout", "failed"])
async def test_other_requests_need_none(state: str | None) -> None:
    tasks, calls = LoopTasks(), list[int]()
    try:
        observe(FreeMemoryObserver(tasks, calls.append, delay=0.0), state)
        await asyncio.sleep(0.05)
        assert calls == []
    finally:
        await tasks.close()


async def test_nothing_is_scheduled_where_glibc_is_absent() -> None:
    tasks = LoopTasks()
    try:
        observe(FreeMemoryObserver(tasks, None, delay=0.0), "folded")
        assert not tasks._running_tasks
    finally:
        await tasks.close()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has malloc_trim")
def test_pages_that_are_free_are_returned() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 20_000
