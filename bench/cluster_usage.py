"""What the masters of a cluster did and hold, by their INFO: commands, bytes, CPU time, memory."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from redis import Redis

FIGURES: Final = ("commands", "bytes in", "bytes out", "CPU ms", "memory")
_OWN: Final = ("info", "config", "cluster", "command", "client", "memory", "ping", "hello", "scan")
"""Commands of the measurement and of connections, which are not counted."""


@dataclass
class Usage:
    """The sums over all masters, or what was added between two moments. Bytes, milliseconds, and commands by name.

    A command that a script runs counts like one that a client sends.
    """

    figures: dict[str, float]
    commands: Counter[str] = field(default_factory=Counter)
    shares: list[float] = field(default_factory=list)
    """The CPU milliseconds of each master."""
    used_memory: int = 0
    """The bytes that the masters use, buffers of clients left out."""

    def since(self, earlier: Usage) -> Usage:
        """What was added since an earlier moment."""
        return Usage(
            {name: value - earlier.figures[name] for name, value in self.figures.items()},
            self.commands - earlier.commands,
            [own - before for own, before in zip(self.shares, earlier.shares, strict=True)],
            self.used_memory - earlier.used_memory,
        )

    @property
    def busiest(self) -> float:
        """The CPU time of the busiest master as a part of an even share."""
        return max(self.shares) * len(self.shares) / max(1e-9, sum(self.shares))


def memory_by_kind(port: int) -> Counter[str]:
    """The bytes of a master's records by kind: the first word of a key's collection, or of its name without one."""
    sizes = Counter[str]()
    with Redis(port=port) as client:
        keys = list(client.scan_iter(count=1_000))
        for start in range(0, len(keys), 1_000):
            pipeline = client.pipeline(transaction=False)
            for key in keys[start : start + 1_000]:
                pipeline.memory_usage(key, samples=0)
            for key, size in zip(keys[start:], pipeline.execute(), strict=False):
                tag = key.partition(b"{")[2].lstrip(b"=")
                kind = re.match(rb"[a-z-]*", tag)
                sizes[kind[0].decode() if kind else ""] += size or 0
    return sizes


def read_usage(infos: Sequence[bytes], record_bytes: int) -> Usage:
    """The usage of a cluster, from its masters' replies to INFO EVERYTHING, and the memory of all records."""
    figures, commands, shares = dict.fromkeys(FIGURES, 0.0), Counter[str](), list[float]()
    figures["memory"], used = record_bytes, 0
    for info in infos:
        values = dict(line.partition(":")[::2] for line in info.decode(errors="replace").splitlines())
        for name, value in values.items():
            command = name.removeprefix("cmdstat_")
            if command != name and command.partition("|")[0] not in _OWN:
                commands[command] += int(value.partition("calls=")[2].partition(",")[0])
        shares.append(1000 * (float(values["used_cpu_sys"]) + float(values["used_cpu_user"])))
        figures["bytes in"] += int(values["total_net_input_bytes"])
        figures["bytes out"] += int(values["total_net_output_bytes"])
        used += int(values["used_memory"]) - int(values["mem_clients_normal"])
    figures["commands"], figures["CPU ms"] = float(sum(commands.values())), sum(shares)
    return Usage(figures, commands, shares, used)
