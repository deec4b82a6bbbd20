"""A small chat request with unique text: CPU time a request, latency added to the direct way."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from bench import servers
from bench.load import Job
from bench.report import Table
from bench.run_settings import RunSettings, medians
from bench.servers import ACCORDION, DIRECT

CONCURRENCY = (1, 16, 64)
COLUMNS = (
    "proxy",
    "requests",
    "failed",
    "req/s",
    "CPU ms/request",
    "lowest round",
    "p50 ms",
    "p99 ms",
    "p50 added",
    "p99 added",
)
HTTPX = "Starlette + httpx passthrough"


def run(setting: RunSettings) -> list[Table]:
    measured: dict[tuple[int, str], list[dict[str, Any]]] = defaultdict(list)
    with servers.upstream(setting.pins) as upstream, setting.contenders(upstream) as running:
        servers.get(upstream, "/_mode", {"stream": False})
        for number in range(setting.fewer(setting.rounds, 1)):
            for concurrency in CONCURRENCY:
                for server in running:
                    measured[concurrency, server.name].append(
                        setting.measure(server, _job(setting, concurrency, seed=number * 100 + concurrency))
                    )
    return [_table(setting, concurrency, measured) for concurrency in CONCURRENCY]


def _job(setting: RunSettings, concurrency: int, seed: int) -> Job:
    count = setting.fewer(3000 if concurrency == 1 else 6000, 800)
    warmup = max(100, 4 * concurrency)
    return Job("closed", 0, concurrency=concurrency, count=count, warmup=warmup, seconds=8, seed=seed)


def _table(setting: RunSettings, concurrency: int, measured: dict[tuple[int, str], list[dict[str, Any]]]) -> Table:
    table = Table(f"Small chat request (280 B), {concurrency} at a time", COLUMNS, notes=setting.missing())
    by_name = {
        name: {**medians(rounds), "lowest": min(each["cpu_ms"] for each in rounds)}
        for (at, name), rounds in measured.items()
        if at == concurrency
    }
    direct = by_name[DIRECT]
    for name, row in by_name.items():
        added: list[float | None] = [row["p50_ms"] - direct["p50_ms"], row["p99_ms"] - direct["p99_ms"]]
        cells = [
            int(row["requests"]),
            int(row["failed"]),
            row["rps"],
            row["cpu_ms"],
            row["lowest"],
            row["p50_ms"],
            row["p99_ms"],
        ]
        table.rows.append(
            [name, *cells, *added] if name != DIRECT else [name, *cells[:3], None, None, *cells[5:], None, None]
        )
    if ACCORDION in by_name:
        _goals(table, by_name[ACCORDION], by_name.get(HTTPX))
    return table


def _goals(table: Table, own: dict[str, float], reference: dict[str, float] | None) -> None:
    table.goal("CPU a request", own["cpu_ms"], 0.35, "ms")
    if reference is not None:
        table.goal("p50 below Starlette + httpx", own["p50_ms"], reference["p50_ms"], "ms")
        table.goal("p99 below Starlette + httpx", own["p99_ms"], reference["p99_ms"], "ms")
