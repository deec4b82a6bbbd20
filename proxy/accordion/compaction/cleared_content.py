"""What edits that a client asked for have cleared in a history, and what they could still clear."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from accordion.model.compaction import CompactedConversation
from accordion.model.context_edits import ClearedContent, ContextEdits
from accordion.model.conversation import Message, Reasoning, Text, ToolResult

_MAX_REFERENCE = 1_000
"""At most so many characters of a text in place of a result."""


def find_cleared_content(
    history: CompactedConversation, client: Sequence[Message], count_message: Callable[[Message], int]
) -> ClearedContent:
    """Compares a history with the client's messages: the results and the thinking that edits took out of them.

    Messages behind a summary do not count: an edit clears parts of messages that stay.
    """
    turns, thinking_turns = _number_turns(client), set[int]()
    uses = use_tokens = thinking_tokens = 0
    for index, edited in _list_edited(history, client):
        original = client[index]
        saved = max(0, count_message(original) - (count_message(edited) if edited is not None else 0))
        cleared = _count_cleared_results(original, edited)
        has_less_thinking = _count_thinking(original) > (_count_thinking(edited) if edited is not None else 0)
        uses += cleared
        if has_less_thinking:
            thinking_turns.add(turns[index])
            thinking_tokens += saved
        else:
            use_tokens += saved
    return ClearedContent(uses, use_tokens, len(thinking_turns), thinking_tokens)


def can_clear(history: CompactedConversation, edits: ContextEdits, tokens: int) -> bool:
    """Whether the edits are due for a request of `tokens`, and there is something that they may clear.

    A use that was cleared before no longer counts, so that a list is not changed at every request.
    """
    if (clearing := edits.tool_uses) is not None:
        uses = sum(1 for _ in _list_uncleared_results(history))
        is_due = tokens >= clearing.trigger_tokens if clearing.trigger_uses is None else uses > clearing.trigger_uses
        if is_due and uses > clearing.keep:
            return True
    if edits.thinking is None:
        return False
    messages = history.conversation.messages
    turns = _number_turns(messages)
    with_thinking = {turns[index] for index, message in enumerate(messages) if _count_thinking(message)}
    return len(with_thinking) > edits.thinking.keep


def _list_edited(history: CompactedConversation, client: Sequence[Message]) -> Iterator[tuple[int, Message | None]]:
    """Yields the client's messages that were edited, by index, as they are now; None for those with nothing left."""
    left = set[int]()
    for message, (first, last, is_edited) in zip(history.conversation.messages, history.spans, strict=False):
        left.update(range(first, last + 1))
        if is_edited and first == last:
            yield first, message
    for index in range(history.covered_count if history.spans else 0):
        if index not in left and all(isinstance(part, Reasoning) for part in client[index].parts):
            yield index, None


def _count_cleared_results(original: Message, edited: Message | None) -> int:
    results = _results_by_call(edited) if edited is not None else {}
    return sum(results.get(call_id, result) != result for call_id, result in _results_by_call(original).items())


def _results_by_call(message: Message) -> Mapping[str, ToolResult]:
    return {part.call_id: part for part in message.parts if isinstance(part, ToolResult)}


def _count_thinking(message: Message) -> int:
    return sum(isinstance(part, Reasoning) for part in message.parts)


def _number_turns(messages: Sequence[Message]) -> list[int]:
    """Returns the number of each message's turn. A turn begins with a text of the user's."""
    turns, turn = list[int](), 0
    for message in messages:
        turn += message.has_user_text and not message.has_tool_result
        turns.append(turn)
    return turns


def _list_uncleared_results(history: CompactedConversation) -> Iterator[ToolResult]:
    spans = history.spans or ((0, 0, False),) * len(history.conversation.messages)
    for message, (_, _, is_edited) in zip(history.conversation.messages, spans, strict=True):
        if message.role == "assistant":
            continue
        for part in message.parts:
            if isinstance(part, ToolResult) and not (is_edited and _is_short(part)):
                yield part


def _is_short(result: ToolResult) -> bool:
    return (
        all(isinstance(part, Text) for part in result.parts)
        and sum(len(part.text) for part in result.parts if isinstance(part, Text)) <= _MAX_REFERENCE
    )
