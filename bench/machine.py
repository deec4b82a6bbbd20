"""Describes the machine and the versions of a run, and measures other programs' load."""

from __future__ import annotations

import os
import platform
import time
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
