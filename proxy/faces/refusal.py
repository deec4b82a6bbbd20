"""The answer to what is no HTTP, in the shape that its client reads. Nothing of it went to the application."""

from __future__ import annotations

from httptools import HttpParserInvalidURLError
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from proxy.core.errors import BadRequest
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
    return str(error)[:1].lower() + str(error)[1:]


def refusal(reason: str, head: bytes) -> bytes:
    """A whole response that says so, and that the connection closes; `head` is what is known of the request."""
    anthropic = b" /v1/messages" in head or b"anthropic-version:" in head.lower()
    request_id = new_id()
    dialect = Messages() if anthropic else ChatCompletions()
    body = dialect.error(BadRequest(f"This is not valid HTTP: {reason}."), request_id)
    lines = [
        STATUS_LINE[400] + b"content-type: application/json",
        b"content-length: %d" % len(body),
        b"%b: %b" % (b"request-id" if anthropic else b"x-request-id", request_id.encode()),
        b"connection: close",
    ]
    return b"\r\n".join([*lines, b"", body])
