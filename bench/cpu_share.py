"""A share of a core for each process of a server: what a container's CPU limit does, on a machine with few cores."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.servers import Unavailable

PERIOD_US = 10_000
V1, V2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")


@contextmanager
def limit_cpu(pids: Iterable[int], share: float) -> Iterator[None]:
    """Each of these processes has at most this share of one core. They must have ended before the block does. Raises
    Unavailable where control groups cannot be made (Linux, as root; of version 2, where the root group hands the
    controller `cpu` on)."""
    made: list[Path] = []
    try:
        try:
            for pid in pids:
                made.append(_made(f"accordion-bench-{pid}"))
                _limit(made[-1], int(share * PERIOD_US))
                (made[-1] / "cgroup.procs").write_text(str(pid))
        except OSError as error:
            raise Unavailable(f"no control groups for CPU time: {error}") from error
        yield
    finally:
        for group in made:
            _remove(group)


def _made(name: str) -> Path:
    group = (V1 if (V1 / "cpu.cfs_quota_us").exists() else V2) / name
    group.mkdir()
    return group


def _limit(group: Path, quota: int) -> None:
    if group.parent == V1:
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(quota))
    else:
        (group / "cpu.max").write_text(f"{quota} {PERIOD_US}")


def _remove(group: Path) -> None:
    # A process that has ended may be counted for a moment still.
    for _ in range(20):
        try:
            group.rmdir()
        except OSError:
            time.sleep(0.05)
        else:
            return
