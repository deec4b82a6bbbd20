"""The record of a compaction, and the functions that apply it to a history.

A compaction covers the client's list from its beginning to the anchor. Its entries replace that part: ranges of the
client's own messages, and written messages, whose bytes are stored so that they are the same every time. The record is
applied again to every later request whose chain contains the anchor (replay). `apply_compaction` and `apply_prefix` are
the only functions that change a history.

A `Compaction` is what is stored (compaction/repository.py): the order of its fields, and of those of its entries and
steps, is the stored format.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import repeat
from operator import attrgetter
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from accordion.model.boundaries import find_open_calls
from accordion.model.budget import CompactionForm, CompactionKind
from accordion.model.conversation import Conversation, Message, Part, ToolCall, ToolResult
from accordion.model.plan import WRITTEN_BY_COMPACTION, Slot
from accordion.model.tenant import ConversationRef, ScopePrefix

Span = tuple[int, int, bool]
"""The client's first and last message that a message stands for, and whether it is edited."""

Cause = Literal["automatic", "cold_cache", "manual", "overflow"]
"""`cold_cache`: made before the trigger, since the provider's prompt cache was cold (`Decision.is_early`)."""


class CompactionEntry(msgspec.Struct, frozen=True, array_like=True):
    """A part of the compacted list, for the client's messages `first` to `last` (inclusive).

    Without `wire` these messages stay as they are. `wire` is the JSON of a message in their place: an edited message
    (then both are its index), or a block that stands for many.
    """

    first: int
    last: int
    wire: bytes | None = None
    is_edited: bool = False


class StrategyRecord(msgspec.Struct, frozen=True, array_like=True):
    """One strategy's part in a compaction: its name, and the tokens of the whole request before and after."""

    strategy: str
    before: int
    after: int


class Compaction(msgspec.Struct, frozen=True, array_like=True):
    """One compaction. `anchor` is the chain key of the last message that it covers, `covered_count` their number.

    `utilization` is the occupied share of the window before it (None if the trigger was 0.0), `at` seconds since
    the epoch. `generation` counts the compactions of this history. `before` and `after` are the tokens of the request.
    `input` and `output` are the tokens that the summary's model calls used.
    """

    id: str
    anchor: bytes
    covered_count: int
    entries: tuple[CompactionEntry, ...]
    kind: CompactionKind
    cause: Cause
    utilization: float | None
    steps: tuple[StrategyRecord, ...]
    before: int
    after: int
    generation: int
    at: float
    writer: str = ""
    """The writer of the summary: `extractive`, a model's name, or empty if there is no summary."""
    input: int = 0
    output: int = 0
    tokens_saved: int = 0
    """Tokens by which it makes the client's list shorter, including what earlier compactions of this history saved."""
    artifacts: tuple[str, ...] = ()
    narrative: str = ""
    """The model's text about the covered part, without the extracted facts; the next summary continues from it."""
    narrative_end: int = 0
    """The end (exclusive) of the client's messages that `narrative` covers."""
    narrative_start: int = 0
    """The index of the first message that `narrative` covers."""
    identity_key: bytes = b""
    """The identity key of the last message that it covers; empty if that is the anchor."""
    reasoning: tuple[int, ...] = ()
    """The indexes of the covered messages that say nothing, such as reasoning alone."""
    edited_keys: tuple[bytes, ...] = ()
    """The keys of the messages that its edits were made from, in their order."""

    @property
    def form(self) -> CompactionForm:
        """What it may do: only put one summary in place of whole groups, or anything."""
        return "whole" if any(step.strategy == WHOLE_GROUPS for step in self.steps) else "free"


WHOLE_GROUPS: Final = "whole_groups"
"""The name of the steps that remove whole groups only (compaction/whole_groups.py)."""

_ENCODER = msgspec.msgpack.Encoder()
_CONTENT = attrgetter(*Compaction.__struct_fields__[1:])


def with_content_id(compaction: Compaction) -> Compaction:
    """Returns the compaction with its id, a hash of its content."""
    digest = hashlib.sha256(_ENCODER.encode(_CONTENT(compaction))).hexdigest()
    return replace(compaction, id=f"f-{digest[:24]}")


class CompactedConversation(msgspec.Struct, frozen=True):
    """A conversation as it is forwarded: the list with a compaction applied.

    `origins[i]` is the client's index of message i, or `WRITTEN_BY_COMPACTION`. `compaction` is None if there is
    none.
    """

    conversation: Conversation
    origins: tuple[int, ...]
    compaction: Compaction | None = None
    spans: tuple[Span, ...] = ()
    """The spans of the messages; empty if each stands for itself."""

    @property
    def all_spans(self) -> tuple[Span, ...]:
        """The spans of the messages, also if each stands for itself."""
        return self.spans or tuple((at, at, False) for at in self.origins)

    @property
    def covered_count(self) -> int:
        """The number of the client's messages that the compaction covers; 0 without one."""
        return self.compaction.covered_count if self.compaction is not None else 0

    def slots(self, count: Callable[[Message], int]) -> tuple[Slot, ...]:
        """Returns the messages as slots, the form that strategies read; `count` counts a message's tokens."""
        messages = self.conversation.messages
        if not self.spans:
            return tuple(Slot(m, i, count(m), first=i, last=i) for i, m in enumerate(messages))
        return tuple(
            Slot(message, origin, count(message), edited, first, last)
            for message, origin, (first, last, edited) in zip(messages, self.origins, self.spans, strict=True)
        )


def without_compaction(conversation: Conversation) -> CompactedConversation:
    """Wraps a conversation to which no compaction is applied."""
    return CompactedConversation(conversation, tuple(range(len(conversation.messages))))


class CompactedPrefix(msgspec.Struct, frozen=True):
    """The covered part of a list after a compaction. It does not hold the messages that the compaction replaced.

    `anchor` is the chain key of the last of the `count` messages that the compaction covers.
    """

    count: int
    anchor: bytes
    messages: tuple[Message, ...]
    origins: tuple[int, ...]
    spans: tuple[Span, ...]
    chain: tuple[bytes, ...]
    removed_open_calls: frozenset[str] = frozenset()
    """Ids of calls that the compaction removed before they had a result."""

    def is_valid_for(self, conversation: Conversation) -> bool:
        """Whether the conversation begins with the covered messages. Those that stay must be the same bytes."""
        if self.count > len(conversation.chain) or conversation.chain[self.count - 1] != self.anchor:
            return False
        return all(
            message == conversation.messages[first]
            for message, origin, (first, _, is_edited) in zip(self.messages, self.origins, self.spans, strict=True)
            if origin != WRITTEN_BY_COMPACTION and not is_edited
        )


class CompactedList(msgspec.Struct, frozen=True):
    """The compacted form of the client's first `count` messages, the last of which has the chain key `last`.

    It is valid for every request with the same compaction whose list begins with these messages.
    """

    count: int
    last: bytes
    origins: tuple[int, ...]
    spans: tuple[Span, ...]
    chain: tuple[bytes, ...]

    def begins(self, chain: Sequence[bytes]) -> bool:
        """Whether a client's list with these chain keys begins with the messages of this one."""
        return self.count <= len(chain) and chain[self.count - 1] == self.last


def build_prefix(
    conversation: Conversation, compaction: Compaction, read: Callable[[bytes], Message]
) -> CompactedPrefix:
    """Builds the covered part of the list. `read` parses the JSON of a written message; it may use a cache.

    Raises ValueError if the anchor is not the chain key of the last covered message.
    """
    covered, key_prefix = compaction.covered_count, compaction.id.encode()
    if not 0 < covered <= len(conversation.chain) or conversation.chain[covered - 1] != compaction.anchor:
        raise ValueError("the compaction is of another history")
    messages: list[Message] = []
    origins: list[int] = []
    spans: list[Span] = []
    for entry in compaction.entries:
        if entry.wire is None:
            indexes = range(entry.first, entry.last + 1)
            messages += conversation.messages[entry.first : entry.last + 1]
            origins += indexes
            spans += [(index, index, False) for index in indexes]
        else:
            messages.append(read(entry.wire))
            origins.append(entry.first if entry.is_edited else WRITTEN_BY_COMPACTION)
            spans.append((entry.first, entry.last, entry.is_edited))
    chain = tuple(key_prefix + b"/%d" % index for index in range(len(messages)))
    client = conversation.messages[:covered]
    unanswered = [client[index].parts[position] for index, position in find_open_calls(client)]
    lost_ids = _call_ids(unanswered) - _call_ids(part for message in messages for part in message.parts)
    return CompactedPrefix(covered, compaction.anchor, tuple(messages), tuple(origins), tuple(spans), chain, lost_ids)


def _call_ids(parts: Iterable[Part]) -> frozenset[str]:
    return frozenset(part.call_id for part in parts if isinstance(part, ToolCall))


def apply_compaction(
    conversation: Conversation, compaction: Compaction, read: Callable[[bytes], Message]
) -> CompactedConversation:
    """Returns the conversation with the covered messages replaced by the compaction's entries.

    The chain keys of the result belong to the compacted list: a key of the covered part consists of the compaction's id
    and the position, a key after it of the id and the client's own key.

    Raises ValueError if the anchor is not the chain key of the last covered message, or if a later message
    answers a call that the compaction removed.
    """
    return apply_prefix(conversation, compaction, build_prefix(conversation, compaction, read))


def apply_prefix(
    conversation: Conversation, compaction: Compaction, head: CompactedPrefix, known_list: CompactedList | None = None
) -> CompactedConversation:
    """Applies a compaction whose prefix `head` is valid for this conversation.

    `known_list` is an earlier request's compacted list; it is used if this conversation begins with it. Raises
    ValueError if a later message answers a call that the compaction removed.
    """
    covered, key_prefix = compaction.covered_count, compaction.id.encode()
    if head.removed_open_calls and _has_orphan_result(conversation.messages[covered:], head.removed_open_calls):
        raise ValueError("a call that was taken out has been answered since")
    beginning: CompactedPrefix | CompactedList = head
    start = covered
    if known_list is not None and known_list.begins(conversation.chain):
        beginning, start = known_list, known_list.count
    tail = range(start, len(conversation.messages))
    compacted = replace(
        conversation,
        messages=head.messages + conversation.messages[covered:],
        chain=beginning.chain + tuple([key_prefix + key for key in conversation.chain[start:]]),
        identity=(),
    )
    origins = beginning.origins + tuple(tail)
    spans = beginning.spans + tuple(zip(tail, tail, repeat(False)))
    return CompactedConversation(compacted, origins, compaction, spans)


def append_entry(entries: list[CompactionEntry], entry: CompactionEntry) -> None:
    """Appends an entry; joins messages that stay with those before them."""
    last = entries[-1] if entries else None
    if entry.wire is None and last is not None and last.wire is None and last.last + 1 == entry.first:
        entries[-1] = CompactionEntry(last.first, entry.last)
    else:
        entries.append(entry)


def with_forms(compaction: Compaction, conversation: Conversation) -> Compaction:
    """Returns the compaction with the forms of the messages of `conversation` that it covers."""
    identity, covered = conversation.identity_chain, compaction.covered_count
    edits = [entry.first for entry in compaction.entries if entry.is_edited]
    return replace(
        compaction,
        identity_key=identity[covered - 1] if identity[covered - 1] != compaction.anchor else b"",
        reasoning=tuple(at for at in range(covered) if _has_no_content(identity, at)),
        edited_keys=tuple(conversation.messages[at].key for at in edits),
    )


def adapt_compaction(conversation: Conversation, compaction: Compaction) -> Compaction | None:
    """Returns a compaction for a list whose beginning says the same as the covered messages, in another form.

    Its blocks stand for the same messages. An edited message is used again only if the client's message is the one
    that was edited; else the client's own is left as it is. Returns None if the lists differ in more than their
    form, or nothing would be replaced. The result has no id.
    """
    identity, last_key = conversation.identity_chain, compaction.identity_key or compaction.anchor
    if last_key not in identity:
        return None
    covered = identity.index(last_key) + 1
    reasoning = frozenset(compaction.reasoning)
    spoken = [at for at in range(covered) if not _has_no_content(identity, at)]
    former = [at for at in range(compaction.covered_count) if at not in reasoning]
    if len(spoken) != len(former):
        return None
    unchanged = [entry for entry in compaction.entries if entry.wire is None]
    kept_reasoning = reasoning.intersection(at for entry in unchanged for at in range(entry.first, entry.last + 1))
    positions = dict(zip(former, spoken, strict=True))
    entries = _Adaptation(conversation, compaction, positions, kept_reasoning).build_entries()
    if all(entry.wire is None for entry in entries):
        return None
    # `ends[n]` is the position after the first n messages that say something. The narrative covers as many of these as
    # before.
    ends = [0, *(at + 1 for at in spoken)]
    adapted = replace(
        compaction,
        id="",
        anchor=conversation.chain[covered - 1],
        covered_count=covered,
        entries=tuple(entries),
        narrative_end=ends[sum(at < compaction.narrative_end for at in former)],
        narrative_start=ends[sum(at < compaction.narrative_start for at in former)],
    )
    return with_forms(adapted, conversation)


def _has_no_content(identity: Sequence[bytes], at: int) -> bool:
    return at > 0 and identity[at] == identity[at - 1]


class _Adaptation(msgspec.Struct, frozen=True):
    """The entries of a compaction for another form of its messages.

    `positions` are the new indexes of messages by their old ones, without those that say nothing (as reasoning alone).
    `kept_reasoning` are the old indexes of messages that say nothing and that the compaction left unchanged.
    """

    conversation: Conversation
    compaction: Compaction
    positions: dict[int, int]
    kept_reasoning: frozenset[int]

    def build_entries(self) -> list[CompactionEntry]:
        """Returns the entries for the conversation."""
        entries, edited_keys = list[CompactionEntry](), iter(self.compaction.edited_keys)
        for entry in self.compaction.entries:
            if entry.wire is None:
                for at in range(entry.first, entry.last + 1):
                    self._append_message(entries, at)
            elif entry.is_edited:
                self._append_message(entries, entry.first, entry.wire, next(edited_keys, b""))
            elif covered := [self.positions[at] for at in range(entry.first, entry.last + 1) if at in self.positions]:
                entries.append(CompactionEntry(covered[0], covered[-1], entry.wire))
        return entries

    def _append_message(self, entries: list[CompactionEntry], former: int, wire: bytes = b"", key: bytes = b"") -> None:
        """Appends the message that was at index `former`, with the reasoning before it, or its edit."""
        at = self.positions.get(former)
        if at is None:
            return
        first = at - self._count_reasoning(former, at)
        if wire and self.conversation.messages[at].key == key:
            if first < at:
                append_entry(entries, CompactionEntry(first, at - 1))
            entries.append(CompactionEntry(at, at, wire, is_edited=True))
        else:
            append_entry(entries, CompactionEntry(first, at))

    def _count_reasoning(self, former: int, at: int) -> int:
        """Counts the messages directly before a message that say nothing; 0 if the compaction removed all of them."""
        start = former
        while start and start - 1 not in self.positions:
            start -= 1
        if start < former and self.kept_reasoning.isdisjoint(range(start, former)):
            return 0
        first = at
        while _has_no_content(self.conversation.identity_chain, first - 1):
            first -= 1
        return at - first


def _has_orphan_result(messages: Iterable[Message], lost_ids: frozenset[str]) -> bool:
    """Whether a message answers a call of an id in `lost_ids` that these messages do not make."""
    call_ids: set[str] = set()
    for message in messages:
        for part in message.parts:
            if isinstance(part, ToolCall):
                call_ids.add(part.call_id)
            elif isinstance(part, ToolResult) and part.call_id in lost_ids and part.call_id not in call_ids:
                return True
    return False


SCOPE_PREFIX_LENGTH = 16
"""Length of a scope's prefix in bytes."""


def scope_prefix(ref: ConversationRef) -> ScopePrefix:
    """Returns the key prefix for the compactions of one scope, of SCOPE_PREFIX_LENGTH bytes."""
    return _scope_prefix(ref.tenant.key, ref.scope)


@lru_cache(1_024)
def _scope_prefix(key: bytes, scope: bytes) -> ScopePrefix:
    return ScopePrefix(hashlib.sha256(len(key).to_bytes(4, "big") + key + scope).digest()[:SCOPE_PREFIX_LENGTH])
