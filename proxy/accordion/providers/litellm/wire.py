"""The connections of one call of LiteLLM: their time limit, the responses' headers, and streams that must be closed.

LiteLLM's transport class is patched to use them (litellm_compat.py).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

import aiohttp
import httpx


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


class WatchedStream(httpx.AsyncByteStream):
    """A response's body that raises the right error if its connection breaks."""

    def __init__(self, body: Any) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._body:
                yield piece
        except httpx.ConnectError as error:
            raise translate_error(error) from error.__cause__

    async def aclose(self) -> None:
        """Closes the body's connection."""
        await self._body.aclose()


def translate_error(error: httpx.ConnectError) -> httpx.TransportError:
    """Returns ReadError for a broken connection, which may have carried the request; else the error itself."""
    cause = error.__cause__
    if isinstance(cause, aiohttp.ClientOSError) and not isinstance(cause, aiohttp.ClientConnectorError):
        return httpx.ReadError("the connection broke")
    return error


_WIRE: ContextVar[CallConnections | None] = ContextVar("connections", default=None)


def current_connections() -> CallConnections | None:
    """Returns the connections of this task's call; None outside of a call."""
    return _WIRE.get()


def bind_task(connections: CallConnections) -> None:
    """Assigns all further requests of this task and its child tasks to `connections`."""
    _WIRE.set(connections)
