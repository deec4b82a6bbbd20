"""One client's connection: uvicorn's protocol, with the head of a response in one packet with what follows at once, and
with what uvicorn leaves out: clients of HTTP/1.0, a target that ends in `?`, and who offers another protocol."""

from __future__ import annotations

import asyncio
from typing import Any

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from proxy.faces.http import BARE_QUERY

_CHUNKED = b"transfer-encoding: chunked\r\n"


class Connection(HttpToolsProtocol):
    """Uvicorn writes head and body each by itself, and a write costs more than anything else that a small request does.
    So the head waits for the body's first piece, but no longer than the event loop takes to come round once."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """The client is there."""
        super().connection_made(Corked(transport, self.loop))  # type: ignore[arg-type]  # it does all that is asked

    def data_received(self, data: bytes) -> None:
        """A piece of requests came."""
        self._unset_keepalive_if_required()
        try:
            self._feed(data)
        except HttpParserUpgrade:
            if self._should_upgrade():
                self.handle_websocket_upgrade()
            else:  # CONNECT
                self._unsupported_upgrade_warning()
        except HttpParserError:
            self.logger.warning("Invalid HTTP request received.")
            self.send_400_response("Invalid HTTP request received.")

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

    def on_message_complete(self) -> None:
        """A request is there to its end."""
        if not self._offers_another():
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
        if self.scope["http_version"] == "1.0" and self.cycle is not None:
            # Such a client does not know the answer 100 (RFC 9110 10.1.1).
            self.cycle.waiting_for_100_continue = False
            self.cycle.transport = Unchunked(self.cycle.transport)  # type: ignore[assignment]  # it does all that is asked

    def handle_websocket_upgrade(self) -> None:
        """From here on the connection belongs to another protocol."""
        if isinstance(self.transport, Corked):
            self.transport = self.transport.uncorked()
        super().handle_websocket_upgrade()


class Corked:
    """A transport that holds back the head of a response until the next write, or the next turn of the loop."""

    __slots__ = ("_held", "_loop", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held = b""

    def write(self, data: bytes) -> None:
        """Writes at once whatever is no head, together with the head before it."""
        if self._held:
            held, self._held = self._held, b""
            self._transport.write(held + data)
        elif data.startswith(b"HTTP/1.1 "):
            self._held = data
            self._loop.call_soon(self.flush)
        else:
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


class Unchunked:
    """A transport for one answer to a client of HTTP/1.0, which knows no chunks: a body without a length ends where the
    connection does (RFC 9112 6.3). Uvicorn closes it behind such an answer."""

    __slots__ = ("_begun", "_chunked", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._begun = self._chunked = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Writes a head without the word that its body is chunked, and a body without its chunks' frames. Uvicorn gives
        the head first and by itself, and whole chunks only."""
        if not self._begun:
            self._begun, self._chunked = True, data.endswith(_CHUNKED + b"\r\n")
            data = data.removesuffix(_CHUNKED + b"\r\n") + b"\r\n" if self._chunked else data
        elif self._chunked:
            data = _unframed(data)
        self._transport.write(data)


def _unframed(chunks: bytes) -> bytes:
    at, pieces = 0, []
    while at < len(chunks):
        start = chunks.index(b"\r\n", at) + 2
        size = int(chunks[at:start], 16)
        pieces.append(chunks[start : start + size])
        at = start + size + 2
    return b"".join(pieces)
