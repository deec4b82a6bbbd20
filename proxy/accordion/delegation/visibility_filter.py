"""Removes from a list the results, with their calls, that one agent may not see.

Theory of operation: `VisibilityFilter.apply` splits the list into ranges that no pending call crosses, and removes the
hidden results of each (result_removal.py). It caches the outcome by the chain key of the last complete range. A longer
list continues from there, so that a new round of messages costs only that round.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence, Set

import msgspec
from msgspec.structs import replace

from accordion.delegation.result_removal import ResultRemoval, remove_results, split_into_ranges
from accordion.model.boundaries import PartPosition, has_item_reference
from accordion.model.conversation import Conversation, Message, ToolCall, ToolResult
from accordion.protocols.base import WireProtocol
from accordion.protocols.message_keys import chain_key, chain_start
from accordion.protocols.written_messages import WrittenMessageReader


class FilteredResult(msgspec.Struct, frozen=True):
    """A removed result and its removed call, by their positions in the client's list.

    `name` is empty and `call` None where the list had no call.
    """

    name: str
    call_id: str
    result: PartPosition
    call: PartPosition | None


class FilteredConversation(msgspec.Struct, frozen=True):
    """The conversation that a viewer sees: with fewer messages, and the chain of the visible list.

    `origins[i]` is the client's index of message i. `unremovable_results` are results that should be hidden and had to
    stay, since a provider would refuse the list without them. They were shown, so later decisions must take them into
    account.
    """

    conversation: Conversation
    origins: Sequence[int]
    hidden_results: tuple[FilteredResult, ...] = ()
    unremovable_results: frozenset[PartPosition] = frozenset()


class _EditedMessage(msgspec.Struct, frozen=True):
    """An edited message: the original, the removed parts, and the message that is sent."""

    original: Message
    removed_parts: frozenset[int]
    message: Message


class _CachedFilter(msgspec.Struct, frozen=True):
    """The outcome for the first `count` messages; valid for every list with the same chain key there."""

    count: int
    hidden_places: frozenset[PartPosition]
    origins: tuple[int, ...]
    chain: tuple[bytes, ...]
    edited: dict[int, _EditedMessage]
    hidden_results: tuple[FilteredResult, ...]
    unremovable_results: frozenset[PartPosition]
    has_reference: bool
    weight: int = 0
    """Bytes of the edited messages."""
    key: tuple[bytes, bool] = (b"", False)
    size: int = 0


_NOTHING = _CachedFilter(0, frozenset(), (), (), {}, (), frozenset(), has_reference=False)


class VisibilityFilter:
    """Filters lists, and caches outcomes within `capacity` bytes; the least recently used is removed first.

    `message_reader` parses edited messages.
    """

    def __init__(self, message_reader: WrittenMessageReader, capacity: int = 16 * 2**20) -> None:
        self._written = message_reader
        self._capacity = capacity
        self._at: dict[tuple[bytes, bool], list[_CachedFilter]] = {}
        self._used: OrderedDict[int, _CachedFilter] = OrderedDict()
        self._size = 0

    def apply(
        self, protocol: WireProtocol, tenant_key: bytes, conversation: Conversation, hidden_places: Set[PartPosition]
    ) -> FilteredConversation:
        """Returns the conversation without the results at `hidden_places`, or itself where there are none.

        Positions of parts that are not results have no effect. Each result is removed with its call, matched by order;
        also messages without remaining parts, and reasoning that led only to removed output. All other text, and the
        other calls of a parallel batch, stay; but assistant messages at the end, after which everything is hidden, are
        left out until a visible message follows them. The list is legal where the client's was.

        A longer list with the same decisions begins with this list, up to the last message of a user or a tool with no
        pending call, unless there are `unremovable_results`.
        """
        wanted, shown = frozenset(hidden_places), frozenset[PartPosition]()
        while wanted:
            made = _without_trailing_assistant(
                conversation.messages, self._filter(protocol, tenant_key, conversation, wanted)
            )
            needed = _find_mandatory_result(conversation.messages, made)
            if needed is None:
                return replace(made, unremovable_results=made.unremovable_results | shown) if shown else made
            shown |= {needed}
            wanted -= {needed}
        return FilteredConversation(conversation, range(len(conversation.messages)), unremovable_results=shown)

    def _filter(
        self,
        protocol: WireProtocol,
        tenant_key: bytes,
        conversation: Conversation,
        hidden_places: frozenset[PartPosition],
    ) -> FilteredConversation:
        known, new = self._find_prefix(conversation, hidden_places)
        read = self._written.reader_for(protocol, tenant_key)
        try:
            work = _FilterRun(read, protocol, tenant_key, conversation, known)
        except ValueError:
            # The message has the same content in a form that the protocol cannot edit.
            known, new = _NOTHING, hidden_places
            work = _FilterRun(read, protocol, tenant_key, conversation, known)
        behind: dict[int, list[int]] = {}
        for index, part in new:
            behind.setdefault(index, []).append(part)
        for first, end, cut in split_into_ranges(conversation.messages, known.count):
            places = [(index - first, part) for index in range(first, end) for part in behind.get(index, ())]
            work.add_range(first, end, places, cut)
        if work.settled != known.count:
            if known.count:
                # A longer outcome replaces it, so it is the first to be removed.
                self._used.move_to_end(id(known), last=False)
            early = all(index < work.settled for index, _ in new)
            before = hidden_places if early else frozenset(place for place in hidden_places if place[0] < work.settled)
            self._remember(conversation, work.build_prefix(before))
        return work.build_result()

    # -- cached outcomes ---------------------------------------------------------

    def _find_prefix(
        self, conversation: Conversation, hidden_places: frozenset[PartPosition]
    ) -> tuple[_CachedFilter, frozenset[PartPosition]]:
        """Returns the outcome for the longest cached beginning with the same decisions, and the decisions after it."""
        held = conversation.previous is not None
        for count in range(len(conversation.chain), 0, -1):
            for known in self._at.get((conversation.chain[count - 1], held), ()):
                rest = hidden_places - known.hidden_places
                if len(rest) == len(hidden_places) - len(known.hidden_places) and all(
                    place[0] >= count for place in rest
                ):
                    self._used.move_to_end(id(known))
                    return known, rest
        return _NOTHING, hidden_places

    def _remember(self, conversation: Conversation, prefix: _CachedFilter) -> None:
        key = (conversation.chain[prefix.count - 1], conversation.previous is not None)
        size = 1_000 + 120 * len(prefix.origins) + 400 * len(prefix.hidden_results) + prefix.weight
        prefix = replace(prefix, key=key, size=size)
        self._at.setdefault(key, []).append(prefix)
        self._used[id(prefix)] = prefix
        self._size += size
        while self._size > self._capacity:
            _, old = self._used.popitem(last=False)
            self._size -= old.size
            others = [each for each in self._at[old.key] if each is not old]
            if others:
                self._at[old.key] = others
            else:
                del self._at[old.key]


class _FilterRun:
    """One run of the filter on a list, starting from the cached outcome for its beginning."""

    def __init__(
        self,
        read_message: Callable[[bytes], Message],
        protocol: WireProtocol,
        tenant_key: bytes,
        conversation: Conversation,
        prefix: _CachedFilter,
    ) -> None:
        self._read, self._dialect, self._conversation = read_message, protocol, conversation
        self._chain = list(prefix.chain)
        self._start = chain_start(tenant_key, protocol.name)
        self._origins = list(prefix.origins)
        self._edited = dict(prefix.edited)
        self._taken = list(prefix.hidden_results)
        self._kept = set(prefix.unremovable_results)
        self._referred = prefix.has_reference
        # The index up to which no call is pending, and the sizes of all lists at that point.
        self.settled = prefix.count
        self._weight = prefix.weight
        self._mark = self._sizes()
        for index, each in prefix.edited.items():
            if conversation.messages[index] is not each.original:
                self._refresh_edit(index, each)

    def add_range(self, first: int, end: int, places: Sequence[PartPosition], is_complete: bool) -> None:
        """Adds a range of the client's list without the results at `places`, which count from the range's start."""
        conversation = self._conversation
        messages = conversation.messages[first:end]
        gone: Mapping[int, frozenset[int]] = {}
        if places:
            hiding = remove_results(
                self._dialect, messages, places, self._referred or conversation.previous is not None
            )
            gone = self._note_removals(messages, hiding, first)
        same = len(self._origins) == first and not self._edited and not gone
        for index, message in enumerate(messages, first):
            each = self._edited.get(index)
            if each is None and index in gone:
                continue
            self._origins.append(index)
            if same:
                self._chain.append(conversation.chain[index])
            else:
                before = self._chain[-1] if self._chain else self._start
                self._chain.append(chain_key(before, (each.message if each is not None else message).key))
        self._referred = self._referred or any(map(has_item_reference, messages))
        if is_complete:
            self.settled, self._mark = end, self._sizes()

    def _sizes(self) -> tuple[int, int, bool, int]:
        return len(self._origins), len(self._taken), self._referred, self._weight

    def build_prefix(self, hidden_places: frozenset[PartPosition]) -> _CachedFilter:
        """Returns the outcome that can be cached: up to the last point without a pending call.

        `hidden_places` are the decisions up to there.
        """
        count, (length, taken, referred, weight) = self.settled, self._mark
        whole = count == len(self._conversation.messages)
        return _CachedFilter(
            count,
            hidden_places,
            tuple(self._origins[:length]),
            tuple(self._chain[:length]),
            self._edited if whole else {index: each for index, each in self._edited.items() if index < count},
            tuple(self._taken[:taken]),
            frozenset(place for place in self._kept if place[0] < count),
            referred,
            weight,
        )

    def build_result(self) -> FilteredConversation:
        """Returns the filtered list."""
        conversation, kept = self._conversation, frozenset(self._kept)
        if not self._taken:
            return FilteredConversation(conversation, range(len(conversation.messages)), unremovable_results=kept)
        messages = list(conversation.messages)
        for index, each in self._edited.items():
            messages[index] = each.message
        seen = tuple(map(messages.__getitem__, self._origins))
        visible = replace(conversation, messages=seen, chain=tuple(self._chain))
        return FilteredConversation(visible, tuple(self._origins), tuple(self._taken), kept)

    def _note_removals(
        self, messages: Sequence[Message], removal: ResultRemoval, first: int
    ) -> Mapping[int, frozenset[int]]:
        """Records the removal in a range that begins at `first`; returns the removed parts by the client's index."""
        for index, wire in removal.edited_messages.items():
            each = _EditedMessage(messages[index], removal.removed_parts[index], self._read(wire))
            self._edited[first + index] = each
            self._weight += 2 * (len(each.original.wire) + len(wire)) + 1_000
        for (index, part), call in removal.removed_calls.items():
            result, name = messages[index].parts[part], ""
            if call is not None:
                made = messages[call[0]].parts[call[1]]
                name = made.name if isinstance(made, ToolCall) else ""
            call_id = result.call_id if isinstance(result, ToolResult) else ""
            self._taken.append(FilteredResult(name, call_id, (first + index, part), _shift(call, first)))
        self._kept.update((first + index, part) for index, part in removal.unremovable_results)
        return {first + index: parts for index, parts in removal.removed_parts.items()}

    def _refresh_edit(self, index: int, edited: _EditedMessage) -> None:
        """Edits a message again where the client sent it in other bytes (it moves its cache breakpoints)."""
        now = self._conversation.messages[index]
        if now.wire != edited.original.wire:
            wire = self._dialect.edit_message(now, dict.fromkeys(edited.removed_parts))
            if wire is not None:
                self._edited[index] = _EditedMessage(now, edited.removed_parts, self._read(wire))


def _shift(place: PartPosition | None, by: int) -> PartPosition | None:
    return None if place is None else (place[0] + by, place[1])


def _without_trailing_assistant(
    messages: Sequence[Message], filtered_conversation: FilteredConversation
) -> FilteredConversation:
    """Removes assistant messages from the list's end if a hidden message followed them.

    Providers take a final assistant message for a reply to continue, or refuse it. The messages are visible again as
    soon as another message follows them.
    """
    seen, end = filtered_conversation.conversation.messages, len(filtered_conversation.conversation.messages)
    while (
        filtered_conversation.hidden_results
        and messages[-1].role != "assistant"
        and end
        and seen[end - 1].role == "assistant"
    ):
        end -= 1
    if end == len(seen):
        return filtered_conversation
    cut = replace(
        filtered_conversation.conversation, messages=seen[:end], chain=filtered_conversation.conversation.chain[:end]
    )
    return replace(filtered_conversation, conversation=cut, origins=filtered_conversation.origins[:end])


def _find_mandatory_result(
    messages: Sequence[Message], filtered_conversation: FilteredConversation
) -> PartPosition | None:
    """Returns a result that must stay, or None.

    Otherwise the list would be empty, or the assistant's message would be the first.
    """
    seen, taken = (
        filtered_conversation.conversation.messages,
        [each.result for each in filtered_conversation.hidden_results],
    )
    if taken and not seen:
        return max(taken)
    return min(taken) if taken and _user_speaks_first(messages) and not _user_speaks_first(seen) else None


def _user_speaks_first(messages: Sequence[Message]) -> bool:
    """Whether the first message is the user's, apart from system, developer and other messages."""
    roles = (message.role for message in messages)
    return next((role for role in roles if role not in ("system", "developer", "other")), "user") == "user"
