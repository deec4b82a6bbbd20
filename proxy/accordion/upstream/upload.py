"""Bodies too large to be written in one go, or that come in pieces: sent while the answer is already awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable

import aiohttp
import httpx
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import StreamWriter

WHOLE = 1024 * 1024
"""Up to this size in bytes, a body is written at once."""
_SLICE = 256 * 1024


def upload(
    protocol: ResponseHandler, body: bytes | AsyncIterator[bytes], length: int | None, patience: float | None
) -> asyncio.Task[None]:
    """Write `body` in the background, never faster than the upstream takes it.

    Pieces go out chunked where `length` (in bytes) is None. The upstream may take up to `patience` seconds for each
    piece. What goes wrong, and what `body` raises, reaches who waits for the answer.
    """
    pieces: AsyncIterator[bytes | memoryview]
    pieces, length = (_slices(body), len(body)) if isinstance(body, bytes) else (body, length)
    task = asyncio.get_running_loop().create_task(_write(protocol, pieces, length, patience))

    def done(task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        # An upstream that stops listening may still have answered: what it says counts, or that it says nothing.
        if error is not None and not isinstance(error, aiohttp.ClientConnectionError | ConnectionError):
            protocol.set_exception(error)
            protocol.abort()

    task.add_done_callback(done)
    return task


async def _write(
    protocol: ResponseHandler,
    pieces: AsyncIterator[bytes | memoryview],
    length: int | None,
    patience: float | None,
) -> None:
    writer = StreamWriter(protocol, asyncio.get_running_loop())
    if length is None:
        writer.enable_chunking()
    sent = 0
    async for piece in pieces:
        sent += len(piece)
        if length is not None and sent > length:
            raise httpx.WriteError("the request body is longer than its Content-Length")
        await _within(patience, writer.write(piece))
    if length is not None and sent < length:
        raise httpx.WriteError("the request body is shorter than its Content-Length")
    await _within(patience, writer.write_eof())
    protocol.start_timeout()


async def _within(patience: float | None, writing: Awaitable[None]) -> None:
    try:
        async with asyncio.timeout(patience):
            await writing
    except TimeoutError as error:
        raise httpx.WriteTimeout(f"nothing of the request was taken for {patience:g} s") from error


async def _slices(body: bytes) -> AsyncIterator[memoryview]:
    view = memoryview(body)
    for start in range(0, len(body), _SLICE):
        yield view[start : start + _SLICE]
