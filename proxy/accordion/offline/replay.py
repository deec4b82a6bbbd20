"""A recorded conversation, request by request, through the rooms that a live one passes."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from accordion.core.budget import Decision, Limits, Utilization, Window
from accordion.core.conversation import Conversation
from accordion.core.http import Inbound
from accordion.gauge import Gauging
from accordion.gauged import Gauge
from accordion.identity.sessions import Place
from accordion.learning import learnt
from accordion.offline.rooms import Rooms
from accordion.offline.transcripts import Request, Transcript, requests

PATH = "/v1/chat/completions"
HEADERS = ((b"content-type", b"application/json"),)


@dataclass(frozen=True, slots=True)
class Measured:
    """One request as it was gauged. Counts in tokens; `number` counts requests and `turn` turns from 1.

    `window` and `limits` are None where the body could not be read (it would be forwarded all the same).
    `new` is what came on top of the request before. `unchanged` is the share of this request that stands at its
    beginning as it stood in the request before: what a provider may have in its cache. `reported` is the provider's own
    count of the input, 0 where the transcript has none.
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
    limits: Limits | None = None
    reported: int = 0

    @property
    def tokens(self) -> int:
        """The estimate of the whole input."""
        return self.utilization.tokens


async def replay(
    transcript: Transcript, rooms: Rooms, *, model: str | None = None, learn: bool = False
) -> AsyncIterator[Measured]:
    """Gauges every request of a transcript in order. With `learn`, what the provider reported for a request is learnt
    before the next one is gauged, as live."""
    caller, before, last, turn = rooms.caller, None, 0, 0
    for number, request in enumerate(requests(transcript, model), 1):
        inbound = Inbound("POST", PATH, "", HEADERS, request.body, f"replay-{number}")
        gauge = await rooms.gauging.gauge(inbound, inbound.fields, caller)
        conversation = gauge.place.conversation if gauge.place else None
        starts = conversation is not None and conversation.starts_turn
        turn += starts or not turn
        yield Measured(
            number=number,
            turn=turn,
            starts_turn=starts,
            messages=request.index,
            model=conversation.model if conversation else "",
            utilization=gauge.utilization,
            counted=gauge.counted,
            new=gauge.utilization.tokens - last,
            unchanged=unchanged(rooms.gauging, gauge, before, conversation),
            decision=gauge.decision,
            session=gauge.place.session.id if gauge.place else "",
            window=gauge.window,
            limits=gauge.limits,
            reported=_reported(request),
        )
        before, last = conversation, gauge.utilization.tokens
        if learn and gauge.place is not None:
            _learn(rooms.gauging, gauge, gauge.place, request)


@dataclass(frozen=True, slots=True)
class Spread:
    """How far off estimates were: relative errors without their sign."""

    requests: int
    median: float
    p90: float
    most: float


def spread(errors: Iterable[float]) -> Spread:
    """The spread of errors; quantiles are values that occurred (nearest rank)."""
    ordered = sorted(map(abs, errors))
    if not ordered:
        return Spread(0, 0.0, 0.0, 0.0)
    return Spread(len(ordered), _rank(ordered, 0.5), _rank(ordered, 0.9), ordered[-1])


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How far the plain count, the corrected estimate, and that of all but first requests of conversations were off."""

    name: str
    plain: Spread
    corrected: Spread
    later: Spread


def accuracy(name: str, rows: Iterable[Measured]) -> Accuracy:
    """The errors of all requests that the provider reported the input of, under a name for them."""
    reported = [row for row in rows if row.reported and row.limits]
    return Accuracy(
        name,
        plain=spread(row.counted / row.reported - 1 for row in reported),
        corrected=spread(row.tokens / row.reported - 1 for row in reported),
        later=spread(row.tokens / row.reported - 1 for row in reported if row.number > 1),
    )


def cacheable(rows: Sequence[Measured]) -> float:
    """The share of all input of `rows` that stood unchanged in the request before."""
    total = sum(row.tokens for row in rows)
    return sum(row.tokens * row.unchanged for row in rows) / total if total else 0.0


def _rank(ordered: list[float], share: float) -> float:
    return ordered[math.ceil(share * len(ordered)) - 1]


def _reported(request: Request) -> int:
    return int(request.usage["prompt_tokens"]) if request.usage else 0


def unchanged(gauging: Gauging, gauge: Gauge, before: Conversation | None, now: Conversation | None) -> float:
    """The share of a request, as it came, that stands at its beginning as it stood in the one before."""
    if before is None or now is None or not gauge.counted or before.overhead_key != now.overhead_key:
        return 0.0
    same = min(len(before.chain), len(now.chain))
    while same and before.chain[same - 1] != now.chain[same - 1]:
        same -= 1
    return 1.0 - gauging.meter.after(now, same - 1, gauge.model).tokens / gauge.counted


def _learn(gauging: Gauging, gauge: Gauge, place: Place, request: Request) -> None:
    """What forward.py does at the end of a reply, with a reply that holds the recorded usage."""
    if not request.usage:
        return
    tap = gauge.dialect.tap(stream=False)
    tap.feed(msgspec.json.encode({"object": "chat.completion", "choices": [], "usage": request.usage}))
    seen = tap.seen()
    session = learnt(gauging, gauge, place, 200, seen)
    gauging.sessions.settle(place, session, seen.usage.input if seen.usage else 0, gauge.counted)
