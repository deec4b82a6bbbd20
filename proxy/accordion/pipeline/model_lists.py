"""Learns the windows of models from the lists of models that providers send to clients."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from accordion.accounting.model_lists import read_listed_windows
from accordion.model.ports import UpstreamResponse, WindowTable
from accordion.pipeline.relay import RewrittenResponse, content_type_and_encoding
from accordion.pipeline.request import PassthroughRequest
from accordion.protocols.content_encoding import decode_body

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
        if not is_list or response.status != 200:
            return response
        watched = RewrittenResponse(response, self._read(request, response))
        watched.headers = response.headers
        return watched

    async def _read(self, request: PassthroughRequest, response: UpstreamResponse) -> AsyncGenerator[bytes, None]:
        """Yields the body as it came, and then learns the windows, for the caller's tenant and this upstream."""
        chunks, size = list[bytes](), 0
        async with aclosing(response.chunks()) as body:
            async for chunk in body:
                size += len(chunk)
                if size <= _MAX_LIST:
                    chunks.append(chunk)
                yield chunk
        try:
            encoding = content_type_and_encoding(response.headers)[1]
            page = decode_body(b"".join(chunks), encoding, _MAX_LIST) if size <= _MAX_LIST else None
            for model, window in read_listed_windows(page or b"").items():
                self.window_table.learn_listed(model, request.route.name, request.caller.tenant.name, window)
        except Exception:
            _log.exception("a list of models could not be read")
