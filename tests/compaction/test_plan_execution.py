"""Plans through layout, executor and the protocols' own checks: what is planned can be carried out, once and again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accordion.compaction.apply import PlanExecutor, PlanNotApplicable, build_layout
from accordion.compaction.planner import Planner
from accordion.compaction.strategies import DEFAULT_STRATEGIES, build_strategy
from accordion.compaction.strategies.base import Plan
from accordion.model.budget import CompactionKind
from accordion.model.compaction import CompactedConversation, apply_compaction, without_compaction
from accordion.model.conversation import Conversation
from accordion.model.tenant import TenantScope
from accordion.protocols.written_messages import WrittenMessageReader
from accordion.summaries.author import Summary
from tests.compaction.compactor_setup import CompactorSetup
from tests.compaction.view_samples import READERS, count, read, strategy_view, with_longer_results
from tests.histories import PROTOCOL_NAMES, History, ProtocolName, histories
from tests.tiers import examples

TENANT = TenantScope("tenant", b"key")

PIPELINES = {
    "shipped": Planner([build_strategy(name) for name in DEFAULT_STRATEGIES]),
    "dropping": Planner([build_strategy("compact_tool_results", {"replacement": "drop", "keep_last_n": 0})]),
    "turns": Planner(
        [
            build_strategy("stale_reasoning"),
            build_strategy("keep_last_n_turns", {"n": 1}),
            build_strategy("fixed_limits"),
        ]
    ),
    "messages": Planner([build_strategy("superseded"), build_strategy("keep_last_n_messages", {"n": 3})]),
}
LIMIT = 1_500


def compacted_again(
    planner: Planner, client: Conversation, compacted: CompactedConversation, kind: CompactionKind
) -> tuple[Plan, CompactedConversation | None]:
    """A compaction of a list that may be compacted already; None where there is nothing to do."""
    plan = planner.plan(strategy_view(compacted, kind, limit=LIMIT, target=LIMIT // 3), must_succeed=True)
    if not plan.steps:
        return plan, None
    protocol = READERS[client.protocol_name]  # type: ignore[index]
    request = CompactorSetup().case(client, compacted, decision={"is_requested": True})
    layout = build_layout(plan, request)
    summary = Summary("what happened so far") if layout.summary_block is not None else None
    executor = PlanExecutor(request, WrittenMessageReader().reader_for(protocol, TENANT), count)
    return plan, executor.execute(plan, layout, summary, (), 0.0)


@pytest.mark.parametrize("protocol_name", PROTOCOL_NAMES)
@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.too_slow])
@given(
    history=histories(min_turns=2, max_turns=5),
    repeats=st.integers(20, 60),
    name=st.sampled_from(sorted(PIPELINES)),
    kind=st.sampled_from(["conversation", "generation"]),
)
def test_a_plan_is_legal_and_reaches_its_estimate(
    protocol_name: ProtocolName, history: History, repeats: int, name: str, kind: CompactionKind
) -> None:
    client = read(with_longer_results(history, repeats), protocol_name)
    plan, compacted = compacted_again(PIPELINES[name], client, without_compaction(client), kind)
    if compacted is None:
        return
    after = plan.view.overhead + sum(count(message) for message in compacted.conversation.messages)
    assert after <= 1.05 * plan.after + 40
    messages = compacted.conversation.messages
    assert messages[-1].role == client.messages[-1].role
    if plan.after < LIMIT and not any(each.strategy == "last_resort" for each in plan.proposals):
        assert client.messages[plan.view.task] in messages
        assert client.messages[-1] in messages


@pytest.mark.parametrize("protocol_name", PROTOCOL_NAMES)
@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.too_slow])
@given(
    history=histories(min_turns=3, max_turns=6),
    repeats=st.integers(20, 60),
    first=st.sampled_from(sorted(PIPELINES)),
    second=st.sampled_from(sorted(PIPELINES)),
)
def test_a_compaction_of_a_compacted_list_is_legal_too(
    protocol_name: ProtocolName, history: History, repeats: int, first: str, second: str
) -> None:
    history = with_longer_results(history, repeats)
    early = read(replace(history, turns=history.turns[:-1]), protocol_name)
    _, compacted = compacted_again(PIPELINES[first], early, without_compaction(early), "conversation")
    client = read(history, protocol_name)
    if compacted is None or compacted.compaction is None:
        return
    again = apply_compaction(
        client, compacted.compaction, WrittenMessageReader().reader_for(READERS[protocol_name], TENANT)
    )
    try:
        compacted_again(PIPELINES[second], client, again, "conversation")
    except PlanNotApplicable as unfit:
        # A compaction that was made already leaves nothing to gain; it must never be illegal.
        if "no shorter" not in unfit.message and "nothing" not in unfit.message:
            raise
