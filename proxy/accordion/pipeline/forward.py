"""One request, from the client's bytes to the provider's and back.

A request comes in through a face; its dialect reads the bytes into a Conversation; identity finds who asks among the
agents, and the filter leaves what that one may see (pipeline/visibility.py); identity finds the Session, replay puts
earlier folds back, accounting measures and policy decides (pipeline/measure.py); what is too full is folded, else the
very same bytes go on (pipeline/compact.py); what the provider keeps of it is put in place of its id for that
(pipeline/history_reconstruction.py); upstream sends (pipeline/send.py); an overflow that the provider reports is
answered by one more fold (pipeline/overflow_probe.py); what the model reads back is answered within the reply
(pipeline/tool_loop.py), which is relayed while a tap listens (pipeline/relay.py); the journal records, and what the
reply taught is kept (pipeline/calibration.py).

Forwarding is a promise: whatever fails on the way to knowing more about a request, the request itself goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from accordion.accounting.ledger import Ledger
from accordion.archive.erasure_notices import ErasureNotices
from accordion.archive.named_items import NamedItems
from accordion.model.cache import LONGEST_NAME
from accordion.model.errors import AccordionError, ContextOverflow, ThreadNotFound, Unauthorized, UpgradeRefused
from accordion.model.http import CompleteResponse, Inbound, Outbound, stop_error
from accordion.model.ports import Clock, Headers, UpstreamRequest, UpstreamResponse
from accordion.model.records import Exchange, ObservedResponse
from accordion.model.values import replace
from accordion.pipeline.calibration import learn_from_response
from accordion.pipeline.compact import CompactionStep
from accordion.pipeline.history_reconstruction import HistoryReconstruction, SummaryCallerFactory
from accordion.pipeline.measure import Measurer
from accordion.pipeline.memory_capture import MemoryCapture
from accordion.pipeline.overflow_probe import ProbedResponse, probe_overflow
from accordion.pipeline.relay import ExchangeProgress, relay
from accordion.pipeline.request import RequestState
from accordion.pipeline.response_headers import add_proxy_headers, build_agent_report, build_headers
from accordion.pipeline.response_history import ResponseHistory
from accordion.pipeline.response_retrieval import ResponseRetrieval
from accordion.pipeline.send import Sender
from accordion.pipeline.tool_loop import ToolLoop
from accordion.sessions.sessions import SessionMatch
from accordion.sessions.tenants import Tenants

_MAX_REPAIRS = 8
"""So often a request is sent again with what the provider missed in it; each of its errors names one thing."""

T = TypeVar("T")
_log = logging.getLogger("accordion")


@dataclass(frozen=True, slots=True)
class RequestPipeline:
    """The one way through the house. Holds the rooms it passes, and no state of its own."""

    tenants: Tenants
    measurer: Measurer
    compaction_step: CompactionStep
    sender: Sender
    ledger: Ledger
    clock: Clock
    erasures: ErasureNotices
    named_items: NamedItems
    history_reconstruction: HistoryReconstruction
    response_history: ResponseHistory
    tool_loop: ToolLoop | None = None
    """None where nothing is read back."""
    response_retrieval: ResponseRetrieval | None = None
    """None where nothing is read back."""
    memory_capture: MemoryCapture | None = None
    """None where folds leave no memories."""
    relays_websockets: bool = True
    """Whether WebSockets are relayed where the same may be asked over HTTP and is read then."""

    async def __call__(self, inbound: Inbound) -> Outbound:
        """Forwards a request; gives the provider's answer, or an error in the client's own shape."""
        course, fields = _RequestProgress(self.clock.monotonic()), inbound.fields
        try:
            caller = self.tenants.identify(fields)
            course.request = gauge = await self.measurer.measure(inbound, fields, caller, course.started_at)
            reply = await self._compact_and_send(inbound, course, gauge)
        except AccordionError as error:
            return self._build_refusal(inbound, fields, course, error)
        except BaseException as reason:
            self._record_disconnect(inbound, fields, course, reason)
            raise
        gauge, course.status = course.request, reply.status
        settle = partial(self._record_exchange_safely, inbound, fields, course)
        dialect = gauge.protocol if gauge.session_match is not None and not gauge.is_token_count else None
        store = (
            partial(self._store_response, course)
            if reply.status < 400 and self.response_history.must_wait(gauge)
            else None
        )
        body = relay(reply, dialect, course, self.clock, inbound.request_id, settle, store)
        await anext(body)  # Only what has begun lets go of the reply when it is closed.
        return Outbound(reply.status, add_proxy_headers(reply.headers, self._build_headers(gauge)), body)

    async def _compact_and_send(
        self, inbound: Inbound, progress: _RequestProgress, request: RequestState
    ) -> UpstreamResponse:
        """Folds where that is decided, and sends; once more where the provider says that it did not fit, or refuses
        what was put together. `progress` always holds what was sent last."""
        if request.decision.action == "resend" and request.session_match is not None:
            raise ThreadNotFound(request.session_match.conversation.previous or "", request.decision.reason)
        asker = partial(self.sender.build_summary_caller, inbound)
        began = self.clock.monotonic()
        progress.request = request = await self.history_reconstruction.compact(
            self.compaction_step, inbound, request, asker
        )
        if request.compaction_outcome is not None and request.compaction_outcome.triggered:
            progress.compaction_seconds = self.clock.monotonic() - began
        if request.decision.action == "refuse" and request.window is not None:
            raise ContextOverflow(
                request.utilization.tokens,
                request.window.usable_input,
                param=request.protocol.messages_field,
                failure=request.compaction_outcome.reason
                if request.compaction_outcome is not None and request.compaction_outcome.state == "failed"
                else "",
            )
        if request.is_token_count and request.route.family == "litellm":
            # Nobody can be asked; what the gauge says is the best that is known.
            return CompleteResponse(b'{"input_tokens":%d}' % request.utilization.tokens)
        progress.request = request = await self._restore_tool_rounds(request)
        if self.response_retrieval is not None and request.session_match is None:
            kept = await self.response_retrieval.retrieve(inbound, request, self.sender.send)
            if kept is not None:
                return kept
        if request.session_match is None or request.is_token_count:
            return await self.sender.send(inbound, request)
        start = await self._send_with_repairs(inbound, progress, request, asker)
        request = progress.request
        if start.overflow is None and (request.original_request is None or start.response.status != 400):
            return (
                await self._run_tool_loop(inbound, request, progress, start.response)
                if request.tool_name
                else start.response
            )
        try:
            began = self.clock.monotonic()
            again = await self.history_reconstruction.retry(
                self.compaction_step, inbound, request, asker, start.overflow
            )
            progress.compaction_seconds += self.clock.monotonic() - began
        except BaseException:
            await start.response.close()
            raise
        if again is None and (not request.releasable_thread or start.overflow is None or start.overflow.guessed):
            return start.response
        await start.response.close()
        if again is None:
            raise ThreadNotFound(request.releasable_thread, "the provider said that it does not fit its window")
        progress.request = again = await self._restore_tool_rounds(again)
        if start.overflow is None:
            return (await self._send_with_repairs(inbound, progress, again, asker, allow_full_history=False)).response
        return await self._run_tool_loop(inbound, again, progress, await self.sender.send(inbound, again))

    async def _send_with_repairs(
        self,
        inbound: Inbound,
        progress: _RequestProgress,
        request: RequestState,
        summary_caller: SummaryCallerFactory,
        *,
        allow_full_history: bool = True,
    ) -> ProbedResponse:
        """Sends a request, and as often as the provider says that something is missing behind a response's id, once
        more with that put in; `whole`: the whole history may be. Gives the reply, whose beginning was read."""
        start = await probe_overflow(
            await self.sender.send(inbound, request), request.protocol, is_near_window=request.is_near_window
        )
        for _ in range(_MAX_REPAIRS):
            if start.response.status != 400 or not start.refusal:
                break
            mended = await self.history_reconstruction.repair_missing_output(
                self.compaction_step,
                inbound,
                request,
                summary_caller,
                start.refusal,
                allow_full_history=allow_full_history,
            )
            if mended is None:
                break
            await start.response.close()
            progress.request = request = mended
            start = await probe_overflow(
                await self.sender.send(inbound, request), request.protocol, is_near_window=request.is_near_window
            )
        return start

    async def _restore_tool_rounds(self, request: RequestState) -> RequestState:
        """The request behind what was read back in the reply that it goes on from."""
        return request if self.tool_loop is None else await self.tool_loop.restore_rounds(request)

    async def _run_tool_loop(
        self, inbound: Inbound, request: RequestState, progress: ExchangeProgress, response: UpstreamResponse
    ) -> UpstreamResponse:
        """The reply in which the model's calls of our own tool are answered."""
        if self.tool_loop is None:
            return response
        return await self.tool_loop.run(response, request, partial(self.sender.send, inbound), progress)

    def needs_body(self, method: str, path: str, content_type: bytes) -> bool:
        """Whether a request is one that is looked into; its body must then be whole."""
        if method != "POST":
            return False
        known = path in self.measurer.protocols or path in self.measurer.token_count_protocols
        return known or (bool(self.measurer.router.models) and b"json" in content_type)

    def authorizes(self, inbound: Inbound) -> bool:
        """Whether its caller may enter at all."""
        try:
            self.tenants.identify(inbound.fields)
        except Unauthorized:
            return False
        return True

    async def upgrade(self, inbound: Inbound, ask: Callable[[UpstreamRequest], Awaitable[T]]) -> T | Outbound:
        """What `ask` makes of an upgrade to a WebSocket, as it leaves; or an error in the client's own shape. Only the
        opening is recorded."""
        course, fields = _RequestProgress(self.clock.monotonic()), inbound.fields
        try:
            caller = self.tenants.identify(fields)
            course.request = gauge = await self.measurer.measure(inbound, fields, caller, course.started_at)
            if not self.relays_websockets and inbound.path in self.measurer.protocols:
                raise UpgradeRefused("WebSockets are switched off here (`responses_websocket`). Ask over HTTP.")
            answer = await ask(self.sender.build_upstream_request(inbound, gauge))
        except AccordionError as error:
            return self._build_refusal(inbound, fields, course, error)
        except BaseException as reason:
            self._record_disconnect(inbound, fields, course, reason)
            raise
        course.status = answer.status if isinstance(answer, Outbound) else 101
        self._record_exchange_safely(inbound, fields, course, ObservedResponse())
        return answer

    def refuse(self, inbound: Inbound, error: AccordionError) -> Outbound:
        """The answer to a request that could not even be taken in."""
        return self._build_refusal(inbound, inbound.fields, _RequestProgress(self.clock.monotonic()), error)

    # -- answering ---------------------------------------------------------------

    def _build_refusal(
        self, inbound: Inbound, fields: Mapping[bytes, bytes], progress: _RequestProgress, error: AccordionError
    ) -> Outbound:
        """An error of ours: in the client's own shape, with a request id, and in the ledger."""
        progress.status, progress.error = error.status, error.code or error.type
        out = self.measurer.protocol_for(inbound.path, fields).error_response(error, inbound.request_id)
        if progress.request is None:
            return out
        self._record_exchange_safely(inbound, fields, progress, ObservedResponse())
        return replace(out, headers=out.headers + self._build_headers(progress.request))

    def _record_disconnect(
        self, inbound: Inbound, fields: Mapping[bytes, bytes], progress: _RequestProgress, exception: BaseException
    ) -> None:
        """The client went away before the provider answered, or the proxy is being stopped."""
        told = stop_error(exception)
        progress.status, progress.error = (told.status, told.code) if told else (499, "client_disconnected")
        self._record_exchange_safely(inbound, fields, progress, ObservedResponse())

    def _build_headers(self, request: RequestState) -> Headers:
        return build_headers(request, store_available=self.measurer.sessions.store.is_available)

    # -- remembering -------------------------------------------------------------

    async def _store_response(self, progress: _RequestProgress, observed_response: ObservedResponse) -> None:
        """Stores what a later request needs of the response."""
        if progress.request is not None:
            await self.response_history.store(
                progress.request,
                observed_response,
                _with_first_usage(progress, observed_response),
                progress.round_ids,
                progress.insertion,
            )
            progress.is_stored = True

    def _record_exchange_safely(
        self,
        inbound: Inbound,
        fields: Mapping[bytes, bytes],
        progress: _RequestProgress,
        observed_response: ObservedResponse,
    ) -> None:
        """Records the exchange, and learns from what the provider reported. Nobody waits for it, and its failure is
        nobody's."""
        if progress.request is None:
            return
        try:
            self._record_exchange(inbound, fields, progress.request, progress, observed_response)
        except Exception:
            _log.exception("an exchange could not be recorded", extra={"request_id": inbound.request_id})

    def _record_exchange(
        self,
        inbound: Inbound,
        fields: Mapping[bytes, bytes],
        request: RequestState,
        progress: _RequestProgress,
        observed_response: ObservedResponse,
    ) -> None:
        place = None if request.is_token_count else request.session_match
        exchange = Exchange(
            at=self.clock.now(),
            request_id=inbound.request_id,
            session=place.session.id if place else "",
            model=request.session_match.conversation.model[:LONGEST_NAME] if request.session_match else "",
            upstream=request.route.name,
            path=inbound.path,
            stream=place.conversation.stream if place else False,
            status=progress.status,
            messages=len(place.conversation.messages) if place else 0,
            utilization=request.utilization,
            decision=f"not read: it holds {request.unread}" if request.unread else request.decision.reason,
            usage=observed_response.usage,
            finish=observed_response.finish,
            error=progress.error or ("provider_error" if observed_response.error or progress.status >= 400 else ""),
            first_byte=progress.first_byte_at - progress.started_at if progress.first_byte_at else 0.0,
            duration=self.clock.monotonic() - progress.started_at,
            compaction=request.compaction_outcome,
            folding=progress.compaction_seconds,
            unfolded=progress.tool_loop_usage,
            recalled=request.recall_usage,
            agent=build_agent_report(request.visible_request),
        )
        tenant, traceparent = request.caller.tenant, fields.get(b"traceparent", b"").decode("latin-1")
        if place is None or self.erasures.was_erased_since(
            request.caller.tenant_key, place.session.id, progress.started_at
        ):
            # Of a session that was erased while the request was under way, nothing is kept.
            self.ledger.record(tenant, None, "", exchange, traceparent)
            return
        own = _with_first_usage(progress, observed_response)
        session = learn_from_response(self.measurer, request, place, progress.status, own)
        fold = request.compaction_id
        self._store_content(request, place, session.id)
        if (observed_response.items or self.named_items.waiting) and request.is_compactable:
            self.named_items.remember_items(
                request.caller.tenant_key, session.id, place.conversation, observed_response.items, progress.started_at
            )
        if (
            not progress.is_stored
            and progress.status < 400
            and (place.conversation.kept or progress.insertion is not None)
        ):
            if self.response_history.must_wait(request):
                # The client has gone before the end, and may come back.
                self.measurer.tasks.spawn(self._store_response(progress, observed_response), "store a response")
            else:
                self.response_history.store_later(request, observed_response, own, progress.round_ids)
        session = self.ledger.record(tenant, session, place.row_name, exchange, traceparent) or session
        self.measurer.sessions.record_response(place, session, own.input_tokens, request.uncorrected_tokens, fold)

    def _store_content(self, request: RequestState, session_match: SessionMatch, session: str) -> None:
        """Keeps what others may read of the request: the results in it, what was said, and what a fold took out."""
        seated, sharing = request.visible_request, self.measurer.visibility.shared_artifacts
        if seated is not None and seated.hidden_results and sharing is not None:
            sharing.archive_hidden_results(
                request.protocol.name,
                request.caller,
                seated.position,
                seated.client_conversation,
                seated.hidden_results,
                seated.owners,
            )
        self.response_history.record(request, session_match)
        if (
            self.memory_capture is not None
            and request.compaction_outcome is not None
            and request.compaction_outcome.state == "folded"
        ):
            made = request.history.compaction if request.history is not None else None
            if made is not None:
                self.memory_capture.enqueue(request.caller.tenant_key, session, made.covered, request.controls.project)


class _RequestProgress(ExchangeProgress):
    """With how far the request has come: what was known of it last. None before it was gauged."""

    request: RequestState | None = None
    is_stored: bool = False
    """Whether what a later request needs of the response was stored."""


def _with_first_usage(progress: ExchangeProgress, observed_response: ObservedResponse) -> ObservedResponse:
    """What was understood of a response, with the usage of its first round, which is that of the request as it was
    measured; the client is told of the last."""
    return (
        observed_response
        if progress.tool_loop_usage is None
        else replace(observed_response, usage=progress.tool_loop_usage.first)
    )
