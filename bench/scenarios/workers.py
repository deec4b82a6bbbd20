"""One worker against two: throughput as measured on this machine's cores, and the capacity behind it.

Generator and upstream need cores too, and on two there is none left for a second worker. So four ratios are given:
measured with half a core for each worker, as a container's limit would give it (how workers scale), measured with
nothing pinned (one worker has a core to itself and more, two share both with the load), measured with everything on
one core against everything on two (how the whole stack scales), and the capacity that the workers' own CPU time allows.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median

from bench import native_load, processes, servers
from bench.cpu_share import limit_cpu
from bench.report import Table
from bench.run_settings import RunSettings
from bench.servers import ACCORDION, DIRECT, Pins, Unavailable

SHARE = 0.5
HALVES, FREE, ONE_CORE, TWO_CORES = "half a core each", "not pinned", "all on one core", "all on two cores"
COLUMNS = ("proxy", "workers", "cores", "req/s", "failed", "CPU ms/request", "load CPU ms/request", "least busy worker")
RATIOS = ("proxy", "half a core each", "not pinned", "ceiling there", "one core → two", "capacity", "evenness")


@dataclass(frozen=True)
class Point:
    rps: float
    failed: int
    cpu_ms: float
    load_ms: float
    share: float  # of the least busy worker, as a part of an even share


Points = dict[tuple[str, int, str], Point]


def run(setting: RunSettings) -> list[Table]:
    first, second = frozenset({0}), frozenset({0, 1})
    layouts = (
        (1, HALVES, Pins()),
        (2, HALVES, Pins()),
        (1, FREE, Pins()),
        (2, FREE, Pins()),
        (1, ONE_CORE, Pins(first, first)),
        (2, TWO_CORES, Pins(second, second)),
    )
    points: dict[tuple[str, int, str], list[Point]] = defaultdict(list)
    for _ in range(setting.fewer(setting.rounds, 1)):
        for name in setting.names():
            if name == DIRECT or "LiteLLM" in name:
                continue
            for workers, label, pins in layouts:
                share = SHARE if label == HALVES else None
                try:
                    points[name, workers, label].append(_measure(setting, name, workers, pins, share))
                except Unavailable as reason:
                    setting.skipped[f"{name}, {label}"] = str(reason)
    return _tables(setting, {key: _best(each) for key, each in points.items() if each})


def _measure(setting: RunSettings, name: str, workers: int, pins: Pins, share: float | None) -> Point:
    with (
        ExitStack() as behind,  # Groups go when the server in them has gone.
        native_load.upstream(pins) as (port, helpers),
        servers.serving(name, port, pins=pins, workers=workers, store=setting.store) as server,
    ):
        assert server.process is not None
        pids = processes.tree(server.process.pid)
        if share is not None:
            behind.enter_context(limit_cpu(pids, share))
        native_load.drive(server, 2, pins)
        before, helped = {pid: processes.cpu_seconds([pid]) for pid in pids}, processes.cpu_seconds(helpers)
        load = native_load.drive(server, setting.fewer(6, 2), pins)
        used = sorted(processes.cpu_seconds([pid]) - before[pid] for pid in pids)[-workers:]
        helped = 1000 * (processes.cpu_seconds(helpers) - helped) / load.requests
    cpu = 1000 * sum(used) / load.requests
    return Point(load.rps, load.failed, cpu, load.own_ms + helped, used[0] * workers / sum(used))


def _best(points: list[Point]) -> Point:
    """Of the rounds, the quickest: what disturbs a throughput only ever lowers it."""
    return max(points, key=lambda point: point.rps)


def _tables(setting: RunSettings, points: Points) -> list[Table]:
    load = "wrk and nginx" if native_load.installed() else "the generator and upstream of this folder"
    title = f"Workers: small unique requests, {native_load.CONNECTIONS} connections, load by {load}"
    table, ratios = Table(title, COLUMNS), Table("Two workers against one", RATIOS)
    for (name, workers, label), point in points.items():
        share = point.share if workers > 1 else None
        table.rows.append([name, workers, label, point.rps, point.failed, point.cpu_ms, point.load_ms, share])
    for name in dict.fromkeys(key[0] for key in points):
        one, two = points[name, 1, FREE], points[name, 2, FREE]
        half = points.get((name, 1, HALVES)), points.get((name, 2, HALVES))
        each = half[1].rps / half[0].rps if half[0] is not None and half[1] is not None else None
        free = two.rps / one.rps
        ceiling = 2000 / (two.cpu_ms + two.load_ms) / one.rps
        stack = points[name, 2, TWO_CORES].rps / points[name, 1, ONE_CORE].rps
        evenness = median([two.share, points[name, 2, TWO_CORES].share])
        capacity = 2 * one.cpu_ms / two.cpu_ms
        ratios.rows.append([name, each, free, ceiling, stack, capacity, evenness])
        if name == ACCORDION:
            what, reached = ("not pinned", free) if each is None else (HALVES, each)
            ratios.goal(f"throughput, {what}", reached, 1.7, "times", at_least=True)
    ratios.notes = [
        "half a core each: each process of the server in a control group of its own; the load has a core at least",
        "not pinned: two workers share both cores with the load; the other threads of one run on the load's core, too",
        "ceiling there: what two cores give at the CPU time that a request then takes, load included",
        "one core → two: server, generator and upstream on one core with one worker, on two with two",
        "capacity: 2 times CPU a request with one worker / with two; evenness: least busy worker / an even share",
        *setting.missing(),
    ]
    return [table, ratios]
