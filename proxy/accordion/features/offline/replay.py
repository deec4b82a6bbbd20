"""Replays a recorded conversation as a running proxy would receive it.

`replay` measures each request, and compares with reported usage. `replay_with_compaction` also compacts: it has the
original and the forwarded size of each request, and its cost.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from accordion.accounting.cost_model import AUTOMATIC, USUAL_RATES, CacheRules, input_cost
from accordion.accounting.token_meter import TokenMeter
from accordion.features.offline.offline_pipeline import OfflinePipeline
from accordion.features.offline.recordings import AgentRequest, PastConversation
from accordion.model.budget import Decision, TokenLimits, Utilization, Window
from accordion.model.compaction import without_compaction
from accordion.model.conversation import Conversation
from accordion.model.costs import CachedPrompt
from accordion.model.http import Inbound
from accordion.model.plan import WRITTEN_BY_COMPACTION
from accordion.model.records import CompactionOutcome, ObservedResponse, Usage
from accordion.pipeline.prompt_cache import find_cache_rules
from accordion.pipeline.request import MeasuredRequest, PassthroughRequest, PreparedRequest
from accordion.protocols.json_spans import FIELDS

_HEADERS = ((b"content-type", b"application/json"),)
_UNMEASURED, UNREAD = Utilization(0), Decision("pass", "not read")
_EMPTY_UTILIZATION = Utilization(0)
_LIST = msgspec.json.Decoder(list[msgspec.Raw])


@dataclass(frozen=True, slots=True)
class ReplayMeasurement:
    """A measured request. Counts are in tokens; `number` counts requests and `turn` turns from 1.

    `window` and `limits` are None if the body could not be parsed (it would be forwarded all the same). `new` are the
    tokens added since the previous request. `unchanged` is the share of the request that repeats the beginning of the
    previous one: a provider may have it in its cache. `reported` is the provider's count of the input, 0 if the
    transcript has none.
    """

    number: int
    turn: int
    starts_turn: bool
    messages: int
    model: str
    utilization: Utilization
    counted: int
    new: int
    unchanged: float
    decision: Decision
    session: str = ""
    window: Window | None = None
    limits: TokenLimits | None = None
    reported: int = 0

    @property
    def tokens(self) -> int:
        """The estimated tokens of the whole input."""
        return self.utilization.tokens


async def replay(
    recorded: PastConversation, pipeline: OfflinePipeline, *, model: str | None = None, learn: bool = False
) -> AsyncIterator[ReplayMeasurement]:
    """Measures every request of a conversation in order.

    With `learn`, the calibration learns from a request's reported usage before the next one, as in a running proxy.
    """
    caller, previous, previous_tokens, turn = pipeline.caller, None, 0, 0
    preamble_tokens = await _estimate_preamble(recorded, pipeline, model)
    headers = (*_HEADERS, *recorded.headers)
    for number, request in enumerate(recorded.requests(model, preamble_tokens), 1):
        inbound = Inbound("POST", recorded.path, "", headers, request.body, f"replay-{number}")
        received = await pipeline.forward.reader.read(inbound, caller)
        measured = None if isinstance(received, PassthroughRequest) else received
        conversation = measured.conversation if measured else None
        starts_turn = conversation is not None and conversation.starts_turn
        turn += starts_turn or not turn
        yield ReplayMeasurement(
            number=number,
            turn=turn,
            starts_turn=starts_turn,
            messages=request.index,
            model=conversation.model if conversation else "",
            utilization=measured.utilization if measured else _UNMEASURED,
            counted=measured.uncorrected_tokens if measured else 0,
            new=(measured.utilization.tokens if measured else 0) - previous_tokens,
            unchanged=_unchanged_share(pipeline.token_meter, measured, previous) if measured else 0.0,
            decision=measured.decision if measured else UNREAD,
            session=measured.session_match.session.id if measured else "",
            window=measured.window if measured else None,
            limits=measured.limits if measured else None,
            reported=_reported_input(request),
        )
        previous, previous_tokens = conversation, measured.utilization.tokens if measured else 0
        if learn and measured is not None:
            _learn_usage(pipeline, measured, request)


async def _estimate_preamble(recorded: PastConversation, pipeline: OfflinePipeline, model: str | None) -> int:
    """Estimates the tokens of the system prompt and the tools; 0 if they are on record, or nothing was reported.

    They are what the first report has beyond our own count of the messages.
    """
    if recorded.has_preamble:
        return 0
    request = next((request for request in recorded.requests(model) if request.usage is not None), None)
    if request is None or request.usage is None:
        return 0
    headers = (*_HEADERS, *recorded.headers, (b"x-accordion-session", b"replay-preamble"))
    inbound = Inbound("POST", recorded.path, "", headers, request.body, "replay-preamble")
    measured = await pipeline.forward.reader.read(inbound, pipeline.caller)
    counted = 0 if isinstance(measured, PassthroughRequest) else measured.uncorrected_tokens
    return max(0, request.usage.input - counted)


@dataclass(frozen=True, slots=True)
class ErrorSpread:
    """The spread of absolute relative errors."""

    requests: int
    median: float
    p90: float
    largest: float


def error_spread(errors: Iterable[float]) -> ErrorSpread:
    """Computes the spread of errors. Quantiles are by nearest rank."""
    ordered = sorted(map(abs, errors))
    if not ordered:
        return ErrorSpread(0, 0.0, 0.0, 0.0)
    return ErrorSpread(len(ordered), _rank(ordered, 0.5), _rank(ordered, 0.9), ordered[-1])


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The errors of the plain count, of the corrected estimate, and of the latter without first requests."""

    name: str
    plain: ErrorSpread
    corrected: ErrorSpread
    later: ErrorSpread


def measure_accuracy(name: str, rows: Iterable[ReplayMeasurement]) -> Accuracy:
    """Computes the errors of all requests with reported usage. `name` labels them."""
    reported_rows = [row for row in rows if row.reported and row.limits]
    return Accuracy(
        name,
        plain=error_spread(row.counted / row.reported - 1 for row in reported_rows),
        corrected=error_spread(row.tokens / row.reported - 1 for row in reported_rows),
        later=error_spread(row.tokens / row.reported - 1 for row in reported_rows if row.number > 1),
    )


def cacheable_share(rows: Sequence[ReplayMeasurement]) -> float:
    """Returns the share of the input that repeats the beginning of the previous request."""
    total = sum(row.tokens for row in rows)
    return sum(row.tokens * row.unchanged for row in rows) / total if total else 0.0


def _rank(ordered: list[float], share: float) -> float:
    return ordered[math.ceil(share * len(ordered)) - 1]


def _reported_input(request: AgentRequest) -> int:
    return request.usage.input if request.usage else 0


def _unchanged_share(token_meter: TokenMeter, request: MeasuredRequest, previous: Conversation | None) -> float:
    """Returns the share of an unmodified request that repeats the beginning of the previous one."""
    conversation = request.conversation
    if previous is None or not request.uncorrected_tokens or previous.overhead_key != conversation.overhead_key:
        return 0.0
    shared_count = min(len(previous.chain), len(conversation.chain))
    while shared_count and previous.chain[shared_count - 1] != conversation.chain[shared_count - 1]:
        shared_count -= 1
    return (
        1.0
        - token_meter.count_after(conversation, shared_count - 1, request.actual_model).tokens
        / request.uncorrected_tokens
    )


def _learn_usage(pipeline: OfflinePipeline, measured: MeasuredRequest, request: AgentRequest) -> None:
    """Does what pipeline/record.py does at the end of a response, with a response that has the recorded usage."""
    if request.usage is None:
        return
    recorder = pipeline.forward.responder.recorder
    session = recorder.calibrator.learn(measured, 200, ObservedResponse(usage=request.usage))
    recorder.sessions.record_response(measured.session_match, session, request.usage.input, measured.uncorrected_tokens)


def _record_request(pipeline: OfflinePipeline, prepared: PreparedRequest, request: AgentRequest, learns: bool) -> None:
    """Does the same for a request that may have been compacted, so that the next one knows the prompt cache.

    The recorded report is of what was sent as long as that is the client's own list; it is learned if `learns`. Else
    our count takes its place.
    """
    learns = learns and prepared.rewritten_body is None
    if request.usage is None or not (request.at or learns):
        return
    recorder, match, tokens = pipeline.forward.responder.recorder, prepared.session_match, prepared.utilization.tokens
    session = match.session
    if learns:
        session = recorder.calibrator.learn(prepared, 200, ObservedResponse(usage=request.usage))
        tokens = request.usage.input
    recorder.sessions.record_response(
        match,
        session,
        tokens,
        prepared.uncorrected_tokens,
        prepared.compaction_id,
        CachedPrompt(tokens, tokens, request.at) if request.at else None,
        covered_count=prepared.history.covered_count,
    )


# -- with compaction --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RequestSize:
    """The size of an original or forwarded request: utilization, entries of its list, and cacheable tokens.

    `cached` tokens repeat the beginning of the previous request, so a provider may have them in its cache.
    """

    utilization: Utilization = _EMPTY_UTILIZATION
    messages: int = 0
    cached: int = 0

    @property
    def tokens(self) -> int:
        """The tokens of the whole input."""
        return self.utilization.tokens

    @property
    def cost(self) -> float:
        """The cost in uncached tokens; a cached token counts a tenth."""
        return input_cost(USUAL_RATES, self.tokens, self.cached)


@dataclass(frozen=True, slots=True)
class CompactedRequest:
    """A replayed request. `original` is the size of the client's list, `forwarded` that of the forwarded one.

    `window` and `limits` are None if the body could not be parsed; then it is forwarded unchanged and not counted.
    `refused` says why nothing was sent. `extends_previous` says whether the forwarded request begins with the whole
    previous one, byte for byte; None without a previous one, or if the client's own list does not. `tool_name` is the
    name of the proxy's tool if offered, `tool_tokens` its size; `added_tool_tokens` is the same, but only for the first
    request with the tool.
    """

    number: int
    turn: int
    starts_turn: bool
    model: str
    session: str
    original: RequestSize
    forwarded: RequestSize
    decision: Decision
    outcome: CompactionOutcome | None = None
    window: Window | None = None
    limits: TokenLimits | None = None
    refused: str = ""
    extends_previous: bool | None = None
    tool_name: str = ""
    tool_tokens: int = 0
    added_tool_tokens: int = 0
    reported: Usage | None = None
    """The provider's report of the recorded request."""
    at: float = 0.0
    """The time of the recorded request, in seconds since the epoch; 0 if it is not known."""
    cache_rules: CacheRules = AUTOMATIC

    @property
    def steps(self) -> tuple[tuple[str, int], ...]:
        """The tokens that each strategy removed in this request's compaction.

        The record's first step includes the tokens of the new tool, which are added back here.
        """
        if self.outcome is None or self.state != "compacted":
            return ()
        steps = [(name, before - after) for name, before, after in self.outcome.steps]
        return tuple(
            (name, removed + (0 if position else self.added_tool_tokens))
            for position, (name, removed) in enumerate(steps)
        )

    @property
    def state(self) -> str:
        """`unread`, `refused`, `as it came`; or its compaction's state `compacted`, `replayed`, `observed`,
        `failed`."""
        if self.limits is None:
            return "unread"
        if self.refused or self.outcome is None:
            return "refused" if self.refused else "as it came"
        return "failed" if self.outcome.failure else self.outcome.state

    @property
    def is_prefix_broken(self) -> bool:
        """Whether the beginning changed without a new compaction, which must never happen."""
        return self.extends_previous is False and self.state != "compacted"


@dataclass(frozen=True, slots=True)
class _ForwardedBody:
    """A forwarded body: its message list, and all other fields.

    Providers put the tools, one of these fields, before the system prompt: changed tools invalidate the whole cache.
    """

    other_fields: Mapping[str, bytes]
    message_list: bytes
    entries: tuple[bytes, ...]

    def is_prefix_of(self, other: _ForwardedBody) -> bool:
        """Whether `other` begins with the whole of this."""
        own_entries, other_list = self.message_list.rstrip()[:-1].rstrip(), other.message_list
        follows = other_list[len(own_entries) : len(own_entries) + 1]
        return (
            self.other_fields == other.other_fields
            and other_list.startswith(own_entries)
            and follows in (b",", b"]", b" ", b"\n")
        )

    def count_shared(self, other: _ForwardedBody) -> int:
        """Counts the common first entries; -1 if another field differs, such as the tools."""
        if self.other_fields != other.other_fields:
            return -1
        count = 0
        for entry, other_entry in zip(self.entries, other.entries, strict=False):
            if entry != other_entry:
                break
            count += 1
        return count


async def replay_with_compaction(
    recorded: PastConversation, pipeline: OfflinePipeline, *, model: str | None = None
) -> AsyncIterator[CompactedRequest]:
    """Runs every request of a transcript in order through the pipeline, with compactions.

    Each conversation gets a session label, as from a client, since conversations may begin alike.
    """
    turn = 0
    previous_body: _ForwardedBody | None = None
    previous_conversation: Conversation | None = None
    has_offered_tool = False
    headers = (*_HEADERS, *recorded.headers, (b"x-accordion-session", _label(recorded)))
    preamble_tokens = await _estimate_preamble(recorded, pipeline, model)
    for number, request in enumerate(recorded.requests(model, preamble_tokens), 1):
        inbound = Inbound("POST", recorded.path, "", headers, request.body, f"replay-{number}")
        pipeline.recorded_at = request.at
        measured = await pipeline.forward.reader.read(inbound, pipeline.caller)
        turn += (isinstance(measured, MeasuredRequest) and measured.conversation.starts_turn) or not turn
        if isinstance(measured, PassthroughRequest):
            previous_body, previous_conversation = None, None
            yield CompactedRequest(number, turn, False, "", "", RequestSize(), RequestSize(), UNREAD)
            continue
        original_size = await _original_size(pipeline, measured, previous_conversation, request.index)
        is_continued = previous_conversation is None or _continues(measured.conversation, previous_conversation)
        previous_conversation = measured.conversation
        forwarded_size, extends_previous, tool_tokens, added_tool_tokens = RequestSize(), None, 0, 0
        prepared = await pipeline.forward.prepare(measured)
        refusal = prepared.decision.reason if prepared.decision.action == "refuse" else ""
        if not refusal:
            body = _read_forwarded(prepared)
            if previous_body is not None and is_continued:
                extends_previous = previous_body.is_prefix_of(body)
            shared_count = previous_body.count_shared(body) if previous_body is not None else -1
            cached_tokens = _count_cached(pipeline, prepared, shared_count, len(body.entries))
            forwarded_size = RequestSize(prepared.utilization, len(body.entries), cached_tokens)
            previous_body = body
            if prepared.tool_name:
                tool_tokens = forwarded_size.utilization.tools - original_size.utilization.tools
                added_tool_tokens, has_offered_tool = 0 if has_offered_tool else tool_tokens, True
        yield CompactedRequest(
            number=number,
            turn=turn,
            starts_turn=measured.conversation.starts_turn,
            model=measured.conversation.model,
            session=prepared.session_match.session.id,
            original=original_size,
            forwarded=forwarded_size,
            decision=prepared.decision,
            outcome=prepared.compaction_outcome,
            window=prepared.window,
            limits=prepared.limits,
            refused=refusal,
            extends_previous=extends_previous,
            tool_name="" if refusal else prepared.tool_name,
            tool_tokens=tool_tokens,
            added_tool_tokens=added_tool_tokens,
            reported=request.usage,
            at=request.at,
            cache_rules=find_cache_rules(prepared),
        )
        _record_request(pipeline, prepared, request, learns=not recorded.has_preamble)


def _continues(conversation: Conversation, previous: Conversation) -> bool:
    """Whether the client's list begins with the whole previous one. It does not where a user goes back."""
    count = len(previous.chain)
    return not count or (len(conversation.chain) >= count and conversation.chain[count - 1] == previous.chain[-1])


async def _original_size(
    pipeline: OfflinePipeline, request: MeasuredRequest, previous: Conversation | None, messages: int
) -> RequestSize:
    """Returns the size of the whole list without any compaction."""
    list_meter = pipeline.forward.reader.measurer.list_meter
    composed = await list_meter.compose_and_count(request, without_compaction(request.conversation))
    repeated_share = _unchanged_share(pipeline.token_meter, composed, previous)
    return RequestSize(composed.utilization, messages, round(repeated_share * composed.utilization.tokens))


def _label(recorded: PastConversation) -> bytes:
    source = f"{recorded.file}:{recorded.line}".encode(errors="surrogateescape")
    return b"replay-" + hashlib.sha256(source).hexdigest()[:24].encode()


def _read_forwarded(request: PreparedRequest) -> _ForwardedBody:
    fields = {name: bytes(value) for name, value in FIELDS.decode(request.forwarded_body).items()}
    message_list = fields.pop(request.protocol.messages_field)
    return _ForwardedBody(fields, message_list, tuple(bytes(value) for value in _LIST.decode(message_list)))


def _count_cached(pipeline: OfflinePipeline, request: PreparedRequest, shared_count: int, entry_count: int) -> int:
    """Returns the tokens of the first `shared_count` entries, with everything before the list."""
    compacted = request.forwarded_history
    if not request.uncorrected_tokens or shared_count < len(compacted.conversation.lead):
        return 0
    conversation, index = compacted.conversation, shared_count - len(compacted.conversation.lead)
    if WRITTEN_BY_COMPACTION in compacted.origins and index >= compacted.origins.index(WRITTEN_BY_COMPACTION):
        # A block that was merged into the next message is no entry of its own.
        index += len(conversation.messages) + len(conversation.lead) - entry_count
    later_tokens = pipeline.token_meter.count_after(conversation, index - 1, request.actual_model).tokens
    return round((1.0 - later_tokens / request.uncorrected_tokens) * request.utilization.tokens)


@dataclass(frozen=True, slots=True)
class ReplayTotals:
    """The totals of many requests. Tokens and costs are those of sent requests, before and after compaction.

    `states` counts requests by their state, `took` are the tokens that each strategy removed. `offered` counts the
    requests with the proxy's tool, `tool` are its tokens in all of them, a part of `sent`. `over` counts the requests
    that would not fit their window uncompacted, `still_over` those that were sent and do not.
    """

    requests: int = 0
    states: Mapping[str, int] = field(default_factory=dict)
    came: int = 0
    sent: int = 0
    came_cached: int = 0
    sent_cached: int = 0
    came_cost: float = 0.0
    sent_cost: float = 0.0
    took: Mapping[str, int] = field(default_factory=dict)
    offered: int = 0
    tool: int = 0
    over: int = 0
    still_over: int = 0
    broken: tuple[int, ...] = ()

    @property
    def cost(self) -> float:
        """The cost relative to sending everything."""
        return self.sent_cost / self.came_cost if self.came_cost else 1.0


def add_up(rows: Iterable[CompactedRequest]) -> ReplayTotals:
    """Computes the totals of requests."""
    rows = list(rows)
    forwarded_rows = [row for row in rows if row.limits is not None and not row.refused]
    removed_tokens: Counter[str] = Counter()
    for row in forwarded_rows:
        for name, tokens in row.steps:
            removed_tokens[name] += tokens
    return ReplayTotals(
        requests=len(rows),
        states=dict(Counter(row.state for row in rows)),
        came=sum(row.original.tokens for row in forwarded_rows),
        sent=sum(row.forwarded.tokens for row in forwarded_rows),
        came_cached=sum(row.original.cached for row in forwarded_rows),
        sent_cached=sum(row.forwarded.cached for row in forwarded_rows),
        came_cost=sum(row.original.cost for row in forwarded_rows),
        sent_cost=sum(row.forwarded.cost for row in forwarded_rows),
        took=dict(removed_tokens),
        offered=sum(bool(row.tool_name) for row in forwarded_rows),
        tool=sum(row.tool_tokens for row in forwarded_rows),
        over=sum(row.window is not None and row.original.tokens > row.window.usable_input for row in rows),
        still_over=sum(
            row.window is not None and row.forwarded.tokens > row.window.usable_input for row in forwarded_rows
        ),
        broken=tuple(row.number for row in rows if row.is_prefix_broken),
    )
