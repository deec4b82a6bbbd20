"""Accordion with and without each override of a library and each setting of the interpreter: what each is worth."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import replace
from statistics import fmean
from typing import Any, Final

from accordion.server.interpreter import set_up_interpreter
from bench import compaction_steps, servers
from bench.connection_load import percentile
from bench.load import Job
from bench.report import Cell, Table
from bench.run_settings import RunSettings
from bench.serve_without import AS_SHIPPED, MEASURES
from bench.servers import ACCORDION, Server

CONTROL: Final = "as shipped, a second time"
COLUMNS: Final = (
    "Accordion without",
    "small, 1 at a time",
    "small, 16 at a time",
    "growing, last 10 %",
    "500 events one by one",
    "p99 of small",
)
UNITS: Final = ("ms", "ms", "ms", "µs an event", "ms")
COLLECTIONS: Final = ("Accordion without", "requests", "collections by generation", "µs CPU a request")
WAITS: Final = ("Accordion without", "waits", "p50 ms", "p99 ms", "longest ms")
MAKING_SIZE: Final = 950_000
"""Bytes of a conversation of 200,000 tokens."""
WINDOW: Final = 400_000
STREAM: Final = {"stream": True, "events": 500, "pace_ms": 0}
Rounds = dict[str, list[list[float]]]


def run(setting: RunSettings) -> list[Table]:
    with servers.upstream(setting.pins) as upstream:
        return [_cost(setting, upstream), _collections(setting, upstream), _waits(setting)]


def _cost(setting: RunSettings, upstream: int) -> Table:
    measured: Rounds = defaultdict(list)
    with ExitStack() as stack:
        running = {
            name: stack.enter_context(_serving(setting, upstream, AS_SHIPPED if name == CONTROL else name))
            for name in (AS_SHIPPED, CONTROL, *(name for name in MEASURES if name != AS_SHIPPED))
        }
        for number in range(setting.fewer(setting.rounds, 1)):
            arms = list(running.items())
            for name, server in arms[number:] + arms[:number]:
                measured[name].append(_figures(setting, upstream, server, number))
    table = Table("CPU time without a measure, as a multiple of Accordion as shipped", COLUMNS)
    least = {name: [min(column) for column in zip(*rounds, strict=True)] for name, rounds in measured.items()}
    for name, figures in least.items():
        cells: list[Cell] = [mine / theirs for mine, theirs in zip(figures, least[AS_SHIPPED], strict=True)]
        if name == AS_SHIPPED:
            cells = [f"{figure:.3g} {unit}" for figure, unit in zip(figures, UNITS, strict=True)]
        table.rows.append([name, *cells])
    table.notes.append("the least of the rounds, since other programs can only add to it; contenders take turns")
    return table


def _serving(setting: RunSettings, upstream: int, measure: str) -> Any:
    return servers.serving(ACCORDION, upstream, pins=setting.pins, store=setting.store, without=measure)


def _figures(setting: RunSettings, upstream: int, server: Server, number: int) -> list[float]:
    """Returns the figures of one server in one round, in the order of the columns."""
    servers.get(upstream, "/_mode", {"stream": False})
    small = Job("closed", 0, count=setting.fewer(3000, 400), warmup=100, seconds=8, seed=number)
    many = replace(small, concurrency=16, count=setting.fewer(6000, 800), seed=100 + number)
    growing = Job("growing", 0, count=300, warmup=10, seconds=60, seed=9000 + number, size=800_000)
    growing = replace(growing, step=16_384)
    one, sixteen = setting.measure(server, small), setting.measure(server, many)
    turns = setting.measure(server, growing)["turns"]
    servers.get(upstream, "/_mode", STREAM)
    stream = Job("closed", 0, count=setting.fewer(100, 20), warmup=5, seconds=6, seed=500 + number, stream=True)
    events = 1000 * setting.measure(server, stream)["cpu_ms"] / STREAM["events"]
    last = fmean(turn["cpu_ms"] for turn in turns[-max(1, len(turns) // 10) :])
    return [one["cpu_ms"], sixteen["cpu_ms"], last, events, one["p99_ms"]]


def _collections(setting: RunSettings, upstream: int) -> Table:
    """Measures garbage collections of a server by themselves, so that it does not matter how busy the machine is."""
    table = Table("Garbage collections while 6,000 small requests, and 205 growing ones, are served", COLLECTIONS)
    servers.get(upstream, "/_mode", {"stream": False})
    small = Job("closed", 0, concurrency=16, count=setting.fewer(6000, 800), warmup=100, seconds=20)
    growing = Job("growing", 0, count=300, warmup=10, seconds=60, size=800_000, step=setting.fewer(4096, 16_384))
    for measure in (AS_SHIPPED, "gc.set_threshold"):
        start, before, _ = _collected(setting, upstream, measure, None)
        for name, job in {"small": small, "growing": growing}.items():
            counts, taken, requests = _collected(setting, upstream, measure, job)
            own = "/".join(str(max(0, count - idle)) for count, idle in zip(counts, start, strict=True))
            table.rows.append([measure, name, own, 1000 * max(0.0, taken - before) / requests])
    table.notes.append("without the collections of the start")
    return table


def _collected(setting: RunSettings, upstream: int, measure: str, job: Job | None) -> tuple[list[int], float, int]:
    """Returns collections by generation, their CPU time in ms while requests are served, and the requests' number."""
    with servers.serving(
        ACCORDION, upstream, pins=setting.pins, without=measure, program="bench.garbage_collections"
    ) as server:
        outcome: dict[str, Any] = setting.measure(server, job) if job is not None else {"requests": 0}
        counts, taken = _report(server)
    return counts, taken, len(outcome["turns"]) if "turns" in outcome else int(outcome["requests"])


def _report(server: Server) -> tuple[list[int], float]:
    """Stops a server and returns what it printed last (garbage_collections.py)."""
    assert server.process is not None
    assert server.log is not None
    server.process.send_signal(signal.SIGINT)
    server.process.wait(30)
    counts, taken = json.loads(server.log.read_text().splitlines()[-1])
    return counts, taken


def _waits(setting: RunSettings) -> Table:
    """Measures how long a thread waits for the interpreter while another one makes a compaction."""
    table = Table("A thread that wants the interpreter while another one makes a compaction", WAITS)
    case, client = asyncio.run(compaction_steps.captured(compaction_steps.conversation(1, MAKING_SIZE).body(), WINDOW))
    usual = sys.getswitchinterval()
    for name, interval in {AS_SHIPPED: None, "sys.setswitchinterval": usual}.items():
        set_up_interpreter()
        sys.setswitchinterval(interval or sys.getswitchinterval())
        waits = list[float]()
        for _ in range(setting.fewer(6, 1)):
            maker = compaction_steps.Maker()
            waits += compaction_steps.holding(lambda: maker.make(case, client))  # noqa: B023  # called at once
        table.rows.append([name, len(waits), percentile(waits, 0.5), percentile(waits, 0.99), max(waits)])
    sys.setswitchinterval(usual)
    table.notes.append("counted as CPU time of the other thread, so that it does not matter how busy the machine is")
    return table
