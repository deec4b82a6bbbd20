from __future__ import annotations

import asyncio
import ctypes
import gc
import platform
import subprocess
import sys
from collections.abc import Iterator

import pytest

from accordion.model.records import CompactionOutcome
from accordion.server.event_loop import LoopTasks
from accordion.server.interpreter import FreeMemoryObserver, set_up_interpreter
from tests.http.exchanges import exchange

_PROGRAM = """
from accordion.server.interpreter import find_trim

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


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    thresholds, interval = gc.get_threshold(), sys.getswitchinterval()
    yield
    gc.set_threshold(*thresholds)
    sys.setswitchinterval(interval)


def test_a_serving_process_collects_seldom_and_changes_threads_often() -> None:
    set_up_interpreter()
    assert gc.get_threshold() == (50_000, 20, 50)
    assert sys.getswitchinterval() == pytest.approx(0.0005)


HEAPS = """
import ctypes, os, sys, tempfile, threading
from accordion.server.interpreter import set_up_interpreter
if sys.argv[1:]:
    set_up_interpreter()
everybody = threading.Barrier(8)
def allocate():
    blocks = [bytes(2_000) for _ in range(100)]
    everybody.wait()
threads = [threading.Thread(target=allocate) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "heaps.xml").encode()
    file = ctypes.c_void_p(libc.fopen(path, b"w"))
    libc.malloc_info(0, file)
    libc.fclose(file)
    print(open(path).read().count("<heap nr="))
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="this C library has no heaps for threads")
def test_all_threads_of_a_serving_process_share_two_heaps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MALLOC_ARENA_MAX", raising=False)

    def heaps(*arguments: str) -> int:
        ran = subprocess.run([sys.executable, "-c", HEAPS, *arguments], capture_output=True, check=True, timeout=60)
        return int(ran.stdout)

    assert heaps() > 2
    assert heaps("serving") == 2


def observe(observer: FreeMemoryObserver, state: str | None) -> None:
    outcome = CompactionOutcome(state) if state is not None else None
    observer.exchange("", exchange(compaction=outcome), "")


async def test_several_compactions_need_one_return() -> None:
    tasks, calls = LoopTasks(), list[int]()
    observer = FreeMemoryObserver(tasks, calls.append, delay=0.01)
    try:
        for expected in (1, 2):
            for _ in range(3):
                observe(observer, "compacted")
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
        observe(FreeMemoryObserver(tasks, None, delay=0.0), "compacted")
        assert not tasks._running_tasks
    finally:
        await tasks.close()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has malloc_trim")
def test_pages_that_are_free_are_returned() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 20_000
