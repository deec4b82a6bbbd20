"""One client's connection: uvicorn's protocol, with the head of a response in one packet with what follows at once, and
with what uvicorn leaves out: clients of HTTP/1.0, a target that ends in `?`, and who offers another protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import (
    HEADER_RE,
    HEADER_VALUE_RE,
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from proxy.core.deadlines import Deadline
from proxy.faces.http import BARE_QUERY, answering
from proxy.faces.refusal import at_once, reason_of, refusal

# What uvicorn does not let through in a header.
_NOT_IN_NAMES, _NOT_IN_VALUES = (
    bytes(code for code in range(256) if never.search(bytes((code,)))) for never in (HEADER_RE, HEADER_VALUE_RE)
)


class Connection(HttpToolsProtocol):
    """Uvicorn writes head and body each by itself, and a write costs more than anything else that a small request does.
    So the head waits for the body's first piece, but no longer than the event loop takes to come round once."""

    _idle: Deadline

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """The client is there."""
        self._idle = Deadline(self.loop, self.timeout_keep_alive_handler)
        super().connection_made(Corked(transport, self.loop))

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone."""
        self._idle.close()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """A piece of requests came."""
        self._idle.lift()
        try:
            self._feed(data)
        except HttpParserUpgrade:
            if self._should_upgrade():
                self.handle_websocket_upgrade()
            else:  # CONNECT
                self._unsupported_upgrade_warning()
        except HttpParserError as error:
            self._refuse(reason_of(error, data), data)

    def _refuse(self, reason: str, data: bytes) -> None:
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete and not cycle.more_body:
            # It comes behind a request whose answer is not over yet; what was said now would be taken for that.
            cycle.keep_alive = False
            return
        self.logger.warning("What a client sent is not valid HTTP: %s.", reason)
        lines = [b" " + self.url, *(b"%b:%b" % header for header in self.headers)]
        answer = refusal(reason, b"\r\n".join([*lines, data]))
        if cycle is not None and self.pipeline and self.pipeline[0][0] is cycle and cycle.more_body:
            # Its turn comes when those before it are answered.
            cycle.more_body = cycle.keep_alive = False
            self.pipeline[0] = cycle, answering(answer)  # type: ignore[assignment]  # uvicorn's own types of ASGI
            return
        if cycle is None or not (cycle.response_started and cycle.more_body):
            self.transport.write(at_once(answer))
        self.transport.close()

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
        return self.parser.should_upgrade() and self._get_upgrade() not in (None, b"websocket")

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
        if self._offers_another():
            return
        super().on_headers_complete()
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
            super().on_response_complete()
            return
        self.server_state.total_requests += 1
        self.flow.resume_reading()
        self._idle.put_off(self.timeout_keep_alive)

    def handle_websocket_upgrade(self) -> None:
        """From here on the connection belongs to another protocol."""
        self._idle.close()
        if isinstance(self.transport, Corked):
            self.transport = self.transport.uncorked()
        super().handle_websocket_upgrade()


class Cycle(RequestResponseCycle):
    """A request and its answer. What goes out is what uvicorn would write, which checks each header by itself. But to
    HTTP/1.0, which knows no chunks, a body without a length ends where the connection does (RFC 9112 6.3), and
    `chunked_encoding` is None for it. There is no access log here."""

    transport: Corked

    async def send(self, message: Mapping[str, Any]) -> None:
        """Takes a part of the answer; raises RuntimeError where it does not belong there, or is no HTTP."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if not self.response_started and message["type"] == "http.response.start":
            self.response_started = True
            self.waiting_for_100_continue = False
            self._begin(message["status"], [*self.default_headers, *message.get("headers", ())])
        elif self.response_started and not self.response_complete and message["type"] == "http.response.body":
            self._go_on(message.get("body", b""), more=message.get("more_body", False))
        else:
            raise RuntimeError(f"Unexpected ASGI message '{message['type']}'.")

    def _begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        head = [STATUS_LINE[status]]
        for name, value in headers:
            head += name.lower(), b": ", value, b"\r\n"
        names, values = head[1::4], head[3::4]
        # All of them at once: what is in none of them is not in what they make together.
        for said, never in ((b"".join(names), _NOT_IN_NAMES), (b"".join(values), _NOT_IN_VALUES)):
            if said.translate(None, never) != said:
                raise RuntimeError("Invalid HTTP header.")
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
        head.append(b"\r\n")
        self.transport.hold(b"".join(head))

    def _go_on(self, body: bytes, *, more: bool) -> None:
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
            self.transport.close()
        self.on_response()


class Corked(asyncio.Transport):
    """A transport that holds back the head of a response until the next write, or the next turn of the loop."""

    __slots__ = ("_held", "_loop", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held = b""

    def hold(self, head: bytes) -> None:
        """Takes a head to write."""
        self._held += head
        self._loop.call_soon(self.flush)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Writes at once, together with the head before it."""
        if self._held:
            data, self._held = self._held + data, b""
        self._transport.write(data)

    def flush(self) -> None:
        """Writes what is held back."""
        held, self._held = self._held, b""
        if held and not self._transport.is_closing():
            self._transport.write(held)

    def close(self) -> None:
        """Closes once all is written."""
        self.flush()
        self._transport.close()

    def is_closing(self) -> bool:
        """Whether nothing more can be written."""
        return self._transport.is_closing()

    # A `__getattr__` for the rest of what uvicorn asks would slow each use of an attribute down, those of `write` too.

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """As the transport has it."""
        return self._transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        """As the transport has it."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """As the transport has it."""
        self._transport.resume_reading()

    def uncorked(self) -> asyncio.Transport:
        """The transport itself."""
        self.flush()
        return self._transport
