"""Several proxies on one cluster of three masters under agents whose turns hop: what the store does for a turn, and
what 100 proxies and a million sessions need."""

from __future__ import annotations

import json
import random
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench import fleet_load, load, servers
from bench.cluster_usage import FIGURES, Usage, memory_by_kind, read_usage
from bench.hop_load import BEHIND
from bench.load import Job
from bench.report import Table
from bench.run_settings import RunSettings
from bench.scale_model import Assumptions, Load, Need, Phase, UnitCosts, compute_need, measure_costs
from bench.servers import ACCORDION, Server
from tests.valkey import ValkeyCluster, running_cluster

TURN = 4_096
"""Bytes of a turn."""
READ_EVERY = 4
TOLERANCE = 1.2
PHASES = (
    "no requests", "one turn", "turns that stay", "turns that hop", "compacted, staying", "compacted, hopping", "mixed",
    "mixed, one team",
)  # fmt: skip
MIXED = 6
"""The phase that is predicted from those before it."""
WORK = (
    "phase", "proxies", "sessions", "turns", "failed", "split", "compactions", "read backs", "missing", "lost",
    "proxy CPU ms/turn", "commands/turn", "KB in/turn", "KB out/turn", "store CPU ms/turn", "KB kept/session",
    "busiest master",
)  # fmt: skip
CHECK = ("figure", "predicted", "measured", "times")
NEED = (
    "sessions", "turns hop", "turns/s", "commands/s", "MB/s in", "MB/s out", "store cores", "store GB", "masters",
    "decided by",
)  # fmt: skip
FLEETS = {
    "a million in 30 days": Assumptions(),
    "a million in 30 days, each stays": Assumptions(hops=False),
    "a million a day": Assumptions(sessions_a_day=1_000_000),
    "a million a day, each stays, kept a week": Assumptions(sessions_a_day=1_000_000, hops=False, retention_days=7.0),
}


@dataclass(frozen=True)
class Plan:
    """How large a run is."""

    proxies: int = 4
    sessions: int = 48
    idle_seconds: float = 10.0
    concurrency: int = 24
    short: int = 10
    long: int = 32
    """Turns of sessions that are not compacted, and of such that are."""
    longest: int = 48
    """Turns of the longest session of the mixed phase."""
    pause: float = 0.3
    """Seconds of an agent between two turns. What is written behind a response is in the store by then."""
    seed: int = 1
    phases: Sequence[str] = PHASES
    """Those that are run."""


@dataclass
class Outcome:
    """What the phases of a run came to."""

    rows: list[list[Any]] = field(default_factory=list)
    phases: list[Phase] = field(default_factory=list)
    usages: list[Usage] = field(default_factory=list)
    until_compacted: int = 0
    memory: Counter[str] = field(default_factory=Counter)
    """The bytes of all records at the end, by kind."""

    @property
    def costs(self) -> UnitCosts:
        """The costs that explain all phases but the mixed one."""
        return measure_costs(*self.phases[:MIXED])

    @property
    def prediction(self) -> dict[str, float]:
        """What the simulation says of the mixed phase."""
        return self.costs.predict(self.phases[MIXED].load)

    @property
    def memory_factor(self) -> float:
        """The memory that the masters took for all phases, in bytes of the records."""
        taken = sum(usage.used_memory for usage in self.usages)
        return max(1.0, taken / sum(usage.figures["memory"] for usage in self.usages))

    @property
    def problems(self) -> int:
        """Requests that failed, sessions that were split, and messages and artifacts that are lost."""
        return int(sum(row[at] for row in self.rows for at in (4, 5, 8, 9)))


def run(setting: RunSettings) -> list[Table]:
    plan = Plan(proxies=setting.proxies or 4, sessions=setting.sessions or setting.fewer(48, 24))
    outcome = carry_out(setting, plan)
    return [
        _work_table(outcome), _commands_table(outcome), _memory_table(outcome), _check_table(outcome, plan),
        _need_table(outcome),
    ]  # fmt: skip


def carry_out(setting: RunSettings, plan: Plan) -> Outcome:
    """Runs all phases: those that give the costs, and a mixed one with twice the proxies and sessions."""
    outcome = Outcome()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        cluster = stack.enter_context(running_cluster(folder, save=""))
        upstream = stack.enter_context(servers.upstream(setting.pins))
        servers.get(upstream, "/_mode", {"read_every": READ_EVERY})
        with _proxies(setting, upstream, cluster, plan.proxies) as running:
            # What a start leaves to be written is not counted.
            time.sleep(BEHIND)
            for name, lengths, hops in _phases(plan):
                if name in plan.phases:
                    _measure(setting, plan, outcome, name, cluster, upstream, running, lengths, hops)
        if more := [name for name in PHASES[MIXED:] if name in plan.phases]:
            with _proxies(setting, upstream, cluster, 2 * plan.proxies) as running:
                time.sleep(BEHIND)
                lengths = fleet_load.lengths(random.Random(plan.seed), 2 * plan.sessions, plan.longest)
                for name in more:
                    _measure(setting, plan, outcome, name, cluster, upstream, running, lengths, True)
        outcome.memory = _memory(cluster)
    return outcome


def _phases(plan: Plan) -> Iterator[tuple[str, Sequence[int], bool]]:
    yield PHASES[0], (), False
    yield PHASES[1], [1] * 4 * plan.sessions, False
    yield PHASES[2], [plan.short] * plan.sessions, False
    yield PHASES[3], [plan.short] * plan.sessions, True
    yield PHASES[4], [plan.long] * plan.sessions, False
    yield PHASES[5], [plan.long] * plan.sessions, True


@contextmanager
def _proxies(setting: RunSettings, upstream: int, cluster: ValkeyCluster, count: int) -> Iterator[list[Server]]:
    """So many proxies, each with one worker and a home of its own, as on machines of their own."""
    with ExitStack() as stack:
        running = []
        for _ in range(count):
            home = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-"))
            variables = {"ACCORDION_STORE": cluster.url, "HOME": home, "XDG_STATE_HOME": home}
            running.append(
                stack.enter_context(
                    servers.serving(ACCORDION, upstream, pins=setting.pins, variables=variables, config="fleet.yaml")
                )
            )
        yield running


def _measure(
    setting: RunSettings, plan: Plan, outcome: Outcome, name: str, cluster: ValkeyCluster, upstream: int,
    running: Sequence[Server], lengths: Sequence[int], hops: bool,
) -> None:  # fmt: skip
    """Runs a phase and adds what it came to."""
    reads = json.loads(servers.get(upstream, "/_stats"))["reads"]
    records = _memory(cluster).total()
    before, began = _usage(cluster, records), time.monotonic()
    done: dict[str, Any] = {"turns": 0, "failed": 0, "split": 0, "compactions": 0, "cpu_ms": None, "bodies": []}
    if lengths:
        job = Job(
            "fleet", 0, [pid for server in running for pid in server.pids],
            targets=[[server.port, 0] for server in running], count=len(lengths), lengths=list(lengths), hops=hops,
            teams=1 if name == PHASES[-1] else fleet_load.TEAMS, concurrency=plan.concurrency, every=plan.pause,
            step=TURN, seconds=600, seed=10 * plan.seed + PHASES.index(name),
        )  # fmt: skip
        done = load.run(job, setting.pins.prefix())
    else:
        time.sleep(plan.idle_seconds)
    seconds, after = time.monotonic() - began, _usage(cluster, 0)
    after.figures["memory"] = _memory(cluster).total()
    usage = after.since(before)
    reads = json.loads(servers.get(upstream, "/_stats"))["reads"] - reads
    if name == PHASES[4]:
        outcome.until_compacted = done["until_compacted"]
    expected = Load.at_random(lengths, len(running), outcome.until_compacted, hops=hops, seconds=seconds)
    outcome.phases.append(Phase(expected, usage.figures))
    outcome.usages.append(usage)
    missing, lost = _compare(running, done["bodies"])
    idle = outcome.phases[0].figures
    each = {
        name: (usage.figures[name] - idle[name] * expected.idle_seconds / outcome.phases[0].load.idle_seconds)
        for name in FIGURES
    }
    turns, sessions = done["turns"], len(lengths)
    figures = (
        [each["commands"] / turns, each["bytes in"] / turns / 1000, each["bytes out"] / turns / 1000,
         each["CPU ms"] / turns, usage.figures["memory"] / sessions / 1000, usage.busiest]
        if turns else [None] * 6
    )  # fmt: skip
    outcome.rows.append([
        name, len(running), sessions, turns, done["failed"], done["split"], done["compactions"], reads, missing, lost,
        done["cpu_ms"], *figures,
    ])  # fmt: skip


def _usage(cluster: ValkeyCluster, record_bytes: int) -> Usage:
    return read_usage([master.read("INFO", "everything") for master in cluster.masters], record_bytes)


def _memory(cluster: ValkeyCluster) -> Counter[str]:
    """The bytes of all records by kind."""
    return sum((memory_by_kind(master.port) for master in cluster.masters), Counter[str]())


def _compare(running: Sequence[Server], bodies: Sequence[tuple[Sequence[str], str, str]]) -> tuple[int, int]:
    """Reads the transcripts and artifacts of some sessions at a proxy by turns. Returns how many messages are missing
    in the transcripts, and how many artifacts cannot be read."""
    missing = lost = 0
    for number, (sessions, key, body) in enumerate(bodies):
        port, stored = running[number % len(running)].port, list[Any]()
        for session in sessions:
            transcript = _read(port, f"/accordion/sessions/{session}/original", key) or b'{"messages": []}'
            stored += json.loads(transcript)["messages"]
            listed = json.loads(_read(port, f"/accordion/artifacts?session={session}&limit=1000", key))
            lost += sum(not _read(port, f"/accordion/artifacts/{each['id']}", key) for each in listed["artifacts"])
        missing += sum(message not in stored for message in json.loads(body)["messages"])
    return missing, lost


def _read(port: int, path: str, key: str) -> bytes:
    """What the API of a proxy answers to a team; nothing for what there is not."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"x-accordion-key": key})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            content: bytes = answer.read()
            return content
    except urllib.error.HTTPError:
        return b""


# -- tables ------------------------------------------------------------------------------------------------------------


def _work_table(outcome: Outcome) -> Table:
    table = Table("A fleet on a cluster of three masters", WORK, outcome.rows)
    table.notes += [
        "figures of a turn are without what proxies do without requests; KB kept: memory of the new records",
        "missing, lost: messages that are not in the transcripts of some sessions, artifacts that cannot be read",
        "busiest master: its CPU time as a part of an even share",
    ]
    table.goal("requests that failed, split sessions, missing messages and lost artifacts", outcome.problems, 0, "")
    table.has_failed = outcome.problems > 0
    return table


def _commands_table(outcome: Outcome) -> Table:
    """Commands a turn, by name, of the phases with requests."""
    names = sorted({name for usage in outcome.usages for name in usage.commands})
    table = Table("Commands of the masters, a turn", ("phase", *names))
    for row, usage in zip(outcome.rows[1:], outcome.usages[1:], strict=True):
        table.rows.append([row[0], *(usage.commands[name] / row[3] or None for name in names)])
    table.notes.append("commands that a script runs count, too; what proxies do without requests is included")
    return table


def _memory_table(outcome: Outcome) -> Table:
    turns = sum(row[3] for row in outcome.rows)
    table = Table("Memory of the records, by kind", ("kind", "bytes a turn", "share"))
    for kind, size in outcome.memory.most_common(10):
        table.rows.append([kind, size / turns, size / outcome.memory.total()])
    table.notes.append("over all phases, as MEMORY USAGE says; the names of kinds are those of the keys")
    return table


def _check_table(outcome: Outcome, plan: Plan) -> Table:
    title = f"The simulation against a run of {2 * plan.proxies} proxies and {2 * plan.sessions} sessions"
    table = Table(title, CHECK)
    predicted, measured = outcome.prediction, outcome.phases[MIXED].figures
    for name in FIGURES:
        times = measured[name] / predicted[name]
        table.rows.append([name, predicted[name], measured[name], times])
        table.goal(f"{name}, the farther of measured / predicted and its inverse", max(times, 1 / times), TOLERANCE, "")
    table.notes.append(
        "the costs come from the phases before; proxies, sessions, lengths (1 to "
        f"{plan.longest} turns) and the proxies that each session reaches are others"
    )
    return table


def _need_table(outcome: Outcome) -> Table:
    table = Table("What 100 proxies and a million sessions need of the store", NEED)
    for name, assumed in FLEETS.items():
        fleet = replace(assumed, memory_factor=outcome.memory_factor)
        table.rows.append(_need_row(name, fleet, compute_need(outcome.costs, fleet)))
    usual = replace(Assumptions(), hops=False)
    table.notes.append(
        f"assumed: {usual.turns} turns of 4 KB a session, {usual.compacted_share:.0%} of the sessions compacted, "
        f"{usual.retention_days:.0f} days of retention, the busiest hour {usual.peak:g} times the average, a master's "
        f"core half used, 16 GiB of data a master, {outcome.memory_factor:.2f} bytes of memory for a byte of "
        "records as measured, no replicas"
    )
    return table


def _need_row(name: str, fleet: Assumptions, need: Need) -> list[Any]:
    return [
        name, "yes" if fleet.hops else "no", need.turns_a_second, need.commands_a_second, need.bytes_in_a_second / 1e6,
        need.bytes_out_a_second / 1e6, need.cores, need.memory / 1e9, need.masters, need.bottleneck,
    ]  # fmt: skip
