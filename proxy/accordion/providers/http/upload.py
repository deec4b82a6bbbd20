"""Uploads large or streamed request bodies in the background, while the response is already awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable

import aiohttp
import httpx

from accordion.providers.http.aiohttp_compat import ResponseHandler, StreamWriter

WHOLE = 1024 * 1024
"""The largest body in bytes that is written at once."""
_SLICE = 256 * 1024


def upload(
    protocol: ResponseHandler, body: bytes | AsyncIterator[bytes], length: int | None, piece_timeout: float | None
) -> asyncio.Task[None]:
    """Writes `body` in the background, no faster than the upstream reads it.

    The body is sent chunked if `length` (in bytes) is None. The upstream may take up to `piece_timeout` seconds for
    each piece. Errors, those of `body` included, are raised where the response is awaited.
    """
    pieces: AsyncIterator[bytes | memoryview]
    pieces, length = (_slices(body), len(body)) if isinstance(body, bytes) else (body, length)
    task = asyncio.get_running_loop().create_task(_write(protocol, pieces, length, piece_timeout))

    def on_done(task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        # An upstream that stops reading may have sent a response already. That response, or its absence, counts.
        if error is not None and not isinstance(error, aiohttp.ClientConnectionError | ConnectionError):
            protocol.set_exception(error)
            protocol.abort()

    task.add_done_callback(on_done)
    return task


async def _write(
    protocol: ResponseHandler,
    pieces: AsyncIterator[bytes | memoryview],
    length: int | None,
    piece_timeout: float | None,
) -> None:
    writer = StreamWriter(protocol, asyncio.get_running_loop())
    if length is None:
        writer.enable_chunking()
    sent_size = 0
    async for piece in pieces:
        sent_size += len(piece)
        if length is not None and sent_size > length:
            raise httpx.WriteError("the request body is longer than its Content-Length")
        await _with_timeout(piece_timeout, writer.write(piece))
    if length is not None and sent_size < length:
        raise httpx.WriteError("the request body is shorter than its Content-Length")
    await _with_timeout(piece_timeout, writer.write_eof())
    protocol.start_timeout()


async def _with_timeout(piece_timeout: float | None, writing: Awaitable[None]) -> None:
    try:
        async with asyncio.timeout(piece_timeout):
            await writing
    except TimeoutError as error:
        raise httpx.WriteTimeout(f"nothing of the request was taken for {piece_timeout:g} s") from error


async def _slices(body: bytes) -> AsyncIterator[memoryview]:
    view = memoryview(body)
    for start in range(0, len(body), _SLICE):
        yield view[start : start + _SLICE]
