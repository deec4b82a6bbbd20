"""One client's connection: uvicorn's protocol, with the head of a response in one packet with what follows at once, and
with what uvicorn leaves out: clients of HTTP/1.0, a target that ends in `?`, and who offers another protocol."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from accordion.core.deadlines import Deadline
from accordion.core.errors import HeadTooLarge, RequestError, RequestTimeout
from accordion.faces.corked import Corked
from accordion.faces.cycle import Cycle
from accordion.faces.flow import Flow
from accordion.faces.http import BARE_QUERY, LOST, answering
from accordion.faces.refusal import at_once, check_host, not_http, reason_of, refusal
from accordion.relay import length_of

# Servers take 8 to 64 KiB of a head. Four times as much leaves room for tokens and tracing, and is soon read.
_LONGEST_HEAD = 256 * 1024
# So many seconds a client has to read why it is not listened to any more.
_LINGER = 2.0
# What must come of a body within the time that it has. A line so slow that this is too much carries 34 bytes a second.
_LEAST_BODY = 4_096


class Patience(NamedTuple):
    """How long a client is waited for, in seconds: for the first byte on a new connection, for the rest of a head, and
    for the next 4 KiB of a body."""

    silent: float = 120.0
    head: float = 60.0
    body: float = 120.0


_PATIENCE = Patience()


class Connection(HttpToolsProtocol):
    """Uvicorn's protocol over a transport of ours (corked.py), whose requests are ours (cycle.py) and whose client is
    looked after while it waits (flow.py)."""

    cycle: Cycle
    flow: Flow
    _idle: Deadline
    _lost: asyncio.Future[None]
    _running: RequestResponseCycle | None = None
    """What is being answered while others wait for their turn."""
    _head = 0
    """How much came of a head, or of what stands behind a body's chunks, that has no end yet."""
    _came = 0
    """How much of a body was there when the last piece came."""
    _awaited: object = None
    """What the client has begun and not finished: the headers of a head, or the cycle of a body."""
    _progress = 0
    """How much of a body was there when its time began."""

    def __init__(self, *args: Any, patience: Patience = _PATIENCE, **options: Any) -> None:
        super().__init__(*args, **options)
        self._patience = patience

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """The client is there."""
        self._idle = Deadline(self.loop, self._late)
        self._idle.put_off(self._patience.silent)
        super().connection_made(Corked(transport, self.loop))
        self.flow = Flow(self.transport, self.loop, self._look)
        self._lost = self.loop.create_future()
        # Copied for each request anyway (ASGI's own place for what lasts longer than one).
        self.app_state = {**self.app_state, LOST: self._lost}

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone."""
        self._idle.close()
        self.flow.close()
        cycle = self.cycle
        # The end of what a client sends, behind a whole request, is told to whoever waits for more of it.
        if exc is not None or (cycle is not None and cycle.more_body):
            self._tell()
        super().connection_lost(exc)
        if self.pipeline and self._running is not None:
            # Uvicorn tells the last one only, which waits for its turn.
            self._running.disconnected = True
            self._running.message_event.set()

    def _look(self, reset: bool, unread: int) -> None:
        """The client has ended what it sends while it is not read; `unread` bytes of that are there. It may have gone,
        or only have said all: as long as its request can still become whole by what is unread, that is waited for.
        Behind a request that waits for its turn the end is what it is where it is read."""
        cycle, gone = self.cycle, reset
        if cycle is not None and cycle.more_body:
            gone |= cycle.came + unread < length_of(cycle.scope["headers"])
        elif self.pipeline:
            gone |= not unread
        if gone:
            self._gone()

    def data_received(self, data: bytes) -> None:
        """A piece of requests came."""
        if self._head > _LONGEST_HEAD:
            return
        if self._awaited is None:
            self._idle.lift()
        try:
            self._feed(data)
            # Only in a head that has no end yet are both the same.
            if self.headers is not None and self.headers is self.scope["headers"]:
                self._await(self.headers, self._patience.head)
                self._count(len(data))
            elif self.cycle is not None and self.cycle.more_body:
                self._await(self.cycle, self._patience.body)
                self._count_behind(len(data), self.cycle.came)
            elif self._awaited is not None:
                self._awaited = None
                self._idle.lift()
        except HttpParserUpgrade:
            if self._should_upgrade():
                self.handle_websocket_upgrade()
            else:  # CONNECT
                self._unsupported_upgrade_warning()
        except HttpParserError as error:
            self._refuse(reason_of(error, data), data)

    def _await(self, begun: object, seconds: float) -> None:
        """Begins the time for the rest of a head or a body, unless it runs already."""
        if self._awaited is not begun:
            self._awaited, self._progress = begun, self.cycle.came if begun is self.cycle else 0
            self._idle.put_off(seconds)

    def _late(self) -> None:
        """A client did not go on in time."""
        cycle, begun, patience = self.cycle, self._awaited, self._patience
        if begun is None:
            self.timeout_keep_alive_handler()
        elif begun is not cycle:
            self._give_up("head", patience.head)
        elif cycle.came - self._progress >= _LEAST_BODY or self.flow.read_paused or cycle.waiting_for_100_continue:
            # It goes on, or it is this proxy that makes it wait.
            self._progress = cycle.came
            self._idle.put_off(patience.body)
        else:
            self._give_up("body", patience.body)

    def _give_up(self, part: str, seconds: float) -> None:
        self._awaited = None
        error = RequestTimeout(f"The {part} of the request did not come within {seconds:g} seconds. Send it again.")
        self.logger.warning("%s", error)
        self._turn_away(error, self._known())

    def _count(self, size: int) -> None:
        """Bounds a head that goes on. The piece in which it begins may be the end of a body, and counts for nothing."""
        self._head += size if self._head else 1
        if self._head <= _LONGEST_HEAD:
            return
        # From here on nothing is taken, and whoever is in the middle of sending it can read why (RFC 9112 9.6).
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.keep_alive = False
            return
        error = HeadTooLarge(
            f"The head of the request is larger than the {_LONGEST_HEAD:,} bytes that this proxy accepts."
        )
        self.logger.warning("%s", error)
        self.transport.write(at_once(refusal(error, self._known())))
        self.transport.write_eof()
        self._awaited = None
        self._idle.put_off(_LINGER)

    def _count_behind(self, size: int, came: int) -> None:
        """Bounds what is none of a body, its trailers, which the parser keeps; behind it the request would be whole."""
        self._head, self._came = (self._head + size if came == self._came else 0), came
        if self._head > _LONGEST_HEAD:
            self.logger.warning("The trailers of a request exceed the limit of %s bytes.", _LONGEST_HEAD)
            self._gone()

    def _gone(self) -> None:
        self._tell()
        self.transport.abort()

    def _tell(self) -> None:
        if not self._lost.done():
            self._lost.set_result(None)

    def _known(self) -> bytes:
        return b"\r\n".join([b" " + self.url, *(b"%b:%b" % header for header in self.headers)])

    def _refuse(self, reason: str, data: bytes) -> None:
        if self._turn_away(not_http(reason), self._known() + b"\r\n" + data):
            self.logger.warning("A client sent invalid HTTP: %s.", reason)

    def _turn_away(self, error: RequestError, head: bytes) -> bool:
        """Answers what cannot become a request with an error, and closes the connection. False where the answer to an
        earlier request is not over: then the connection only closes behind that."""
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete and not cycle.more_body:
            # It comes behind a request whose answer is not over yet; what was said now would be taken for that.
            cycle.keep_alive = False
            return False
        answer = refusal(error, head)
        if cycle is not None and self.pipeline and self.pipeline[0][0] is cycle and cycle.more_body:
            # Its turn comes when those before it are answered.
            cycle.more_body = cycle.keep_alive = False
            self.pipeline[0] = cycle, answering(answer)  # type: ignore[assignment]  # uvicorn's own types of ASGI
            return True
        if cycle is None or not (cycle.response_started and cycle.more_body):
            self.transport.write(at_once(answer))
        self.transport.close()
        return True

    def _feed(self, data: bytes) -> None:
        # A loop: one piece may hold thousands of requests, each with its offer.
        while True:
            try:
                return self.parser.feed_data(data)
            except HttpParserUpgrade as end:
                if not self._offers_another():
                    raise
                data = self._without_offer() + data[end.args[0] :]

    def _offers_another(self) -> bool:
        if not self.parser.should_upgrade() or (wanted := self._get_upgrade()) is None:
            return False
        # A WebSocket is opened by GET (RFC 6455 4.1), and no server reads a body in front of it.
        return wanted != b"websocket" or self.parser.get_method() != b"GET" or self._brings_body()

    def _brings_body(self) -> bool:
        return any(n == b"transfer-encoding" or (n == b"content-length" and v != b"0") for n, v in self.headers)

    def _get_upgrade(self) -> bytes | None:
        # The parser has seen to it that `Connection` names it, in whichever of its lines; uvicorn reads the last only.
        return next((value.lower() for name, value in self.headers if name == b"upgrade"), None)

    def _without_offer(self) -> bytes:
        """The head of a request that is to be read again as if it offered no other protocol, which a server may (RFC
        9110 7.8); a new parser is there for it. The last one left out the body, which comes behind. Java's own client
        offers HTTP/2 with every request in the clear."""
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        lines = [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        self.parser = HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn has it
        return b"\r\n".join([b"%b %b HTTP/%b" % (method, self.url, version), *lines, b"\r\n"])

    def on_body(self, body: bytes) -> None:
        """A piece of a request's body is there. It waits as it is, where uvicorn would copy it, until another comes."""
        cycle = self.cycle
        cycle.came += len(body)
        if cycle.response_complete:
            return
        if not cycle.body:
            cycle.body = body  # type: ignore[assignment]  # whoever takes it makes bytes of it
        else:
            if isinstance(cycle.body, bytes):
                cycle.body = bytearray(cycle.body)
            cycle.body += body
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        cycle.message_event.set()

    def on_message_complete(self) -> None:
        """A request is there to its end."""
        if self._offers_another():
            return
        if self.cycle is not None:
            # Uvicorn leaves that out where the answer is over already.
            self.cycle.more_body = False
        super().on_message_complete()

    def on_headers_complete(self) -> None:
        """A request's head is there; its task has not begun yet."""
        check_host(self.url, self.headers)
        if self._offers_another():
            return
        before = self.cycle
        super().on_headers_complete()
        if self.pipeline and len(self.pipeline) == 1:
            self._running = before
        self._head = 0
        # What comes behind a body in chunks is no header (RFC 9110 6.5.1).
        self.headers = self.headers.copy()
        if self.url.endswith(b"?"):
            self.scope["extensions"] = {BARE_QUERY: {}}
        if self.cycle is not None:
            # Uvicorn takes no other class for it.
            self.cycle.__class__ = Cycle
            if self.scope["http_version"] == "1.0":
                # Such a client does not know the answer 100 (RFC 9110 10.1.1).
                self.cycle.waiting_for_100_continue = False

    def on_response_complete(self) -> None:
        """An answer is over: the next request is waited for, where none is there yet."""
        if self.pipeline or self.transport.is_closing():
            self._running = self.pipeline[-1][0] if self.pipeline else None
            super().on_response_complete()
            return
        self.server_state.total_requests += 1
        self.flow.resume_reading()
        if self._awaited is None:
            self._idle.put_off(self.timeout_keep_alive)

    def handle_websocket_upgrade(self) -> None:
        """From here on the connection belongs to another protocol."""
        self._idle.close()
        self.flow.close()
        if isinstance(self.transport, Corked):
            self.transport = self.transport.uncorked()
        super().handle_websocket_upgrade()
