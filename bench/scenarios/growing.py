"""One conversation that grows by 4 KB a turn to 800 KB: what a turn costs at the end, and the slope."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from statistics import fmean, linear_regression, median
from typing import Any

from bench import servers
from bench.conversations import CHAT, MESSAGES
from bench.load import Job
from bench.report import Cell, Table
from bench.run_settings import RunSettings
from bench.servers import ACCORDION, DIRECT

VARIANTS = (("Chat Completions", CHAT, False), ("Messages, cache breakpoint moved each turn", MESSAGES, True))
COLUMNS = (
    "proxy",
    "turns",
    "failed",
    "bytes kept",
    "CPU ms/turn, first 10 %",
    "CPU ms/turn, last 10 %",
    "above aiohttp",
    "µs CPU/KB of history",
    "p50 ms, last 10 %",
    "p50 added",
)
BARE = "aiohttp passthrough"
STEP, SIZE = 4096, 800_000
Measured = dict[str, list[dict[str, Any]]]


def run(setting: RunSettings) -> list[Table]:
    tables = []
    with servers.upstream(setting.pins) as upstream, setting.contenders(upstream) as running:
        for title, protocol_name, moving in VARIANTS:
            measured: Measured = defaultdict(list)
            for number in range(setting.fewer(setting.rounds, 1)):
                job = Job(
                    "growing", 0, protocol_name=protocol_name, count=300, warmup=10, seconds=60, seed=9000 + number
                )
                job = replace(job, size=SIZE, step=setting.fewer(STEP, 4 * STEP), moving_breakpoint=moving)
                for server in running:
                    servers.get(upstream, "/_mode", {"stream": False})
                    outcome = setting.measure(server, job)
                    outcome["arrived"] = json.loads(servers.get(upstream, "/_stats"))["bytes"]
                    measured[server.name].append(outcome)
            tables.append(_table(setting, title, measured))
    return tables


def _table(setting: RunSettings, title: str, measured: Measured) -> Table:
    table = Table(f"Growing conversation, 4 KB a turn to 800 KB: {title}", COLUMNS, notes=setting.missing())
    figures = {name: _figures(rounds) for name, rounds in measured.items()}
    direct = figures[DIRECT]
    sent = [each["arrived"] for each in measured[DIRECT]]
    for name, own in figures.items():
        rounds = measured[name]
        kept = [each["arrived"] for each in rounds] == sent
        counted: list[Cell] = [len(rounds[0]["turns"]), sum(each["failed"] for each in rounds)]
        if name == DIRECT:
            table.rows.append([name, *counted, None, None, None, None, None, own["p50"], None])
            continue
        above = own["last"] - figures[BARE]["last"] if BARE in figures and name != BARE else None
        cpu: list[Cell] = [own["first"], own["last"], above, own["slope"]]
        table.rows.append([name, *counted, "yes" if kept else "no", *cpu, own["p50"], own["p50"] - direct["p50"]])
    if ACCORDION in figures:
        own = figures[ACCORDION]
        if BARE in figures:
            table.goal(
                "CPU a turn at 800 KB above the bare passthrough", own["last"] - figures[BARE]["last"], 2.0, "ms"
            )
        table.goal("CPU a turn at 800 KB, all of it", own["last"], 2.0, "ms")
        table.goal("slope", own["slope"], 2.0, "µs/KB")
    table.notes.append("bytes kept: the upstream received exactly as many bytes as from the direct run")
    return table


def _figures(rounds: list[dict[str, Any]]) -> dict[str, float]:
    """Means over a tenth of the turns, slopes over all of them; of the rounds, the median."""
    tenth = max(1, len(rounds[0]["turns"]) // 10)
    parts = []
    for each in rounds:
        turns = each["turns"]
        slope = linear_regression([turn["kb"] for turn in turns], [turn["cpu_ms"] for turn in turns]).slope
        parts.append(
            {
                "first": fmean(turn["cpu_ms"] for turn in turns[:tenth]),
                "last": fmean(turn["cpu_ms"] for turn in turns[-tenth:]),
                "slope": 1000 * slope,
                "p50": median(turn["ms"] for turn in turns[-tenth:]),
            }
        )
    return {key: median(part[key] for part in parts) for key in parts[0]}
