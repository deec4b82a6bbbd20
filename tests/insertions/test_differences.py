"""What was read back is a part of the message that it stands at, and goes with it."""

from __future__ import annotations

import json

from msgspec.structs import replace

from accordion.compaction.planner import Planner, PlanState
from accordion.compaction.strategies import build_strategy
from accordion.insertions.differences import count_extra_tokens, drop_bound_thinking, find_orphan_reasoning
from accordion.model.compaction import CompactedConversation, Compaction, without_compaction
from accordion.model.conversation import Message, Reasoning, Text, ToolCall, ToolResult
from accordion.model.plan import INSERTED, Drop, Summarize
from accordion.protocols.body_reader import BodyReader
from tests.compaction.view_samples import (
    READERS,
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


def behind(compaction: list[Message], *own: Message) -> CompactedConversation:
    """A list whose first messages are a compaction's, which covers ten of the client's."""
    compacted = uncompacted(*compaction, *own)
    head = [(at, at, False) for at in range(len(compaction))]
    tail = [(10 + at, 10 + at, False) for at in range(len(own))]
    made = Compaction("f", b"", 10, (), "conversation", "automatic", None, (), 1, 1, 1, 0.0)
    origins = (*range(len(compaction)), *(10 + at for at in range(len(own))))
    return replace(compacted, compaction=made, spans=(*head, *tail), origins=origins)


def replace_with_insertion(
    compacted: CompactedConversation, at: int, replaced: int, *inserted: Message
) -> CompactedConversation:
    """The list with these in the place of so many."""
    first, told = compacted.spans[at][0], compacted.conversation
    span = (first, first + replaced - 1, False)
    return replace(
        compacted,
        conversation=replace(told, messages=(*told.messages[:at], *inserted, *told.messages[at + replaced :])),
        origins=(*compacted.origins[:at], *[INSERTED] * len(inserted), *compacted.origins[at + replaced :]),
        spans=(*compacted.spans[:at], *[span] * len(inserted), *compacted.spans[at + replaced :]),
    )


READ = [call_message("ours_1", "read_artifact"), result_message("ours_1", "x" * 400)]


def test_rounds_in_the_place_of_a_reply_go_with_it() -> None:
    compacted = behind([user_message("opening")], user_message("one"), assistant_message("two"), user_message("three"))
    shown = replace_with_insertion(compacted, 2, 1, *READ, assistant_message("two"))
    assert count_extra_tokens(compacted, shown, count) == {2: count(READ[0]) + count(READ[1])}
    assert count_extra_tokens(compacted, compacted, count) == {}


def test_a_recall_goes_with_the_message_that_it_stands_before() -> None:
    compacted = behind([user_message("opening")], user_message("one"), assistant_message("two"), user_message("three"))
    found = user_message("found" * 20)
    assert count_extra_tokens(compacted, replace_with_insertion(compacted, 3, 0, found), count) == {3: count(found)}


def test_a_recall_that_was_joined_to_a_message_is_a_part_of_it() -> None:
    compacted = behind([user_message("opening")], user_message("one"), assistant_message("two"), user_message("three"))
    joined = message("user", Text("found " * 40), Text("three"))
    listing = compacted.conversation.messages
    shown = replace(compacted, conversation=replace(compacted.conversation, messages=(*listing[:3], joined)))
    assert count_extra_tokens(compacted, shown, count) == {3: count(joined) - count(listing[3])}
    joined = message("user", Text("opening"), Text("found " * 40))
    shown = replace(compacted, conversation=replace(compacted.conversation, messages=(joined, *listing[1:])))
    assert count_extra_tokens(compacted, shown, count) == {1: count(joined) - count(listing[0])}


def test_with_an_earlier_compaction_all_insertions_behind_the_newer_one_are_known() -> None:
    own = [user_message("one"), assistant_message("two"), user_message("three")]
    compacted = behind([user_message("opening")], *own)
    before = uncompacted(*(user_message(f"turn {at}") for at in range(10)), *own)
    assert count_extra_tokens(compacted, before, count) == {}, "our tool alone was offered in it"
    assert find_orphan_reasoning(compacted, before) == ()
    spans = tuple((at, at, False) for at in before.origins)
    shown = replace_with_insertion(replace(before, spans=spans), 11, 1, *READ, assistant_message("two"))
    shown = replace_with_insertion(shown, 3, 0, user_message("recalled"))
    assert count_extra_tokens(compacted, shown, count) == {2: count(READ[0]) + count(READ[1])}


def test_what_is_read_back_goes_with_what_is_touched_there_or_behind() -> None:
    compacted = uncompacted(
        user_message("opening"),
        *call_and_result("a", "one"),
        assistant_message("done"),
        user_message("next"),
        assistant_message("ok"),
        user_message("task"),
    )
    view = strategy_view(compacted, insertion_tokens={1: 100, 3: 200, 5: 400})
    raw = view.scale
    sketch = PlanState(view)
    sketch.apply(Drop(3))
    left = view.slots[5].tokens
    assert sketch.current_view().insertion_tokens == (0, 0, 0, 0, 0, round(400 * raw), 0)
    assert sketch.current_view().slots[5].tokens == left
    assert (
        view.tokens - sketch.tokens == sum(view.insertion_tokens[:4]) + view.slots[3].tokens - view.insertion_tokens[3]
    )
    # What is held fast is not covered, nor what stands there.
    held = PlanState(replace(view, removable=(*view.removable[:5], False, *view.removable[6:])))
    held.apply(Summarize(1, 5, 10))
    assert held.current_view().insertion_tokens[5] == view.insertion_tokens[5]


def test_a_plan_that_has_nothing_else_to_take_away_takes_what_was_read_back() -> None:
    turns = [
        each
        for at in range(6)
        for each in (user_message(f"question {at} " * 8), assistant_message(f"answer {at} " * 8))
    ]
    compacted = uncompacted(user_message("opening"), assistant_message("ok"), *turns, user_message("task"))
    heavy = dict.fromkeys(range(3, 14, 2), 3000)
    own = sum(map(count, compacted.conversation.messages)) + 100
    view = strategy_view(compacted, insertion_tokens=heavy, target=2_000)
    plan = Planner([build_strategy("summarize")]).plan(view, must_succeed=False)
    assert own < view.tokens
    assert plan.after <= max(view.target, own)


# -- reasoning that led to our calls alone -----------------------------------------------------------------------------


def thinks(text: str) -> Message:
    return message("assistant", Reasoning(text))


def test_reasoning_that_led_to_our_calls_alone_is_known() -> None:
    compacted = behind(
        [user_message("opening")],
        user_message("one"),
        thinks("a"),
        thinks("b"),
        assistant_message("two"),
        user_message("three"),
    )
    shown = replace_with_insertion(compacted, 2, 3, thinks("a"), *READ, thinks("b"), assistant_message("two"))
    assert find_orphan_reasoning(compacted, shown) == ((2, 2),)
    shown = replace_with_insertion(compacted, 2, 3, thinks("a"), thinks("b"), *READ, assistant_message("two"))
    assert find_orphan_reasoning(compacted, shown) == ((2, 2), (3, 2))
    assert find_orphan_reasoning(compacted, compacted) == ()


def test_reasoning_that_led_to_what_the_client_has_is_none_of_it() -> None:
    compacted = behind(
        [user_message("opening")],
        user_message("one"),
        thinks("a"),
        assistant_message("two"),
        *call_and_result("c", "there"),
        user_message("three"),
    )
    shown = replace_with_insertion(
        compacted, 2, 3, thinks("a"), assistant_message("two"), *READ, call_message("c", "read")
    )
    assert find_orphan_reasoning(compacted, shown) == ()


def test_reasoning_before_a_mixed_reply_leaves_with_all_earlier_reasoning() -> None:
    """Else the client's call would be taken for one that the earlier reasoning led to."""
    own = [thinks("a"), assistant_message("two"), thinks("b"), *call_and_result("c", "there")]
    compacted = behind([user_message("opening")], user_message("one"), *own)
    mixed = [thinks("b"), *READ[:1], call_message("c", "read"), *READ[1:]]
    shown = replace_with_insertion(compacted, 2, 5, thinks("a"), assistant_message("two"), *READ, *mixed, own[-1])
    assert find_orphan_reasoning(compacted, shown) == ((2, 2), (4, 2))


def test_a_call_that_the_provider_ran_leaves_with_its_reasoning() -> None:
    search = message("assistant", ToolCall("ws_1", "web_search", "{}"), ToolResult("ws_1", ()))
    own = [thinks("a"), search, thinks("b"), *call_and_result("c", "there")]
    compacted = behind([user_message("opening")], user_message("one"), *own)
    mixed = [thinks("b"), *READ[:1], call_message("c", "read"), *READ[1:]]
    shown = replace_with_insertion(compacted, 2, 5, thinks("a"), search, *mixed, own[-1])
    assert find_orphan_reasoning(compacted, shown) == ((2, 2), (3, 2), (4, 2))
    bare = message("assistant", ToolCall("", "web_search", "{}"), ToolResult("", ()))
    alone = replace_with_insertion(compacted, 2, 3, thinks("a"), bare, thinks("b"), *READ)
    assert find_orphan_reasoning(compacted, alone) == ((4, 2),)


def test_what_thinking_was_bound_to_takes_it_along_where_nothing_was_compacted_too() -> None:
    protocol, thought = READERS["messages"], {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
    said = [thought, {"type": "text", "text": "ok"}]
    talk = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": said},
        {"role": "user", "content": "x"},
    ]
    raw = json.dumps({"model": "claude-opus-5-5", "max_tokens": 9, "messages": talk}).encode()
    shown = without_compaction(BodyReader().read(protocol, raw, TENANT))
    before = replace_with_insertion(
        replace(shown, spans=((0, 0, False), (1, 1, False), (2, 2, False))), 1, 0, user_message("recalled")
    )

    def written(wire: bytes) -> Message:
        made = protocol.read_message(wire)
        return Message(b"", made.role, made.parts, wire)

    bare = drop_bound_thinking(protocol, shown, before, written)
    assert [json.loads(each.wire) for each in bare.conversation.messages] == [
        talk[0],
        {"role": "assistant", "content": said[1:]},
        talk[2],
    ]
    assert [first for first, _, _ in bare.spans] == [0, 1, 2]
