"""Edits that a client asks for: the strategies that clear tool uses and thinking, and what they have cleared so far.

The strategies are no entries of the registry: a request that asks for edits builds them, with what it asks for. They
apply all of their steps, whatever the target. What they clear is archived, and a reference takes its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from accordion.compaction.strategies.base import (
    NO_ARGUMENTS,
    ProposedStep,
    Strategy,
    StrategyView,
    estimate_tokens,
)
from accordion.compaction.strategies.steps import is_earlier_replacement, replace_with_reference
from accordion.features.client_compaction.context_edits import (
    ClearedContent,
    ContextEdits,
    ThinkingClearing,
    ToolUseClearing,
)
from accordion.model.boundaries import PartPosition
from accordion.model.compaction import CompactedConversation
from accordion.model.conversation import Message, Reasoning, Text, ToolCall, ToolResult
from accordion.model.plan import Drop, Replace

_MAX_REFERENCE = 1_000
"""Maximum number of characters of a reference."""


class ClearToolUses(Strategy):
    """Replaces the results of old tool uses by references, and the inputs of their calls if the client wants it."""

    name = "clear_tool_uses"
    ignores_target = True

    def __init__(self, clearing: ToolUseClearing) -> None:
        self._clearing = clearing

    def propose(self, view: StrategyView) -> Sequence[ProposedStep]:
        """Proposes a step for each result, and each input; none if together they would clear too little."""
        steps, cleared = list[ProposedStep](), 0
        for step in self._list_steps(view):
            steps.append(step)
            cleared += view.count_part_tokens(step.slot)[step.part] - step.tokens
        return steps if cleared >= max(1, self._clearing.min_tokens) else ()

    def _list_steps(self, view: StrategyView) -> Iterator[Replace]:
        uses = sorted(view.calls.items(), key=lambda entry: entry[1])
        newest = {result for result, _ in uses[max(0, len(uses) - self._clearing.keep) :]}
        own_results = {(slot, part) for slot, part, _ in view.list_results()}
        for result, position in uses:
            call = view.slots[position[0]].message.parts[position[1]]
            if result in newest or result not in own_results or not isinstance(call, ToolCall):
                continue
            if call.name in self._clearing.excluded_tools:
                continue
            yield from self._clear_result(view, result)
            yield from self._clear_input(view, position, call)

    def _clear_result(self, view: StrategyView, result: PartPosition) -> Iterator[Replace]:
        content = view.slots[result[0]].message.parts[result[1]]
        if not isinstance(content, ToolResult) or not view.is_replaceable(*result):
            return
        if is_earlier_replacement(view, result[0], content, _MAX_REFERENCE):
            return
        step = replace_with_reference(view, *result)
        if step.tokens < view.count_part_tokens(result[0])[result[1]]:
            yield step

    def _clear_input(self, view: StrategyView, position: PartPosition, call: ToolCall) -> Iterator[Replace]:
        clearing = self._clearing
        is_wanted = clearing.clears_inputs and (clearing.input_tools is None or call.name in clearing.input_tools)
        if is_wanted and view.free[position[0]] and estimate_tokens(call.arguments) > estimate_tokens(NO_ARGUMENTS):
            yield Replace(*position, NO_ARGUMENTS, estimate_tokens(NO_ARGUMENTS))


class ClearThinking(Strategy):
    """Drops the thinking of all turns but the newest ones that have some. A turn begins with a text of the user's."""

    name = "clear_thinking"
    ignores_target = True

    def __init__(self, clearing: ThinkingClearing) -> None:
        self._clearing = clearing

    def propose(self, view: StrategyView) -> Sequence[ProposedStep]:
        """Proposes a step for each message with such thinking."""
        turns = find_thinking_turns(view)
        old = sorted(turns)[: max(0, len(turns) - self._clearing.keep)]
        return [Drop(slot, parts) for turn in old for slot, parts in turns[turn]]


def find_thinking_turns(view: StrategyView) -> Mapping[int, list[tuple[int, tuple[int, ...]]]]:
    """Returns the slots with thinking, each with the parts that are thinking, by turn."""
    turns: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
    turn = 0
    for index, slot in enumerate(view.slots):
        turn += slot.has_user_text
        parts = tuple(at for at, part in enumerate(slot.message.parts) if isinstance(part, Reasoning))
        if parts and not view.removed[index]:
            turns.setdefault(turn, []).append((index, parts))
    return turns


def build_clearing(edits: ContextEdits) -> list[Strategy]:
    """Builds the strategies for the edits that clear content, thinking first."""
    strategies = list[Strategy]()
    if edits.thinking is not None:
        strategies.append(ClearThinking(edits.thinking))
    if edits.tool_uses is not None:
        strategies.append(ClearToolUses(edits.tool_uses))
    return strategies


def find_cleared_content(
    history: CompactedConversation, client: Sequence[Message], count_message: Callable[[Message], int]
) -> ClearedContent:
    """Compares a history with the client's messages: the results and the thinking that edits took out of them.

    Messages after a summary do not count: an edit clears parts of messages that stay.
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
