"""The way to the providers: a request as the proxy holds it goes out, the answer comes back as it is on the wire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import httpx

from accordion.core.errors import AccordionError, BadRequest, Unreachable, UpstreamCut, UpstreamTimeout
from accordion.core.ports import Headers, UpstreamRequest
from accordion.upstream.headers import end_to_end, outgoing
from accordion.upstream.incoming import Incoming
from accordion.upstream.transport import AiohttpTransport

_BODILESS = (204, 304)
"""Whatever length such an answer states, it is not that of a body (RFC 9110 8.6), and servers take it for one."""


class HttpReply:
    """A provider's answer (core's UpstreamReply)."""

    __slots__ = ("_host", "_incoming", "delimited", "headers", "status")

    def __init__(self, incoming: Incoming, host: str) -> None:
        self.status = incoming.status
        self.headers: Headers = end_to_end(incoming.headers)
        if incoming.status in _BODILESS:
            self.headers = tuple(pair for pair in self.headers if pair[0].lower() != b"content-length")
        self.delimited = incoming.delimited
        self._incoming = incoming
        self._host = host

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The body in pieces, each as soon as it arrives. Raises UpstreamCut or UpstreamTimeout."""
        read = self._incoming.read
        try:
            while piece := await read():
                yield piece
        except httpx.HTTPError as error:
            raise failure(error, self._host) from error

    async def close(self) -> None:
        """Let go; an unfinished reply's connection is closed, so that the provider notices."""
        await self._incoming.close()


class HttpUpstream:
    """Core's Upstream over HTTP/1.1.

    Where no connection could be made, nothing was sent and the body was not touched: up to `attempts` are made in
    all, the second after `backoff` seconds and each further one after twice as long. Nothing else is tried again but
    an idempotent request on a kept-alive connection that turned out to be dead (the transport does that).
    """

    def __init__(self, transport: AiohttpTransport, *, attempts: int = 3, backoff: float = 0.1) -> None:
        self._transport = transport
        self._attempts = attempts
        self._backoff = backoff

    async def send(self, request: UpstreamRequest) -> HttpReply:
        """Send and wait for the head.

        Raises Unreachable, UpstreamTimeout, UpstreamCut, BadRequest, and whatever a body that comes in pieces raises.
        """
        host, method, body, failed = "the configured URL", request.method, request.body, 0
        try:
            origin, target = self._transport.locate(request.url)
            host = origin.host
            headers, length = outgoing(request.headers, host, method, len(body) if isinstance(body, bytes) else None)
            while True:
                try:
                    return HttpReply(await self._transport.open(origin, method, target, headers, body, length), host)
                except httpx.ConnectError:
                    failed += 1
                    if failed >= self._attempts:
                        raise
                await asyncio.sleep(self._backoff * 2 ** (failed - 1))
        except httpx.HTTPError as error:
            raise failure(error, host) from error

    async def close(self) -> None:
        """Close all connections."""
        await self._transport.aclose()


def failure(error: httpx.HTTPError, host: str) -> AccordionError:
    """Our word for what happened on the way to `host`: what was seen, and what to check. No URL, no credential."""
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.ProxyError):
        return Unreachable(
            f"No connection to {host}: {error}. Nothing was sent. Check that the server runs and that the base URL is "
            "right."
        )
    if isinstance(error, httpx.UnsupportedProtocol):
        return Unreachable(f"Nothing could be sent to {host}: {error}.")
    if isinstance(error, httpx.LocalProtocolError):
        return BadRequest(f"Nothing was sent to {host}: {error}.")
    if isinstance(error, httpx.WriteError):
        return UpstreamCut(f"The request to {host} was not sent whole: {error}.")
    if isinstance(error, httpx.TimeoutException):
        return UpstreamTimeout(f"{host} took too long: {error}. Try again, or raise the upstream time-outs.")
    return UpstreamCut(
        f"Connection lost: {host} did not finish its answer ({error}). It may have done the work; try again with care."
    )
