from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import chain
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accordion.archive.references import artifact_id, range_id
from accordion.compaction.planner import Planner, PlanState
from accordion.compaction.request import RequestBudgets
from accordion.compaction.rules import filter_steps
from accordion.compaction.strategies import DEFAULT_STRATEGIES, STRATEGIES, build_strategy
from accordion.compaction.strategies.base import DeferredReplace, Plan, ProposedStep, Strategy, StrategyView
from accordion.compaction.view import build_view
from accordion.model.budget import CompactionKind
from accordion.model.compaction import CompactedConversation, without_compaction
from accordion.model.conversation import Media, Message, Reasoning, Text, ToolCall, ToolResult
from accordion.model.plan import Drop, PlanStep, Replace, Summarize
from tests.compaction.view_samples import (
    OVERHEAD,
    TENANT,
    assistant_message,
    call_and_result,
    call_message,
    count,
    find_faults,
    message,
    outcome,
    read,
    result_message,
    strategy_view,
    uncompacted,
    user_message,
    with_longer_results,
)
from tests.histories import PROTOCOL_NAMES, History, ProtocolName, histories
from tests.tiers import examples


class FixedProposal(Strategy):
    """A strategy that proposes what it was given."""

    summary_model = ""

    def __init__(self, steps: Sequence[ProposedStep], name: str = "given") -> None:
        self.steps, self.name = steps, name

    def propose(self, view: StrategyView) -> Sequence[ProposedStep]:
        return self.steps


def planned(view: StrategyView, *steps: PlanStep | DeferredReplace, must_succeed: bool = False) -> Plan:
    """What the planner makes of these steps."""
    return Planner([FixedProposal(steps)]).plan(view, must_succeed=must_succeed)


IMAGE = Media("image", "image/png", 9_000, 64, 64)
SHIPPED_PLANNER = Planner([build_strategy(name) for name in DEFAULT_STRATEGIES])
LONG = uncompacted(
    user_message("opening"),  # 0
    *call_and_result("a", "one " * 100),  # 1, 2
    assistant_message("done " * 20),  # 3
    user_message("task"),  # 4
    *call_and_result("b", "two " * 100),  # 5, 6
    *call_and_result("c", "three " * 100),  # 7, 8
)


# -- what strategies may not do --------------------------------------------------


@pytest.mark.parametrize(
    "step",
    [
        Replace(8, 0, "x", 1),
        Replace(0, 0, "x", 1),
        Replace(4, 0, "x", 1),
        Replace(1, 0, "x", 1),
        Replace(2, 7, "x", 1),
        Replace(99, 0, "x", 1),
        Drop(0),
        Drop(2),
        Drop(2, (0,)),
        Drop(1, (0,)),
        Drop(8),
        Drop(99),
        Drop(2, (9,)),
        Summarize(6, 8, 10),
        Summarize(1, 1, 10),
        Summarize(1, 3, 0),
    ],
)
def test_a_step_that_touches_what_it_may_not_is_left_undone(step: PlanStep) -> None:
    assert planned(strategy_view(LONG), step).proposals == ()


def test_a_pair_leaves_as_a_whole() -> None:
    plan = planned(strategy_view(LONG), Drop(1), Drop(2))
    assert plan.steps == (Drop(1), Drop(2))
    assert plan.after == plan.view.tokens - plan.view.slots[1].tokens - plan.view.slots[2].tokens


def test_a_summary_is_drawn_in_to_whole_groups() -> None:
    assert planned(strategy_view(LONG), Summarize(0, 7, 10)).steps == (Summarize(1, 6, 10),)
    assert planned(strategy_view(LONG), Summarize(2, 5, 10)).steps == (Summarize(3, 3, 10),)


def test_pinned_results_and_calls_are_touched_by_nobody() -> None:
    view = strategy_view(LONG, pinned_call_ids=frozenset({"a"}))
    assert planned(view, Replace(2, 0, "x", 1), Drop(1), Drop(2), Summarize(1, 2, 5)).steps == ()


PARALLEL = message("assistant", ToolCall("x", "read", "{}"), ToolCall("y", "read", "{}"))


def test_one_pair_of_a_parallel_batch_may_leave() -> None:
    view = strategy_view(
        uncompacted(
            user_message("o"),
            PARALLEL,
            result_message("x", "1"),
            result_message("y", "2"),
            assistant_message("ok"),
            user_message("t"),
        )
    )
    assert planned(view, Drop(1, (0,)), Drop(2)).steps == (Drop(1, (0,)), Drop(2, (0,)))
    assert planned(view, Drop(1, (0,)), Drop(3)).steps == ()


def test_results_of_hosted_tools_are_never_replaced() -> None:
    hosted = message("assistant", ToolCall("s", "search", "{}"), ToolResult("s", (Text("found " * 50),)))
    view = strategy_view(uncompacted(user_message("o"), hosted, assistant_message("ok"), user_message("t")))
    assert planned(view, Replace(1, 1, "x", 1)).steps == ()
    assert planned(view, Drop(1)).steps == (Drop(1),)


def test_reasoning_that_an_item_with_an_id_needs_stays_with_it() -> None:
    thought = message("assistant", Reasoning("hm " * 50))
    named = message("assistant", ToolCall("a", "read", "{}"), wire=b'{"id":"fc_1"}')
    view = strategy_view(
        uncompacted(
            user_message("o"), thought, named, result_message("a", "1"), assistant_message("ok"), user_message("t")
        )
    )
    assert planned(view, Drop(2), Drop(3)).steps == ()
    assert planned(view, Drop(1), Drop(2), Drop(3)).steps == (Drop(1), Drop(2), Drop(3))
    answer = message("assistant", Text("well"), wire=b'{"id":"msg_1"}')
    history = uncompacted(user_message("o"), thought, answer, user_message("t"))
    assert planned(strategy_view(history), Drop(1, (0,))).steps == ()
    nameless = uncompacted(user_message("o"), thought, assistant_message("well"), user_message("t"))
    assert planned(strategy_view(nameless), Drop(1, (0,))).steps == (Drop(1, (0,)),)


def test_reasoning_never_leaves_the_calls_that_it_led_to() -> None:
    thought, text = Reasoning("hm " * 50), Text("I look. " * 20)
    calling = message("assistant", thought, text, ToolCall("a", "read", "{}"))
    end = (result_message("a", "1"), assistant_message("ok"), user_message("t"))
    view = strategy_view(uncompacted(user_message("o"), calling, *end))
    assert planned(view, Drop(1, (0,))).steps == ()
    assert planned(view, Drop(1, (0, 1))).steps == ()
    assert planned(view, Drop(1), Drop(2)).steps == (Drop(1), Drop(2))
    items = (message("assistant", thought), message("assistant", text), call_message("a"))
    apart = strategy_view(uncompacted(user_message("o"), *items, *end))
    assert planned(apart, Drop(1, (0,))).steps == ()
    assert planned(apart, Drop(1), Drop(2)).steps == ()


def test_reasoning_of_the_open_tool_turn_stays_unless_its_group_leaves() -> None:
    thinking = message("assistant", Reasoning("hm " * 50), ToolCall("b", "read", "{}"))
    view = strategy_view(
        uncompacted(user_message("task"), thinking, result_message("b", "2"), *call_and_result("c", "3"))
    )
    assert planned(view, Drop(1, (0,))).steps == ()
    assert planned(view, Drop(1), Drop(2)).steps == (Drop(1), Drop(2))


# -- how a plan is made ------------------------------------------------------------


def test_strategies_run_in_order_each_on_what_the_one_before_left() -> None:
    seen: list[StrategyView] = []

    class Looks(FixedProposal):
        def propose(self, view: StrategyView) -> Sequence[ProposedStep]:
            seen.append(view)
            return super().propose(view)

    view = strategy_view(LONG)
    first, second = Looks((Replace(2, 0, "short", 3),), "first"), Looks((Summarize(3, 3, 1),), "second")
    plan = Planner([first, second]).plan(view, must_succeed=False)
    assert [each.strategy for each in plan.proposals] == ["first", "second"]
    assert seen[1].slots[2].message.parts == (ToolResult("a", (Text("short"),)),)
    assert seen[1].tokens == view.tokens - (view.slots[2].tokens - 4 - 3)


def test_the_pipeline_stops_where_the_target_is_met() -> None:
    view = strategy_view(LONG, target=450)
    plan = planned(view, Replace(2, 0, "x", 1), Replace(6, 0, "x", 1))
    assert plan.steps == (Replace(2, 0, "x", 1),)
    assert planned(strategy_view(LONG, target=10_000), Replace(2, 0, "x", 1)).proposals == ()


def test_a_strategy_that_ignores_the_target_has_all_of_its_steps_applied() -> None:
    class Ignores(FixedProposal):
        ignores_target = True

    steps = (Replace(2, 0, "x", 1), Replace(6, 0, "x", 1))
    after = FixedProposal((Replace(2, 0, "y", 1),), "after")
    plan = Planner([Ignores(steps), after]).plan(strategy_view(LONG, target=10_000), must_succeed=False)
    assert plan.steps == steps


@pytest.mark.parametrize(
    ("text", "pinned", "is_legal"),
    [("{}", frozenset(), True), ("{}", frozenset({"a"}), False), ('{"a": 1}', frozenset(), False)],
)
def test_the_arguments_of_an_answered_call_can_only_be_emptied(
    text: str, pinned: frozenset[str], is_legal: bool
) -> None:
    plan = planned(strategy_view(LONG, pinned_call_ids=pinned), Replace(1, 0, text, 1))
    assert plan.steps == ((Replace(1, 0, text, 1),) if is_legal else ())


def test_a_strategy_that_fails_is_left_out_and_the_others_go_on() -> None:
    class Fails(FixedProposal):
        def propose(self, view: StrategyView) -> Sequence[ProposedStep]:
            raise RuntimeError("broken")

    plan = Planner([Fails((), "fails"), FixedProposal((Replace(2, 0, "x", 1),), "works")]).plan(
        strategy_view(LONG), must_succeed=False
    )
    assert [each.strategy for each in plan.proposals] == ["works"]


def test_figures_of_steps_follow_each_other() -> None:
    view = strategy_view(LONG)
    plan = Planner([FixedProposal((Replace(2, 0, "x", 1),), "a"), FixedProposal((Summarize(3, 6, 20),), "b")]).plan(
        view, must_succeed=False
    )
    first, second = plan.proposals
    assert (first.before, first.after) == (view.tokens, second.before)
    assert second.after == plan.after < first.after


def test_a_text_is_only_written_for_what_stays() -> None:
    written: list[int] = []

    def write(number: int) -> str:
        written.append(number)
        return f"reference {number}"

    steps = [DeferredReplace(2, 0, 60, lambda: write(2)), DeferredReplace(6, 0, 60, lambda: write(6))]
    plan = Planner([FixedProposal(steps, "archive"), FixedProposal([Summarize(1, 3, 30)], "sum")]).plan(
        strategy_view(LONG), must_succeed=False
    )
    assert written == [6]
    assert [type(step) for step in plan.steps] == [Replace, Summarize]
    assert plan.proposals[0].before == plan.view.tokens


def test_a_strategy_of_which_nothing_is_left_is_not_told_of() -> None:
    plan = Planner([FixedProposal([Replace(2, 0, "x", 1)], "gone"), FixedProposal([Summarize(1, 3, 30)], "sum")]).plan(
        strategy_view(LONG), must_succeed=False
    )
    assert [(each.strategy, each.before) for each in plan.proposals] == [("sum", plan.view.tokens)]


def test_thinking_behind_the_first_change_goes_where_it_is_bound_to_it() -> None:
    def thinks(call_id: str) -> Message:
        return message("assistant", Reasoning("hm", 40), ToolCall(call_id, "read", "{}"))

    compacted = uncompacted(
        user_message("o"),
        thinks("a"),
        result_message("a", "1" * 400),
        thinks("b"),
        result_message("b", "2" * 400),
        assistant_message("ok"),
        user_message("t"),
    )
    step = Replace(2, 0, "x", 1)
    assert planned(strategy_view(compacted, thinking="bound"), step).steps == (step, Drop(3, (0,)))
    assert planned(strategy_view(compacted, thinking="free"), step).steps == (step,)
    assert planned(strategy_view(compacted, thinking="droppable"), step).steps == (step,)


def test_all_thinking_goes_where_it_is_bound_and_a_compaction_brings_our_tool_along() -> None:
    thinks = message("assistant", Reasoning("hm", 40), ToolCall("a", "read", "{}"))
    compacted = uncompacted(
        user_message("o"),
        thinks,
        result_message("a", "1" * 400),
        *call_and_result("b", "2" * 400),
        assistant_message("ok"),
        user_message("t"),
    )
    step = Replace(4, 0, "x", 1)
    assert planned(strategy_view(compacted, thinking="bound", is_tool_new=True), step).steps == (step, Drop(1, (0,)))
    assert planned(strategy_view(compacted, thinking="bound"), step).steps == (step,)
    assert planned(strategy_view(compacted, thinking="free", is_tool_new=True), step).steps == (step,)


def test_a_generation_plan_that_misses_the_limit_becomes_a_conversation_plan() -> None:
    compacted = uncompacted(
        user_message("o"),
        *call_and_result("a", "x" * 40_000),
        assistant_message("ok"),
        user_message("t"),
        *call_and_result("b", "1"),
        *call_and_result("c", "2"),
    )
    asked: list[str] = []

    def view(kind: CompactionKind) -> StrategyView:
        asked.append(kind)
        return strategy_view(compacted, kind, limit=5_000)

    plan, passes = SHIPPED_PLANNER.plan_first_fitting(view, ("generation", "conversation"), must_succeed=True)
    assert (asked, passes, plan.view.kind) == (["generation", "conversation"], 2, "conversation")
    assert plan.after <= 5_000


def test_a_generation_that_comes_under_the_limit_is_left_at_that() -> None:
    compacted = uncompacted(
        user_message("t"),
        *call_and_result("a", "x" * 40_000),
        *call_and_result("b", "1"),
        *call_and_result("c", "2"),
        *call_and_result("d", "3"),
    )
    plan, passes = SHIPPED_PLANNER.plan_first_fitting(
        lambda kind: strategy_view(compacted, kind, limit=5_000), ("generation", "conversation"), must_succeed=True
    )
    assert (passes, plan.view.kind) == (1, "generation")


def test_a_generation_plan_of_little_gain_gives_way_to_a_conversation_plan() -> None:
    """The history of turns before would else stay, and each of the next requests be compacted for next to nothing."""
    old = [
        message
        for at in range(6)
        for message in (*call_and_result(f"old{at}", "x" * 8_000), assistant_message("ok"), user_message("next"))
    ]
    compacted = uncompacted(
        user_message("o"),
        *old,
        *call_and_result("a", "y" * 4_000),
        *call_and_result("b", "1"),
        *call_and_result("c", "2"),
    )
    plan, passes = SHIPPED_PLANNER.plan_first_fitting(
        lambda kind: strategy_view(compacted, kind, limit=20_000, target=2_000),
        ("generation", "conversation"),
        must_succeed=False,
    )
    assert (passes, plan.view.kind) == (2, "conversation")
    assert plan.after < 0.5 * plan.view.tokens


def test_a_generation_that_gains_as_much_as_a_conversation_would_is_left_at_that() -> None:
    compacted = uncompacted(
        user_message("t"),
        user_message("x" * 40_000),
        *call_and_result("a", "y" * 4_000),
        *call_and_result("b", "1"),
        *call_and_result("c", "2"),
    )
    plan, passes = SHIPPED_PLANNER.plan_first_fitting(
        lambda kind: strategy_view(compacted, kind, limit=20_000, target=2_000),
        ("generation", "conversation"),
        must_succeed=False,
    )
    assert (passes, plan.view.kind) == (2, "generation")


# -- the last resort ----------------------------------------------------------------


def test_the_largest_result_of_the_newest_batch_is_sliced_as_far_as_needed() -> None:
    huge = "begin " + "x" * 40_000 + " end"
    compacted = uncompacted(user_message("task"), PARALLEL, result_message("x", "small"), result_message("y", huge))
    view = strategy_view(compacted, limit=4_000)
    (proposal,) = SHIPPED_PLANNER.plan(view, must_succeed=True).proposals
    (step,) = proposal.steps
    assert proposal.strategy == "last_resort"
    assert isinstance(step, Replace)
    assert (step.slot, step.part) == (3, 0)
    assert step.text.startswith("begin ")
    assert step.text.endswith(" end")
    assert artifact_id(TENANT, view.slots[3].message.key, 0) in step.text
    assert 3_500 < proposal.after <= 4_000
    assert SHIPPED_PLANNER.plan(view, must_succeed=False).proposals == ()


def test_task_and_opening_are_sliced_last() -> None:
    compacted = uncompacted(
        user_message("o" * 20_000),
        assistant_message("ok"),
        user_message("t" * 20_000),
        *call_and_result("a", "x" * 20_000),
    )
    plan = SHIPPED_PLANNER.plan(strategy_view(compacted, limit=11_000), must_succeed=True)
    assert [step.slot for step in plan.steps if isinstance(step, Replace)] == [4]
    plan = SHIPPED_PLANNER.plan(strategy_view(compacted, limit=6_000), must_succeed=True)
    assert [step.slot for step in plan.steps if isinstance(step, Replace)] == [4, 0]
    plan = SHIPPED_PLANNER.plan(strategy_view(compacted, limit=1_500), must_succeed=True)
    assert [step.slot for step in plan.steps if isinstance(step, Replace)] == [4, 0, 2]
    assert plan.after <= 1_500


def test_before_anything_is_sliced_all_leaves_that_may() -> None:
    compacted = uncompacted(
        user_message("o"),
        *call_and_result("a", "x" * 8_000),
        assistant_message("y" * 8_000),
        user_message("t"),
        *call_and_result("b", "z" * 4_000),
    )
    plan = Planner([]).plan(strategy_view(compacted, limit=2_000), must_succeed=True)
    (step,) = plan.steps
    assert isinstance(step, Summarize)
    assert "3 earlier messages" in step.note
    assert plan.after <= 2_000


CROWDED = uncompacted(
    user_message("task"),
    *call_and_result("a", "x" * 8_000),
    assistant_message("y" * 4_000),
    *call_and_result("b", "z" * 4_000),
)
STAYING = OVERHEAD + sum(map(count, (CROWDED.conversation.messages[index] for index in (0, 4, 5))))


def test_the_newest_batch_stays_whole_if_a_note_fits_beside_it() -> None:
    view = strategy_view(CROWDED, limit=STAYING + 80)
    plan = SHIPPED_PLANNER.plan(view, must_succeed=True)
    (step,) = plan.steps
    assert isinstance(step, Summarize)
    assert (step.first, step.last) == (1, 3)
    assert range_id(TENANT, (view.slots[index].message.key for index in (1, 2, 3))) in step.note
    assert "3 earlier messages" in step.note
    note = count(user_message(step.note))
    assert plan.after == STAYING + note <= view.limit
    assert SHIPPED_PLANNER.plan(strategy_view(CROWDED, limit=STAYING + note), must_succeed=True).steps == plan.steps


def test_a_note_in_place_of_a_summary_is_counted_as_all_else_is() -> None:
    note = count(
        user_message(_noted(SHIPPED_PLANNER.plan(strategy_view(CROWDED, limit=STAYING + 80), must_succeed=True)))
    )
    raw = sum(map(count, CROWDED.conversation.messages))
    doubled = build_view(
        CROWDED,
        "conversation",
        tokens=2 * raw + OVERHEAD,
        overhead=OVERHEAD,
        target=0,
        window=100_000,
        limit=2 * (STAYING - OVERHEAD) + OVERHEAD + 2 * note,
        tenant=TENANT,
        count_message=count,
    )
    plan = SHIPPED_PLANNER.plan(doubled, must_succeed=True)
    assert _noted(plan)
    assert doubled.limit - 2 <= plan.after <= doubled.limit


def _noted(plan: Plan) -> str:
    """The note of a plan that does nothing else."""
    (step,) = plan.steps
    assert isinstance(step, Summarize)
    return step.note


def test_what_other_strategies_find_is_done_beside_the_note_too() -> None:
    call, kept = (
        message("assistant", ToolCall("a", "read", "{}"), ToolCall("p", "read", "{}")),
        result_message("p", "pinned"),
    )
    compacted = uncompacted(
        user_message("task"),
        *call_and_result("c", "x" * 9_000),
        call,
        result_message("a", "y" * 3_000),
        kept,
        *call_and_result("b", "z" * 900),
    )
    staying = OVERHEAD + sum(map(count, (compacted.conversation.messages[index] for index in (0, 3, 5, 6, 7))))
    pipeline = [FixedProposal([Replace(4, 0, "short", 2)]), build_strategy("summarize")]
    view = strategy_view(compacted, limit=staying + 80, pinned_call_ids=frozenset({"p"}))
    plan = Planner(pipeline).plan(view, must_succeed=True)
    assert plan.after <= view.limit
    assert [type(step) for step in plan.steps] == [Summarize, Replace]
    assert outcome(plan)[7].parts == compacted.conversation.messages[7].parts


def test_where_the_newest_batch_is_sliced_anyway_the_summary_stays() -> None:
    plan = SHIPPED_PLANNER.plan(strategy_view(CROWDED, limit=STAYING - 300), must_succeed=True)
    summary, cut = plan.steps
    assert isinstance(summary, Summarize)
    assert not summary.note
    assert isinstance(cut, Replace)
    assert cut.slot == 5
    assert plan.after <= STAYING - 300


def test_pinned_results_are_not_even_sliced() -> None:
    compacted = uncompacted(user_message("task"), *call_and_result("a", "x" * 40_000))
    assert (
        SHIPPED_PLANNER.plan(
            strategy_view(compacted, limit=1_000, pinned_call_ids=frozenset({"a"})), must_succeed=True
        ).steps
        == ()
    )


# -- generated histories --------------------------------------------------------------

EVERYTHING = st.lists(st.sampled_from(sorted(STRATEGIES)), max_size=6)


def _strategies(names: list[str]) -> list[Strategy]:
    tight: dict[str, dict[str, Any]] = {
        "keep_last_n_turns": {"n": 1},
        "keep_last_n_messages": {"n": 2},
        "fixed_limits": {"messages": 3, "tokens": 60},
        "compact_tool_results": {"keep_last_n": 0, "replacement": "drop"},
    }
    return [build_strategy(name, tight.get(name)) for name in names]


@pytest.mark.parametrize("protocol_name", PROTOCOL_NAMES)
@given(history=histories(), names=EVERYTHING, kind=st.sampled_from(["conversation", "generation"]))
def test_every_plan_leaves_a_list_without_halves_and_what_must_stay(
    protocol_name: ProtocolName, history: History, names: list[str], kind: CompactionKind
) -> None:
    conversation = read(history, protocol_name)
    view = strategy_view(without_compaction(conversation), kind)
    plan = Planner(_strategies(names)).plan(view, must_succeed=False)
    left = outcome(plan)
    assert find_faults(left.values()) == find_faults(conversation.messages)
    for index, touchable in enumerate(view.free):
        assert touchable or left[index].parts == view.slots[index].message.parts
    assert plan.after <= view.tokens
    assert plan.after == plan.proposals[-1].after if plan.proposals else True


@pytest.mark.parametrize("protocol_name", PROTOCOL_NAMES)
@given(history=histories(min_turns=2, max_turns=6), thinking=st.sampled_from(["free", "bound", "droppable"]))
def test_plans_are_the_same_every_time(protocol_name: ProtocolName, history: History, thinking: Any) -> None:
    compacted = without_compaction(read(history, protocol_name))
    plans = [SHIPPED_PLANNER.plan(strategy_view(compacted, thinking=thinking), must_succeed=True) for _ in range(2)]
    assert plans[0].proposals == plans[1].proposals


@given(history=histories(min_turns=2, max_turns=6), thinking=st.sampled_from(["bound"]))
def test_no_bound_thinking_is_left_behind_a_change(history: History, thinking: Any) -> None:
    view = strategy_view(without_compaction(read(history, "messages")), thinking=thinking)
    plan = SHIPPED_PLANNER.plan(view, must_succeed=True)
    if plan.steps:
        changed = min(step.first if isinstance(step, Summarize) else step.slot for step in plan.steps)
        for index, each in outcome(plan).items():
            assert index < changed or not any(isinstance(part, Reasoning) for part in each.parts)


@pytest.mark.parametrize("protocol_name", PROTOCOL_NAMES)
@settings(max_examples=examples(40))
@given(
    history=histories(min_turns=2, max_turns=5),
    repeats=st.integers(5, 60),
    limit=st.integers(1_500, 6_000),
)
def test_a_compaction_that_must_succeed_comes_under_the_limit(
    protocol_name: ProtocolName, history: History, repeats: int, limit: int
) -> None:
    compacted = without_compaction(read(with_longer_results(history, repeats), protocol_name))
    plan = SHIPPED_PLANNER.plan(strategy_view(compacted, limit=limit, target=limit // 2), must_succeed=True)
    # What cannot be sliced: two hundred tokens of each part within reach, calls, reasoning, images.
    rest = sum(
        _least(slot.message) for slot, leaves in zip(plan.view.slots, plan.view.removable, strict=True) if not leaves
    )
    assert plan.after <= max(limit, OVERHEAD + 600 + rest)


def _least(each: Message) -> int:
    return 4 + sum(300 if isinstance(part, Text | ToolResult) else count(message("user", part)) for part in each.parts)


@pytest.mark.parametrize("protocol_name", PROTOCOL_NAMES)
@settings(max_examples=examples(40))
@given(history=histories(min_turns=2, max_turns=6), repeats=st.integers(20, 80), share=st.floats(0.3, 0.9))
def test_the_shipped_pipeline_meets_every_target_that_can_be_met(
    protocol_name: ProtocolName, history: History, repeats: int, share: float
) -> None:
    compacted = without_compaction(read(with_longer_results(history, repeats), protocol_name))
    view = strategy_view(compacted)
    view = strategy_view(compacted, target=int(view.tokens * share))
    plan = SHIPPED_PLANNER.plan(view, must_succeed=False)
    movable = sum(slot.tokens for slot, leaves in zip(view.slots, view.removable, strict=True) if leaves)
    if plan.after > view.target:
        # Only where what may leave is hardly more than a note in its place.
        assert movable < 1_000


# -- many messages ---------------------------------------------------------------------


def _many(messages: int) -> CompactedConversation:
    rounds = []
    for index in range(messages // 2):
        rounds += call_and_result(f"call_{index % 7}", f"line {index} " * 60, "read", f'{{"path": "f{index % 90}"}}')
    return uncompacted(user_message("task"), *rounds)


def _work(messages: int) -> int:
    """How many calls of functions planning takes."""
    compacted, made = _many(messages), 0

    def counts(_frame: Any, event: str, _arg: Any) -> None:
        nonlocal made
        made += event in ("call", "c_call")

    sys.setprofile(counts)
    try:
        plan = SHIPPED_PLANNER.plan(
            strategy_view(compacted, target=5_000, window=40_000, limit=30_000), must_succeed=True
        )
    finally:
        sys.setprofile(None)
    assert plan.after <= plan.view.target
    return made


def test_planning_costs_in_proportion_to_the_number_of_messages() -> None:
    assert _work(10_000) < 12 * _work(1_000)


def test_a_sketch_counts_what_is_left() -> None:
    sketch = PlanState(strategy_view(LONG, size=10_000))
    for step in (Replace(2, 0, "x", 1), Drop(3), Summarize(5, 6, 20)):
        sketch.apply(step)
    draft = sketch.current_view()
    assert draft.tokens == OVERHEAD + sum(slot.tokens for slot in draft.slots)
    assert draft.removed == (False, False, False, True, False, False, True, False, False)
    assert draft.slots[5].message.parts == (Text(""),)


def test_permitted_steps_keep_their_order() -> None:
    steps = [Replace(6, 0, "x", 1), Replace(8, 0, "x", 1), Replace(2, 0, "x", 1)]
    assert list(filter_steps(strategy_view(LONG), steps)) == [(steps[0],), (steps[2],)]


_THOUGHT = message("assistant", Reasoning("hm " * 50))
TWO_TURNS = uncompacted(
    user_message("o"),
    _THOUGHT,
    *call_and_result("a", "1" * 4_000),
    assistant_message("ok"),
    user_message("more"),
    _THOUGHT,
    *call_and_result("b", "2" * 4_000),
    *call_and_result("c", "3" * 4_000),
    assistant_message("ok"),
    user_message("t"),
)


def test_a_careful_plan_only_cuts_where_the_client_has_such_neighbours() -> None:
    view = strategy_view(TWO_TURNS, form="whole")
    # In the client's list reasoning follows the user, so the second turn's reasoning may follow the first request.
    assert [group for group in view.groups if view.removable[group[0]]] == [(1, 5)]
    assert sum(strategy_view(TWO_TURNS).removable) > 5


def test_a_careful_plan_has_one_summary_and_no_other_step() -> None:
    plan = SHIPPED_PLANNER.plan(strategy_view(TWO_TURNS, form="whole"), must_succeed=False)
    (proposal,) = plan.proposals
    assert (proposal.strategy, [type(step) for step in proposal.steps]) == ("whole_groups", [Summarize])


@pytest.mark.parametrize(
    ("budgets", "size"), [(RequestBudgets(max_images=2), 0), (RequestBudgets(max_body_bytes=50_000), 55_000)]
)
def test_a_careful_plan_replaces_no_part_if_groups_can_leave(budgets: RequestBudgets, size: int) -> None:
    shown = [message("user", Text(f"look {at}"), IMAGE, wire=b"x" * 12_000) for at in range(3)]
    history = uncompacted(user_message("o"), *chain.from_iterable((assistant_message("ok"), each) for each in shown))
    view = strategy_view(history, form="whole", budgets=budgets, size=size, target=90_000)
    plan = SHIPPED_PLANNER.plan(view, must_succeed=True)
    assert [type(step) for step in plan.steps] == [Summarize]


def test_a_careful_plan_replaces_images_that_no_group_holds() -> None:
    shown = message("user", Text("look"), IMAGE, IMAGE, IMAGE)
    history = uncompacted(user_message("o"), assistant_message("ok"), shown)
    view = strategy_view(history, form="whole", budgets=RequestBudgets(max_images=2), target=90_000)
    assert {type(step) for step in SHIPPED_PLANNER.plan(view, must_succeed=True).steps} == {Replace}
