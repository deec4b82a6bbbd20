"""A connection on which no request comes is closed; one that is used is not, however long that takes."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from starlette.types import Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.server import ServerState

from accordion.faces.connection import Connection

REQUEST = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"
KEEPALIVE = 0.05


class Wire(asyncio.Transport):
    """A client that stays until the connection is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.answered = asyncio.Event()
        self.closed = asyncio.Event()

    def write(self, data: Any) -> None:
        self.written += data
        self.answered.set()

    def close(self) -> None:
        self.closed.set()

    def is_closing(self) -> bool:
        return self.closed.is_set()

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class Server:
    """Answers each request when it is told to."""

    def __init__(self) -> None:
        self.answering = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.answering.wait()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})


def connected(server: Server) -> tuple[Connection, Wire]:
    config = Config(cast(Any, server), timeout_keep_alive=cast(int, KEEPALIVE), lifespan="off")
    config.load()
    connection, wire = Connection(config, ServerState(), {}, asyncio.get_running_loop()), Wire()
    connection.connection_made(wire)
    return connection, wire


async def used(server: Server) -> tuple[Connection, Wire]:
    """A connection on which a request was answered."""
    connection, wire = connected(server)
    server.answering.set()
    connection.data_received(REQUEST)
    await wire.answered.wait()
    server.answering.clear()
    return connection, wire


async def test_one_on_which_nothing_comes_after_an_answer_is_closed() -> None:
    _, wire = await used(Server())
    await wire.closed.wait()


@pytest.mark.parametrize("in_line", [False, True], ids=["behind another", "in line with another"])
async def test_one_on_which_an_answer_takes_its_time_is_not(in_line: bool) -> None:
    server = Server()
    connection, wire = connected(server) if in_line else await used(server)
    connection.data_received(REQUEST * (2 if in_line else 1))
    await asyncio.sleep(3 * KEEPALIVE)
    assert not wire.closed.is_set()
    server.answering.set()
    await wire.closed.wait()
    assert wire.written.count(b"HTTP/1.1 204") == 2


async def test_one_that_is_lost_leaves_no_timer_behind() -> None:
    connection, _ = await used(Server())
    assert connection._idle._timer is not None
    connection.connection_lost(None)
    assert connection._idle._timer is None
