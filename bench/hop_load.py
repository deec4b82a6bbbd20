"""The load generator's jobs of conversations that stay with one worker, or go to another worker with each turn."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from bench import conversations, processes
from bench.client import Connection, Reply, connect
from bench.compaction_load import SMALL_MODEL
from bench.texts import Texts

if TYPE_CHECKING:
    from bench.load import Job

STAY, HOP, NEW = ROUTES = ("stays", "hops", "is new there")
"""Each turn to the same worker; to the next worker; and, of a conversation that one worker had so far, one turn to each
of the others."""
APART: Final = 0.04
"""Seconds from one request to the next. A conversation has its next turn after all others had theirs, so that what is
written behind a response is in the store by then, as it is when an agent works between two turns."""
BEHIND: Final = 1.5
"""Seconds until what is written behind requests is written."""
IDLE: Final = 2.0


@dataclass
class Talk:
    """A conversation, and the sessions that its requests were taken for."""

    conversation: conversations.Conversation
    sessions: list[str] = field(default_factory=list)


async def measure_hops(job: Job) -> dict[str, Any]:
    """`count` conversations of `size` bytes for each route, all served by `targets`: CPU time and latency of a turn.

    Their first turns are not measured; those of a conversation that hops reach each worker at least once.
    """
    connections = [await connection_to(target, job.targets) for target in job.targets]
    path = conversations.PATHS[job.protocol_name].encode()
    figures = {route: await _measure_route(job, connections, path, route) for route in ROUTES}
    for connection in connections:
        connection.close()
    return figures


async def _measure_route(job: Job, connections: Sequence[Connection], path: bytes, route: str) -> dict[str, float]:
    talks = [_begin(job, 1_000 * ROUTES.index(route) + number) for number in range(job.count)]
    at, counts = _choices(route, len(connections)), range(job.warmup)
    await _turns(job, connections, path, talks, _choices(HOP if route == HOP else STAY, len(connections)), counts)
    await asyncio.sleep(BEHIND)
    idle = await _idle_rate(job.pids)
    loop = asyncio.get_running_loop()
    since, before = loop.time(), processes.cpu_seconds(job.pids)
    turns = len(connections) - 1 if route == NEW else job.turns
    replies = await _turns(job, connections, path, talks, at, range(job.warmup, job.warmup + turns))
    await asyncio.sleep(BEHIND)
    cpu = processes.cpu_seconds(job.pids) - before - idle * (loop.time() - since)
    took = sorted(1000 * (reply.done - reply.sent) for reply in replies)
    return {
        "turns": len(replies),
        "failed": sum(not reply.ok for reply in replies),
        "folded": sum(reply.state == "folded" for reply in replies),
        "split": sum(len(set(talk.sessions)) > 1 for talk in talks),
        "cpu_ms": 1000 * cpu / len(replies),
        "p50_ms": took[len(took) // 2],
    }


def _begin(job: Job, number: int) -> Talk:
    talk = conversations.Conversation(Texts(job.seed + number), job.protocol_name, model=SMALL_MODEL)
    talk.reach(job.size, job.step)
    talk.ask(job.step)
    return Talk(talk)


def _choices(route: str, workers: int) -> Callable[[int, int], int]:
    """Returns a function from a conversation's number and its turn to the worker that gets the turn."""
    if route == STAY:
        return lambda number, turn: number % workers
    return lambda number, turn: (number + turn) % workers


async def _turns(
    job: Job,
    connections: Sequence[Connection],
    path: bytes,
    talks: Sequence[Talk],
    choose: Callable[[int, int], int],
    turns: range,
) -> list[Reply]:
    """Each conversation's turns of these numbers, one request at a time."""
    loop, replies = asyncio.get_running_loop(), list[Reply]()
    due = loop.time()
    for turn in turns:
        for number, talk in enumerate(talks):
            body = talk.conversation.body()
            await asyncio.sleep(due - loop.time())
            due = max(due + APART, loop.time())
            reply = await connections[choose(number, turn)].ask(path, body)
            talk.sessions.append(reply.session)
            talk.conversation.grow(job.step)
            replies.append(reply)
    return replies


async def _idle_rate(pids: Sequence[int]) -> float:
    """CPU seconds that the servers take in a second without any request."""
    loop = asyncio.get_running_loop()
    since, before = loop.time(), processes.cpu_seconds(pids)
    await asyncio.sleep(IDLE)
    return (processes.cpu_seconds(pids) - before) / (loop.time() - since)


async def connection_to(target: Sequence[int], targets: Sequence[Sequence[int]]) -> Connection:
    """A connection that the worker of a target, its port and its process id, has accepted."""
    port, worker = target
    with _stopped([pid for other_port, pid in targets if other_port == port and pid != worker]):
        connection = await connect(port)
        reply = await connection.ask(b"/v1/chat/completions", conversations.small_body(Texts(worker)))
    if not reply.ok:
        raise ConnectionError(f"the worker {worker} answered {reply.status}")
    return connection


@contextmanager
def _stopped(pids: Sequence[int]) -> Iterator[None]:
    """These processes do nothing until the block ends."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
