"""Reasoning, duplicates, fixed limits and the newest turns and messages."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from accordion.archive.references import artifact_id, range_id
from accordion.compaction.strategies import build_strategy
from accordion.model.compaction import CompactedConversation
from accordion.model.conversation import Reasoning, Text, ToolCall, ToolResult
from accordion.model.plan import WRITTEN_BY_COMPACTION, Drop, PlanStep, Replace, Summarize
from tests.compaction.view_samples import (
    TENANT,
    assistant_message,
    call_and_result,
    call_message,
    count,
    message,
    result_message,
    strategy_view,
    uncompacted,
    user_message,
)


def proposed(
    name: str, compacted: CompactedConversation, kind: Any = "conversation", view: Any = None, **options: Any
) -> list[PlanStep]:
    """What a strategy proposes for a list."""
    from accordion.compaction.planner import PlanState

    return list(
        build_strategy(name, options).propose(PlanState(strategy_view(compacted, kind, **(view or {}))).current_view())
    )  # type: ignore[arg-type]


# -- stale reasoning ---------------------------------------------------------------


def test_reasoning_before_the_open_turn_goes_the_oldest_first() -> None:
    thought = message("assistant", Reasoning("hm " * 30), Text("well"))
    calling = message("assistant", Reasoning("hm " * 30), ToolCall("b", "read", "{}"))
    history = uncompacted(user_message("o"), thought, user_message("t"), calling, result_message("b", "2"))
    assert proposed("stale_reasoning", history) == [Drop(1, (0,))]


# -- superseded --------------------------------------------------------------------

PAGE = "".join(f"line {number}\n" for number in range(60))


def test_the_earlier_of_two_equal_calls_is_replaced_by_where_the_newer_one_stands() -> None:
    compacted = uncompacted(
        user_message("o"),
        *call_and_result("a", "x" * 1_000, "run", '{"command": "make", "in": 1}'),
        *call_and_result("b", "y" * 1_000, "run", '{"in":1,"command":"make"}'),
        user_message("t"),
    )
    (step,) = proposed("superseded", compacted)
    assert isinstance(step, Replace)
    assert (step.slot, step.part) == (2, 0)
    assert artifact_id(TENANT, compacted.conversation.messages[2].key, 0) in step.text
    assert "call b" in step.text


def test_a_newer_result_may_be_the_newest_batch() -> None:
    compacted = uncompacted(
        user_message("t"), *call_and_result("a", "x" * 1_000, "run"), *call_and_result("b", "y" * 1_000, "run")
    )
    assert [step.slot for step in proposed("superseded", compacted, "generation") if isinstance(step, Replace)] == [2]


def test_a_reading_that_a_later_one_of_the_same_file_contains_is_replaced() -> None:
    compacted = uncompacted(
        user_message("o"),
        *call_and_result("a", PAGE, "read", '{"path": "a.py", "lines": "1-60"}'),
        *call_and_result("b", "head\n" + PAGE + "tail", "view", '{"file_path": "a.py"}'),
        *call_and_result("c", "something else " * 40, "view", '{"file_path": "a.py", "from": 99}'),
        user_message("t"),
    )
    steps = proposed("superseded", compacted)
    assert [(step.slot, "call b" in step.text) for step in steps if isinstance(step, Replace)] == [(2, True)]


@pytest.mark.parametrize(
    ("later", "arguments"),
    [(PAGE.replace("line 7\n", "line seven\n"), '{"path": "a.py"}'), (PAGE, '{"path": "b.py"}')],
)
def test_a_reading_that_changed_or_of_another_file_stays(later: str, arguments: str) -> None:
    compacted = uncompacted(
        user_message("o"),
        *call_and_result("a", PAGE, "read", '{"path": "a.py", "n": 1}'),
        *call_and_result("b", later, "view", arguments),
        user_message("t"),
    )
    assert proposed("superseded", compacted) == []


def test_a_later_error_supersedes_nothing() -> None:
    failed = message("tool", ToolResult("b", (Text("no such thing"),), error=True))
    compacted = uncompacted(
        user_message("o"), *call_and_result("a", PAGE, "run"), call_message("b", "run"), failed, user_message("t")
    )
    assert proposed("superseded", compacted) == []


def test_a_result_shorter_than_the_note_stays() -> None:
    compacted = uncompacted(
        user_message("o"),
        *call_and_result("a", "short", "run"),
        *call_and_result("b", "short", "run"),
        user_message("t"),
    )
    assert proposed("superseded", compacted) == []


def test_a_pinned_result_is_not_superseded() -> None:
    compacted = uncompacted(
        user_message("o"), *call_and_result("a", PAGE, "run"), *call_and_result("b", PAGE, "run"), user_message("t")
    )
    assert proposed("superseded", compacted, view={"pinned_call_ids": frozenset({"a"})}) == []


# -- the newest turns and messages ----------------------------------------------------


def turns(number: int) -> CompactedConversation:
    said = [
        part
        for index in range(number)
        for part in (user_message(f"turn {index}"), *call_and_result(f"c{index}", "x" * 400), assistant_message("ok"))
    ]
    return uncompacted(*said[:-1])


def test_the_newest_turns_stay_and_one_note_stands_for_the_rest() -> None:
    compacted = turns(5)
    (step,) = proposed("keep_last_n_turns", compacted, n=2)
    assert isinstance(step, Summarize)
    assert (step.first, step.last) == (1, 11)
    keys = [compacted.conversation.messages[index].key for index in range(1, 12)]
    assert "11 earlier messages" in step.note
    assert range_id(TENANT, keys) in step.note


def test_as_many_turns_as_are_kept_change_nothing() -> None:
    assert proposed("keep_last_n_turns", turns(3), n=3) == []


def test_the_newest_messages_stay_with_their_pairs() -> None:
    compacted = turns(3)
    (step,) = proposed("keep_last_n_messages", compacted, n=8)
    assert isinstance(step, Summarize)
    assert (step.first, step.last) == (1, 2)
    # Of nine messages the oldest is a result: its call stays with it, and before that is the opening, which stays.
    assert proposed("keep_last_n_messages", compacted, n=9) == []


def test_pinned_results_come_on_top() -> None:
    (step,) = proposed("keep_last_n_turns", turns(5), n=1, view={"pinned_call_ids": frozenset({"c1"})})
    assert isinstance(step, Summarize)
    assert "13 earlier messages" in step.note


# -- fixed limits ------------------------------------------------------------------------


def test_fixed_limits_stop_at_the_first_group_that_does_not_fit() -> None:
    compacted = uncompacted(
        user_message("o"),
        *call_and_result("a", "x" * 4_000),
        assistant_message("y" * 400),
        *call_and_result("b", "x" * 8_000),
        *call_and_result("c", "1"),
        user_message("t"),
    )
    (step,) = proposed("fixed_limits", compacted, tokens=1_900)
    assert isinstance(step, Summarize)
    assert (step.first, step.last) == (1, 5)


@pytest.mark.parametrize(("limit", "last"), [(50, None), (9, 1), (7, 3), (6, 5), (5, 5), (1, 7)])
def test_fixed_limits_count_messages_with_pairs_whole(limit: int, last: int | None) -> None:
    compacted = uncompacted(
        user_message("o"),
        assistant_message("y" * 900),
        *(m for i in range(4) for m in call_and_result(f"c{i}", "x" * 200)),
        user_message("t"),
    )
    steps = proposed("fixed_limits", compacted, messages=limit)
    assert [step.last for step in steps if isinstance(step, Summarize)] == ([] if last is None else [last])


def test_the_defaults_are_fifty_messages_and_eight_thousand_tokens() -> None:
    short = uncompacted(
        user_message("o"), *(assistant_message(f"line {index} " * 10) for index in range(80)), user_message("t")
    )
    (step,) = proposed("fixed_limits", short)
    assert isinstance(step, Summarize)
    assert len(short.conversation.messages) - 1 - step.last == 50
    wide = uncompacted(user_message("o"), *(assistant_message("word " * 800) for _ in range(20)), user_message("t"))
    (step,) = proposed("fixed_limits", wide)
    assert isinstance(step, Summarize)
    kept = wide.conversation.messages[step.last + 1 :]
    assert sum(map(count, kept)) <= 8_000 < sum(map(count, kept)) + 1_004


def test_messages_that_an_earlier_compaction_replaced_are_counted_in_the_note() -> None:
    compacted = uncompacted(
        user_message("o"),
        user_message("block"),
        *(assistant_message(f"answer {index} " * 20) for index in range(8)),
        user_message("t"),
    )
    origins = (0, WRITTEN_BY_COMPACTION, *range(30, 39))
    spans = ((0, 0, False), (1, 29, False), *((index, index, False) for index in range(30, 39)))
    (step,) = proposed("fixed_limits", replace(compacted, origins=origins, spans=spans), messages=2)
    assert isinstance(step, Summarize)
    assert "36 earlier messages" in step.note


def test_what_an_earlier_compaction_kept_is_not_counted_among_what_is_left_out() -> None:
    compacted = uncompacted(
        user_message("o"),
        user_message("b" * 900),
        *call_and_result("kept", "x" * 900),
        assistant_message("y" * 900),
        user_message("t"),
    )
    spans = ((0, 0, False), (1, 29, False), (10, 10, False), (11, 11, False), (30, 30, False), (31, 31, False))
    compacted = replace(compacted, origins=(0, WRITTEN_BY_COMPACTION, 10, 11, 30, 31), spans=spans)
    (step,) = proposed("fixed_limits", compacted, messages=1, view={"pinned_call_ids": frozenset({"kept"})})
    assert isinstance(step, Summarize)
    assert "28 earlier messages" in step.note


def test_a_note_longer_than_what_it_stands_for_is_not_written() -> None:
    assert (
        proposed("fixed_limits", uncompacted(user_message("o"), assistant_message("hi"), user_message("t")), messages=1)
        == []
    )
