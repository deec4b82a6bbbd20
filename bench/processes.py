"""What the kernel knows of a process: CPU time to the nanosecond, memory, children."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
SCHEDULED = 2  # CPUCLOCK_SCHED: utime + stime, all threads, unrounded


def tree(pid: int) -> list[int]:
    """The process and everything below it, itself first."""
    found, waiting = [], [pid]
    while waiting:
        current = waiting.pop(0)
        found.append(current)
        for task in Path(f"/proc/{current}/task").glob("*/children"):
            try:
                waiting += [int(child) for child in task.read_text().split()]
            except OSError:
                continue
    return found


def cpu_seconds(pids: Iterable[int]) -> float:
    """User and system time that the processes have used so far."""
    return sum(_cpu(pid) for pid in pids)


def _cpu(pid: int) -> float:
    try:
        return time.clock_gettime((~pid << 3) | SCHEDULED)
    except OSError:
        return _cpu_in_ticks(pid)


def _cpu_in_ticks(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS


def rss_mb(pid: int) -> float:
    """Resident memory in MB."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:")), 0.0)


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def workers(pid: int) -> list[int]:
    """The processes of a tree that serve requests: the supervisor and its helpers left out."""
    everyone = [each for each in tree(pid) if "resource_tracker" not in command(each)]
    return everyone[1:] or everyone
