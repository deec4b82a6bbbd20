"""What is left out of headers, and replies whose bodies are not the provider's any more."""

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
    """The headers but for those of a proxy of this kind."""
    # Most requests and replies have none: to look at all names at once takes less than to go through them.
    # Not by `in`, which first takes bytes for a number: that takes ten times as long.
    if b"\n".join(map(_name, headers)).lower().find(_PROXY_PREFIX) < 0:
        return headers
    return tuple([pair for pair in headers if not pair[0].lower().startswith(_PROXY_PREFIX)])


def strip_body_headers(headers: Headers) -> Headers:
    """The headers that still hold of a body that was read and may have changed."""
    return tuple([pair for pair in headers if pair[0].lower() not in _BODY_HEADERS])


async def read_body(response: UpstreamResponse, encoding: str) -> bytes:
    """The whole body of a reply without its content encoding (empty: it has none). The reply is let go of."""
    decoder, body = Decoder(encoding) if encoding else None, bytearray()
    try:
        async with aclosing(response.chunks()) as pieces:
            async for piece in pieces:
                body += piece if decoder is None else decoder.feed(piece)
    finally:
        await response.close()
    return bytes(body)


class RewrittenResponse:
    """An UpstreamResponse with another stream than the provider's; `reply` is that one."""

    def __init__(self, response: UpstreamResponse, stream: AsyncGenerator[bytes, None]) -> None:
        self.status = response.status
        self.headers = strip_body_headers(response.headers)
        self.delimited = response.delimited
        self._reply = response
        self._stream = stream

    def chunks(self) -> AsyncGenerator[bytes, None]:
        """The reply to the client, event by event."""
        return self._stream

    async def close(self) -> None:
        """Lets go of the provider's reply."""
        await self._stream.aclose()
        await self._reply.close()
