from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from msgspec import structs
from msgspec.structs import replace

from accordion.accounting.token_meter import REPLY
from accordion.compaction.plan_state import PlanState
from accordion.compaction.request import RequestBudgets
from accordion.compaction.view import build_view, build_view_for_request
from accordion.model.boundaries import find_open_calls
from accordion.model.compaction import CompactedConversation, without_compaction
from accordion.model.conversation import Media, Message, Opaque, Reasoning, Text, ToolCall, ToolResult
from accordion.model.plan import WRITTEN_BY_COMPACTION
from tests.compaction.compactor_setup import House, conversation, long_history
from tests.compaction.view_samples import (
    OVERHEAD,
    answers,
    batch,
    calls,
    count,
    gives,
    listed,
    message,
    read,
    says,
    viewed,
)
from tests.histories import DIALECTS, DialectName, History, histories

IMAGE = Media("image", "image/png", 9_000, 64, 64)


def free(folded: CompactedConversation, kind: Any = "conversation", **fields: Any) -> list[int]:
    """The slots that may be touched."""
    return [index for index, touchable in enumerate(viewed(folded, kind, **fields).free) if touchable]


def whole(folded: CompactedConversation, kind: Any = "conversation", **fields: Any) -> list[int]:
    """The slots that may leave."""
    return [index for index, leaves in enumerate(viewed(folded, kind, **fields).removable) if leaves]


LONG = listed(
    says("opening"),  # 0
    *batch("a", "one"),  # 1, 2
    answers("done"),  # 3
    says("task"),  # 4
    *batch("b", "two"),  # 5, 6
    *batch("c", "three"),  # 7, 8
)


def test_a_conversation_fold_spares_opening_task_and_the_newest_batch() -> None:
    assert free(LONG) == whole(LONG) == [1, 2, 3, 5, 6]


def test_a_mid_generation_fold_touches_only_what_came_since_the_task() -> None:
    assert free(LONG, "generation") == [5, 6]


def test_what_is_asked_behind_a_preamble_stays_as_the_opening_does() -> None:
    work = (*batch("a", "one"), answers("done"), says("next"), *batch("b", "two"), answers("done"), says("task"))
    assert whole(listed(says("We set up the context."), answers("Got it."), says("Migrate it."), *work)) == [
        *(1, 3, 4, 5, 6, 7, 8, 9)
    ]
    assert 3 in whole(listed(says("Look."), *batch("0", "one"), says("Migrate it."), *work))


def test_the_newest_batch_stays_with_all_its_parallel_results() -> None:
    both = message("assistant", ToolCall("x", "read", "{}"), ToolCall("y", "read", "{}"))
    folded = listed(says("task"), *batch("a", "one"), both, gives("x", "1"), gives("y", "2"))
    assert free(folded) == [1, 2]


def test_results_that_no_reply_followed_are_unread_though_the_user_spoke_since() -> None:
    folded = listed(says("opening"), *batch("a", "one"), *batch("b", "two"), says("and now this"))
    assert free(folded) == [1, 2]


def test_a_batch_that_was_answered_has_been_read() -> None:
    folded = listed(says("opening"), *batch("a", "one"), answers("I see"), says("next"))
    assert free(folded) == [1, 2, 3]


def test_an_open_call_stays_with_its_batch() -> None:
    both = message("assistant", ToolCall("x", "read", "{}"), ToolCall("waiting", "ask", "{}"))
    folded = listed(says("opening"), both, gives("x", "1"), answers("meanwhile"), says("task"))
    assert whole(folded) == [3]
    assert free(folded) == [2, 3]


def test_pinned_results_stay_with_their_call() -> None:
    folded = listed(says("opening"), *batch("a", "one"), *batch("b", "two", "load"), answers("ok"), says("task"))
    assert whole(folded, pinned_call_ids=frozenset({"a"})) == [3, 4, 5]
    assert whole(folded, pinned_tools=frozenset({"load"})) == [1, 2, 5]
    assert whole(folded, pinned_tools=frozenset({"lo*"})) == [1, 2, 5]
    assert whole(folded, pinned_tools=frozenset({"Load", "oa*"})) == [1, 2, 3, 4, 5]
    assert free(folded, pinned_call_ids=frozenset({"a"})) == [3, 4, 5]


def test_a_sibling_of_a_pinned_result_may_be_replaced_but_not_leave() -> None:
    both = message("assistant", ToolCall("x", "read", "{}"), ToolCall("y", "read", "{}"))
    folded = listed(says("opening"), both, gives("x", "1"), gives("y", "2"), answers("ok"), says("task"))
    assert free(folded, pinned_call_ids=frozenset({"y"})) == [1, 2, 4]
    assert whole(folded, pinned_call_ids=frozenset({"y"})) == [4]


@pytest.mark.parametrize("role", ["system", "developer", "other"])
def test_messages_of_the_system_in_between_stay(role: Any) -> None:
    assert free(listed(says("opening"), message(role, Text("rule")), answers("ok"), says("task"))) == [2]


@pytest.mark.parametrize("code", [ToolCall("srvtoolu_1", "code_execution", "{}"), ToolCall("p", "program", "{}")])
def test_behind_code_that_still_runs_nothing_leaves_and_results_may_still_be_replaced(code: ToolCall) -> None:
    """The provider takes nothing there but the results that it waits for, so no block may stand there."""
    before = (says("opening"), *batch("a", "one"), answers("done"), says("task"))
    running = listed(*before, message("assistant", code), *batch("b", "two"), *batch("c", "three"), *batch("d", "four"))
    assert whole(running) == [1, 2, 3]
    assert whole(running, "generation") == []
    assert {7, 9} <= set(free(running))
    ended = listed(*before, message("assistant", code), gives(code.call_id, "ran"), *batch("b", "2"), *batch("c", "3"))
    assert {7, 8} <= set(whole(ended))


def test_what_is_not_understood_stays_even_within_a_result() -> None:
    inside = message("tool", ToolResult("a", (Opaque("reference", 10),)))
    folded = listed(says("opening"), calls("a"), inside, message("assistant", Opaque("x", 5)), answers("ok"), says("t"))
    assert whole(folded) == [4]
    assert free(folded) == [1, 4]


def test_a_providers_compaction_item_stays_and_so_does_the_opening_before_it() -> None:
    item = message("other", Opaque("compaction", 500))
    folded = listed(says("opening"), says("and"), item, says("more"), answers("ok"), says("task"))
    assert free(folded) == whole(folded) == [1, 3, 4]


RESUMED = listed(
    says("opening"),  # 0
    *batch("a", "x" * 4_000),  # 1, 2
    message("user", IMAGE),  # 3
    message("assistant", Opaque("compaction", 400)),  # 4
    says("more"),  # 5
    *batch("b", "y" * 400),  # 6, 7
    answers("ok"),  # 8
    says("task"),  # 9
)
"""A history whose beginning the provider has compacted by itself."""


def test_what_the_provider_no_longer_reads_costs_nothing_and_is_left_alone() -> None:
    view = viewed(RESUMED)
    assert [slot.tokens for slot in view.slots[:4]] == [0] * 4
    assert view.slots[4].tokens == count(view.slots[4].message)
    assert sum(slot.tokens for slot in view.slots) + OVERHEAD == view.tokens
    assert free(RESUMED) == whole(RESUMED) == [5, 6, 7, 8]
    assert not any(view.reachable[:4]), "nor as a last resort"


def test_what_was_read_back_where_the_provider_no_longer_reads_costs_nothing_either() -> None:
    view = viewed(RESUMED, insertion_tokens={5: 100})
    assert view.insertion_tokens[5] == 100
    assert viewed(RESUMED).tokens + 100 == view.tokens
    apart = build_view(
        RESUMED, "conversation", tokens=view.tokens, overhead=OVERHEAD, target=0, window=9_000, count_message=count,
        insertion_tokens={2: 700, 5: 100},
    )  # fmt: skip
    assert (apart.slots, apart.insertion_tokens) == (view.slots, view.insertion_tokens)


@pytest.mark.parametrize("budgets", [RequestBudgets(max_body_bytes=10), RequestBudgets(max_images=1)])
def test_it_is_free_where_the_request_has_more_bytes_or_images_than_the_provider_takes(budgets: RequestBudgets) -> None:
    two = replace(RESUMED, conversation=replace(RESUMED.conversation, messages=(
        *RESUMED.conversation.messages[:-1], message("user", Text("task"), IMAGE),
    )))  # fmt: skip
    view = viewed(two, budgets=budgets, size=5_000)
    assert free(two, budgets=budgets, size=5_000) == [1, 2, 3, 5, 6, 7, 8]
    sketch = PlanState(view)
    assert [sketch.count_part_tokens(slot) for slot in range(4)] == [(0,)] * 4


def test_an_earlier_folds_block_is_free_where_the_kind_may_reach_it() -> None:
    block = says("what an earlier fold wrote")
    messages = (says("opening"), block, says("task"), block, *batch("a", "1"), *batch("b", "2"))
    folded = listed(*messages)
    origins = (0, WRITTEN_BY_COMPACTION, 5, WRITTEN_BY_COMPACTION, 8, 9, 10, 11)
    spans = tuple((max(0, origin), max(0, origin), False) for origin in origins)
    folded = replace(folded, origins=origins, spans=spans)
    assert free(folded) == [1, 3, 4, 5]
    assert free(folded, "generation") == [3, 4, 5]
    assert viewed(folded).task == 2


def test_without_a_task_all_before_the_newest_batch_is_of_the_generation() -> None:
    assert free(listed(answers("hm"), *batch("a", "1"), *batch("b", "2")), "generation") == [0, 1, 2]


def test_an_open_tool_turn_with_bound_thinking_waits_unless_the_fold_must_succeed() -> None:
    thinking = message("assistant", Reasoning("hm", 40), ToolCall("b", "read", "{}"))
    folded = listed(says("opening"), *batch("a", "1"), says("task"), thinking, gives("b", "2"))
    assert free(folded, thinking="bound") == []
    assert free(folded, thinking="bound", must_succeed=True) == [1, 2]
    assert free(folded, thinking="droppable") == [1, 2]
    closed = listed(says("opening"), thinking, gives("b", "2"), answers("ok"), says("task"))
    assert free(closed, thinking="bound") == [1, 2, 3]


def test_reasoning_stays_from_where_the_open_tool_turn_begins() -> None:
    assert viewed(LONG).open_turn == 5
    assert viewed(listed(says("opening"), answers("ok"), says("task"))).open_turn == 3


def test_slots_count_what_the_whole_request_was_corrected_to() -> None:
    folded = listed(says("opening"), *batch("a", "x" * 4_000), answers("y" * 997), says("task"))
    view = build_view(folded, "conversation", tokens=5_000, overhead=200, target=0, window=9_000, count_message=count)
    assert sum(slot.tokens for slot in view.slots) == 4_800
    raw = [count(slot.message) for slot in view.slots]
    assert all(abs(slot.tokens - n * 4_800 / sum(raw)) <= 1 for slot, n in zip(view.slots, raw, strict=True))


def test_a_target_that_cannot_be_met_leaves_a_quarter_of_what_is_above_what_stays() -> None:
    folded = listed(says("o" * 4_000), *batch("a", "x" * 4_000), answers("ok"), says("t" * 4_000))
    view = viewed(folded, target=100)
    staying = view.tokens - sum(slot.tokens for slot, leaves in zip(view.slots, view.removable, strict=True) if leaves)
    assert view.target == staying + (view.tokens - staying) // 4
    assert viewed(folded, target=2_900).target == 2_900


def test_the_task_is_the_last_message_with_user_text_and_no_result() -> None:
    both = message("user", ToolResult("a", (Text("text"),)), Text("a reminder"))
    assert viewed(listed(says("first"), answers("ok"), says("second"), calls("a"), both)).task == 2
    assert viewed(listed(answers("ok"))).task == -1


def test_images_in_results_count_against_their_budget() -> None:
    shown = message("tool", ToolResult("a", (Text("a screen"), IMAGE)))
    folded = listed(message("user", Text("look"), IMAGE), calls("a"), shown)
    view = viewed(folded, budgets=RequestBudgets(max_body_bytes=10, max_images=5), size=77)
    assert (view.images, view.max_images, view.body_size, view.max_body_size) == (2, 5, 77, 10)


@pytest.mark.parametrize("kind", ["conversation", "generation"])
@pytest.mark.parametrize("dialect", DIALECTS)
@given(history=histories())
def test_what_must_stay_is_never_free(dialect: DialectName, kind: Any, history: History) -> None:
    conversation = read(history, dialect)
    messages, view = conversation.messages, viewed(without_compaction(conversation), kind)
    task = max(i for i, each in enumerate(messages) if each.has_user_text and not each.has_tool_result)
    assert view.task == task
    assert not view.free[task]
    assert not view.free[-1]
    assert not any(view.free[index] for index, _ in find_open_calls(messages))
    first = next(index for index, each in enumerate(messages) if each.has_user_text)
    assert not view.free[first]
    if kind == "generation":
        assert not any(view.free[: task + 1])
    for a, b in view.groups:
        assert len({view.removable[index] for index in range(a, b + 1)}) == 1
    assert all(view.free[index] for index, leaves in enumerate(view.removable) if leaves)
    assert sum(slot.tokens for slot in view.slots) + OVERHEAD == view.tokens
    if not conversation.starts_turn:
        unread = [i for i, each in enumerate(messages) if _unread(messages, i, each)]
        assert not any(view.free[index] for index in unread)


def _unread(messages: tuple[Message, ...], index: int, each: Message) -> bool:
    return each.has_tool_result and not any(later.role == "assistant" for later in messages[index + 1 :])


def test_what_was_read_back_is_a_part_of_the_messages_and_no_overhead() -> None:
    house, client = House(), conversation(long_history(3), "chat")
    case = house.case(client)
    used = structs.replace(case.utilization, preamble=10, tools=20, insertions=500)
    view = build_view_for_request(replace(case, utilization=used), "conversation", count_message=count)
    assert (view.tokens, view.overhead) == (used.tokens, 30 + REPLY)
    assert sum(slot.tokens for slot in view.slots) == used.messages + 500 - REPLY


def test_a_list_begins_afresh_where_the_fold_brings_our_tool_along() -> None:
    case = House().case(conversation(long_history(3), "chat"))
    made = [
        build_view_for_request(replace(case, tool_tokens=tokens), "conversation", count_message=count).is_tool_new
        for tokens in (0, 50)
    ]
    assert made == [False, True]
