"""The cost of a compaction: making it, other requests meanwhile, replaying it, memory, and stored bytes."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from statistics import median
from typing import Any, Final

from accordion.server.interpreter import set_up_interpreter
from bench import compaction_steps, first_compactions, load, processes, servers
from bench.compaction_load import BLOCK
from bench.compaction_steps import COUNT, FACTS, STEPS, Maker, Steps
from bench.connection_load import percentile
from bench.load import Job
from bench.report import Table
from bench.run_settings import RunSettings, medians
from bench.servers import ACCORDION, Pins, Server

CONFIG: Final = "compaction.yaml"
ALONE: Final = "replay_only.yaml"
SIZE: Final = 840_000
"""Bytes of a conversation that is just over its trigger of 200,000 tokens, by the upstream's count."""
MAKING_SIZE: Final = 950_000
"""The same by the tokenizer's own."""
MEMORY_SIZE: Final = 500_000
WINDOW: Final = 400_000
CONCURRENCY: Final = 8
QUIET, PASSED, COMPACTED = ARMS = ("nothing", "large requests, not compacted", "large requests, compacted")
BESIDE: Final = (
    "meanwhile",
    "small requests",
    "failed",
    "large",
    "compactions",
    "req/s",
    "p50 ms",
    "p99 ms",
    "p99.9 ms",
    "p50 added",
    "p99 added",
    "large p50 ms",
)
MEMORY: Final = (
    "conversations",
    "compactions",
    "failed",
    "idle MB",
    "at half MB",
    "at end MB",
    "above idle",
    "second half",
    "store MB",
)


def run(setting: RunSettings) -> list[Table]:
    tables = [*_making(setting), _first(setting)]
    with servers.upstream(setting.pins) as upstream:
        for pinned in (False, True) if setting.pins.server else (False,):
            # By the scheduler first: compactions have a thread of their own, and a worker more than one core as a rule.
            pins = setting.pins if pinned else Pins()
            with servers.serving(ACCORDION, upstream, pins=pins, store=setting.store, config=CONFIG) as server:
                tables.append(_beside(setting, server, pins, pinned=pinned))
            if not pinned:
                tables.append(_replaying(setting, upstream))
        with servers.serving(ACCORDION, upstream, store=setting.store, config=CONFIG) as server:
            tables.append(_memory(setting, server))
    return tables


# -- making ------------------------------------------------------------------------------------------------------------


def _making(setting: RunSettings) -> list[Table]:
    made, again, waits = list[Steps](), list[Steps](), list[float]()
    for number in range(setting.fewer(max(3, setting.rounds), 1)):
        talk = compaction_steps.conversation(number + 1, MAKING_SIZE)
        case, client = asyncio.run(compaction_steps.captured(talk.body(), WINDOW))
        with _serving_interpreter():
            for _ in range(5):
                maker = Maker()
                made.append(maker.make(case, client))
                again.append(maker.make(case, client))
            for _ in range(setting.fewer(4, 2)):
                maker = Maker()
                waits += compaction_steps.holding(lambda: maker.make(case, client))  # noqa: B023  # called at once
    one = made[0]
    title = f"Making a compaction of {one.before:,} tokens in {len(client.messages)} messages, down to {one.after:,}"
    table = Table(title, ("step", "CPU ms", "lowest", "part of a compaction"))
    for name in STEPS:
        taken = [each.ms.get(name, 0.0) for each in made]
        part = {COUNT: "no, cached", FACTS: "where not prepared"}.get(name, "yes")
        table.rows.append([name, median(taken), min(taken), part])
    for prepared, label in ((True, "a compaction, facts prepared"), (False, "a compaction, nothing prepared")):
        for rounds, counted in ((made, ""), (again, ", its own texts counted before")):
            taken = [each.compact(prepared=prepared) for each in rounds]
            table.rows.append([f"*{label}{counted}*", median(taken), min(taken), None])
        table.goal(f"CPU of {label}", median([each.compact(prepared=prepared) for each in made]), 150.0, "ms")
    table.notes.append(
        "only the messages were counted before; a compaction's own texts are remembered as they are counted, so that"
        " the same compaction made again in one process finds them"
    )
    p50, p99, longest = percentile(waits, 0.5), percentile(waits, 0.99), max(waits)
    table.notes.append(
        f"another thread that wants the interpreter meanwhile waits {p50:.2f} ms at p50, {p99:.2f} ms at p99,"
        f" {longest:.1f} ms at most ({len(waits):,} times; counted as CPU time of the compaction)"
    )
    return [table, _written(one)]


def _first(setting: RunSettings) -> Table:
    """The CPU time of the first compaction of each kind of conversation, by steps; the median of some rounds."""
    size = f"{first_compactions.SIZE // 1000} KB past a window of {first_compactions.WINDOW:,}"
    columns = ("conversation", *first_compactions.STEPS, first_compactions.OTHER, "all", "behind")
    table = Table(f"The first request of a conversation of about {size}, CPU ms until it is forwarded", columns)
    kinds = first_compactions.made_conversations(5) | first_compactions.recorded_conversations(setting.data)
    for kind, (path, body) in kinds.items():
        with _serving_interpreter():
            rounds = [
                asyncio.run(first_compactions.compact_first(path, body))
                for _ in range(setting.fewer(setting.rounds, 1))
            ]
        row = medians(rounds)
        table.rows.append([kind, *(row[step] for step in columns[1:])])
        table.goal(f"CPU until it is forwarded, {kind}", row["all"], 150.0, "ms")
    table.notes.append(
        "nothing of a conversation is cached; facts: what a summary may be made of; behind: after it is sent"
    )
    if setting.data is None:
        table.notes.append("recorded conversations are left out, since no --data is given")
    return table


@contextmanager
def _serving_interpreter() -> Iterator[None]:
    """Garbage collection and the change of threads as a serving process has them."""
    gc.collect()
    before, interval = gc.get_threshold(), sys.getswitchinterval()
    set_up_interpreter()
    try:
        yield
    finally:
        gc.set_threshold(*before)
        sys.setswitchinterval(interval)


def _written(one: Steps) -> Table:
    title = f"What that compaction writes to the store, of {one.removed / 1e3:,.0f} KB of messages that left"
    table = Table(title, ("what", "writes", "KB", "share of what left"))
    whole = ("*all*", [sum(column) for column in zip(*one.written.values(), strict=True)])
    for kind, (number, size) in (*one.written.items(), whole):
        table.rows.append([kind, number, size / 1e3, size / one.removed])
    return table


# -- others meanwhile --------------------------------------------------------------------------------------------------


def _beside(setting: RunSettings, server: Server, pins: Pins, *, pinned: bool) -> Table:
    found: dict[str, list[dict[str, float]]] = {name: [] for name in ARMS}
    for number in range(setting.fewer(max(5, setting.rounds), 1)):
        for name in ARMS:
            job = Job(
                "beside",
                server.port,
                server.pids,
                concurrency=CONCURRENCY,
                count=20_000,
                warmup=200,
                seconds=setting.fewer(6, 4),
                seed=number + 1 + 100 * pinned,
                size=SIZE,
                every=0.0 if name == QUIET else 1.0,
                compacts=name == COMPACTED,
            )
            found[name].append(load.run(job, pins.prefix()))
    return _beside_table(found, "server on one core, the rest on the others" if pinned else "nothing pinned")


def _beside_table(found: dict[str, list[dict[str, float]]], where: str) -> Table:
    title = f"Small requests, {CONCURRENCY} at a time, beside one conversation of 200,000 tokens a second; {where}"
    table = Table(title, BESIDE)
    for name, rounds in found.items():
        row = medians(rounds)
        counts = [
            int(row["requests"]),
            int(row["failed"] + row["large_failed"]),
            int(row["large"]),
            int(row["compactions"]),
        ]
        times = [row["rps"], row["p50_ms"], row["p99_ms"], row["p999_ms"]]
        added = [_added(found, name, which) if name != QUIET else None for which in ("p50_ms", "p99_ms")]
        table.rows.append([name, *counts, *times, *added, row["large_p50_ms"] or None])
    table.notes.append("added: to the quiet run of the same round; the median of the rounds")
    table.goal("p99 above quiet while compactions are made", _added(found, COMPACTED, "p99_ms"), 10.0, "ms")
    return table


def _added(found: dict[str, list[dict[str, float]]], name: str, which: str) -> float:
    return median(row[which] - quiet[which] for row, quiet in zip(found[name], found[QUIET], strict=True))


# -- replaying, memory -------------------------------------------------------------------------------------------------


def _replaying(setting: RunSettings, upstream: int) -> Table:
    title = f"A conversation from {SIZE // 1000:,} KB on, with a compaction and without one"
    table = Table(title, ("request", "turns", "as expected", "CPU ms", "lowest block", "p50 ms", "times no compaction"))
    with (
        servers.serving(ACCORDION, upstream, store=setting.store, config=CONFIG) as whole,
        servers.serving(ACCORDION, upstream, store=setting.store, config=ALONE) as alone,
    ):
        blocks: dict[str, list[dict[str, Any]]] = {"": [], ", nothing beside": []}
        for number in range(setting.fewer(setting.rounds, 1)):
            for each, server in zip(blocks.values(), (whole, alone), strict=True):
                job = Job("replaying", 0, count=setting.fewer(8, 3), seed=500 + number, size=SIZE)
                each.extend(load.run(replace(job, port=server.port, pids=server.pids))["blocks"])
    ratios = {
        name: median(block["compacted_cpu"] / block["plain_cpu"] for block in each) for name, each in blocks.items()
    }
    for name, each in blocks.items():
        for arm, label in (("plain", "needs no compaction"), ("compacted", "replays a compaction")):
            cpu = [block[f"{arm}_cpu"] for block in each]
            right = int(sum(block[f"{arm}_ok"] for block in each))
            took = median(block[f"{arm}_ms"] for block in each)
            ratio = ratios[name] if arm == "compacted" else None
            table.rows.append([f"{label}{name}", len(each) * BLOCK, right, median(cpu), min(cpu), took, ratio])
    table.notes.append(
        f"in blocks of {BLOCK} turns, one block of each after the other in changing order, what is written behind the"
        " replies included, what an idle server takes in that time left out; the ratio is the median of the pairs'"
    )
    table.notes.append(
        "nothing beside: recall, the tool to read back and transcripts are off, so that it is the replay"
    )
    table.goal("CPU of a request that replays a compaction", ratios[""], 1.2, "times")
    table.goal("the same, nothing beside", ratios[", nothing beside"], 1.2, "times")
    return table


def _memory(setting: RunSettings, server: Server) -> Table:
    assert server.process is not None
    count = setting.fewer(200, 20)
    pids = processes.workers(server.process.pid)
    job = Job("compacted", server.port, pids, concurrency=4, count=count, seed=900, size=MEMORY_SIZE, seconds=240)
    found = load.run(job)
    marks: Sequence[float] = [mark[0] for mark in found["marks"]]
    idle, half, end = marks[0], marks[len(marks) // 2], marks[-1]
    stored = sum(file.stat().st_size for file in server.folder.glob("accordion.db*")) / 1e6 if server.folder else None
    table = Table(f"Memory of a worker after {count} compacted conversations of 100,000 tokens", MEMORY)
    counts = [found["conversations"], found["compactions"], found["failed"]]
    table.rows.append([*counts, idle, half, end, end - idle, end - half, stored])
    return table
