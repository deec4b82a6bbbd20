"""What is known of one request: the value that is passed from the gauge to the fold, to sending and to the ledger."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from accordion.compaction.case import Budgets
from accordion.compaction.controls import Controls
from accordion.compaction.policy import Attempt, Mode
from accordion.compaction.sketch import images_of
from accordion.core.boundaries import resumption
from accordion.core.budget import Decision, Limits, Thresholds, Utilization, Window
from accordion.core.conversation import Conversation
from accordion.core.edits import Folded
from accordion.core.ports import Route
from accordion.core.records import CompactionSeen, Recalled
from accordion.core.values import dataclass, replace
from accordion.dialects.base import Dialect
from accordion.identity.points import Point
from accordion.identity.sessions import Place
from accordion.identity.tenants import Caller
from accordion.seating import Seated

# Estimates are seldom off by more than a fifth, and never by half.
_NEAR = 0.5

_UNMEASURED = Utilization(0)
_UNREAD = Decision("pass", "not read")


@dataclass(frozen=True, slots=True)
class Rules:
    """What the settings say about one model's folding, for one kind of agent."""

    thresholds: Thresholds = Thresholds()
    mode: Mode = "auto"
    budgets: Budgets = Budgets()


class Gauge(msgspec.Struct, frozen=True):
    """What is known of one request. `place` is None where it was not read; it is forwarded all the same.

    `folded` is the list as earlier folds left it, `dressed` the same with our tool, weaves and recalls, where a fold is
    in force, there is something of others to read, or a memory may stand in it; utilization and counts are of what
    is forwarded. More is learnt step by step, and each step makes a new one: `msgspec.structs.replace` does that twenty
    times as fast as that of dataclasses.
    """

    caller: Caller
    route: Route
    dialect: Dialect
    place: Place | None = None
    window: Window | None = None
    utilization: Utilization = _UNMEASURED
    counted: int = 0
    """Our own count before any correction, in tokens."""
    text: int = 0
    """The part of it that was counted and not reckoned: all but media and what is not understood."""
    plain: bytes = b""
    """The body without any content encoding; empty where nobody tried to read it, or the encoding is not known."""
    limits: Limits | None = None
    decision: Decision = _UNREAD
    beta: str = ""
    request_id: str = ""
    folded: Folded | None = None
    controls: Controls = Controls()
    model: str = ""
    """The model that is really asked, where tokens are counted."""
    counting: bool = False
    """Whether the request only asks how many tokens it would be."""
    sent: bytes | None = None
    """The body that is forwarded in place of the client's; None where that goes on as it came."""
    seen: CompactionSeen | None = None
    rules: Rules = Rules()
    illegible: bool = False
    """Whether the body should have been read and could not be."""
    unread: str = ""
    """What there is too much of in a body that is not read because of its size."""
    flagged: bool = False
    """Whether what left the window could only be kept locally for now."""
    dressed: Folded | None = None
    """None where the list goes out as it came."""
    offered: str = ""
    """The name under which the reply may call our tool; empty where it may not."""
    recalled: Recalled | None = None
    """What was recalled for this request."""
    started: float = 0.0
    """When it came, in seconds by the monotonic clock; 0 where nothing is kept of it."""
    reads: bool | None = None
    """Whether our tool is offered for ids that others' texts name in its list; None where there are none."""
    remembers: bool = False
    """Whether a memory may stand in the list, or be asked for."""
    asked: Gauge | None = None
    """The request as it came, where what led to a reply that the provider keeps was put in place of its id."""
    seated: Seated | None = None
    """Where it sits among the agents, and what of its list it sees. `plain` and `place` are of what it sees."""

    @property
    def near(self) -> bool:
        """Whether an overflow is possible: the window is half full, by the estimate or by our own count, or not
        known."""
        window = self.window
        if window is None or not window.known or self.utilization.ratio >= _NEAR:
            return True
        return self.counted >= _NEAR * window.size

    @property
    def foldable(self) -> bool:
        """Whether the request may be changed at all: folding is not switched off, or only to be reported, and the
        provider does not keep what came before."""
        kept = self.place is not None and self.place.conversation.previous is not None
        return self._folds and not kept

    @property
    def thread(self) -> str:
        """The id of the thread that it goes on from and that may be let go of for a fold; empty where there is none."""
        said = self.place.conversation if self.place is not None else None
        return said.previous or "" if said is not None and said.threaded and self._folds and not self.counting else ""

    @property
    def linked(self) -> bool:
        """Whether it goes on from a reply by its id, and what led to that may be put in its place to be folded."""
        said = self.place.conversation if self.place is not None else None
        kept = said is not None and said.previous is not None and said.kept == "reply"
        return kept and self._folds and not self.counting and self.route.family != "litellm"

    @property
    def _folds(self) -> bool:
        return self.rules.mode == "auto" and self.controls.word not in ("off", "observe")

    @property
    def delegated(self) -> bool:
        """Whether a sub-agent asks."""
        return self.seated is not None and self.seated.seat.delegated

    @property
    def rewritten(self) -> bool:
        """Whether another body than the client's leaves."""
        return self.sent is not None or (self.seated is not None and self.seated.changed)

    @property
    def fold(self) -> str:
        """The id of the compaction in force; empty where there is none."""
        return fold_of(self.folded) if self.folded is not None else ""

    @property
    def was_folded(self) -> bool:
        """Whether a compaction is in force, or may be: a request that goes on from a response by its id may be so of a
        session that was folded, or of one that is not on record."""
        place = self.place
        if self.fold or place is None or place.conversation.kept != "reply":
            return bool(self.fold)
        return place.base.folded if place.base is not None else place.conversation.previous is not None


def size_of(gauge: Gauge) -> int:
    """The size of the body that would go out, in bytes."""
    place, shown = gauge.place, gauge.dressed or gauge.folded
    if place is None or shown is None or (shown.compaction is None and gauge.dressed is None):
        return len(gauge.plain)
    client, now = place.conversation, shown.conversation
    size = len(gauge.plain) - sum(len(m.wire) for m in client.messages) + sum(len(m.wire) for m in now.messages)
    if now.envelope is client.envelope:
        return size
    return size - sum(map(len, client.envelope.values())) + sum(map(len, now.envelope.values()))


def images(conversation: Conversation) -> int:
    """How many images stand in a list, those in tool results included."""
    return sum(images_of(part) for message in conversation.messages for part in message.parts)


def told_apart(counted: Utilization, longer: int) -> Utilization:
    """The count of a list, with by how many tokens it is longer than the bare one told apart."""
    longer = max(0, min(longer, counted.messages))
    return replace(counted, messages=counted.messages - longer, unfolded=longer)


def base_of(place: Place) -> Point | None:
    """The place on record that a request goes on from, where what was reported there says something of it: not where
    the provider has gone on from a compaction of its own since."""
    at = place.base_index
    return place.base if at < 0 or resumption(place.conversation.messages, at + 1) < 0 else None


def lost(gauge: Gauge, place: Place, telling: bool) -> bool:
    """Whether the provider may have another list than the client's where a request goes on. A thread that is not on
    record, after an erasure maybe, is taken for such where folds are made; unless the store is not `telling`."""
    if gauge.linked:
        return place.base is not None and place.base.changed
    if gauge.route.family == "litellm":
        return True
    return place.base.changed if place.base is not None else gauge.thread != "" and telling


def fold_of(folded: Folded) -> str:
    """The id of the compaction in a list; empty where nothing was folded."""
    return folded.compaction.id if folded.compaction is not None else ""


def attempt_of(folded: Folded, thread: Point | None = None) -> Attempt | None:
    """What the last fold of this history came to; of one that is in a thread, what its place tells of it."""
    made = folded.compaction
    if made is None:
        return Attempt(thread.tried, thread.tried) if thread is not None and thread.tried else None
    return Attempt(made.before, made.after)


def is_anthropic(path: str, fields: Mapping[bytes, bytes]) -> bool:
    """Whether a request goes to the Anthropic upstream: below `/v1/messages`, or marked by `anthropic-version`."""
    return path == "/v1/messages" or path.startswith("/v1/messages/") or b"anthropic-version" in fields
