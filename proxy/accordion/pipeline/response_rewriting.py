"""Removes headers, and wraps responses whose bodies were rewritten."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from operator import itemgetter

from accordion.model.ports import Headers, UpstreamResponse
from accordion.protocols.content_encoding import Decoder

_BODY_HEADERS = frozenset({b"content-length", b"content-encoding"})
_PROXY_PREFIX = b"x-accordion-"
_name = itemgetter(0)


def strip_proxy_headers(headers: Headers) -> Headers:
    """Returns the headers without those of an Accordion proxy."""
    # Most messages have none: searching all names at once is faster than checking each. `find` is used because `in`
    # first tries to read bytes as a number, which takes ten times as long.
    if b"\n".join(map(_name, headers)).lower().find(_PROXY_PREFIX) < 0:
        return headers
    return tuple([pair for pair in headers if not pair[0].lower().startswith(_PROXY_PREFIX)])


def strip_body_headers(headers: Headers) -> Headers:
    """Returns the headers that are still valid for a body that was read and may have changed."""
    return tuple([pair for pair in headers if pair[0].lower() not in _BODY_HEADERS])


async def read_body(response: UpstreamResponse, encoding: str) -> bytes:
    """Reads the whole body of a response without its content encoding (empty: none), and closes the response."""
    decoder, body = Decoder(encoding) if encoding else None, bytearray()
    try:
        async with aclosing(response.chunks()) as pieces:
            async for piece in pieces:
                body += piece if decoder is None else decoder.feed(piece)
    finally:
        await response.close()
    return bytes(body)


class RewrittenResponse:
    """An UpstreamResponse that yields `stream` in place of the provider's body."""

    def __init__(self, response: UpstreamResponse, stream: AsyncGenerator[bytes, None]) -> None:
        self.status = response.status
        self.headers = strip_body_headers(response.headers)
        self.delimited = response.delimited
        self._reply = response
        self._stream = stream

    def chunks(self) -> AsyncGenerator[bytes, None]:
        """Returns the rewritten stream."""
        return self._stream

    async def close(self) -> None:
        """Closes the stream and the provider's response."""
        await self._stream.aclose()
        await self._reply.close()
