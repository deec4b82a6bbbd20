"""Servers with the minimal cost of any proxy: one that reads nothing; on uvicorn one that answers by itself, and one
that passes on by aiohttp's client. And the last with a server or a client that is written in Rust (ADR 38)."""

from __future__ import annotations

import argparse
import asyncio
import os
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import uvicorn
import uvloop

from bench import replies
from bench.conversations import CHAT

HOP_BY_HOP = frozenset({b"host", b"content-length", b"connection", b"transfer-encoding", b"keep-alive"})


class Echo:
    """Answers a chat request as the loopback provider would."""

    def __init__(self) -> None:
        self._headers, self._body = replies.parts(CHAT, 280)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body", False):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": self._headers})
        await send({"type": "http.response.body", "body": self._body})


class Passthrough:
    """Passes a request on, and the answer back as it comes."""

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] == "GET":
            await answer_health(send)
            return
        body = await read_body(receive)
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), auto_decompress=False)
        headers = [(name.decode(), value.decode()) for name, value in scope["headers"] if name not in HOP_BY_HOP]
        async with self._session.post(self._upstream + scope["path"], data=body, headers=headers) as reply:
            kept = [pair for pair in reply.raw_headers if pair[0].lower() not in {b"connection", b"transfer-encoding"}]
            await send({"type": "http.response.start", "status": reply.status, "headers": kept})
            async for piece in reply.content.iter_any():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


class Upstream(asyncio.Protocol):
    """A connection to the upstream, for one client."""

    def __init__(self, client: asyncio.Transport) -> None:
        self._client = client

    def data_received(self, data: bytes) -> None:
        self._client.write(data)


class Unread(asyncio.Protocol):
    """A client's connection, whose bytes go on as they come."""

    def __init__(self, upstream: str) -> None:
        self._upstream = urlsplit(upstream)
        self._to: asyncio.Transport | None = None
        self._first = b""

    def connection_made(self, transport: Any) -> None:
        self._client = transport

    def data_received(self, data: bytes) -> None:
        if self._to is not None:
            self._to.write(data)
        elif data.startswith(b"GET /healthz "):
            self._client.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        else:
            if not self._first:
                self._connecting = asyncio.ensure_future(self._connect())
            self._first += data

    def connection_lost(self, exc: Exception | None) -> None:
        if self._to is not None:
            self._to.close()

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        host, port = self._upstream.hostname or "", self._upstream.port or 80
        self._to, _ = await loop.create_connection(lambda: Upstream(self._client), host, port)
        self._to.write(self._first)


class RustPassthrough:
    """Passes a request on by pyreqwest, a client that is written in Rust."""

    def __init__(self, upstream: str) -> None:
        from pyreqwest.client import ClientBuilder  # not a dependency of the project

        self._upstream = upstream
        self._client = ClientBuilder().http1_only().no_proxy().build()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] == "GET":
            await answer_health(send)
            return
        body = await read_body(receive)
        headers = [(name.decode(), value.decode()) for name, value in scope["headers"] if name not in HOP_BY_HOP]
        request = self._client.post(self._upstream + scope["path"]).headers(headers).body_bytes(body).build_streamed()
        async with request as reply:
            kept = [(name.encode(), value.encode()) for name, value in reply.headers.items() if name not in HOP_BY_HOP]
            await send({"type": "http.response.start", "status": reply.status, "headers": kept})
            while (piece := await reply.body_reader.read_chunk()) is not None:
                await send({"type": "http.response.body", "body": bytes(piece), "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def answer_health(send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"ok"})


async def read_body(receive: Any) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    return body


async def relayed(port: int, upstream: str) -> None:
    """Serves for ever."""
    server = await asyncio.get_running_loop().create_server(lambda: Unread(upstream), "127.0.0.1", port)
    await server.serve_forever()


def load_passthrough() -> Passthrough:
    """Makes the application in granian's worker."""
    return Passthrough(os.environ["UPSTREAM"])


def serve_by_granian(port: int) -> None:
    from granian import Granian  # not a dependency of the project
    from granian.constants import Interfaces, Loops

    Granian(
        "bench.minimal_servers:load_passthrough", factory=True, address="127.0.0.1", port=port,
        interface=Interfaces.ASGINL, loop=Loops.uvloop, log_enabled=False,
    ).serve()  # fmt: skip


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--port", type=int, required=True)
    arguments.add_argument("--workers", type=int, default=1)
    arguments.add_argument("--echo", action="store_true")
    arguments.add_argument("--unread", action="store_true")
    arguments.add_argument("--granian", action="store_true")
    arguments.add_argument("--pyreqwest", action="store_true")
    given = arguments.parse_args()
    if given.unread:
        return uvloop.run(relayed(given.port, os.environ["UPSTREAM"]))
    if given.granian:
        return serve_by_granian(given.port)
    upstream = os.environ["UPSTREAM"]
    app = Echo() if given.echo else RustPassthrough(upstream) if given.pyreqwest else Passthrough(upstream)
    uvicorn.run(
        app, host="127.0.0.1", port=given.port, loop="uvloop", http="httptools", lifespan="off",
        access_log=False, log_level="warning",
    )  # fmt: skip


if __name__ == "__main__":
    main()
