"""Compares the forwarded history, with insertions, to the one that compactions are planned on, without them.

A compaction drops the insertions after messages that it covers (composer.py). So a plan counts each insertion with the
message that it stands before, or that it replaces.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, takewhile

from msgspec.structs import replace

from accordion.model.boundaries import has_item_reference, is_reasoning_only
from accordion.model.compaction import CompactedConversation
from accordion.model.conversation import Message, Reasoning, ToolCall
from accordion.model.plan import INSERTED
from accordion.protocols.base import WireProtocol
from accordion.protocols.json_spans import fields_of, is_object


def count_extra_tokens(
    history: CompactedConversation,
    history_with_insertions: CompactedConversation,
    count_message: Callable[[Message], int],
) -> dict[int, int]:
    """Returns how many tokens the insertions add, by the position in `history` of the message that they belong to: a
    compaction that covers this message drops them."""
    tokens: Counter[int] = Counter()
    for position, own, inserted in _list_differences(history, history_with_insertions):
        tokens[position] += sum(map(count_message, inserted)) - sum(map(count_message, own))
    return {position: count for position, count in tokens.items() if count > 0}


def find_orphan_reasoning(
    history: CompactedConversation, history_with_insertions: CompactedConversation
) -> tuple[tuple[int, int], ...]:
    """Returns the positions in `history` of reasoning that led to calls of our tool, each with the position of the
    message that these calls belong to.

    The client does not have these calls, and a provider refuses the reasoning without the item that followed it. If it
    led to something else as well, all reasoning before that is included: only then does the provider take the rest as
    an item by itself. So are calls that the provider ran itself, if the reasoning before them is: they need it.
    """
    orphans: list[tuple[int, int]] = []
    for position, own, inserted in _list_differences(history, history_with_insertions):
        reasoning_keys = _find_reasoning_keys(inserted, {call for message in own for call in _call_ids(message)})
        # A client may reference an item by its id alone.
        ids = {_item_id(message) for message in inserted if message.key in reasoning_keys} - {b""}
        is_reasoning_orphan = False
        for at, message in enumerate(own):
            is_reasoning = has_item_reference(message) or is_reasoning_only(message)
            if is_reasoning:
                is_reasoning_orphan = message.key in reasoning_keys or _item_id(message) in ids
            if is_reasoning_orphan and (is_reasoning or _is_hosted_call(message)):
                orphans.append((position + at, position))
    return tuple(orphans)


def _item_id(message: Message) -> bytes:
    return fields_of(message.wire).get("id", b"") if is_object(message.wire) else b""


def _find_reasoning_keys(messages: Sequence[Message], client_call_ids: set[str]) -> set[bytes]:
    """Returns the keys of reasoning that led to calls of our tool."""
    keys: set[bytes] = set()
    for at in range(len(messages) - 2, -1, -1):
        message, following = messages[at], messages[at + 1]
        if is_reasoning_only(message) and (following.key in keys or _is_own_call(following, client_call_ids)):
            keys.add(message.key)
            outcome = takewhile(lambda each: not each.has_tool_result, messages[at + 1 :])
            if not all(is_reasoning_only(each) or _is_own_call(each, client_call_ids) for each in outcome):
                keys |= {each.key for each in messages[:at] if is_reasoning_only(each)}
    return keys


def _is_own_call(message: Message, client_call_ids: set[str]) -> bool:
    calls = _call_ids(message)
    return bool(calls) and not client_call_ids.intersection(calls) and not _is_hosted_call(message)


def _is_hosted_call(message: Message) -> bool:
    """Whether a message is a call that the provider ran itself, with its result."""
    return message.role == "assistant" and message.has_tool_result


def drop_bound_thinking(
    protocol: WireProtocol,
    history_with_insertions: CompactedConversation,
    history_before: CompactedConversation,
    read_message: Callable[[bytes], Message],
) -> CompactedConversation:
    """Removes the thinking after the first difference to `history_before`: it is bound to the former prefix.

    `read_message` parses written JSON.
    """
    messages, former = history_with_insertions.conversation.messages, history_before.conversation.messages
    same = sum(1 for _ in takewhile(lambda pair: pair[0].wire == pair[1].wire, zip(messages, former, strict=False)))
    remaining, edited = list(range(same)), dict(enumerate(messages))
    for at in range(same, len(messages)):
        thinking = [number for number, part in enumerate(messages[at].parts) if isinstance(part, Reasoning)]
        wire = protocol.edit_message(messages[at], dict.fromkeys(thinking)) if thinking else messages[at].wire
        if wire is not None:
            remaining.append(at)
            edited[at] = read_message(wire) if thinking else messages[at]
    conversation = replace(
        history_with_insertions.conversation,
        messages=tuple(edited[at] for at in remaining),
        chain=tuple(history_with_insertions.conversation.chain[at] for at in remaining),
    )
    origins, spans = (
        tuple(history_with_insertions.origins[at] for at in remaining),
        tuple(map(history_with_insertions.all_spans.__getitem__, remaining)),
    )
    return replace(history_with_insertions, conversation=conversation, origins=origins, spans=spans)


def _list_differences(
    history: CompactedConversation, history_with_insertions: CompactedConversation
) -> Iterator[tuple[int, Sequence[Message], Sequence[Message]]]:
    """Yields each difference: the position in `history`, its messages there, and the forwarded ones in their place.

    `history` may have a newer compaction than the forwarded one; messages that it covers are skipped.
    """
    own, until = (
        history.conversation.messages,
        history.covered_count,
    )
    if history_with_insertions.conversation.messages is own:
        return
    covered, has_newer_compaction = (
        sum(first < until for first, _, _ in history.spans),
        history.compaction != history_with_insertions.compaction,
    )
    last, messages = len(own) - 1, history_with_insertions.conversation.messages
    spans = history_with_insertions.all_spans
    for (is_inserted, span), group in groupby(
        range(len(messages)), lambda at: (history_with_insertions.origins[at] == INSERTED, spans[at])
    ):
        if has_newer_compaction and span[0] < until:
            continue
        run = list(group)
        position = min(covered + span[0] - until, last)
        if is_inserted:
            # A separate recall replaces no message: its span ends before it begins.
            yield position, own[position : position + span[1] - span[0] + 1], [messages[at] for at in run]
            continue
        message = own[run[0] if run[0] < covered and not has_newer_compaction else position]
        if message is not messages[run[0]]:
            # A recall was merged into it. In a message of the compaction it stays until what follows is covered.
            yield max(position, min(covered, last)), (message,), (messages[run[0]],)


def _call_ids(message: Message) -> list[str]:
    return [part.call_id for part in message.parts if isinstance(part, ToolCall)]
