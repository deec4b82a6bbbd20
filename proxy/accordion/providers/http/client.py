"""The HTTP client for providers: sends a request's exact bytes and returns the response's exact bytes.

`HttpUpstream.send` finds the server, writes the outgoing headers without the hop-by-hop ones, opens the request on a
connection (transport.py) and returns an `HttpResponse` when the response's head has arrived. Errors of the connection
become AccordionErrors here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from accordion.model.errors import AccordionError, BadRequest, Unreachable, UpstreamDisconnected, UpstreamTimeout
from accordion.model.ports import Headers, UpstreamRequest
from accordion.providers.http.transport import AiohttpTransport, IncomingResponse
from accordion.providers.http.transport_errors import (
    ConnectError,
    ConnectTimeout,
    ProxyError,
    TransferTimeout,
    TransportError,
    UnsendableRequest,
    UnsupportedUrl,
    WriteError,
)

# -- headers -----------------------------------------------------------------------------------------------------------


HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""RFC 9110 7.6.1 with RFC 2616 13.5.1. `Trailer` is removed because trailers are discarded (RFC 9110 6.5.1)."""
_REWRITTEN_HEADERS = HOP_BY_HOP | {b"host", b"content-length"}


def end_to_end(headers: Headers) -> Headers:
    """Returns the headers that an intermediary forwards: not the hop-by-hop ones, nor those named in `Connection`."""
    connection_options: set[bytes] = set()
    remaining = []
    for header in headers:
        name = header[0].lower()
        if name not in HOP_BY_HOP:
            remaining.append(header)
        elif name == b"connection":
            connection_options.update(option.strip().lower() for option in header[1].split(b","))
    if connection_options:
        remaining = [header for header in remaining if header[0].lower() not in connection_options]
    return tuple(remaining)


def outgoing_headers(headers: Headers, host: str, method: str, size: int | None) -> tuple[Headers, int | None]:
    """Returns a client's headers as sent to `host`, and the body length in bytes that they declare.

    `size` is the body's size if it is known. Otherwise the client's Content-Length holds, and without one the body is
    sent chunked. Headers keep their order and case; a replaced header keeps its position.
    """
    result: list[tuple[bytes, bytes]] = []
    declared = size
    has_length = has_host = False
    for header in headers:
        name = header[0].lower()
        if name not in _REWRITTEN_HEADERS:
            result.append(header)
        elif name == b"host":
            if not has_host:
                result.append((header[0], host.encode()))
            has_host = True
        elif name == b"content-length":
            if size is not None and not has_length:
                result.append((header[0], b"%d" % size))
            elif not has_length and header[1].isdigit():
                declared = int(header[1])
                result.append(header)
            has_length = True
        else:
            return outgoing_headers(end_to_end(headers), host, method, size)
    if not has_host:
        result.insert(0, (b"Host", host.encode()))
    if size is None and declared is None:
        result.append((b"Transfer-Encoding", b"chunked"))
    elif size is not None and not has_length and (size or method in {"POST", "PUT", "PATCH"}):
        result.append((b"Content-Length", b"%d" % size))
    return tuple(result), declared


# -- the client --------------------------------------------------------------------------------------------------------


_BODILESS = (204, 304)
"""Responses without a body. Their Content-Length is not that of a body (RFC 9110 8.6), but servers read it as one."""


class HttpResponse:
    """A provider's response (implements UpstreamResponse in model/ports.py)."""

    __slots__ = ("_host", "_incoming", "headers", "is_delimited", "status")

    def __init__(self, incoming: IncomingResponse, host: str) -> None:
        self.status = incoming.status
        self.headers: Headers = end_to_end(incoming.headers)
        if incoming.status in _BODILESS:
            self.headers = tuple(pair for pair in self.headers if pair[0].lower() != b"content-length")
        self.is_delimited = incoming.is_delimited
        self._incoming = incoming
        self._host = host

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yields the body's pieces as they arrive. Raises UpstreamDisconnected or UpstreamTimeout."""
        read = self._incoming.read
        try:
            while piece := await read():
                yield piece
        except TransportError as error:
            raise describe_failure(error, self._host) from error

    async def close(self) -> None:
        """Releases the connection; closes it if the response is unfinished, so that the provider notices."""
        await self._incoming.close()


class HttpUpstream:
    """The Upstream port over HTTP/1.1.

    If no connection could be made, nothing was sent and the body was not read, so `send` tries again: `attempts` times
    in all, the second time after `backoff` seconds, and each further time after twice as long. The transport repeats
    idempotent requests on a kept-alive connection that proved dead. Nothing else is repeated.
    """

    def __init__(self, transport: AiohttpTransport, *, attempts: int = 3, backoff: float = 0.1) -> None:
        self._transport = transport
        self._attempts = attempts
        self._backoff = backoff

    async def send(self, request: UpstreamRequest) -> HttpResponse:
        """Sends a request and waits for the head of the response.

        Raises Unreachable, UpstreamTimeout, UpstreamDisconnected, BadRequest, and any error of a streamed body.
        """
        host, method, body, failures = "the configured URL", request.method, request.body, 0
        try:
            origin, target = self._transport.locate(request.url)
            host = origin.host
            headers, length = outgoing_headers(
                request.headers, host, method, len(body) if isinstance(body, bytes) else None
            )
            while True:
                try:
                    return HttpResponse(await self._transport.open(origin, method, target, headers, body, length), host)
                except ConnectError:
                    failures += 1
                    if failures >= self._attempts:
                        raise
                await asyncio.sleep(self._backoff * 2 ** (failures - 1))
        except TransportError as error:
            raise describe_failure(error, host) from error

    async def close(self) -> None:
        """Closes all connections."""
        await self._transport.close()


def describe_failure(error: TransportError, host: str) -> AccordionError:
    """Returns the AccordionError for a failed request to `host`, with advice. It holds no URL and no credential."""
    if isinstance(error, ConnectError | ConnectTimeout | ProxyError):
        return Unreachable(
            f"No connection to {host}: {error}. Nothing was sent. Check that the server runs and that the base URL is "
            "right."
        )
    if isinstance(error, UnsupportedUrl):
        return Unreachable(f"Nothing could be sent to {host}: {error}.")
    if isinstance(error, UnsendableRequest):
        return BadRequest(f"Nothing was sent to {host}: {error}.")
    if isinstance(error, WriteError):
        return UpstreamDisconnected(f"The request to {host} was not sent whole: {error}.")
    if isinstance(error, TransferTimeout):
        return UpstreamTimeout(f"{host} took too long: {error}. Try again, or raise the upstream time-outs.")
    return UpstreamDisconnected(
        f"Connection lost: {host} did not finish its answer ({error}). It may have done the work; try again with care."
    )
