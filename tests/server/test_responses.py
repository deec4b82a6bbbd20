"""A response is written as uvicorn writes it, for HTTP/1.0 clients too."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable, Sequence
from socket import SO_LINGER, SOL_SOCKET
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from accordion.model.ports import Headers
from accordion.server.uvicorn_compat import ResponseCycle


class Wire:
    """A transport that remembers each write by itself."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.closing = self.resets = False

    def write(self, data: bytes) -> None:
        assert not self.closing
        self.writes.append(data)

    def close(self) -> None:
        self.closing = True

    def is_closing(self) -> bool:
        return self.closing

    def get_extra_info(self, name: str) -> Wire:
        assert name == "socket"
        return self

    def setsockopt(self, level: int, option: int, value: bytes) -> None:
        assert (level, option) == (SOL_SOCKET, SO_LINGER)
        self.resets = value == struct.pack("ii", 1, 0)


Told = tuple[int, bytes, bool, bool, int]
"""How many messages were taken, what was written, whether it was closed and is over, and how often that was said."""


def cycle_of(
    kind: type[RequestResponseCycle],
    wire: Wire,
    over: Callable[[], object] = lambda: None,
    *,
    method: str = "GET",
    version: str = "1.1",
    keep: bool = True,
    default: Headers = (),
) -> RequestResponseCycle:
    transport = cast(asyncio.Transport, wire)
    return kind(
        scope=cast(Any, {"method": method, "http_version": version}),
        transport=transport,
        flow=FlowControl(transport),
        logger=logging.getLogger("nothing"),
        access_logger=logging.getLogger("nothing"),
        access_log=False,
        default_headers=list(default),
        message_event=asyncio.Event(),
        expect_100_continue=False,
        keep_alive=keep,
        on_response=cast(Callable[..., None], over),
    )


async def run_cycle(kind: type[RequestResponseCycle], messages: Sequence[dict[str, Any]], **given: Any) -> Told:
    wire, over = Wire(), list[None]()
    cycle = cycle_of(kind, wire, lambda: over.append(None), **given)
    taken = 0
    for message in messages:
        try:
            await cycle.send(cast(Any, message))
        except (RuntimeError, ValueError):
            # Whoever answers has failed; uvicorn closes the connection.
            break
        taken += 1
    await asyncio.sleep(0)
    assert cycle.message_event.is_set() == cycle.response_complete
    return taken, b"".join(wire.writes), wire.closing, cycle.response_complete, len(over)


def start(status: int = 200, *headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": headers}


def piece(body: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": more}


LINES = (
    *((b"Content-Length", length) for length in (b"3", b"6", b"0", b"-1")),
    *((b"connection", said) for said in (b"Close", b"keep-alive, close", b"keep-alive")),
    *((b"X-Odd", value) for value in (b"", b"\t\xff", b"a\r\nb: c", b"text/plain")),
    *((name, b"x") for name in (b"", b"a b", b"a:", b"Content-Type")),
    (b"Transfer-Encoding", b"chunked"),
)
HEADERS = st.lists(st.sampled_from(LINES), max_size=4, unique_by=lambda line: line[0])
STARTS = st.builds(lambda status, headers: start(status, *headers), st.sampled_from((200, 204, 304, 404, 599)), HEADERS)
PIECES = st.builds(lambda body, more: piece(body, more=more), st.sampled_from((b"", b"abc", b"\0" * 20)), st.booleans())
MINIMAL: tuple[dict[str, Any], ...] = (
    {"type": "http.response.start", "status": 200},
    {"type": "http.response.body"},
)


@given(
    messages=st.lists(PIECES, max_size=4).flatmap(lambda pieces: STARTS.map(lambda first: [first, *pieces]))
    | st.lists(STARTS | PIECES | st.just({"type": "http.response.odd"}), max_size=5),
    method=st.sampled_from(("GET", "HEAD", "POST")),
    keep=st.booleans(),
    default=st.sampled_from(((), ((b"Server", b"odd"),))),
)
@example(messages=[start(200, (b"content-length", b""))], method="GET", keep=True, default=())
@example(messages=MINIMAL, method="GET", keep=True, default=())
@example(messages=[start(200, (b"content-length", b"3")), piece(b"abc")], method="GET", keep=True, default=())
@example(messages=[start(200, (b"transfer-encoding", b"chunked")), piece(b"abc")], method="GET", keep=True, default=())
def test_an_answer_is_written_as_uvicorn_writes_it(
    messages: Sequence[dict[str, Any]], method: str, keep: bool, default: Headers
) -> None:
    async def both() -> list[Told]:
        kinds = (RequestResponseCycle, ResponseCycle)
        return [await run_cycle(kind, messages, method=method, keep=keep, default=default) for kind in kinds]

    theirs, ours = asyncio.run(both())
    assert ours == theirs


@pytest.mark.parametrize(
    ("method", "status", "headers", "body"),
    [
        ("GET", 200, ((b"content-length", b"3"),), b"abc"),
        ("HEAD", 200, (), b""),
        ("GET", 204, (), b""),
        ("GET", 304, (), b""),
    ],
)
async def test_to_http_1_0_too_where_a_body_is_bounded(method: str, status: int, headers: Headers, body: bytes) -> None:
    messages = [start(status, *headers), piece(body)]
    ours = await run_cycle(ResponseCycle, messages, method=method, version="1.0", keep=False)
    assert ours == await run_cycle(RequestResponseCycle, messages, method=method, version="1.0", keep=False)


async def test_a_body_without_length_to_http_1_0_ends_with_the_connection() -> None:
    messages = [start(200, (b"a", b"b")), piece(b"one", more=True), piece(b"", more=True), piece(b"two"), piece(b"x")]
    taken, written, closed, over, times = await run_cycle(ResponseCycle, messages, version="1.0", keep=False)
    assert written == b"HTTP/1.1 200 OK\r\na: b\r\nconnection: close\r\n\r\nonetwo"
    assert (taken, closed, over, times) == (4, True, True, 1)


@pytest.mark.parametrize(("is_complete", "resets"), [(False, True), (True, False)])
async def test_a_cut_body_without_length_ends_with_a_reset(is_complete: bool, resets: bool) -> None:
    wire = Wire()
    cycle = cycle_of(ResponseCycle, wire, version="1.0", keep=False)
    for message in (start(), piece(b"one", more=not is_complete)):
        await cycle.send(cast(Any, message))
    assert wire.resets == resets


async def test_nothing_is_sent_to_a_client_that_has_gone_and_a_slow_one_is_waited_for() -> None:
    wire = Wire()
    cycle = cycle_of(ResponseCycle, wire)
    cycle.flow.pause_writing()
    sending = asyncio.create_task(cycle.send(cast(Any, start())))
    await asyncio.sleep(0)
    assert not cycle.response_started
    cycle.flow.resume_writing()
    await sending
    await asyncio.sleep(0)
    assert len(wire.writes) == 1
    cycle.disconnected = True
    await cycle.send(cast(Any, piece(b"abc")))
    assert len(wire.writes) == 1
