"""A wall clock that can be put forward or back while a proxy runs.

Python imports a module `sitecustomize` from its path before anything else. Ours puts a function of its own in the place
of `time.time` and `time.time_ns`, which adds the seconds that stand in a file that all processes of the proxy map into
their memory. The kernel's clock, `datetime.now`, SQLite and Valkey are not touched; the proxy takes the time from
`time.time` alone.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path

_SITE = """
import mmap, os, struct, time

with open(os.environ["CAMPAIGN_CLOCK"], "rb") as file:
    shift = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)
real, real_ns = time.time, time.time_ns
time.time = lambda: real() + struct.unpack("d", shift)[0]
time.time_ns = lambda: real_ns() + int(1e9 * struct.unpack("d", shift)[0])
"""


@dataclass
class Clock:
    """The clock of the processes that are started with `environ`."""

    folder: Path

    def __post_init__(self) -> None:
        self.folder.mkdir()
        (self.folder / "sitecustomize.py").write_text(_SITE)
        self._file.write_bytes(struct.pack("d", 0.0))

    @property
    def _file(self) -> Path:
        return self.folder / "shift"

    @property
    def environ(self) -> dict[str, str]:
        path = os.pathsep.join(filter(None, [str(self.folder), os.environ.get("PYTHONPATH", "")]))
        return {"PYTHONPATH": path, "CAMPAIGN_CLOCK": str(self._file)}

    def jump(self, seconds: float) -> None:
        """Sets the clock to so many seconds from the true time."""
        with self._file.open("r+b") as file:
            file.write(struct.pack("d", seconds))
