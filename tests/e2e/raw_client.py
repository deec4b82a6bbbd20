"""A client that sends exactly the bytes it is given, and reads exactly what comes: HTTP/1.1 over a socket."""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.proxy_process import Proxy

Pairs = Iterable[tuple[str, str]]


@dataclass
class Reply:
    """One answer. `ended` says that its body came to the end that its head announced."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes = b""
    ended: bool = False
    trailers: list[bytes] = field(default_factory=list)

    def header(self, name: str) -> str | None:
        """The first header of that name, whatever its case."""
        wanted = name.lower().encode()
        return next((value.decode("latin-1") for key, value in self.headers if key.lower() == wanted), None)

    @property
    def foreign(self) -> list[tuple[bytes, bytes]]:
        """The headers that are not the proxy's own, nor the framing of this connection."""
        own = (b"connection", b"transfer-encoding", b"keep-alive")
        return [pair for pair in self.headers if not pair[0].startswith(b"x-accordion-") and pair[0].lower() not in own]


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._method = "GET"

    async def send(self, data: bytes) -> None:
        """These bytes, as they are."""
        self._writer.write(data)
        await self._writer.drain()

    async def ask(self, method: str, target: str, headers: Pairs = (), body: bytes | None = None) -> None:
        """A request; its Host and, with a body, its Content-Length are added in front of the headers."""
        await self.send(self.head_of(method, target, headers, None if body is None else len(body)) + (body or b""))

    def head_of(self, method: str, target: str, headers: Pairs = (), length: int | None = None) -> bytes:
        """The head of a request that `reply` will be about."""
        self._method = method
        framing = [] if length is None else [("Content-Length", str(length))]
        lines = [f"{name}: {value}" for name, value in [("Host", "localhost"), *framing, *headers]]
        return "\r\n".join([f"{method} {target} HTTP/1.1", *lines, "\r\n"]).encode("latin-1")

    async def head(self) -> Reply:
        """The next answer's head. Raises ConnectionError where none comes."""
        try:
            raw = await self._reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            raise ConnectionResetError(f"no answer, but {error.partial!r}") from error
        first, *lines = raw[:-4].split(b"\r\n")
        matched = re.fullmatch(rb"HTTP/1\.1 (\d{3}) .*", first)
        assert matched is not None, first
        pairs = [(name, value.strip()) for name, _, value in (line.partition(b":") for line in lines)]
        return Reply(int(matched[1]), pairs)

    async def reply(self) -> Reply:
        """The next answer, whole, or as much of it as came."""
        found = await self.head()
        async for piece in self.pieces(found):
            found.body += piece
        return found

    async def pieces(self, reply: Reply) -> AsyncIterator[bytes]:
        """The body as it arrives; at its proper end `reply.ended` is set."""
        if self._method == "HEAD" or reply.status in (204, 304) or reply.status < 200:
            reply.ended = True
            return
        try:
            if (reply.header("transfer-encoding") or "").lower() == "chunked":
                async for piece in self._chunks(reply):
                    yield piece
            elif (length := reply.header("content-length")) is not None:
                left = int(length)
                while left:
                    piece = await self._reader.read(min(left, 65536))
                    if not piece:
                        return
                    left -= len(piece)
                    yield piece
                reply.ended = True
            else:
                while piece := await self._reader.read(65536):
                    yield piece
        except (asyncio.IncompleteReadError, ConnectionError):
            return

    async def _chunks(self, reply: Reply) -> AsyncIterator[bytes]:
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            yield (await self._reader.readexactly(size + 2))[:-2]
        while line := (await self._reader.readuntil(b"\r\n"))[:-2]:
            reply.trailers.append(line)
        reply.ended = True

    async def closed(self) -> bytes:
        """Waits until the other side closes; returns what still came."""
        try:
            return await self._reader.read()
        except ConnectionError:
            return b""

    def leave(self) -> None:
        """Go away at once: what the system has taken still goes out, and the end behind it."""
        self._writer.transport.abort()

    def reset(self) -> None:
        """Go away by a reset, which nothing goes out before."""
        linger = struct.pack("ii", 1, 0)
        self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.leave()


@asynccontextmanager
async def connected(proxy: Proxy, *, window: int | None = None) -> AsyncIterator[Client]:
    """A connection to the proxy; `window` bounds in bytes what this side takes in without reading it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port, limit=window or 2**20)
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()


async def ask(proxy: Proxy, method: str, target: str, headers: Pairs = (), body: bytes | None = None) -> Reply:
    """One request on a connection of its own, and its answer."""
    async with connected(proxy) as client:
        await client.ask(method, target, headers, body)
        return await client.reply()


async def post(proxy: Proxy, target: str, body: bytes, *headers: tuple[str, str]) -> Reply:
    """A JSON request."""
    return await ask(proxy, "POST", target, [("Content-Type", "application/json"), *headers], body)
