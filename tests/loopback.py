"""A scripted provider on a loopback port: records the exact bytes of every request, answers byte by byte.

    async def script(request: Recorded, answer: Answer) -> None:
        await answer.head(200, [("Content-Type", "text/event-stream")], chunked=True)
        await answer.chunk(b"data: 1\\n\\n")
        await answer.cut()

    async with Loopback(script) as server:
        ...  # server.url, server.requests[0].body, server.connections

A script that needs nothing special is made by `replies_json`, `replies_events` or `replies_bytes`. The connection is
kept alive after a script unless it closed or cut it. A script that raises fails `async with`.
"""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import socket
import ssl
import struct
import zlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import zstandard

_LIMIT = 1024 * 1024
"""The longest head, in bytes."""

RawHeaders = tuple[tuple[bytes, bytes], ...]


@dataclass(slots=True)
class Recorded:
    """One request as it came. `raw` is every byte of it, `body` its content without the chunked framing."""

    method: str
    target: str
    version: str
    headers: RawHeaders
    connection: int
    """Counts connections from 1."""
    head: bytes
    raw: bytes = b""
    body: bytes = b""
    complete: bool = False
    """Whether all of the body was read."""

    def header(self, name: str) -> str | None:
        """The first header of that name, whatever its case."""
        wanted = name.lower().encode()
        return next((value.decode("latin-1") for key, value in self.headers if key.lower() == wanted), None)

    @property
    def names(self) -> list[str]:
        """The header names, in order and case."""
        return [name.decode("latin-1") for name, _ in self.headers]

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


class Answer:
    """A script's actions on its connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: Recorded) -> None:
        self._reader = reader
        self._writer = writer
        self._request = request
        self.sent = 0
        """Bytes handed to the socket so far."""
        self.blocked = asyncio.Event()
        """Set while `send` waits because the other side does not read."""
        self.gone: float | None = None
        """The loop's time at which the other side was seen to go away."""
        self.ended = False
        """Whether the script closed or cut the connection."""

    @property
    def target(self) -> str:
        """The target of the request that is answered."""
        return self._request.target

    async def send(self, data: bytes) -> None:
        """These bytes, as they are."""
        self._writer.write(data)
        self.sent += len(data)
        transport = self._writer.transport
        if transport.get_write_buffer_size() > transport.get_write_buffer_limits()[1]:
            self.blocked.set()
        await self._writer.drain()
        self.blocked.clear()

    async def head(
        self,
        status: int = 200,
        headers: Iterable[tuple[str, str]] = (),
        *,
        chunked: bool = False,
        length: int | None = None,
        version: str = "HTTP/1.1",
    ) -> None:
        """A status line and headers; `chunked` or `length` add the framing."""
        lines = [f"{version} {status} Scripted", *(f"{name}: {value}" for name, value in headers)]
        if chunked:
            lines.append("Transfer-Encoding: chunked")
        if length is not None:
            lines.append(f"Content-Length: {length}")
        await self.send("\r\n".join([*lines, "\r\n"]).encode("latin-1"))

    async def chunk(self, data: bytes) -> None:
        """One chunk of a chunked body."""
        await self.send(b"%x\r\n%b\r\n" % (len(data), data))

    async def last_chunk(self, trailers: Iterable[tuple[str, str]] = ()) -> None:
        """The end of a chunked body."""
        await self.send(b"0\r\n" + "".join(f"{n}: {v}\r\n" for n, v in trailers).encode() + b"\r\n")

    async def pieces(self, data: bytes, at: Iterable[int]) -> None:
        """`data` cut at these positions, each piece as a chunk of its own that leaves before the next one."""
        for piece in split(data, at):
            await self.chunk(piece)
            await asyncio.sleep(0)

    async def body(self) -> bytes:
        """The request's body; needed only with `Loopback(..., eager=True)`."""
        await _read_body(self._reader, self._request)
        return self._request.body

    async def receive(self, size: int) -> bytes:
        """Raw bytes from the other side, at most `size`; for scripts that read a body their own way."""
        return await self._reader.read(size)

    async def cut(self) -> None:
        """Reset the connection; what is still on its way is lost."""
        self.ended = True
        sock = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    async def close(self) -> None:
        """Close the connection cleanly, after what was sent."""
        self.ended = True
        self._writer.close()

    async def until_gone(self) -> float:
        """Wait until the other side goes away; returns (and keeps) the loop's time then."""
        try:
            while await self._reader.read(65536):
                pass
        except ConnectionError:
            pass
        self.ended = True
        self.gone = asyncio.get_running_loop().time()
        return self.gone


Script = Callable[[Recorded, Answer], Awaitable[None]]


@dataclass
class Loopback:
    """A provider on 127.0.0.1 with a port of its own. With `eager`, scripts begin before the body is read."""

    script: Script
    eager: bool = False
    tls: ssl.SSLContext | None = None
    requests: list[Recorded] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    connections: int = 0
    open: int = 0
    """Connections that stand now."""
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _stopped: bool = False
    _failures: list[BaseException] = field(default_factory=list)
    _server: asyncio.Server | None = None
    port: int = 0

    @property
    def url(self) -> str:
        """`http://127.0.0.1:PORT`; with TLS `https://localhost:PORT`."""
        return f"https://localhost:{self.port}" if self.tls else f"http://127.0.0.1:{self.port}"

    @property
    def host(self) -> str:
        """`HOST:PORT`, as it stands in a Host header."""
        return self.url.partition("://")[2]

    async def __aenter__(self) -> Loopback:
        self._server = await asyncio.start_server(
            self._accept, "127.0.0.1", self.port, ssl=self.tls, limit=_LIMIT, backlog=1024
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
        if self._failures and kind is None:
            raise self._failures[0]

    async def until(self, true: Callable[[], object]) -> None:
        """Wait until `true()` says so of what the server saw."""
        while not true():
            await asyncio.sleep(0.001)

    async def all_gone(self) -> None:
        """Wait until no connection stands."""
        await self.until(lambda: not self.open)

    async def stop(self) -> None:
        """Listen no more, and reset every connection."""
        self._stopped = True
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._stopped:
            # Taken in just before the end. The next provider at this port answers who asks now, not this one.
            writer.transport.abort()
            return
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.open += 1
        try:
            await self._serve(reader, writer, self.connections)
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        except Exception as error:
            self._failures.append(error)
        finally:
            self.open -= 1
            self._tasks.discard(task)
            writer.transport.abort() if not writer.is_closing() else None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: int) -> None:
        while True:
            request = await _read_head(reader, connection)
            self.requests.append(request)
            if not self.eager:
                await _read_body(reader, request)
            answer = Answer(reader, writer, request)
            self.answers.append(answer)
            await self.script(request, answer)
            if answer.ended or not request.complete:
                return


async def _read_head(reader: asyncio.StreamReader, connection: int) -> Recorded:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head[:-4].split(b"\r\n")
    method, target, version = first.decode("latin-1").split(" ")
    headers = tuple((name, value.strip()) for name, _, value in (line.partition(b":") for line in lines))
    return Recorded(method, target, version, headers, connection, head, raw=head)


async def _read_body(reader: asyncio.StreamReader, request: Recorded) -> None:
    if request.complete:
        return
    raw, body = bytearray(request.head), bytearray()
    try:
        if request.header("transfer-encoding") == "chunked":
            size = -1
            while size:
                line = await reader.readuntil(b"\r\n")
                raw += line
                size = int(line, 16)
                data = await reader.readexactly(size + 2)
                raw += data
                body += data[:size]
        else:
            left = int(request.header("content-length") or 0)
            while left:
                data = await reader.readexactly(min(left, 65536))
                left -= len(data)
                raw += data
                body += data
        request.complete = True
    finally:
        request.raw, request.body = bytes(raw), bytes(body)


async def wait_until_still(count: Callable[[], int], seconds: float = 0.4) -> None:
    """Wait until a count that grows from 0 has begun to, and then has not changed for so long.

    On a busy machine it may just have paused: test with it only what holds all the time, such as a highest value.
    """
    last = 0
    while not last or last != count():
        last = count()
        await asyncio.sleep(seconds)


@contextmanager
def full_queue() -> Iterator[int]:
    """A port whose listener takes no further connection, and refuses none."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        fillers = [socket.socket() for _ in range(8)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        yield full.getsockname()[1]
        for filler in fillers:
            filler.close()


def split(data: bytes, at: Iterable[int]) -> list[bytes]:
    """`data` cut at these positions; no empty pieces."""
    cuts = [0, *sorted(at), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(cuts) if b > a]


def compress(data: bytes, encoding: str) -> bytes:
    """`data` in a content encoding: gzip, deflate or zstd."""
    if encoding == "gzip":
        return gzip.compress(data, mtime=0)
    return zlib.compress(data) if encoding == "deflate" else zstandard.compress(data)


def events(*payloads: Any, done: bool = True, named: bool = False) -> bytes:
    """Server-sent events with JSON payloads; `named` takes each one's `type` as its event name."""
    text = ""
    for payload in payloads:
        text += f"event: {payload['type']}\n" if named else ""
        text += f"data: {json.dumps(payload, separators=(',', ':'))}\n\n"
    return (text + ("data: [DONE]\n\n" if done else "")).encode()


def replies_bytes(raw: bytes, *, close: bool = False) -> Script:
    """Answers every request with these bytes, head and all."""

    async def script(request: Recorded, answer: Answer) -> None:
        await answer.send(raw)
        if close:
            await answer.close()

    return script


def replies_json(
    value: Any, status: int = 200, headers: Sequence[tuple[str, str]] = (), *, encoding: str | None = None
) -> Script:
    """Answers every request with a JSON document."""
    body = json.dumps(value).encode()
    extra = [("Content-Type", "application/json"), *headers]
    if encoding is not None:
        body = compress(body, encoding)
        extra.append(("Content-Encoding", encoding))

    async def script(request: Recorded, answer: Answer) -> None:
        await answer.head(status, extra, length=len(body))
        await answer.send(body)

    return script


def replies_events(stream: bytes, at: Iterable[int] = (), headers: Sequence[tuple[str, str]] = ()) -> Script:
    """Answers every request with an event stream, split at these positions."""
    cuts = tuple(at)

    async def script(request: Recorded, answer: Answer) -> None:
        await answer.head(200, [("Content-Type", "text/event-stream"), *headers], chunked=True)
        await answer.pieces(stream, cuts)
        await answer.last_chunk()

    return script
