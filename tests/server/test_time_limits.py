"""A connection on which no request comes is closed; one that is used is not, however long that takes."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any, cast

import pytest
from starlette.types import Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.server import ServerState

from accordion.server.uvicorn_compat import ClientConnection, ClientTimeouts

REQUEST = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"
KEEPALIVE = 0.05
PATIENCE = ClientTimeouts(silent=60, head=60, body=60)
HEAD = b"POST /v1/messages HTTP/1.1\r\nHost: here\r\nContent-Length: 100000\r\n\r\n"


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


def connect(server: Server, patience: ClientTimeouts = PATIENCE) -> tuple[ClientConnection, Wire]:
    config = Config(cast(Any, server), timeout_keep_alive=cast(int, KEEPALIVE), lifespan="off")
    config.load()
    connection, wire = (
        ClientConnection(config, ServerState(), {}, asyncio.get_running_loop(), timeouts=patience),
        Wire(),
    )
    connection.connection_made(wire)
    return connection, wire


async def serve_one_request(server: Server) -> tuple[ClientConnection, Wire]:
    """A connection on which a request was answered."""
    connection, wire = connect(server)
    server.answering.set()
    connection.data_received(REQUEST)
    await wire.answered.wait()
    server.answering.clear()
    return connection, wire


async def test_one_on_which_nothing_comes_after_an_answer_is_closed() -> None:
    _, wire = await serve_one_request(Server())
    await wire.closed.wait()


@pytest.mark.parametrize("in_line", [False, True], ids=["behind another", "in line with another"])
async def test_one_on_which_an_answer_takes_its_time_is_not(in_line: bool) -> None:
    server = Server()
    connection, wire = connect(server) if in_line else await serve_one_request(server)
    connection.data_received(REQUEST * (2 if in_line else 1))
    await asyncio.sleep(3 * KEEPALIVE)
    assert not wire.closed.is_set()
    server.answering.set()
    await wire.closed.wait()
    assert wire.written.count(b"HTTP/1.1 204") == 2


async def test_one_that_is_lost_leaves_no_timer_behind() -> None:
    connection, _ = await serve_one_request(Server())
    assert connection._idle._timer is not None
    connection.connection_lost(None)
    assert connection._idle._timer is None


# -- clients that begin and do not go on -------------------------------------------------------------------------------


class Reader(Server):
    """Answers each request once its body is there."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        while (message := await receive()).get("more_body"):
            pass
        if message["type"] != "http.disconnect":
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body"})


async def test_a_connection_on_which_nothing_ever_comes_is_closed_without_a_word() -> None:
    _, wire = connect(Server(), PATIENCE._replace(silent=0.02))
    await wire.closed.wait()
    assert wire.written == b""


async def test_a_head_that_never_ends_is_answered_with_408_however_it_trickles() -> None:
    connection, wire = connect(Server(), PATIENCE._replace(head=0.05))
    connection.data_received(HEAD[:40])
    while not wire.closed.is_set():
        connection.data_received(b"x")
        await asyncio.sleep(0.01)
    assert wire.written.startswith(b"HTTP/1.1 408 ")
    assert b'"type":"error"' in wire.written  # in the shape of the protocol that the path is of
    assert b"timeout_error" in wire.written


@pytest.mark.parametrize("trickle", [b"", b"x"], ids=["none", "a byte at a time"])
async def test_a_body_that_does_not_go_on_is_answered_with_408(trickle: bytes) -> None:
    connection, wire = connect(Reader(), PATIENCE._replace(body=0.05))
    connection.data_received(HEAD + b"x" * 50_000)
    while not wire.closed.is_set():
        if trickle:
            connection.data_received(trickle)
        await asyncio.sleep(0.01)
    assert wire.written.startswith(b"HTTP/1.1 408 ")


async def test_a_slow_body_that_goes_on_is_waited_for() -> None:
    connection, wire = connect(Reader(), PATIENCE._replace(body=0.2))
    connection.data_received(HEAD)
    for _ in range(20):
        await asyncio.sleep(0.05)
        connection.data_received(b"x" * 5_000)
    await wire.answered.wait()
    assert wire.written.startswith(b"HTTP/1.1 204 ")


async def test_a_body_that_the_application_does_not_take_has_its_time() -> None:
    """Then it is the provider that makes its client wait."""
    connection, wire = connect(Server(), PATIENCE._replace(body=0.02))
    connection.data_received(HEAD + b"x" * 70_000)
    assert connection.flow.read_paused
    await asyncio.sleep(0.1)
    assert not wire.closed.is_set()


async def test_a_time_limit_ends_with_what_it_was_for() -> None:
    connection, wire = connect(Server(), PATIENCE._replace(head=0.05, body=0.05))
    connection.data_received(REQUEST[:10])
    connection.data_received(REQUEST[10:])
    await asyncio.sleep(0.2)
    assert not wire.closed.is_set()


async def test_the_next_head_on_a_connection_has_its_time_too() -> None:
    server = Server()
    connection, wire = connect(server, PATIENCE._replace(head=0.02))
    connection.timeout_keep_alive = 60
    server.answering.set()
    connection.data_received(REQUEST)
    await wire.answered.wait()
    connection.data_received(REQUEST[:10])
    await wire.closed.wait()
    assert b"HTTP/1.1 408 " in wire.written


async def test_one_that_is_over_is_freed_without_the_garbage_collector() -> None:
    gc.disable()
    try:
        connection, wire = await serve_one_request(Server())
        connection.connection_lost(None)
        freed = weakref.ref(connection)
        del connection
        for _ in range(3):
            await asyncio.sleep(0)
        assert freed() is None
        assert wire.closed.is_set()
    finally:
        gc.enable()
