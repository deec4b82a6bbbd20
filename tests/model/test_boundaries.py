from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.model.boundaries import find_indivisible_groups, find_open_calls, match_results_to_calls
from accordion.model.conversation import Message, Opaque, Part, Reasoning, Role, Text, ToolCall, ToolResult
from tests.compaction.view_samples import (
    assistant_message,
    call_and_result,
    call_message,
    message,
    read,
    result_message,
    user_message,
)
from tests.histories import PROTOCOL_NAMES, History, ProtocolName, histories

ids = st.sampled_from(["a", "b", "c"])
parts = st.one_of(
    st.builds(Text, st.just("t")),
    st.builds(Reasoning, st.just("r")),
    st.builds(ToolCall, ids, st.just("read"), st.just("{}")),
    st.builds(ToolResult, ids, st.just(())),
    st.builds(Opaque, st.just("x"), st.just(1)),
)
roles: Any = st.sampled_from(["user", "assistant", "tool", "system", "other"])


def _message(role: Role, held: list[Part]) -> Message:
    return message(role, *held)


wild = st.lists(st.builds(_message, roles, st.lists(parts, max_size=4)), max_size=30)


def _covers(found: tuple[tuple[int, int], ...], count: int) -> bool:
    return [index for first, last in found for index in range(first, last + 1)] == list(range(count))


@given(wild)
def test_groups_cover_any_list_in_order_whatever_its_ids(messages: list[Message]) -> None:
    assert _covers(find_indivisible_groups(messages), len(messages))


@given(wild)
def test_no_group_parts_a_call_from_its_result(messages: list[Message]) -> None:
    group_of = {i: number for number, (a, b) in enumerate(find_indivisible_groups(messages)) for i in range(a, b + 1)}
    for (result, _), (call, _) in match_results_to_calls(messages).items():
        assert group_of[result] == group_of[call]


@pytest.mark.parametrize("protocol_name", PROTOCOL_NAMES)
@given(history=histories())
def test_no_group_parts_a_batch_or_reasoning_from_what_it_led_to(protocol_name: ProtocolName, history: History) -> None:
    messages = read(history, protocol_name).messages
    group_of = {i: number for number, (a, b) in enumerate(find_indivisible_groups(messages)) for i in range(a, b + 1)}
    by_id = {
        part.call_id: index for index, each in enumerate(messages) for part in each.parts if isinstance(part, ToolCall)
    }
    for turn in history.turns:
        for round_ in turn.rounds:
            assert len({group_of[by_id[call.id]] for call in round_.calls}) == 1
    for index, each in enumerate(messages[:-1]):
        if each.parts and all(isinstance(part, Reasoning) for part in each.parts):
            assert group_of[index] == group_of[index + 1]


@pytest.mark.parametrize("protocol_name", PROTOCOL_NAMES)
@given(history=histories())
def test_rounds_that_follow_each_other_may_be_parted(protocol_name: ProtocolName, history: History) -> None:
    found = find_indivisible_groups(read(history, protocol_name).messages)
    said = sum(1 + len(turn.rounds) + bool(turn.answer) for turn in history.turns)
    assert len(found) >= said


def test_an_id_that_is_used_again_is_another_pair() -> None:
    messages = [user_message("go"), *call_and_result("call_0", "one"), *call_and_result("call_0", "two")]
    assert find_indivisible_groups(messages) == ((0, 0), (1, 2), (3, 4))
    assert match_results_to_calls(messages) == {(2, 0): (1, 0), (4, 0): (3, 0)}


def test_two_calls_of_one_id_made_at_once_each_have_their_result() -> None:
    twice = message("assistant", ToolCall("x", "read", "{}"), ToolCall("x", "read", "{}"))
    messages = [user_message("go"), twice, result_message("x", "one"), result_message("x", "two")]
    assert match_results_to_calls(messages) == {(2, 0): (1, 0), (3, 0): (1, 1)}
    assert find_open_calls(messages) == frozenset()


def test_a_result_answers_the_latest_reply_that_made_a_call_of_its_id() -> None:
    twice = message("assistant", ToolCall("x", "read", "{}"), ToolCall("x", "read", "{}"))
    messages = [
        user_message("go"),
        call_message("x"),
        user_message("never mind"),
        twice,
        result_message("x", "one"),
        result_message("x", "two"),
    ]
    assert match_results_to_calls(messages) == {(4, 0): (3, 0), (5, 0): (3, 1)}
    assert find_open_calls(messages) == frozenset({(1, 0)})


def test_a_result_that_nobody_asked_for_stands_alone() -> None:
    assert find_indivisible_groups([user_message("go"), result_message("lost", "text"), assistant_message("well")]) == (
        (0, 0),
        (1, 1),
        (2, 2),
    )


def test_a_call_that_another_of_its_id_followed_is_still_open() -> None:
    messages = [user_message("go"), call_message("x"), user_message("again"), *call_and_result("x", "text")]
    assert find_open_calls(messages) == frozenset({(1, 0)})


def test_items_of_one_reply_stay_with_the_reasoning_before_them() -> None:
    thought = message("assistant", Reasoning("hm"))
    messages = [
        user_message("go"),
        thought,
        assistant_message("I will read."),
        call_message("a"),
        result_message("a", "text"),
        assistant_message("done"),
    ]
    assert find_indivisible_groups(messages) == ((0, 0), (1, 4), (5, 5))


def approval(approval_id: str, call_id: str = "") -> Message:
    """A request for approval, or a call of the provider's that it led to."""
    call = ToolCall(call_id or approval_id, "edit", "{}", approval_id)
    return message("assistant", call, *([ToolResult(call_id, (Text("done"),))] if call_id else []))


def test_approvals_stay_with_the_calls_that_they_led_to() -> None:
    messages = [
        user_message("go"),
        *(approval("a"), result_message("a", "approved"), approval("a", "1"), approval("a", "2")),
        assistant_message("I go on."),
        *(approval("b"), approval("c"), result_message("c", "approved"), result_message("b", "denied")),
        approval("c", "3"),
        *(approval("d"), result_message("d", "denied")),
        approval("e"),
    ]
    assert find_indivisible_groups(messages)[1:] == ((1, 4), (5, 5), (6, 10), (11, 12), (13, 13))
    assert find_open_calls(messages) == frozenset({(13, 0)})


def test_an_instruction_belongs_to_the_round_before_it_unless_it_stands() -> None:
    messages = [
        user_message("go"),
        *call_and_result("a", "one"),
        *(message("system", Text(text)) for text in ("one", "two", "three")),
        *call_and_result("b", "two"),
    ]
    assert find_indivisible_groups(messages) == ((0, 0), (1, 5), (6, 7))
    assert find_indivisible_groups(messages, {4}) == ((0, 0), (1, 3), (4, 4), (5, 5), (6, 7))


def test_a_search_for_tools_by_the_provider_stays_with_the_reasoning_before_it() -> None:
    search = [message("other", Opaque(kind, 9)) for kind in ("tool_search_call", "tool_search_output")]
    reasoning = message("assistant", Reasoning("hm"))
    messages = [user_message("go"), reasoning, *search, call_message("a"), result_message("a", "text")]
    assert find_indivisible_groups(messages) == ((0, 0), (1, 5))
    assert find_indivisible_groups([user_message("go"), *search, call_message("a")])[:3] == ((0, 0), (1, 1), (2, 2))


def test_ten_thousand_nested_pairs_are_one_group_and_cost_a_step_each() -> None:
    """Ranges overlap five thousand deep here; anything that walked through each of them would take a minute."""
    opening = [call_message(f"id {index}") for index in range(5_000)]
    closing = [result_message(f"id {index}", "x") for index in reversed(range(5_000))]
    steps = 0

    class Counting(list[Message]):
        def __getitem__(self, index: Any) -> Any:
            nonlocal steps
            steps += 1
            return super().__getitem__(index)

    assert find_indivisible_groups(Counting(opening + closing)) == ((0, 9_999),)
    assert steps < 100_000


def test_a_result_without_the_id_of_its_call_answers_one_of_its_function() -> None:
    asked = message("assistant", ToolCall("a", "read", "{}"), ToolCall("b", "list", "{}"), ToolCall("c", "read", "{}"))
    answered = message("user", ToolResult("list", (), name="list"), *[ToolResult("read", (), name="read")] * 2)
    named = [asked, answered, message("assistant", ToolCall("read", "read", "{}")), message("user", Text("t"))]
    assert match_results_to_calls(named) == {(1, 0): (0, 1), (1, 1): (0, 0), (1, 2): (0, 2)}
    assert find_open_calls(named) == {(2, 0)}
    made_up = [*named[:3], message("user", ToolResult("read-1", (), name="read"))]
    assert match_results_to_calls(made_up)[3, 0] == (2, 0)
    assert not find_open_calls(made_up)
    other = [asked, message("user", ToolResult("x", (), name="write"), ToolResult("c", ()))]
    assert match_results_to_calls(other) == {(1, 1): (0, 2)}
