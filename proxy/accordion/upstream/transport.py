"""HTTP/1.1 over aiohttp's sockets: its connector (TLS, proxies, happy eyeballs) and its parser; no session, no pool.

A session would parse URL and headers again, keep cookies, add headers of its own and cost twice as much.
Here the head is written as given, and what comes back is handed on as it came. Its pool is slow, too (lines.py).
"""

from __future__ import annotations

import asyncio
import ssl as tls
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import aiohttp
import httpx
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import HttpProcessingError

from accordion.core.ports import Headers
from accordion.upstream.faults import translated, why
from accordion.upstream.handler import Handler
from accordion.upstream.incoming import Incoming, abort
from accordion.upstream.lines import Idle, Line
from accordion.upstream.origin import Origin, find_origin, parted
from accordion.upstream.upload import WHOLE, upload

_IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})  # RFC 9110 9.2.2
_MAX_LINE = 64 * 1024
_MAX_HEADERS = 1000
_READ_BUFFER = 64 * 1024
_JOINED = 64 * 1024  # a larger body is not copied to be written in one piece with its head
_MAX_ORIGINS = 1024


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long is waited, in seconds; None for ever.

    `connect` covers name lookup, TCP and TLS, `read` the silence between two arrivals of bytes, `write` the time
    until the upstream takes the next piece of a body that comes in pieces or is larger than 1 MiB; a smaller one is
    written at once, and its `read` time-out starts then. There is no limit to a whole reply.
    """

    connect: float | None = 10.0
    read: float | None = 600.0
    write: float | None = 60.0


class AiohttpTransport(httpx.AsyncBaseTransport):
    """Connections to all upstreams. Usable as any httpx transport; `open` is the same without httpx's objects.

    An idle connection is kept for `keepalive` seconds: shorter than servers do (uvicorn, Node: 5 s), so that a request
    does not meet a connection that is just being closed. There is no limit to how many connections there are.
    `ssl` replaces the system's trust (which honours SSL_CERT_FILE). `trust_env` honours HTTP_PROXY, HTTPS_PROXY,
    ALL_PROXY and NO_PROXY.
    """

    def __init__(
        self,
        timeouts: Timeouts | None = None,
        *,
        keepalive: float = 4.0,
        ssl: tls.SSLContext | None = None,
        trust_env: bool = True,
    ) -> None:
        self._timeouts = timeouts or Timeouts()
        self._connect_limits = _connect_limits(self._timeouts)
        self._idle = Idle(keepalive)
        self._ssl = ssl
        self._trust_env = trust_env
        self._connector: aiohttp.TCPConnector | None = None
        self._closed = False
        self._origins: dict[str, Origin] = {}

    def locate(self, url: str) -> tuple[Origin, str]:
        """Where `url` points: the server, and the request target exactly as it stands there.

        Raises UnsupportedProtocol for what is not an http or https URL with a host and without credentials.
        """
        base, target = parted(url)
        origin = self._origins.get(base)
        if origin is None:
            if len(self._origins) >= _MAX_ORIGINS:
                self._origins.clear()
            origin = self._origins[base] = find_origin(base, self._trust_env)
        return origin, target

    async def open(
        self,
        origin: Origin,
        method: str,
        target: str,
        headers: Headers,
        body: bytes | AsyncIterator[bytes] = b"",
        length: int | None = None,
        *,
        timeouts: Timeouts | None = None,
    ) -> Incoming:
        """Send a request with exactly these headers and wait for the head of the answer.

        `length` is what the headers say of a body that comes in pieces; None: it goes out chunked. Raises
        ConnectError, ConnectTimeout or ProxyError where nothing was sent, else RemoteProtocolError, ReadTimeout,
        WriteTimeout, WriteError, LocalProtocolError, and whatever `body` raises.
        """
        timeouts = timeouts or self._timeouts
        head = origin.head(method, target, headers)
        while True:
            line = self._idle.take(origin)
            used = line is not None
            if line is None:
                line = await self._connect(origin, timeouts)
            try:
                return await self._exchange(line, method, head, body, length, timeouts)
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
                # RFC 9112 9.3.1: the server may have closed an idle connection while the request was on its way.
                if not (used and isinstance(body, bytes) and method in _IDEMPOTENT):
                    raise translated(error) from error
            except (aiohttp.ClientError, HttpProcessingError) as error:
                raise translated(error) from error

    async def _connect(self, origin: Origin, timeouts: Timeouts) -> Line:
        if self._closed:
            raise httpx.ConnectError("the proxy is shutting down")
        connector = self._connector
        if connector is None:
            connector = self._connector = aiohttp.TCPConnector(limit=0, ssl=self._ssl or True)
            # aiohttp has no public word for it.
            made: Callable[[], ResponseHandler] = partial(Handler, asyncio.get_running_loop())
            connector._factory = cast(partial[ResponseHandler], made)
        limits = self._connect_limits if timeouts is self._timeouts else _connect_limits(timeouts)
        try:
            connection = await connector.connect(origin.place(), [], limits)
        except TimeoutError as error:
            raise httpx.ConnectTimeout(f"no connection within {timeouts.connect:g} s") from error
        except aiohttp.ClientHttpProxyError as error:
            raise httpx.ProxyError(f"the HTTP proxy answered {error.status} {error.message}") from error
        except (aiohttp.ClientError, OSError, UnicodeError) as error:
            raise httpx.ConnectError(why(error)) from error
        if (protocol := connection.protocol) is None:
            raise httpx.ConnectError("the connection closed at once")
        return Line(connection, protocol, origin, self._idle)

    async def _exchange(
        self,
        line: Line,
        method: str,
        head: bytes,
        body: bytes | AsyncIterator[bytes],
        length: int | None,
        timeouts: Timeouts,
    ) -> Incoming:
        protocol, transport = line.protocol, line.protocol.transport
        sending: asyncio.Task[None] | None = None
        try:
            if transport is None:
                raise aiohttp.ServerDisconnectedError
            protocol.set_response_params(
                skip_payload=method == "HEAD",
                read_until_eof=True,
                auto_decompress=False,
                read_timeout=timeouts.read,
                read_bufsize=_READ_BUFFER,
                max_line_size=_MAX_LINE,
                max_field_size=_MAX_LINE,
                max_headers=_MAX_HEADERS,
            )
            if isinstance(body, bytes) and len(body) <= WHOLE:
                if len(body) <= _JOINED:
                    transport.write(head + body)
                else:
                    transport.writelines((head, body))
                protocol.start_timeout()
            else:
                transport.write(head)
                sending = upload(protocol, body, length, timeouts.write)
            message, payload = await protocol.read()
            while message.code < 200:
                if message.code == 101:
                    raise httpx.RemoteProtocolError("the upstream changed the protocol without being asked to")
                message, payload = await protocol.read()
        except BaseException:
            abort(line, sending)
            raise
        line.body = payload
        return Incoming(line, message, payload, sending)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """The same for clients that speak httpx. Honours the request's own time-outs."""
        url = request.url
        origin, target = self.locate(f"{url.scheme}://{url.netloc.decode('ascii')}{url.raw_path.decode('ascii')}")
        body = await _body(request)
        given: dict[str, Any] = request.extensions.get("timeout") or {}
        own = self._timeouts
        timeouts = Timeouts(
            given.get("connect", own.connect), given.get("read", own.read), given.get("write", own.write)
        )
        declared = request.headers.get("content-length")
        incoming = await self.open(
            origin,
            request.method,
            target,
            tuple(request.headers.raw),
            body,
            length=int(declared) if declared else None,
            timeouts=timeouts,
        )
        return httpx.Response(
            incoming.status,
            headers=list(incoming.headers),
            stream=_Stream(incoming),
            extensions={"http_version": b"HTTP/1.1", "reason_phrase": incoming.reason.encode("latin-1", "replace")},
        )

    async def aclose(self) -> None:
        """Close all connections; running replies are cut."""
        self._closed = True
        self._idle.close()
        if self._connector is not None:
            await self._connector.close()


def _connect_limits(timeouts: Timeouts) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=None, connect=timeouts.connect)


class _Stream(httpx.AsyncByteStream):
    def __init__(self, incoming: Incoming) -> None:
        self._incoming = incoming

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while piece := await self._incoming.read():
            yield piece

    async def aclose(self) -> None:
        await self._incoming.close()


async def _body(request: httpx.Request) -> bytes | AsyncIterator[bytes]:
    try:
        return request.content
    except httpx.RequestNotRead:
        if not isinstance(request.stream, httpx.AsyncByteStream):
            return await request.aread()
        return aiter(request.stream)
