"""Everything that depends on uvicorn's internals: its HTTP protocol, request cycle, flow control, server, supervisor.

No other module imports uvicorn. `pyproject.toml` has an upper bound for its version, and
`tests/server/test_uvicorn_contract.py` fails when a method that is overridden here changes in uvicorn. Each override
names the client or the measurement that it is there for; bench/README.md (`overrides`) has the measurements.

- `ClientConnection` (a client that uvicorn fails, time limits, size limits) puts a `ClientFlow` in the place of
  uvicorn's flow control, and makes each request a `ResponseCycle`.
- `ClientWebSocket` lets running responses end before a WebSocket is closed.
- `Server`, `Worker` and `Supervisor` stop in order and reload the settings at a SIGHUP.
- `LineFilter` drops three of uvicorn's log lines, which the proxy itself causes.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Callable, Mapping
from functools import partial
from socket import SO_LINGER, SOL_SOCKET, socket
from typing import Any, NamedTuple, Protocol

import uvicorn
from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from prometheus_client.multiprocess import mark_process_dead
from starlette.types import ASGIApp
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import (
    HEADER_RE,
    HEADER_VALUE_RE,
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.supervisors import multiprocess
from websockets.frames import CloseCode

from accordion.http.bad_request import (
    check_host,
    describe_parse_error,
    error_response,
    malformed_request,
    response_bytes,
)
from accordion.http.proxy_app import BARE_QUERY, IS_BUSY, LOST, STOPPING, respond_with
from accordion.model.deadlines import Deadline
from accordion.model.errors import HeadTooLarge, RequestError, RequestTimeout
from accordion.pipeline.relay import content_length

ServerConfig = uvicorn.Config

# Servers accept 8 to 64 KiB of a head. Four times as much fits tokens and tracing headers.
_MAX_HEAD = 256 * 1024
# Seconds that a client has to read the error before the connection closes.
_LINGER = 2.0
# Bytes of a body that must arrive within its time limit: at the default of 120 seconds, 34 bytes a second.
_MIN_BODY = 4_096
# Seconds between two checks of a client whose connection is not read.
_CHECK_INTERVAL = 0.5
# The bytes that uvicorn refuses in a header.
_NOT_IN_NAMES, _NOT_IN_VALUES = (
    bytes(code for code in range(256) if invalid.search(bytes((code,)))) for invalid in (HEADER_RE, HEADER_VALUE_RE)
)
_LINE_BREAKS = frozenset(b"\r\n\0")
# RFC 9110 5.5: a recipient may replace invalid characters of a value with spaces.
_SPACES_FOR_INVALID = bytes(0x20 if code in _NOT_IN_VALUES else code for code in range(256))


class ClientTimeouts(NamedTuple):
    """Time limits in seconds: for a connection's first byte, for the rest of a head, for the next 4 KiB of a body.

    Clients close a spare connection earlier themselves (Go after 90 seconds). They send a head at once. A body that is
    slower than 4 KiB in 2 minutes holds a connection for nothing.
    """

    silent: float = 120.0
    head: float = 60.0
    body: float = 120.0


_DEFAULT_TIMEOUTS = ClientTimeouts()


class ResponseCycle(RequestResponseCycle):
    """A request and its response, without an access log.

    To an HTTP/1.0 client, which knows no chunks, a body without a length ends with the connection (RFC 9112 6.3);
    `chunked_encoding` is None then. Uvicorn would send it chunks.
    """

    received_bytes = 0
    """Bytes of the request body that were read from the connection."""

    async def send(self, message: Mapping[str, Any]) -> None:
        """Sends a part of the response. Raises RuntimeError for an unexpected message or an invalid header.

        Overrides uvicorn's for HTTP/1.0 clients (nginx as a reverse proxy with its defaults), providers' statuses that
        HTTP does not define, and header values with control characters, all of which uvicorn fails. A property test
        compares the bytes.
        """
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if not self.response_started and message["type"] == "http.response.start":
            self.response_started = True
            self.waiting_for_100_continue = False
            self._begin(message["status"], [*self.default_headers, *message.get("headers", ())])
        elif self.response_started and not self.response_complete and message["type"] == "http.response.body":
            self._continue(message.get("body", b""), more=message.get("more_body", False))
        else:
            raise RuntimeError(f"Unexpected ASGI message '{message['type']}'.")

    def _begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        # A status that HTTP does not define is passed on; the client interprets it (RFC 9110 15).
        head = [STATUS_LINE.get(status) or b"HTTP/1.1 %d \r\n" % status]
        for name, value in headers:
            head += name.lower(), b": ", value, b"\r\n"
        names, values = head[1::4], head[3::4]
        # One check of the joined headers is faster than one for each.
        name, value = b"".join(names), b"".join(values)
        if name.translate(None, _NOT_IN_NAMES) != name:
            raise RuntimeError("Invalid HTTP header.")
        if value.translate(None, _NOT_IN_VALUES) != value:
            # No provider's header can contain a line break, so this is a bug of this proxy.
            if not _LINE_BREAKS.isdisjoint(value):
                raise RuntimeError("Invalid HTTP header.")
            self._begin(status, [(name, value.translate(_SPACES_FOR_INVALID)) for name, value in headers])
            return
        if b"connection" in names and b"close" in values[names.index(b"connection")].lower():
            self.keep_alive = False
        elif not self.keep_alive:
            head.append(b"connection: close\r\n")
        if b"transfer-encoding" in names:
            self.chunked_encoding = True
        elif b"content-length" in names:
            self.chunked_encoding = False
            self.expected_content_length = int(values[names.index(b"content-length")])
        elif self.scope["method"] == "HEAD" or status in (204, 304):
            self.chunked_encoding = False
        elif self.scope["http_version"] != "1.0":
            self.chunked_encoding = True
            head.append(b"transfer-encoding: chunked\r\n")
        else:
            self._reset_on_close(True)
        head.append(b"\r\n")
        self.transport.write(b"".join(head))

    def _continue(self, body: bytes, *, more: bool) -> None:
        if self.scope["method"] == "HEAD":
            self.expected_content_length = 0
        elif self.chunked_encoding:
            chunk = [b"%x\r\n" % len(body), body, b"\r\n"] if body else []
            self.transport.write(b"".join(chunk if more else [*chunk, b"0\r\n\r\n"]))
        else:
            if self.chunked_encoding is False:
                if len(body) > self.expected_content_length:
                    raise RuntimeError("Response content longer than Content-Length")
                self.expected_content_length -= len(body)
            self.transport.write(body)
        if more:
            return
        if self.expected_content_length:
            raise RuntimeError("Response content shorter than Content-Length")
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:
            if self.chunked_encoding is None:
                self._reset_on_close(False)
            self.transport.close()
        self.on_response()

    def _reset_on_close(self, is_reset: bool) -> None:
        """Sets whether closing resets the connection: a clean end would make a cut body look complete."""
        # Closing a socket with a linger time of 0 sends a reset (POSIX, `close`).
        linger = struct.pack("ii", is_reset, 0)
        self.transport.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, linger)


class ClientConnection(HttpToolsProtocol):
    """Uvicorn's HTTP protocol with our transport, our request cycle and our flow control."""

    cycle: ResponseCycle
    flow: ClientFlow
    _idle: Deadline
    _lost: asyncio.Future[None]
    _running: RequestResponseCycle | None = None
    """The request that is answered now, while pipelined ones wait."""
    _head = 0
    """Bytes of an unfinished head, or of unfinished trailers."""
    _received = 0
    """Bytes of the body before the last piece."""
    _unfinished: object = None
    """The part that the client has begun and not finished: the headers of a head, or the cycle of a body."""
    _progress = 0
    """Bytes of the body when its timer began."""

    def __init__(self, *args: Any, timeouts: ClientTimeouts = _DEFAULT_TIMEOUTS, **options: Any) -> None:
        super().__init__(*args, **options)
        self._timeouts = timeouts

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Sets up the timers and the flow control.

        Overrides uvicorn's, which has no time limit for a client that opens a connection and sends nothing, such as a
        port scanner or a browser that connects in advance.
        """
        self._idle = Deadline(self.loop, self._on_timeout)
        self._idle.restart(self._timeouts.silent)
        super().connection_made(transport)
        self.flow = ClientFlow(self.transport, self.loop, self._check_client)
        self._lost = self.loop.create_future()
        # ASGI's own place for values that outlive a request. Uvicorn copies it for each request anyway.
        self.app_state = {**self.app_state, LOST: self._lost}

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the timers, and notifies a request whose body is still being forwarded that the client has left.

        Overrides uvicorn's for a client that breaks off its upload: `receive` belongs to the reader of the body then.
        And for a client that sent another request while it waited for a response: uvicorn notifies only the last one,
        which has not begun, and the provider would go on with the first.
        """
        self._idle.close()
        self.flow.close()
        cycle = self.cycle
        # A client that only ends its input behind a complete request still waits for the response.
        if exc is not None or (cycle is not None and cycle.more_body):
            self._notify_waiters()
        super().connection_lost(exc)
        if self.pipeline and self._running is not None:
            self._running.disconnected = True
            self._running.message_event.set()

    def _check_client(self, reset: bool, unread: int) -> None:
        """Decides whether a client that ended its input has left; `unread` bytes of the input are buffered.

        It may have sent everything and wait. So it is still there while the unread bytes can complete its request, or,
        behind a pipelined request, while there are any.
        """
        cycle, has_left = self.cycle, reset
        if cycle is not None and cycle.more_body:
            has_left |= cycle.received_bytes + unread < content_length(cycle.scope["headers"])
        elif self.pipeline:
            has_left |= not unread
        if has_left:
            self._on_client_gone()

    def data_received(self, data: bytes) -> None:
        """Parses received bytes, and starts or stops the timers of a head and a body.

        Overrides uvicorn's, which limits neither the size of a head nor the time of a request (slowloris), and answers
        invalid HTTP in plain text, even in the middle of an earlier request's response. OpenAI's and Anthropic's SDKs
        read errors in their own shapes only; a client that speaks TLS to this port gets to know it.
        """
        if self._head > _MAX_HEAD:
            return
        if self._unfinished is None:
            self._idle.stop()
        try:
            self._feed(data)
            # Both are the same list only within an unfinished head.
            if self.headers is not None and self.headers is self.scope["headers"]:
                self._start_timer(self.headers, self._timeouts.head)
                self._count(len(data))
            elif self.cycle is not None and self.cycle.more_body:
                self._start_timer(self.cycle, self._timeouts.body)
                self._count_trailers(len(data), self.cycle.received_bytes)
            elif self._unfinished is not None:
                self._unfinished = None
                self._idle.stop()
        except HttpParserUpgrade:
            if self._should_upgrade():
                self.handle_websocket_upgrade()
            else:  # CONNECT
                self._unsupported_upgrade_warning()
        except HttpParserError as error:
            self._refuse(describe_parse_error(error, data), data)

    def _start_timer(self, part: object, seconds: float) -> None:
        """Starts the timer for the rest of a head or a body, unless it runs already."""
        if self._unfinished is not part:
            self._unfinished, self._progress = part, self.cycle.received_bytes if part is self.cycle else 0
            self._idle.restart(seconds)

    def _on_timeout(self) -> None:
        """Closes an idle connection, or refuses a request that did not arrive in time."""
        cycle, part, timeouts = self.cycle, self._unfinished, self._timeouts
        if part is None:
            self.timeout_keep_alive_handler()
        elif part is not cycle:
            self._give_up("head", timeouts.head)
        elif (
            cycle.received_bytes - self._progress >= _MIN_BODY
            or self.flow.read_paused
            or cycle.waiting_for_100_continue
        ):
            # The client sends, or this proxy makes it wait.
            self._progress = cycle.received_bytes
            self._idle.restart(timeouts.body)
        else:
            self._give_up("body", timeouts.body)

    def _give_up(self, part: str, seconds: float) -> None:
        self._unfinished = None
        error = RequestTimeout(f"The {part} of the request did not come within {seconds:g} seconds. Send it again.")
        self.logger.warning("%s", error)
        self._reject(error, self._known_head())

    def _count(self, size: int) -> None:
        """Limits the size of a head. Its first piece may begin with the end of a body, so it does not count."""
        self._head += size if self._head else 1
        if self._head <= _MAX_HEAD:
            return
        # No further input is parsed. The client can read the error while it still sends (RFC 9112 9.6).
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.keep_alive = False
            return
        error = HeadTooLarge(f"The head of the request is larger than the {_MAX_HEAD:,} bytes that this proxy accepts.")
        self.logger.warning("%s", error)
        self.transport.write(response_bytes(error_response(error, self._known_head())))
        self.transport.write_eof()
        self._unfinished = None
        self._idle.restart(_LINGER)

    def _count_trailers(self, size: int, received: int) -> None:
        """Limits the size of trailers, which the parser buffers until the request is complete."""
        self._head, self._received = (self._head + size if received == self._received else 0), received
        if self._head > _MAX_HEAD:
            self.logger.warning("The trailers of a request exceed the limit of %s bytes.", _MAX_HEAD)
            self._on_client_gone()

    def _on_client_gone(self) -> None:
        self._notify_waiters()
        self.transport.abort()

    def _notify_waiters(self) -> None:
        if not self._lost.done():
            self._lost.set_result(None)

    def _known_head(self) -> bytes:
        return b"\r\n".join([b" " + self.url, *(b"%b:%b" % header for header in self.headers)])

    def _refuse(self, reason: str, data: bytes) -> None:
        if self._reject(malformed_request(reason), self._known_head() + b"\r\n" + data):
            self.logger.warning("A client sent invalid HTTP: %s.", reason)

    def _reject(self, error: RequestError, head: bytes) -> bool:
        """Responds to an unreadable request with an error, and closes the connection.

        Returns False if the response to an earlier request is unfinished: then the connection closes after that.
        """
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete and not cycle.more_body:
            # An error written now would become part of the earlier request's response.
            cycle.keep_alive = False
            return False
        response = error_response(error, head)
        if cycle is not None and self.pipeline and self.pipeline[0][0] is cycle and cycle.more_body:
            # The error waits behind the responses to earlier requests.
            cycle.more_body = cycle.keep_alive = False
            self.pipeline[0] = cycle, respond_with(response)  # type: ignore[assignment]  # uvicorn's own types of ASGI
            return True
        if cycle is None or not (cycle.response_started and cycle.more_body):
            self.transport.write(response_bytes(response))
        self.transport.close()
        return True

    def _feed(self, data: bytes) -> None:
        # A loop: one piece may contain thousands of requests, each with an Upgrade header.
        while True:
            try:
                return self.parser.feed_data(data)
            except HttpParserUpgrade as end:
                if not self._ignores_upgrade():
                    raise
                data = self._head_without_upgrade() + data[end.args[0] :]

    def _ignores_upgrade(self) -> bool:
        """Whether the request offers a protocol that is not served, and so gets a plain HTTP response."""
        if not self.parser.should_upgrade() or (protocol := self._get_upgrade()) is None:
            return False
        # A WebSocket is opened by GET (RFC 6455 4.1), and the WebSocket server reads no body before it.
        return protocol != b"websocket" or self.parser.get_method() != b"GET" or self._has_body()

    def _has_body(self) -> bool:
        return any(n == b"transfer-encoding" or (n == b"content-length" and v != b"0") for n, v in self.headers)

    def _get_upgrade(self) -> bytes | None:
        # Overrides uvicorn's for a WebSocket whose `Connection` list stands on several lines (RFC 9110 5.3), as where a
        # proxy in between adds its own: uvicorn reads the last line only. The parser has checked that one names it.
        return next((value.lower() for name, value in self.headers if name == b"upgrade"), None)

    def _head_without_upgrade(self) -> bytes:
        """Returns the request's head without its Upgrade header, and installs a new parser to read it again.

        A server may ignore an Upgrade header (RFC 9110 7.8). The parser skips the body of a request that has one, and
        uvicorn then drops the body. Java's own HTTP client offers HTTP/2 in every request without TLS.
        """
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        lines = [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        self.parser = HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn has it
        return b"\r\n".join([b"%b %b HTTP/%b" % (method, self.url, version), *lines, b"\r\n"])

    def on_body(self, body: bytes) -> None:
        """Buffers a piece of a request body.

        Overrides uvicorn's to count the bytes, for the time limit of a body (slowloris) and for clients that leave.
        """
        self.cycle.received_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Marks a request as complete.

        Overrides uvicorn's for Java's HttpClient, whose request would be complete before its body is read, and for
        clients that send on after an early refusal (curl): uvicorn leaves `more_body` set then, and the time limit of
        the body would go on.
        """
        if self._ignores_upgrade():
            return
        if self.cycle is not None:
            self.cycle.more_body = False
        super().on_message_complete()

    def on_headers_complete(self) -> None:
        """Checks a request's head and starts its cycle; the cycle's task has not run yet.

        Overrides uvicorn's for: requests with two hosts (smuggling, RFC 9112 3.2), Java's HttpClient, which offers
        HTTP/2, a target that ends in `?` (forwarded unchanged), our cycle class, and HTTP/1.0 clients that send
        `Expect: 100-continue` (ApacheBench).
        """
        check_host(self.url, self.headers)
        if self._ignores_upgrade():
            return
        previous = self.cycle
        super().on_headers_complete()
        if self.pipeline and len(self.pipeline) == 1:
            self._running = previous
        self._head = 0
        # The parser appends trailers to this list, but trailers are not headers (RFC 9110 6.5.1).
        self.headers = self.headers.copy()
        if self.url.endswith(b"?"):
            self.scope["extensions"] = {BARE_QUERY: {}}
        if self.cycle is not None:
            # Uvicorn has no setting for the class.
            self.cycle.__class__ = ResponseCycle
            if self.scope["http_version"] == "1.0":
                # An HTTP/1.0 client does not know the status 100 (RFC 9110 10.1.1).
                self.cycle.waiting_for_100_continue = False

    def on_response_complete(self) -> None:
        """Waits for the next request after a response, unless one is queued.

        Overrides uvicorn's, which sets a new timer for each request; a `Deadline` only moves its time, since this is
        part of every small request.
        """
        if self.pipeline or self.transport.is_closing():
            self._running = self.pipeline[-1][0] if self.pipeline else None
            super().on_response_complete()
            return
        self.server_state.total_requests += 1
        self.flow.resume_reading()
        if self._unfinished is None:
            self._idle.restart(self.timeout_keep_alive)

    def handle_websocket_upgrade(self) -> None:
        """Hands the connection to uvicorn's WebSocket protocol.

        Overrides uvicorn's to stop our timers.
        """
        self._idle.close()
        self.flow.close()
        super().handle_websocket_upgrade()


class ClientWebSocket(WebSocketsSansIOProtocol):
    """Uvicorn's WebSocket protocol, which ends running responses before it closes."""

    def shutdown(self) -> None:
        """Closes the socket, because the server stops.

        Overrides uvicorn's, which cuts the answer that Codex is receiving. The application closes a socket with running
        responses after them, and the server waits for it as for a response over HTTP.
        """
        is_busy = self.scope["state"].get(IS_BUSY) if self.handshake_complete and not self.close_sent else None
        if is_busy is None or not is_busy():
            super().shutdown()

    def send_receive_event_to_app(self) -> None:
        """Hands a message to the application, or closes the socket if its text is invalid.

        Overrides uvicorn's, which logs a traceback for what is the client's mistake.
        """
        if self.curr_msg_data_type == "text" and not self.close_sent:
            try:
                b"".join(self.frames).decode()
            except UnicodeDecodeError:
                self.logger.warning("a WebSocket is closed: the client sent a text that is no UTF-8")
                self.conn.send_close(CloseCode.INVALID_DATA)
                self.handle_parser_exception()
                return
        super().send_receive_event_to_app()


class ClientFlow(FlowControl):
    """Flow control that notices a client's disconnect while its connection is not read.

    Overrides uvicorn's for a client that leaves while the provider reads its upload slowly: nobody reads the connection
    then, so asyncio does not report its end, and the provider worked on for a minute. The socket is polled instead. An
    end behind bytes that do not fit into the socket's buffer stays unknown: TCP delivers in order.

    `on_end` is called with whether the connection is reset or closed both ways, and the number of unread bytes.
    """

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, on_end: Callable[[bool, int], object]
    ) -> None:
        super().__init__(transport)
        self._on_end = on_end
        self._deadline = Deadline(loop, self._check_client)

    def pause_reading(self) -> None:
        """Stops reading and starts the checks."""
        if not self.read_paused:
            self.read_paused = True
            self._transport.pause_reading()
            self._deadline.restart(_CHECK_INTERVAL)

    def resume_reading(self) -> None:
        """Reads again and stops the checks."""
        if self.read_paused:
            self.read_paused = False
            self._transport.resume_reading()
            self._deadline.stop()

    def close(self) -> None:
        """Stops the checks, and drops the callback: it refers to the connection, which refers to this."""
        self._deadline.close()
        self._on_end = _do_nothing

    def _check_client(self) -> None:
        if self._transport.is_closing():
            return
        self._deadline.restart(_CHECK_INTERVAL)
        end = _connection_end(self._transport.get_extra_info("socket").fileno())
        if end is not None:
            self._on_end(*end)


def _connection_end(descriptor: int) -> tuple[bool, int] | None:
    """Returns whether a connection is reset or closed both ways, and its unread bytes; None while the client may send.

    Needs POLLRDHUP, which Linux and FreeBSD have; elsewhere the result is always None.
    """
    poll, half_closed = select.poll(), getattr(select, "POLLRDHUP", 0)
    poll.register(descriptor, half_closed)
    events = poll.poll(0) if half_closed else []
    if not events:
        return None
    unread = fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4))
    return bool(events[0][1] & (select.POLLHUP | select.POLLERR)), int.from_bytes(unread, sys.byteorder)


def _do_nothing(reset: bool, unread: int) -> None:
    """Does nothing."""


_IGNORED_MESSAGES = (
    "ASGI callable returned without completing response.",
    "ASGI callable returned without completing handshake.",
)


class LineFilter(logging.Filter):
    """Drops three of uvicorn's lines.

    They are about a response without an end, which is how the proxy ends a response that the upstream cut; about a
    WebSocket that was not opened, which is how the proxy refuses one; and WebSockets' access line, with the query.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Returns False for these lines."""
        message = str(record.msg)
        return message not in _IGNORED_MESSAGES and '"WebSocket %s"' not in message


class Server(uvicorn.Server):
    """Uvicorn's server, which also stops in order after a second signal, and logs fewer lines."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        log = logging.getLogger("uvicorn.error")
        if not any(isinstance(each, LineFilter) for each in log.filters):
            log.addFilter(LineFilter())

    async def startup(self, sockets: list[socket] | None = None) -> None:
        """Starts the application, with an event in ASGI's place for values that outlive a request.

        Overrides uvicorn's, which notifies no response that the server stops: a page's event stream has no end of its
        own, and would be waited for.
        """
        self._stopping = self.lifespan.state[STOPPING] = asyncio.Event()
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        """Cancels running requests after a second signal, and ends the application.

        Overrides uvicorn's for a user who presses Ctrl-C twice, and for systemd, which may repeat SIGTERM:
        uvicorn would raise the signals again first, and the process would end before pending writes are done.
        """
        self._stopping.set()
        await super().shutdown(sockets)
        if self.force_exit and not self.lifespan.shutdown_event.is_set():
            if running := tuple(self.server_state.tasks):
                for task in running:
                    task.cancel()
                # Their last log lines and records are written, too.
                await asyncio.wait(running, timeout=1.0)
            await self.lifespan.shutdown()


class Worker(multiprocess.Process):
    """Uvicorn's worker process with our server. Uvicorn has no setting for the server's class.

    Overrides uvicorn's health check for machines on which a worker takes seconds to start, such as a container with a
    tenth of a processor: uvicorn would kill each worker that does not answer within five seconds, and start another
    one, for ever. Its setting `timeout_worker_healthcheck` would be the time for all later answers too, and the
    supervisor reacts to no signal while it waits for one.
    """

    start_seconds = 60.0
    """The time for a worker to start until it answers the health check."""
    _started_at: float | None = None
    _has_answered = False

    def is_alive(self, timeout: float = 5) -> bool:
        """Whether the worker answers in time, or may still be starting."""
        if self._has_answered or not self.process.is_alive():
            return super().is_alive(timeout)
        try:
            if self._started_at is None:
                self._started_at = time.monotonic()
                self.parent_conn.send(b"ping")
            if self.parent_conn.poll():
                self.parent_conn.recv()
                self._has_answered = True
        except (OSError, EOFError):
            return False
        return self._has_answered or time.monotonic() < self._started_at + self.start_seconds

    @property
    def server(self) -> uvicorn.Server:
        """The server, which is made in the worker process."""
        if self._server is None:
            self._server = Server(self.config)
        return self._server


class ReloadableFile(Protocol):
    """The file of the settings."""

    def has_changed(self) -> bool:
        """Whether it has changed since it was read."""

    def reload(self) -> object:
        """Reads it again."""


class Supervisor(multiprocess.Multiprocess):
    """Uvicorn's supervisor, which passes a SIGHUP on to the workers, so that they reload their settings.

    `file` is the one that the application's factory has, so each new worker
    gets the current settings.
    """

    def __init__(self, config: uvicorn.Config, sockets: list[socket], file: ReloadableFile) -> None:
        super().__init__(config, sockets)
        self._file = file
        # Uvicorn creates its workers by this name, and has no setting for their server.
        multiprocess.Process = Worker  # type: ignore[misc]

    def init_processes(self) -> None:
        """Starts the workers, then lets SIGHUP through.

        Overrides uvicorn's for `kill -HUP` (systemd's `ExecReload`) while the workers start.
        """
        # The command blocks SIGHUP, and so does each worker until it has a handler: without one it would end.
        super().init_processes()
        block_reload_signal(False)

    def keep_subprocess_alive(self) -> None:
        """Replaces workers that have ended.

        Overrides uvicorn's for Prometheus, which would add up the gauges of ended workers, and for an operator who has
        changed the settings' file: a new worker starts with them.
        """
        # The workers log the result.
        if self._file.has_changed():
            self._file.reload()
        before = {process.pid for process in self.processes}
        block_reload_signal(True)
        super().keep_subprocess_alive()
        block_reload_signal(False)
        for pid in before - {process.pid for process in self.processes}:
            mark_process_dead(pid)  # type: ignore[no-untyped-call]  # the library has no hints here

    def handle_hup(self) -> None:
        """Passes a SIGHUP on.

        Overrides uvicorn's for `kill -HUP` (systemd's `ExecReload`): uvicorn would restart all workers.
        """
        self._file.reload()
        for process in self.processes:
            if process.pid is not None:
                os.kill(process.pid, signal.SIGHUP)


def block_reload_signal(block: bool) -> None:
    """Blocks or unblocks SIGHUP. A blocked signal waits; processes that are spawned meanwhile inherit the block."""
    if hasattr(signal, "SIGHUP"):
        signal.pthread_sigmask(signal.SIG_BLOCK if block else signal.SIG_UNBLOCK, {signal.SIGHUP})


def server_config(
    factory: Callable[[], ASGIApp],
    address: tuple[str, int],
    workers: int,
    timeouts: ClientTimeouts,
    *,
    max_message: int,
    shutdown_seconds: int,
) -> uvicorn.Config:
    """Returns uvicorn's configuration for `address` (host, port). Calls `factory` in each worker.

    `max_message` limits a WebSocket's messages, in bytes.
    """
    return uvicorn.Config(
        factory,
        factory=True,
        host=address[0],
        port=address[1],
        workers=workers,
        loop="uvloop",
        http=partial(ClientConnection, timeouts=timeouts),  # type: ignore[arg-type]  # it is only called
        ws=ClientWebSocket,
        ws_max_size=max_message,
        ws_ping_interval=None,
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=shutdown_seconds,
        timeout_keep_alive=75,
        backlog=2048,
    )
