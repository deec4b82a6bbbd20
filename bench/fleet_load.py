"""The load generator's job of agents at work behind several proxies: each turn goes to a proxy by chance."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from bench import conversations, processes
from bench.client import Connection, connect
from bench.hop_load import BEHIND
from bench.texts import Texts

if TYPE_CHECKING:
    from bench.load import Job

MODEL: Final = "fleet"
"""Nobody knows it, so its window is the one that fleet.yaml assumes."""
TEAMS: Final = 12


@dataclass
class Session:
    """One agent's conversation, and what became of it."""

    number: int
    key: str
    """The team's proxy key."""
    length: int
    conversation: conversations.Conversation
    sessions: set[str] = field(default_factory=set)
    """The sessions that its requests were taken for: one, if nothing is wrong."""
    compactions: int = 0
    turns_until_compacted: int = 0
    body: bytes = b""


async def work(job: Job) -> dict[str, Any]:
    """`count` agents; each has as many turns as `lengths` gives it, in order, and pauses `every` seconds after each.

    With `hops`, each turn goes to one of the proxies by chance, else all of an agent's to one of them.
    """
    chance = random.Random(job.seed)
    agents = [
        Session(n, f"team-{n % job.teams}", job.lengths[n % len(job.lengths)], _conversation(job, n))
        for n in range(job.count)
    ]
    waiting, counts = agents[::-1], Counter[str]()
    before = processes.cpu_seconds(job.pids)

    async def serve() -> None:
        connections = [await connect(port) for port, _ in job.targets]
        while waiting:
            await _play(job, waiting.pop(), connections, chance, counts)
        for connection in connections:
            connection.close()

    await asyncio.gather(*(serve() for _ in range(min(job.concurrency, job.count))))
    await asyncio.sleep(BEHIND)
    cpu = processes.cpu_seconds(job.pids) - before
    compacted = [each for each in agents if each.compactions]
    return {
        **{name: counts[name] for name in ("turns", "failed")},
        "compactions": sum(each.compactions for each in agents),
        "until_compacted": min((each.turns_until_compacted for each in compacted), default=0),
        "split": sum(len(each.sessions) > 1 for each in agents),
        "cpu_ms": 1000 * cpu / max(1, counts["turns"]),
        # Some of the compacted conversations, to be compared with their transcripts.
        "bodies": [
            [sorted(each.sessions), each.key, each.body.decode()] for each in compacted[:: len(compacted) // 8 + 1]
        ],
    }


async def _play(
    job: Job, agent: Session, connections: list[Connection], chance: random.Random, counts: Counter[str]
) -> None:
    path, header = conversations.PATHS[job.protocol_name].encode(), f"x-accordion-key: {agent.key}\r\n".encode()
    at = agent.number % len(connections)
    for turn in range(agent.length):
        at = chance.randrange(len(connections)) if job.hops else at
        if connections[at].lost:
            connections[at] = await connect(job.targets[at][0])
        agent.conversation.grow(job.step)
        agent.body = agent.conversation.body()
        reply = await connections[at].ask(path, agent.body, header)
        agent.sessions.add(reply.session)
        counts["turns"] += 1
        counts["failed"] += not reply.ok
        if reply.ok and reply.state == "compacted":
            agent.compactions += 1
            agent.turns_until_compacted = agent.turns_until_compacted or turn + 1
        await asyncio.sleep(job.every)


def _conversation(job: Job, number: int) -> conversations.Conversation:
    return conversations.Conversation(Texts(1_000_000 * job.seed + number), job.protocol_name, model=MODEL)


def lengths(chance: random.Random, count: int, longest: int) -> Sequence[int]:
    """So many lengths of conversations in turns, half of them in the lower quarter."""
    return [1 + int(longest * chance.random() ** 2 * 0.999) for _ in range(count)]
