"""A provider that costs next to nothing: `python -m bench.upstream` prints its port and serves.

It speaks enough of Chat Completions and Messages to satisfy a proxy. `POST /_mode` sets how it
answers from then on (see `Mode`); `GET /_stats` tells what has arrived. The reported usage is
a quarter of the body's bytes, so that a proxy which calibrates its counts stays near the truth.
"""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import asdict, dataclass
from typing import cast

import httptools
import uvloop

from bench import replies

_ARTIFACT = re.compile(rb"art_[0-9a-f]{12,}")


@dataclass
class Mode:
    """How to answer: as JSON, `delay_ms` later, or as `events` server-sent events.

    `pace_ms` < 0: all events in one burst; 0: one per turn of the event loop; else that far apart.
    """

    stream: bool = False
    events: int = 500
    pace_ms: float = -1.0
    delay_ms: float = 0.0
    read_every: int = 0
    """Every so many chat requests that offer `read_artifact` and name an artifact, it is called; 0: never."""


@dataclass
class Stats:
    requests: int = 0
    bytes: int = 0
    last: int = 0
    may_read: int = 0
    reads: int = 0


class Upstream(asyncio.Protocol):
    """One connection of a client; requests one after the other, no pipelining."""

    mode = Mode()
    stats = Stats()

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._size = 0
        self._kept: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            if self._transport is not None:
                self._transport.close()

    def on_message_begin(self) -> None:
        self._url = b""
        self._size = 0
        self._kept = []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._url.startswith(b"/_") or self.mode.read_every:
            self._kept.append(body)

    def on_message_complete(self) -> None:
        if self._transport is None:
            return
        if self._url.startswith(b"/_"):
            self._transport.write(self._control())
            return
        protocol_name = (
            "messages" if b"/messages" in self._url else "responses" if b"/responses" in self._url else "chat"
        )
        if self._size == 0:
            self._transport.write(replies.plain(b'{"object":"list","data":[]}'))
            return
        stats = self.stats
        stats.requests += 1
        stats.bytes += self._size
        stats.last = self._size
        if self.mode.read_every and (artifact := self._artifact_to_read()):
            self._answer(replies.read_call(artifact, self._size))
        elif self.mode.stream:
            self._stream(protocol_name)
        elif self.mode.delay_ms:
            self._loop.call_later(self.mode.delay_ms / 1000, self._answer, replies.answer(protocol_name, self._size))
        else:
            self._answer(replies.answer(protocol_name, self._size))

    def _answer(self, answer: bytes) -> None:
        if self._transport is not None:
            self._transport.write(answer)

    def _artifact_to_read(self) -> str:
        """The artifact that the request names last, every so many times; else nothing."""
        body = b"".join(self._kept)
        if b"read_artifact" not in body or not (found := _ARTIFACT.findall(body)):
            return ""
        self.stats.may_read += 1
        if self.stats.may_read % self.mode.read_every:
            return ""
        self.stats.reads += 1
        return bytes(found[-1]).decode()

    def _control(self) -> bytes:
        if self._url == b"/_mode":
            Upstream.mode = Mode(**json.loads(b"".join(self._kept)))
            Upstream.stats = Stats()
        return replies.plain(json.dumps(asdict(self.stats)).encode())

    def _stream(self, protocol_name: str) -> None:
        assert self._transport is not None
        chunks = replies.stream(protocol_name, self._size, self.mode.events)
        if self.mode.pace_ms < 0:
            self._transport.write(b"".join(chunks))
            return
        self._transport.write(chunks[0])
        self._next(chunks, 1, self._loop.time(), self.mode.pace_ms / 1000)

    def _next(self, chunks: list[bytes], at: int, started: float, pace: float) -> None:
        if self._transport is None:
            return
        if at > 1:
            self._transport.write(chunks[at - 1])
        if at >= len(chunks):
            return
        if pace:
            self._loop.call_at(started + at * pace, self._next, chunks, at + 1, started, pace)
        else:
            self._loop.call_soon(self._next, chunks, at + 1, started, pace)


async def serve() -> None:
    server = await asyncio.get_running_loop().create_server(Upstream, "127.0.0.1", 0, backlog=512)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve())
