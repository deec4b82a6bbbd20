"""What sub-agents returned becomes a digest that says who it was and where the whole of it is."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from accordion.archive.references import artifact_id
from accordion.compaction.planner import Planner, PlanState
from accordion.compaction.strategies import build_strategy
from accordion.compaction.strategies import delegated_digests as module
from accordion.compaction.strategies.base import DeferredReplace, StrategyView
from accordion.model.delegation import DelegationNode
from accordion.model.plan import Replace
from accordion.summaries.digest import make_digest
from tests.compaction.view_samples import (
    TENANT,
    assistant_message,
    call_and_result,
    strategy_view,
    uncompacted,
    user_message,
)

REPORT = "\n".join(
    [
        "I looked through the storage module and the tests around it.",
        "",
        *(f"The reading of file number {n} took a while, and nothing in it is of note here." for n in range(60)),
        "- `storage/lane.py` line 88 holds the lock too long",
        *(f"More words on file number {n}, which was read from its beginning to its end." for n in range(60)),
        "- the time-out of 0.5 s is too short for a cold disk",
        *(f"Further words on file number {n}, again without anything of note in it." for n in range(60)),
        "In short: shorten the lock, and wait longer at the start.",
    ]
)
CHILD = DelegationNode("s:s-child", "s:s-main", "Explore", "tool", "s-child", "t1")
COMPACTED = uncompacted(
    user_message("o"),
    *call_and_result("t1", REPORT, "Task", '{"prompt": "look into the storage"}'),  # 1, 2
    *call_and_result("a", "x" * 9_000),  # 3, 4
    *call_and_result("b", "y" * 100),  # 5, 6
    *call_and_result("c", "z" * 100),  # 7, 8
    assistant_message("done"),
    user_message("t"),
)


def view(**fields: object) -> StrategyView:
    return PlanState(strategy_view(COMPACTED, delegations_by_call={"t1": CHILD}, **fields)).current_view()


def steps(**options: object) -> list[DeferredReplace]:
    return [
        step
        for step in build_strategy("delegated_digests", options).propose(view())
        if isinstance(step, DeferredReplace)
    ]


def test_only_results_of_known_sub_agents_are_replaced() -> None:
    assert [(step.slot, step.part) for step in steps()] == [(2, 0)]
    assert build_strategy("delegated_digests").propose(PlanState(strategy_view(COMPACTED)).current_view()) == ()


def test_the_digest_names_agent_session_call_artifact_and_findings() -> None:
    [step] = steps()
    text = step.render_text()
    kept = artifact_id(TENANT, COMPACTED.conversation.messages[2].key, 0)
    head, *rest = text.split("\n")
    assert head == (
        '[Answer of the agent Explore (session s-child) to Task({"prompt": "look into the storage"}) archived to save '
        f'space, {len(REPORT):,} characters in 185 lines. Full text: read_artifact("{kept}"), if available. Excerpts:]'
    )
    told = "\n".join(rest)
    assert "`storage/lane.py` line 88 holds the lock too long" in told
    assert "the time-out of 0.5 s is too short for a cold disk" in told
    assert "I looked through the storage module" in told
    assert "shorten the lock, and wait longer at the start." in told
    assert 700 < len(told) <= 1_600
    assert step.tokens >= len(text) // 4


def test_an_agent_without_a_name_or_a_session_is_told_of_all_the_same() -> None:
    compacted = strategy_view(COMPACTED, delegations_by_call={"t1": DelegationNode("x:a")})
    [step] = build_strategy("delegated_digests").propose(PlanState(compacted).current_view())
    assert isinstance(step, DeferredReplace)
    assert step.render_text().startswith('[Answer of a sub-agent to Task({"prompt"')


def test_a_digest_is_longer_than_that_of_any_other_result() -> None:
    drafted = PlanState(strategy_view(COMPACTED, make_digest=make_digest)).current_view()
    [plain, *_] = build_strategy("compact_tool_results").propose(drafted)
    assert isinstance(plain, DeferredReplace)
    assert len(steps()[0].render_text()) > 1.8 * len(plain.render_text())


def test_the_newest_batches_and_short_answers_stay() -> None:
    assert steps(keep_last_n=4) == []
    assert len(steps(keep_last_n=3)) == 1
    short = uncompacted(
        user_message("o"),
        *call_and_result("t1", "It is fine.", "Task"),
        *call_and_result("a", "x"),
        *call_and_result("b", "y"),
        user_message("t"),
    )
    assert (
        build_strategy("delegated_digests").propose(
            PlanState(strategy_view(short, delegations_by_call={"t1": CHILD})).current_view()
        )
        == []
    )


def test_a_digest_is_as_long_as_configured_at_most() -> None:
    [step] = steps(digest_characters=300)
    assert len(step.render_text().partition("\n")[2]) <= 300


@pytest.mark.parametrize("replacement", ["reference", "drop", "[{artifact_id}]"])
def test_the_strategy_for_results_leaves_it_alone(replacement: str) -> None:
    [step, *more] = build_strategy("compact_tool_results", {"replacement": replacement}).propose(view())
    assert {each.slot for each in (step, *more)} <= {3, 4}


def test_a_return_goes_after_the_results_of_tools_and_before_the_summary() -> None:
    pipeline = [build_strategy(name) for name in ("compact_tool_results", "delegated_digests", "summarize")]
    drafted = view()
    rest = drafted.tokens - 2_000
    plan = Planner(pipeline).plan(
        strategy_view(COMPACTED, delegations_by_call={"t1": CHILD}, target=rest), must_succeed=False
    )
    assert [(each.strategy, len(each.steps)) for each in plan.proposals] == [("compact_tool_results", 1)]
    plan = Planner(pipeline).plan(
        strategy_view(COMPACTED, delegations_by_call={"t1": CHILD}, target=1_000), must_succeed=False
    )
    assert [each.strategy for each in plan.proposals] == ["compact_tool_results", "delegated_digests"]


def test_a_return_that_stays_beside_a_summary_stays_whole() -> None:
    compacted = uncompacted(
        user_message("o"),
        *call_and_result("a", "x" * 40_000),
        *call_and_result("t1", REPORT, "Task"),
        *call_and_result("b", "y" * 100),
        *call_and_result("c", "z" * 100),
        user_message("t"),
    )
    pipeline = [build_strategy("delegated_digests"), build_strategy("summarize", {"budget_share": 0.2})]
    plan = Planner(pipeline).plan(
        strategy_view(compacted, delegations_by_call={"t1": CHILD}, target=8_000), must_succeed=False
    )
    assert [each.strategy for each in plan.proposals] == ["summarize"]


def test_without_this_strategy_it_is_a_result_like_any_other() -> None:
    plan = Planner([build_strategy("compact_tool_results")]).plan(
        strategy_view(COMPACTED, delegations_by_call={"t1": CHILD}), must_succeed=False
    )
    assert {step.slot for step in plan.steps if isinstance(step, Replace)} == {2, 4}


def test_a_digest_is_not_replaced_again() -> None:
    [step] = steps()
    again = uncompacted(
        user_message("o"),
        *call_and_result("t1", step.render_text(), "Task"),
        *call_and_result("a", "x"),
        *call_and_result("b", "y"),
        user_message("t"),
    )
    draft = strategy_view(again, delegations_by_call={"t1": CHILD})
    edited = tuple(replace(slot, is_edited=at == 2) for at, slot in enumerate(draft.slots))
    assert build_strategy("delegated_digests").propose(PlanState(replace(draft, slots=edited)).current_view()) == []


def test_a_digest_that_cannot_be_made_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_text: str, _most: int) -> str:
        raise RuntimeError("no digest")

    monkeypatch.setattr(module, "digest_return", fails)
    [step] = steps()
    assert step.render_text().endswith("if available.]")
