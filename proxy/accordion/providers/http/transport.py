"""HTTP/1.1 over aiohttp's connector (TLS, proxies, happy eyeballs) and parser, without its session and its pool.

A session would parse URL and headers again, store cookies, add headers of its own and cost twice as much. This
transport writes the given head unchanged and returns the response unchanged. connections.py has its own pool, since
aiohttp's is slow.
"""

from __future__ import annotations

import asyncio
import ssl as tls
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import httpx

from accordion.model.ports import Headers
from accordion.providers.http.aiohttp_compat import HttpProcessingError, connect, create_connector, expect_response
from accordion.providers.http.connections import IdleConnections, ProviderConnection
from accordion.providers.http.errors import describe_connect_error, to_httpx_error
from accordion.providers.http.incoming import IncomingResponse, abort
from accordion.providers.http.origin import ServerOrigin, find_origin, split_url
from accordion.providers.http.upload import WHOLE, upload

_IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})  # RFC 9110 9.2.2
_LARGEST_COPY = 64 * 1024  # a larger body is not copied behind its head
_MAX_ORIGINS = 1024


@dataclass(frozen=True, slots=True)
class TransportTimeouts:
    """Time-outs in seconds; None: no limit.

    `connect` covers name lookup, TCP and TLS. `read` is the longest silence between two arrivals of bytes. `write` is
    the longest time until the upstream accepts the next piece of a body that is streamed or larger than 1 MiB. A
    smaller body is written at once, and then its `read` time-out starts. A whole response has no limit.
    """

    connect: float | None = 10.0
    read: float | None = 600.0
    write: float | None = 60.0


class AiohttpTransport(httpx.AsyncBaseTransport):
    """Connections to all upstreams. It is an httpx transport; `open` does the same without httpx's objects.

    An idle connection stays open for `keepalive` seconds. Servers wait longer (uvicorn, Node: 5 s), so a request rarely
    uses a connection that the server is closing. The number of connections is not limited. `ssl` replaces the system's
    trust (which honours SSL_CERT_FILE). `trust_env` honours HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY.
    """

    def __init__(
        self,
        timeouts: TransportTimeouts | None = None,
        *,
        keepalive: float = 4.0,
        ssl: tls.SSLContext | None = None,
        trust_env: bool = True,
    ) -> None:
        self._timeouts = timeouts or TransportTimeouts()
        self._connect_limits = _connect_limits(self._timeouts)
        self._idle = IdleConnections(keepalive)
        self._ssl = ssl
        self._trust_env = trust_env
        self._connector: aiohttp.TCPConnector | None = None
        self._closed = False
        self._origins: dict[str, ServerOrigin] = {}

    def locate(self, url: str) -> tuple[ServerOrigin, str]:
        """Splits a URL into the server and the unchanged request target.

        Raises UnsupportedProtocol unless it is an http or https URL with a host and without credentials.
        """
        base, target = split_url(url)
        origin = self._origins.get(base)
        if origin is None:
            if len(self._origins) >= _MAX_ORIGINS:
                self._origins.clear()
            origin = self._origins[base] = find_origin(base, self._trust_env)
        return origin, target

    async def open(
        self,
        origin: ServerOrigin,
        method: str,
        target: str,
        headers: Headers,
        body: bytes | AsyncIterator[bytes] = b"",
        length: int | None = None,
        *,
        timeouts: TransportTimeouts | None = None,
    ) -> IncomingResponse:
        """Sends a request with exactly these headers and waits for the head of the response.

        `length` is the length that the headers declare of a streamed body; None: it is sent chunked. Raises
        ConnectError, ConnectTimeout or ProxyError if nothing was sent, else RemoteProtocolError, ReadTimeout,
        WriteTimeout, WriteError, LocalProtocolError, and any error of `body`.
        """
        timeouts = timeouts or self._timeouts
        head = origin.head(method, target, headers)
        while True:
            connection = self._idle.take(origin)
            is_reused = connection is not None
            if connection is None:
                connection = await self._connect(origin, timeouts)
            try:
                return await self._exchange(connection, method, head, body, length, timeouts)
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
                # RFC 9112 9.3.1: the server may have closed an idle connection while the request was on its way.
                if not (is_reused and isinstance(body, bytes) and method in _IDEMPOTENT):
                    raise to_httpx_error(error) from error
            except (aiohttp.ClientError, HttpProcessingError) as error:
                raise to_httpx_error(error) from error

    async def _connect(self, origin: ServerOrigin, timeouts: TransportTimeouts) -> ProviderConnection:
        if self._closed:
            raise httpx.ConnectError("the proxy is shutting down")
        connector = self._connector
        if connector is None:
            connector = self._connector = create_connector(self._ssl)
        limits = self._connect_limits if timeouts is self._timeouts else _connect_limits(timeouts)
        try:
            connection = await connect(connector, origin.connector_request(), limits)
        except TimeoutError as error:
            raise httpx.ConnectTimeout(f"no connection within {timeouts.connect:g} s") from error
        except aiohttp.ClientHttpProxyError as error:
            raise httpx.ProxyError(f"the HTTP proxy answered {error.status} {error.message}") from error
        except (aiohttp.ClientError, OSError, UnicodeError) as error:
            raise httpx.ConnectError(describe_connect_error(error)) from error
        if (protocol := connection.protocol) is None:
            raise httpx.ConnectError("the connection closed at once")
        return ProviderConnection(connection, protocol, origin, self._idle)

    async def _exchange(
        self,
        connection: ProviderConnection,
        method: str,
        head: bytes,
        body: bytes | AsyncIterator[bytes],
        length: int | None,
        timeouts: TransportTimeouts,
    ) -> IncomingResponse:
        protocol, transport = connection.protocol, connection.protocol.transport
        upload_task: asyncio.Task[None] | None = None
        try:
            if transport is None:
                raise aiohttp.ServerDisconnectedError
            expect_response(protocol, without_body=method == "HEAD", read_timeout=timeouts.read)
            if isinstance(body, bytes) and len(body) <= WHOLE:
                if len(body) <= _LARGEST_COPY:
                    transport.write(head + body)
                else:
                    transport.writelines((head, body))
                protocol.start_timeout()
            else:
                transport.write(head)
                upload_task = upload(protocol, body, length, timeouts.write)
            message, payload = await protocol.read()
            while message.code < 200:
                if message.code == 101:
                    raise httpx.RemoteProtocolError("the upstream changed the protocol without being asked to")
                message, payload = await protocol.read()
        except BaseException:
            abort(connection, upload_task)
            raise
        connection.body = payload
        return IncomingResponse(connection, message, payload, upload_task)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Does the same as `open` for httpx clients, with the request's own time-outs."""
        url = request.url
        origin, target = self.locate(f"{url.scheme}://{url.netloc.decode('ascii')}{url.raw_path.decode('ascii')}")
        body = await _body(request)
        limits: dict[str, Any] = request.extensions.get("timeout") or {}
        defaults = self._timeouts
        timeouts = TransportTimeouts(
            limits.get("connect", defaults.connect),
            limits.get("read", defaults.read),
            limits.get("write", defaults.write),
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
            stream=_ResponseStream(incoming),
            extensions={"http_version": b"HTTP/1.1", "reason_phrase": incoming.reason.encode("latin-1", "replace")},
        )

    async def aclose(self) -> None:
        """Closes all connections; responses that are still arriving are cut."""
        self._closed = True
        self._idle.close()
        if self._connector is not None:
            await self._connector.close()


def _connect_limits(timeouts: TransportTimeouts) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=None, connect=timeouts.connect)


class _ResponseStream(httpx.AsyncByteStream):
    def __init__(self, incoming: IncomingResponse) -> None:
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
