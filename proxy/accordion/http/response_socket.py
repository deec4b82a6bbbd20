"""Responses over a WebSocket: each `response.create` of a client is one request of the pipeline.

`ResponseSocket` reads the client's messages. A request goes through the pipeline as a body over HTTP would, and the
events of its response are sent as messages. Requests of one stream run in turn, those of different streams at the same
time. All other messages are passed on.

If the provider has a WebSocket too, the pipeline sends its requests there (`SocketUpstream`): an unchanged one as the
client's own message, a changed one with the whole list in place of `previous_response_id`. Otherwise they are sent over
HTTP. Whichever side closes its socket, the other is closed with the same code.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from sys import getsizeof
from typing import Protocol, runtime_checkable

from msgspec.structs import replace
from starlette.types import Message, Receive, Send

from accordion.model.errors import AccordionError, BodyTooLarge, UpstreamDisconnected, UpstreamTimeout
from accordion.model.http import CLIENT_DISCONNECTED, Inbound, Outbound
from accordion.model.ports import Headers, UpstreamRequest, UpstreamResponse
from accordion.pipeline.forward import RequestPipeline
from accordion.pipeline.relay import content_type_and_encoding
from accordion.protocols.json_spans import is_object, object_of
from accordion.protocols.json_values import as_string, to_json
from accordion.protocols.message_keys import decode_json
from accordion.protocols.openai_responses.response import split_object, text_field
from accordion.protocols.openai_responses.socket_messages import (
    CREATE,
    NEUTRAL_TYPES,
    ConnectionHistory,
    MessageHead,
    SocketRequest,
    read_fields,
    read_head,
    render_event,
    render_prewarmed,
    render_refusal,
)
from accordion.protocols.sse import SseBuffer, read_events
from accordion.sessions.tenants import CREDENTIAL_HEADERS

SERVICE_RESTART = 1012
"""The close code of a socket whose server stops (RFC 6455 7.4, IANA)."""
INTERNAL_ERROR = 1011

_MAX_EVENT = 256 << 20
"""The largest event in bytes, as for a provider's message."""
_MAX_REQUESTS = 32
"""The most requests that run or wait on one socket."""
_MAX_QUEUED = 16
"""The most messages of a response that wait for the client. The provider waits for a slow client."""
_JSON = (b"content-type", b"application/json")
_STREAM: Headers = ((b"content-type", b"text/event-stream"),)
_UNENCODED = (b"accept-encoding", b"identity")
_UPGRADE_HEADERS = frozenset({b"connection", b"upgrade", b"content-length", b"content-type", b"accept-encoding"})
_HEADER_FIELD = "ws_request_header_"
"""The beginning of the fields of `client_metadata` that stand for headers."""
_HEADER_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,99}")
_HEADER_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,2000}[\x21-\x7e])?")
_FIXED_HEADERS = frozenset({*_UPGRADE_HEADERS, *CREDENTIAL_HEADERS, b"host", b"cookie", b"transfer-encoding", b"te"})
"""The headers that no message changes: those of connections, and credentials."""
_BETA = b"responses_websockets="
"""The value of `openai-beta` that stands for this way of speaking."""

_log = logging.getLogger("accordion")


@runtime_checkable
class UpstreamSocket(Protocol):
    """An open WebSocket to a provider. `receive` raises `closed` with a code and a reason when it ends."""

    headers: Headers
    subprotocol: str | None

    async def receive(self) -> str | bytes:
        """Returns the next message."""

    async def send(self, message: str | bytes) -> None:
        """Sends one message."""

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Closes the socket."""


class PassOn(Protocol):
    """Takes a provider's message that belongs to no response."""

    async def __call__(self, message: str | bytes, stream: str, *, is_late: bool) -> None:
        """`is_late`: the message came behind a response of its stream."""


class SocketUpstream:
    """The provider's side of a connection: finds the response that each message belongs to.

    A message that belongs to none goes to `pass_on`. `silence` is the longest time in seconds that a response may bring
    nothing; None: no limit.
    """

    def __init__(
        self,
        socket: UpstreamSocket,
        closed: type[Exception],
        pass_on: PassOn,
        silence: float | None,
    ) -> None:
        self._socket, self._closed, self._pass_on, self._silence = socket, closed, pass_on, silence
        self._responses: dict[str, _SocketResponse] = {}
        self.is_closed = False
        self.has_timed_out = False
        """Whether a response did not begin in time. The next one of its stream would wait for its end."""

    async def run(self) -> tuple[int, str]:
        """Receives messages until the provider closes the socket; returns its code and its reason."""
        while True:
            try:
                message = await self._socket.receive()
            except self._closed as closed:
                self.is_closed = True
                for response in self._responses.values():
                    response.end()
                self._responses.clear()
                return getattr(closed, "code", 1006), getattr(closed, "reason", "")
            if isinstance(message, str):
                await self._dispatch(read_head(message), message)
            else:
                await self._pass_on(message, "", is_late=True)

    async def _dispatch(self, head: MessageHead, message: str) -> None:
        response = self._responses.get(head.stream_id or "")
        if response is None and len(self._responses) == 1 and (head.is_refusal or head.is_without_stream):
            (response,) = self._responses.values()
        if response is None or not response.takes(head):
            await self._pass_on(message, head.stream_id or "", is_late=response is None)
            return
        if head.is_end:
            del self._responses[response.stream]
        await response.put(head, message)

    async def request(self, message: str, stream: str) -> UpstreamResponse:
        """Sends a request and waits for the first event of its response.

        Raises UpstreamDisconnected and UpstreamTimeout.
        """
        while (running := self._responses.get(stream)) is not None:
            await running.ended.wait()
        if self.is_closed:
            raise _lost_connection()
        response = self._responses[stream] = _SocketResponse(stream, self._silence)
        try:
            await self.send(message)
            await response.begin()
        except BaseException:
            await response.close()
            raise
        return response

    async def send(self, message: str | bytes) -> None:
        """Sends a message. Raises UpstreamDisconnected if the socket is closed."""
        try:
            await self._socket.send(message)
        except self._closed as error:
            raise _lost_connection() from error

    async def close(self, code: int, reason: str = "") -> None:
        """Closes the socket. Closing a closed one does nothing."""
        await self._socket.close(code, reason)


class _SocketResponse:
    """A response that comes as messages: an UpstreamResponse whose body is an event stream, or a refusal."""

    is_delimited = True

    def __init__(self, stream: str, silence: float | None) -> None:
        self.stream = stream
        self.status = 200
        self.headers = _STREAM
        self.ended = asyncio.Event()
        """Set when the provider has sent the last message, or has closed the socket."""
        self._silence = silence
        self._messages: asyncio.Queue[tuple[MessageHead, str] | None] = asyncio.Queue(_MAX_QUEUED)
        self._first: tuple[MessageHead, str] | None = None
        self._has_begun = self._is_abandoned = False

    def takes(self, head: MessageHead) -> bool:
        """Returns whether a message belongs to the response. Before its first event, one about rate limits does not."""
        self._has_begun = self._has_begun or head.is_end or head.type.startswith("response.")
        return self._has_begun

    async def put(self, head: MessageHead, message: str) -> None:
        """Adds a message. Waits while the client does not read."""
        if not self._is_abandoned:
            await self._messages.put((head, message))
        if head.is_end:
            self.ended.set()

    def end(self) -> None:
        """Ends the response, because the provider closed the socket."""
        self.ended.set()
        if not self._messages.full():
            self._messages.put_nowait(None)

    async def begin(self) -> None:
        """Waits for the first message, which decides the status."""
        head, message = self._first = await self._next()
        if head.is_refusal and head.status is not None:
            body = message.encode()
            self.status, self.headers = head.status, (_JSON, (b"content-length", b"%d" % len(body)))

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yields one event a message, or the body of the refusal."""
        head, message = self._first or await self._next()
        if self.status >= 400:
            yield message.encode()
            return
        yield render_event(head.type, message)
        while not head.is_end:
            head, message = await self._next()
            yield render_event(head.type, message)

    async def close(self) -> None:
        """Drops the messages that are still to come."""
        self._is_abandoned = True
        while not self._messages.empty():
            self._messages.get_nowait()

    async def _next(self) -> tuple[MessageHead, str]:
        if self._messages.empty() and self.ended.is_set():
            raise _lost_connection()
        try:
            async with asyncio.timeout(self._silence):
                entry = await self._messages.get()
        except TimeoutError as error:
            raise UpstreamTimeout(f"The provider sent nothing for {self._silence:g} s on its WebSocket.") from error
        if entry is None:
            raise _lost_connection()
        return entry


def _lost_connection() -> UpstreamDisconnected:
    return UpstreamDisconnected(
        "Connection lost: the provider closed the WebSocket before its response ended. Send the request again."
    )


def _broken_socket() -> UpstreamDisconnected:
    return UpstreamDisconnected(
        "Connection lost: the proxy closes this WebSocket, because a response on it broke off or was not read. Send "
        "the request again."
    )


class _RequestUpstream:
    """The Upstream port for one request: sends it on the provider's socket."""

    def __init__(self, upstream: SocketUpstream, request: SocketRequest, body: bytes) -> None:
        self._upstream, self._request, self._body = upstream, request, body

    async def send(self, request: UpstreamRequest) -> UpstreamResponse:
        """Sends the client's own message, unless the pipeline changed its body."""
        is_changed = request.body is not self._body
        message = request.body.decode() if is_changed and isinstance(request.body, bytes) else self._request.message
        try:
            return await self._upstream.request(message, _stream_name(self._request.fields))
        except UpstreamTimeout:
            self._upstream.has_timed_out = True
            raise

    async def close(self) -> None:
        """Does nothing: the connection closes the socket."""


class ResponseSocket:
    """One client's WebSocket that is read. `stopping` is set when the server stops.

    `max_body` is the limit in bytes of a body over HTTP. It is that of the lists of earlier responses together, of the
    lists of the running requests, of the requests that run or wait, and of the messages that wait for the client.
    """

    def __init__(
        self,
        pipeline: Callable[[], RequestPipeline],
        inbound: Inbound,
        new_id: Callable[[], str],
        send: Send,
        stopping: asyncio.Event,
        max_body: int,
    ) -> None:
        self._pipeline, self._inbound, self._new_id, self._send_message = pipeline, inbound, new_id, send
        self._stopping = stopping
        self._upstream: SocketUpstream | None = None
        self._max_body = max_body
        self._history = ConnectionHistory(max_body)
        self._tasks: dict[asyncio.Task[None], int] = {}
        """The requests that run or wait, with the sizes of their messages in bytes."""
        self._lists: dict[asyncio.Task[None], int] = {}
        """Those that run, with the sizes of their whole lists in bytes."""
        self._last: dict[str, asyncio.Task[None]] = {}
        """The last request of each stream."""
        self._late: dict[str, list[str | bytes]] = {}
        """Messages that came behind a response of a stream, while it was still on its way to the client."""
        self._late_size = 0
        """Their size in bytes."""
        self._broken = asyncio.Event()
        """Set when a response broke off, or did not begin in time."""

    def is_busy(self) -> bool:
        """Whether requests are being served."""
        return bool(self._tasks)

    async def run(
        self,
        first_message: asyncio.Future[Message],
        receive: Receive,
        socket: UpstreamSocket | None,
        closed: type[Exception],
        silence: float | None,
    ) -> None:
        """Serves the socket until either side closes it or the server stops. For `silence` see SocketUpstream."""
        reading = asyncio.create_task(self._read_client(first_message, receive))
        waiting = [asyncio.create_task(self._wait_for_break()), asyncio.create_task(self._wait_for_stop())]
        if socket is not None:
            self._upstream = SocketUpstream(socket, closed, self._pass_on, silence)
            waiting.append(asyncio.create_task(self._wait_for_provider(self._upstream)))
        end: tuple[int, str] | None = (SERVICE_RESTART, "")
        try:
            await asyncio.wait((reading, *waiting), return_when=asyncio.FIRST_COMPLETED)
            end = None if reading.done() else next(task.result() for task in waiting if task.done())
        finally:
            reason = CLIENT_DISCONNECTED if end is None else _broken_socket() if self._broken.is_set() else None
            for running in self._tasks:
                running.cancel(reason)
            for task in (reading, *waiting):
                task.cancel()
            await asyncio.gather(*self._tasks, reading, *waiting, return_exceptions=True)
            if end is not None:
                await self._close(*end)
        if end is None and self._upstream is not None:
            await self._upstream.close(*reading.result())

    # -- the end ------------------------------------------------------------------

    async def _wait_for_break(self) -> tuple[int, str]:
        await self._broken.wait()
        return INTERNAL_ERROR, ""

    async def _wait_for_stop(self) -> tuple[int, str]:
        """Waits until the server stops and the running responses have ended."""
        await self._stopping.wait()
        while self._tasks:
            await asyncio.wait(self._tasks)
        return SERVICE_RESTART, ""

    async def _wait_for_provider(self, upstream: SocketUpstream) -> tuple[int, str]:
        """Waits until the provider closes its socket, and until the client has what came before."""
        code, reason = await upstream.run()
        while self._tasks:
            await asyncio.wait(self._tasks)
        # 1005 and 1006 stand for a missing code and cannot be sent (RFC 6455 7.4.1).
        return {1005: 1000, 1006: INTERNAL_ERROR}.get(code, code), reason

    async def _close(self, code: int, reason: str) -> None:
        with suppress(OSError, RuntimeError):
            await self._send_message({"type": "websocket.close", "code": code, "reason": reason})

    # -- the client's messages ----------------------------------------------------

    async def _read_client(self, first_message: asyncio.Future[Message], receive: Receive) -> tuple[int, str]:
        """Takes messages until the client leaves; returns its close code and its reason."""
        message = await first_message
        while message["type"] != "websocket.disconnect":
            text = message.get("text")
            await self._take(text if text is not None else message.get("bytes") or b"")
            message = await receive()
        return message.get("code", 1005), message.get("reason") or ""

    async def _take(self, message: str | bytes) -> None:
        """Takes one message of the client. A request may be in a binary one too."""
        text = message if isinstance(message, str) else message.decode(errors="replace")
        fields = read_fields(text)
        kind = text_field(fields, "type")
        if kind == CREATE:
            await self._start(text, fields)
        elif (refusal := self._check_caller()) is not None:
            await self._send(await _render_refusal(refusal, fields))
        elif self._upstream is not None:
            if kind not in NEUTRAL_TYPES:
                self._history.forget()
            # If the socket is closed, the other direction notices too, and closes with the provider's code.
            with suppress(UpstreamDisconnected):
                await self._upstream.send(message)
        elif kind not in NEUTRAL_TYPES:
            error = f"Messages of the type {kind!r} need a provider with a WebSocket, and this one has none."
            await self._refuse(fields, 400, error)

    def _check_caller(self) -> Outbound | None:
        """Returns the refusal of a caller whose proxy key is not valid any more; None if it is. The pipeline checks
        requests itself."""
        pipeline = self._pipeline()
        try:
            pipeline.tenants.identify(self._inbound.headers_by_name)
        except AccordionError as error:
            return pipeline.refuse(self._inbound, error)
        return None

    async def _start(self, message: str, fields: Mapping[str, bytes]) -> None:
        """Starts to serve a request, unless the server stops or too many wait."""
        if self._stopping.is_set():
            return
        size, waiting = getsizeof(message), self._tasks.values()
        if waiting and (len(waiting) >= _MAX_REQUESTS or size + sum(waiting) > self._max_body):
            # Nothing more is read until the client has taken this.
            await self._refuse(fields, 429, "Too many requests wait on this WebSocket.")
            return
        stream = _stream_name(fields)
        task = self._last[stream] = asyncio.create_task(self._respond(message, stream, self._last.get(stream)))
        self._tasks[task] = size
        task.add_done_callback(self._tasks.pop)

    # -- requests and responses ---------------------------------------------------

    async def _respond(self, message: str, stream: str, before: asyncio.Task[None] | None) -> None:
        """Serves one request, after the one before it on its stream."""
        if before is not None:
            await asyncio.wait((before,))
        try:
            request = SocketRequest(message, read_fields(message), self._history)
            if self._upstream is None and request.is_prewarming and request.items is not None:
                await self._prewarm(request, request.items)
            else:
                await self._send_response(await self._forward(request), request)
        except AccordionError:
            # The client has the error as an event. As over HTTP, a response that broke off ends its connection.
            if self._upstream is None or not self._upstream.is_closed:
                self._broken.set()
        except Exception:
            _log.exception("a request on a WebSocket could not be served")
            self._broken.set()
        finally:
            if self._last.get(stream) is asyncio.current_task():
                del self._last[stream]
        if self._upstream is not None and self._upstream.has_timed_out:
            # As over HTTP, a time-out ends the connection.
            self._broken.set()
        for late in self._late.pop(stream, ()):
            self._late_size -= getsizeof(late)
            await self._send(late)

    async def _forward(self, request: SocketRequest) -> Outbound:
        if request.is_too_large:
            return self._pipeline().refuse(self._inbound_for(request, b""), _list_too_large(self._max_body))
        await self._wait_for_room(request.list_size)
        pipeline, body = self._pipeline(), request.http_body if self._upstream is None else request.body
        if self._upstream is not None:
            upstream = _RequestUpstream(self._upstream, request, body)
            pipeline = replace(pipeline, sender=replace(pipeline.sender, upstream=upstream))
        return await pipeline(self._inbound_for(request, body))

    async def _wait_for_room(self, size: int) -> None:
        """Waits until the list of a request, of `size` bytes, has room beside those of the running requests."""
        while self._lists and size + sum(self._lists.values()) > self._max_body:
            await asyncio.wait(self._lists, return_when=asyncio.FIRST_COMPLETED)
        if task := asyncio.current_task():
            self._lists[task] = size
            task.add_done_callback(self._lists.pop)

    def _inbound_for(self, request: SocketRequest, body: bytes) -> Inbound:
        """Returns a request as one over HTTP."""
        headers = request_headers(self._inbound.headers, request.fields)
        return replace(self._inbound, method="POST", headers=headers, body=body, request_id=self._new_id())

    async def _send_response(self, outbound: Outbound, request: SocketRequest) -> None:
        """Sends a response as messages. Raises AccordionError if it broke off."""
        kind, _ = content_type_and_encoding(outbound.headers)
        if isinstance(outbound.body, bytes) or outbound.status >= 400 or kind != "text/event-stream":
            await self._send(await _render_refusal(outbound, request.fields))
            return
        events = SseBuffer(_MAX_EVENT)
        async with aclosing(outbound.body) as pieces:
            async for piece in pieces:
                await self._send_events(events.feed(piece), request)
        await self._send_events(events.flush(), request)
        if not request.has_ended:
            # Over HTTP the client sees the end of the body.
            self._broken.set()

    async def _send_events(self, block: bytes, request: SocketRequest) -> None:
        for event in read_events(block):
            if is_object(event.data):
                await self._send(request.take_event(event.data))

    async def _prewarm(self, request: SocketRequest, items: tuple[bytes, ...]) -> None:
        """Answers `generate: false` where the provider has no WebSocket: there is nothing to prepare."""
        if (refusal := self._check_caller()) is not None:
            await self._send(await _render_refusal(refusal, request.fields))
            return
        response_id = self._new_id().replace("req_", "resp_")
        for event in render_prewarmed(response_id, request.fields, int(time.time())):
            await self._send(request.take_event(event))
        self._history.add(response_id, items, is_own=True)

    async def _refuse(self, fields: Mapping[str, bytes], status: int, text: str) -> None:
        error = to_json({"message": text, "type": "invalid_request_error", "code": "websocket_message_refused"})
        await self._send(render_refusal(status, (), object_of({"error": error}), fields))

    async def _pass_on(self, message: str | bytes, stream: str, *, is_late: bool) -> None:
        """Sends the client a provider's message that belongs to no response. `is_late`: it came behind one."""
        if is_late and stream in self._last:
            self._late.setdefault(stream, []).append(message)
            self._late_size += getsizeof(message)
            if self._late_size > self._max_body:
                self._broken.set()
        else:
            await self._send(message)

    async def _send(self, message: str | bytes) -> None:
        kind = "text" if isinstance(message, str) else "bytes"
        # If the client has left, its next message says so.
        with suppress(OSError, RuntimeError):
            await self._send_message({"type": "websocket.send", kind: message})


def _list_too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"The whole list of this request, with the items that previous_response_id stands for, is larger than the "
        f"{limit:,} bytes that this proxy accepts. Send less, or raise server.max_body_bytes in its config.yaml."
    )


async def _render_refusal(outbound: Outbound, fields: Mapping[str, bytes]) -> str:
    """Reads a response that is no event stream, and writes it as a message."""
    body = outbound.body
    if not isinstance(body, bytes):
        async with aclosing(body) as pieces:
            body = b"".join([piece async for piece in pieces])
    return render_refusal(outbound.status, outbound.headers, body, fields)


def _stream_name(fields: Mapping[str, bytes]) -> str:
    """Returns the stream of a request; empty if it names none."""
    return text_field(fields, "stream_id")


def request_headers(headers: Headers, fields: Mapping[str, bytes]) -> Headers:
    """Returns the headers of a request on a socket: those of the upgrade without its own, and those of its message.

    Codex sends some of them anew with each message, in `client_metadata`, from where they are read. Others are only
    there, as `ws_request_header_NAME` with underscores. The response must come without an encoding, since its events
    are read.
    """
    metadata = split_object(fields.get("client_metadata", b""))
    own = dict(filter(None, map(_read_header, metadata.items())))
    renewed = {name.lower().encode() for name in metadata if "codex" in name} | own.keys()
    sent = [
        pair
        for pair in headers
        if not (
            pair[0] in _UPGRADE_HEADERS
            or pair[0] in renewed
            or pair[0].startswith(b"sec-websocket-")
            or (pair[0] == b"openai-beta" and pair[1].startswith(_BETA))
        )
    ]
    return (*sent, *own.items(), _UNENCODED, _JSON)


def _read_header(field: tuple[str, bytes]) -> tuple[bytes, bytes] | None:
    """Returns the header that a field of `client_metadata` stands for; None if it is none that a message may set."""
    name, raw = field
    if not name.startswith(_HEADER_FIELD):
        return None
    header, value = name.removeprefix(_HEADER_FIELD).replace("_", "-").lower(), as_string(decode_json(raw))
    if header.startswith(("x-accordion-", "sec-", "proxy-")) or header.encode() in _FIXED_HEADERS:
        return None
    is_valid = _HEADER_NAME.fullmatch(header) and _HEADER_VALUE.fullmatch(value)
    return (header.encode(), value.encode()) if is_valid else None
