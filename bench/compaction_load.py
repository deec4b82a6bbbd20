"""Jobs of the load generator that need compactions: small requests beside them, replays, many compacted
conversations."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

from bench import conversations, processes
from bench.client import Connection, Reply, connect
from bench.connection_load import Drive, percentile, summary
from bench.texts import Texts

if TYPE_CHECKING:
    from bench.load import Job

MODEL: Final = "bench"
"""Nobody knows it, so its window is the one that compaction.yaml assumes."""
SMALL_MODEL: Final = "bench-small"
TURN: Final = 4_096
OFF: Final = b"x-accordion-compact: off\r\n"
SETTLE: Final = 0.25
BEHIND: Final = 1.0
"""Seconds until what is written behind requests is written; what was said is gathered for half a second."""
IDLE: Final = 3.0
BLOCK: Final = 10
PAUSE: Final = 0.01
WARM: Final = (0.80, 0.92)
"""How much of a conversation was there at the requests before the one that compacts: all but the last of it is counted,
and what an extract is made of was looked up at the soft threshold."""


def label(name: str) -> bytes:
    """A header that keeps this conversation apart from others of the same content."""
    return f"x-accordion-session: bench-{name}\r\n".encode()


def conversation(seed: int, size: int, model: str = MODEL) -> list[bytes]:
    """Bodies of one agent's conversation: those of WARM, and the whole of `size` bytes. The user spoke last in each."""
    talk, bodies = conversations.Conversation(Texts(seed), model=model), list[bytes]()
    for share in (*WARM, 1.0):
        talk.reach(int(size * share), TURN)
        talk.ask(TURN)
        bodies.append(talk.body())
    return bodies


async def beside(job: Job) -> dict[str, Any]:
    """Small requests from `concurrency` connections for `seconds`, and every so often a large one that is to compact
    (none where `every` is 0). The large conversations are known to the proxy by then, as live."""
    texts, path = Texts(job.seed), conversations.PATHS[job.protocol_name].encode()
    large = [
        conversation(job.seed + 10_000 + n, job.size) for n in range(int(job.seconds / job.every) if job.every else 0)
    ]
    headers = [label(f"{job.seed}-{job.compacts}-{n}") + (b"" if job.compacts else OFF) for n in range(len(large))]
    connections = [await connect(job.port) for _ in range(job.concurrency)]
    heavy = await connect(job.port)
    for bodies, each in zip(large, headers, strict=True):
        for body in bodies[:-1]:
            await heavy.ask(path, body, each)
    ready = [conversations.small_body(texts, job.protocol_name) for _ in range(int(job.count))]
    await Drive(connections, path, ready[: job.warmup], 5.0).finished()
    await asyncio.sleep(SETTLE)
    before = processes.cpu_seconds(job.pids)
    drive = Drive(connections, path, ready[job.warmup :], job.seconds)
    pacing = asyncio.create_task(_paced(heavy, path, [bodies[-1] for bodies in large], headers, job.every))
    replies = await drive.finished()
    slow = await pacing
    await asyncio.sleep(SETTLE)
    cpu = processes.cpu_seconds(job.pids) - before
    for connection in (*connections, heavy):
        connection.close()
    busy = max(reply.done for reply in replies) - min(reply.sent for reply in replies)
    took = [1000 * (reply.done - reply.sent) for reply in replies if reply.ok]
    return {
        **summary(replies, cpu, busy),
        "p999_ms": percentile(took, 0.999),
        "large": len(slow),
        "large_failed": sum(not reply.ok for reply in slow),
        "compactions": sum(reply.state == "compacted" for reply in slow),
        "large_p50_ms": percentile([1000 * (reply.done - reply.sent) for reply in slow], 0.5),
    }


async def _paced(
    connection: Connection, path: bytes, bodies: list[bytes], headers: list[bytes], every: float
) -> list[Reply]:
    loop = asyncio.get_running_loop()
    began, replies = loop.time(), list[Reply]()
    for number, (body, header) in enumerate(zip(bodies, headers, strict=True)):
        await asyncio.sleep(max(0.0, began + (number + 0.5) * every - loop.time()))
        replies.append(await connection.ask(path, body, header))
    return replies


async def _idle(pids: list[int]) -> float:
    """CPU seconds that the server takes in a second without any request."""
    since, before = time.monotonic(), processes.cpu_seconds(pids)
    await asyncio.sleep(IDLE)
    return (processes.cpu_seconds(pids) - before) / (time.monotonic() - since)


async def replaying(job: Job) -> dict[str, Any]:
    """Two conversations of the same size, of which one is compacted, in turns of BLOCK requests: CPU time of each
    block, with what it left to be written behind it, less what the server takes in that time anyway."""
    path, connection = conversations.PATHS[job.protocol_name].encode(), await connect(job.port)
    blocks = list[dict[str, float]]()
    arms = {"compacted": label(f"replay-{job.seed}"), "plain": label(f"plain-{job.seed}") + OFF}
    talks = {
        name: conversations.Conversation(Texts(job.seed + 5_000 * at), model=MODEL) for at, name in enumerate(arms)
    }
    for name, talk in talks.items():
        talk.reach(job.size, TURN)
        talk.ask(TURN)
        for _ in range(BLOCK // 2):
            # The first find neither reader nor counts warm.
            await connection.ask(path, talk.body(), arms[name])
            talk.grow(TURN)
    await asyncio.sleep(BEHIND)
    idle = await _idle(job.pids)
    for number in range(job.count):
        block: dict[str, float] = {}
        for name, header in list(arms.items())[:: 1 if number % 2 else -1]:
            await asyncio.sleep(SETTLE)
            since, before, replies = time.monotonic(), processes.cpu_seconds(job.pids), list[Reply]()
            for _ in range(BLOCK):
                talks[name].grow(TURN)
                replies.append(await connection.ask(path, talks[name].body(), header))
                await asyncio.sleep(PAUSE)
            await asyncio.sleep(BEHIND)
            took = processes.cpu_seconds(job.pids) - before - idle * (time.monotonic() - since)
            block[f"{name}_cpu"] = 1000 * took / BLOCK
            block[f"{name}_ms"] = percentile([1000 * (reply.done - reply.sent) for reply in replies], 0.5)
            right = [reply.ok and (reply.state == "replayed") == (name == "compacted") for reply in replies]
            block[f"{name}_ok"] = float(sum(right))
        blocks.append(block)
    connection.close()
    return {"blocks": blocks}


async def compacted(job: Job) -> dict[str, Any]:
    """`count` conversations, each compacted once and asked on twice; memory of the servers on the way."""
    path = conversations.PATHS[job.protocol_name].encode()
    connections = [await connect(job.port) for _ in range(job.concurrency)]
    for connection in connections:
        await connection.ask(path, conversations.small_body(Texts(job.seed), job.protocol_name))
    await asyncio.sleep(2 * SETTLE)
    marks = [[processes.rss_mb(pid) for pid in job.pids]]
    waiting, compactions, failed = list(range(job.count)), 0, 0
    until = asyncio.get_running_loop().time() + job.seconds

    async def work(connection: Connection) -> None:
        nonlocal compactions, failed
        while waiting and asyncio.get_running_loop().time() < until:
            number = waiting.pop()
            header = label(f"memory-{job.seed}-{number}")
            talk = conversations.Conversation(Texts(job.seed + 1_000 + number), model=SMALL_MODEL)
            talk.reach(job.size, TURN)
            for _ in range(3):
                talk.ask(TURN)
                reply = await connection.ask(path, talk.body(), header)
                failed += not reply.ok
                compactions += reply.state == "compacted"
            if len(waiting) == job.count // 2:
                marks.append([processes.rss_mb(pid) for pid in job.pids])

    await asyncio.gather(*map(work, connections))
    await asyncio.sleep(2 * SETTLE)
    marks.append([processes.rss_mb(pid) for pid in job.pids])
    return {"conversations": job.count - len(waiting), "compactions": compactions, "failed": failed, "marks": marks}
