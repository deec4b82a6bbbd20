"""What goes out is what uvicorn would write; a head waits for its body's first piece, but never for long."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from accordion.model.ports import Headers
from accordion.server.corked_transport import CorkedTransport
from accordion.server.uvicorn_compat import ResponseCycle

HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"


class Wire:
    """A transport that remembers each write by itself."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.closing = False
        self.reading = True

    def write(self, data: bytes) -> None:
        assert not self.closing
        self.writes.append(data)

    def close(self) -> None:
        self.closing = True

    def is_closing(self) -> bool:
        return self.closing

    def get_extra_info(self, name: str, default: object = None) -> str:
        return f"the {name}"

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


def cork(wire: Wire) -> CorkedTransport:
    return CorkedTransport(cast(asyncio.Transport, wire), asyncio.get_running_loop())


async def test_head_and_first_piece_go_out_together() -> None:
    wire = Wire()
    transport = cork(wire)
    transport.hold(HEAD)
    transport.write(b"ok")
    await asyncio.sleep(0)
    assert wire.writes == [HEAD + b"ok"]


async def test_a_head_without_a_body_yet_goes_out_at_the_next_turn_of_the_loop() -> None:
    wire = Wire()
    transport = cork(wire)
    transport.hold(HEAD)
    await asyncio.sleep(0)
    assert wire.writes == [HEAD]
    transport.write(b"ok")
    assert wire.writes == [HEAD, b"ok"]


async def test_later_pieces_are_written_at_once() -> None:
    wire = Wire()
    transport = cork(wire)
    transport.hold(HEAD)
    for data in (b"o", b"k", b"!"):
        transport.write(data)
    assert wire.writes == [HEAD + b"o", b"k", b"!"]


async def test_closing_writes_the_head_first() -> None:
    wire = Wire()
    transport = cork(wire)
    transport.hold(HEAD)
    transport.close()
    await asyncio.sleep(0)
    assert wire.writes == [HEAD]
    assert wire.closing
    assert transport.is_closing()


async def test_nothing_is_written_once_the_client_has_gone() -> None:
    wire = Wire()
    transport = cork(wire)
    transport.hold(HEAD)
    wire.closing = True
    await asyncio.sleep(0)
    assert wire.writes == []


async def test_another_protocol_gets_the_bare_transport_with_nothing_held_back() -> None:
    wire = Wire()
    transport = cork(wire)
    transport.hold(HEAD)
    assert transport.inner_transport() is cast(asyncio.Transport, wire)
    assert wire.writes == [HEAD]


async def test_all_else_is_the_transports_own() -> None:
    wire = Wire()
    transport = cork(wire)
    assert transport.get_extra_info("peername") == "the peername"
    transport.pause_reading()
    assert not wire.reading
    transport.resume_reading()
    assert wire.reading


@given(st.lists(st.one_of(st.just(HEAD), st.binary(max_size=8), st.none()), max_size=20))
def test_all_writes_arrive_whole_and_in_order(script: list[bytes | None]) -> None:
    async def play() -> list[bytes]:
        wire = Wire()
        transport = cork(wire)
        for step in script:
            if step is None:
                await asyncio.sleep(0)
            elif step == HEAD:
                transport.hold(step)
            else:
                transport.write(step)
        transport.close()
        return wire.writes

    assert b"".join(asyncio.run(play())) == b"".join(step for step in script if step is not None)


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
    transport = cast(asyncio.Transport, wire) if kind is RequestResponseCycle else cork(wire)
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
