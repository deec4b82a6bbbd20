"""Images and bytes: strategies that run only where their budget is exceeded."""

from __future__ import annotations

from typing import Any

from accordion.archive.references import artifact_id
from accordion.compaction.planner import Planner
from accordion.compaction.request import RequestBudgets
from accordion.compaction.strategies import build_strategy
from accordion.compaction.strategies.base import Plan
from accordion.model.conversation import Media, Message, Text, ToolResult
from accordion.model.plan import Replace
from tests.compaction.view_samples import (
    TENANT,
    assistant_message,
    call_and_result,
    call_message,
    message,
    result_message,
    strategy_view,
    uncompacted,
    user_message,
)


def image(size: int = 30_000) -> Media:
    return Media("image", "image/png", size, 640, 480)


def screen(call_id: str) -> list[Message]:
    """A screenshot, with a word about it."""
    return [call_message(call_id, "screenshot"), message("tool", ToolResult(call_id, (Text("a screen"), image())))]


def planned(*messages: Message, images: int = 0, body: int = 0, size: int = 0, **options: Any) -> Plan:
    """What is done about the budgets, the tokens being within their target."""
    pipeline = [build_strategy(name, given) for name, given in options.pop("pipeline", {}).items()]
    view = strategy_view(
        uncompacted(*messages), target=100_000, budgets=RequestBudgets(body, images), size=size, **options
    )
    return Planner(pipeline).plan(view, must_succeed=True)


def slots(plan: Plan) -> list[int]:
    return [step.slot for step in plan.steps if isinstance(step, Replace)]


SCREENS = [
    user_message("o"),
    *(part for index in range(8) for part in screen(f"s{index}")),
    assistant_message("ok"),
    user_message("t"),
]


def test_the_oldest_images_are_replaced_down_to_half_of_the_limit() -> None:
    plan = planned(*SCREENS, images=6)
    assert slots(plan) == [2, 4, 6, 8, 10]
    assert [each.strategy for each in plan.proposals] == ["images"]


def test_the_pipeline_may_say_how_far_down() -> None:
    assert slots(planned(*SCREENS, images=6, pipeline={"images": {"share": 1.0}})) == [2, 4]


def test_as_many_images_as_are_taken_stay() -> None:
    assert planned(*SCREENS, images=8).steps == ()
    assert planned(*SCREENS, images=0).steps == ()


def test_text_beside_an_image_in_a_result_stays() -> None:
    plan = planned(*SCREENS, images=6)
    (step, *_) = plan.steps
    assert isinstance(step, Replace)
    assert step.text.startswith("a screen\n[Image archived to save space")
    assert artifact_id(TENANT, plan.view.slots[2].message.key, 0) in step.text
    assert "image/png, 640 by 480 pixels, 30,000 bytes" in step.text


def test_images_of_the_task_go_last_and_pinned_ones_never() -> None:
    task = message("user", Text("like these"), image(), image())
    opening = message("user", Text("look"), image())
    lists = (opening, *screen("a"), *screen("b"), assistant_message("ok"), task)
    assert slots(planned(*lists, images=3)) == [2, 4]
    assert slots(planned(*lists, images=2)) == [2, 4, 0]
    assert slots(planned(*lists, images=1)) == [2, 4, 0, 6]
    assert slots(planned(*lists, images=2, pinned_call_ids=frozenset({"a"}))) == [4, 0, 6]


def test_the_newest_batchs_images_go_only_where_nothing_older_is_left() -> None:
    lists = (user_message("task"), *screen("a"), *screen("b"))
    assert slots(planned(*lists, images=1)) == [2]


def test_the_largest_parts_are_replaced_where_there_are_too_many_bytes() -> None:
    lists = (
        user_message("o"),
        *call_and_result("a", "x" * 50_000),
        *screen("b"),
        *call_and_result("c", "y" * 20_000),
        assistant_message("ok"),
        user_message("t"),
    )
    plan = planned(*lists, body=90_000, size=111_000)
    assert [each.strategy for each in plan.proposals] == ["body"]
    assert slots(plan) == [2, 4]
    assert planned(*lists, body=111_000, size=111_000).steps == ()


def test_the_newest_batch_gives_its_bytes_last() -> None:
    lists = (
        user_message("o"),
        *call_and_result("a", "x" * 5_000),
        assistant_message("ok"),
        user_message("t"),
        call_message("b"),
        result_message("b", "y" * 50_000),
    )
    assert slots(planned(*lists, body=20_000, size=56_000)) == [2, 6]
    assert slots(planned(*lists, body=53_000, size=56_000)) == [2]


def test_images_that_are_gone_count_for_the_bytes() -> None:
    lists = (user_message("o"), *screen("a"), *screen("b"), assistant_message("ok"), user_message("t"))
    plan = planned(*lists, images=1, body=60_000, size=82_000)
    assert [each.strategy for each in plan.proposals] == ["images"]
