"""The sixth step: gives the client the provider's response, or one of our own errors.

The response is relayed while an observer reads a copy (relay.py). State that a later request needs is stored before the
response ends, and the exchange is recorded behind it (record.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec
from msgspec.structs import replace

from accordion.model.errors import AccordionError
from accordion.model.http import Inbound, Outbound, stop_error
from accordion.model.ports import Clock, Headers, UpstreamResponse
from accordion.model.records import ObservedResponse
from accordion.pipeline.record import ExchangeRecorder, RequestProgress
from accordion.pipeline.relay import relay
from accordion.pipeline.request import PreparedRequest
from accordion.pipeline.response_headers import add_proxy_headers, build_headers
from accordion.pipeline.response_history import ResponseHistory
from accordion.protocols.base import WireProtocol


class Responder(msgspec.Struct, frozen=True):
    """Builds the responses to clients."""

    recorder: ExchangeRecorder
    response_history: ResponseHistory
    clock: Clock
    protocol_for: Callable[[Inbound], WireProtocol]
    """Returns the protocol that gives the error format of a request."""
    is_store_available: Callable[[], bool]

    async def respond(self, progress: RequestProgress, response: UpstreamResponse) -> Outbound:
        """Returns the provider's response with our headers; it is relayed as the client reads it."""
        request, progress.status = progress.request, response.status
        protocol = store = None
        if isinstance(request, PreparedRequest) and not request.is_token_count:
            protocol = request.protocol
            if response.status < 400 and self.response_history.must_wait(request):
                store = partial(self.recorder.store_response, progress)
        record = partial(self.recorder.record, progress)
        body = relay(response, protocol, progress, self.clock, progress.inbound.request_id, record, store)
        await anext(body)  # Closing the generator closes the response only once it has started.
        return Outbound(response.status, add_proxy_headers(response.headers, self._build_headers(progress)), body)

    def refuse(self, progress: RequestProgress, error: AccordionError) -> Outbound:
        """Returns one of our errors in the client's own format, with a request id, and records it."""
        progress.status, progress.error = error.status, error.code or error.type
        outbound = self.protocol_for(progress.inbound).error_response(error, progress.inbound.request_id)
        self.recorder.record(progress, ObservedResponse())
        return replace(outbound, headers=outbound.headers + self._build_headers(progress))

    def record_interruption(self, progress: RequestProgress, exception: BaseException) -> None:
        """Records that the client disconnected before the provider answered, or that the proxy is stopping."""
        error = stop_error(exception)
        progress.status, progress.error = (error.status, error.code) if error else (499, "client_disconnected")
        self.recorder.record(progress, ObservedResponse())

    def _build_headers(self, progress: RequestProgress) -> Headers:
        if progress.request is None:
            return ()
        return build_headers(progress.request, store_available=self.is_store_available())
