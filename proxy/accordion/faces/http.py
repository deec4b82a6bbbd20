"""The face that clients talk to: ASGI in, Inbound out, and the answer back, byte for byte.

Pure ASGI: everything below `/v1` is forwarded, all else belongs to the API.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from io import BytesIO

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from accordion.core.errors import AccordionError, BodyTooLarge, Stopped
from accordion.core.http import Inbound, Outbound
from accordion.core.ports import Headers
from accordion.dialects.naming import named_by
from accordion.faces.models import as_configured, with_configured
from accordion.faces.watch import Watch, Watches
from accordion.faces.websocket import Sockets
from accordion.forward import Forward
from accordion.gauged import is_anthropic
from accordion.relay import length_of

BARE_QUERY = "accordion.bare_query"
"""The extension that a scope has whose request's target ends in `?`, with no query behind it (connection.py)."""

LOST = "accordion.lost"
"""What a scope's state holds of its connection: a future that is done once its client went away in the middle of a
request's body, or reset it. Of what ends a connection otherwise, `receive` tells."""

# Bodies that are not read are passed on whole up to this size, so that they can be sent again where nothing was sent.
_WHOLE = 65_536


class ClientGone(Exception):
    """The client closed the connection; there is nobody to answer."""


class Http:
    """Routes connections: `/v1` is forwarded, the rest goes to `api`. Bodies are limited to `max_body` bytes."""

    def __init__(
        self, forward: Callable[[], Forward], api: ASGIApp, sockets: Sockets, new_id: Callable[[], str]
    ) -> None:
        self._forward = forward
        self._api = api
        self._sockets = sockets
        self._new_id = new_id
        self._watches = Watches()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one connection's request (ASGI 3)."""
        kind = scope["type"]
        try:
            if kind == "http" and _below_v1(scope):
                await self._serve(scope, receive, send)
            elif kind == "websocket" and _below_v1(scope):
                await self._sockets.serve(self._forward(), _inbound(scope, b"", self._new_id()), scope, receive, send)
            else:
                await self._api(scope, receive, send)
        except asyncio.CancelledError:
            # Nobody is left to answer, or the server stops and all was said. It takes what is raised for a failure.
            _uncancel()

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        forward = self._forward()
        body = _Body(scope["headers"], receive, forward.gauging.max_body)
        content: bytes | AsyncIterator[bytes]
        start = b""
        try:
            body.check_length()
            if body.small or forward.reads(scope["method"], _path(scope), body.kind):
                content = await body.read()
            elif scope["method"] == "POST" and forward.gauging.router.models:
                # The beginning may name a model that goes elsewhere.
                start, content = await body.begun()
            else:
                content = body.stream()
            inbound = _inbound(scope, content, self._new_id(), start)
        except (BodyTooLarge, asyncio.CancelledError) as reason:
            error = reason if isinstance(reason, BodyTooLarge) else Stopped()
            await _answer(forward.refuse(_inbound(scope, b"", self._new_id()), error), send)
            return
        except ClientGone:
            return
        watch = Watch(receive, self._watches)
        if isinstance(content, bytes):
            watch.start()
        else:
            # Whoever reads the body learns of a client that goes away, but not while the provider makes it wait;
            # afterwards nobody would.
            body.on_end = watch.start
            watch.heed(scope.get("state", {}).get(LOST))
        try:
            await _answer(await self._out(forward, inbound, watch), send, watch.stop)
        except ClientGone:
            return
        finally:
            watch.stop()

    async def _out(self, forward: Forward, inbound: Inbound, watch: Watch) -> Outbound:
        try:
            out = await forward(inbound)
            if (models := forward.gauging.router.models) and _of_models(inbound) and forward.admits(inbound):
                anthropic, name = is_anthropic(inbound.path, inbound.fields), named_by(inbound)
                if name is None:
                    names = tuple(name for name in models if "*" not in name)
                    out = await with_configured(out, names, anthropic=anthropic) if names else out
                elif name in models:
                    out = await as_configured(out, name, anthropic=anthropic)
        except asyncio.CancelledError:
            if watch.gone:
                raise
            return forward.refuse(inbound, Stopped())
        return out


async def _answer(out: Outbound, send: Send, ending: Callable[[], object] = lambda: None) -> None:
    """Sends an answer; `ending` is called before its end goes out with the last piece. Returns without an end where the
    body was cut, so that the server closes the connection."""
    start = {"type": "http.response.start", "status": out.status, "headers": out.headers}
    if isinstance(out.body, bytes):
        await send(start)
        await send({"type": "http.response.body", "body": out.body})
        return
    left, more = length_of(out.headers), True
    try:
        await send(start)
        async for piece in out.body:
            left -= len(piece)
            if left == 0:
                more = False
                ending()
            await send({"type": "http.response.body", "body": piece, "more_body": more})
    except AccordionError:
        return
    finally:
        await out.body.aclose()
    if more:
        await send({"type": "http.response.body", "body": b""})


def answering(out: Outbound) -> ASGIApp:
    """An application that gives this answer to whatever is asked."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await _answer(out, send)

    return app


class _Body:
    """A request's body: whole or in pieces, never more than `limit` bytes of it."""

    def __init__(self, headers: Headers, receive: Receive, limit: int) -> None:
        self._receive = receive
        self._limit = limit
        self._fields = fields = dict(headers)
        length = fields.get(b"content-length", b"")
        self._length = None if b"transfer-encoding" in fields else int(length) if length.isdigit() else 0
        self.on_end: Callable[[], object] | None = None
        """Called when a body that is streamed has come to its end."""

    @property
    def kind(self) -> bytes:
        return self._fields.get(b"content-type", b"").lower()

    @property
    def small(self) -> bool:
        return self._length is not None and self._length <= _WHOLE

    def check_length(self) -> None:
        """Raises BodyTooLarge where the head alone says so."""
        self._check(self._length or 0)

    async def read(self) -> bytes:
        message = await self._receive()
        first = self._piece(message)
        if not message.get("more_body", False):
            return first
        # It grows in place and gives its bytes without a copy, which of a large body would hold up others.
        whole = BytesIO()
        whole.write(first)
        async for piece in self.stream():
            whole.write(piece)
            self._check(whole.tell())
        return whole.getvalue()

    async def begun(self) -> tuple[bytes, bytes | AsyncIterator[bytes]]:
        """The beginning, and all of it: in pieces of which that is the first, or whole where it has ended by then."""
        start, rest = bytearray(), self.stream()
        async for piece in rest:
            start += piece
            if len(start) >= _WHOLE:
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
            raise ClientGone
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


def _of_models(inbound: Inbound) -> bool:
    """Whether this asks for a model, or for the list of them and not for a later page of it."""
    if inbound.method != "GET" or not inbound.path.startswith("/v1/models"):
        return False
    listed = inbound.path == "/v1/models" and "after_id=" not in inbound.query and "before_id=" not in inbound.query
    return listed or named_by(inbound) is not None


def _path(scope: Scope) -> str:
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw.decode("latin-1")


def _below_v1(scope: Scope) -> bool:
    path: str = scope["path"]
    return path.startswith("/v1/") or path == "/v1"


def _inbound(scope: Scope, body: bytes | AsyncIterator[bytes], request_id: str, start: bytes = b"") -> Inbound:
    return Inbound(
        method=scope.get("method", "GET"),
        path=_path(scope),
        query=scope["query_string"].decode("latin-1"),
        headers=tuple(scope["headers"]),
        body=body,
        request_id=request_id,
        bare_query=BARE_QUERY in scope.get("extensions", ()),
        start=start,
    )


def new_id() -> str:
    """A request id."""
    # Not from the system: asking it lets another thread take the interpreter, and a name need not be a secret.
    return f"req_{random.getrandbits(96):024x}"
