"""An answer on its way in, over one of aiohttp's connections."""

from __future__ import annotations

import asyncio

import aiohttp
import httpx
from aiohttp.http_parser import RawResponseMessage
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader

from accordion.core.ports import Headers
from accordion.upstream.faults import translated
from accordion.upstream.lines import Line


class Incoming:
    """An answer whose head has arrived. Every error is one of httpx's.

    `delimited` says that the body's end is marked, by a length or in chunks; else it ends where the connection does.
    """

    __slots__ = (
        "_delivered",
        "_failure",
        "_line",
        "_payload",
        "_upload",
        "delimited",
        "headers",
        "reason",
        "status",
    )

    def __init__(
        self,
        line: Line,
        message: RawResponseMessage,
        payload: StreamReader,
        sending: asyncio.Task[None] | None,
    ) -> None:
        self.status = message.code
        self.reason = message.reason or ""
        self.headers: Headers = message.raw_headers
        self.delimited = bool(message.chunked) or payload is EMPTY_PAYLOAD or "Content-Length" in message.headers
        self._line: Line | None = line
        self._payload = payload
        self._upload = sending
        self._delivered = 0
        self._failure: Exception | None = None

    async def read(self) -> bytes:
        """What has arrived of the body since, at once where something has; empty at its end.

        Raises RemoteProtocolError where the connection ended before the body did, ReadTimeout.
        """
        if self._line is None:
            if self._failure is not None:
                raise self._failure
            return b""
        if self.delimited and self._payload.is_eof():
            return self._whole()
        try:
            piece = await self._payload.readany()
        except Exception as error:
            return self._rest(error)
        if piece:
            self._delivered += len(piece)
            if self.delimited and self._payload.at_eof():
                # Its end came with it.
                self._let_go()
            return piece
        if isinstance(self._line.protocol.exception(), aiohttp.ClientOSError):
            # A body that lasts until the connection closes was cut by a reset: the parser takes that for its end.
            self._fail(httpx.RemoteProtocolError("the connection was reset in the middle of the reply"))
        else:
            self._let_go()
        return await self.read()

    def _whole(self) -> bytes:
        """All that is left of a body whose end has arrived. Read in the usual way, aiohttp would ask for more to come,
        which takes longer than all the rest of this."""
        piece = b""
        if self._payload is not EMPTY_PAYLOAD:
            piece = b"".join(self._payload._buffer)
            self._payload._buffer.clear()
        self._let_go()
        return piece

    def _rest(self, error: Exception) -> bytes:
        """What arrived before `error` and was not read yet comes first; aiohttp would throw it away."""
        if self._payload.total_bytes > self._delivered:
            rest = self._payload._read_nowait(-1)
            self._delivered += len(rest)
            return rest
        raise self._fail(translated(error)) from error

    def _fail(self, error: Exception) -> Exception:
        self._failure = error
        self._abort()
        return error

    def _let_go(self) -> None:
        """On to the next request with the connection, unless it cannot be used again."""
        if self._upload is not None and not self._upload.done():
            self._abort()
        elif self._line is not None:
            self._line.release()
            self._line = None

    def _abort(self) -> None:
        if self._line is not None:
            abort(self._line, self._upload)
            self._line = None

    async def close(self) -> None:
        """Let go. An unfinished reply's connection is closed at once, without waiting for what is still to be sent."""
        if self._line is None:
            return
        if self._payload.is_eof() and self._payload.exception() is None:
            self._let_go()
        else:
            self._fail(httpx.RemoteProtocolError("the reply was closed before its end"))


def abort(line: Line, sending: asyncio.Task[None] | None) -> None:
    """Close at once; nothing that is still buffered goes out first."""
    if sending is not None:
        sending.cancel()
    line.abort()
