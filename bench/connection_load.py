"""Keeps connections busy and summarizes the responses in figures."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from bench.client import Connection, Reply


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


class Drive:
    """Keeps every connection busy: the next body leaves when the last answer is complete."""

    def __init__(self, connections: list[Connection], path: bytes, bodies: list[bytes], seconds: float) -> None:
        self._path = path
        self._bodies = bodies[::-1]
        self._loop = asyncio.get_running_loop()
        self._until = self._loop.time() + seconds
        self._done = self._loop.create_future()
        self._busy = 0
        self.replies: list[Reply] = []
        for connection in connections:
            self._next(connection)

    async def finished(self) -> list[Reply]:
        await asyncio.wait_for(self._done, timeout=60 + self._until - self._loop.time())
        return self.replies

    def _next(self, connection: Connection) -> None:
        if self._bodies and not connection.lost and self._loop.time() < self._until:
            self._busy += 1
            connection.send(self._path, self._bodies.pop(), lambda reply: self._answered(connection, reply))
        elif not self._busy and not self._done.done():
            self._done.set_result(None)

    def _answered(self, connection: Connection, reply: Reply) -> None:
        self._busy -= 1
        self.replies.append(reply)
        self._next(connection)


def summary(replies: list[Reply], cpu: float, busy: float) -> dict[str, Any]:
    good = [reply for reply in replies if reply.ok]
    took = [1000 * (reply.done - reply.sent) for reply in good]
    first = [1000 * (reply.first - reply.sent) for reply in good]
    return {
        "requests": len(replies),
        "failed": len(replies) - len(good),
        "rps": len(good) / busy,
        "cpu_ms": 1000 * cpu / max(1, len(good)),
        "p50_ms": percentile(took, 0.5),
        "p99_ms": percentile(took, 0.99),
        "first_p50_ms": percentile(first, 0.5),
        "first_p99_ms": percentile(first, 0.99),
    }
