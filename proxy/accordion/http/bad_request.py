"""Error responses to input that is not valid HTTP, in the shape of the client's API. The application never sees it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from http import HTTPStatus
from typing import cast

from httptools import HttpParserCallbackError, HttpParserInvalidURLError

from accordion.http.proxy_app import new_id
from accordion.model.errors import BadRequest, RequestError
from accordion.model.http import Outbound
from accordion.protocols import registry

# The first bytes of a TLS handshake (RFC 8446 5.1: a record of type 22, version 3.x).
_TLS = b"\x16\x03"
_AUTHORITY_END = re.compile(rb"[/?#]")


class InvalidHost(ValueError):
    """The request's Host headers or its target contradict each other."""


def check_host(target: bytes, headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Raises InvalidHost for more than one Host header, and for a target that names another host (RFC 9112 3.2)."""
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) > 1:
        raise InvalidHost("the request has more than one Host header")
    if target[:1] != b"/" and hosts and b"://" in target:
        scheme, _, rest = target.partition(b"://")
        port = b":443" if scheme.lower() == b"https" else b":80"
        authority = _AUTHORITY_END.split(rest, maxsplit=1)[0]
        if authority.lower().removesuffix(port) != hosts[0].lower().removesuffix(port):
            raise InvalidHost("the request target names another host than the Host header")


def describe_parse_error(error: Exception, data: bytes) -> str:
    """Describes the fault in `data` by the parser's error. Never quotes its content."""
    if data.startswith(_TLS):
        return "the client speaks TLS, and this port does not. Use http:// in place of https:// in the base URL"
    if isinstance(error, HttpParserInvalidURLError):
        return "a character in the path is not allowed there; percent-encode it"
    if isinstance(error.__context__, InvalidHost):
        return str(error.__context__)
    if isinstance(error, HttpParserCallbackError):
        return "its target cannot be read"
    return str(error)[:1].lower() + str(error)[1:]


def malformed_request(reason: str) -> BadRequest:
    """Returns the error for input that the parser cannot read."""
    return BadRequest(f"This is not valid HTTP: {reason}.")


def error_response(error: RequestError, head: bytes) -> Outbound:
    """Returns the error response; `head` is the part of the request head that was read, as one byte string."""
    lines = head.split(b"\r\n")
    # What the parser has taken of the request line comes first, without the method; it may be empty.
    targets = (words[1] for words in (line.split(b" ", 2) for line in lines) if words[1:] and words[1][:1] == b"/")
    path = next(targets, b"").decode("latin-1").partition("?")[0]
    fields = {name.strip().lower(): value.strip() for name, _, value in (each.partition(b":") for each in lines)}
    return registry.error_response(path, fields, error, new_id())


def response_bytes(outbound: Outbound) -> bytes:
    """Encodes a response to write on a connection without a request; the connection closes after it."""
    lines = [b"%b: %b" % header for header in (*outbound.headers, (b"connection", b"close"))]
    status_line = f"HTTP/1.1 {outbound.status} {HTTPStatus(outbound.status).phrase}\r\n".encode()
    return b"".join([status_line, b"\r\n".join(lines), b"\r\n\r\n", cast(bytes, outbound.body)])
