"""Serves WebSockets: passes the upgrade to the provider, and then messages in both directions, or its refusal.

Responses are read (response_socket.py); all other messages are relayed unread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from starlette.types import Message, Receive, Scope, Send

from accordion.http.response_socket import ResponseSocket, UpstreamSocket
from accordion.model.http import CLIENT_DISCONNECTED, Inbound, Outbound
from accordion.model.ports import UpstreamRequest, UpstreamResponse
from accordion.pipeline.upgrade import UpgradePipeline

T = TypeVar("T")

POLICY_VIOLATION = 1008
"""The close code of a socket whose proxy key is not valid any more (RFC 6455 7.4.1)."""
_KEY_NOT_VALID = "The proxy key is not valid any more, or it is not known whether it is."

OpenSocket = Callable[[UpstreamRequest, Sequence[str]], Awaitable[UpstreamSocket | UpstreamResponse]]


class WebSocketRelay:
    """Relays WebSockets. `open_socket` connects to the provider; its sockets raise `closed` when they end.

    `silence` returns the longest time in seconds that a response may bring nothing; None: no limit.
    """

    def __init__(
        self,
        open_socket: OpenSocket,
        closed: type[Exception],
        silence: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._open = open_socket
        self._closed = closed
        self._silence = silence

    async def serve(
        self,
        upgrade: Callable[[], UpgradePipeline],
        inbound: Inbound,
        scope: Scope,
        receive: Receive,
        send: Send,
        reader: ResponseSocket | None = None,
    ) -> None:
        """Serves one upgrade request: relays until either side closes, or passes on the provider's refusal.

        `upgrade` returns the present pipeline of upgrades. `reader` reads the messages in place of the relay. Without
        it they are relayed unread.
        """
        await receive()  # websocket.connect
        # Receives at once, because the client may leave before the provider has answered.
        first_message = asyncio.ensure_future(receive())
        response: UpstreamSocket | Outbound | None = None
        try:
            response = await _run_unless_disconnected(
                self._connect(upgrade(), inbound, scope.get("subprotocols", ())), first_message
            )
            if isinstance(response, Outbound) and (response.status != 101 or reader is None):
                await _refuse(response, send)
            elif response is not None and not _is_disconnect(first_message):
                socket = response if isinstance(response, UpstreamSocket) else None
                subprotocol = None if socket is None else socket.subprotocol
                await send({"type": "websocket.accept", "subprotocol": subprotocol, "headers": list(response.headers)})
                if reader is not None:
                    await reader.run(first_message, receive, socket, self._closed, self._silence())
                elif socket is not None:
                    await self._relay(
                        socket,
                        first_message,
                        receive,
                        send,
                        lambda: upgrade().tenants.authorizes(inbound.headers_by_name),
                    )
        finally:
            first_message.cancel()
            if isinstance(response, UpstreamSocket):
                # The provider's side must not stay open in any case. Closing a closed socket does nothing.
                await response.close(1001)

    async def _connect(
        self, upgrade: UpgradePipeline, inbound: Inbound, subprotocols: Sequence[str]
    ) -> UpstreamSocket | Outbound:
        """Returns the provider's open socket, or its refusal with the whole body."""

        offered = [name for name in subprotocols if not upgrade.tenants.contains_proxy_key(name)]

        async def connect(request: UpstreamRequest) -> UpstreamSocket | Outbound:
            response = await self._open(request, offered)
            if isinstance(response, UpstreamSocket):
                return response
            try:
                body = b"".join([piece async for piece in response.chunks()])
            finally:
                await response.close()
            return Outbound(response.status, response.headers, body)

        return await upgrade(inbound, connect)

    async def _relay(
        self,
        socket: UpstreamSocket,
        first_message: asyncio.Future[Message],
        receive: Receive,
        send: Send,
        is_admitted: Callable[[], bool],
    ) -> None:
        """Relays until either side closes, or until the client sends a message with a proxy key that is not valid."""
        outward = asyncio.create_task(self._relay_to_provider(socket, first_message, receive, send, is_admitted))
        inward = asyncio.create_task(self._relay_to_client(socket, send))
        try:
            await asyncio.wait((outward, inward), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (outward, inward):
                task.cancel()
            await asyncio.gather(outward, inward, return_exceptions=True)

    async def _relay_to_provider(
        self,
        socket: UpstreamSocket,
        first_message: asyncio.Future[Message],
        receive: Receive,
        send: Send,
        is_admitted: Callable[[], bool],
    ) -> None:
        message = await first_message
        while message["type"] != "websocket.disconnect":
            if not is_admitted():
                await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": _KEY_NOT_VALID})
                return
            text, data = message.get("text"), message.get("bytes")
            try:
                await socket.send(text if text is not None else data or b"")
            except self._closed:
                # The other direction gets the same exception, and closes with the provider's code.
                await asyncio.Event().wait()
            message = await receive()
        await socket.close(message.get("code", 1005), message.get("reason") or "")

    async def _relay_to_client(self, socket: UpstreamSocket, send: Send) -> None:
        while True:
            try:
                message = await socket.receive()
            except self._closed as closed:
                code = getattr(closed, "code", 1006)
                # 1005 and 1006 stand for a missing code and cannot be sent (RFC 6455 7.4.1).
                sent_code = {1005: 1000, 1006: 1011}.get(code, code)
                with suppress(OSError, RuntimeError):
                    await send({"type": "websocket.close", "code": sent_code, "reason": getattr(closed, "reason", "")})
                return
            if isinstance(message, str):
                await send({"type": "websocket.send", "text": message})
            else:
                await send({"type": "websocket.send", "bytes": message})


async def _run_unless_disconnected(work: Coroutine[Any, Any, T], first_message: asyncio.Future[Message]) -> T | None:
    """Awaits `work`. Cancels it and returns None if the client disconnects first."""
    task = asyncio.create_task(work)
    try:
        await asyncio.wait((task, first_message), return_when=asyncio.FIRST_COMPLETED)
        return None if not task.done() and _is_disconnect(first_message) else await task
    finally:
        if not task.done():
            task.cancel(CLIENT_DISCONNECTED if _is_disconnect(first_message) else None)
            await asyncio.gather(task, return_exceptions=True)


def _is_disconnect(first_message: asyncio.Future[Message]) -> bool:
    return first_message.done() and first_message.result()["type"] == "websocket.disconnect"


async def _refuse(response: Outbound, send: Send) -> None:
    """Refuses an upgrade with a plain HTTP response (ASGI's `websocket.http.response` extension)."""
    await send({"type": "websocket.http.response.start", "status": response.status, "headers": list(response.headers)})
    body = response.body if isinstance(response.body, bytes) else b""
    await send({"type": "websocket.http.response.body", "body": body})
