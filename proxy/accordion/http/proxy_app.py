"""The ASGI application that clients talk to.

Uvicorn calls `ProxyApp` once for each connection's request. Requests at a provider's path become an `Inbound`, go
through the `RequestPipeline`, and its `Outbound` is sent back byte for byte. WebSockets at such a path go to
`WebSocketRelay`, with a `ResponseSocket` if their messages are read. All other paths belong to the API (api.py). This
is plain ASGI, without Starlette, because every forwarded request passes here.

A `DisconnectWatch` cancels the work for a request whose client has left.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from io import BytesIO

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from accordion.http.model_list import answer_with_configured, is_model_request
from accordion.http.response_socket import ResponseSocket
from accordion.http.websocket_relay import WebSocketRelay
from accordion.model.errors import AccordionError, BodyTooLarge, ShuttingDown
from accordion.model.http import CLIENT_DISCONNECTED, Inbound, Outbound
from accordion.model.ports import Headers
from accordion.pipeline.forward import RequestPipeline
from accordion.pipeline.relay import content_length
from accordion.pipeline.upgrade import UpgradePipeline
from accordion.providers.http.routes import is_provider_path
from accordion.sessions.request_origins import HTTP_1_0_HEADER

BARE_QUERY = "accordion.bare_query"
"""The key in `scope["extensions"]` of a request whose target ends in `?` without a query (server/uvicorn_compat.py)."""

LOST = "accordion.lost"
"""The key in `scope["state"]` of a future that is done once the client reset the connection or left within a request
body. `receive` reports any other disconnect."""

STOPPING = "accordion.stopping"
"""The key in `scope["state"]` of an event that is set when the server stops, for responses without an end."""

IS_BUSY = "accordion.is_busy"
"""The key in `scope["state"]` of a function that says whether a WebSocket has running responses. If it has when the
server stops, the application closes it after them."""

# A body of at most this size is read whole even if it is not parsed, so that a retry can send it again.
_SMALL_BODY = 65_536
# Seconds into a request before its watch begins; most requests are over by then.
_WATCH_DELAY = 0.2


class ClientDisconnected(Exception):
    """The client closed the connection before it sent its whole request."""


class ProxyApp:
    """Forwards what comes at a provider's path; the rest goes to `api`. Bodies are limited to `max_body` bytes."""

    def __init__(
        self,
        pipeline: Callable[[], RequestPipeline],
        upgrade: Callable[[], UpgradePipeline],
        api: ASGIApp,
        sockets: WebSocketRelay,
        new_id: Callable[[], str],
    ) -> None:
        self._pipeline = pipeline
        self._upgrade = upgrade
        self._api = api
        self._sockets = sockets
        self._new_id = new_id
        self._watches = DisconnectWatches()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one connection's request (ASGI 3)."""
        kind = scope["type"]
        if scope.get("http_version") == "1.0":
            scope = {**scope, "headers": [*scope["headers"], (HTTP_1_0_HEADER, b"1")]}
        try:
            if kind == "http" and is_provider_path(scope["path"]):
                await self._serve(scope, receive, send)
            elif kind == "websocket" and is_provider_path(scope["path"]):
                await self._serve_socket(scope, receive, send)
            else:
                await self._api(scope, receive, send)
        except asyncio.CancelledError:
            # The client has left, or the server stops after a complete response. Uvicorn would log an error.
            _uncancel()

    async def _serve_socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        inbound, reader = _inbound(scope, b"", self._new_id()), None
        if self._upgrade().reads(inbound):
            stopping = scope.get("state", {}).get(STOPPING) or asyncio.Event()
            max_body = self._pipeline().reader.receiver.max_body
            reader = ResponseSocket(self._pipeline, inbound, self._new_id, send, stopping, max_body)
            scope.setdefault("state", {})[IS_BUSY] = reader.is_busy
        await self._sockets.serve(self._upgrade, inbound, scope, receive, send, reader)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        pipeline = self._pipeline()
        body = _RequestBody(scope["headers"], receive, pipeline.reader.receiver.max_body)
        content: bytes | AsyncIterator[bytes]
        start = b""
        try:
            body.check_length()
            if body.is_small or pipeline.reader.receiver.needs_body(scope["method"], _path(scope), body.content_type):
                content = await body.read()
            elif scope["method"] == "POST" and pipeline.reader.receiver.router.models:
                # The first bytes may name a model that is routed to another provider.
                start, content = await body.open()
            else:
                content = body.stream()
            inbound = _inbound(scope, content, self._new_id(), start)
        except (BodyTooLarge, asyncio.CancelledError) as cause:
            error = cause if isinstance(cause, BodyTooLarge) else ShuttingDown()
            await _send_response(pipeline.refuse(_inbound(scope, b"", self._new_id()), error), send)
            return
        except ClientDisconnected:
            return
        watch = DisconnectWatch(receive, self._watches)
        if isinstance(content, bytes):
            watch.start()
        else:
            # The body's reader notices a disconnect, but not while it waits for a slow provider. `LOST` covers that
            # time. After the body's end nobody reads, so the watch starts then.
            body.on_end = watch.start
            watch.watch_future(scope.get("state", {}).get(LOST))
        try:
            await _send_response(await self._await_response(pipeline, inbound, watch), send, watch.stop)
        except ClientDisconnected:
            return
        finally:
            watch.stop()

    async def _await_response(self, pipeline: RequestPipeline, inbound: Inbound, watch: DisconnectWatch) -> Outbound:
        try:
            outbound = await pipeline(inbound)
            models = pipeline.reader.receiver.router.models
            if models and is_model_request(inbound) and pipeline.tenants.authorizes(inbound.headers_by_name):
                outbound = await answer_with_configured(outbound, inbound, models)
        except asyncio.CancelledError:
            if watch.is_disconnected:
                raise
            return pipeline.refuse(inbound, ShuttingDown())
        return outbound


async def _send_response(outbound: Outbound, send: Send, on_end: Callable[[], object] = lambda: None) -> None:
    """Sends a response, and calls `on_end` just before the last piece.

    Returns without the final message if the body broke off, so that the server closes the connection.
    """
    start = {"type": "http.response.start", "status": outbound.status, "headers": outbound.headers}
    if isinstance(outbound.body, bytes):
        await send(start)
        await send({"type": "http.response.body", "body": outbound.body})
        return
    remaining, has_more = content_length(outbound.headers), True
    try:
        await send(start)
        async for piece in outbound.body:
            remaining -= len(piece)
            if remaining == 0:
                has_more = False
                on_end()
            await send({"type": "http.response.body", "body": piece, "more_body": has_more})
    except AccordionError:
        return
    finally:
        await outbound.body.aclose()
    if has_more:
        await send({"type": "http.response.body", "body": b""})


def respond_with(outbound: Outbound) -> ASGIApp:
    """Returns an ASGI application that answers every request with `outbound`."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await _send_response(outbound, send)

    return app


class _RequestBody:
    """A request's body, read whole or in pieces. Every method raises BodyTooLarge beyond `limit` bytes."""

    def __init__(self, headers: Headers, receive: Receive, limit: int) -> None:
        self._receive = receive
        self._limit = limit
        self._fields = fields = dict(headers)
        length = fields.get(b"content-length", b"")
        self._length = None if b"transfer-encoding" in fields else int(length) if length.isdigit() else 0
        self.on_end: Callable[[], object] | None = None
        """Called at the end of a streamed body."""

    @property
    def content_type(self) -> bytes:
        return self._fields.get(b"content-type", b"").lower()

    @property
    def is_small(self) -> bool:
        return self._length is not None and self._length <= _SMALL_BODY

    def check_length(self) -> None:
        """Raises BodyTooLarge if the Content-Length exceeds the limit."""
        self._check(self._length or 0)

    async def read(self) -> bytes:
        message = await self._receive()
        first = self._piece(message)
        if not message.get("more_body", False):
            return first
        # BytesIO grows in place and gives its bytes without a copy; copying a large body would block other requests.
        buffer = BytesIO()
        buffer.write(first)
        async for piece in self.stream():
            buffer.write(piece)
            self._check(buffer.tell())
        return buffer.getvalue()

    async def open(self) -> tuple[bytes, bytes | AsyncIterator[bytes]]:
        """Returns the first bytes and the body. A body that ends within them comes whole, with empty first bytes."""
        start, rest = bytearray(), self.stream()
        async for piece in rest:
            start += piece
            if len(start) >= _SMALL_BODY:
                return bytes(start), _pieces(bytes(start), rest)
        return b"", bytes(start)

    async def stream(self) -> AsyncIterator[bytes]:
        size = 0
        while True:
            message = await self._receive()
            piece = self._piece(message)
            size += len(piece)
            self._check(size)
            if piece:
                yield piece
            if not message.get("more_body", False):
                if self.on_end is not None:
                    self.on_end()
                return

    def _piece(self, message: Message) -> bytes:
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        piece: bytes = message.get("body", b"")
        self._check(len(piece))
        return piece

    def _check(self, size: int) -> None:
        if size > self._limit:
            raise BodyTooLarge(
                f"The request body is larger than the {self._limit:,} bytes that this proxy accepts. Send less, or "
                "raise server.max_body_bytes in its config.yaml."
            )


async def _pieces(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in rest:
        yield piece


def _uncancel() -> None:
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()


def _path(scope: Scope) -> str:
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw.decode("latin-1")


def _inbound(scope: Scope, body: bytes | AsyncIterator[bytes], request_id: str, start: bytes = b"") -> Inbound:
    return Inbound(
        method=scope.get("method", "GET"),
        path=_path(scope),
        query=scope["query_string"].decode("latin-1"),
        headers=tuple(scope["headers"]),
        body=body,
        request_id=request_id,
        has_bare_query=BARE_QUERY in scope.get("extensions", ()),
        start=start,
    )


def new_id() -> str:
    """Returns a new request id."""
    # Not from os.urandom: that call releases the interpreter lock, and an id need not be secret.
    return f"req_{random.getrandbits(96):024x}"


# -- clients that leave -----------------------------------------------------------------------------------------------


class DisconnectWatches:
    """The watches that have not begun yet, oldest first, on one timer: nearly all requests end before it fires."""

    def __init__(self) -> None:
        self._scheduled: dict[DisconnectWatch, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, watch: DisconnectWatch) -> None:
        """Schedules the beginning of a watch."""
        self._scheduled[watch] = start_time = asyncio.get_running_loop().time() + _WATCH_DELAY
        if self._timer is None:
            self._set_timer(start_time)

    def drop(self, watch: DisconnectWatch) -> None:
        """Removes a watch that need not begin."""
        self._scheduled.pop(watch, None)

    def _set_timer(self, start_time: float) -> None:
        self._timer = asyncio.get_running_loop().call_at(start_time, self._start_due, start_time)

    def _start_due(self, now: float) -> None:
        # A timer may fire slightly early because the loop rounds. Set again to the same time, it would fire at once,
        # again and again.
        now, self._timer = max(now, asyncio.get_running_loop().time()), None
        for watch, start_time in list(self._scheduled.items()):
            if start_time > now:
                self._set_timer(start_time)
                return
            del self._scheduled[watch]
            watch.begin()


class DisconnectWatch:
    """Cancels the task that serves a request when its client disconnects.

    It begins only after `_WATCH_DELAY` seconds: a task for every request would cost too much.
    """

    __slots__ = (
        "_disconnect_future",
        "_is_stopped",
        "_receive",
        "_request_task",
        "_watch_task",
        "_watches",
        "is_disconnected",
    )

    def __init__(self, receive: Receive, watches: DisconnectWatches) -> None:
        self.is_disconnected = False
        self._receive = receive
        self._watches = watches
        self._request_task = asyncio.current_task()
        self._watch_task: asyncio.Task[None] | None = None
        self._disconnect_future: asyncio.Future[None] | None = None
        self._is_stopped = False

    def watch_future(self, future: asyncio.Future[None] | None) -> None:
        """Begins at once, on a future that is done once the client has left.

        While a body is streamed, `receive` belongs to its reader and cannot be used here.
        """
        self._disconnect_future = future
        if future is not None:
            future.add_done_callback(self._on_disconnect)

    def start(self) -> None:
        """Schedules the watch; the whole body has been received."""
        if not self._is_stopped:
            self._watches.add(self)

    def begin(self) -> None:
        """Waits for the disconnect message from now on."""
        self._watch_task = asyncio.get_running_loop().create_task(self._wait_for_disconnect())

    def stop(self) -> None:
        """Ends the watch: the request is over."""
        if self._is_stopped:
            return
        self._is_stopped = True
        self._watches.drop(self)
        if self._disconnect_future is not None:
            self._disconnect_future.remove_done_callback(self._on_disconnect)
        if self._watch_task is not None:
            self._watch_task.cancel()
        # The watching task refers to an error, the error to a frame, and the frame to this watch. Breaking the cycle
        # frees all of it at once; the garbage collector seldom runs.
        self._watch_task = self._request_task = None

    async def _wait_for_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._on_disconnect()

    def _on_disconnect(self, _: object = None) -> None:
        if not self.is_disconnected and self._request_task is not None:
            self._request_task.cancel(CLIENT_DISCONNECTED)
        self.is_disconnected = True
