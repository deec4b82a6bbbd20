import ctypes
import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest

from accordion.server.interpreter import set_up_interpreter


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
