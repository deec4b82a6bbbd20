from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from msgspec import structs
from msgspec.structs import replace

from accordion.accounting.token_meter import RESPONSE_START
from accordion.compaction.planner import PlanState
from accordion.compaction.request import RequestBudgets
from accordion.compaction.view import PinRules, build_view, build_view_for_request
from accordion.model.boundaries import find_open_calls
from accordion.model.compaction import CompactedConversation, without_compaction
from accordion.model.conversation import Media, Message, Opaque, Reasoning, Text, ToolCall, ToolResult
from accordion.model.plan import WRITTEN_BY_COMPACTION, choose_block_slot
from tests.compaction.compactor_setup import CompactorSetup, conversation, long_history
from tests.compaction.view_samples import (
    OVERHEAD,
    assistant_message,
    call_and_result,
    call_message,
    count,
    message,
    read,
    result_message,
    strategy_view,
    uncompacted,
    user_message,
)
from tests.histories import PROTOCOL_NAMES, History, ProtocolName, histories

IMAGE = Media("image", "image/png", 9_000, 64, 64)


def free(compacted: CompactedConversation, kind: Any = "conversation", **fields: Any) -> list[int]:
    """The slots that may be touched."""
    return [index for index, touchable in enumerate(strategy_view(compacted, kind, **fields).free) if touchable]


def whole(compacted: CompactedConversation, kind: Any = "conversation", **fields: Any) -> list[int]:
    """The slots that may leave."""
    return [index for index, leaves in enumerate(strategy_view(compacted, kind, **fields).removable) if leaves]


LONG = uncompacted(
    user_message("opening"),  # 0
    *call_and_result("a", "one"),  # 1, 2
    assistant_message("done"),  # 3
    user_message("task"),  # 4
    *call_and_result("b", "two"),  # 5, 6
    *call_and_result("c", "three"),  # 7, 8
)


def test_a_conversation_compaction_spares_opening_task_and_the_newest_batch() -> None:
    assert free(LONG) == whole(LONG) == [1, 2, 3, 5, 6]


def test_a_mid_generation_compaction_touches_only_what_came_since_the_task() -> None:
    assert free(LONG, "generation") == [5, 6]


MORE_WORK = (
    *call_and_result("a", "one"),
    assistant_message("done"),
    user_message("next"),
    *call_and_result("b", "two"),
    assistant_message("done"),
    user_message("task"),
)


@pytest.mark.parametrize(
    "opening",
    [
        "This is the Gemini CLI. We are setting up the context for our chat.",
        "You edit files for a user, in blocks of the form that follows. " * 10,
        "Hi there!",
        "Can you help me?",
    ],
)
def test_what_is_asked_behind_a_preamble_stays_as_the_opening_does(opening: str) -> None:
    answered = assistant_message("Got it.")
    compacted = uncompacted(user_message(opening), answered, user_message("Migrate it."), *MORE_WORK)
    assert whole(compacted) == [1, 3, 4, 5, 6, 7, 8, 9]


def test_what_comes_behind_an_opening_that_says_the_task_may_leave() -> None:
    answered = assistant_message("Got it.")
    compacted = uncompacted(user_message("The parser fails."), answered, user_message("Still."), *MORE_WORK)
    assert whole(compacted) == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    with_calls = (*call_and_result("0", "one"), user_message("Migrate it."))
    assert 3 in whole(uncompacted(user_message("Hi there!"), *with_calls, *MORE_WORK))


def test_a_summary_stands_behind_the_users_texts_that_stay_before_its_end() -> None:
    slots = strategy_view(LONG).slots
    assert choose_block_slot(slots, [1, 2, 3]) == 1
    assert choose_block_slot(slots, [1, 2, 3, 5, 6]) == 5
    assert choose_block_slot(slots, [1, 2, 3, 4, 5, 6]) == 1


def test_the_newest_batch_stays_with_all_its_parallel_results() -> None:
    both = message("assistant", ToolCall("x", "read", "{}"), ToolCall("y", "read", "{}"))
    compacted = uncompacted(
        user_message("task"), *call_and_result("a", "one"), both, result_message("x", "1"), result_message("y", "2")
    )
    assert free(compacted) == [1, 2]


def test_results_that_no_reply_followed_are_unread_though_the_user_spoke_since() -> None:
    compacted = uncompacted(
        user_message("opening"),
        *call_and_result("a", "one"),
        *call_and_result("b", "two"),
        user_message("and now this"),
    )
    assert free(compacted) == [1, 2]


def test_a_batch_that_was_answered_has_been_read() -> None:
    compacted = uncompacted(
        user_message("opening"), *call_and_result("a", "one"), assistant_message("I see"), user_message("next")
    )
    assert free(compacted) == [1, 2, 3]


def test_an_open_call_stays_with_its_batch() -> None:
    both = message("assistant", ToolCall("x", "read", "{}"), ToolCall("waiting", "ask", "{}"))
    compacted = uncompacted(
        user_message("opening"), both, result_message("x", "1"), assistant_message("meanwhile"), user_message("task")
    )
    assert whole(compacted) == [3]
    assert free(compacted) == [2, 3]


def test_pinned_results_stay_with_their_call() -> None:
    compacted = uncompacted(
        user_message("opening"),
        *call_and_result("a", "one"),
        *call_and_result("b", "two", "load"),
        assistant_message("ok"),
        user_message("task"),
    )
    assert whole(compacted, pinned_call_ids=frozenset({"a"})) == [3, 4, 5]
    assert whole(compacted, pin_rules=PinRules(frozenset({"load"}))) == [1, 2, 5]
    assert whole(compacted, pin_rules=PinRules(frozenset({"lo*"}))) == [1, 2, 5]
    assert whole(compacted, pin_rules=PinRules(frozenset({"Load", "oa*"}))) == [1, 2, 3, 4, 5]
    assert free(compacted, pinned_call_ids=frozenset({"a"})) == [3, 4, 5]


@pytest.mark.parametrize("text", ["<keep>The key is 4711.</keep>", "Look here:\n<keep>4711</keep>, and so on."])
def test_a_message_that_the_user_pins_by_a_tag_stays_whole(text: str) -> None:
    compacted = uncompacted(
        *(user_message("opening"), assistant_message("ok"), user_message("first"), assistant_message("ok")),
        *(user_message(text), assistant_message("ok"), user_message("task")),
    )
    assert (
        free(compacted, pin_rules=PinRules(tag="keep"))
        == whole(compacted, pin_rules=PinRules(tag="keep"))
        == [1, 2, 3, 5]
    )
    assert whole(compacted, pin_rules=PinRules(tag="pin")) == whole(compacted) == [1, 2, 3, 4, 5]


def test_a_tag_pins_nothing_in_other_texts_than_the_users() -> None:
    compacted = uncompacted(
        user_message("opening"),
        *call_and_result("a", "<keep>from a page</keep>"),
        assistant_message("<keep>from a model</keep>"),
        user_message("What does <keep> mean?"),
        assistant_message("ok"),
        user_message("task"),
    )
    assert whole(compacted, pin_rules=PinRules(tag="keep")) == [1, 2, 3, 4, 5]


def test_tags_pin_at_most_a_quarter_of_the_window() -> None:
    """A pasted document may contain the tag."""
    compacted = uncompacted(
        *(user_message("opening"), assistant_message("ok"), user_message("<keep>4711</keep>"), assistant_message("ok")),
        *(user_message("<keep></keep>" + "word " * 300), assistant_message("ok")),
        *(user_message("<keep>4712</keep>"), assistant_message("ok"), user_message("task")),
    )
    assert whole(compacted, pin_rules=PinRules(tag="keep"), window=100_000) == [1, 3, 5, 7]
    assert whole(compacted, pin_rules=PinRules(tag="keep"), window=1_000) == [1, 3, 4, 5, 7]


def test_a_summary_that_quotes_a_tag_is_not_pinned() -> None:
    compacted = uncompacted(
        *(user_message("opening"), assistant_message("ok"), user_message("<keep>from a page</keep>")),
        *(assistant_message("ok"), user_message("task")),
    )
    origins = (0, 5, WRITTEN_BY_COMPACTION, 7, 8)
    summarized = replace(compacted, origins=origins, spans=tuple((each, each, False) for each in origins))
    assert whole(summarized, pin_rules=PinRules(tag="keep")) == [1, 2, 3]


def test_a_sibling_of_a_pinned_result_may_be_replaced_but_not_leave() -> None:
    both = message("assistant", ToolCall("x", "read", "{}"), ToolCall("y", "read", "{}"))
    compacted = uncompacted(
        user_message("opening"),
        both,
        result_message("x", "1"),
        result_message("y", "2"),
        assistant_message("ok"),
        user_message("task"),
    )
    assert free(compacted, pinned_call_ids=frozenset({"y"})) == [1, 2, 4]
    assert whole(compacted, pinned_call_ids=frozenset({"y"})) == [4]


@pytest.mark.parametrize("role", ["system", "developer"])
def test_instructions_leave_with_their_round_but_for_the_first_and_the_newest(role: Any) -> None:
    def rounds(name: str, *instructions: Message) -> tuple[Message, ...]:
        return (*call_and_result(name, "one"), *instructions)

    compacted = uncompacted(
        user_message("opening"),  # 0
        message(role, Text("first")),  # 1
        *rounds("a", message(role, Text("<mode-1>ask</mode-1>"))),  # 2, 3, 4
        *rounds("b", message(role, Text("<mode-2>plan</mode-2>")), message(role, Text("reminder 2"))),  # 5, 6, 7, 8
        *rounds("c", message(role, Text("reminder 3"))),  # 9, 10, 11
        assistant_message("ok"),  # 12
        user_message("task"),  # 13
        message(role, Text("<mode-3>work</mode-3>")),  # 14
        message(role, Text("Today is Friday.")),  # 15
    )
    assert free(compacted) == whole(compacted) == [*range(2, 13)]
    older = compacted.conversation.messages[:13]
    assert free(uncompacted(*older, user_message("task"))) == [*range(2, 7), 8, 9, 10, 12]


def test_changes_of_tools_stay_and_the_rounds_around_them_leave() -> None:
    change = message("system", Text("The wiki is ready."), Opaque("tool_addition", 60))
    compacted = uncompacted(
        user_message("opening"),
        *(*call_and_result("a", "one"), message("system", Text("note")), change, message("system", Text("note"))),
        *call_and_result("b", "two"),
        *(message("system", Text("newest")), assistant_message("ok"), user_message("task")),
    )
    assert whole(compacted) == [1, 2, 3, 5, 6, 7, 9]


def test_unknown_messages_in_between_stay() -> None:
    unknown = message("other", Text("rule"))
    assert free(uncompacted(user_message("opening"), unknown, assistant_message("ok"), user_message("task"))) == [2]


def test_an_approval_that_nobody_answered_stays_with_what_was_asked_beside_it() -> None:
    def request(name: str) -> Message:
        return message("assistant", ToolCall(name, "edit", "{}", name))

    compacted = uncompacted(
        user_message("opening"),
        *(request("a"), result_message("a", "approved"), call_message("x"), result_message("x", "done")),
        *(request("b"), request("c"), result_message("b", "approved")),
        *(assistant_message("ok"), user_message("task")),
    )
    assert whole(compacted) == [1, 2, 3, 4, 8]


@pytest.mark.parametrize("code", [ToolCall("srvtoolu_1", "code_execution", "{}"), ToolCall("p", "program", "{}")])
def test_behind_a_running_code_call_results_may_be_replaced_and_nothing_removed(code: ToolCall) -> None:
    """The provider takes nothing there but the results that it waits for, so no block may stand there."""
    before = (user_message("opening"), *call_and_result("a", "one"), assistant_message("done"), user_message("task"))
    running = uncompacted(
        *before,
        message("assistant", code),
        *call_and_result("b", "two"),
        *call_and_result("c", "three"),
        *call_and_result("d", "four"),
    )
    assert whole(running) == [1, 2, 3]
    assert whole(running, "generation") == []
    assert {7, 9} <= set(free(running))
    ended = uncompacted(
        *before,
        message("assistant", code),
        result_message(code.call_id, "ran"),
        *call_and_result("b", "2"),
        *call_and_result("c", "3"),
    )
    assert {7, 8} <= set(whole(ended))


@pytest.mark.parametrize(("kind", "leaves"), [("hologram", True), ("tool_reference", False), ("", False)])
def test_what_is_not_understood_leaves_with_its_round_and_is_not_changed(kind: str, leaves: bool) -> None:
    compacted = uncompacted(
        user_message("opening"),
        call_message("a"),
        message("tool", ToolResult("a", (Opaque(kind, 10),))),
        message("assistant", Opaque(kind, 5)),
        assistant_message("ok"),
        user_message("t"),
    )
    assert whole(compacted) == ([1, 2, 3, 4] if leaves else [4])
    assert free(compacted) == [1, 4]
    assert not whole(compacted, form="whole")


def test_a_providers_compaction_item_stays_and_so_does_the_opening_before_it() -> None:
    item = message("other", Opaque("compaction", 500))
    compacted = uncompacted(
        user_message("opening"),
        user_message("and"),
        item,
        user_message("more"),
        assistant_message("ok"),
        user_message("task"),
    )
    assert free(compacted) == whole(compacted) == [1, 3, 4]


RESUMED = uncompacted(
    user_message("opening"),  # 0
    *call_and_result("a", "x" * 4_000),  # 1, 2
    message("user", IMAGE),  # 3
    message("assistant", Opaque("compaction", 400)),  # 4
    user_message("more"),  # 5
    *call_and_result("b", "y" * 400),  # 6, 7
    assistant_message("ok"),  # 8
    user_message("task"),  # 9
)
"""A history whose beginning the provider has compacted by itself."""


def test_what_the_provider_no_longer_reads_costs_nothing_and_is_left_alone() -> None:
    view = strategy_view(RESUMED)
    assert [slot.tokens for slot in view.slots[:4]] == [0] * 4
    assert view.slots[4].tokens == count(view.slots[4].message)
    assert sum(slot.tokens for slot in view.slots) + OVERHEAD == view.tokens
    assert free(RESUMED) == whole(RESUMED) == [5, 6, 7, 8]
    assert not any(view.reachable[:4]), "nor as a last resort"


def test_what_was_read_back_where_the_provider_no_longer_reads_costs_nothing_either() -> None:
    view = strategy_view(RESUMED, insertion_tokens={5: 100})
    assert view.insertion_tokens[5] == 100
    assert strategy_view(RESUMED).tokens + 100 == view.tokens
    apart = build_view(
        RESUMED, "conversation", tokens=view.tokens, overhead=OVERHEAD, target=0, window=9_000, count_message=count,
        insertion_tokens={2: 700, 5: 100},
    )  # fmt: skip
    assert (apart.slots, apart.insertion_tokens) == (view.slots, view.insertion_tokens)


@pytest.mark.parametrize("budgets", [RequestBudgets(max_body_bytes=10), RequestBudgets(max_images=1)])
def test_results_are_free_if_the_request_exceeds_the_limit_of_bytes_or_images(budgets: RequestBudgets) -> None:
    two = replace(RESUMED, conversation=replace(RESUMED.conversation, messages=(
        *RESUMED.conversation.messages[:-1], message("user", Text("task"), IMAGE),
    )))  # fmt: skip
    view = strategy_view(two, budgets=budgets, size=5_000)
    assert free(two, budgets=budgets, size=5_000) == [1, 2, 3, 5, 6, 7, 8]
    sketch = PlanState(view)
    assert [sketch.count_part_tokens(slot) for slot in range(4)] == [(0,)] * 4


def test_an_earlier_compactions_block_is_free_where_the_kind_may_reach_it() -> None:
    block = user_message("what an earlier compaction wrote")
    messages = (
        user_message("opening"),
        block,
        user_message("task"),
        block,
        *call_and_result("a", "1"),
        *call_and_result("b", "2"),
    )
    compacted = uncompacted(*messages)
    origins = (0, WRITTEN_BY_COMPACTION, 5, WRITTEN_BY_COMPACTION, 8, 9, 10, 11)
    spans = tuple((max(0, origin), max(0, origin), False) for origin in origins)
    compacted = replace(compacted, origins=origins, spans=spans)
    assert free(compacted) == [1, 3, 4, 5]
    assert free(compacted, "generation") == [3, 4, 5]
    assert strategy_view(compacted).task == 2


def test_without_a_task_all_before_the_newest_batch_is_of_the_generation() -> None:
    assert free(
        uncompacted(assistant_message("hm"), *call_and_result("a", "1"), *call_and_result("b", "2")), "generation"
    ) == [0, 1, 2]


def test_an_open_turn_with_bound_thinking_waits_unless_it_must_succeed() -> None:
    thinking = message("assistant", Reasoning("hm", 40), ToolCall("b", "read", "{}"))
    compacted = uncompacted(
        user_message("opening"), *call_and_result("a", "1"), user_message("task"), thinking, result_message("b", "2")
    )
    assert free(compacted, thinking="bound") == []
    assert free(compacted, thinking="bound", must_succeed=True) == [1, 2]
    assert free(compacted, thinking="droppable") == [1, 2]
    closed = uncompacted(
        user_message("opening"), thinking, result_message("b", "2"), assistant_message("ok"), user_message("task")
    )
    assert free(closed, thinking="bound") == [1, 2, 3]


def test_reasoning_stays_from_where_the_open_tool_turn_begins() -> None:
    assert strategy_view(LONG).open_turn == 5
    assert (
        strategy_view(uncompacted(user_message("opening"), assistant_message("ok"), user_message("task"))).open_turn
        == 3
    )


def test_slots_count_what_the_whole_request_was_corrected_to() -> None:
    compacted = uncompacted(
        user_message("opening"), *call_and_result("a", "x" * 4_000), assistant_message("y" * 997), user_message("task")
    )
    view = build_view(
        compacted, "conversation", tokens=5_000, overhead=200, target=0, window=9_000, count_message=count
    )
    assert sum(slot.tokens for slot in view.slots) == 4_800
    raw = [count(slot.message) for slot in view.slots]
    assert all(abs(slot.tokens - n * 4_800 / sum(raw)) <= 1 for slot, n in zip(view.slots, raw, strict=True))


def test_a_target_that_cannot_be_met_leaves_a_quarter_of_what_is_above_what_stays() -> None:
    compacted = uncompacted(
        user_message("o" * 4_000),
        *call_and_result("a", "x" * 4_000),
        assistant_message("ok"),
        user_message("t" * 4_000),
    )
    view = strategy_view(compacted, target=100)
    staying = view.tokens - sum(slot.tokens for slot, leaves in zip(view.slots, view.removable, strict=True) if leaves)
    assert view.target == staying + (view.tokens - staying) // 4
    assert strategy_view(compacted, target=2_900).target == 2_900


def test_the_task_is_the_last_message_with_user_text_and_no_result() -> None:
    both = message("user", ToolResult("a", (Text("text"),)), Text("a reminder"))
    assert (
        strategy_view(
            uncompacted(user_message("first"), assistant_message("ok"), user_message("second"), call_message("a"), both)
        ).task
        == 2
    )
    assert strategy_view(uncompacted(assistant_message("ok"))).task == -1


def test_a_request_stays_while_the_user_adds_to_it() -> None:
    compacted = uncompacted(
        user_message("first"),  # 0
        *call_and_result("a", "1"),  # 1, 2
        assistant_message("done"),  # 3
        user_message("second"),  # 4
        *call_and_result("b", "2"),  # 5, 6
        user_message("and also this"),  # 7
        *call_and_result("c", "3"),  # 8, 9
        user_message("and that"),  # 10
        *call_and_result("d", "4"),  # 11, 12
    )
    assert whole(compacted) == [1, 2, 3, 5, 6, 7, 8, 9]


def test_images_in_results_count_against_their_budget() -> None:
    shown = message("tool", ToolResult("a", (Text("a screen"), IMAGE)))
    compacted = uncompacted(message("user", Text("look"), IMAGE), call_message("a"), shown)
    view = strategy_view(compacted, budgets=RequestBudgets(max_body_bytes=10, max_images=5), size=77)
    assert (view.images, view.max_images, view.body_size, view.max_body_size) == (2, 5, 77, 10)


@pytest.mark.parametrize("kind", ["conversation", "generation"])
@pytest.mark.parametrize("protocol_name", PROTOCOL_NAMES)
@given(history=histories())
def test_protected_messages_are_never_free(protocol_name: ProtocolName, kind: Any, history: History) -> None:
    conversation = read(history, protocol_name)
    messages, view = conversation.messages, strategy_view(without_compaction(conversation), kind)
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
    # The model read the results of the provider's own calls as it made them.
    is_of_client = each.has_tool_result and each.role != "assistant"
    return is_of_client and not any(later.role == "assistant" for later in messages[index + 1 :])


def test_what_was_read_back_is_a_part_of_the_messages_and_no_overhead() -> None:
    setup, client = CompactorSetup(), conversation(long_history(3), "chat")
    case = setup.case(client)
    used = structs.replace(case.utilization, preamble=10, tools=20, insertions=500)
    view = build_view_for_request(replace(case, utilization=used), "conversation", count_message=count)
    assert (view.tokens, view.overhead) == (used.tokens, 30 + RESPONSE_START)
    assert sum(slot.tokens for slot in view.slots) == used.messages + 500 - RESPONSE_START


def test_a_list_begins_afresh_where_the_compaction_brings_our_tool_along() -> None:
    case = CompactorSetup().case(conversation(long_history(3), "chat"))
    made = [
        build_view_for_request(replace(case, tool_tokens=tokens), "conversation", count_message=count).is_tool_new
        for tokens in (0, 50)
    ]
    assert made == [False, True]
