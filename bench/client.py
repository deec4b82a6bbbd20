"""A cheap HTTP/1.1 client connection: one request at a time, answered through a callback."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import httptools

HEAD = (
    b"POST %b HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer sk-bench\r\nx-api-key: sk-bench\r\n"
    b"anthropic-version: 2023-06-01\r\naccept: */*\r\naccept-encoding: identity\r\nuser-agent: bench\r\n"
    b"content-type: application/json\r\n%bcontent-length: %d\r\n\r\n%b"
)


@dataclass(slots=True)
class Reply:
    """When a request left, when the first byte of the answer's body came, and when all of it had."""

    status: int
    sent: float
    first: float
    done: float
    compacted: str = ""
    """The response's compaction header; empty if there is none."""
    session: str = ""
    """The session that a request was taken for; empty if the response names none."""

    @property
    def ok(self) -> bool:
        return self.status == 200

    @property
    def state(self) -> str:
        """The state in the compaction header (`compacted`, `replayed`, `failed`); empty if there is none."""
        return str(json.loads(self.compacted).get("state", "")) if self.compacted else ""


class Connection(asyncio.Protocol):
    """A keep-alive connection. A lost one answers with status 0 and cannot be used again."""

    def __init__(self) -> None:
        self.lost = False
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._then: Callable[[Reply], None] | None = None
        self._sent = self._first = 0.0
        self._compacted = self._session = ""

    def send(self, path: bytes, body: bytes, then: Callable[[Reply], None], headers: bytes = b"") -> None:
        """`headers` are more of them, each with its line end."""
        assert self._transport is not None
        self._then = then
        self._first = 0.0
        self._compacted = self._session = ""
        self._sent = time.perf_counter()
        self._transport.write(HEAD % (path, headers, len(body), body))

    async def ask(self, path: bytes, body: bytes, headers: bytes = b"") -> Reply:
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.send(path, body, answer.set_result, headers)
        return await answer

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self._answer(0)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        if name == b"x-accordion-compaction":
            self._compacted = value.decode()
        elif name == b"x-accordion-session":
            self._session = value.decode()

    def on_body(self, body: bytes) -> None:
        if not self._first:
            self._first = time.perf_counter()

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if not self._parser.should_keep_alive():
            self.lost = True
        self._answer(status)

    def _answer(self, status: int) -> None:
        then, self._then = self._then, None
        if then is not None:
            now = time.perf_counter()
            then(Reply(status, self._sent, self._first or now, now, self._compacted, self._session))


async def connect(port: int) -> Connection:
    _, connection = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", port)
    return connection
