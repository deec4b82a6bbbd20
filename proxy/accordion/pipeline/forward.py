"""Forwards one request: from the client's bytes to the provider's response and back.

The flow of a request whose body is read:

1. The caller is identified, and the body is read into a `Conversation` (measure.py).
2. The agent that sent the request is identified, and results that it may not see are hidden (visibility.py).
3. The session is found, earlier compactions are applied again, tokens are counted, and the policy decides (measure.py).
4. If a compaction is due and the provider keeps the history, the history replaces its id (history_reconstruction.py).
5. The request is compacted, and memories and excerpts are inserted; otherwise its bytes stay unchanged (compact.py).
6. The request is sent (send.py). If the provider reports an overflow, it is compacted and sent once more
   (overflow_probe.py).
7. The model's calls of our own tool are answered within the same response (tool_loop.py).
8. The response is relayed while an observer reads a copy (relay.py). The state that a later request needs is stored
   before the response ends (response_history.py).
9. The exchange is recorded in the ledger; calibration and learned limits are updated (calibration.py).

A request whose body is not read is only sent, relayed and recorded. If reading, measuring or compacting fails, the
request itself is still forwarded.
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
"""Maximum number of times that a request is repaired_request and sent again.

Each error of the provider names one missing entry.
"""

T = TypeVar("T")
_log = logging.getLogger("accordion")


@dataclass(frozen=True, slots=True)
class RequestPipeline:
    """Runs the steps of a request in order. Keeps no state between requests."""

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
    """None if the artifact tool is not offered."""
    response_retrieval: ResponseRetrieval | None = None
    """None if the artifact tool is not offered."""
    memory_capture: MemoryCapture | None = None
    """None if compactions create no memories."""
    relays_websockets: bool = True
    """Whether WebSockets are relayed for endpoints that are read when they are used over HTTP."""

    async def __call__(self, inbound: Inbound) -> Outbound:
        """Forwards a request; returns the provider's response, or an error in the client's own format."""
        progress, fields = _RequestProgress(self.clock.monotonic()), inbound.fields
        try:
            caller = self.tenants.identify(fields)
            progress.request = request = await self.measurer.measure(inbound, fields, caller, progress.started_at)
            response = await self._compact_and_send(inbound, progress, request)
        except AccordionError as error:
            return self._build_refusal(inbound, fields, progress, error)
        except BaseException as reason:
            self._record_disconnect(inbound, fields, progress, reason)
            raise
        request, progress.status = progress.request, response.status
        record = partial(self._record_exchange_safely, inbound, fields, progress)
        protocol = request.protocol if request.session_match is not None and not request.is_token_count else None
        store = (
            partial(self._store_response, progress)
            if response.status < 400 and self.response_history.must_wait(request)
            else None
        )
        body = relay(response, protocol, progress, self.clock, inbound.request_id, record, store)
        await anext(body)  # Closing the generator closes the response only once it has started.
        return Outbound(response.status, add_proxy_headers(response.headers, self._build_headers(request)), body)

    async def _compact_and_send(
        self, inbound: Inbound, progress: _RequestProgress, request: RequestState
    ) -> UpstreamResponse:
        """Compacts the request if that was decided, and sends it.

        Sends once more if the provider reports an overflow or refuses a reconstructed history. `progress.request` is
        always the request that was sent last. Raises ThreadNotFound if the client has to send its history again, and
        ContextOverflow if the request fits the window in no form.
        """
        if request.decision.action == "resend" and request.session_match is not None:
            raise ThreadNotFound(request.session_match.conversation.previous or "", request.decision.reason)
        summary_caller = partial(self.sender.build_summary_caller, inbound)
        started_at = self.clock.monotonic()
        progress.request = request = await self.history_reconstruction.compact(
            self.compaction_step, inbound, request, summary_caller
        )
        if request.compaction_outcome is not None and request.compaction_outcome.triggered:
            progress.compaction_seconds = self.clock.monotonic() - started_at
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
            # No provider can count these tokens. Our own count is the best available.
            return CompleteResponse(b'{"input_tokens":%d}' % request.utilization.tokens)
        progress.request = request = await self._restore_tool_rounds(request)
        if self.response_retrieval is not None and request.session_match is None:
            stored_response = await self.response_retrieval.retrieve(inbound, request, self.sender.send)
            if stored_response is not None:
                return stored_response
        if request.session_match is None or request.is_token_count:
            return await self.sender.send(inbound, request)
        start = await self._send_with_repairs(inbound, progress, request, summary_caller)
        request = progress.request
        if start.overflow is None and (request.original_request is None or start.response.status != 400):
            return (
                await self._run_tool_loop(inbound, request, progress, start.response)
                if request.tool_name
                else start.response
            )
        try:
            started_at = self.clock.monotonic()
            next_request = await self.history_reconstruction.retry(
                self.compaction_step, inbound, request, summary_caller, start.overflow
            )
            progress.compaction_seconds += self.clock.monotonic() - started_at
        except BaseException:
            await start.response.close()
            raise
        if next_request is None and (not request.releasable_thread or start.overflow is None or start.overflow.guessed):
            return start.response
        await start.response.close()
        if next_request is None:
            raise ThreadNotFound(request.releasable_thread, "the provider said that it does not fit its window")
        progress.request = next_request = await self._restore_tool_rounds(next_request)
        if start.overflow is None:
            return (
                await self._send_with_repairs(inbound, progress, next_request, summary_caller, allow_full_history=False)
            ).response
        return await self._run_tool_loop(inbound, next_request, progress, await self.sender.send(inbound, next_request))

    async def _send_with_repairs(
        self,
        inbound: Inbound,
        progress: _RequestProgress,
        request: RequestState,
        summary_caller: SummaryCallerFactory,
        *,
        allow_full_history: bool = True,
    ) -> ProbedResponse:
        """Sends a request; adds what the provider reports as missing behind a response id, and sends again.

        `allow_full_history`: whether a repair may send the whole history in place of the id. Returns the response with
        the beginning that was already read.
        """
        start = await probe_overflow(
            await self.sender.send(inbound, request), request.protocol, is_near_window=request.is_near_window
        )
        for _ in range(_MAX_REPAIRS):
            if start.response.status != 400 or not start.refusal:
                break
            repaired_request = await self.history_reconstruction.repair_missing_output(
                self.compaction_step,
                inbound,
                request,
                summary_caller,
                start.refusal,
                allow_full_history=allow_full_history,
            )
            if repaired_request is None:
                break
            await start.response.close()
            progress.request = request = repaired_request
            start = await probe_overflow(
                await self.sender.send(inbound, request), request.protocol, is_near_window=request.is_near_window
            )
        return start

    async def _restore_tool_rounds(self, request: RequestState) -> RequestState:
        """Adds the tool rounds of the response that the request continues from."""
        return request if self.tool_loop is None else await self.tool_loop.restore_rounds(request)

    async def _run_tool_loop(
        self, inbound: Inbound, request: RequestState, progress: ExchangeProgress, response: UpstreamResponse
    ) -> UpstreamResponse:
        """Answers the model's calls of our own tool within the response."""
        if self.tool_loop is None:
            return response
        return await self.tool_loop.run(response, request, partial(self.sender.send, inbound), progress)

    def needs_body(self, method: str, path: str, content_type: bytes) -> bool:
        """Returns whether the request's body is read, so that it must be complete."""
        if method != "POST":
            return False
        known = path in self.measurer.protocols or path in self.measurer.token_count_protocols
        return known or (bool(self.measurer.router.models) and b"json" in content_type)

    def authorizes(self, inbound: Inbound) -> bool:
        """Returns whether the caller may use the proxy at all."""
        try:
            self.tenants.identify(inbound.fields)
        except Unauthorized:
            return False
        return True

    async def upgrade(self, inbound: Inbound, ask: Callable[[UpstreamRequest], Awaitable[T]]) -> T | Outbound:
        """Passes a WebSocket upgrade to `ask`; returns its result, or an error in the client's own format.

        Only the opening request is recorded.
        """
        progress, fields = _RequestProgress(self.clock.monotonic()), inbound.fields
        try:
            caller = self.tenants.identify(fields)
            progress.request = request = await self.measurer.measure(inbound, fields, caller, progress.started_at)
            if not self.relays_websockets and inbound.path in self.measurer.protocols:
                raise UpgradeRefused("WebSockets are switched off here (`responses_websocket`). Ask over HTTP.")
            answer = await ask(self.sender.build_upstream_request(inbound, request))
        except AccordionError as error:
            return self._build_refusal(inbound, fields, progress, error)
        except BaseException as reason:
            self._record_disconnect(inbound, fields, progress, reason)
            raise
        progress.status = answer.status if isinstance(answer, Outbound) else 101
        self._record_exchange_safely(inbound, fields, progress, ObservedResponse())
        return answer

    def refuse(self, inbound: Inbound, error: AccordionError) -> Outbound:
        """Builds the error response to a request that could not be received."""
        return self._build_refusal(inbound, inbound.fields, _RequestProgress(self.clock.monotonic()), error)

    # -- answering ---------------------------------------------------------------

    def _build_refusal(
        self, inbound: Inbound, fields: Mapping[bytes, bytes], progress: _RequestProgress, error: AccordionError
    ) -> Outbound:
        """Builds one of our errors in the client's own format, with a request id, and records it in the ledger."""
        progress.status, progress.error = error.status, error.code or error.type
        out = self.measurer.protocol_for(inbound.path, fields).error_response(error, inbound.request_id)
        if progress.request is None:
            return out
        self._record_exchange_safely(inbound, fields, progress, ObservedResponse())
        return replace(out, headers=out.headers + self._build_headers(progress.request))

    def _record_disconnect(
        self, inbound: Inbound, fields: Mapping[bytes, bytes], progress: _RequestProgress, exception: BaseException
    ) -> None:
        """Records that the client disconnected before the provider answered, or that the proxy is stopping."""
        told = stop_error(exception)
        progress.status, progress.error = (told.status, told.code) if told else (499, "client_disconnected")
        self._record_exchange_safely(inbound, fields, progress, ObservedResponse())

    def _build_headers(self, request: RequestState) -> Headers:
        return build_headers(request, store_available=self.measurer.sessions.store.is_available)

    # -- recording ---------------------------------------------------------------

    async def _store_response(self, progress: _RequestProgress, observed_response: ObservedResponse) -> None:
        """Stores the state that a later request needs of the response."""
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
        """Records the exchange and learns from the provider's report.

        Runs after the response. Errors are logged and do not reach the client.
        """
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
        session_match = None if request.is_token_count else request.session_match
        exchange = Exchange(
            at=self.clock.now(),
            request_id=inbound.request_id,
            session=session_match.session.id if session_match else "",
            model=request.session_match.conversation.model[:LONGEST_NAME] if request.session_match else "",
            upstream=request.route.name,
            path=inbound.path,
            stream=session_match.conversation.stream if session_match else False,
            status=progress.status,
            messages=len(session_match.conversation.messages) if session_match else 0,
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
        if session_match is None or self.erasures.was_erased_since(
            request.caller.tenant_key, session_match.session.id, progress.started_at
        ):
            # Nothing is kept of a session that was erased during the request.
            self.ledger.record(tenant, None, "", exchange, traceparent)
            return
        measured = _with_first_usage(progress, observed_response)
        session = learn_from_response(self.measurer, request, session_match, progress.status, measured)
        fold = request.compaction_id
        self._store_content(request, session_match, session.id)
        if (observed_response.items or self.named_items.waiting) and request.is_compactable:
            self.named_items.remember_items(
                request.caller.tenant_key,
                session.id,
                session_match.conversation,
                observed_response.items,
                progress.started_at,
            )
        if (
            not progress.is_stored
            and progress.status < 400
            and (session_match.conversation.kept or progress.insertion is not None)
        ):
            if self.response_history.must_wait(request):
                # The client disconnected before the end of the response, and may come back.
                self.measurer.tasks.spawn(self._store_response(progress, observed_response), "store a response")
            else:
                self.response_history.store_later(request, observed_response, measured, progress.round_ids)
        session = self.ledger.record(tenant, session, session_match.row_name, exchange, traceparent) or session
        self.measurer.sessions.record_response(
            session_match, session, measured.input_tokens, request.uncorrected_tokens, fold
        )

    def _store_content(self, request: RequestState, session_match: SessionMatch, session: str) -> None:
        """Stores hidden results for the agents that may read them, the transcript, and memories of a compaction."""
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
    """Progress of an exchange, with the latest state of its request. `request` is None before it is measured."""

    request: RequestState | None = None
    is_stored: bool = False
    """Whether the state that a later request needs of the response was stored."""


def _with_first_usage(progress: ExchangeProgress, observed_response: ObservedResponse) -> ObservedResponse:
    """Returns the observed response with the usage of its first round.

    The first round's usage belongs to the request as it was measured. The client is given the usage of the last round.
    """
    return (
        observed_response
        if progress.tool_loop_usage is None
        else replace(observed_response, usage=progress.tool_loop_usage.first)
    )
