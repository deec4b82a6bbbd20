"""A job of the load generator: small requests at a steady pace beside large bodies, and the server's memory."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, Final

from bench import conversations, processes
from bench.body_shapes import SHAPES
from bench.client import HEAD, Connection, connect
from bench.connection_load import percentile
from bench.texts import Texts

if TYPE_CHECKING:
    from bench.load import Job

SETTLE: Final = 1.0
LONGEST: Final = 120.0


async def measure_beside_large_bodies(job: Job) -> dict[str, Any]:
    """Small requests, one every `every` seconds whatever the answers take, beside `concurrency` senders of the body
    called `shape`, each of which sends it again as soon as it is answered; none where `shape` is empty. A request's
    time begins when it is due."""
    path, loop, over = conversations.PATHS[job.protocol_name].encode(), asyncio.get_running_loop(), Event()
    body = SHAPES[job.shape]() if job.shape else b""
    texts, took, failed = Texts(job.seed), list[float](), 0
    bodies = [conversations.small_body(texts, job.protocol_name) for _ in range(int(job.seconds / job.every))]
    idle = asyncio.Queue[Connection]()
    for _ in range(64):
        connection = await connect(job.port)
        await connection.ask(path, conversations.small_body(texts, job.protocol_name))
        idle.put_nowait(connection)

    async def one(small: bytes, due: float) -> None:
        nonlocal failed
        connection = await idle.get()
        reply = await connection.ask(path, small)
        idle.put_nowait(connection)
        failed += not reply.ok
        took.append(1000 * (time.perf_counter() - due))

    await asyncio.sleep(SETTLE)
    _forget_peaks(job.pids)
    before, cpu = sum(map(processes.rss_mb, job.pids)), processes.cpu_seconds(job.pids)
    senders = [
        asyncio.create_task(asyncio.to_thread(_send, job.port, HEAD % (path, b"", len(body), body), over.is_set))
        for _ in range(job.concurrency if body else 0)
    ]
    began, asked = time.perf_counter(), list[asyncio.Task[None]]()
    for number, small in enumerate(bodies):
        due = began + number * job.every
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        asked.append(loop.create_task(one(small, due)))
    await asyncio.gather(*asked)
    over.set()
    large = [each for sent in await asyncio.gather(*senders) for each in sent]
    cpu = processes.cpu_seconds(job.pids) - cpu
    peak = sum(map(_peak_mb, job.pids))
    statuses = Counter(status for status, _ in large)
    return {
        "mb": len(body) / 1e6,
        "requests": len(took),
        "failed": failed,
        "p50_ms": percentile(took, 0.5),
        "p99_ms": percentile(took, 0.99),
        "longest_ms": max(took),
        "large": len(large),
        "statuses": ", ".join(f"{status}" for status in sorted(statuses)),
        "large_ms": percentile([taken for _, taken in large], 0.5),
        "large_cpu_ms": 1000 * cpu / len(large) if large else 0.0,
        "peak_mb": peak - before,
    }


def _send(port: int, request: bytes, over: Callable[[], bool]) -> list[tuple[int, float]]:
    """The statuses of the answers to this request, and milliseconds that each took; from a thread, since whoever
    measures others must not be held up itself."""
    answers = list[tuple[int, float]]()
    while not over():
        began = time.monotonic()
        with socket.create_connection(("127.0.0.1", port), timeout=LONGEST) as connection:
            connection.sendall(request)
            head = connection.recv(65_536)
        status = int(head.split(b" ", 2)[1]) if head else 0
        answers.append((status, 1000 * (time.monotonic() - began)))
    return answers


def _forget_peaks(pids: list[int]) -> None:
    for pid in pids:
        Path(f"/proc/{pid}/clear_refs").write_text("5")


def _peak_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:")), 0.0)
