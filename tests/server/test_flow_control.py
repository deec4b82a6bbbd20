"""A client from which nothing is taken for now is looked after all the same; who has only said all has not gone."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import uvloop
from starlette.types import Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.server import ServerState

from accordion.http.proxy_app import LOST
from accordion.server.uvicorn_compat import ClientConnection

FIRST, SENT = 100_000, 120_000
"""More than waits to be taken, and with what the system holds beside that."""
LINGER = struct.pack("ii", 1, 0)


class Server:
    """Takes nothing of a request until it is told to; notes what it then takes, and what became of the client."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.taking = asyncio.Event()
        self.taken = 0
        self.lost: asyncio.Future[None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.lost = scope["state"][LOST]
        self.asked.set()
        await self.taking.wait()
        more = True
        while more:
            message = await receive()
            self.taken += len(message.get("body", b""))
            more = message.get("more_body", False)


@asynccontextmanager
async def open_request(
    *lines: bytes, body: bytes = b"x" * SENT
) -> AsyncIterator[tuple[Server, socket.socket, ClientConnection]]:
    """A request that is not read to its end, its client, and its connection."""
    server, made = Server(), list[ClientConnection]()
    loop = asyncio.get_running_loop()
    config = Config(cast(Any, server), lifespan="off")
    config.load()

    def make() -> ClientConnection:
        made.append(ClientConnection(config, ServerState(), {}, loop))
        return made[-1]

    listening = await loop.create_server(make, "127.0.0.1", 0)
    with socket.socket() as client:
        client.setblocking(False)
        await loop.sock_connect(client, listening.sockets[0].getsockname())
        await loop.sock_sendall(client, b"\r\n".join([b"POST / HTTP/1.1", b"Host: a", *lines, b"\r\n"]) + body[:FIRST])
        await server.asked.wait()
        while not made[0].flow.read_paused:
            await asyncio.sleep(0.01)
        await loop.sock_sendall(client, body[FIRST:])
        yield server, client, made[0]
    server.taking.set()
    listening.close()


LONGER, WHOLE = (b"Content-Length: %d" % length for length in (SENT + 1, SENT))
CHUNKED = b"Transfer-Encoding: chunked"
IN_CHUNKS = b"%x\r\n%b\r\n" % (SENT, b"x" * SENT)


@pytest.mark.parametrize("line", [LONGER, WHOLE])
def test_a_reset_is_noticed(line: bytes) -> None:
    async def play() -> None:
        async with open_request(line) as (server, client, _):
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)
            client.close()
            await asyncio.wait_for(server.lost, 30)

    uvloop.run(play())


def test_an_end_in_the_middle_of_a_body_is_noticed() -> None:
    async def play() -> None:
        async with open_request(LONGER) as (server, client, _):
            client.close()
            await asyncio.wait_for(server.lost, 30)

    uvloop.run(play())


@pytest.mark.parametrize("line", [WHOLE, CHUNKED])
def test_a_client_that_has_said_all_is_there_until_that_was_read(line: bytes) -> None:
    async def play() -> None:
        body = IN_CHUNKS + b"0\r\n\r\n" if line is CHUNKED else b"x" * SENT
        async with open_request(line, body=body) as (server, client, _):
            client.shutdown(socket.SHUT_WR)
            await asyncio.sleep(1.2)
            assert not server.lost.done()
            server.taking.set()
            while server.taken < SENT:
                await asyncio.sleep(0.01)
            assert not server.lost.done()

    uvloop.run(play())


def test_a_client_that_is_there_is_waited_for() -> None:
    async def play() -> None:
        async with open_request(LONGER) as (server, _, connection):
            await asyncio.sleep(1.2)
            assert not server.lost.done()
            assert not connection.transport.is_closing()

    uvloop.run(play())
