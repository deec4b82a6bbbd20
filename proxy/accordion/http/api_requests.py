"""Helpers of all API endpoints: identify the caller, read the request, write the response."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive

from accordion.model.errors import AccordionError, BadRequest, BodyTooLarge, NotFound, RequestError, Unauthorized
from accordion.protocols.odd_json import replace_marks
from accordion.sessions.request_origins import has_forwarding_header, is_loopback_url, url_port
from accordion.sessions.tenants import OWNER_TOKEN_FILE, OWNER_TOKEN_HEADER, Caller, Tenants

SAFE = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
"""Headers of every response, since a body may contain anything, such as a web page that a tool has read."""
_MAX_DIGITS = 12
_SCHEME, _PORT = re.compile("https?"), re.compile("[0-9]{1,5}")
_AUTHORITY, _PREFIX = re.compile(r"[\w.:\[\]-]{1,300}", re.ASCII), re.compile(r"(?:/[\w.~-]+)+/?", re.ASCII)
_MIN_PIECE = 65_536
"""Bytes of a streamed piece: many short lines cost less in one write."""

_log = logging.getLogger("accordion")


class ForeignOrigin(RequestError):
    """A browser sends the request for a page of another site."""

    status = 403
    type = "permission_error"
    code = "foreign_origin"


class ProxyKeysRequired(RequestError):
    """A request for stored data came through another proxy, to a proxy that only this machine can reach."""

    status = 403
    type = "permission_error"
    code = "proxy_keys_required"
    anthropic_type = "permission_error"

    def __init__(self, sign: str) -> None:
        super().__init__(
            f"This request came through another proxy ({sign}), so anybody may have sent it. Without proxy_keys, what "
            "is stored is for this machine alone. Configure proxy_keys and send one of them, or open this address on "
            "the machine itself."
        )


class TokenRequired(Unauthorized):
    """A request to erase or to export comes from this machine without the token of the proxy's owner."""

    code = "token_required"

    def __init__(self) -> None:
        super().__init__(
            f"To erase or to export, send this proxy's token in the header {OWNER_TOKEN_HEADER.decode()}. It is in the "
            f"file {OWNER_TOKEN_FILE} of the user that runs the proxy, and in the address that the proxy printed."
        )


def check_origin(headers: Mapping[bytes, bytes], tenants: Tenants) -> None:
    """Raises ForeignOrigin for a browser's request from another site, so that no web site reads or erases data here.

    If only this machine can connect and there are no proxy keys, also for a Host that is not a name of this machine:
    another site's DNS name may resolve to this address. A page on another port of this machine is another site. And it
    raises ProxyKeysRequired for what came through another proxy, whatever token or ticket it has.
    """
    local, host = tenants.is_local_only, headers.get(b"host", b"").decode("latin-1")
    sign = tenants.find_forwarding(headers)
    if local and not is_loopback_url(f"//{host}") and not has_forwarding_header(headers):
        raise ForeignOrigin(
            f"Host {host[:100]!r} is not a name of this machine. Use http://127.0.0.1 on this machine, or configure "
            "proxy_keys and send one of them."
        )
    if sign:
        raise ProxyKeysRequired(sign)
    origin = headers.get(b"origin", b"").decode("latin-1")
    scheme, _, address = origin.partition("://")
    is_own = local and is_loopback_url(origin) and url_port(origin) == url_port(f"//{host}", scheme)
    if origin and address != host and not is_own:
        raise ForeignOrigin(f"Web pages of {origin[:100]!r} may not call this proxy.")


def find_origin(request: Request) -> str:
    """Returns the URL at which the client reached this proxy, without a slash at the end.

    Other proxies in front of this one say by `X-Forwarded-Proto`, `-Host`, `-Port` and `-Prefix` where that is. One
    that they pass on is `server.base_path`.
    """

    def read_forwarded(name: str, pattern: re.Pattern[str]) -> str:
        value = request.headers.get(f"x-forwarded-{name}", "").partition(",")[0].strip()
        return value if pattern.fullmatch(value) else ""

    scheme = read_forwarded("proto", _SCHEME) or request.url.scheme
    host = read_forwarded("host", _AUTHORITY) or request.url.netloc
    port = read_forwarded("port", _PORT)
    if port and url_port(f"//{host}") is None and url_port(f"//{host}", scheme) != int(port):
        host = f"{host}:{port}"
    prefix = read_forwarded("prefix", _PREFIX).rstrip("/") or request.scope.get("app_root_path", "")
    return f"{scheme}://{host}{prefix}"


def identify_caller(
    headers: Sequence[tuple[bytes, bytes]], tenants: Tenants, *, allows_anonymous: bool = False
) -> Caller:
    """Returns the caller from a request's headers. Raises Unauthorized, ForeignOrigin and ProxyKeysRequired.

    `allows_anonymous`: whether a caller that nothing tells from others may ask; it finds nothing.
    """
    fields = dict(reversed(headers))
    caller = tenants.identify(fields)
    check_origin(fields, tenants)
    if caller.is_anonymous and not allows_anonymous:
        raise Unauthorized(
            "What is stored here belongs to a credential: send the API key that you send to the provider, or configure "
            "proxy_keys and send one."
        )
    return caller


def identify_eraser(headers: Sequence[tuple[bytes, bytes]], tenants: Tenants) -> Caller:
    """Returns the caller of a request to erase or to export. Raises TokenRequired, Unauthorized and ForeignOrigin."""
    return check_eraser(identify_caller(headers, tenants))


def check_eraser(caller: Caller) -> Caller:
    """Returns a caller that may erase and export. Raises TokenRequired for any other."""
    if not caller.can_erase:
        raise TokenRequired
    return caller


def check_admin(headers: Sequence[tuple[bytes, bytes]], tenants: Tenants) -> None:
    """Raises Unauthorized and ForeignOrigin unless a request with these headers has the administrator's key."""
    fields = dict(reversed(headers))
    tenants.check_admin(fields)
    check_origin(fields, tenants)


async def read_body(request: Request, limit: int) -> bytes:
    """Reads the body. Raises BodyTooLarge beyond `limit` bytes, and ClientDisconnect if the client leaves earlier."""
    pieces, size = [], 0
    async for piece in request.stream():
        pieces.append(piece)
        size += len(piece)
        if size > limit:
            raise BodyTooLarge(f"The body is larger than {limit:,} bytes.", param="body")
    return b"".join(pieces)


def check_disconnect(receive: Receive) -> Receive:
    """Wraps `receive` to raise ClientDisconnect if the client leaves before the end of its body."""
    is_open = True

    async def receive_or_raise() -> Message:
        nonlocal is_open
        message = await receive()
        if is_open and message["type"] == "http.disconnect":
            raise ClientDisconnect
        is_open = is_open and message.get("more_body", False)
        return message

    return receive_or_raise


def parse_number(text: str, name: str, least: int, most: int) -> int:
    """Parses a whole number within bounds. Raises BadRequest."""
    digits = text.removeprefix("-")
    if 0 < len(digits) <= _MAX_DIGITS and digits.isascii() and digits.isdigit() and least <= int(text) <= most:
        return int(text)
    raise BadRequest(f"{name} must be a whole number from {least:,} to {most:,}.", param=name)


class ReadableResponse(Response):
    """A response for people: texts of the client that are no Unicode have replacement characters."""

    def render(self, content: Any) -> bytes:
        """Returns the body."""
        return replace_marks(bytes(super().render(content)))


def json_response(value: Any, status: int = 200) -> Response:
    """Returns a JSON response."""
    return ReadableResponse(msgspec.json.encode(value), status, headers=SAFE, media_type="application/json")


def unknown_session() -> NotFound:
    """Returns the error for a session that the tenant does not have."""
    return NotFound("There is no such session. GET /accordion/sessions lists them.", code="session_not_found")


async def stream_lines(
    first: bytes, lines: AsyncIterator[bytes], error_line: Callable[[str], object]
) -> AsyncGenerator[bytes, None]:
    """Yields `first` and the lines, joined into larger pieces.

    If the store fails on the way, the last line is the JSON of `error_line(message)`.
    """
    buffer = bytearray(first)
    try:
        async for line in lines:
            buffer += line
            if len(buffer) >= _MIN_PIECE:
                yield bytes(buffer)
                buffer.clear()
    except AccordionError as error:
        _log.warning("an export stopped before its end: %s", error.message)
        buffer += msgspec.json.encode(error_line(error.message)) + b"\n"
    yield bytes(buffer)
