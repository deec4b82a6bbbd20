"""What was read back is a part of the message that it stands at, and goes with it."""

from __future__ import annotations

from dataclasses import replace

from proxy.compaction.planner import Planner
from proxy.compaction.sketch import Sketch
from proxy.compaction.strategies import build
from proxy.compaction.woven import longer, orphans
from proxy.core.conversation import Message, Reasoning, Text
from proxy.core.edits import Compaction, Folded
from proxy.core.plan import WOVEN, Drop, Summarize
from tests.compaction.viewing import answers, batch, calls, count, gives, listed, message, says, viewed


def behind(fold: list[Message], *own: Message) -> Folded:
    """A list whose first messages are a fold's, which covers ten of the client's."""
    folded = listed(*fold, *own)
    head = [(at, at, False) for at in range(len(fold))]
    tail = [(10 + at, 10 + at, False) for at in range(len(own))]
    made = Compaction("f", b"", 10, (), "conversation", "automatic", None, (), 1, 1, 1, 0.0)
    origins = (*range(len(fold)), *(10 + at for at in range(len(own))))
    return replace(folded, compaction=made, spans=(*head, *tail), origins=origins)


def with_woven(folded: Folded, at: int, replaced: int, *woven: Message) -> Folded:
    """The list with these in the place of so many."""
    first, told = folded.spans[at][0], folded.conversation
    span = (first, first + replaced - 1, False)
    return replace(
        folded,
        conversation=replace(told, messages=(*told.messages[:at], *woven, *told.messages[at + replaced :])),
        origins=(*folded.origins[:at], *[WOVEN] * len(woven), *folded.origins[at + replaced :]),
        spans=(*folded.spans[:at], *[span] * len(woven), *folded.spans[at + replaced :]),
    )


READ = [calls("ours_1", "read_artifact"), gives("ours_1", "x" * 400)]


def test_rounds_in_the_place_of_a_reply_go_with_it() -> None:
    folded = behind([says("opening")], says("one"), answers("two"), says("three"))
    shown = with_woven(folded, 2, 1, *READ, answers("two"))
    assert longer(folded, shown, count) == {2: count(READ[0]) + count(READ[1])}
    assert longer(folded, folded, count) == {}


def test_a_recall_goes_with_the_message_that_it_stands_before() -> None:
    folded = behind([says("opening")], says("one"), answers("two"), says("three"))
    found = says("found" * 20)
    assert longer(folded, with_woven(folded, 3, 0, found), count) == {3: count(found)}


def test_a_recall_that_was_joined_to_a_message_is_a_part_of_it() -> None:
    folded = behind([says("opening")], says("one"), answers("two"), says("three"))
    joined = message("user", Text("found " * 40), Text("three"))
    listing = folded.conversation.messages
    shown = replace(folded, conversation=replace(folded.conversation, messages=(*listing[:3], joined)))
    assert longer(folded, shown, count) == {3: count(joined) - count(listing[3])}
    joined = message("user", Text("opening"), Text("found " * 40))
    shown = replace(folded, conversation=replace(folded.conversation, messages=(joined, *listing[1:])))
    assert longer(folded, shown, count) == {1: count(joined) - count(listing[0])}


def test_what_is_read_back_goes_with_what_is_touched_there_or_behind() -> None:
    folded = listed(says("opening"), *batch("a", "one"), answers("done"), says("next"), answers("ok"), says("task"))
    view = viewed(folded, woven={1: 100, 3: 200, 5: 400})
    raw = view.scale
    sketch = Sketch(view)
    sketch.apply(Drop(3))
    left = view.slots[5].tokens
    assert sketch.draft().woven == (0, 0, 0, 0, 0, round(400 * raw), 0)
    assert sketch.draft().slots[5].tokens == left
    assert view.tokens - sketch.tokens == sum(view.woven[:4]) + view.slots[3].tokens - view.woven[3]
    # What is held fast is not covered, nor what stands there.
    held = Sketch(replace(view, whole=(*view.whole[:5], False, *view.whole[6:])))
    held.apply(Summarize(1, 5, 10))
    assert held.draft().woven[5] == view.woven[5]


def test_a_plan_that_has_nothing_else_to_take_away_takes_what_was_read_back() -> None:
    turns = [each for at in range(6) for each in (says(f"question {at} " * 8), answers(f"answer {at} " * 8))]
    folded = listed(says("opening"), answers("ok"), *turns, says("task"))
    heavy = dict.fromkeys(range(3, 14, 2), 3000)
    own = sum(map(count, folded.conversation.messages)) + 100
    view = viewed(folded, woven=heavy, target=2_000)
    plan = Planner([build("summarize")]).plan(view, must_succeed=False)
    assert own < view.tokens
    assert plan.after <= max(view.target, own)


# -- reasoning that led to our calls alone -----------------------------------------------------------------------------


def thinks(text: str) -> Message:
    return message("assistant", Reasoning(text))


def test_reasoning_that_led_to_our_calls_alone_is_known() -> None:
    folded = behind([says("opening")], says("one"), thinks("a"), thinks("b"), answers("two"), says("three"))
    shown = with_woven(folded, 2, 3, thinks("a"), *READ, thinks("b"), answers("two"))
    assert orphans(folded, shown) == ((2, 2),)
    shown = with_woven(folded, 2, 3, thinks("a"), thinks("b"), *READ, answers("two"))
    assert orphans(folded, shown) == ((2, 2), (3, 2))
    assert orphans(folded, folded) == ()


def test_reasoning_that_led_to_what_the_client_has_is_none_of_it() -> None:
    folded = behind([says("opening")], says("one"), thinks("a"), answers("two"), *batch("c", "there"), says("three"))
    shown = with_woven(folded, 2, 3, thinks("a"), answers("two"), *READ, calls("c", "read"))
    assert orphans(folded, shown) == ()


def test_reasoning_before_our_call_beside_the_clients_leaves_with_all_reasoning_before_it() -> None:
    """Else the client's call would be taken for one that the earlier reasoning led to."""
    own = [thinks("a"), answers("two"), thinks("b"), *batch("c", "there")]
    folded = behind([says("opening")], says("one"), *own)
    mixed = [thinks("b"), *READ[:1], calls("c", "read"), *READ[1:]]
    shown = with_woven(folded, 2, 5, thinks("a"), answers("two"), *READ, *mixed, own[-1])
    assert orphans(folded, shown) == ((2, 2), (4, 2))
