"""The provider's side of a relayed WebSocket: messages as they are, or the provider's own refusal."""

from __future__ import annotations

import logging
import ssl as tls
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidProxy, InvalidStatus, ProxyError, WebSocketException
from websockets.frames import CloseCode
from websockets.http11 import Response
from websockets.typing import Subprotocol

from accordion.core.errors import AccordionError, Unreachable, UpstreamCut, UpstreamTimeout
from accordion.core.ports import Headers, UpstreamReply, UpstreamRequest
from accordion.upstream.client import failure
from accordion.upstream.faults import why
from accordion.upstream.headers import end_to_end
from accordion.upstream.origin import Origin, find_origin, parted

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
"""Each connection has its own of these."""


class SocketClosed(Exception):
    """The provider's side is closed. `code` is 1005 where its close frame held none, 1006 where there was no frame,
    1009 where its message was too large."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"closed with {code}")
        self.code = code
        self.reason = reason


class Socket:
    """An open WebSocket to a provider. `headers` are those of its answer that are not the handshake's own."""

    def __init__(self, connection: ClientConnection, headers: Headers) -> None:
        self._connection = connection
        self.headers = headers
        self.subprotocol: str | None = connection.subprotocol

    async def receive(self) -> str | bytes:
        """The next message, text or binary. Raises SocketClosed; a reader that waits makes the provider wait."""
        try:
            return await self._connection.recv()
        except ConnectionClosed as error:
            raise _closed(error) from error

    async def send(self, message: str | bytes) -> None:
        """Send one message, as text or binary by its type; waits while the provider does not read."""
        try:
            await self._connection.send(message)
        except ConnectionClosed as error:
            raise _closed(error) from error

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Close with the other side's code; one that must not be sent (RFC 6455 7.4.1) is sent as its nearest."""
        if code == 1005:
            code = 1000
        elif code == 1006:
            code = 1001
        elif not (1000 <= code <= 1014 and code != 1004) and not 3000 <= code <= 4999:
            code = 1011
        await self._connection.close(code, reason)


class Refusal:
    """A provider's answer to an upgrade that it did not accept (core's UpstreamReply)."""

    __slots__ = ("_body", "delimited", "headers", "status")

    def __init__(self, response: Response) -> None:
        self.status = response.status_code
        self.headers: Headers = end_to_end(_raw(response))
        self.delimited = True
        self._body = bytes(response.body)

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The body, whole."""
        if self._body:
            yield self._body

    async def close(self) -> None:
        """Nothing is held: the library closed the connection."""


async def open_socket(
    request: UpstreamRequest,
    subprotocols: Sequence[str] = (),
    *,
    max_size: int | None = 256 << 20,
    timeout: float = 10.0,  # noqa: ASYNC109
    ssl: tls.SSLContext | None = None,
    trust_env: bool = True,
) -> Socket | UpstreamReply:
    """Ask for an upgrade at `request.url` (http or https) with the client's headers; its body is not used.

    A message of the provider may have `max_size` bytes at most, inflated, since it is held whole; None: any. `timeout`
    bounds connecting and the handshake, in seconds. Raises Unreachable, UpstreamTimeout or UpstreamCut.
    """
    try:
        base, target = parted(request.url)
        origin = find_origin(base, trust_env)
    except httpx.UnsupportedProtocol as error:
        raise failure(error, "the configured URL") from error
    scheme, _, place = base.partition("://")
    secure = scheme.lower() == "https"
    way = origin.proxy
    options: dict[str, Any] = {"ssl": ssl} if ssl is not None and secure else {}
    # A logger that stands alone: in debug mode the library would write credentials to its own.
    quiet = logging.Logger("websockets", logging.CRITICAL + 1)
    try:
        connection = await _Connect(
            f"{'wss' if secure else 'ws'}://{place}{target}",
            subprotocols=[Subprotocol(name) for name in subprotocols] or None,
            compression="deflate" if _offers_deflate(request.headers) else None,
            additional_headers=_handshake_headers(request.headers),
            user_agent_header=None,
            # As for HTTP; the library would read the environment by other rules. It wants a password with a name.
            proxy=None if way is None else str(way.with_password(way.password or "") if way.user else way),
            open_timeout=timeout,
            ping_timeout=None,  # a provider held back by a slow client cannot be heard, and is not dead
            close_timeout=1.0,
            max_size=max_size,
            logger=quiet,
            create_connection=_Connection,
            **options,
        )
    except InvalidStatus as error:
        return Refusal(error.response)
    except (OSError, WebSocketException, ValueError) as error:
        raise _failure(error, origin, timeout) from error
    response = connection.response
    kept = () if response is None else end_to_end(_raw(response))
    return Socket(connection, tuple(header for header in kept if header[0].lower() not in _HANDSHAKE))


class _Connection(ClientConnection):
    """The library's, but one that was never made, since TLS failed behind the HTTP proxy, is not lost either."""

    def connection_lost(self, exc: Exception | None) -> None:
        if hasattr(self, "transport"):
            super().connection_lost(exc)


class _Connect(connect):
    """The library's, but a redirect is the provider's answer and goes to the client."""

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


def _raw(response: Response) -> Headers:
    return tuple((name.encode("latin-1"), value.encode("latin-1")) for name, value in response.headers.raw_items())


def _closed(error: ConnectionClosed) -> SocketClosed:
    said = error.rcvd
    if error.sent is not None and error.sent.code == CloseCode.MESSAGE_TOO_BIG:
        said = error.sent
    return SocketClosed(1006, "") if said is None else SocketClosed(said.code, said.reason)


def _failure(error: Exception, origin: Origin, limit: float) -> AccordionError:
    host = origin.host
    if isinstance(error, TimeoutError):
        return UpstreamTimeout(f"{host} did not open the WebSocket within {limit:g} s.")
    if isinstance(error, OSError | UnicodeError):
        # Of a tunnel only what TLS says comes from behind the HTTP proxy.
        place = "" if origin.proxy is None or isinstance(error, tls.SSLError) else "the HTTP proxy: "
        return Unreachable(f"No connection to {host}: {place}{why(error)}. Check the upstream's base URL.")
    if isinstance(error, ProxyError | InvalidProxy):
        return Unreachable(f"No connection to {host}: the HTTP proxy refused it. Check HTTPS_PROXY and NO_PROXY.")
    return UpstreamCut(f"{host} did not answer the WebSocket handshake as it should.")
