"""Replays a recorded conversation with compaction: the original and forwarded size of each request, and its cost."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from accordion.cli.offline_pipeline import OfflinePipeline
from accordion.cli.replay import HEADERS, PATH, UNREAD, unchanged_share
from accordion.cli.transcripts import RecordedTranscript, requests
from accordion.model.budget import Decision, TokenLimits, Utilization, Window
from accordion.model.compaction import without_compaction
from accordion.model.conversation import Conversation
from accordion.model.http import Inbound
from accordion.model.plan import WRITTEN_BY_COMPACTION
from accordion.model.records import CompactionOutcome
from accordion.pipeline.request import MeasuredRequest, PassthroughRequest, PreparedRequest
from accordion.protocols.json_spans import FIELDS

CACHED = 0.1
"""The price of a cached input token relative to an uncached one; about what the big providers charge."""

_NOTHING = Utilization(0)
_LIST = msgspec.json.Decoder(list[msgspec.Raw])


@dataclass(frozen=True, slots=True)
class RequestSize:
    """The size of an original or forwarded request: utilization, entries of its list, and cacheable tokens.

    `cached` tokens repeat the beginning of the previous request, so a provider may have them in its cache.
    """

    used: Utilization = _NOTHING
    messages: int = 0
    cached: int = 0

    @property
    def tokens(self) -> int:
        """The tokens of the whole input."""
        return self.used.tokens

    @property
    def cost(self) -> float:
        """The cost in uncached tokens; a cached token counts a tenth."""
        return self.tokens - (1.0 - CACHED) * self.cached


@dataclass(frozen=True, slots=True)
class CompactedRequest:
    """A replayed request. `came` is the size of the client's list, `sent` that of the forwarded one.

    `window` and `limits` are None if the body could not be parsed; then it is forwarded unchanged and not counted.
    `refused` says why nothing was sent. `grown` says whether the forwarded request begins with the whole previous one,
    byte for byte; None without a previous one. `offered` is the name of the proxy's tool if offered, `tool` its tokens;
    `brought` is the same, but only for the first request with the tool.
    """

    number: int
    turn: int
    starts_turn: bool
    model: str
    session: str
    came: RequestSize
    sent: RequestSize
    decision: Decision
    seen: CompactionOutcome | None = None
    window: Window | None = None
    limits: TokenLimits | None = None
    refused: str = ""
    grown: bool | None = None
    offered: str = ""
    tool: int = 0
    brought: int = 0

    @property
    def steps(self) -> tuple[tuple[str, int], ...]:
        """The tokens that each strategy removed in this request's compaction.

        The record's first step includes the tokens of the new tool, which are added back here.
        """
        if self.seen is None or self.state != "folded":
            return ()
        steps = [(name, before - after) for name, before, after in self.seen.steps]
        return tuple((name, removed + (0 if place else self.brought)) for place, (name, removed) in enumerate(steps))

    @property
    def state(self) -> str:
        """`unread`, `refused`, `as it came`; or its compaction's state `folded`, `replayed`, `observed`, `failed`."""
        if self.limits is None:
            return "unread"
        return "refused" if self.refused else self.seen.state if self.seen is not None else "as it came"

    @property
    def is_prefix_broken(self) -> bool:
        """Whether the beginning changed without a new compaction, which must never happen."""
        return self.grown is False and self.state != "folded"


@dataclass(frozen=True, slots=True)
class _ForwardedBody:
    """A forwarded body: its message list, and all other fields.

    Providers put the tools, one of these fields, before the system prompt: changed tools invalidate the whole cache.
    """

    rest: Mapping[str, bytes]
    listed: bytes
    entries: tuple[bytes, ...]

    def is_prefix_of(self, other: _ForwardedBody) -> bool:
        """Whether `other` begins with the whole of this."""
        mine, theirs = self.listed.rstrip()[:-1].rstrip(), other.listed
        follows = theirs[len(mine) : len(mine) + 1]
        return self.rest == other.rest and theirs.startswith(mine) and follows in (b",", b"]", b" ", b"\n")

    def count_shared(self, other: _ForwardedBody) -> int:
        """Counts the common first entries; -1 if another field differs, such as the tools."""
        if self.rest != other.rest:
            return -1
        common = 0
        for mine, theirs in zip(self.entries, other.entries, strict=False):
            if mine != theirs:
                break
            common += 1
        return common


async def replay_with_compaction(
    recorded: RecordedTranscript, pipeline: OfflinePipeline, *, model: str | None = None
) -> AsyncIterator[CompactedRequest]:
    """Runs every request of a transcript in order through the pipeline, with compactions.

    Each conversation gets a session label, as from a client, since conversations may begin alike.
    """
    turn = 0
    last: _ForwardedBody | None = None
    before: Conversation | None = None
    offered = False
    headers = (*HEADERS, (b"x-accordion-session", _label(recorded)))
    for number, request in enumerate(requests(recorded.transcript, model), 1):
        inbound = Inbound("POST", PATH, "", headers, request.body, f"replay-{number}")
        measured = await pipeline.forward.read(inbound, pipeline.caller)
        turn += (isinstance(measured, MeasuredRequest) and measured.conversation.starts_turn) or not turn
        if isinstance(measured, PassthroughRequest):
            last, before = None, None
            yield CompactedRequest(number, turn, False, "", "", RequestSize(), RequestSize(), UNREAD)
            continue
        came = await _original_size(pipeline, measured, before, request.index)
        before, sent, grown, tool, brought = measured.conversation, RequestSize(), None, 0, 0
        state = await pipeline.forward.prepare(measured)
        refused = state.decision.reason if state.decision.action == "refuse" else ""
        if not refused:
            now = _read_forwarded(state)
            grown = last.is_prefix_of(now) if last is not None else None
            cached = _count_cached(pipeline, state, -1 if last is None else last.count_shared(now), len(now.entries))
            sent, last = RequestSize(state.utilization, len(now.entries), cached), now
            tool = sent.used.tools - came.used.tools if state.tool_name else 0
            brought, offered = 0 if offered else tool, offered or bool(state.tool_name)
        yield CompactedRequest(
            number, turn, before.starts_turn, before.model, state.session_match.session.id, came, sent,
            state.decision, state.compaction_outcome, state.window, state.limits, refused, grown,
            "" if refused else state.tool_name, tool, brought,
        )  # fmt: skip


async def _original_size(
    pipeline: OfflinePipeline, request: MeasuredRequest, before: Conversation | None, messages: int
) -> RequestSize:
    """Returns the size of the whole list without any compaction."""
    composer = pipeline.forward.measurer.composer
    whole = await composer.compose(request, without_compaction(request.conversation))
    unchanged = unchanged_share(pipeline.token_meter, whole, before)
    return RequestSize(whole.utilization, messages, round(unchanged * whole.utilization.tokens))


def _label(recorded: RecordedTranscript) -> bytes:
    place = f"{recorded.file}:{recorded.line}".encode(errors="surrogateescape")
    return b"replay-" + hashlib.sha256(place).hexdigest()[:24].encode()


def _read_forwarded(state: PreparedRequest) -> _ForwardedBody:
    fields = {name: bytes(raw) for name, raw in FIELDS.decode(state.forwarded_body).items()}
    listed = fields.pop(state.protocol.messages_field)
    return _ForwardedBody(fields, listed, tuple(bytes(raw) for raw in _LIST.decode(listed)))


def _count_cached(pipeline: OfflinePipeline, state: PreparedRequest, shared: int, entries: int) -> int:
    """Returns the tokens of the first `shared` entries, with everything before the list."""
    compacted = state.forwarded_history
    if not state.uncorrected_tokens or shared < len(compacted.conversation.lead):
        return 0
    conversation, first = compacted.conversation, shared - len(compacted.conversation.lead)
    if WRITTEN_BY_COMPACTION in compacted.origins and first >= compacted.origins.index(WRITTEN_BY_COMPACTION):
        # A block that was merged into the next message is no entry of its own.
        first += len(conversation.messages) + len(conversation.lead) - entries
    behind = pipeline.token_meter.count_after(conversation, first - 1, state.actual_model).tokens
    return round((1.0 - behind / state.uncorrected_tokens) * state.utilization.tokens)


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
    sent_rows = [row for row in rows if row.limits is not None and not row.refused]
    removed: Counter[str] = Counter()
    for row in sent_rows:
        for name, tokens in row.steps:
            removed[name] += tokens
    return ReplayTotals(
        requests=len(rows),
        states=dict(Counter(row.state for row in rows)),
        came=sum(row.came.tokens for row in sent_rows),
        sent=sum(row.sent.tokens for row in sent_rows),
        came_cached=sum(row.came.cached for row in sent_rows),
        sent_cached=sum(row.sent.cached for row in sent_rows),
        came_cost=sum(row.came.cost for row in sent_rows),
        sent_cost=sum(row.sent.cost for row in sent_rows),
        took=dict(removed),
        offered=sum(bool(row.offered) for row in sent_rows),
        tool=sum(row.tool for row in sent_rows),
        over=sum(row.window is not None and row.came.tokens > row.window.usable_input for row in rows),
        still_over=sum(row.window is not None and row.sent.tokens > row.window.usable_input for row in sent_rows),
        broken=tuple(row.number for row in rows if row.is_prefix_broken),
    )
