"""A response that is arriving over one of aiohttp's connections."""

from __future__ import annotations

import asyncio

import aiohttp
import httpx

from accordion.model.ports import Headers
from accordion.providers.http.aiohttp_compat import (
    EMPTY_PAYLOAD,
    RawResponseMessage,
    StreamReader,
    take_rest,
)
from accordion.providers.http.connections import ProviderConnection
from accordion.providers.http.errors import to_httpx_error


class IncomingResponse:
    """A response whose head has arrived. It raises httpx's errors only.

    `delimited`: a length or the last chunk marks the end of the body. Otherwise the body ends with the connection.
    """

    __slots__ = (
        "_connection",
        "_failure",
        "_payload",
        "_read_size",
        "_upload",
        "delimited",
        "headers",
        "reason",
        "status",
    )

    def __init__(
        self,
        connection: ProviderConnection,
        message: RawResponseMessage,
        payload: StreamReader,
        upload: asyncio.Task[None] | None,
    ) -> None:
        self.status = message.code
        self.reason = message.reason or ""
        self.headers: Headers = message.raw_headers
        self.delimited = bool(message.chunked) or payload is EMPTY_PAYLOAD or "Content-Length" in message.headers
        self._connection: ProviderConnection | None = connection
        self._payload = payload
        self._upload = upload
        self._read_size = 0
        self._failure: Exception | None = None

    async def read(self) -> bytes:
        """Returns the bytes that have arrived since the last call, waiting for some; empty at the end of the body.

        Raises RemoteProtocolError if the connection ended before the body did, and ReadTimeout.
        """
        if self._connection is None:
            if self._failure is not None:
                raise self._failure
            return b""
        if self.delimited and self._payload.is_eof():
            return self._read_buffered()
        try:
            piece = await self._payload.readany()
        except Exception as error:
            return self._read_before_error(error)
        if piece:
            self._read_size += len(piece)
            if self.delimited and self._payload.at_eof():
                # The last piece arrived together with the end of the body.
                self._release()
            return piece
        if isinstance(self._connection.protocol.exception(), aiohttp.ClientOSError):
            # A reset cut a body that lasts until the connection closes. The parser takes the reset for its end.
            self._fail(httpx.RemoteProtocolError("the connection was reset in the middle of the reply"))
        else:
            self._release()
        return await self.read()

    def _read_buffered(self) -> bytes:
        """Returns the rest of a body that has arrived completely."""
        piece = self._payload.read_nowait()
        self._release()
        return piece

    def _read_before_error(self, error: Exception) -> bytes:
        """Returns the bytes that arrived before `error` and were not read yet."""
        if self._payload.total_bytes > self._read_size:
            remaining = take_rest(self._payload)
            self._read_size += len(remaining)
            return remaining
        raise self._fail(to_httpx_error(error)) from error

    def _fail(self, error: Exception) -> Exception:
        self._failure = error
        self._abort()
        return error

    def _release(self) -> None:
        """Makes the connection available for the next request, unless it cannot be used again."""
        if self._upload is not None and not self._upload.done():
            self._abort()
        elif self._connection is not None:
            self._connection.release()
            self._connection = None

    def _abort(self) -> None:
        if self._connection is not None:
            abort(self._connection, self._upload)
            self._connection = None

    async def close(self) -> None:
        """Releases the connection; closes it at once if the response is unfinished, even with unsent bytes."""
        if self._connection is None:
            return
        if self._payload.is_eof() and self._payload.exception() is None:
            self._release()
        else:
            self._fail(httpx.RemoteProtocolError("the reply was closed before its end"))


def abort(connection: ProviderConnection, upload: asyncio.Task[None] | None) -> None:
    """Cancels the upload and closes the connection at once, without sending what is buffered."""
    if upload is not None:
        upload.cancel()
    connection.abort()
