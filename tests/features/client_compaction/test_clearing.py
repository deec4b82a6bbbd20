"""The strategies for edits that a client asks for."""

from __future__ import annotations

import pytest

from accordion.compaction.planner import Planner, PlanState
from accordion.compaction.strategies.base import NO_ARGUMENTS, Strategy, StrategyView
from accordion.features.client_compaction.clearing import ClearThinking, ClearToolUses
from accordion.features.client_compaction.context_edits import ThinkingClearing, ToolUseClearing
from accordion.model.conversation import Reasoning, Text
from accordion.model.plan import Drop, PlanStep, Replace
from tests.compaction.view_samples import (
    assistant_message,
    call_and_result,
    message,
    strategy_view,
    uncompacted,
    user_message,
)

LONG = "x" * 2_000
HISTORY = uncompacted(
    user_message("o"),
    *call_and_result("a", LONG, "read", '{"path": "a long path to a file", "why": "to know it"}'),  # 1, 2
    *call_and_result("b", LONG, "list"),  # 3, 4
    assistant_message("well"),  # 5
    *call_and_result("c", LONG),  # 6, 7
    *call_and_result("d", LONG),  # 8, 9
    assistant_message("done"),  # 10
    user_message("t"),  # 11
)
THOUGHT = Reasoning("a thought " * 40, 10)
THOUGHTS = uncompacted(
    user_message("one"),
    message("assistant", THOUGHT, Text("first")),  # 1
    user_message("two"),
    message("assistant", THOUGHT, Text("second")),  # 3
    user_message("three"),
    message("assistant", Text("no thought")),  # 5
    user_message("four"),
    message("assistant", THOUGHT, Text("fourth")),  # 7
    user_message("five"),
)


def steps(view: StrategyView, strategy: Strategy) -> list[PlanStep]:
    return list(Planner([strategy]).plan(view, must_succeed=False).steps)


def cleared(**rules: object) -> list[int]:
    """The slots whose results are replaced."""
    plan = steps(strategy_view(HISTORY), ClearToolUses(ToolUseClearing(**rules)))  # type: ignore[arg-type]
    return [step.slot for step in plan if isinstance(step, Replace) and step.text != NO_ARGUMENTS]


@pytest.mark.parametrize(("keep", "slots"), [(0, [2, 4, 7, 9]), (1, [2, 4, 7]), (3, [2]), (4, []), (9, [])])
def test_all_uses_but_the_newest_are_cleared(keep: int, slots: list[int]) -> None:
    assert cleared(keep=keep) == slots


def test_a_tool_can_be_excluded() -> None:
    assert cleared(keep=1, excluded_tools=frozenset({"list"})) == [2, 7]


def test_nothing_is_cleared_if_it_would_be_too_little() -> None:
    assert cleared(keep=1, min_tokens=100_000) == []
    assert cleared(keep=1, min_tokens=10) == [2, 4, 7]


def test_all_of_it_is_cleared_whatever_the_target() -> None:
    view = strategy_view(HISTORY, target=100_000)
    plan = Planner([ClearToolUses(ToolUseClearing(keep=1))]).plan(view, must_succeed=False)
    assert [step.slot for step in plan.steps if isinstance(step, Replace)] == [2, 4, 7]


def test_a_reference_takes_the_place_of_a_result() -> None:
    view = PlanState(strategy_view(HISTORY)).current_view()
    step = next(iter(ClearToolUses(ToolUseClearing(keep=3)).propose(view)))
    assert isinstance(step, Replace)
    assert view.artifact_id_of(2, 0) in step.text
    assert "read(" in step.text


@pytest.mark.parametrize(("tools", "slots"), [(None, [1]), (frozenset({"read"}), [1]), (frozenset({"list"}), [])])
def test_the_inputs_of_calls_are_emptied(tools: frozenset[str] | None, slots: list[int]) -> None:
    clearing = ToolUseClearing(keep=3, clears_inputs=True, input_tools=tools)
    plan = steps(strategy_view(HISTORY), ClearToolUses(clearing))
    assert [step.slot for step in plan if isinstance(step, Replace) and step.text == NO_ARGUMENTS] == slots


@pytest.mark.parametrize(("keep", "slots"), [(1, [1, 3]), (2, [1]), (3, []), (1_000_000, [])])
def test_the_thinking_of_old_turns_is_cleared(keep: int, slots: list[int]) -> None:
    plan = steps(strategy_view(THOUGHTS, thinking="free"), ClearThinking(ThinkingClearing(keep)))
    assert plan == [Drop(slot, (0,)) for slot in slots]
