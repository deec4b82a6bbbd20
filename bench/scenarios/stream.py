"""Streams of events, in a burst, one by one, and paced: time to the first event, CPU an event."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from bench import servers
from bench.conversations import CHAT, MESSAGES
from bench.load import Job
from bench.report import Cell, Table
from bench.run_settings import RunSettings, medians
from bench.servers import ACCORDION, DIRECT

BARE = "aiohttp passthrough"
COLUMNS = (
    "proxy",
    "streams",
    "failed",
    "first event p50 ms",
    "first event p99 ms",
    "p50 behind aiohttp",
    "whole p50 ms",
    "µs CPU/event",
)


@dataclass(frozen=True)
class Variant:
    title: str
    protocol_name: str
    events: int
    pace_ms: float
    concurrency: int
    count: int
    quick: int


VARIANTS = (
    Variant("Chat Completions, 500 events in a burst", CHAT, 500, -1, 1, 150, 30),
    Variant("Messages, 500 events in a burst", MESSAGES, 500, -1, 1, 150, 30),
    Variant("Chat Completions, 500 events one by one, unpaced", CHAT, 500, 0, 1, 80, 20),
    Variant("Chat Completions, 500 events 2 ms apart, 8 streams at a time", CHAT, 500, 2, 8, 24, 8),
    Variant("Chat Completions, 20 events 2 ms apart, one stream at a time", CHAT, 20, 2, 1, 100, 20),
    Variant("Messages, 20 events 2 ms apart, one stream at a time", MESSAGES, 20, 2, 1, 100, 20),
)


def run(setting: RunSettings) -> list[Table]:
    tables = []
    with servers.upstream(setting.pins) as upstream, setting.contenders(upstream) as running:
        for variant in VARIANTS:
            measured: dict[str, list[dict[str, Any]]] = defaultdict(list)
            mode = {"stream": True, "events": variant.events, "pace_ms": variant.pace_ms}
            servers.get(upstream, "/_mode", mode)
            for number in range(setting.fewer(setting.rounds, 1)):
                for server in running:
                    measured[server.name].append(setting.measure(server, _job(setting, variant, number)))
            tables.append(_table(setting, variant, measured))
    return tables


def _job(setting: RunSettings, variant: Variant, number: int) -> Job:
    return Job(
        "closed",
        0,
        protocol_name=variant.protocol_name,
        concurrency=variant.concurrency,
        count=setting.fewer(variant.count, variant.quick),
        warmup=max(5, variant.concurrency),
        seconds=6,
        seed=500 + number,
        stream=True,
    )


def _table(setting: RunSettings, variant: Variant, measured: dict[str, list[dict[str, Any]]]) -> Table:
    table = Table(f"Stream: {variant.title}", COLUMNS, notes=setting.missing())
    figures = {name: medians(rounds) for name, rounds in measured.items()}
    bare = figures.get(BARE)
    for name, own in figures.items():
        behind = own["first_p50_ms"] - bare["first_p50_ms"] if bare and name not in (BARE, DIRECT) else None
        event = None if name == DIRECT else 1000 * own["cpu_ms"] / variant.events
        counted: list[Cell] = [int(own["requests"]), int(own["failed"])]
        table.rows.append([name, *counted, own["first_p50_ms"], own["first_p99_ms"], behind, own["p50_ms"], event])
    if ACCORDION in figures:
        own = figures[ACCORDION]
        if bare and variant.concurrency == 1:
            table.goal("first event behind the bare passthrough", own["first_p50_ms"] - bare["first_p50_ms"], 1.0, "ms")
        if variant.pace_ms < 0:
            table.goal("CPU an event", 1000 * own["cpu_ms"] / variant.events, 20.0, "µs")
    return table
