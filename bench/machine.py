"""Where and with what a run was made, and how busy others kept the machine meanwhile."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from bench.servers import LITELLM

PACKAGES = ("uvicorn", "uvloop", "httptools", "starlette", "httpx", "aiohttp")


def described() -> str:
    """One line: date, cores, Python, versions."""
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    model = models[0].partition(":")[2].strip() if models else platform.machine()
    packages = [f"{name} {_version(name)}" for name in PACKAGES]
    return (
        f"Measured {time.strftime('%Y-%m-%d')} on {os.cpu_count()} cores ({model}, virtual, shared), "
        f"Linux {platform.release().split('-')[0]}, Python {platform.python_version()}, {', '.join(packages)}, "
        f"LiteLLM {_litellm()}."
    )


def busy_share(seconds: float = 0.5) -> float:
    """How much of all cores is in use or stolen just now; the bench itself only sleeps."""
    before = _ticks()
    time.sleep(seconds)
    busy, whole = (now - then for now, then in zip(_ticks(), before, strict=True))
    return busy / whole if whole else 0.0


_SPIN = """
import os
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
while True:
    pass
"""


@contextmanager
def awake() -> Iterator[None]:
    """No core halts meanwhile: on each one a process turns that gives way to any other at once (SCHED_IDLE). A virtual
    core that halts and is woken between the hops of a request takes time for that, which is counted as the server's."""
    spinning = [
        subprocess.Popen(["taskset", "-c", str(core), sys.executable, "-c", _SPIN])
        for core in sorted(os.sched_getaffinity(0))
    ]
    try:
        time.sleep(0.2)
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def _ticks() -> tuple[int, int]:
    values = [int(value) for value in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return sum(values) - values[3] - values[4], sum(values)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "?"


def _litellm() -> str:
    found = sorted(LITELLM.parent.parent.glob("lib/*/site-packages/litellm-*.dist-info"))
    return found[0].name.removeprefix("litellm-").removesuffix(".dist-info") if found else "not installed"
