"""Replays a recorded conversation: measures each request as a running proxy would, and compares with reported usage."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass

from accordion.accounting.token_meter import TokenMeter
from accordion.cli.offline_pipeline import OfflinePipeline
from accordion.cli.recordings import AgentRequest, PastConversation
from accordion.model.budget import Decision, TokenLimits, Utilization, Window
from accordion.model.conversation import Conversation
from accordion.model.http import Inbound
from accordion.model.records import ObservedResponse
from accordion.pipeline.request import MeasuredRequest, PassthroughRequest

HEADERS = ((b"content-type", b"application/json"),)
_UNMEASURED, UNREAD = Utilization(0), Decision("pass", "not read")


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
    preamble_tokens = await estimate_preamble(recorded, pipeline, model)
    headers = (*HEADERS, *recorded.headers)
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
            unchanged=unchanged_share(pipeline.token_meter, measured, previous) if measured else 0.0,
            decision=measured.decision if measured else UNREAD,
            session=measured.session_match.session.id if measured else "",
            window=measured.window if measured else None,
            limits=measured.limits if measured else None,
            reported=_reported_input(request),
        )
        previous, previous_tokens = conversation, measured.utilization.tokens if measured else 0
        if learn and measured is not None:
            learn_usage(pipeline, measured, request)


async def estimate_preamble(recorded: PastConversation, pipeline: OfflinePipeline, model: str | None) -> int:
    """Estimates the tokens of the system prompt and the tools; 0 if they are on record, or nothing was reported.

    They are what the first report has beyond our own count of the messages.
    """
    if recorded.has_preamble:
        return 0
    request = next((request for request in recorded.requests(model) if request.usage is not None), None)
    if request is None or request.usage is None:
        return 0
    headers = (*HEADERS, *recorded.headers, (b"x-accordion-session", b"replay-preamble"))
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


def unchanged_share(token_meter: TokenMeter, request: MeasuredRequest, previous: Conversation | None) -> float:
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


def learn_usage(pipeline: OfflinePipeline, measured: MeasuredRequest, request: AgentRequest) -> None:
    """Does what pipeline/record.py does at the end of a response, with a response that has the recorded usage."""
    if request.usage is None:
        return
    recorder = pipeline.forward.responder.recorder
    session = recorder.calibrator.learn(measured, 200, ObservedResponse(usage=request.usage))
    recorder.sessions.record_response(measured.session_match, session, request.usage.input, measured.uncorrected_tokens)
