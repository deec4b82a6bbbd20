"""Conversations that go to another worker, or to another proxy, with each turn, against those that stay with one."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench import load, processes, servers
from bench.hop_load import HOP, NEW, STAY
from bench.load import Job
from bench.report import Table
from bench.run_settings import RunSettings, medians
from bench.servers import ACCORDION, Server
from tests.valkey import running_valkey

COUNT = 4
"""Workers of one proxy, or proxies with one worker each."""
KINDS = {"20 messages": (20_000, 2_000, 12), "long, compacted": (420_000, 4_096, 64)}
"""Bytes of a conversation before its turns, bytes of a turn, and turns. The long one is compacted again meanwhile."""
LAYOUTS = ("4 workers", "4 proxies")
STORES = ("SQLite", "Valkey")
GOAL = 1.5
COLUMNS = (
    "store", "reached", "conversation", "turns", "failed", "split", "compacted", "stays, CPU ms", "hops, CPU ms",
    "times", "p50 ms", "p50 times", "new there, CPU ms", "times ",
)  # fmt: skip


def run(setting: RunSettings) -> list[Table]:
    table = Table("A turn that hops against one that stays", COLUMNS)
    for store in STORES:
        for layout in LAYOUTS:
            _measure(setting, table, store, layout)
    table.notes += [
        "hops: each turn goes to the next of four; new there: a turn at each of three that never had the conversation",
        "CPU of all four, with what they do behind the response, less what they take without requests",
        "compacted: turns that were compacted; the others of a long conversation replay the compaction",
        "split: conversations that were not one session throughout",
    ]
    return [table]


def _measure(setting: RunSettings, table: Table, store: str, layout: str) -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        port = stack.enter_context(servers.upstream(setting.pins))
        url = stack.enter_context(store_url(store, folder))
        running = start_proxies(stack, setting, port, url, *((1, COUNT) if layout == LAYOUTS[0] else (COUNT, 1)))
        for name in KINDS:
            rounds = [
                load.run(hop_job(setting, running, name, number), setting.pins.prefix())
                for number in range(setting.fewer(setting.rounds, 1))
            ]
            _add_row(table, (store, layout, name), rounds)


def start_proxies(
    stack: ExitStack, setting: RunSettings, upstream: int, url: str, proxies: int, workers: int
) -> list[Server]:
    """Starts proxies on one store; they end with the stack."""
    variables = {"ACCORDION_STORE": url}
    return [
        stack.enter_context(
            servers.serving(
                ACCORDION, upstream, pins=setting.pins, workers=workers, variables=variables, config="compaction.yaml"
            )
        )
        for _ in range(proxies)
    ]


@contextmanager
def store_url(store: str, folder: Path) -> Iterator[str]:
    """The address of a store with its files in `folder`."""
    if store == "SQLite":
        yield f"sqlite:///{folder}/accordion.db"
    else:
        with running_valkey(folder) as server:
            yield server.url


def hop_job(setting: RunSettings, running: list[Server], name: str, number: int) -> Job:
    """The generator's job for these proxies."""
    targets = [[server.port, pid] for server in running for pid in serving_pids(server)]
    pids = [pid for server in running for pid in server.pids]
    size, step, turns = KINDS[name]
    return Job("hops", 0, pids, targets=targets, count=COUNT, warmup=3 * COUNT, turns=setting.fewer(turns, COUNT),
               size=size, step=step, seed=100_000 * number + size, seconds=120)  # fmt: skip


def serving_pids(server: Server) -> list[int]:
    """The processes of a proxy that serve requests."""
    assert server.process is not None
    return processes.workers(server.process.pid)


def _add_row(table: Table, names: tuple[str, str, str], rounds: list[dict[str, Any]]) -> None:
    figures: dict[str, dict[str, float]] = defaultdict(dict)
    for route in (STAY, HOP, NEW):
        figures[route] = medians([each[route] for each in rounds])
    stay, hop, new = (figures[route] for route in (STAY, HOP, NEW))
    every = [each[route] for each in rounds for route in (STAY, HOP, NEW)]
    times = hop["cpu_ms"] / stay["cpu_ms"]
    counts = [int(sum(each[name] for each in every)) for name in ("turns", "failed", "split", "compacted")]
    table.rows.append([
        *names, *counts, stay["cpu_ms"], hop["cpu_ms"], times, hop["p50_ms"], hop["p50_ms"] / stay["p50_ms"],
        new["cpu_ms"], new["cpu_ms"] / stay["cpu_ms"],
    ])  # fmt: skip
    table.goal(f"{', '.join(names)}: CPU of a hop", times, GOAL, "times")
