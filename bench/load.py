"""The load generator, a process of its own: a job as JSON on stdin, what it measured on stdout.

Every job has a bounded number of requests and a bounded time. CPU time is read here, from the
kernel's clocks of the processes under test, right before the first request and after the last.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

import uvloop

from bench import compaction_load, conversations, fleet_load, hop_load, large_body_load, processes, soak_load
from bench.client import Connection, Reply, connect
from bench.connection_load import Drive, summary
from bench.texts import Texts

SETTLE = 0.25
CHEAPEST_PAUSE = 0.002


@dataclass(frozen=True)
class Job:
    """What to send: `kind` is one of the functions in JOBS."""

    kind: str
    port: int
    pids: list[int] = field(default_factory=list)
    protocol_name: str = conversations.CHAT
    concurrency: int = 1
    count: int = 1000
    warmup: int = 50
    seconds: float = 10.0
    seed: int = 1
    stream: bool = False
    size: int = 800_000
    step: int = 4096
    moving_breakpoint: bool = False
    every: float = 1.0
    """Seconds between two large requests beside the small ones; for `fleet`, of an agent between two turns."""
    folder: str = ""
    """Where the server keeps its files; for `soak`."""
    shape: str = ""
    """The name of the body that is sent beside small requests; for `beside_large`."""
    targets: list[list[int]] = field(default_factory=list)
    """Of each worker its port and its process id; for `hops`, and for `fleet`, which needs the ports only."""
    lengths: list[int] = field(default_factory=list)
    """Turns of the conversations, in order; for `fleet`."""
    teams: int = 1
    """The teams to which the agents belong; for `fleet`."""
    hops: bool = True
    """Whether each turn goes to a proxy by chance; for `fleet`."""
    turns: int = 8
    """How many turns of each conversation are measured; for `hops`."""
    compacts: bool = True
    """Whether large requests may be compacted."""


async def closed(job: Job) -> dict[str, Any]:
    """Unique small requests from `concurrency` connections; with `stream`, each answered by events."""
    texts = Texts(job.seed)
    path = conversations.PATHS[job.protocol_name].encode()

    def bodies(count: int) -> list[bytes]:
        return [conversations.small_body(texts, job.protocol_name, stream=job.stream) for _ in range(count)]

    connections = [await connect(job.port) for _ in range(job.concurrency)]
    await Drive(connections, path, bodies(job.warmup), job.seconds).finished()
    ready = bodies(job.count)
    await asyncio.sleep(SETTLE)
    before = processes.cpu_seconds(job.pids)
    replies = await Drive(connections, path, ready, job.seconds).finished()
    busy = max(reply.done for reply in replies) - min(reply.sent for reply in replies)
    await asyncio.sleep(SETTLE)
    cpu = processes.cpu_seconds(job.pids) - before
    for connection in connections:
        connection.close()
    return summary(replies, cpu, busy)


async def paced(job: Job) -> dict[str, Any]:
    """Unique small requests, one every `every` seconds, whatever the answers take."""
    texts, path, loop = Texts(job.seed), conversations.PATHS[job.protocol_name].encode(), asyncio.get_running_loop()
    connections = [await connect(job.port) for _ in range(job.concurrency)]
    bodies = [conversations.small_body(texts, job.protocol_name) for _ in range(job.count + job.warmup)]
    await Drive(connections, path, bodies[job.count :], job.seconds).finished()
    idle, replies, answers = asyncio.Queue[Connection](), list[Reply](), set[asyncio.Task[None]]()
    for connection in connections:
        idle.put_nowait(connection)

    async def one(connection: Connection, body: bytes) -> None:
        replies.append(await connection.ask(path, body))
        idle.put_nowait(connection)

    await asyncio.sleep(SETTLE)
    before, began = processes.cpu_seconds(job.pids), loop.time()
    for number, body in enumerate(bodies[: job.count]):
        await asyncio.sleep(max(0.0, began + number * job.every - loop.time()))
        answers.add(loop.create_task(one(await idle.get(), body)))
    await asyncio.gather(*answers)
    busy = loop.time() - began
    await asyncio.sleep(SETTLE)
    cpu = processes.cpu_seconds(job.pids) - before
    for connection in connections:
        connection.close()
    return summary(replies, cpu, busy)


async def growing(job: Job) -> dict[str, Any]:
    """One conversation, turn by turn up to `size` bytes; CPU and time of every turn. What a server does while the next
    turn is being made belongs to it too."""
    texts = Texts(job.seed)
    path = conversations.PATHS[job.protocol_name].encode()
    connection = await connect(job.port)
    for _ in range(min(job.warmup, 20)):
        await connection.ask(path, conversations.small_body(texts, job.protocol_name))
    conversation = conversations.Conversation(texts, job.protocol_name, moving_breakpoint=job.moving_breakpoint)
    turns: list[dict[str, float]] = []
    failed = 0
    until = asyncio.get_running_loop().time() + job.seconds
    await asyncio.sleep(SETTLE)
    before = processes.cpu_seconds(job.pids)
    for _ in range(job.count):
        conversation.grow(job.step)
        body = conversation.body()
        if len(body) > job.size or asyncio.get_running_loop().time() > until:
            break
        if connection.lost:
            connection = await connect(job.port)
        reply = await connection.ask(path, body)
        await asyncio.sleep(CHEAPEST_PAUSE)
        now = processes.cpu_seconds(job.pids)
        cpu, before = now - before, now
        failed += not reply.ok
        turns.append({"kb": len(body) / 1024, "cpu_ms": 1000 * cpu, "ms": 1000 * (reply.done - reply.sent)})
    connection.close()
    return {"turns": turns, "failed": failed}


async def first(job: Job) -> dict[str, Any]:
    """The first requests of `count` conversations of `size` bytes, one every `every` seconds at most, so that what a
    server does behind an answer is over before the next request. CPU time until the answer, and all of it."""
    path, connection = conversations.PATHS[job.protocol_name].encode(), await connect(job.port)
    for number in range(job.warmup):
        await connection.ask(path, conversations.small_body(Texts(job.seed + number), job.protocol_name))
    bodies = []
    for number in range(job.count):
        conversation = conversations.Conversation(Texts(job.seed + 1000 + number), job.protocol_name)
        conversation.reach(job.size, 5 * job.step)
        conversation.ask(job.step)
        bodies.append(conversation.body())
    await asyncio.sleep(SETTLE)
    started, until_answered, replies = processes.cpu_seconds(job.pids), list[float](), list[Reply]()
    for body in bodies:
        before = processes.cpu_seconds(job.pids)
        replies.append(await connection.ask(path, body))
        until_answered.append(processes.cpu_seconds(job.pids) - before)
        await asyncio.sleep(job.every)
    cpu = processes.cpu_seconds(job.pids) - started
    connection.close()
    return {**summary(replies, cpu, 1.0), "answered_cpu_ms": 1000 * median(until_answered)}


async def sessions(job: Job) -> dict[str, Any]:
    """`count` conversations of ten growing requests, 1 to 100 KB; memory of the servers on the way."""
    path = conversations.PATHS[job.protocol_name].encode()
    connections = [await connect(job.port) for _ in range(job.concurrency)]
    for connection in connections:
        for number in range(3):
            await connection.ask(path, conversations.small_body(Texts(job.seed + number), job.protocol_name))
    await asyncio.sleep(2 * SETTLE)
    marks = [[processes.rss_mb(pid) for pid in job.pids]]
    before = processes.cpu_seconds(job.pids)
    waiting = list(range(job.count))
    total = failed = 0
    until = asyncio.get_running_loop().time() + job.seconds

    async def work(connection: Connection) -> None:
        nonlocal total, failed
        while waiting and asyncio.get_running_loop().time() < until:
            open_now = [_session(job, waiting.pop()) for _ in range(min(8, len(waiting)))]
            for turn in range(10):
                for conversation in open_now:
                    conversation.grow(11_200 if turn else 300)
                    if connection.lost:
                        connection = await connect(job.port)
                    reply = await connection.ask(path, conversation.body())
                    total, failed = total + 1, failed + (not reply.ok)
                    if total % (job.count // 2) == 0:
                        marks.append([processes.rss_mb(pid) for pid in job.pids])

    await asyncio.wait_for(asyncio.gather(*map(work, connections)), timeout=job.seconds + 60)
    await asyncio.sleep(2 * SETTLE)
    marks.append([processes.rss_mb(pid) for pid in job.pids])
    cpu = processes.cpu_seconds(job.pids) - before
    return {"requests": total, "failed": failed, "marks": marks, "cpu_ms": 1000 * cpu / max(1, total)}


def _session(job: Job, number: int) -> conversations.Conversation:
    return conversations.Conversation(Texts(job.seed + 1000 + number), job.protocol_name)


JOBS = {
    "closed": closed,
    "paced": paced,
    "growing": growing,
    "first": first,
    "sessions": sessions,
    "beside": compaction_load.beside,
    "replaying": compaction_load.replaying,
    "compacted": compaction_load.compacted,
    "soak": soak_load.soak,
    "fleet": fleet_load.work,
    "hops": hop_load.measure_hops,
    "beside_large": large_body_load.measure_beside_large_bodies,
}


def run(job: Job, prefix: Sequence[str] = ()) -> dict[str, Any]:
    """Start a generator for this job, wait for what it measured."""
    done = subprocess.run(
        [*prefix, sys.executable, "-m", "bench.load"],
        input=json.dumps(asdict(job)),
        capture_output=True,
        text=True,
        timeout=job.seconds * 2 + 120,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the load generator failed: {done.stderr.strip()[-400:]}")
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


async def main() -> None:
    job = Job(**json.load(sys.stdin))
    print(json.dumps(await JOBS[job.kind](job)))


if __name__ == "__main__":
    uvloop.run(main())
