"""Forwards one request: from the client's bytes to the provider's response and back.

The steps, each of which takes a request at one stage and returns it at the next (request.py; 1 to 3: read.py):

1. receive.py reads the body into a conversation, and finds the route.
2. identify.py finds the agent and the session, and hides results that the agent may not see.
3. measure.py applies earlier compactions, counts or estimates tokens, and decides.
4. prepare.py compacts the request (compact.py, or the handler of a feature), or leaves its bytes unchanged. If a
   compaction is only reported, it is tried there.
5. send.py sends the request. retries.py builds another one after a refusal: after an overflow, a compacted one.
   tool_loop.py answers calls of our own tool within the same response. The handler of a feature (request_hooks.py) may
   answer in place of the provider, and may add to the response.
6. respond.py relays the response, and record.py records the exchange after it.

A request whose body is not read skips the steps 2 to 4. If one of these steps fails by a fault of ours, the request is
forwarded without it.
"""

from __future__ import annotations

import msgspec

from accordion.accounting.key_limits import KeyLimiter
from accordion.model.errors import AccordionError
from accordion.model.http import Inbound, Outbound
from accordion.model.ports import Clock, UpstreamResponse
from accordion.pipeline.model_lists import ModelListReader
from accordion.pipeline.overflow_probe import ProbedResponse, probe_overflow
from accordion.pipeline.prepare import Preparer
from accordion.pipeline.read import RequestReader, refuse_if_uncountable
from accordion.pipeline.record import ExchangeRecorder, RequestProgress
from accordion.pipeline.request import MeasuredRequest, PassthroughRequest, PreparedRequest
from accordion.pipeline.respond import Responder
from accordion.pipeline.response_retrieval import ResponseRetrieval
from accordion.pipeline.retries import Attempts, RetryStep
from accordion.pipeline.send import Sender, raise_if_refused
from accordion.pipeline.tool_loop import ToolLoop
from accordion.sessions.tenants import Tenants


class RequestPipeline(msgspec.Struct, frozen=True):
    """Runs the steps of a request in order. Keeps no state between requests."""

    clock: Clock
    tenants: Tenants
    key_limiter: KeyLimiter
    reader: RequestReader
    prepare: Preparer
    sender: Sender
    tool_loop: ToolLoop
    retry_step: RetryStep
    response_retrieval: ResponseRetrieval
    model_list_reader: ModelListReader
    responder: Responder
    recorder: ExchangeRecorder

    async def __call__(self, inbound: Inbound) -> Outbound:
        """Forwards a request; returns the provider's response, or an error in the client's own format."""
        progress = RequestProgress(self.clock.monotonic(), inbound=inbound)
        try:
            caller = self.tenants.identify(inbound.headers_by_name)
            if caller.key is not None and caller.key.limits:
                await self.key_limiter.admit(caller.key.id, caller.tenant.name, caller.key.limits)
            progress.request = request = await self.reader.read(inbound, caller, progress.started_at)
            refuse_if_uncountable(request)
            if isinstance(request, PassthroughRequest):
                response = await self._send_unread(request)
                # A feature may do what the provider lacks: then the request is read after all.
                response, progress.request = await self.retry_step.read_after_refusal(request, response)
            if isinstance(progress.request, MeasuredRequest):
                response = await self._prepare_and_send(progress.request, progress)
        except AccordionError as error:
            return self.responder.refuse(progress, error)
        except BaseException as reason:
            self.responder.record_interruption(progress, reason)
            raise
        return await self.responder.respond(progress, response)

    def refuse(self, inbound: Inbound, error: AccordionError) -> Outbound:
        """Returns the response to a request that could not be received."""
        return self.responder.refuse(RequestProgress(self.clock.monotonic(), inbound=inbound), error)

    async def _send_unread(self, request: PassthroughRequest) -> UpstreamResponse:
        stored_response = await self.response_retrieval.retrieve(request, self.sender.send)
        response = await self.sender.send(request) if stored_response is None else stored_response
        return self.model_list_reader.watch(request, response)

    async def _prepare_and_send(self, request: MeasuredRequest, progress: RequestProgress) -> UpstreamResponse:
        """Prepares and sends a request, then a revised one as long as the provider's refusal can be met."""
        raise_if_refused(request)
        started_at = self.clock.monotonic()
        progress.request = prepared = await self.prepare(request)
        outcome = prepared.compaction_outcome
        if outcome is not None and outcome.is_triggered and outcome.state != "holdout":
            progress.compaction_seconds = self.clock.monotonic() - started_at
        raise_if_refused(prepared)
        progress.request = prepared = await self.tool_loop.add_earlier_rounds(prepared)
        self.recorder.start_count(progress, prepared)
        progress.is_sent = True
        response, attempts = _answer(prepared) or await self.sender.send(prepared), Attempts()
        while not prepared.is_token_count:
            probed = await probe_overflow(
                response,
                prepared.protocol,
                is_near_window=prepared.is_near_window and not attempts.is_final,
                reads_start=bool(prepared.compaction_id or attempts.lists.refused),
            )
            response, revised = probed.response, await self._revise(prepared, probed, attempts, progress)
            if revised is None:
                response, revised = await self.retry_step.read_if_ignored(prepared, response)
                if revised is not None:
                    await response.close()
            if revised is None:
                break
            progress.request = prepared = revised
            response = _answer(prepared) or await self.sender.send(prepared)
        response = await self.tool_loop.run(response, prepared, self.sender.send, progress)
        return response if prepared.handler is None else await prepared.handler.report(prepared, response)

    async def _revise(
        self, request: PreparedRequest, probed: ProbedResponse, attempts: Attempts, progress: RequestProgress
    ) -> PreparedRequest | None:
        """Closes a refusal and returns the request to send next; None if the response goes to the client."""
        if probed.overflow is None and not probed.refusal and probed.response.status < 400:
            await self.retry_step.accept(request, attempts)
            return None
        started_at, revised = self.clock.monotonic(), None
        try:
            revised = await self.retry_step.revise(request, probed, attempts)
        except BaseException:
            await probed.response.close()
            raise
        if revised is not None:
            await probed.response.close()
        if probed.overflow is not None:
            progress.compaction_seconds += self.clock.monotonic() - started_at
        return revised


def _answer(request: PreparedRequest) -> UpstreamResponse | None:
    """Returns the response of the request's handler, in place of the provider's; None if the request is to be sent."""
    return None if request.handler is None else request.handler.answer(request)
