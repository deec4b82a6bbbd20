"""A request's body reaches who serves it as it came, and no faster than it is taken."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from hypothesis import example, given
from hypothesis import strategies as st
from uvicorn import Config
from uvicorn.server import ServerState

from accordion.server.uvicorn_compat import ClientConnection

HEAD = b"POST /v1/files HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
WAITING = 64 * 1024
"""Once more than this waits to be taken, no more is read."""


class Wire:
    """A transport that remembers whether it is being read."""

    def __init__(self) -> None:
        self.reading = True

    def write(self, data: bytes) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def get_extra_info(self, name: str, default: object = None) -> object:
        return default

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class Server:
    """A connection whose application takes a piece of the body whenever `take` is called."""

    def __init__(self) -> None:
        self.wire = Wire()
        self.taken: list[bytes] = []
        self.over = False
        self._wanted = asyncio.Semaphore(0)
        loop = asyncio.get_running_loop()
        config = Config(self._app, interface="asgi3", proxy_headers=False, log_config=None, ws="none", access_log=False)
        config.load()
        self._connection = ClientConnection(config, ServerState(), {}, loop)
        self._connection.connection_made(cast(asyncio.Transport, self.wire))

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        while not self.over:
            await self._wanted.acquire()
            message = await receive()
            assert type(message["body"]) is bytes
            self.taken.append(message["body"])
            self.over = not message["more_body"]
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    async def comes(self, data: bytes) -> None:
        self._connection.data_received(data)
        await self._turns()

    async def take(self) -> None:
        self._wanted.release()
        await self._turns()

    async def _turns(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)


def chunked(body: bytes, size: int) -> bytes:
    chunks = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"


@given(
    body=st.binary(max_size=200).map(lambda some: some * 40),
    size=st.integers(1, 3_000),
    cuts=st.lists(st.tuples(st.integers(0, 10_000), st.booleans()), max_size=6),
)
@example(body=b"a" * 5_000, size=1, cuts=[])
@example(body=b"abc" * 300, size=100, cuts=[(300, True), (500, False), (700, False), (800, True)])
def test_a_body_is_taken_whole_however_it_is_cut(body: bytes, size: int, cuts: Sequence[tuple[int, bool]]) -> None:
    async def play() -> bytes:
        server, sent, at = Server(), HEAD + chunked(body, size), 0
        for place, taking in sorted(cuts):
            await server.comes(sent[at:place])
            at = max(at, min(place, len(sent)))
            if taking:
                await server.take()
        await server.comes(sent[at:])
        for _ in range(len(cuts) + 2):
            await server.take()
        assert server.over
        return b"".join(server.taken)

    assert asyncio.run(play()) == body


async def test_reading_stops_while_too_much_waits_and_goes_on_once_it_is_taken() -> None:
    server, half = Server(), b"x" * (WAITING // 2)
    await server.comes(HEAD + b"%x\r\n" % (8 * len(half)) + half)
    await server.comes(half)
    assert server.wire.reading
    await server.comes(b"y")
    assert not server.wire.reading
    await server.take()
    assert server.wire.reading
    assert server.taken == [half + half + b"y"]


async def test_a_single_piece_that_is_too_much_stops_reading_too() -> None:
    server, large = Server(), b"x" * (4 * WAITING)
    await server.comes(HEAD + b"%x\r\n" % (2 * len(large)) + large)
    assert not server.wire.reading
    await server.take()
    assert server.wire.reading
    assert server.taken == [large]
