"""The strategies for edits that a client asks for: they clear tool uses and thinking by the client's own rules.

They are no entries of the registry: a request that asks for edits builds them, with what it asks for. They apply all of
their steps, whatever the target. What they clear is archived, and a reference takes its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from accordion.compaction.strategies.base import (
    NO_ARGUMENTS,
    ProposedStep,
    Strategy,
    StrategyView,
    estimate_tokens,
)
from accordion.compaction.strategies.steps import is_earlier_replacement, replace_with_reference
from accordion.model.boundaries import PartPosition
from accordion.model.context_edits import ContextEdits, ThinkingClearing, ToolUseClearing
from accordion.model.conversation import Reasoning, ToolCall, ToolResult
from accordion.model.plan import Drop, Replace

_MAX_REFERENCE = 1_000
"""At most so many characters of a reference."""


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
