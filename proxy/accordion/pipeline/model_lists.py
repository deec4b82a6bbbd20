"""Learns the windows of models from the lists of models that providers send to clients."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from accordion.accounting.model_lists import read_listed_windows
from accordion.model.errors import AccordionError
from accordion.model.ports import UpstreamResponse, WindowTable
from accordion.pipeline.relay import content_type_and_encoding
from accordion.pipeline.request import PassthroughRequest
from accordion.protocols.content_encoding import Decoder

_log = logging.getLogger("accordion")

_MAX_LIST = 4 << 20
"""Bytes of a list; a longer one is not read."""


class ModelListReader(msgspec.Struct, frozen=True):
    """Reads lists of models as they pass. The client gets them byte for byte."""

    window_table: WindowTable

    def watch(self, request: PassthroughRequest, response: UpstreamResponse) -> UpstreamResponse:
        """Returns the response; if it is a list of models, its windows are learned when it has passed."""
        inbound = request.inbound
        is_list = inbound.method == "GET" and inbound.path.rstrip("/").endswith("/models")
        return _WatchedList(response, self, request) if is_list and response.status == 200 else response

    def learn(self, request: PassthroughRequest, body: bytes) -> None:
        """Learns the windows in a list, for the caller's tenant and this upstream."""
        for model, size in read_listed_windows(body).items():
            self.window_table.learn_listed(model, request.route.name, request.caller.tenant.name, size)


class _WatchedList:
    """A response whose body is read while it passes."""

    def __init__(self, response: UpstreamResponse, reader: ModelListReader, request: PassthroughRequest) -> None:
        self._response, self._reader, self._request = response, reader, request
        self.status, self.headers, self.is_delimited = response.status, response.headers, response.is_delimited

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """See UpstreamResponse."""
        chunks, size = list[bytes](), 0
        async with aclosing(self._response.chunks()) as body:
            async for chunk in body:
                size += len(chunk)
                if size <= _MAX_LIST:
                    chunks.append(chunk)
                yield chunk
        if size <= _MAX_LIST:
            self._learn(b"".join(chunks))

    def _learn(self, body: bytes) -> None:
        try:
            decoder = Decoder(content_type_and_encoding(self.headers)[1], _MAX_LIST)
            self._reader.learn(self._request, decoder.feed(body))
        except AccordionError:
            # Its encoding is not known, or it is longer than a list.
            pass
        except Exception:
            _log.exception("a list of models could not be read")

    async def close(self) -> None:
        """See UpstreamResponse."""
        await self._response.close()
