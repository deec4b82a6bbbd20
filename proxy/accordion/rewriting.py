"""What is left out of headers, and replies whose bodies are not the provider's any more."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from operator import itemgetter

from accordion.core.ports import Headers, UpstreamReply
from accordion.dialects.encodings import Decoder

_STALE = frozenset({b"content-length", b"content-encoding"})
_OURS = b"x-accordion-"
_name = itemgetter(0)


def without_ours(headers: Headers) -> Headers:
    """The headers but for those of a proxy of this kind."""
    # Most requests and replies have none: to look at all names at once takes less than to go through them.
    # Not by `in`, which first takes bytes for a number: that takes ten times as long.
    if b"\n".join(map(_name, headers)).lower().find(_OURS) < 0:
        return headers
    return tuple([pair for pair in headers if not pair[0].lower().startswith(_OURS)])


def headers_of_read(headers: Headers) -> Headers:
    """The headers that still hold of a body that was read and may have changed."""
    return tuple([pair for pair in headers if pair[0].lower() not in _STALE])


async def body_of(reply: UpstreamReply, encoding: str) -> bytes:
    """The whole body of a reply without its content encoding (empty: it has none). The reply is let go of."""
    decoder, body = Decoder(encoding) if encoding else None, bytearray()
    try:
        async with aclosing(reply.chunks()) as pieces:
            async for piece in pieces:
                body += piece if decoder is None else decoder.feed(piece)
    finally:
        await reply.close()
    return bytes(body)


class Rewritten:
    """An UpstreamReply with another stream than the provider's; `reply` is that one."""

    def __init__(self, reply: UpstreamReply, stream: AsyncGenerator[bytes, None]) -> None:
        self.status = reply.status
        self.headers = headers_of_read(reply.headers)
        self.delimited = reply.delimited
        self._reply = reply
        self._stream = stream

    def chunks(self) -> AsyncGenerator[bytes, None]:
        """The reply to the client, event by event."""
        return self._stream

    async def close(self) -> None:
        """Lets go of the provider's reply."""
        await self._stream.aclose()
        await self._reply.close()
