"""The first requests of long conversations: the CPU time of each, and what it waits until it is answered."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from bench import servers
from bench.load import Job
from bench.report import Cell, Table
from bench.run_settings import RunSettings, medians
from bench.servers import ACCORDION, DIRECT

SIZES = (200_000, 800_000)
COLUMNS = ("proxy", "requests", "failed", "p50 ms", "p99 ms", "p50 added", "CPU ms until answered", "CPU ms/request")
BARE = "aiohttp passthrough"
EVERY = 0.2
MORE = 2.0


def run(setting: RunSettings) -> list[Table]:
    measured: dict[tuple[int, str], list[dict[str, Any]]] = defaultdict(list)
    with servers.upstream(setting.pins) as upstream, setting.contenders(upstream) as running:
        servers.get(upstream, "/_mode", {"stream": False})
        for number in range(setting.fewer(setting.rounds, 1)):
            for size in SIZES:
                # No two jobs share texts, which would be counted already.
                job = Job("first", 0, count=setting.fewer(20, 4), size=size, every=EVERY, seed=size + 100 * number)
                for server in running:
                    measured[size, server.name].append(setting.measure(server, job))
    return [_table(setting, size, measured) for size in SIZES]


def _table(setting: RunSettings, size: int, measured: dict[tuple[int, str], list[dict[str, Any]]]) -> Table:
    table = Table(f"First request of a conversation of {size // 1000} KB", COLUMNS, notes=setting.missing())
    rows = {name: medians(rounds) for (at, name), rounds in measured.items() if at == size}
    added = {name: row["p50_ms"] - rows[DIRECT]["p50_ms"] for name, row in rows.items()}
    answered = {name: row["answered_cpu_ms"] for name, row in rows.items()}
    for name, row in rows.items():
        cells: list[Cell] = [name, int(row["requests"]), int(row["failed"]), row["p50_ms"], row["p99_ms"]]
        more: list[Cell] = [None] * 3 if name == DIRECT else [added[name], row["answered_cpu_ms"], row["cpu_ms"]]
        table.rows.append(cells + more)
    if ACCORDION in rows and BARE in rows:
        for goal, figure in (("p50 added", added), ("CPU until answered", answered)):
            table.goal(goal, figure[ACCORDION], 2 * figure[BARE] + MORE, "ms")
    return table
