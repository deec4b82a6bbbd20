"""New conversations of Chat Completions, Responses and Messages without end: memory, descriptors, threads and files
must stay flat."""

from __future__ import annotations

from statistics import linear_regression
from typing import Any

from bench import load, servers
from bench.load import Job
from bench.processes import workers
from bench.report import Table
from bench.run_settings import RunSettings
from bench.servers import ACCORDION

COLUMNS = (
    "minute",
    "requests",
    "failed",
    "compactions",
    "conversations",
    "RSS MB",
    "fds",
    "threads",
    "WAL MB",
    "DB MB",
)
FIGURES = (("rss", "RSS", "MB"), ("fds", "descriptors", ""), ("threads", "threads", ""), ("db", "DB", "MB"))
ROWS = 12
EVERY = 0.5
"""Seconds between two requests of an agent."""
DELAY_MS = 300
"""How long the provider takes. After 0.2 s a request has a task that notices a client that leaves."""


def run(setting: RunSettings) -> list[Table]:
    seconds = setting.seconds or setting.fewer(300, 20)
    with servers.upstream(setting.pins) as upstream:
        servers.get(upstream, "/_mode", {"delay_ms": DELAY_MS})
        running = servers.serving(ACCORDION, upstream, pins=setting.pins, store=setting.store, config="soak.yaml")
        with running as server:
            assert server.process is not None
            pids, folder = workers(server.process.pid), str(server.folder)
            job = Job("soak", server.port, pids, concurrency=16, seconds=seconds, every=EVERY, folder=folder)
            outcome = load.run(job, setting.pins.prefix())
    return [_table(outcome, seconds)]


def _table(outcome: dict[str, Any], seconds: float) -> Table:
    table = Table(f"Soak: new conversations of three protocols for {seconds:.0f} s", COLUMNS)
    samples = outcome["samples"]
    for sample in samples[:: max(1, len(samples) // ROWS)]:
        minute, kept = sample["at"] / 60, ("requests", "failed", "compacted", "conversations")
        taken = [sample[name] for name in ("rss", "fds", "threads", "wal", "db")]
        table.rows.append([minute, *(sample[name] for name in kept), *taken])
    last = [sample for sample in samples if sample["at"] >= seconds / 2]
    for name, label, unit in FIGURES:
        slope = 3600 * linear_regression([each["at"] for each in last], [each[name] for each in last]).slope
        table.notes.append(f"slope of the last half, {label}: {slope:+.2f} {unit} an hour")
    exchanges = last[-1]["requests"] - last[0]["requests"]
    grown = 1024 * (last[-1]["rss"] - last[0]["rss"]) / max(1, exchanges)
    table.notes.append(f"RSS over the last half: {grown:+.3f} KB an exchange")
    return table
