"""A client connection: uvicorn's httptools protocol with time limits, size limits and clients that uvicorn fails.

`ClientConnection` is the protocol class that `accordion serve` gives uvicorn. For each connection it puts a
`CorkedTransport` around the transport (corked_transport.py), a `ClientFlow` in the place of uvicorn's flow control, and
makes each request a `ResponseCycle` (uvicorn_cycle.py). It overrides uvicorn's methods and reads uvicorn's attributes;
the comment at the head of each override names its reason.
"""

from __future__ import annotations

import asyncio
import fcntl
import select
import sys
import termios
from collections.abc import Callable
from typing import Any, NamedTuple

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from accordion.http.bad_request import (
    check_host,
    describe_parse_error,
    error_response,
    malformed_request,
    response_bytes,
)
from accordion.http.corked_transport import CorkedTransport
from accordion.http.proxy_app import BARE_QUERY, LOST, respond_with
from accordion.http.uvicorn_cycle import ResponseCycle
from accordion.model.deadlines import Deadline
from accordion.model.errors import HeadTooLarge, RequestError, RequestTimeout
from accordion.pipeline.relay import content_length

# Servers accept 8 to 64 KiB of a head. Four times as much fits tokens and tracing headers.
_MAX_HEAD = 256 * 1024
# Seconds that a client has to read the error before the connection closes.
_LINGER = 2.0
# Bytes of a body that must arrive within its time limit: at the default of 120 seconds, 34 bytes a second.
_MIN_BODY = 4_096
# Seconds between two checks of a client whose connection is not read.
_CHECK_INTERVAL = 0.5


class ClientTimeouts(NamedTuple):
    """Time limits in seconds: for a connection's first byte, for the rest of a head, for the next 4 KiB of a body."""

    silent: float = 120.0
    head: float = 60.0
    body: float = 120.0


_DEFAULT_TIMEOUTS = ClientTimeouts()


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

    def __init__(self, *args: Any, patience: ClientTimeouts = _DEFAULT_TIMEOUTS, **options: Any) -> None:
        super().__init__(*args, **options)
        self._timeouts = patience

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Sets up the timers, the transport and the flow control.

        Overrides uvicorn's, which has no time limit for a client that opens a connection and sends nothing.
        """
        self._idle = Deadline(self.loop, self._on_timeout)
        self._idle.restart(self._timeouts.silent)
        super().connection_made(CorkedTransport(transport, self.loop))
        self.flow = ClientFlow(self.transport, self.loop, self._check_client)
        self._lost = self.loop.create_future()
        # ASGI's own place for values that outlive a request. Uvicorn copies it for each request anyway.
        self.app_state = {**self.app_state, LOST: self._lost}

    def connection_lost(self, exc: Exception | None) -> None:
        """Notifies the requests of this connection that the client has left.

        Overrides uvicorn's, which notifies only the newest request: a pipelining client's running one went on.
        """
        self._idle.close()
        self.flow.close()
        cycle = self.cycle
        # A client that only ends its input behind a complete request still waits for the response.
        if exc is not None or (cycle is not None and cycle.more_body):
            self._notify_waiters()
        super().connection_lost(exc)
        if self.pipeline and self._running is not None:
            # Uvicorn notifies only the last one, which has not begun.
            self._running.disconnected = True
            self._running.message_event.set()

    def _check_client(self, reset: bool, unread: int) -> None:
        """Decides whether a client that ended its input has left; `unread` bytes of the input are buffered.

        It may have sent everything and wait. So it is still there while the unread bytes can complete its request, or,
        behind a pipelined request, while there are any.
        """
        cycle, has_left = self.cycle, reset
        if cycle is not None and cycle.more_body:
            has_left |= cycle.came + unread < content_length(cycle.scope["headers"])
        elif self.pipeline:
            has_left |= not unread
        if has_left:
            self._on_client_gone()

    def data_received(self, data: bytes) -> None:
        """Parses received bytes, and starts or stops the timers of a head and a body.

        Overrides uvicorn's, which limits neither the size of a head nor the time of a request, and answers invalid HTTP
        in plain text, even in the middle of an earlier request's response.
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
                self._count_trailers(len(data), self.cycle.came)
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
            self._unfinished, self._progress = part, self.cycle.came if part is self.cycle else 0
            self._idle.restart(seconds)

    def _on_timeout(self) -> None:
        """Closes an idle connection, or refuses a request that did not arrive in time."""
        cycle, part, timeouts = self.cycle, self._unfinished, self._timeouts
        if part is None:
            self.timeout_keep_alive_handler()
        elif part is not cycle:
            self._give_up("head", timeouts.head)
        elif cycle.came - self._progress >= _MIN_BODY or self.flow.read_paused or cycle.waiting_for_100_continue:
            # The client sends, or this proxy makes it wait.
            self._progress = cycle.came
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
        answer = error_response(error, head)
        if cycle is not None and self.pipeline and self.pipeline[0][0] is cycle and cycle.more_body:
            # The error waits behind the responses to earlier requests.
            cycle.more_body = cycle.keep_alive = False
            self.pipeline[0] = cycle, respond_with(answer)  # type: ignore[assignment]  # uvicorn's own types of ASGI
            return True
        if cycle is None or not (cycle.response_started and cycle.more_body):
            self.transport.write(response_bytes(answer))
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
        # Overrides uvicorn's, which reads the last `Connection` line only. The parser has checked that one names it.
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

        Overrides uvicorn's, which copies every piece into a bytearray. A body in one piece, as of any small request,
        stays `bytes` here. It also counts bytes for `_check_client` and the body's time limit.
        """
        cycle = self.cycle
        cycle.came += len(body)
        if cycle.response_complete:
            return
        if not cycle.body:
            cycle.body = body  # type: ignore[assignment]  # uvicorn's `receive` converts it to bytes
        else:
            if isinstance(cycle.body, bytes):
                cycle.body = bytearray(cycle.body)
            cycle.body += body
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        cycle.message_event.set()

    def on_message_complete(self) -> None:
        """Marks a request as complete.

        Overrides uvicorn's, which would complete a request whose Upgrade header is ignored before its body is read, and
        leaves `more_body` set if the response is complete already.
        """
        if self._ignores_upgrade():
            return
        if self.cycle is not None:
            self.cycle.more_body = False
        super().on_message_complete()

    def on_headers_complete(self) -> None:
        """Checks a request's head and starts its cycle; the cycle's task has not run yet.

        Overrides uvicorn's for: requests with two hosts (RFC 9112 3.2), ignored Upgrade headers (Java's client), a
        target that ends in `?`, our cycle class, and HTTP/1.0 clients that send `Expect: 100-continue`.
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

        Overrides uvicorn's to stop our timers and to take off the corked transport, which WebSockets do not need.
        """
        self._idle.close()
        self.flow.close()
        if isinstance(self.transport, CorkedTransport):
            self.transport = self.transport.inner_transport()
        super().handle_websocket_upgrade()


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
        self._on_end = _nothing

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
    poll, half = select.poll(), getattr(select, "POLLRDHUP", 0)
    poll.register(descriptor, half)
    events = poll.poll(0) if half else []
    if not events:
        return None
    unread = fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4))
    return bool(events[0][1] & (select.POLLHUP | select.POLLERR)), int.from_bytes(unread, sys.byteorder)


def _nothing(reset: bool, unread: int) -> None:
    """Does nothing."""
