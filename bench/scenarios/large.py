"""Large bodies of many shapes: what other requests wait meanwhile, and the memory that they take."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from bench import load, servers
from bench.body_shapes import SHAPES
from bench.load import Job
from bench.processes import workers
from bench.report import Table
from bench.run_settings import RunSettings
from bench.servers import ACCORDION

COLUMNS: Final = (
    "body", "MB", "answered", "status", "p50 ms", "CPU ms", "others: requests", "failed", "p50 ms", "p99 ms",
    "longest ms", "p99 above quiet", "MB above idle", "times the body",
)  # fmt: skip
SENDERS: Final = 2
EVERY: Final = 0.01
P99: Final = 50.0
TIMES: Final = 8.0


def run(setting: RunSettings) -> list[Table]:
    title = f"{SENDERS} senders of one body, again and again, beside a small request every {1000 * EVERY:.0f} ms"
    table, added, times = Table(title, COLUMNS), list[float](), list[float]()
    with servers.upstream(setting.pins) as upstream:
        for name in SHAPES:
            if setting.only and not any(each in name for each in setting.only):
                continue
            with servers.serving(ACCORDION, upstream, pins=setting.pins, store=setting.store) as server:
                assert server.process is not None
                pids = workers(server.process.pid)
                job = Job(
                    "beside_large", server.port, pids, concurrency=SENDERS, every=EVERY, seconds=setting.fewer(6, 3)
                )
                quiet = load.run(job, setting.pins.prefix())
                found = load.run(replace(job, shape=name), setting.pins.prefix())
            added.append(found["p99_ms"] - quiet["p99_ms"])
            times.append(found["peak_mb"] * 1.048576 / found["mb"] / SENDERS)
            table.rows.append([
                name, found["mb"], found["large"], found["statuses"], found["large_ms"], found["large_cpu_ms"],
                found["requests"], found["failed"], found["p50_ms"], found["p99_ms"], found["longest_ms"], added[-1],
                found["peak_mb"], times[-1],
            ])  # fmt: skip
    table.notes.append("a request's time begins when it is due; the memory is the highest, for both bodies together")
    table.goal("p99 of others above quiet, the worst body", max(added), P99, "ms")
    table.goal("memory above idle, the worst body", max(times), TIMES, "times the body")
    return [table]
