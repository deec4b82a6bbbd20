"""The head of a response waits for the body's first piece, but never for long; order and bytes stay as they were."""

from __future__ import annotations

import asyncio
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from proxy.faces.connection import Corked

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


def corked(wire: Wire) -> Corked:
    return Corked(cast(asyncio.Transport, wire), asyncio.get_running_loop())


async def test_head_and_first_piece_go_out_together() -> None:
    wire = Wire()
    transport = corked(wire)
    transport.write(HEAD)
    transport.write(b"ok")
    await asyncio.sleep(0)
    assert wire.writes == [HEAD + b"ok"]


async def test_a_head_without_a_body_yet_goes_out_at_the_next_turn_of_the_loop() -> None:
    wire = Wire()
    transport = corked(wire)
    transport.write(HEAD)
    await asyncio.sleep(0)
    assert wire.writes == [HEAD]
    transport.write(b"ok")
    assert wire.writes == [HEAD, b"ok"]


async def test_later_pieces_are_written_at_once() -> None:
    wire = Wire()
    transport = corked(wire)
    for data in (HEAD, b"o", b"k", b"!"):
        transport.write(data)
    assert wire.writes == [HEAD + b"o", b"k", b"!"]


async def test_closing_writes_the_head_first() -> None:
    wire = Wire()
    transport = corked(wire)
    transport.write(HEAD)
    transport.close()
    await asyncio.sleep(0)
    assert wire.writes == [HEAD]
    assert wire.closing
    assert transport.is_closing()


async def test_nothing_is_written_once_the_client_has_gone() -> None:
    wire = Wire()
    transport = corked(wire)
    transport.write(HEAD)
    wire.closing = True
    await asyncio.sleep(0)
    assert wire.writes == []


async def test_another_protocol_gets_the_bare_transport_with_nothing_held_back() -> None:
    wire = Wire()
    transport = corked(wire)
    transport.write(HEAD)
    assert transport.uncorked() is cast(asyncio.Transport, wire)
    assert wire.writes == [HEAD]


async def test_all_else_is_the_transports_own() -> None:
    wire = Wire()
    transport = corked(wire)
    assert transport.get_extra_info("peername") == "the peername"
    transport.pause_reading()
    assert not wire.reading
    transport.resume_reading()
    assert wire.reading


@given(st.lists(st.one_of(st.just(HEAD), st.binary(max_size=8), st.none()), max_size=20))
def test_whatever_is_written_arrives_whole_and_in_order(script: list[bytes | None]) -> None:
    async def play() -> list[bytes]:
        wire = Wire()
        transport = corked(wire)
        for step in script:
            if step is None:
                await asyncio.sleep(0)
            else:
                transport.write(step)
        transport.close()
        return wire.writes

    assert b"".join(asyncio.run(play())) == b"".join(step for step in script if step is not None)
