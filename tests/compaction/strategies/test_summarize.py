from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from accordion.compaction.planner import PlanState
from accordion.compaction.strategies import build_strategy
from accordion.compaction.strategies.base import StrategyView
from accordion.model.compaction import CompactedConversation
from accordion.model.plan import WRITTEN_BY_COMPACTION, PlanStep, Summarize
from tests.compaction.view_samples import (
    assistant_message,
    call_and_result,
    count,
    message,
    strategy_view,
    uncompacted,
    user_message,
)

ROUNDS = [part for index in range(20) for part in call_and_result(f"c{index}", f"{index} " + "x" * 800)]
COMPACTED = uncompacted(user_message("opening"), *ROUNDS, assistant_message("well"), user_message("task"))


def proposed(view: StrategyView, **options: Any) -> list[PlanStep]:
    """What is to be summarised."""
    return list(build_strategy("summarize", options).propose(PlanState(view).current_view()))  # type: ignore[arg-type]


def only(view: StrategyView, **options: Any) -> Summarize:
    (step,) = proposed(view, **options)
    assert isinstance(step, Summarize)
    return step


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
def test_the_room_is_shared_between_the_summary_and_whole_groups_of_the_tail(share: float) -> None:
    view = strategy_view(COMPACTED, target=2_500)
    step = only(view, budget_share=share)
    movable = sum(slot.tokens for slot, leaves in zip(view.slots, view.removable, strict=True) if leaves)
    room = view.target - (view.tokens - movable) - 4
    tail = sum(slot.tokens for slot in view.slots[step.last + 1 : -1])
    assert step.first == 1
    assert step.budget == int(room * share)
    assert tail <= room - step.budget < tail + 230
    assert step.last % 2 == 0


def test_where_what_stays_takes_all_of_the_target_a_summary_has_room_above_it() -> None:
    compacted = uncompacted(user_message("opening"), *ROUNDS, user_message("task " * 4_000))
    view = replace(strategy_view(compacted), target=3_000, limit=20_000)
    movable = sum(slot.tokens for slot, leaves in zip(view.slots, view.removable, strict=True) if leaves)
    stays = view.tokens - movable + 4
    assert stays > view.target
    assert only(view).budget == 300
    # Of what the limit leaves it takes half at most, and never less than it takes to say something.
    assert only(replace(view, limit=stays + 400)).budget == 200
    assert only(replace(view, limit=stays + 100)).budget == 128
    assert only(replace(view, limit=stays - 100)).budget == 128


def test_instructions_get_no_more_than_a_small_window_leaves() -> None:
    compacted = uncompacted(user_message("opening"), *ROUNDS, user_message("task"))
    view = strategy_view(compacted, target=10, limit=1_000, count_instruction_tokens=lambda _: 50)
    movable = sum(slot.tokens for slot, leaves in zip(view.slots, view.removable, strict=True) if leaves)
    stays = view.tokens - movable + 4
    assert only(replace(view, limit=stays + 200)).budget == 200
    assert only(replace(view, limit=stays + 800)).budget == 320


def test_a_summary_has_a_most() -> None:
    assert only(strategy_view(COMPACTED, target=2_500), max_summary_tokens=300).budget == 300


@pytest.mark.parametrize("wanted", [10, 9])
def test_messages_that_are_to_stay_stay_with_their_pairs(wanted: int) -> None:
    step = only(strategy_view(COMPACTED, target=200), keep_last_n=wanted)
    assert len(COMPACTED.conversation.messages) - 1 - step.last == 10


def test_nothing_is_done_at_or_below_the_threshold() -> None:
    live = len(COMPACTED.conversation.messages)
    assert proposed(strategy_view(COMPACTED), threshold=live) == []
    assert proposed(strategy_view(COMPACTED), threshold=live - 1)
    assert proposed(strategy_view(COMPACTED), keep_last_n=live) == []


def test_messages_of_the_system_do_not_count_and_are_never_summarised() -> None:
    rule = message("system", *assistant_message("rule").parts)
    compacted = uncompacted(
        user_message("o"), assistant_message("x" * 4_000), rule, assistant_message("y" * 4_000), user_message("t")
    )
    view = strategy_view(compacted)
    step = only(view, threshold=3)
    assert (step.first, step.last) == (1, 3)
    assert not view.removable[2]
    assert proposed(view, threshold=4) == []


def _with_block(*behind: Any, tokens: int = 2_000) -> CompactedConversation:
    compacted = uncompacted(user_message("opening"), user_message("b" * tokens * 4), *behind, user_message("task"))
    count_behind = len(behind) + 1
    origins = (0, WRITTEN_BY_COMPACTION, *range(9, 9 + count_behind))
    spans = ((0, 0, False), (1, 8, False), *((index, index, False) for index in range(9, 9 + count_behind)))
    return replace(compacted, origins=origins, spans=spans)


def test_an_earlier_summary_is_compacted_into_the_next() -> None:
    view = strategy_view(_with_block(*ROUNDS), target=1_000)
    assert only(view).first == 1
    assert view.slots[1].is_summary


def test_an_earlier_summary_with_nothing_new_stays_as_it_is() -> None:
    assert proposed(strategy_view(_with_block(assistant_message("new")), target=2_070)) == []


def test_pinned_results_in_between_are_not_summarised() -> None:
    view = strategy_view(COMPACTED, target=1_000, pinned_call_ids=frozenset({"c0", "c3"}))
    step = only(view)
    assert step.first == 3
    assert not view.removable[7]
    assert not view.removable[8]


def test_a_summary_is_at_most_half_of_what_it_stands_for() -> None:
    compacted = uncompacted(
        user_message("o"), assistant_message("x" * 1_600), user_message("t" * 8_000), *call_and_result("a", "1")
    )
    step = only(strategy_view(compacted, target=100))
    assert step.budget <= count(assistant_message("x" * 1_600)) // 2


def test_very_few_tokens_are_not_summarised() -> None:
    assert (
        proposed(strategy_view(uncompacted(user_message("o"), assistant_message("x" * 200), user_message("t")))) == []
    )
