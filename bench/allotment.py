"""A share of a core for each process of a server: what a container's CPU limit does, on a machine with few cores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bench.servers import Unavailable

PERIOD_US = 10_000
V1, V2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")


@contextmanager
def allotted(pids: Iterable[int], share: float) -> Iterator[None]:
    """Each of these processes has at most this share of one core until the block ends. Raises Unavailable where
    control groups cannot be made (Linux, as root)."""
    made: list[Path] = []
    try:
        try:
            for pid in pids:
                made.append(_group(f"accordion-bench-{pid}", int(share * PERIOD_US)))
                (made[-1] / "cgroup.procs").write_text(str(pid))
        except OSError as error:
            raise Unavailable(f"no control groups for CPU time: {error}") from error
        yield
    finally:
        for group in made:
            _remove(group)


def _group(name: str, quota: int) -> Path:
    if (V1 / "cpu.cfs_quota_us").exists():
        group = V1 / name
        group.mkdir()
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(quota))
        return group
    group = V2 / name
    group.mkdir()
    (group / "cpu.max").write_text(f"{quota} {PERIOD_US}")
    return group


def _remove(group: Path) -> None:
    # Who is still in it goes back first: a group with processes stays.
    with suppress(OSError):
        for pid in (group / "cgroup.procs").read_text().split():
            (group.parent / "cgroup.procs").write_text(pid)
        group.rmdir()
