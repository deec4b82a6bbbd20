"""Reads the provider's frames of a Bedrock stream as events, and writes the client's response in frames again.

Between the two, the response is an event stream as any other (protocols/bedrock_frames.py). A stream with a content
encoding passes unread; AWS sends none.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from accordion.model.ports import Headers, UpstreamResponse
from accordion.pipeline.relay import RewrittenResponse, content_type_and_encoding
from accordion.protocols.bedrock_frames import MEDIA_TYPE, BedrockFrames

_EVENTS = "text/event-stream"


def read_frames(response: UpstreamResponse, frames: BedrockFrames) -> UpstreamResponse:
    """Returns a response of frames as an event stream; any other response, and an encoded one, as it is."""
    if content_type_and_encoding(response.headers) != (MEDIA_TYPE, ""):
        return response
    rewritten = RewrittenResponse(response, _read_events(response, frames))
    rewritten.headers = _with_content_type(rewritten.headers, _EVENTS)
    return rewritten


async def _read_events(response: UpstreamResponse, frames: BedrockFrames) -> AsyncGenerator[bytes, None]:
    reader = frames.reader()
    async with aclosing(response.chunks()) as pieces:
        async for piece in pieces:
            if events := reader.feed(piece):
                yield events
    if rest := reader.flush():
        yield rest


def has_events(headers: Headers) -> bool:
    """Whether a response is an event stream, so that a client of frames needs frames in its place."""
    return content_type_and_encoding(headers) == (_EVENTS, "")


def frame_headers(headers: Headers) -> Headers:
    """Returns the headers of an event stream as those of a response of frames."""
    return _with_content_type(headers, MEDIA_TYPE)


async def write_frames(body: AsyncGenerator[bytes, None], frames: BedrockFrames) -> AsyncGenerator[bytes, None]:
    """Yields the client's response in frames; `body` is its event stream. The first piece is empty, as that of the
    relay."""
    async with aclosing(body) as blocks:
        async for block in blocks:
            out = frames.write(block)
            if out or not block:
                yield out
    if rest := frames.flush():
        yield rest


def _with_content_type(headers: Headers, media_type: str) -> Headers:
    return tuple([(name, media_type.encode() if name.lower() == b"content-type" else value) for name, value in headers])
