"""A recorded conversation with folding on, request by request: what came, what would be sent, what that costs."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from accordion.core.budget import Decision, Limits, Utilization, Window
from accordion.core.conversation import Conversation
from accordion.core.edits import unfolded
from accordion.core.http import Inbound
from accordion.core.plan import OURS
from accordion.core.records import CompactionSeen
from accordion.dialects.spans import FIELDS
from accordion.gauged import Gauge
from accordion.offline.replay import HEADERS, PATH, unchanged
from accordion.offline.rooms import Rooms
from accordion.offline.transcripts import Recorded, requests

CACHED = 0.1
"""What a cached token of the input costs of an uncached one; the big providers ask about as much."""

_NOTHING = Utilization(0)
_LIST = msgspec.json.Decoder(list[msgspec.Raw])


@dataclass(frozen=True, slots=True)
class Load:
    """A request as it came, or as it was sent: how full the window is with it, how many entries its list has, and how
    many tokens at its beginning stand as they stood in the request before (a provider may have them in its cache)."""

    used: Utilization = _NOTHING
    messages: int = 0
    cached: int = 0

    @property
    def tokens(self) -> int:
        """The whole input."""
        return self.used.tokens

    @property
    def cost(self) -> float:
        """The input in tokens that are not cached; one that is counts a tenth."""
        return self.tokens - (1.0 - CACHED) * self.cached


@dataclass(frozen=True, slots=True)
class Carried:
    """One request. `came` is the whole list as the client sent it, `sent` what was forwarded in its place.

    `window` and `limits` are None where the body could not be read; then it is forwarded as it came, and not counted.
    `refused` says why nothing was sent. `grown` tells whether what was sent begins with the whole of what was sent
    before, byte for byte; None where nothing was. `offered` is the name of our own tool where it went along, `tool` the
    tokens that it takes of what was sent; `brought` is the same of the request with which it did so for the first time.
    """

    number: int
    turn: int
    starts_turn: bool
    model: str
    session: str
    came: Load
    sent: Load
    decision: Decision
    seen: CompactionSeen | None = None
    window: Window | None = None
    limits: Limits | None = None
    refused: str = ""
    grown: bool | None = None
    offered: str = ""
    tool: int = 0
    brought: int = 0

    @property
    def steps(self) -> tuple[tuple[str, int], ...]:
        """What each strategy took out in a fold that was made for this request. The record tells the first of them with
        the tool that the fold brought along."""
        if self.seen is None or self.state != "folded":
            return ()
        steps = [(name, before - after) for name, before, after in self.seen.steps]
        return tuple((name, took + (0 if place else self.brought)) for place, (name, took) in enumerate(steps))

    @property
    def state(self) -> str:
        """`unread`, `refused`, `as it came`; or of its fold `folded`, `replayed`, `observed`, `failed`."""
        if self.limits is None:
            return "unread"
        return "refused" if self.refused else self.seen.state if self.seen is not None else "as it came"

    @property
    def broken(self) -> bool:
        """Whether the beginning changed although nothing was folded anew, which must never be."""
        return self.grown is False and self.state != "folded"


@dataclass(frozen=True, slots=True)
class _Forwarded:
    """A body that was sent: its list, and every other field. Providers put the tools, which are among these, before the
    system prompt, wherever that stands: where they change, nothing is left of what is in the cache."""

    rest: Mapping[str, bytes]
    listed: bytes
    entries: tuple[bytes, ...]

    def begins(self, other: _Forwarded) -> bool:
        """Whether `other` begins with the whole of this."""
        mine, theirs = self.listed.rstrip()[:-1].rstrip(), other.listed
        follows = theirs[len(mine) : len(mine) + 1]
        return self.rest == other.rest and theirs.startswith(mine) and follows in (b",", b"]", b" ", b"\n")

    def shared(self, other: _Forwarded) -> int:
        """How many entries both begin with; -1 where already what stands before the list differs, such as a tool."""
        if self.rest != other.rest:
            return -1
        same = 0
        for mine, theirs in zip(self.entries, other.entries, strict=False):
            if mine != theirs:
                break
            same += 1
        return same


async def refold(recorded: Recorded, rooms: Rooms, *, model: str | None = None) -> AsyncIterator[Carried]:
    """Sends every request of a transcript in order through what a live one passes, folds carried out and replayed.

    Conversations are told apart by a label, as a client's own would: they may share their openings.
    """
    gauging, turn = rooms.gauging, 0
    last: _Forwarded | None = None
    before: Conversation | None = None
    offered = False
    headers = (*HEADERS, (b"x-accordion-session", _label(recorded)))
    for number, request in enumerate(requests(recorded.transcript, model), 1):
        inbound = Inbound("POST", PATH, "", headers, request.body, f"replay-{number}")
        gauge = await gauging.gauge(inbound, inbound.fields, rooms.caller)
        place = gauge.place
        turn += (place is not None and place.conversation.starts_turn) or not turn
        if place is None:
            last, before = None, None
            yield Carried(number, turn, False, "", "", Load(), Load(), gauge.decision)
            continue
        came = await _came(rooms, gauge, place.conversation, before, request.index)
        before, sent, grown, tool, brought = place.conversation, Load(), None, 0, 0
        gauge = await rooms.carried_out(inbound, gauge)
        refused = gauge.decision.reason if gauge.decision.action == "refuse" else ""
        if not refused:
            now = _forwarded(gauge)
            grown = last.begins(now) if last is not None else None
            cached = _cached(rooms, gauge, -1 if last is None else last.shared(now), len(now.entries))
            sent, last = Load(gauge.utilization, len(now.entries), cached), now
            tool = sent.used.tools - came.used.tools if gauge.offered else 0
            brought, offered = 0 if offered else tool, offered or bool(gauge.offered)
        yield Carried(
            number, turn, before.starts_turn, before.model, place.session.id, came, sent,
            gauge.decision, gauge.seen, gauge.window, gauge.limits, refused, grown,
            "" if refused else gauge.offered, tool, brought,
        )  # fmt: skip


async def _came(
    rooms: Rooms, gauge: Gauge, conversation: Conversation, before: Conversation | None, messages: int
) -> Load:
    """The whole list, as if nothing had ever been folded."""
    whole = await rooms.gauging.refolded(gauge, unfolded(conversation))
    tokens = whole.utilization.tokens
    return Load(whole.utilization, messages, round(unchanged(rooms.gauging, whole, before, conversation) * tokens))


def _label(recorded: Recorded) -> bytes:
    place = f"{recorded.file}:{recorded.line}".encode(errors="surrogateescape")
    return b"replay-" + hashlib.sha256(place).hexdigest()[:24].encode()


def _forwarded(gauge: Gauge) -> _Forwarded:
    fields = {
        name: bytes(raw) for name, raw in FIELDS.decode(gauge.plain if gauge.sent is None else gauge.sent).items()
    }
    listed = fields.pop(gauge.dialect.listing)
    return _Forwarded(fields, listed, tuple(bytes(raw) for raw in _LIST.decode(listed)))


def _cached(rooms: Rooms, gauge: Gauge, shared: int, entries: int) -> int:
    """The tokens of the first `shared` of so many entries, and of what stands before the list."""
    folded = gauge.dressed or gauge.folded
    if folded is None or not gauge.counted or shared < len(folded.conversation.lead):
        return 0
    conversation, first = folded.conversation, shared - len(folded.conversation.lead)
    if OURS in folded.origins and first >= folded.origins.index(OURS):
        # A block that became a part of the message beside it is no entry of its own.
        first += len(conversation.messages) + len(conversation.lead) - entries
    behind = rooms.gauging.meter.after(conversation, first - 1, gauge.model).tokens
    return round((1.0 - behind / gauge.counted) * gauge.utilization.tokens)


@dataclass(frozen=True, slots=True)
class Sums:
    """What many requests come to. Tokens and costs are of those that were sent, as they came and as they were sent.

    `states` counts requests by their state, `took` is what each strategy took out in all folds. `offered` counts the
    requests that our own tool went along with, and `tool` its tokens in all of them, which are part of `sent`. `over`
    counts those that would not fit their window as they came, `still_over` those that were sent and do not.
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
        """The cost of what was sent, of that of everything."""
        return self.sent_cost / self.came_cost if self.came_cost else 1.0


def sums(rows: Iterable[Carried]) -> Sums:
    """Adds requests up."""
    rows = list(rows)
    gone = [row for row in rows if row.limits is not None and not row.refused]
    took: Counter[str] = Counter()
    for row in gone:
        for name, tokens in row.steps:
            took[name] += tokens
    return Sums(
        requests=len(rows),
        states=dict(Counter(row.state for row in rows)),
        came=sum(row.came.tokens for row in gone),
        sent=sum(row.sent.tokens for row in gone),
        came_cached=sum(row.came.cached for row in gone),
        sent_cached=sum(row.sent.cached for row in gone),
        came_cost=sum(row.came.cost for row in gone),
        sent_cost=sum(row.sent.cost for row in gone),
        took=dict(took),
        offered=sum(bool(row.offered) for row in gone),
        tool=sum(row.tool for row in gone),
        over=sum(row.window is not None and row.came.tokens > row.window.usable_input for row in rows),
        still_over=sum(row.window is not None and row.sent.tokens > row.window.usable_input for row in gone),
        broken=tuple(row.number for row in rows if row.broken),
    )
