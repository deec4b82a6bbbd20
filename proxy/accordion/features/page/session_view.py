"""The values of a session's view: the points of its chart, its compactions, and the rows of its requests.

A row has a chip for each event, such as a compaction or a failure. What happens with most requests has a grey chip or
none, so that the events can be seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from accordion.compaction.session_overrides import SessionOverrides
from accordion.features.page.charts import MOST_COLUMNS, CurvePoint
from accordion.model.records import CompactionOutcome, Exchange
from accordion.pipeline.session_exchanges import NO_POSITION, ExchangePage, RequestPoint

ChipKind = Literal["quiet", "event", "good", "warn", "bad"]
"""The look of a chip: what happens with most requests, a change, a success, what may need attention, a failure."""

_USUAL = "under the "
"""A decision with these words is that of most requests: the window has enough space."""


class Chip(msgspec.Struct, frozen=True):
    """A few words about a request. `compaction` is the id of the compaction that they lead to."""

    kind: ChipKind
    text: str
    compaction: str = ""


class RequestRow(msgspec.Struct, frozen=True):
    """A request of the list. `reason` is empty where the decision is that of most requests."""

    number: int
    exchange: Exchange
    came: int
    chips: tuple[Chip, ...]
    reason: str

    @property
    def id(self) -> str:
        """The id of its element."""
        return f"r{self.number}" if self.number else f"r-{self.exchange.request_id}"


class CompactionRow(msgspec.Struct, frozen=True):
    """A compaction of the list; `number` counts from the oldest, `is_undone` says that somebody undid it, or that the
    provider refused it: then `refusal` has status and words."""

    number: int
    point: RequestPoint
    is_undone: bool
    refusal: str


def list_requests(page: ExchangePage) -> list[RequestRow]:
    """Returns the rows of a page of requests."""
    return [_build_row(each.position, each.exchange) for each in page.exchanges]


def _build_row(position: int, exchange: Exchange) -> RequestRow:
    outcome, used = exchange.compaction, exchange.utilization
    chips = tuple(_list_chips(exchange, used.tokens + (outcome.saved if outcome is not None else 0)))
    has_event = any(chip.kind not in ("quiet", "good") for chip in chips)
    reason = exchange.decision
    if outcome is not None and outcome.state in ("compacted", "failed", "observed", "holdout"):
        reason = outcome.reason or reason
    elif _USUAL in reason and not has_event:
        reason = ""
    came = used.tokens + (outcome.saved if outcome is not None else 0)
    return RequestRow(position + 1 if position != NO_POSITION else 0, exchange, came, chips, reason)


def _list_chips(exchange: Exchange, came: int) -> Iterator[Chip]:
    if exchange.error == "context_length_exceeded":
        yield Chip("bad", "refused: too long")
    elif exchange.error == "client_disconnected":
        yield Chip("warn", "the client left")
    elif exchange.status >= 400 or exchange.error:
        yield Chip("bad", f"failed: {exchange.status} {exchange.error.replace('_', ' ')}".strip())
    if exchange.compaction is not None:
        yield from _list_outcome_chips(exchange.compaction)
    if 0 < exchange.utilization.window < came and exchange.status < 400 and not exchange.error:
        yield Chip("good", "overflow avoided")
    if exchange.tool_loop is not None:
        calls = exchange.tool_loop.calls
        yield Chip("event", f"{calls:,} artifact{'s' if calls != 1 else ''} read back")
    if exchange.recall is not None:
        yield Chip("event", f"{exchange.recall.tokens:,} tokens recalled")


def _list_outcome_chips(outcome: CompactionOutcome) -> Iterator[Chip]:
    if outcome.state == "compacted":
        yield Chip("event", f"compacted: {outcome.before:,} to {outcome.after:,}", outcome.id)
    elif outcome.state == "replayed":
        yield Chip("quiet", "compacted earlier", outcome.id)
    elif outcome.is_observed_compaction:
        yield Chip("warn", f"would be compacted: {outcome.before:,} to {outcome.after:,}")
    elif outcome.state == "observed":
        yield Chip("quiet", "would not be compacted" if outcome.failure else "would stay compacted")
    elif outcome.state == "holdout":
        yield Chip("quiet", "due, not compacted")
    elif outcome.state == "failed":
        yield Chip("warn", "not compacted")


def list_compactions(points: Sequence[RequestPoint], overrides: SessionOverrides) -> list[CompactionRow]:
    """Returns the rows of a session's compactions, newest first."""
    made = [point for point in points if point.compaction]
    rows = [
        CompactionRow(number, point, point.compaction in overrides.undone, overrides.refusals.get(point.compaction, ""))
        for number, point in enumerate(made, 1)
    ]
    return rows[::-1]


def list_columns(points: Sequence[RequestPoint], url: str) -> list[CurvePoint]:
    """Returns the columns of a session's chart. Requests that were not measured have none.

    `url` is that of the session's view. A column has one request, or several in a long session.
    """
    measured = [point for point in points if point.sent]
    size = -(-len(measured) // MOST_COLUMNS) or 1
    return [_build_column(measured[at : at + size], url) for at in range(0, len(measured), size)]


def _build_column(points: Sequence[RequestPoint], url: str) -> CurvePoint:
    came, sent = max(point.came for point in points), max(point.sent for point in points)
    made = [point.compaction for point in points if point.compaction]
    last = points[-1]
    link = f"{url}?before={last.position + 1}#r{last.position + 1}" if last.position != NO_POSITION else ""
    title = _describe_column(points, came, sent, len(made))
    return CurvePoint(came, sent, made[0] if made else "", title, link, len(points), len(made))


def _describe_column(points: Sequence[RequestPoint], came: int, sent: int, compactions: int) -> str:
    first, last = points[0].position + 1, points[-1].position + 1
    share = f"{sent / max(1, points[-1].window):.1%} of the window"
    if len(points) == 1:
        name = f"Request {last}" if last else "A request"
        figures = f"{came:,} tokens came, {sent:,} were sent" if came != sent else f"{sent:,} tokens"
        return f"{name}: {figures}, {share}"
    made = f"; {compactions:,} compaction{'s' if compactions != 1 else ''}" if compactions else ""
    return f"Requests {first} to {last}: at most {came:,} tokens came and {sent:,} were sent, {share}{made}"
