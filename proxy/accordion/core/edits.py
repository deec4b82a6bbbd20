"""What was folded: a compaction is a record that is applied again to every later request.

It covers the beginning of the client's list up to its anchor, and says what stands there instead: the client's own
messages, kept, and messages that were written, whose bytes are stored so that they are the same every time. `apply` is
the only function that changes a history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import Literal

from accordion.core.boundaries import open_places
from accordion.core.conversation import Conversation, Message, Part, ToolCall, ToolResult
from accordion.core.plan import OURS, Kind, Slot
from accordion.core.values import dataclass, replace

Cause = Literal["automatic", "manual", "overflow"]


@dataclass(frozen=True, slots=True)
class Kept:
    """The client's messages `first` to `last` (inclusive), verbatim."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Written:
    """A message in place of the client's messages `first` to `last`: an edited one (then both are its index), or a
    block that stands for many. Its JSON is stored."""

    wire: bytes
    first: int
    last: int
    edited: bool = False


Entry = Kept | Written


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What one strategy did: its name, and what the whole request counted before and after, in tokens."""

    compactor: str
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Compaction:
    """One fold. `anchor` is the chain key of the last message that it covers, `covered` how many it covers.

    `utilization` is the occupied share of the window before it (None where the trigger was 0.0), `at` seconds since
    the epoch. `generation` counts the folds of this history. `input` and `output` are tokens that writing the summary
    cost.
    """

    id: str
    anchor: bytes
    covered: int
    entries: tuple[Entry, ...]
    kind: Kind
    cause: Cause
    utilization: float | None
    steps: tuple[StepRecord, ...]
    before: int
    after: int
    generation: int
    at: float
    writer: str = ""
    """Who wrote the summary: `extractive`, a model's name, or empty where there is none."""
    input: int = 0
    output: int = 0
    removed: int = 0
    """Tokens by which it makes the client's list shorter, what earlier folds of this history saved included."""
    artifacts: tuple[str, ...] = ()
    narrative: str = ""
    """What a model wrote of the covered part, without what was extracted; the next summary goes on from it."""
    narrated: int = 0
    """The client's index behind the last message that it tells of."""
    narrated_from: int = 0
    """That of the first one."""


@dataclass(frozen=True, slots=True)
class Folded:
    """A conversation as it is forwarded: the list with a compaction applied.

    `origins[i]` is the client's index of message i, or OURS. `compaction` is None where nothing was folded.
    """

    conversation: Conversation
    origins: tuple[int, ...]
    compaction: Compaction | None = None
    spans: tuple[tuple[int, int, bool], ...] = ()
    """For each message: the client's first and last that it stands for, and whether it is an edited one."""

    def slots(self, count: Callable[[Message], int]) -> tuple[Slot, ...]:
        """The same as strategies see it; `count` counts a message."""
        messages = self.conversation.messages
        if not self.spans:
            return tuple(Slot(m, i, count(m), first=i, last=i) for i, m in enumerate(messages))
        return tuple(
            Slot(message, origin, count(message), edited, first, last)
            for message, origin, (first, last, edited) in zip(messages, self.origins, self.spans, strict=True)
        )


def unfolded(conversation: Conversation) -> Folded:
    """The conversation as it came."""
    return Folded(conversation, tuple(range(len(conversation.messages))))


@dataclass(frozen=True, slots=True)
class Head:
    """The covered part of a list with a compaction applied. It holds for every request whose covered messages are the
    very `client` ones."""

    client: tuple[Message, ...]
    messages: tuple[Message, ...]
    origins: tuple[int, ...]
    spans: tuple[tuple[int, int, bool], ...]
    chain: tuple[bytes, ...]
    lost: frozenset[str] = frozenset()
    """Ids of calls that nobody had answered when they were taken out."""


@dataclass(frozen=True, slots=True)
class Listing:
    """What stands in a folded list for the client's first `count` messages, the last of which has the chain key `last`.
    It holds for every request with the same compaction whose list begins with those."""

    count: int
    last: bytes
    origins: tuple[int, ...]
    spans: tuple[tuple[int, int, bool], ...]
    chain: tuple[bytes, ...]

    def begins(self, chain: Sequence[bytes]) -> bool:
        """Whether a client's list with these chain keys begins with those."""
        return self.count <= len(chain) and chain[self.count - 1] == self.last


def head_of(conversation: Conversation, compaction: Compaction, read: Callable[[bytes], Message]) -> Head:
    """What the compaction makes of the messages that it covers. `read` makes a Message of written JSON; it may remember
    what it read."""
    salt = compaction.id.encode()
    messages: list[Message] = []
    origins: list[int] = []
    spans: list[tuple[int, int, bool]] = []
    for entry in compaction.entries:
        if isinstance(entry, Kept):
            kept = range(entry.first, entry.last + 1)
            messages += conversation.messages[entry.first : entry.last + 1]
            origins += kept
            spans += [(index, index, False) for index in kept]
        else:
            messages.append(read(entry.wire))
            origins.append(entry.first if entry.edited else OURS)
            spans.append((entry.first, entry.last, entry.edited))
    chain = tuple(salt + b"/%d" % index for index in range(len(messages)))
    client = conversation.messages[: compaction.covered]
    unanswered = [client[index].parts[at] for index, at in open_places(client)]
    lost = _called(unanswered) - _called(part for message in messages for part in message.parts)
    return Head(client, tuple(messages), tuple(origins), tuple(spans), chain, lost)


def _called(parts: Iterable[Part]) -> frozenset[str]:
    return frozenset(part.call_id for part in parts if isinstance(part, ToolCall))


def apply(
    conversation: Conversation,
    compaction: Compaction,
    read: Callable[[bytes], Message],
    known: Head | None = None,
) -> Folded:
    """The conversation with what the compaction covers replaced by what it says.

    The anchor must lie on the conversation's chain at the place that the compaction covers up to, and behind it nobody
    may answer a call that was taken out; raises ValueError otherwise. `known` is what was made of the covered part for
    an earlier request; it is used where it holds.

    Chain keys of the result stand for the folded list: those of the covered part are made of the compaction's id and
    the position, those behind it of the id and the client's own key.
    """
    covered = compaction.covered
    if not 0 < covered <= len(conversation.chain) or conversation.chain[covered - 1] != compaction.anchor:
        raise ValueError("the compaction is of another history")
    if known is None or known.client != conversation.messages[:covered]:
        known = head_of(conversation, compaction, read)
    return headed(conversation, compaction, known)


def headed(conversation: Conversation, compaction: Compaction, head: Head, known: Listing | None = None) -> Folded:
    """The same with a head that holds. `known` is what came of an earlier request; it is used where it holds. Raises
    ValueError where somebody behind the head answers a call that was taken out."""
    covered, salt = compaction.covered, compaction.id.encode()
    if head.lost and _answered(conversation.messages[covered:], head.lost):
        raise ValueError("a call that was taken out has been answered since")
    listed: Head | Listing = head
    start = covered
    if known is not None and known.begins(conversation.chain):
        listed, start = known, known.count
    tail = range(start, len(conversation.messages))
    folded = replace(
        conversation,
        messages=head.messages + conversation.messages[covered:],
        chain=listed.chain + tuple([salt + key for key in conversation.chain[start:]]),
    )
    origins = listed.origins + tuple(tail)
    return Folded(folded, origins, compaction, listed.spans + tuple(zip(tail, tail, repeat(False))))


def _answered(messages: Iterable[Message], lost: frozenset[str]) -> bool:
    """Whether one of these answers a call that is not among them, of an id in `lost`."""
    made: set[str] = set()
    for message in messages:
        for part in message.parts:
            if isinstance(part, ToolCall):
                made.add(part.call_id)
            elif isinstance(part, ToolResult) and part.call_id in lost and part.call_id not in made:
                return True
    return False
