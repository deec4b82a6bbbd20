"""Everything that depends on aiohttp's internals: its connector, its connection's parser and its streams.

Only this module imports aiohttp's undocumented modules or touches its private names. `pyproject.toml` has an upper
bound for its version, and `tests/providers/http/test_aiohttp_contract.py` fails when that code changes.
"""

from __future__ import annotations

import asyncio
import ssl as tls
from collections.abc import Callable
from functools import partial
from typing import cast

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http import HttpProcessingError, StreamWriter
from aiohttp.http_parser import RawResponseMessage
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader
from yarl import URL

from accordion.model.deadlines import Deadline

__all__ = [
    "EMPTY_PAYLOAD",
    "Connection",
    "HttpProcessingError",
    "RawResponseMessage",
    "ResponseHandler",
    "StreamReader",
    "StreamWriter",
    "TimedHandler",
    "connect",
    "create_connector",
    "create_connector_request",
    "expect_response",
    "take_rest",
]

_MAX_LINE = 64 * 1024
_MAX_HEADERS = 1000
_READ_BUFFER = 64 * 1024


class TimedHandler(ResponseHandler):
    """aiohttp's connection with one timer for the read time-out.

    Overrides aiohttp's, which makes a new timer with each piece of a stream (bench/README.md, `overrides`).
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._read_deadline = Deadline(loop, self._on_read_timeout)

    def _reschedule_timeout(self) -> None:
        if self._read_timeout:
            self._read_deadline.restart(self._read_timeout)
        else:
            self._read_deadline.stop()

    def _drop_timeout(self) -> None:
        self._read_deadline.stop()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Ends the timer together with the connection."""
        super().connection_lost(exc)
        self._read_deadline.close()


def create_connector(ssl: tls.SSLContext | None) -> aiohttp.TCPConnector:
    """Returns a connector without a limit, whose connections are `TimedHandler`s. aiohttp has no option for them."""
    connector = aiohttp.TCPConnector(limit=0, ssl=ssl or True)
    factory: Callable[[], ResponseHandler] = partial(TimedHandler, asyncio.get_running_loop())
    connector._factory = cast(partial[ResponseHandler], factory)
    return connector


def create_connector_request(url: URL, proxy: URL | None, authorization: str) -> aiohttp.ClientRequest:
    """Returns a server and the HTTP proxy on the way to it as the request object that the connector expects."""
    proxy_headers = {"Proxy-Authorization": authorization} if authorization else None
    loop = asyncio.get_running_loop()
    return aiohttp.ClientRequest("GET", url, loop=loop, proxy=proxy, proxy_headers=proxy_headers)


async def connect(
    connector: aiohttp.TCPConnector, request: aiohttp.ClientRequest, limits: aiohttp.ClientTimeout
) -> Connection:
    """Opens a connection. Raises what aiohttp raises."""
    return await connector.connect(request, [], limits)


def expect_response(protocol: ResponseHandler, *, without_body: bool, read_timeout: float | None) -> None:
    """Prepares a connection for the next response."""
    protocol.set_response_params(
        skip_payload=without_body,
        read_until_eof=True,
        auto_decompress=False,
        read_timeout=read_timeout,
        read_bufsize=_READ_BUFFER,
        max_line_size=_MAX_LINE,
        max_field_size=_MAX_LINE,
        max_headers=_MAX_HEADERS,
    )


def take_rest(payload: StreamReader) -> bytes:
    """Returns the bytes that arrived before an error.

    For every client whose stream breaks off: aiohttp's own methods raise the error, and would discard the last events.
    """
    return payload._read_nowait(-1)
