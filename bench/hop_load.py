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
BLOCK: Final = 16
"""Turns of each conversation that are measured without a pause."""


@dataclass
class Talk:
    """A conversation, and the sessions that its requests were taken for."""

    conversation: conversations.Conversation
    sessions: list[str] = field(default_factory=list)


async def measure_hops(job: Job) -> dict[str, Any]:
    """`count` conversations of `size` bytes for each route, all served by `targets`: CPU time and latency of a turn.

    Their first turns are not measured; those of a conversation that hops reach each worker at least once. The routes
    are measured in blocks of BLOCK turns by turns, since other programs disturb both then.
    """
    connections = [await connection_to(target, job.targets) for target in job.targets]
    arms = {
        route: Arm(route, [_begin(job, 1_000 * at + n) for n in range(job.count)]) for at, route in enumerate(ROUTES)
    }
    for arm in arms.values():
        route = HOP if arm.route == HOP else STAY
        await _turns(job, connections, arm.talks, _choices(route, len(connections)), range(job.warmup))
    await asyncio.sleep(BEHIND)
    idle = await _idle_rate(job.pids)
    for start in range(0, job.turns, BLOCK):
        for route in (STAY, HOP)[:: 1 if start // BLOCK % 2 else -1]:
            turns = range(job.warmup + start, job.warmup + min(start + BLOCK, job.turns))
            await _measure_block(job, connections, arms[route], turns, idle)
    # The turn `job.warmup` would go to the worker that had all turns before.
    await _measure_block(job, connections, arms[NEW], range(job.warmup + 1, job.warmup + len(connections)), idle)
    for connection in connections:
        connection.close()
    return {route: arm.figures() for route, arm in arms.items()}


@dataclass
class Arm:
    """The conversations of one route, and what was measured of them."""

    route: str
    talks: list[Talk]
    cpu_seconds: float = 0.0
    replies: list[Reply] = field(default_factory=list)

    def figures(self) -> dict[str, float]:
        """The figures of a turn."""
        took = sorted(1000 * (reply.done - reply.sent) for reply in self.replies)
        return {
            "turns": len(self.replies),
            "failed": sum(not reply.ok for reply in self.replies),
            "compacted": sum(reply.state == "compacted" for reply in self.replies),
            "split": sum(len(set(talk.sessions)) > 1 for talk in self.talks),
            "cpu_ms": 1000 * self.cpu_seconds / len(self.replies),
            "p50_ms": took[len(took) // 2],
        }


async def _measure_block(job: Job, connections: Sequence[Connection], arm: Arm, turns: range, idle: float) -> None:
    """Plays turns of an arm. What is done behind them belongs to them; `idle` is the CPU time a second without any."""
    loop = asyncio.get_running_loop()
    since, before = loop.time(), processes.cpu_seconds(job.pids)
    arm.replies += await _turns(job, connections, arm.talks, _choices(arm.route, len(connections)), turns)
    await asyncio.sleep(BEHIND)
    arm.cpu_seconds += processes.cpu_seconds(job.pids) - before - idle * (loop.time() - since)


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
    talks: Sequence[Talk],
    choose: Callable[[int, int], int],
    turns: range,
) -> list[Reply]:
    """Each conversation's turns of these numbers, one request at a time."""
    loop, replies = asyncio.get_running_loop(), list[Reply]()
    due, path = loop.time(), conversations.PATHS[job.protocol_name].encode()
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
