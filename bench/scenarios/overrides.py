"""Accordion with and without each override of a library and each setting of the interpreter: what each is worth."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import replace
from statistics import fmean, median
from typing import Any, Final

from bench import load, servers
from bench.load import Job
from bench.report import Cell, Table
from bench.servers import ACCORDION, Server
from bench.setting import Setting
from bench.without import AS_SHIPPED, MEASURES

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
BESIDE: Final = ("Accordion without", "p50 ms", "p99 ms", "p99.9 ms")
SIZE: Final = 840_000
"""Bytes of a conversation that is compacted (see `folding`)."""
SWITCHES: Final = (AS_SHIPPED, "sys.setswitchinterval", "gc.freeze", "gc.set_threshold")
STREAM: Final = {"stream": True, "events": 500, "pace_ms": 0}
Rounds = dict[str, list[list[float]]]


def run(setting: Setting) -> list[Table]:
    with servers.upstream(setting.pins) as upstream:
        return [_cost(setting, upstream), _waits(setting, upstream), _collections()]


def _cost(setting: Setting, upstream: int) -> Table:
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


def _serving(setting: Setting, upstream: int, measure: str) -> Any:
    return servers.serving(ACCORDION, upstream, pins=setting.pins, store=setting.store, without=measure)


def _figures(setting: Setting, upstream: int, server: Server, number: int) -> list[float]:
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


def _waits(setting: Setting, upstream: int) -> Table:
    """Compares how long small requests wait beside compactions, which another thread makes."""
    table = Table("Small requests, 8 at a time, beside one compaction of 200,000 tokens a second", BESIDE)
    servers.get(upstream, "/_mode", {"stream": False})
    rounds: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for number in range(setting.fewer(max(3, setting.rounds), 1)):
        for name in SWITCHES:
            with servers.serving(
                ACCORDION, upstream, pins=setting.pins, store=setting.store, config="folding.yaml", without=name
            ) as server:
                job = Job("beside", server.port, server.pids, concurrency=8, count=20_000, warmup=200, seed=number + 1)
                job = replace(job, seconds=setting.fewer(6, 3), size=SIZE)
                rounds[name].append(load.run(job, setting.pins.prefix()))
    for name, measured in rounds.items():
        table.rows.append([name, *(median(each[key] for each in measured) for key in ("p50_ms", "p99_ms", "p999_ms"))])
    return table


def _collections() -> Table:
    """Measures a full garbage collection in a process of its own."""
    output = subprocess.run([sys.executable, "-m", "bench.collecting"], stdout=subprocess.PIPE, check=True).stdout
    table = Table("A full garbage collection, which stops all threads", ("when", "ms CPU", "ms CPU, frozen before"))
    for when, (plain, frozen) in zip(("after the start", "after LiteLLM's import"), json.loads(output), strict=True):
        table.rows.append([when, plain, frozen])
    return table
