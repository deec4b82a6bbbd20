"""Patches LiteLLM's transport: connect time-outs, response headers, and closed streams for each call.

With most providers LiteLLM waits as long for a connection as for a response. It loses the headers of some streams,
leaves unread streams to the garbage collector, and repeats a request after a broken connection as if none was made. All
calls use one transport class, which is patched here.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

import aiohttp
import httpx

from accordion.model.errors import UpstreamError


class CallConnections:
    """The requests and responses of one call. `connect` is the time limit for making a connection, in seconds."""

    __slots__ = ("_connect", "_responses", "is_sent")

    def __init__(self, connect: float | None = None) -> None:
        self.is_sent = False
        """Whether the call tried to send anything. Earlier errors are not the provider's."""
        self._connect = connect
        self._responses: list[httpx.Response] = []

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the newest response. A request for a token may come before the actual one."""
        return self._responses[-1].headers if self._responses else {}

    def limit(self, connect: float | None) -> float | None:
        """Returns the time limit for connecting: the lower one of the call's limit and LiteLLM's."""
        limits = [limit for limit in (self._connect, connect) if limit is not None]
        return min(limits, default=None)

    def note(self, response: httpx.Response) -> None:
        """Adds a response whose head has arrived."""
        self._responses.append(response)

    async def close(self) -> None:
        """Closes all responses, so that the providers notice."""
        for response in self._responses:
            with suppress(Exception):  # broken already
                await response.aclose()


class _WatchedStream(httpx.AsyncByteStream):
    """A response's body that raises the right error if its connection breaks."""

    def __init__(self, body: Any) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._body:
                yield piece
        except httpx.ConnectError as error:
            raise _translate_error(error) from error.__cause__

    async def aclose(self) -> None:
        await self._body.aclose()


def _translate_error(error: httpx.ConnectError) -> httpx.TransportError:
    """Returns ReadError for a broken connection, which may have carried the request; else the error itself."""
    cause = error.__cause__
    if isinstance(cause, aiohttp.ClientOSError) and not isinstance(cause, aiohttp.ClientConnectorError):
        return httpx.ReadError("the connection broke")
    return error


_WIRE: ContextVar[CallConnections | None] = ContextVar("connections", default=None)


def bind_task(connections: CallConnections) -> None:
    """Assigns all further requests of this task and its child tasks to `connections`."""
    _WIRE.set(connections)


def patch_transport(transport: Any) -> None:
    """Patches LiteLLM's transport class to record each call's responses; further calls do nothing."""
    send = transport.handle_async_request
    if hasattr(send, "__wrapped__"):
        return

    @functools.wraps(send)
    async def handle_async_request(self: Any, request: httpx.Request) -> httpx.Response:
        connections = _WIRE.get()
        if connections is None:
            response: httpx.Response = await send(self, request)
            return response
        connections.is_sent = True
        limits: dict[str, Any] = request.extensions.get("timeout") or {}
        limits = {**limits, "connect": connections.limit(limits.get("connect"))}
        request.extensions = {**request.extensions, "timeout": limits}
        try:
            response = await send(self, request)
        except httpx.ConnectError as error:
            raise _translate_error(error) from error.__cause__
        response.stream = _WatchedStream(response.stream)
        connections.note(response)
        if response.has_redirect_location:
            # LiteLLM would follow it with the conversation and, in headers other than `Authorization`, the key.
            raise UpstreamError(
                f"The provider answered {response.status_code}, a redirect, which is not followed. "
                "Set the model's `api_base` to where it leads."
            )
        return response

    transport.handle_async_request = handle_async_request
