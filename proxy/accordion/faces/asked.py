"""What the faces of the API have in common: who asks, what is sent along, and how it is answered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive

from accordion.core.errors import BadRequest, BodyTooLarge, NotFound
from accordion.faces.guard import check_origin
from accordion.identity.tenants import Caller, Tenants

SAFE = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
"""What is answered may hold anything, such as a page that a tool has read."""
_DIGITS = 12


def caller_of(headers: Sequence[tuple[bytes, bytes]], tenants: Tenants) -> Caller:
    """Who asks, by a request's headers. Raises Unauthorized, and Foreign where a web site asks."""
    fields = dict(reversed(headers))
    caller = tenants.identify(fields)
    check_origin(fields, local=tenants.local)
    return caller


async def body_of(request: Request, most: int) -> bytes:
    """The body, of `most` bytes at most. Raises BodyTooLarge, and ClientDisconnect where the client leaves before its
    end."""
    pieces, size = [], 0
    async for piece in request.stream():
        pieces.append(piece)
        size += len(piece)
        if size > most:
            raise BodyTooLarge(f"The body is larger than {most:,} bytes.", param="body")
    return b"".join(pieces)


def checked(receive: Receive) -> Receive:
    """The same `receive`, which raises ClientDisconnect where the client leaves before the end of its body."""
    is_open = True

    async def received() -> Message:
        nonlocal is_open
        message = await receive()
        if is_open and message["type"] == "http.disconnect":
            raise ClientDisconnect
        is_open = is_open and message.get("more_body", False)
        return message

    return received


def number(given: str, name: str, least: int, most: int) -> int:
    """A whole number within bounds. Raises BadRequest."""
    digits = given.removeprefix("-")
    if 0 < len(digits) <= _DIGITS and digits.isascii() and digits.isdigit() and least <= int(given) <= most:
        return int(given)
    raise BadRequest(f"{name} must be a whole number from {least:,} to {most:,}.", param=name)


def answered(value: Any, status: int = 200) -> Response:
    """A JSON document."""
    return Response(msgspec.json.encode(value), status, headers=SAFE, media_type="application/json")


def unknown_session() -> NotFound:
    """What is said of a session that the tenant does not have."""
    return NotFound("There is no such session. GET /accordion/sessions lists them.", code="session_not_found")
