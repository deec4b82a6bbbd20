"""A small disk of its own, to be filled: a tmpfs, where this user may mount one."""

from __future__ import annotations

import errno
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from accordion.composition.configured_store import spool_places


@contextmanager
def small_disk(folder: Path, size: str = "8m") -> Iterator[Path]:
    """An empty file system of this size at `folder`. Skips the test where mounting is not permitted."""
    folder.mkdir()
    try:
        _mount(folder, size)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"a tmpfs cannot be mounted here: {error}")
    try:
        yield folder
    finally:
        for spool in folder.glob("*.spool"):
            for file in memory_files(spool):
                file.unlink()
        _unmount(folder)


def memory_files(spool: Path) -> list[Path]:
    """The files in memory of the proxies whose spool this is."""
    return [file for place in spool_places(spool)[1:] for file in place.parent.glob(f"{place.name}*")]


def can_mount() -> bool:
    """Whether this user may mount a tmpfs."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            _mount(Path(folder), "1m")
        except (OSError, subprocess.CalledProcessError):
            return False
        _unmount(Path(folder))
    return True


def _mount(folder: Path, size: str) -> None:
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    subprocess.run(command, check=True, capture_output=True)


def _unmount(folder: Path) -> None:
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def read_only(folder: Path) -> None:
    """Mounts the disk again, read-only."""
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """A file that takes all the rest of the disk, as another program's may."""
    path = folder / "others"
    with path.open("ab", buffering=0) as file:
        for size in (65_536, 4_096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
    return path
