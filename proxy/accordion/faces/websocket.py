"""WebSockets: the provider's own answer to an upgrade, and messages relayed both ways where it accepts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar, runtime_checkable

from starlette.types import Message, Receive, Scope, Send

from accordion.core.http import LEFT, Inbound, Outbound
from accordion.core.ports import Headers, UpstreamReply, UpstreamRequest
from accordion.forward import Forward

T = TypeVar("T")


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
        # What the client does next is listened for at once: it may leave before the provider has answered.
        said = asyncio.ensure_future(receive())
        answer: Socket | Outbound | None = None
        try:
            answer = await _unless_gone(self._asked(forward, inbound, scope.get("subprotocols", ())), said)
            if isinstance(answer, Outbound):
                await _refuse(answer, send)
            elif answer is not None and not _leaves(said):
                head = {"subprotocol": answer.subprotocol, "headers": list(answer.headers)}
                await send({"type": "websocket.accept", **head})
                await self._relay(answer, said, receive, send)
        finally:
            said.cancel()
            if isinstance(answer, Socket):
                # However it ends, the provider's side must not stay open; closing what is closed does nothing.
                await answer.close(1001)

    async def _asked(self, forward: Forward, inbound: Inbound, subprotocols: Sequence[str]) -> Socket | Outbound:
        """What the provider says to an upgrade: an open socket, or a refusal with its whole body."""

        async def ask(request: UpstreamRequest) -> Socket | Outbound:
            answer = await self._open(request, subprotocols)
            if isinstance(answer, Socket):
                return answer
            try:
                body = b"".join([piece async for piece in answer.chunks()])
            finally:
                await answer.close()
            return Outbound(answer.status, answer.headers, body)

        return await forward.upgrade(inbound, ask)

    async def _relay(self, socket: Socket, said: asyncio.Future[Message], receive: Receive, send: Send) -> None:
        outward = asyncio.create_task(self._outward(socket, said, receive))
        inward = asyncio.create_task(self._inward(socket, send))
        try:
            await asyncio.wait((outward, inward), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (outward, inward):
                task.cancel()
            await asyncio.gather(outward, inward, return_exceptions=True)

    async def _outward(self, socket: Socket, said: asyncio.Future[Message], receive: Receive) -> None:
        message = await said
        while message["type"] != "websocket.disconnect":
            text, data = message.get("text"), message.get("bytes")
            try:
                await socket.send(text if text is not None else data or b"")
            except self._closed:
                # The other direction learns of it too, and closes with the provider's code.
                await asyncio.Event().wait()
            message = await receive()
        await socket.close(message.get("code", 1005), message.get("reason") or "")

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


async def _unless_gone(work: Coroutine[Any, Any, T], said: asyncio.Future[Message]) -> T | None:
    """What `work` gives; None where the client leaves before, and then the work is cancelled."""
    doing = asyncio.create_task(work)
    try:
        await asyncio.wait((doing, said), return_when=asyncio.FIRST_COMPLETED)
        return None if not doing.done() and _leaves(said) else await doing
    finally:
        if not doing.done():
            doing.cancel(LEFT if _leaves(said) else None)
            await asyncio.gather(doing, return_exceptions=True)


def _leaves(said: asyncio.Future[Message]) -> bool:
    return said.done() and said.result()["type"] == "websocket.disconnect"


async def _refuse(answer: Outbound, send: Send) -> None:
    """Answers an upgrade with a plain HTTP response (ASGI's `websocket.http.response` extension)."""
    await send({"type": "websocket.http.response.start", "status": answer.status, "headers": list(answer.headers)})
    body = answer.body if isinstance(answer.body, bytes) else b""
    await send({"type": "websocket.http.response.body", "body": body})
