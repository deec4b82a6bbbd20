"""The provider's side of a relayed WebSocket: an open socket, or the response with which the provider refused it."""

from __future__ import annotations

import logging
import ssl as tls
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidProxy, InvalidStatus, ProxyError, WebSocketException
from websockets.frames import CloseCode
from websockets.http11 import Response
from websockets.typing import Subprotocol

from accordion.model.errors import AccordionError, Unreachable, UpstreamDisconnected, UpstreamTimeout
from accordion.model.ports import Headers, UpstreamRequest, UpstreamResponse
from accordion.providers.http.client import describe_failure, end_to_end
from accordion.providers.http.transport import ServerOrigin, describe_connect_error, find_origin, split_url
from accordion.providers.http.transport_errors import UnsupportedUrl

_HANDSHAKE = frozenset(
    {
        b"host",
        b"content-length",
        b"sec-websocket-accept",
        b"sec-websocket-extensions",
        b"sec-websocket-key",
        b"sec-websocket-protocol",
        b"sec-websocket-version",
    }
)
"""Headers of the handshake, which each connection sets for itself."""


class SocketClosed(Exception):
    """The provider closed the socket.

    `code` is 1005 if its close frame had none, 1006 if there was no frame, 1009 if its message was too large.
    """

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"closed with {code}")
        self.code = code
        self.reason = reason


class ProviderSocket:
    """An open WebSocket to a provider. `headers` are those of its response without the handshake's."""

    def __init__(self, connection: ClientConnection, headers: Headers) -> None:
        self._connection = connection
        self.headers = headers
        self.subprotocol: str | None = connection.subprotocol

    async def receive(self) -> str | bytes:
        """Returns the next message, text or binary. Raises SocketClosed. A slow reader slows the provider down."""
        try:
            return await self._connection.recv()
        except ConnectionClosed as error:
            raise _closed_error(error) from error

    async def send(self, message: str | bytes) -> None:
        """Sends one message, as text or binary by its type; waits while the provider does not read."""
        try:
            await self._connection.send(message)
        except ConnectionClosed as error:
            raise _closed_error(error) from error

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Closes with the client's code. A code that must not be sent (RFC 6455 7.4.1) is replaced by the nearest."""
        if code == 1005:
            code = 1000
        elif code == 1006:
            code = 1001
        elif not (1000 <= code <= 1014 and code != 1004) and not 3000 <= code <= 4999:
            code = 1011
        await self._connection.close(code, reason)


class UpgradeRejection:
    """A provider's response to a refused upgrade (implements UpstreamResponse in model/ports.py)."""

    __slots__ = ("_body", "headers", "is_delimited", "status")

    def __init__(self, response: Response) -> None:
        self.status = response.status_code
        self.headers: Headers = end_to_end(_raw_headers(response))
        self.is_delimited = True
        self._body = bytes(response.body)

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yields the whole body."""
        if self._body:
            yield self._body

    async def close(self) -> None:
        """Does nothing: the library has closed the connection."""


async def open_socket(
    request: UpstreamRequest,
    subprotocols: Sequence[str] = (),
    *,
    max_size: int | None = 256 << 20,
    timeout: float = 10.0,  # noqa: ASYNC109
    ssl: tls.SSLContext | None = None,
    trust_env: bool = True,
) -> ProviderSocket | UpstreamResponse:
    """Requests an upgrade at `request.url` (http or https) with the client's headers; the body is not used.

    `max_size` limits the provider's messages, inflated, in bytes, since each is held whole in memory; None: no limit.
    `timeout` limits connecting and the handshake, in seconds. Raises Unreachable, UpstreamTimeout or
    UpstreamDisconnected.
    """
    try:
        base, target = split_url(request.url)
        origin = find_origin(base, trust_env)
    except UnsupportedUrl as error:
        raise describe_failure(error, "the configured URL") from error
    scheme, _, authority = base.partition("://")
    secure = scheme.lower() == "https"
    proxy = origin.proxy
    options: dict[str, Any] = {"ssl": ssl} if ssl is not None and secure else {}
    # A logger without a parent: in debug mode the library would write credentials to its own.
    silent_logger = logging.Logger("websockets", logging.CRITICAL + 1)
    try:
        connection = await _Connect(
            f"{'wss' if secure else 'ws'}://{authority}{target}",
            subprotocols=[Subprotocol(name) for name in subprotocols] or None,
            compression="deflate" if _offers_deflate(request.headers) else None,
            additional_headers=_handshake_headers(request.headers),
            user_agent_header=None,
            # As for HTTP; the library would read the environment by other rules. It requires a password with a user.
            proxy=None if proxy is None else str(proxy.with_password(proxy.password or "") if proxy.user else proxy),
            open_timeout=timeout,
            ping_timeout=None,  # a provider that waits for a slow client does not answer pings, and is not dead
            close_timeout=1.0,
            max_size=max_size,
            logger=silent_logger,
            create_connection=_Connection,
            **options,
        )
    except InvalidStatus as error:
        return UpgradeRejection(error.response)
    except (OSError, WebSocketException, ValueError) as error:
        raise _connect_error(error, origin, timeout) from error
    response = connection.response
    headers = () if response is None else end_to_end(_raw_headers(response))
    return ProviderSocket(connection, tuple(header for header in headers if header[0].lower() not in _HANDSHAKE))


class _Connection(ClientConnection):
    """The library's connection, which may be lost before it is made: if TLS fails behind the HTTP proxy."""

    def connection_lost(self, exc: Exception | None) -> None:
        if hasattr(self, "transport"):
            super().connection_lost(exc)


class _Connect(connect):
    """The library's connect, which does not follow a redirect: it is the provider's response for the client."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


def _handshake_headers(headers: Headers) -> list[tuple[str, str]]:
    return [
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in end_to_end(headers)
        if name.lower() not in _HANDSHAKE
    ]


def _offers_deflate(headers: Headers) -> bool:
    return any(n.lower() == b"sec-websocket-extensions" and b"permessage-deflate" in v for n, v in headers)


def _raw_headers(response: Response) -> Headers:
    return tuple((name.encode("latin-1"), value.encode("latin-1")) for name, value in response.headers.raw_items())


def _closed_error(error: ConnectionClosed) -> SocketClosed:
    frame = error.rcvd
    if error.sent is not None and error.sent.code == CloseCode.MESSAGE_TOO_BIG:
        frame = error.sent
    return SocketClosed(1006, "") if frame is None else SocketClosed(frame.code, frame.reason)


def _connect_error(error: Exception, origin: ServerOrigin, limit: float) -> AccordionError:
    host = origin.host
    if isinstance(error, TimeoutError):
        return UpstreamTimeout(f"{host} did not open the WebSocket within {limit:g} s.")
    if isinstance(error, OSError | UnicodeError):
        # In a tunnel, only TLS errors come from behind the HTTP proxy.
        prefix = "" if origin.proxy is None or isinstance(error, tls.SSLError) else "the HTTP proxy: "
        return Unreachable(
            f"No connection to {host}: {prefix}{describe_connect_error(error)}. Check the upstream's base URL."
        )
    if isinstance(error, ProxyError | InvalidProxy):
        return Unreachable(f"No connection to {host}: the HTTP proxy refused it. Check HTTPS_PROXY and NO_PROXY.")
    return UpstreamDisconnected(f"{host} did not answer the WebSocket handshake as it should.")
