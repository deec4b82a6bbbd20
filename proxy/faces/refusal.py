"""The answer to what is no HTTP, in the shape that its client reads. Nothing of it went to the application."""

from __future__ import annotations

from httptools import HttpParserCallbackError, HttpParserInvalidURLError
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from proxy.core.errors import BadRequest
from proxy.core.ports import Headers
from proxy.core.values import dataclass
from proxy.dialects.chat import ChatCompletions
from proxy.dialects.messages import Messages
from proxy.faces.http import new_id

# How each handshake begins (RFC 8446 5.1: a record of type 22, version 3.x).
_TLS = b"\x16\x03"


def reason_of(error: Exception, data: bytes) -> str:
    """What is wrong with `data`, by what the parser said of it. Never its content."""
    if data.startswith(_TLS):
        return "the client speaks TLS, and this port does not. Use http:// in place of https:// in the base URL"
    if isinstance(error, HttpParserInvalidURLError):
        return "a character in the path is not allowed there; percent-encode it"
    if isinstance(error, HttpParserCallbackError):
        return "its target cannot be read"
    return str(error)[:1].lower() + str(error)[1:]


@dataclass(frozen=True, slots=True)
class Refusal:
    """The answer that says so; the connection closes behind it."""

    headers: Headers
    body: bytes

    @property
    def raw(self) -> bytes:
        """All of it, as it goes out where no request has begun."""
        lines = [b"%b: %b" % header for header in (*self.headers, (b"connection", b"close"))]
        return STATUS_LINE[400] + b"\r\n".join([*lines, b"", self.body])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The same for a request whose turn comes later (ASGI 3)."""
        await send({"type": "http.response.start", "status": 400, "headers": self.headers})
        await send({"type": "http.response.body", "body": self.body})


def refusal(reason: str, head: bytes) -> Refusal:
    """What is answered; `head` is what is known of the request."""
    anthropic = b" /v1/messages" in head or b"anthropic-version:" in head.lower()
    request_id = new_id()
    dialect = Messages() if anthropic else ChatCompletions()
    body = dialect.error(BadRequest(f"This is not valid HTTP: {reason}."), request_id)
    headers = (
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"request-id" if anthropic else b"x-request-id", request_id.encode()),
    )
    return Refusal(headers, body)
