"""WebSockets: the provider's own answer to an upgrade, and messages relayed both ways where it accepts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Protocol, runtime_checkable

from starlette.types import Receive, Scope, Send

from proxy.core.errors import AccordionError
from proxy.core.http import Inbound
from proxy.core.ports import Headers, UpstreamReply, UpstreamRequest
from proxy.forward import Forward


@runtime_checkable
class Socket(Protocol):
    """An open WebSocket to a provider. `receive` raises `closed` with a code and a reason when it ends."""

    headers: Headers
    subprotocol: str | None

    async def receive(self) -> str | bytes:
        """The next message."""

    async def send(self, message: str | bytes) -> None:
        """Send one message."""

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Close."""


Open = Callable[[UpstreamRequest, Sequence[str]], Awaitable[Socket | UpstreamReply]]


class Sockets:
    """Relays WebSockets. `open_socket` asks the provider; `closed` is the exception that its sockets raise."""

    def __init__(self, open_socket: Open, closed: type[Exception]) -> None:
        self._open = open_socket
        self._closed = closed

    async def serve(self, forward: Forward, inbound: Inbound, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one upgrade request: refused as the provider refuses it, or relayed until either side closes."""
        await receive()  # websocket.connect
        try:
            request = await forward.upgrade(inbound)
            answer = await self._open(request, scope.get("subprotocols", ()))
        except AccordionError as error:
            out = forward.refuse(inbound, error)
            await _refuse(out.status, out.headers, out.body if isinstance(out.body, bytes) else b"", send)
            return
        if not isinstance(answer, Socket):
            body = b"".join([piece async for piece in answer.chunks()])
            await _refuse(answer.status, answer.headers, body, send)
            return
        try:
            await send({"type": "websocket.accept", "subprotocol": answer.subprotocol, "headers": list(answer.headers)})
            await self._relay(answer, receive, send)
        finally:
            # However it ends, the provider's side must not stay open; closing what is closed does nothing.
            await answer.close(1001)

    async def _relay(self, socket: Socket, receive: Receive, send: Send) -> None:
        outward = asyncio.create_task(self._outward(socket, receive))
        inward = asyncio.create_task(self._inward(socket, send))
        try:
            await asyncio.wait((outward, inward), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (outward, inward):
                task.cancel()
            await asyncio.gather(outward, inward, return_exceptions=True)

    async def _outward(self, socket: Socket, receive: Receive) -> None:
        while True:
            message = await receive()
            if message["type"] == "websocket.disconnect":
                await socket.close(message.get("code", 1005), message.get("reason") or "")
                return
            text, data = message.get("text"), message.get("bytes")
            try:
                await socket.send(text if text is not None else data or b"")
            except self._closed:
                # The other direction learns of it too, and closes with the provider's code.
                await asyncio.Event().wait()

    async def _inward(self, socket: Socket, send: Send) -> None:
        while True:
            try:
                message = await socket.receive()
            except self._closed as closed:
                code = getattr(closed, "code", 1006)
                # 1005 and 1006 stand for what was not said and cannot be sent (RFC 6455 7.4.1).
                said = {1005: 1000, 1006: 1011}.get(code, code)
                with suppress(OSError, RuntimeError):
                    await send({"type": "websocket.close", "code": said, "reason": getattr(closed, "reason", "")})
                return
            if isinstance(message, str):
                await send({"type": "websocket.send", "text": message})
            else:
                await send({"type": "websocket.send", "bytes": message})


async def _refuse(status: int, headers: Headers, body: bytes, send: Send) -> None:
    """Answers an upgrade with a plain HTTP response (ASGI's `websocket.http.response` extension)."""
    await send({"type": "websocket.http.response.start", "status": status, "headers": list(headers)})
    await send({"type": "websocket.http.response.body", "body": body})
