from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from accordion.archive.references import artifact_id, result_reference
from accordion.compaction.planner import Planner, PlanState
from accordion.compaction.strategies import STRATEGIES, build_strategy
from accordion.compaction.strategies.base import DeferredReplace, StrategyView
from accordion.compaction.view import build_view
from accordion.model.conversation import Message, Reasoning, Text, ToolCall, ToolResult
from accordion.model.plan import Drop, PlanStep, Replace
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

LONG = "x" * 2_000
COMPACTED = uncompacted(
    user_message("o"),
    *call_and_result("a", LONG, "run", '{"command": "ls"}'),  # 1, 2
    *call_and_result("b", LONG),  # 3, 4
    assistant_message("well"),  # 5
    *call_and_result("c", LONG),  # 6, 7
    *call_and_result("d", LONG),  # 8, 9
    assistant_message("done"),  # 10
    user_message("t"),  # 11
)


def proposed(view: StrategyView, **options: Any) -> list[PlanStep | DeferredReplace]:
    """The steps, those that are written late too."""
    return list(
        build_strategy("compact_tool_results", {"replacement": "reference"} | options).propose(
            PlanState(view).current_view()
        )
    )


def positions(steps: list[PlanStep | DeferredReplace]) -> list[tuple[int, int]]:
    """Where results are replaced."""
    return [(step.slot, step.part) for step in steps if isinstance(step, Replace | DeferredReplace)]


def shout(tool_name: str, call_id: str, text: str) -> str:
    """A replacement function as a user would write one."""
    if call_id == "b":
        raise RuntimeError("not this one")
    return f"{tool_name.upper()} {call_id} {len(text)}"


def numbers(tool_name: str, call_id: str, text: str) -> Any:
    """A replacement function that gives no text."""
    return 7


NO_FUNCTION = 3


def test_the_newest_batches_stay_and_the_oldest_go_first() -> None:
    assert positions(proposed(strategy_view(COMPACTED))) == [(2, 0), (4, 0)]
    assert positions(proposed(strategy_view(COMPACTED), keep_last_n=0)) == [(2, 0), (4, 0), (7, 0), (9, 0)]
    assert positions(proposed(strategy_view(COMPACTED), keep_last_n=4)) == []


def test_a_parallel_batch_counts_as_one() -> None:
    both = message("assistant", ToolCall("x", "read", "{}"), ToolCall("y", "read", "{}"))
    compacted = uncompacted(
        user_message("o"),
        *call_and_result("a", LONG),
        both,
        result_message("x", LONG),
        result_message("y", LONG),
        assistant_message("ok"),
        user_message("t"),
    )
    assert positions(proposed(strategy_view(compacted), keep_last_n=1)) == [(2, 0)]


def test_nothing_is_done_at_or_below_the_threshold() -> None:
    assert proposed(strategy_view(COMPACTED), threshold=12) == []
    assert proposed(strategy_view(COMPACTED), threshold=11) != []


def test_a_reference_names_the_call_and_holds_a_digest_within_its_budget() -> None:
    asked: list[tuple[str, int]] = []

    def digest(text: str, most: int) -> str:
        asked.append((text, most))
        return "a digest"

    (first, _) = proposed(strategy_view(COMPACTED, make_digest=digest), digest_characters=100)
    assert asked == []
    assert isinstance(first, DeferredReplace)
    text = first.render_text()
    assert asked == [(LONG, 100)]
    assert 'run({"command": "ls"})' in text
    assert artifact_id(TENANT, COMPACTED.conversation.messages[2].key, 0) in text
    assert text.endswith("a digest")
    assert len(text.encode()) / 3 <= first.tokens + 4


def test_a_digest_that_fails_or_is_too_long_spoils_no_reference() -> None:
    def broken(text: str, most: int) -> str:
        raise RuntimeError(text)

    (first, _) = proposed(strategy_view(COMPACTED, make_digest=broken))
    assert isinstance(first, DeferredReplace)
    assert 'read_artifact("art_' in first.render_text()
    (first, _) = proposed(strategy_view(COMPACTED, make_digest=lambda text, most: text), digest_characters=50)
    assert isinstance(first, DeferredReplace)
    assert len(first.render_text()) < 350


def test_json_without_a_digest_is_described() -> None:
    compacted = uncompacted(
        user_message("o"), *call_and_result("a", str([1] * 900)), assistant_message("ok"), user_message("t")
    )
    (step,) = proposed(strategy_view(compacted), keep_last_n=0)
    assert isinstance(step, DeferredReplace)
    assert step.render_text().endswith("It is a JSON array of 900 entries.")


def test_results_that_are_no_longer_than_their_reference_stay() -> None:
    compacted = uncompacted(
        user_message("o"),
        *call_and_result("a", "short"),
        *call_and_result("b", ""),
        assistant_message("ok"),
        user_message("t"),
    )
    assert proposed(strategy_view(compacted), keep_last_n=0) == []


def test_hand_offs_and_other_skipped_tools_stay() -> None:
    compacted = uncompacted(
        user_message("o"),
        *call_and_result("a", LONG, "transfer_to_sales"),
        *call_and_result("b", LONG),
        assistant_message("ok"),
        user_message("t"),
    )
    assert positions(proposed(strategy_view(compacted), keep_last_n=0)) == [(4, 0)]
    assert positions(proposed(strategy_view(compacted), keep_last_n=0, skip=["read"])) == [(2, 0)]


def test_pinned_results_stay() -> None:
    assert positions(proposed(strategy_view(COMPACTED, pinned_call_ids=frozenset({"a"})))) == [(4, 0)]


# -- templates -------------------------------------------------------------------------


def test_a_template_is_filled_in() -> None:
    template = "[{tool_name} {call_id}: {result_length} characters, {artifact_id}] {{kept}}"
    (first, _) = proposed(strategy_view(COMPACTED), replacement=template)
    kept = artifact_id(TENANT, COMPACTED.conversation.messages[2].key, 0)
    assert isinstance(first, Replace)
    assert first.text == f"[run a: 2000 characters, {kept}] {{kept}}"


@pytest.mark.parametrize(
    "template", ["{result}", "{tool_name.x}", "{0}", "{}", "{tool_name!r}", "{call_id:>9}", "{open"]
)
def test_a_wrong_template_is_refused_with_its_key(template: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=r"template is wrong.* - at `\$\.replacement`"):
        msgspec.convert({"replacement": template}, STRATEGIES["compact_tool_results"].options_type)


# -- functions -------------------------------------------------------------------------

HERE = "tests.compaction.strategies.test_compact_tool_results"


def test_a_function_writes_and_its_failure_is_one_results_own() -> None:
    (step,) = proposed(strategy_view(COMPACTED), replacement=f"{HERE}:shout")
    assert isinstance(step, Replace)
    assert step == Replace(2, 0, "RUN a 2000", step.tokens)


def test_a_function_that_gives_no_text_leaves_results_as_they_are() -> None:
    assert proposed(strategy_view(COMPACTED), replacement=f"{HERE}:numbers") == []


@pytest.mark.parametrize("name", [f"{HERE}:missing", "no_such_module:f", f"{HERE}:NO_FUNCTION"])
def test_a_function_that_cannot_be_had_is_refused(name: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=r"- at `\$\.replacement`"):
        msgspec.convert({"replacement": name}, STRATEGIES["compact_tool_results"].options_type)


# -- dropping ---------------------------------------------------------------------------


def dropped(*messages: Message, **options: Any) -> list[PlanStep]:
    """What the planner does of a pipeline that drops."""
    strategy = build_strategy("compact_tool_results", {"keep_last_n": 0, "replacement": "drop"} | options)
    return list(Planner([strategy]).plan(strategy_view(uncompacted(*messages)), must_succeed=False).steps)


def test_pairs_are_dropped_with_messages_that_they_empty() -> None:
    steps = dropped(user_message("o"), *call_and_result("a", LONG), assistant_message("ok"), user_message("t"))
    assert steps == [Drop(1), Drop(2)]


def test_nothing_at_all_means_dropping() -> None:
    assert dropped(
        user_message("o"), *call_and_result("a", LONG), assistant_message("ok"), user_message("t"), replacement=None
    ) == [Drop(1), Drop(2)]


def test_text_beside_a_call_stays() -> None:
    spoken = message("assistant", Text("I will look."), ToolCall("a", "read", "{}"))
    assert dropped(
        user_message("o"), spoken, result_message("a", LONG), assistant_message("ok"), user_message("t")
    ) == [Drop(1, (1,)), Drop(2, (0,))]


def test_reasoning_that_led_only_to_dropped_calls_goes_with_them() -> None:
    thinking = message("assistant", Reasoning("hm"), ToolCall("a", "read", "{}"))
    assert dropped(
        user_message("o"), thinking, result_message("a", LONG), assistant_message("ok"), user_message("t")
    ) == [Drop(1), Drop(2)]
    thought = message("assistant", Reasoning("hm"))
    steps = dropped(
        user_message("o"),
        thought,
        call_message("a"),
        result_message("a", LONG),
        assistant_message("ok"),
        user_message("t"),
    )
    assert steps == [Drop(1), Drop(2), Drop(3)]


def test_the_other_pair_of_a_batch_with_a_skipped_tool_is_dropped() -> None:
    both = message("assistant", ToolCall("x", "read", "{}"), ToolCall("y", "transfer_to_b", "{}"))
    both_given = message("user", ToolResult("x", (Text(LONG),)), ToolResult("y", (Text(LONG),)))
    steps = dropped(user_message("o"), both, both_given, assistant_message("ok"), user_message("t"))
    assert steps == [Drop(1, (0,)), Drop(2, (0,))]


# -- compacted before -------------------------------------------------------------------


@pytest.mark.parametrize(
    "replacement", ["reference", "[{tool_name} gave {result_length} characters, see {artifact_id}]"]
)
def test_what_stands_for_a_result_is_not_replaced_by_what_would_stand_for_that(replacement: str) -> None:
    told = result_reference("run", '{"command": "ls"}', "art_0123456789ab", "90,000 characters", "a/path.py:12 " * 30)
    if replacement != "reference":
        told = "[run gave 90000 characters, see art_0123456789ab]"
    first = uncompacted(
        *COMPACTED.conversation.messages[:2], result_message("a", told), *COMPACTED.conversation.messages[3:]
    )
    compacted = replace(first, spans=tuple((at, at, at == 2) for at in range(12)))
    view = build_view(
        compacted, "conversation", tokens=50_000, overhead=100, target=0, window=90_000, count_message=count
    )
    assert positions(proposed(view, replacement=replacement)) == [(4, 0)]


def test_a_result_of_a_message_that_was_changed_elsewhere_may_still_go() -> None:
    compacted = replace(COMPACTED, spans=tuple((at, at, at == 2) for at in range(12)))
    assert positions(proposed(strategy_view(compacted))) == [(2, 0), (4, 0)]
