"""The last step: records an exchange after its response has ended, and learns from it.

The exchange goes to the ledger, the provider's report to calibration, and the hooks (response_hooks.py) get the request
and the response. Nothing is kept of a session that was erased during the request.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import msgspec
from msgspec.structs import replace

from accordion.accounting.cost_model import RequestCost
from accordion.accounting.holdout import update_entry
from accordion.accounting.key_limits import KeyUsageLedger
from accordion.accounting.ledger import Ledger
from accordion.archive.erasure_notices import ErasureNotices
from accordion.insertions.store import InsertionStore
from accordion.model.budget import Utilization
from accordion.model.cache import LONGEST_NAME
from accordion.model.conversation import ToolCall, canonical_arguments
from accordion.model.costs import Costs
from accordion.model.delegation import display_name
from accordion.model.http import Inbound
from accordion.model.ports import Clock, Tasks
from accordion.model.records import AgentReport, Exchange, ObservedCall, ObservedResponse
from accordion.pipeline.calibration import Calibrator
from accordion.pipeline.costs import CostCalculator
from accordion.pipeline.count import ForwardedListMeter
from accordion.pipeline.provider_items import ProviderItems
from accordion.pipeline.relay import ExchangeProgress
from accordion.pipeline.request import MeasuredRequest, PassthroughRequest, PreparedRequest, advance
from accordion.pipeline.response_history import ResponseHistory
from accordion.pipeline.response_hooks import ResponseHook
from accordion.pipeline.visibility import VisibleRequest
from accordion.protocols.base import WireProtocol
from accordion.protocols.response_parser import response_text
from accordion.sessions.prefix_nodes import StoredSum
from accordion.sessions.proxy_keys import ProxyKeyRecord
from accordion.sessions.session_names import SessionNames
from accordion.sessions.sessions import Sessions

_log = logging.getLogger("accordion")

_UNMEASURED = Utilization(0)
_MAX_LOGGED = 1_000
_LONGEST_COMPARED = 4_096
"""The longest arguments of a call that is compared with earlier ones, in characters: those of reads are short."""
_MAX_OWNERS = 16
"""Maximum number of owners of hidden results in a report."""
_MAX_READ_INLINE = 64 * 1024
"""The longest response whose text is read without a thread, in bytes."""
_SENDING_SECONDS = 0.02
"""The time that a long request takes to be sent. It is counted afterwards, so that both do not share a processor."""


class PendingCount(msgspec.Struct):
    """The count of a request that was sent with estimated tokens; `then` is called once it is complete."""

    is_complete: bool = False
    then: Callable[[], None] = lambda: None


class RequestProgress(ExchangeProgress, kw_only=True):
    """The progress of an exchange, with its request at the latest stage."""

    inbound: Inbound
    request: PassthroughRequest | MeasuredRequest | None = None
    """None before it is read. Once it was sent, the request that was sent last."""
    is_stored: bool = False
    """Whether the state that a later request needs of the response was stored."""
    ended_at: float = 0.0
    pending_count: PendingCount | None = None
    """None if the request was counted before it was sent."""


class ExchangeRecorder(msgspec.Struct, frozen=True):
    """Records exchanges."""

    ledger: Ledger
    clock: Clock
    tasks: Tasks
    erasures: ErasureNotices
    sessions: Sessions
    calibrator: Calibrator
    response_history: ResponseHistory
    provider_items: ProviderItems
    response_hooks: Sequence[ResponseHook]
    costs: CostCalculator
    key_usage: KeyUsageLedger
    list_meter: ForwardedListMeter
    sleep: Callable[[float], Awaitable[object]]
    """Waits for a number of seconds."""
    insertion_store: InsertionStore
    session_names: SessionNames
    unpriced_logged: set[tuple[str, str]] = msgspec.field(default_factory=set)
    """Keys and models for which a missing price was already logged."""

    def start_count(self, progress: RequestProgress, request: PreparedRequest) -> None:
        """Starts to count a request that is sent with estimated tokens. It is recorded when that is done."""
        if request.is_estimated:
            progress.pending_count = pending_count = PendingCount()
            self.tasks.spawn(self._count(request, pending_count), "count the tokens of a request")

    async def _count(self, request: PreparedRequest, pending_count: PendingCount) -> None:
        try:
            await self.sleep(_SENDING_SECONDS)
            await self.list_meter.count_estimated(request)
        finally:
            pending_count.is_complete = True
            pending_count.then()

    def record(self, progress: RequestProgress, observed_response: ObservedResponse) -> None:
        """Records the exchange, which has ended. Errors are logged and do not reach the client."""
        progress.ended_at, pending_count = self.clock.monotonic(), progress.pending_count
        if pending_count is None or pending_count.is_complete:
            self._record(progress, observed_response)
        else:
            # The provider was faster than the count.
            pending_count.then = partial(self._record, progress, observed_response)

    def _record(self, progress: RequestProgress, observed_response: ObservedResponse) -> None:
        request = progress.request
        try:
            if isinstance(request, PassthroughRequest):
                self._record_unread(request, progress, observed_response)
            elif request is not None:
                # A request that was refused may not have been prepared.
                prepared = request if isinstance(request, PreparedRequest) else advance(PreparedRequest, request)
                if progress.pending_count is not None and prepared.is_estimated:
                    progress.request = prepared = self.list_meter.recount(prepared)
                self._record_measured(prepared, progress, observed_response)
        except Exception:
            _log.exception("an exchange could not be recorded", extra={"request_id": progress.inbound.request_id})

    async def store_response(self, progress: RequestProgress, observed_response: ObservedResponse) -> None:
        """Stores the state that a later request needs of the response, before the response ends."""
        if isinstance(progress.request, PreparedRequest):
            reported_response = _with_first_usage(progress, observed_response)
            if not reported_response.input_tokens:
                # Our own count is stored in place of the provider's.
                progress.request = await self.list_meter.count_estimated(progress.request)
            await self.response_history.store(
                progress.request,
                observed_response,
                reported_response,
                progress.round_ids,
                progress.insertion,
            )
            progress.is_stored = True
            await self.provider_items.add_items(progress.request, observed_response)

    def _record_unread(
        self, request: PassthroughRequest, progress: RequestProgress, observed_response: ObservedResponse
    ) -> None:
        exchange = self._build_exchange(request, progress, observed_response, self.clock.now())
        if request.caller.is_anonymous:
            self.ledger.notify(request.caller.tenant, exchange, _traceparent(progress))
        else:
            self.ledger.record(request.caller.tenant, None, "", exchange, _traceparent(progress))

    def _record_measured(
        self, request: PreparedRequest, progress: RequestProgress, observed_response: ObservedResponse
    ) -> None:
        now = self.clock.now()
        cost = self.costs.compute(request, progress, observed_response, now)
        costs, cached = cost if cost is not None else (None, None)
        exchange = self._build_exchange(request, progress, observed_response, now, costs)
        tenant, match = request.caller.tenant, request.session_match
        if (key := request.caller.key) is not None:
            self._count_for_key(key, request, progress, observed_response, cost)
        if request.is_token_count or self.erasures.was_erased_since(
            request.caller.tenant, match.session.id, progress.started_at
        ):
            self.ledger.record(tenant, None, "", exchange, _traceparent(progress))
            return
        reported_response = _with_first_usage(progress, observed_response)
        session = self.calibrator.learn(request, progress.status, reported_response)
        if (assignment := request.holdout_assignment) is not None:
            repeated = _count_repeated_calls(request, observed_response)
            entry = update_entry(session.holdout, assignment, request.compared_group, exchange.model, repeated)
            session = replace(session, holdout=entry)
        session = self.session_names.add_title(tenant, session, match.conversation)
        for hook in self.response_hooks:
            hook.record(request, observed_response)
        self._store_after_end(request, progress, observed_response)
        if progress.status < 400 and not observed_response.error:
            self._record_names(request, progress.response_copy, observed_response)
        session = self.ledger.record(tenant, session, match.row_name, exchange, _traceparent(progress)) or session
        self.sessions.record_response(
            match,
            session,
            reported_response.input_tokens,
            request.uncorrected_tokens,
            request.compaction_id,
            cached,
            covered_count=request.history.covered_count,
            sums=self._find_sums(request),
            insertions=self.insertion_store.hash_insertions(
                request.ref, match.conversation.chain, request.history.covered_count
            ),
        )

    def _record_names(
        self, request: PreparedRequest, response_copy: bytes, observed_response: ObservedResponse
    ) -> None:
        """Records the names by which a later list is recognized without the end of this one, or by a summary of it; a
        long text is read in a thread first."""
        protocol, calls = request.protocol, observed_response.calls
        match, tenant = request.session_match, request.caller.tenant
        if request.client_metadata.is_client_compaction:
            calls = ()

            def record(_: Sequence[ObservedCall], text: str) -> None:
                self.sessions.record_client_summary(match, tenant, text)

        elif request.may_omit_end:
            record = partial(self.sessions.record_second_names, match, protocol, tenant)
        else:
            return
        if calls or len(response_copy) <= _MAX_READ_INLINE:
            record(calls, "" if calls else _read_text(protocol, response_copy))
            return

        async def read_and_record() -> None:
            text = await self.tasks.offload(_read_text, protocol, response_copy)
            if not self.erasures.was_erased_since(tenant, match.session.id, request.started_at):
                record((), text)

        self.tasks.spawn(read_and_record(), "read the text of a response")

    def _find_sums(self, request: PreparedRequest) -> tuple[StoredSum, ...]:
        """Returns the counts of the forwarded list, and of the one without insertions, for other workers."""
        forwarded, bare = request.forwarded_history.conversation, request.history.conversation
        sums, token_meter, model = list[StoredSum](), self.list_meter.token_meter, request.actual_model
        for conversation in (forwarded,) if forwarded.chain[-1:] == bare.chain[-1:] else (forwarded, bare):
            if (found := token_meter.find_sum(conversation, model)) is not None:
                rules, token_sum = found
                sums.append(StoredSum(conversation.chain[-1], rules, token_sum.text, token_sum.media))
        return tuple(sums)

    def _count_for_key(
        self,
        key: ProxyKeyRecord,
        request: PreparedRequest,
        progress: RequestProgress,
        observed_response: ObservedResponse,
        cost: RequestCost | None,
    ) -> None:
        """Counts an exchange for the caller's proxy key.

        Uses our own count if the provider reported nothing, as when the client disconnected during the response.
        """
        asks_model = progress.is_sent and not (request.is_token_count or request.needs_no_model)
        if observed_response.usage is None and asks_model and (progress.status < 400 or progress.is_interrupted):
            cost = self.costs.estimate(request, self.clock.now(), observed_response.characters)
        if cost is None:
            return
        self.key_usage.count(key.id, cost.costs)
        if cost.costs.unpriced and key.limits.dollars_per_day:
            self._warn_unpriced(key, request.conversation.model)

    def _warn_unpriced(self, key: ProxyKeyRecord, model: str) -> None:
        """Warns once for each key and model that its requests do not count towards the limit of dollars."""
        logged = self.unpriced_logged
        if (key.id, model) in logged or len(logged) >= _MAX_LOGGED:
            return
        logged.add((key.id, model))
        _log.warning(
            "the price of %s is not known: its requests do not count towards dollars_per_day of the proxy key %s. "
            "Set prices.models in the config, or tokens_per_day for the key",
            model[:LONGEST_NAME],
            key.id,
        )

    def _store_after_end(
        self, request: PreparedRequest, progress: RequestProgress, observed_response: ObservedResponse
    ) -> None:
        """Stores the state that a later request needs of the response, unless it was stored before the end."""
        if progress.is_stored or progress.status >= 400:
            return
        if not request.conversation.provider_state and progress.insertion is None:
            return
        if self.response_history.must_store_before_end(request):
            # The client disconnected before the end of the response, and may come back.
            self.tasks.spawn(self.store_response(progress, observed_response), "store a response")
        else:
            self.response_history.store_later(
                request, observed_response, _with_first_usage(progress, observed_response), progress.round_ids
            )

    def _build_exchange(
        self,
        request: PassthroughRequest | PreparedRequest,
        progress: RequestProgress,
        observed_response: ObservedResponse,
        now: float,
        costs: Costs | None = None,
    ) -> Exchange:
        inbound, measured = progress.inbound, None if isinstance(request, PassthroughRequest) else request
        session_match = None if measured is None or measured.is_token_count else measured.session_match
        failed = observed_response.error or progress.status >= 400
        return Exchange(
            at=now,
            request_id=inbound.request_id,
            session=session_match.session.id if session_match else "",
            model=measured.conversation.model[:LONGEST_NAME] if measured else "",
            upstream=request.route.name,
            path=inbound.path,
            stream=session_match.conversation.stream if session_match else False,
            status=progress.status,
            messages=len(session_match.conversation.messages) if session_match else 0,
            utilization=measured.utilization if measured else _UNMEASURED,
            decision=_describe_decision(request),
            usage=observed_response.usage,
            finish=observed_response.finish,
            error=progress.error or ("provider_error" if failed else ""),
            first_byte=progress.first_byte_at - progress.started_at if progress.first_byte_at else 0.0,
            duration=progress.ended_at - progress.started_at,
            compaction=measured.compaction_outcome if measured else None,
            compaction_seconds=progress.compaction_seconds,
            tool_loop=progress.tool_loop_usage,
            recall=measured.recall_usage if measured else None,
            costs=costs,
            agent=_build_agent_report(request.visible_request),
        )


def _read_text(protocol: WireProtocol, body: bytes) -> str:
    """Returns the text of a response."""
    is_stream = body.lstrip()[:1] not in (b"{", b"[")
    return response_text(protocol.parser(is_stream, reads_content=True), body)


def _describe_decision(request: PassthroughRequest | PreparedRequest) -> str:
    if isinstance(request, PreparedRequest):
        return request.decision.reason
    return f"not read: it holds {request.unread_content}" if request.unread_content else "not read"


def _count_repeated_calls(request: PreparedRequest, observed_response: ObservedResponse) -> int:
    """Counts the calls of a response that the client's own messages have already, with the same arguments.

    Messages that the provider keeps do not count: only a compaction puts them into requests, so that only the sessions
    that are compacted would have them. A thread has none to count.
    """
    conversation = (request.request_with_id or request).conversation
    calls = [call for call in observed_response.calls if len(call.arguments) <= _LONGEST_COMPARED]
    if not calls or conversation.provider_state == "thread":
        return 0
    names = {call.name for call in calls}
    earlier = {
        (part.name, canonical_arguments(part.arguments))
        for message in conversation.messages
        for part in message.parts
        if isinstance(part, ToolCall) and part.name in names and len(part.arguments) <= _LONGEST_COMPARED
    }
    return sum((call.name, canonical_arguments(call.arguments)) in earlier for call in calls)


def _traceparent(progress: RequestProgress) -> str:
    return progress.inbound.headers_by_name.get(b"traceparent", b"").decode("latin-1")


def _with_first_usage(progress: ExchangeProgress, observed_response: ObservedResponse) -> ObservedResponse:
    """Returns the observed response with the usage of its first round.

    The first round's usage belongs to the request as it was measured. The client is given the usage of the last round.
    """
    return (
        observed_response
        if progress.tool_loop_usage is None
        else replace(observed_response, usage=progress.tool_loop_usage.first)
    )


def _build_agent_report(visible_request: VisibleRequest | None) -> AgentReport | None:
    """Describes the agent that sent a request and the results hidden from it.

    Returns None for the main agent if it gives no information about itself.
    """
    if visible_request is None:
        return None
    position = visible_request.position
    if not (position.node or position.is_subagent or position.agent or position.candidates):
        return None
    owners = Counter(visible_request.owners.values())
    if len(visible_request.hidden_results) < len(visible_request.owners):
        # Some results could not be hidden.
        owners = Counter(visible_request.owners.get(each.result, "") for each in visible_request.hidden_results)
    return AgentReport(
        delegated=position.is_subagent,
        name=position.agent,
        delegation=display_name(position.node),
        parent=display_name(position.parent),
        evidence=position.evidence,
        candidates=position.candidates,
        hidden=len(visible_request.hidden_results),
        owners=tuple((display_name(node), count) for node, count in owners.most_common(_MAX_OWNERS)),
    )
