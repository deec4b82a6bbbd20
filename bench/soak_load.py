"""Agents of Chat Completions, Responses and Messages that begin new conversations for as long as they are let, and
samples of the server."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench import processes
from bench.client import Connection
from bench.conversations import CHAT, MESSAGES, PATHS, SYSTEM, Conversation, encode
from bench.texts import Texts

if TYPE_CHECKING:
    from bench.load import Job

MODEL: Final = "soak"
TURN: Final = 2_000
LONGEST: Final = 40
RESPONSES: Final = "/v1/responses"
SAMPLES: Final = 120
_ID = re.compile(rb'"id":"(resp_[^"]+)"')


class ReadingConnection(Connection):
    """A connection that keeps the body of the last answer."""

    def __init__(self) -> None:
        super().__init__()
        self.body = b""

    def send(self, *args: Any, **more: Any) -> None:
        self.body = b""
        super().send(*args, **more)

    def on_body(self, body: bytes) -> None:
        self.body += body
        super().on_body(body)


class ListAgent:
    """One conversation of Chat Completions or Messages, which sends the whole list each time."""

    def __init__(self, texts: Texts, protocol: str) -> None:
        self.path = PATHS[protocol].encode()
        self._talk = Conversation(texts, protocol, model=MODEL)

    def request(self) -> bytes:
        """The next request's body."""
        self._talk.grow(TURN)
        return self._talk.body()

    def take(self, answer: bytes) -> None:
        """Reads an answer: the conversation makes up its own."""


class ResponsesAgent:
    """One conversation of Responses: the whole list each time, or with `chained` only what is new and the last id."""

    def __init__(self, texts: Texts, *, chained: bool) -> None:
        self.path = RESPONSES.encode()
        self._texts, self._chained, self._turns = texts, chained, 0
        self._items: list[dict[str, Any]] = []
        self._last = ""

    def request(self) -> bytes:
        """The next request's body."""
        if self._chained:
            self._items = []
        self._items += self._turn()
        self._turns += 1
        body: dict[str, Any] = {"model": MODEL, "instructions": SYSTEM, "input": self._items}
        if self._chained and self._last:
            body["previous_response_id"] = self._last
        return encode(body)

    def take(self, answer: bytes) -> None:
        """Reads an answer, for its id."""
        if found := _ID.search(answer):
            self._last = found[1].decode()

    def _turn(self) -> list[dict[str, Any]]:
        if self._chained or self._turns % 8 == 0:
            return [{"role": "user", "content": self._texts.prose(TURN)}]
        call = f"call_{self._texts.unique_name().replace('-', '')}"
        arguments = encode({"path": f"src/part_{self._turns}.py"}).decode()
        made = {"type": "function_call", "call_id": call, "name": "read_file", "arguments": arguments}
        return [made, {"type": "function_call_output", "call_id": call, "output": self._texts.code(TURN)}]


Agent = ListAgent | ResponsesAgent


async def soak(job: Job) -> dict[str, Any]:
    """`concurrency` agents, each with a request every `every` seconds; samples of the server on the way."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    counts = {"requests": 0, "failed": 0, "compacted": 0, "conversations": 0}
    agents = [loop.create_task(_work(job, number, counts, began + job.seconds)) for number in range(job.concurrency)]
    samples = []
    while (now := loop.time() - began) < job.seconds:
        samples.append({"at": now, **counts, **sample(job.pids, Path(job.folder))})
        await asyncio.sleep(max(1.0, job.seconds / SAMPLES))
    await asyncio.gather(*agents)
    samples.append({"at": loop.time() - began, **counts, **sample(job.pids, Path(job.folder))})
    return {**counts, "samples": samples}


async def _work(job: Job, number: int, counts: dict[str, int], until: float) -> None:
    loop, chance, opened = asyncio.get_running_loop(), random.Random(job.seed + number), 0
    connection = await _connect(job.port)
    due = loop.time() + job.every * number / job.concurrency
    while loop.time() < until:
        agent = _agent(job.seed + number + opened * job.concurrency, number)
        opened, counts["conversations"] = opened + 1, counts["conversations"] + 1
        for _ in range(chance.randint(2, LONGEST)):
            await asyncio.sleep(due - loop.time())
            due = max(due + job.every, loop.time())
            if loop.time() > until:
                break
            if connection.lost:
                connection = await _connect(job.port)
            reply = await connection.ask(agent.path, agent.request())
            agent.take(connection.body)
            counts["requests"] += 1
            counts["failed"] += not reply.ok
            counts["compacted"] += reply.ok and reply.state == "compacted"
    connection.close()


def _agent(seed: int, number: int) -> Agent:
    kind, texts = number % 4, Texts(seed)
    if kind < 2:
        return ListAgent(texts, (CHAT, MESSAGES)[kind])
    return ResponsesAgent(texts, chained=kind == 3)


async def _connect(port: int) -> ReadingConnection:
    _, connection = await asyncio.get_running_loop().create_connection(ReadingConnection, "127.0.0.1", port)
    return connection


def sample(pids: Sequence[int], folder: Path) -> dict[str, float]:
    """The server's use now: memory in MB, descriptors, threads, and the sizes of its files in MB."""
    files = {"wal": "accordion.db-wal", "db": "accordion.db"}
    return {
        "rss": sum(map(processes.rss_mb, pids)),
        "fds": sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids),
        "threads": sum(len(list(Path(f"/proc/{pid}/task").iterdir())) for pid in pids),
        **{name: _size_mb(folder / file) for name, file in files.items()},
        "cpu": processes.cpu_seconds(pids),
    }


def _size_mb(file: Path) -> float:
    return file.stat().st_size / 2**20 if file.exists() else 0.0
