"""A request and its response on a client connection: the same bytes as uvicorn's, written in fewer steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from uvicorn.protocols.http.httptools_impl import HEADER_RE, HEADER_VALUE_RE, STATUS_LINE, RequestResponseCycle

from accordion.http.corked_transport import CorkedTransport

# The bytes that uvicorn refuses in a header.
_NOT_IN_NAMES, _NOT_IN_VALUES = (
    bytes(code for code in range(256) if invalid.search(bytes((code,)))) for invalid in (HEADER_RE, HEADER_VALUE_RE)
)
_LINE_BREAKS = frozenset(b"\r\n\0")
# RFC 9110 5.5: a recipient may replace invalid characters of a value with spaces.
_SPACED = bytes(0x20 if code in _NOT_IN_VALUES else code for code in range(256))


class ResponseCycle(RequestResponseCycle):
    """A request and its response, without an access log.

    To an HTTP/1.0 client, which knows no chunks, a body without a length ends with the connection (RFC 9112 6.3);
    `chunked_encoding` is None then. Uvicorn would send it chunks.
    """

    transport: CorkedTransport
    came = 0
    """Bytes of the request body that were read from the connection."""

    async def send(self, message: Mapping[str, Any]) -> None:
        """Sends a part of the response. Raises RuntimeError for an unexpected message or an invalid header.

        Overrides uvicorn's for speed: it checks all headers in one pass and writes a head together with its body, which
        counts in small requests. It also serves HTTP/1.0 clients, providers' statuses that HTTP does not define, and
        header values with control characters, all of which uvicorn fails. A property test compares the bytes.
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
            self._begin(status, [(name, value.translate(_SPACED)) for name, value in headers])
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
            self.transport.open_ended = True
        head.append(b"\r\n")
        self.transport.hold(b"".join(head))

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
            self.transport.open_ended = False
            self.transport.close()
        self.on_response()
