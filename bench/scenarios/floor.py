"""The CPU of a small request by part: the servers' and clients' libraries alone, each stage of Accordion's own, and
what a second worker costs at the same load."""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack
from typing import Any

import uvloop

from bench import provider_clients, servers, stages
from bench.load import Job
from bench.report import Table
from bench.run_settings import RunSettings
from bench.servers import ACCORDION, ECHO, GRANIAN, PYREQWEST, UNREAD, UVICORN, Server

CONCURRENCY = (1, 16, 64)
CONTENDERS = (UNREAD, ECHO, UVICORN, GRANIAN, PYREQWEST, "aiohttp passthrough", ACCORDION)
PACES = (100, 200, 400)
"""Requests a second, each twice the one before."""


def run(setting: RunSettings) -> list[Table]:
    took, whole = uvloop.run(stages.measured(setting.fewer(8, 1), 300))
    rounds = setting.fewer(max(5, setting.rounds), 1)
    return [_floors(setting, rounds), _clients(setting, rounds), _stages(took, whole), _second(setting, rounds)]


def _floors(setting: RunSettings, rounds: int) -> Table:
    least: dict[tuple[str, int], float] = defaultdict(lambda: float("inf"))
    with servers.upstream(setting.pins) as upstream, setting.contenders(upstream, CONTENDERS) as running:
        servers.get(upstream, "/_mode", {"stream": False})
        for number in range(rounds):
            for concurrency in CONCURRENCY:
                for server in running:
                    cpu = _closed(setting, server, concurrency, seed=7_000 + number * 100 + concurrency)["cpu_ms"]
                    least[server.name, concurrency] = min(cpu, least[server.name, concurrency])
    columns = ("server", *(f"µs CPU a request, {each} at a time" for each in CONCURRENCY))
    table = Table("What a small request costs at least", columns)
    for server in running:
        table.rows.append([server.name, *(1000 * least[server.name, each] for each in CONCURRENCY)])
    above = [1000 * (least[ACCORDION, each] - least[UVICORN, each]) for each in CONCURRENCY]
    table.rows.append(["*Accordion above uvicorn + aiohttp*", *above])
    table.notes.append("the least of the rounds, since other programs can only add to it; contenders take turns")
    table.notes += setting.missing()
    return table


def _clients(setting: RunSettings, rounds: int) -> Table:
    with servers.upstream(setting.pins) as upstream:
        servers.get(upstream, "/_mode", {"stream": False})
        costs = uvloop.run(provider_clients.measure(upstream, rounds, setting.fewer(1500, 300)))
    columns = ("client", *(f"µs CPU a request, {each} at a time" for each in provider_clients.CONCURRENCY))
    table = Table("What the client to the provider costs", columns)
    table.rows += [[name, *each] for name, each in costs.items()]
    table.notes.append("in one process, the least of the rounds; clients take turns")
    return table


def _stages(took: dict[str, float], whole: dict[str, float]) -> Table:
    table = Table("What Accordion itself does for a small request", ("stage", "µs CPU"))
    table.rows += [[name, value] for name, value in took.items()]
    table.rows += [[f"*one request after the other: {name}*", value] for name, value in whole.items()]
    table.notes.append(
        "in one process, no sockets, the provider's answer ready; stage by stage, the least of the rounds"
    )
    return table


def _second(setting: RunSettings, rounds: int) -> Table:
    least: dict[tuple[int, int], float] = defaultdict(lambda: float("inf"))
    with servers.upstream(setting.pins) as upstream, ExitStack() as stack:
        servers.get(upstream, "/_mode", {"stream": False})
        running = {
            workers: stack.enter_context(servers.serving(ACCORDION, upstream, workers=workers)) for workers in (1, 2)
        }
        for number in range(rounds):
            for pace in PACES:
                for workers, server in running.items():
                    job = Job("paced", 0, concurrency=32, count=2 * pace, seconds=10, every=1 / pace, seed=900 + number)
                    cpu = setting.measure(server, job)["cpu_ms"]
                    least[workers, pace] = min(cpu, least[workers, pace])
    columns = ("workers", *(f"ms CPU a request, {pace} a second" for pace in PACES))
    table = Table("One worker and two at the same load", columns)
    for workers in running:
        table.rows.append([workers, *(least[workers, pace] for pace in PACES)])
    table.rows.append(["*two / one*", *(least[2, pace] / least[1, pace] for pace in PACES)])
    halves = [None, *(least[2, pace] / least[1, pace // 2] for pace in PACES[1:])]
    table.rows.append(["*two / one at half of that, so that each has as much to do*", *halves])
    table.notes.append(
        "requests at fixed times over 32 connections, nothing pinned; supervisor included, least of rounds"
    )
    return table


def _closed(setting: RunSettings, server: Server, concurrency: int, seed: int) -> dict[str, Any]:
    count = setting.fewer(1500, 300)
    job = Job("closed", 0, concurrency=concurrency, count=count, warmup=100 + 4 * concurrency, seconds=8, seed=seed)
    return setting.measure(server, job)
