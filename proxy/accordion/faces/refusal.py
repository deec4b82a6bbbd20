"""The answer to what is no HTTP, in the shape that its client reads. Nothing of it went to the application."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import cast

from httptools import HttpParserCallbackError, HttpParserInvalidURLError
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from accordion.core.errors import BadRequest, RequestError
from accordion.core.http import Outbound
from accordion.dialects.chat import ChatCompletions
from accordion.dialects.messages import Messages
from accordion.faces.http import new_id

# How each handshake begins (RFC 8446 5.1: a record of type 22, version 3.x).
_TLS = b"\x16\x03"
_AUTHORITY_END = re.compile(rb"[/?#]")


class InvalidHost(ValueError):
    """A request does not say clearly which host it is for."""


def check_host(target: bytes, headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Raises InvalidHost for more than one Host header, and for a target that names another host (RFC 9112 3.2)."""
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) > 1:
        raise InvalidHost("the request has more than one Host header")
    if target[:1] != b"/" and hosts and b"://" in target:
        scheme, _, rest = target.partition(b"://")
        port = b":443" if scheme.lower() == b"https" else b":80"
        named = _AUTHORITY_END.split(rest, maxsplit=1)[0]
        if named.lower().removesuffix(port) != hosts[0].lower().removesuffix(port):
            raise InvalidHost("the request target names another host than the Host header")


def reason_of(error: Exception, data: bytes) -> str:
    """What is wrong with `data`, by what the parser said of it. Never its content."""
    if data.startswith(_TLS):
        return "the client speaks TLS, and this port does not. Use http:// in place of https:// in the base URL"
    if isinstance(error, HttpParserInvalidURLError):
        return "a character in the path is not allowed there; percent-encode it"
    if isinstance(error.__context__, InvalidHost):
        return str(error.__context__)
    if isinstance(error, HttpParserCallbackError):
        return "its target cannot be read"
    return str(error)[:1].lower() + str(error)[1:]


def not_http(reason: str) -> BadRequest:
    """The error for what cannot be read."""
    return BadRequest(f"This is not valid HTTP: {reason}.")


def refusal(error: RequestError, head: bytes) -> Outbound:
    """What is answered; `head` is what is known of the request, which no longer tells its path from its headers."""
    anthropic = b" /v1/messages" in head or b"anthropic-version:" in head.lower()
    dialect = Messages() if anthropic else ChatCompletions()
    return dialect.refusal(error, new_id())


def at_once(out: Outbound) -> bytes:
    """The same as it goes out where no request has begun; the connection closes behind it."""
    lines = [b"%b: %b" % header for header in (*out.headers, (b"connection", b"close"))]
    return b"".join([STATUS_LINE[out.status], b"\r\n".join(lines), b"\r\n\r\n", cast(bytes, out.body)])
