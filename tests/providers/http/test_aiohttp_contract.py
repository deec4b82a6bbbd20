"""What providers/http/aiohttp_compat.py needs of aiohttp, and the reasons for it."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest
from aiohttp.base_protocol import BaseProtocol
from aiohttp.client_proto import ResponseHandler
from aiohttp.streams import StreamReader

from accordion.providers.http.aiohttp_compat import TimedHandler, create_connector, take_rest
from tests.code_fingerprints import find_changes

CODE = {
    "aiohttp.client_proto": {
        "ResponseHandler.__init__": "d4eb6f4f6434",
        "ResponseHandler._reschedule_timeout": "5759c2ef35cc",
        "ResponseHandler._drop_timeout": "aab0c58f8768",
        "ResponseHandler._on_read_timeout": "65b4d5b66eb8",
        "ResponseHandler.start_timeout": "f5a1795b652f",
        "ResponseHandler.connection_lost": "f190b0c801bb",
        "ResponseHandler.set_response_params": "de2474c19ce7",
        "ResponseHandler.data_received": "eaa05e15c5d2",
        "ResponseHandler.abort": "6373755e85db",
    },
    "aiohttp.connector": {
        "BaseConnector.__init__": "f70e42719491",
        "BaseConnector.connect": "6948f96e20d6",
        "TCPConnector._create_connection": "dd1b83c3f65d",
        "Connection": "2d3b66fbd1e5",
    },
    "aiohttp.streams": {
        "StreamReader.__init__": "53ba4329e05d",
        "StreamReader.feed_data": "5e0fedfb4342",
        "StreamReader.readany": "64fcb2d82803",
        "StreamReader._read_nowait": "db8dcf96a9d2",
        "StreamReader._read_nowait_chunk": "57265a821695",
        "StreamReader.is_eof": "bd243c1ac1f8",
        "StreamReader.at_eof": "9c608487b14b",
        "StreamReader.set_exception": "22c42bd41283",
        "EmptyStreamReader": "76b1f7f71971",
    },
}


def test_used_code_is_as_it_was() -> None:
    assert find_changes(CODE) == {}


def reader() -> StreamReader:
    loop = asyncio.get_running_loop()
    return StreamReader(BaseProtocol(loop), 1 << 16, loop=loop)


async def test_a_connector_makes_our_connections() -> None:
    ours = create_connector(None)
    assert isinstance(ours._factory(), TimedHandler)
    await ours.close()


class Counting:
    """A loop that counts its timers."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.timers = 0

    def __getattr__(self, name: str) -> Any:
        self.timers += name in ("call_at", "call_later")
        return getattr(self._loop, name)


@pytest.mark.parametrize(("kind", "most"), [(TimedHandler, 1), (ResponseHandler, 10)])
async def test_aiohttp_makes_a_timer_for_each_piece(kind: type[ResponseHandler], most: int) -> None:
    loop = Counting(asyncio.get_running_loop())
    handler = kind(loop)  # type: ignore[arg-type]  # all else is the loop's
    handler.read_timeout = 5.0
    before = loop.timers
    for _ in range(10):
        handler._reschedule_timeout()
    assert most - 1 <= loop.timers - before <= most
    handler._drop_timeout()


async def test_aiohttp_discards_what_arrived_before_an_error() -> None:
    stream = reader()
    stream.feed_data(b"last event")
    stream.set_exception(aiohttp.ClientPayloadError("cut"))
    with pytest.raises(aiohttp.ClientPayloadError):
        await stream.readany()
    assert take_rest(stream) == b"last event"
