"""Removes from a list the results, with their calls, that one agent may not see.

Theory of operation: `VisibilityFilter.apply` splits the list into ranges that no pending call crosses, and removes the
hidden results of each, with their calls and the reasoning that produced only these (`_remove_results`, a pure
function). It caches the outcome by the chain key of the last complete range. A longer list continues from there, so
that a new round of messages costs only that round.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set

import msgspec
from msgspec.structs import replace

from accordion.model.boundaries import PartPosition, has_item_reference, is_reasoning_only, match_results_to_calls
from accordion.model.conversation import Conversation, Message, Reasoning, ToolCall, ToolResult
from accordion.model.tenant import TenantScope
from accordion.protocols.base import WireProtocol
from accordion.protocols.legality import FIRST
from accordion.protocols.message_keys import chain_key, chain_start, identity_key
from accordion.protocols.written_messages import WrittenMessageReader

_MAX_ATTEMPTS = 8
"""Maximum number of results that are tried as the one that stays, if a provider would refuse the list without all."""


class FilteredResult(msgspec.Struct, frozen=True):
    """A removed result and its removed call, by their positions in the client's list.

    `name` is empty and `call` None if the list had no call.
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
    edits: dict[int, _EditedMessage]
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
        self,
        protocol: WireProtocol,
        tenant: TenantScope,
        conversation: Conversation,
        hidden_positions: Set[PartPosition],
    ) -> FilteredConversation:
        """Returns the conversation without the results at `hidden_positions`, or itself if there are none.

        Positions of parts that are not results have no effect. Each result is removed with its call, matched by order;
        also messages without remaining parts, and reasoning that led only to removed output. All other text, and the
        other calls of a parallel batch, stay; but assistant messages at the end, after which everything is hidden, are
        left out until a visible message follows them. The list is legal if the client's was.

        A longer list with the same decisions begins with this list, up to the last message of a user or a tool with no
        pending call, unless there are `unremovable_results`.
        """
        hidden, unremovable = frozenset(hidden_positions), frozenset[PartPosition]()
        while hidden:
            filtered = _without_trailing_assistant(
                conversation.messages, self._filter(protocol, tenant, conversation, hidden)
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
        tenant: TenantScope,
        conversation: Conversation,
        hidden_positions: frozenset[PartPosition],
    ) -> FilteredConversation:
        cached, new = self._find_prefix(conversation, hidden_positions)
        read_message = self._message_reader.reader_for(protocol, tenant)
        try:
            run = _FilterRun(read_message, protocol, tenant, conversation, cached)
        except ValueError:
            # The message has the same content in a form that the protocol cannot edit.
            cached, new = _EMPTY, hidden_positions
            run = _FilterRun(read_message, protocol, tenant, conversation, cached)
        parts_by_message: dict[int, list[int]] = {}
        for index, part in new:
            parts_by_message.setdefault(index, []).append(part)
        for first, end, is_complete in _split_into_ranges(conversation.messages, cached.count):
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
        has_provider_history = conversation.is_kept_by_provider
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
        key = (conversation.chain[prefix.count - 1], conversation.is_kept_by_provider)
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
        tenant: TenantScope,
        conversation: Conversation,
        prefix: _CachedFilter,
    ) -> None:
        self._read_message, self._protocol, self._conversation = read_message, protocol, conversation
        self._chain = list(prefix.chain)
        self._start = chain_start(tenant, protocol.name)
        self._origins = list(prefix.origins)
        self._edits = dict(prefix.edits)
        self._hidden_results = list(prefix.hidden_results)
        self._unremovable_results = set(prefix.unremovable_results)
        self._has_reference = prefix.has_reference
        # The number of messages up to the last point without a pending call, and the sizes of all lists there.
        self.complete_count = prefix.count
        self._weight = prefix.weight
        self._complete_sizes = self._sizes()
        for index, each in prefix.edits.items():
            if conversation.messages[index] is not each.original:
                self._refresh_edit(index, each)

    def add_range(self, first: int, end: int, positions: Sequence[PartPosition], is_complete: bool) -> None:
        """Adds a range of the client's list without the results at `positions`, which count from the range's start."""
        conversation = self._conversation
        messages = conversation.messages[first:end]
        removed_parts: Mapping[int, frozenset[int]] = {}
        if positions:
            removal = _remove_results(
                self._protocol, messages, positions, self._has_reference or conversation.is_kept_by_provider
            )
            removed_parts = self._record_removal(messages, removal, first)
        is_unchanged = len(self._origins) == first and not self._edits and not removed_parts
        for index, message in enumerate(messages, first):
            each = self._edits.get(index)
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
            self._edits if is_whole_list else {index: each for index, each in self._edits.items() if index < count},
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
        for index, each in self._edits.items():
            messages[index] = each.message
        visible_messages = tuple(map(messages.__getitem__, self._origins))
        visible_conversation = replace(
            conversation,
            messages=visible_messages,
            chain=tuple(self._chain),
            identity=self._identity(visible_messages),
        )
        return FilteredConversation(
            visible_conversation, tuple(self._origins), tuple(self._hidden_results), unremovable
        )

    def _identity(self, visible_messages: Sequence[Message]) -> tuple[bytes, ...]:
        """Returns the identity keys of the filtered list; empty if they are its chain."""
        client = self._conversation
        if not client.identity:
            return ()
        identity = list[bytes]()
        for at, (origin, message) in enumerate(zip(self._origins, visible_messages, strict=True)):
            if origin == at and self._chain[at] == client.chain[at]:
                identity.append(client.identity[at])
            else:
                identity.append(identity_key(identity[-1] if identity else self._start, message, self._start))
        return tuple(identity)

    def _record_removal(
        self, messages: Sequence[Message], removal: _ResultRemoval, first: int
    ) -> Mapping[int, frozenset[int]]:
        """Records the removal in a range that begins at `first`; returns the removed parts by the client's index."""
        for index, wire in removal.edited_messages.items():
            each = _EditedMessage(messages[index], removal.removed_parts[index], self._read_message(wire))
            self._edits[first + index] = each
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
        """Edits a message again if the client sent it in other bytes (it moves its cache breakpoints)."""
        message = self._conversation.messages[index]
        if message.wire != edited.original.wire:
            wire = self._protocol.edit_message(message, dict.fromkeys(edited.removed_parts))
            if wire is not None:
                self._edits[index] = _EditedMessage(message, edited.removed_parts, self._read_message(wire))


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
        identity=filtered_conversation.conversation.identity[:end],
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


# -- removal from one range --------------------------------------------------------------------------------------------


class _ResultRemoval(msgspec.Struct, frozen=True):
    """The changes to a range; indexes count from its beginning.

    `removed_parts` has the removed parts, by message. `edited_messages` has the JSON of the messages that keep a part;
    the other messages in `removed_parts` are removed whole. `removed_calls` has the call of each removed result (or
    None), `unremovable_results` the results that must stay.
    """

    removed_parts: Mapping[int, frozenset[int]]
    edited_messages: Mapping[int, bytes]
    removed_calls: Mapping[PartPosition, PartPosition | None]
    unremovable_results: frozenset[PartPosition]


def _split_into_ranges(messages: Sequence[Message], start: int) -> Iterator[tuple[int, int, bool]]:
    """Splits the list from `start` on after each message of the user or a tool with no pending call.

    Yields the first index, the end, and whether the range ends at such a message.
    """
    open_calls: Counter[str] = Counter()
    first = start
    for index in range(start, len(messages)):
        message = messages[index]
        for part in message.parts:
            if isinstance(part, ToolCall):
                open_calls[part.call_id] += 1
            elif isinstance(part, ToolResult) and part.call_id in open_calls:
                open_calls[part.call_id] -= 1
                if not open_calls[part.call_id]:
                    del open_calls[part.call_id]
        if not open_calls and message.role in ("user", "tool"):
            yield first, index + 1, True
            first = index + 1
    if first < len(messages):
        yield first, len(messages), False


def _remove_results(
    protocol: WireProtocol,
    messages: Sequence[Message],
    hidden_positions: Collection[PartPosition],
    has_provider_history: bool,
) -> _ResultRemoval:
    """Removes the results at `hidden_positions` from a range.

    `has_provider_history` says that only the provider may know calls from before the range. A result stays if its
    call cannot be removed: if the protocol does not allow the edit, or a reference of Responses may refer to the
    call or its reasoning. If a provider would refuse the remaining list, one more result stays, or all of them.
    """
    hidden_positions = sorted(position for position in hidden_positions if _is_result(messages, position))
    fixed_messages, calls_by_result = _find_output_behind_references(messages), match_results_to_calls(messages)
    # After a reference, a result may belong to a call that only the provider has; it refuses that call without result.
    reference = next((index for index, message in enumerate(messages) if has_item_reference(message)), len(messages))
    reference = -1 if has_provider_history else reference
    pairs: dict[PartPosition, PartPosition | None] = {}
    for position in hidden_positions:
        call = calls_by_result.get(position)
        if not (reference < position[0] if call is None else call[0] in fixed_messages):
            pairs[position] = call
    for attempt in _list_attempts(pairs):
        removal = _remove_pairs(protocol, messages, attempt)
        if not _becomes_illegal(protocol, messages, removal):
            break
    return _ResultRemoval(
        removal.removed_parts,
        removal.edited_messages,
        removal.removed_calls,
        frozenset(hidden_positions) - removal.removed_calls.keys(),
    )


def _is_result(messages: Sequence[Message], position: PartPosition) -> bool:
    parts = messages[position[0]].parts
    return 0 <= position[1] < len(parts) and isinstance(parts[position[1]], ToolResult)


def _list_attempts(pairs: dict[PartPosition, PartPosition | None]) -> Iterator[dict[PartPosition, PartPosition | None]]:
    """Yields all pairs, then all but one, then none."""
    yield pairs
    for excepted in list(reversed(pairs))[:_MAX_ATTEMPTS]:
        yield {position: call for position, call in pairs.items() if position != excepted}
    yield {}


def _remove_pairs(
    protocol: WireProtocol, messages: Sequence[Message], pairs: Mapping[PartPosition, PartPosition | None]
) -> _ResultRemoval:
    """Removes pairs; those that the protocol cannot remove stay, with the pairs that depend on them."""
    remaining = dict(pairs)
    while True:
        removed_parts: dict[int, set[int]] = {}
        for position in (*remaining, *filter(None, remaining.values())):
            removed_parts.setdefault(position[0], set()).add(position[1])
        removed_messages = _remove_reasoning(messages, removed_parts)
        wires: dict[int, bytes] = {}
        unremovable: set[PartPosition] = set()
        for index, parts in removed_parts.items():
            if index not in removed_messages:
                unremovable |= _edit_message(protocol, messages[index], index, parts, wires)
        if not unremovable:
            return _ResultRemoval(
                {index: frozenset(parts) for index, parts in removed_parts.items()}, wires, remaining, frozenset()
            )
        remaining = {
            result: call for result, call in remaining.items() if result not in unremovable and call not in unremovable
        }


def _edit_message(
    protocol: WireProtocol, message: Message, index: int, parts: Collection[int], wires: dict[int, bytes]
) -> set[PartPosition]:
    """Edits a message; returns the positions of parts that the protocol cannot remove."""
    try:
        wire = protocol.edit_message(message, dict.fromkeys(parts))
    except ValueError:
        output_parts = [part for part in parts if not isinstance(message.parts[part], Reasoning)]
        return {(index, part) for part in output_parts if not _can_remove(protocol, message, part)} or {
            (index, part) for part in output_parts
        }
    if wire is not None:
        wires[index] = wire
    return set()


def _can_remove(protocol: WireProtocol, message: Message, part: int) -> bool:
    try:
        protocol.edit_message(message, {part: None})
    except ValueError:
        return False
    return True


def _remove_reasoning(messages: Sequence[Message], removed_parts: dict[int, set[int]]) -> set[int]:
    """Adds to `removed_parts` the reasoning that produced only removed output; returns the wholly removed messages.

    Reasoning produces the model's output after it, up to the next reasoning: within a message, or, as an item of its
    own, up to the next message that is not the model's. A message's reasoning is also removed if nothing else
    remains.
    """
    for index, parts in removed_parts.items():
        _remove_reasoning_within(messages[index], parts)
    removed_messages = {index for index, parts in removed_parts.items() if len(parts) == len(messages[index].parts)}
    has_output, is_output_removed = False, False  # whether output follows, and whether all of it is removed
    starts_group = True  # whether the output that follows belongs to other reasoning
    for index in range(max(removed_messages, default=-1), -1, -1):
        message = messages[index]
        if has_item_reference(message):
            # The reference stays, and may be output of the reasoning before it.
            has_output, is_output_removed, starts_group = True, False, False
        elif message.role != "assistant":
            has_output, is_output_removed, starts_group = False, False, True
        elif is_reasoning_only(message):
            if has_output and is_output_removed:
                removed_parts[index] = set(range(len(message.parts)))
                removed_messages.add(index)
            starts_group = True
        else:
            is_output_removed = index in removed_messages and (starts_group or is_output_removed)
            has_output, starts_group = True, False
    return removed_messages


def _remove_reasoning_within(message: Message, removed: set[int]) -> None:
    reasoning_indexes = [at for at, part in enumerate(message.parts) if isinstance(part, Reasoning)]
    if len(removed) + len(reasoning_indexes) == len(message.parts):
        removed.update(reasoning_indexes)
        return
    end, is_output_removed = len(message.parts), True
    for at in reversed(reasoning_indexes):
        output = range(at + 1, end)
        # Consecutive reasoning parts produce the same output.
        is_output_removed = (
            all(after in removed for after in output) if output else is_output_removed and end < len(message.parts)
        )
        if is_output_removed:
            removed.add(at)
        end = at


def _find_output_behind_references(messages: Sequence[Message]) -> set[int]:
    """Returns the messages of the model after a reference in the same response.

    The reference may be their reasoning, which the provider refuses without its output.
    """
    output, has_reference = set(), False
    for index, message in enumerate(messages):
        if has_item_reference(message):
            has_reference = True
        elif message.role != "assistant":
            has_reference = False
        elif has_reference:
            output.add(index)
    return output


def _becomes_illegal(protocol: WireProtocol, messages: Sequence[Message], removal: _ResultRemoval) -> bool:
    """Whether the removal adds a problem for which a provider refuses the list.

    The rule about the first role is left out; it concerns the whole list.
    """
    if not removal.removed_calls:
        return False
    remaining = [
        message if index not in removal.removed_parts else _read_message(protocol, removal.edited_messages[index])
        for index, message in enumerate(messages)
        if index not in removal.removed_parts or index in removal.edited_messages
    ]
    new_problems = Counter(protocol.find_problems(remaining)) - Counter(protocol.find_problems(messages))
    return any(problem != FIRST for problem in new_problems)


def _read_message(protocol: WireProtocol, wire: bytes) -> Message:
    parsed = protocol.read_message(wire)
    return Message(b"", parsed.role, parsed.parts, wire)
