"""What one call of LiteLLM has on the wire: how long connecting may take, the provider's headers, and its end.

LiteLLM waits as long for a connection as for an answer with most providers, loses the headers of some streams, leaves
a stream that nobody reads to the garbage collector, and sends a request again whose connection broke, since it takes
that for one that was not made. All its providers' calls pass one transport, and there that is set right.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

import aiohttp
import httpx

from accordion.core.errors import UpstreamError


class Wire:
    """One call's requests and responses. `connect` is how long a connection may take to be made, in seconds."""

    __slots__ = ("_connect", "_responses", "sent")

    def __init__(self, connect: float | None = None) -> None:
        self.sent = False
        """Whether anything was sent, or tried to be: until then what goes wrong is not the provider's doing."""
        self._connect = connect
        self._responses: list[httpx.Response] = []

    @property
    def headers(self) -> Mapping[str, str]:
        """Those of the newest response; a request for a token comes before the one that counts."""
        return self._responses[-1].headers if self._responses else {}

    def limit(self, connect: float | None) -> float | None:
        """How long connecting may take where LiteLLM says `connect`."""
        limits = [limit for limit in (self._connect, connect) if limit is not None]
        return min(limits, default=None)

    def note(self, response: httpx.Response) -> None:
        """A response whose head is there."""
        self._responses.append(response)

    async def close(self) -> None:
        """Close what is still open, so that the providers notice."""
        for response in self._responses:
            with suppress(Exception):  # broken already
                await response.aclose()


class _Stream(httpx.AsyncByteStream):
    """A response's body, with what happens to it in the right words."""

    def __init__(self, body: Any) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._body:
                yield piece
        except httpx.ConnectError as error:
            raise _seen(error) from error.__cause__

    async def aclose(self) -> None:
        await self._body.aclose()


def _seen(error: httpx.ConnectError) -> httpx.TransportError:
    """The error itself where no connection was made; one that broke may have carried the request."""
    cause = error.__cause__
    if isinstance(cause, aiohttp.ClientOSError) and not isinstance(cause, aiohttp.ClientConnectorError):
        return httpx.ReadError("the connection broke")
    return error


_WIRE: ContextVar[Wire | None] = ContextVar("wire", default=None)


def begin(wire: Wire) -> None:
    """From here on, what this task and those that it starts send belongs to `wire`."""
    _WIRE.set(wire)


def watch(transport: Any) -> None:
    """Makes LiteLLM's transport class tell each call's wire of its responses; once, however often it is called."""
    send = transport.handle_async_request
    if hasattr(send, "__wrapped__"):
        return

    @functools.wraps(send)
    async def watched(self: Any, request: httpx.Request) -> httpx.Response:
        wire = _WIRE.get()
        if wire is None:
            response: httpx.Response = await send(self, request)
            return response
        wire.sent = True
        given: dict[str, Any] = request.extensions.get("timeout") or {}
        request.extensions = {**request.extensions, "timeout": {**given, "connect": wire.limit(given.get("connect"))}}
        try:
            response = await send(self, request)
        except httpx.ConnectError as error:
            raise _seen(error) from error.__cause__
        response.stream = _Stream(response.stream)
        wire.note(response)
        if response.has_redirect_location:
            # LiteLLM would follow it, with the conversation and, outside of `Authorization`, the provider's key.
            raise UpstreamError(
                f"The provider answered {response.status_code}, a redirect, which is not followed. "
                "Set the model's `api_base` to where it leads."
            )
        return response

    transport.handle_async_request = watched
