"""10,000 requests of 2 to 100 KB over 1,000 growing sessions: memory above idle, and whether it is flat."""

from __future__ import annotations

from typing import Any

from bench import load, servers
from bench.load import Job
from bench.processes import workers
from bench.report import Table
from bench.run_settings import RunSettings
from bench.servers import ACCORDION, DIRECT, Pins, Unavailable

COLUMNS = (
    "proxy",
    "requests",
    "failed",
    "idle MB",
    "at half MB",
    "at end MB",
    "most MB",
    "above idle",
    "second half",
    "CPU ms/request",
)
CONCURRENCY = 16


def run(setting: RunSettings) -> list[Table]:
    sessions = setting.fewer(1000, 200)
    title = f"Memory: {10 * sessions} requests over {sessions} sessions, {CONCURRENCY} at a time"
    table = Table(title, COLUMNS)
    with servers.upstream(setting.pins) as upstream:
        for name in setting.names():
            if name == DIRECT:
                continue
            for count in (1, 2) if name == ACCORDION else (1,):
                _measure(setting, name, count, sessions, upstream, table)
    table.notes += [
        "idle: after three small requests on every connection, encodings loaded; above idle: the most minus idle",
        "second half: at the end minus at half; after 100 s no new session is begun, so a slow proxy answers fewer",
        *setting.missing(),
    ]
    return [table]


def _measure(setting: RunSettings, name: str, count: int, sessions: int, upstream: int, table: Table) -> None:
    # Two workers on one core: the same one would accept every connection.
    pins = setting.pins if count == 1 else Pins()
    try:
        with servers.serving(name, upstream, pins=pins, workers=count, store=setting.store) as server:
            assert server.process is not None
            pids = workers(server.process.pid)
            job = Job("sessions", server.port, pids, concurrency=CONCURRENCY, count=sessions, seconds=100)
            outcome = load.run(job, pins.prefix())
    except Unavailable as reason:
        setting.skipped[name] = str(reason)
        return
    except RuntimeError as failure:
        table.notes.append(f"{name}: {failure}")
        return
    for number in range(len(pids)):
        label = name if count == 1 else f"{name}, worker {number + 1} of {count}"
        _row(table, label, outcome, [mark[number] for mark in outcome["marks"]])


def _row(table: Table, label: str, outcome: dict[str, Any], marks: list[float]) -> None:
    idle, half, end, most = marks[0], marks[len(marks) // 2], marks[-1], max(marks)
    counted = [outcome["requests"], outcome["failed"]]
    table.rows.append([label, *counted, idle, half, end, most, most - idle, end - half, outcome["cpu_ms"]])
    if label.startswith(ACCORDION):
        table.goal(f"{label}: above idle", most - idle, 60.0, "MB")
        table.goal(f"{label}: growth over the second half", end - half, 10.0, "MB")
