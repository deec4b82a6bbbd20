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
    hidden_positions: frozenset[PartPosition]
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


_EMPTY = _CachedFilter(0, frozenset(), (), (), {}, (), frozenset(), has_reference=False)


class VisibilityFilter:
    """Filters lists, and caches outcomes within `capacity` bytes; the least recently used is removed first.

    `message_reader` parses edited messages.
    """

    def __init__(self, message_reader: WrittenMessageReader, capacity: int = 16 * 2**20) -> None:
        self._message_reader = message_reader
        self._capacity = capacity
        self._filters_by_key: dict[tuple[bytes, bool], list[_CachedFilter]] = {}
        self._filters_by_use: OrderedDict[int, _CachedFilter] = OrderedDict()
        self._size = 0

    def apply(
        self, protocol: WireProtocol, tenant_key: bytes, conversation: Conversation, hidden_positions: Set[PartPosition]
    ) -> FilteredConversation:
        """Returns the conversation without the results at `hidden_positions`, or itself where there are none.

        Positions of parts that are not results have no effect. Each result is removed with its call, matched by order;
        also messages without remaining parts, and reasoning that led only to removed output. All other text, and the
        other calls of a parallel batch, stay; but assistant messages at the end, after which everything is hidden, are
        left out until a visible message follows them. The list is legal where the client's was.

        A longer list with the same decisions begins with this list, up to the last message of a user or a tool with no
        pending call, unless there are `unremovable_results`.
        """
        hidden, unremovable = frozenset(hidden_positions), frozenset[PartPosition]()
        while hidden:
            filtered = _without_trailing_assistant(
                conversation.messages, self._filter(protocol, tenant_key, conversation, hidden)
            )
            mandatory = _find_mandatory_result(conversation.messages, filtered)
            if mandatory is None:
                return (
                    replace(filtered, unremovable_results=filtered.unremovable_results | unremovable)
                    if unremovable
                    else filtered
                )
            unremovable |= {mandatory}
            hidden -= {mandatory}
        return FilteredConversation(conversation, range(len(conversation.messages)), unremovable_results=unremovable)

    def _filter(
        self,
        protocol: WireProtocol,
        tenant_key: bytes,
        conversation: Conversation,
        hidden_positions: frozenset[PartPosition],
    ) -> FilteredConversation:
        cached, new = self._find_prefix(conversation, hidden_positions)
        read_message = self._message_reader.reader_for(protocol, tenant_key)
        try:
            run = _FilterRun(read_message, protocol, tenant_key, conversation, cached)
        except ValueError:
            # The message has the same content in a form that the protocol cannot edit.
            cached, new = _EMPTY, hidden_positions
            run = _FilterRun(read_message, protocol, tenant_key, conversation, cached)
        parts_by_message: dict[int, list[int]] = {}
        for index, part in new:
            parts_by_message.setdefault(index, []).append(part)
        for first, end, is_complete in split_into_ranges(conversation.messages, cached.count):
            positions = [
                (index - first, part) for index in range(first, end) for part in parts_by_message.get(index, ())
            ]
            run.add_range(first, end, positions, is_complete)
        if run.complete_count != cached.count:
            if cached.count:
                # A longer outcome replaces it, so it is the first to be removed.
                self._filters_by_use.move_to_end(id(cached), last=False)
            is_all_complete = all(index < run.complete_count for index, _ in new)
            complete_positions = (
                hidden_positions
                if is_all_complete
                else frozenset(position for position in hidden_positions if position[0] < run.complete_count)
            )
            self._remember(conversation, run.build_prefix(complete_positions))
        return run.build_result()

    # -- cached outcomes ---------------------------------------------------------

    def _find_prefix(
        self, conversation: Conversation, hidden_positions: frozenset[PartPosition]
    ) -> tuple[_CachedFilter, frozenset[PartPosition]]:
        """Returns the outcome for the longest cached beginning with the same decisions, and the decisions after it."""
        has_provider_history = conversation.previous is not None
        for count in range(len(conversation.chain), 0, -1):
            for cached in self._filters_by_key.get((conversation.chain[count - 1], has_provider_history), ()):
                rest = hidden_positions - cached.hidden_positions
                if len(rest) == len(hidden_positions) - len(cached.hidden_positions) and all(
                    position[0] >= count for position in rest
                ):
                    self._filters_by_use.move_to_end(id(cached))
                    return cached, rest
        return _EMPTY, hidden_positions

    def _remember(self, conversation: Conversation, prefix: _CachedFilter) -> None:
        key = (conversation.chain[prefix.count - 1], conversation.previous is not None)
        size = 1_000 + 120 * len(prefix.origins) + 400 * len(prefix.hidden_results) + prefix.weight
        prefix = replace(prefix, key=key, size=size)
        self._filters_by_key.setdefault(key, []).append(prefix)
        self._filters_by_use[id(prefix)] = prefix
        self._size += size
        while self._size > self._capacity:
            _, oldest = self._filters_by_use.popitem(last=False)
            self._size -= oldest.size
            others = [each for each in self._filters_by_key[oldest.key] if each is not oldest]
            if others:
                self._filters_by_key[oldest.key] = others
            else:
                del self._filters_by_key[oldest.key]


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
        self._read_message, self._protocol, self._conversation = read_message, protocol, conversation
        self._chain = list(prefix.chain)
        self._start = chain_start(tenant_key, protocol.name)
        self._origins = list(prefix.origins)
        self._edited = dict(prefix.edited)
        self._hidden_results = list(prefix.hidden_results)
        self._unremovable_results = set(prefix.unremovable_results)
        self._has_reference = prefix.has_reference
        # The number of messages up to the last point without a pending call, and the sizes of all lists there.
        self.complete_count = prefix.count
        self._weight = prefix.weight
        self._complete_sizes = self._sizes()
        for index, each in prefix.edited.items():
            if conversation.messages[index] is not each.original:
                self._refresh_edit(index, each)

    def add_range(self, first: int, end: int, positions: Sequence[PartPosition], is_complete: bool) -> None:
        """Adds a range of the client's list without the results at `positions`, which count from the range's start."""
        conversation = self._conversation
        messages = conversation.messages[first:end]
        removed_parts: Mapping[int, frozenset[int]] = {}
        if positions:
            removal = remove_results(
                self._protocol, messages, positions, self._has_reference or conversation.previous is not None
            )
            removed_parts = self._record_removal(messages, removal, first)
        is_unchanged = len(self._origins) == first and not self._edited and not removed_parts
        for index, message in enumerate(messages, first):
            each = self._edited.get(index)
            if each is None and index in removed_parts:
                continue
            self._origins.append(index)
            if is_unchanged:
                self._chain.append(conversation.chain[index])
            else:
                previous_key = self._chain[-1] if self._chain else self._start
                self._chain.append(chain_key(previous_key, (each.message if each is not None else message).key))
        self._has_reference = self._has_reference or any(map(has_item_reference, messages))
        if is_complete:
            self.complete_count, self._complete_sizes = end, self._sizes()

    def _sizes(self) -> tuple[int, int, bool, int]:
        return len(self._origins), len(self._hidden_results), self._has_reference, self._weight

    def build_prefix(self, hidden_positions: frozenset[PartPosition]) -> _CachedFilter:
        """Returns the outcome that can be cached: up to the last point without a pending call.

        `hidden_positions` are the decisions up to there.
        """
        count, (length, hidden_count, has_reference, weight) = self.complete_count, self._complete_sizes
        is_whole_list = count == len(self._conversation.messages)
        return _CachedFilter(
            count,
            hidden_positions,
            tuple(self._origins[:length]),
            tuple(self._chain[:length]),
            self._edited if is_whole_list else {index: each for index, each in self._edited.items() if index < count},
            tuple(self._hidden_results[:hidden_count]),
            frozenset(position for position in self._unremovable_results if position[0] < count),
            has_reference,
            weight,
        )

    def build_result(self) -> FilteredConversation:
        """Returns the filtered list."""
        conversation, unremovable = self._conversation, frozenset(self._unremovable_results)
        if not self._hidden_results:
            return FilteredConversation(
                conversation, range(len(conversation.messages)), unremovable_results=unremovable
            )
        messages = list(conversation.messages)
        for index, each in self._edited.items():
            messages[index] = each.message
        visible_messages = tuple(map(messages.__getitem__, self._origins))
        visible_conversation = replace(conversation, messages=visible_messages, chain=tuple(self._chain))
        return FilteredConversation(
            visible_conversation, tuple(self._origins), tuple(self._hidden_results), unremovable
        )

    def _record_removal(
        self, messages: Sequence[Message], removal: ResultRemoval, first: int
    ) -> Mapping[int, frozenset[int]]:
        """Records the removal in a range that begins at `first`; returns the removed parts by the client's index."""
        for index, wire in removal.edited_messages.items():
            each = _EditedMessage(messages[index], removal.removed_parts[index], self._read_message(wire))
            self._edited[first + index] = each
            self._weight += 2 * (len(each.original.wire) + len(wire)) + 1_000
        for (index, part), call in removal.removed_calls.items():
            result, name = messages[index].parts[part], ""
            if call is not None:
                call_part = messages[call[0]].parts[call[1]]
                name = call_part.name if isinstance(call_part, ToolCall) else ""
            call_id = result.call_id if isinstance(result, ToolResult) else ""
            self._hidden_results.append(FilteredResult(name, call_id, (first + index, part), _shift(call, first)))
        self._unremovable_results.update((first + index, part) for index, part in removal.unremovable_results)
        return {first + index: parts for index, parts in removal.removed_parts.items()}

    def _refresh_edit(self, index: int, edited: _EditedMessage) -> None:
        """Edits a message again where the client sent it in other bytes (it moves its cache breakpoints)."""
        message = self._conversation.messages[index]
        if message.wire != edited.original.wire:
            wire = self._protocol.edit_message(message, dict.fromkeys(edited.removed_parts))
            if wire is not None:
                self._edited[index] = _EditedMessage(message, edited.removed_parts, self._read_message(wire))


def _shift(position: PartPosition | None, offset: int) -> PartPosition | None:
    return None if position is None else (position[0] + offset, position[1])


def _without_trailing_assistant(
    messages: Sequence[Message], filtered_conversation: FilteredConversation
) -> FilteredConversation:
    """Removes assistant messages from the list's end if a hidden message followed them.

    Providers take a final assistant message for a reply to continue, or refuse it. The messages are visible again as
    soon as another message follows them.
    """
    visible_messages, end = (
        filtered_conversation.conversation.messages,
        len(filtered_conversation.conversation.messages),
    )
    while (
        filtered_conversation.hidden_results
        and messages[-1].role != "assistant"
        and end
        and visible_messages[end - 1].role == "assistant"
    ):
        end -= 1
    if end == len(visible_messages):
        return filtered_conversation
    shortened = replace(
        filtered_conversation.conversation,
        messages=visible_messages[:end],
        chain=filtered_conversation.conversation.chain[:end],
    )
    return replace(filtered_conversation, conversation=shortened, origins=filtered_conversation.origins[:end])


def _find_mandatory_result(
    messages: Sequence[Message], filtered_conversation: FilteredConversation
) -> PartPosition | None:
    """Returns a result that must stay, or None.

    Otherwise the list would be empty, or the assistant's message would be the first.
    """
    visible_messages, hidden_results = (
        filtered_conversation.conversation.messages,
        [each.result for each in filtered_conversation.hidden_results],
    )
    if hidden_results and not visible_messages:
        return max(hidden_results)
    return (
        min(hidden_results)
        if hidden_results and _user_speaks_first(messages) and not _user_speaks_first(visible_messages)
        else None
    )


def _user_speaks_first(messages: Sequence[Message]) -> bool:
    """Whether the first message is the user's, apart from system, developer and other messages."""
    roles = (message.role for message in messages)
    return next((role for role in roles if role not in ("system", "developer", "other")), "user") == "user"
