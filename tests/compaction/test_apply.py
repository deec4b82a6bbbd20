from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from accordion.compaction.apply import PlanNotApplicable, find_orphan_parts
from accordion.compaction.assembly import PlannedCompaction
from accordion.compaction.removal import split_into_ranges
from accordion.compaction.strategies.base import StrategyView
from accordion.model.boundaries import find_indivisible_groups
from accordion.model.compaction import CompactedConversation, Compaction
from accordion.model.conversation import Conversation, Message, Text, ToolCall, ToolResult
from accordion.model.plan import Drop, PlanStep, Replace, Summarize
from accordion.model.ports import Put
from accordion.model.tenant import TenantScope
from accordion.protocols.json_values import encode
from accordion.protocols.registry import PROTOCOLS
from tests.compaction.compactor_setup import (
    CompactorSetup,
    Strategy,
    archive_results,
    conversation,
    drop_most,
    long_history,
    read,
    summarize_most,
    with_long_results,
)
from tests.histories import PROTOCOL_NAMES, History, ProtocolName, histories
from tests.tiers import examples

TENANT = TenantScope("", b"")

SLOW = settings(
    max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)


class Made(NamedTuple):
    """A finished compaction."""

    history: CompactedConversation
    compaction: Compaction
    writes: Sequence[Put]


def make(
    setup: CompactorSetup, client: Conversation, compacted: CompactedConversation | None = None, **decision: Any
) -> tuple[PlannedCompaction, Made]:
    """Plans and makes a compaction that is to be made whatever it gains."""
    case = setup.case(client, compacted, decision={"is_requested": True, **decision})
    craft = setup.compactor._assembler
    work = craft.plan_compaction(case, at=1.0, without_summary=False)
    summary = setup.author.write_extractive(work.summary_task) if work.summary_task is not None else None
    return work, Made(*craft.finish(case, work, summary))


def steps(*given: PlanStep) -> Strategy:
    return lambda view: given


def wires(compacted: CompactedConversation) -> list[bytes]:
    return [message.wire for message in compacted.conversation.messages]


def texts(messages: Sequence[Message]) -> str:
    return json.dumps([json.loads(message.wire) for message in messages], ensure_ascii=False)


# -- what is written -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol_name", PROTOCOL_NAMES)
def test_a_summary_stands_in_place_of_what_left_and_the_rest_is_the_clients_own(protocol_name: ProtocolName):
    client = conversation(long_history(5, rounds=2), protocol_name)
    work, made = make(CompactorSetup(), client)
    compacted, compaction = made.history, made.compaction
    assert len(compacted.conversation.messages) < len(client.messages) / 2
    assert PROTOCOLS[protocol_name].find_problems(compacted.conversation.messages) == []
    [block] = [entry for entry in compaction.entries if entry.wire is not None]
    assert not block.is_edited
    assert block.last == work.last_summarized
    assert wires(compacted)[0] == client.messages[0].wire
    assert wires(compacted)[-1] == client.messages[-1].wire
    assert compaction.covered_count == block.last + 1
    assert compaction.anchor == client.chain[block.last]
    assert compaction.after < compaction.before
    assert compaction.tokens_saved == compaction.before - compaction.after
    assert compaction.steps[-1].after == compaction.after


@pytest.mark.parametrize("protocol_name", PROTOCOL_NAMES)
def test_results_are_replaced_in_place_and_the_unchanged_tail_is_not_in_the_record(protocol_name: ProtocolName):
    client = conversation(long_history(4, rounds=2), protocol_name)
    _, made = make(CompactorSetup(archive_results), client)
    compacted = made.history
    assert len(compacted.conversation.messages) == len(client.messages)
    changed = [at for at, (a, b) in enumerate(zip(wires(compacted), client.messages, strict=True)) if a != b.wire]
    assert changed
    assert made.compaction.covered_count == changed[-1] + 1
    assert all(e.wire is None or (e.is_edited and e.first == e.last) for e in made.compaction.entries)
    assert PROTOCOLS[protocol_name].find_problems(compacted.conversation.messages) == []
    assert compacted.origins == tuple(range(len(client.messages)))


@pytest.mark.parametrize("protocol_name", PROTOCOL_NAMES)
def test_a_second_compaction_carries_the_first_ones_text_over_and_goes_on_from_it(protocol_name: ProtocolName):
    short = conversation(long_history(3, rounds=2), protocol_name)
    setup = CompactorSetup(archive_results)
    _, first = make(setup, short)
    base = setup.compactions.apply(PROTOCOLS[protocol_name], TENANT, short, first.compaction)
    assert wires(base) == wires(first.history)
    # The same beginning, longer; what the first compaction wrote is not written again.
    later = conversation(long_history(7, rounds=2), protocol_name)
    over = setup.compactions.apply(PROTOCOLS[protocol_name], TENANT, later, first.compaction)
    _, second = make(setup, later, over)
    assert second.compaction.generation == 2
    assert second.compaction.covered_count > first.compaction.covered_count
    ahead = wires(second.history)[: len(first.compaction.entries)]
    assert ahead == wires(over)[: len(ahead)]
    assert set(first.compaction.artifacts) < set(second.compaction.artifacts)
    assert second.compaction.tokens_saved > first.compaction.tokens_saved


@pytest.mark.parametrize("protocol_name", PROTOCOL_NAMES)
def test_a_later_summary_takes_the_former_one_in_and_stands_for_all_of_it(protocol_name: ProtocolName):
    setup = CompactorSetup(summarize_most)
    client = conversation(long_history(4, rounds=2), protocol_name)
    _, first = make(setup, client)
    later = conversation(long_history(8, rounds=2), protocol_name)
    over = setup.compactions.apply(PROTOCOLS[protocol_name], TENANT, later, first.compaction)
    work, second = make(setup, later, over)
    blocks = [entry for entry in second.compaction.entries if entry.wire is not None]
    assert len(blocks) == 1
    assert blocks[0].first == next(e for e in first.compaction.entries if e.wire is not None).first
    assert work.summary_task is not None
    covered = [source.index for source in work.summary_task.sources]
    assert covered == list(range(blocks[0].first, blocks[0].last + 1))
    assert [source.message for source in work.summary_task.sources] == [later.messages[index] for index in covered]


def test_protected_messages_follow_the_block_that_replaces_their_surroundings():
    client = conversation(long_history(5), "chat")
    pinned = next(p.call_id for m in client.messages[6:] for p in m.parts if isinstance(p, ToolCall))
    setup = CompactorSetup(lambda view: (Summarize(1, max(i for i, w in enumerate(view.removable) if w), 300),))
    case = setup.case(client, decision={"is_requested": True}, pinned_call_ids=frozenset({pinned}))
    work = setup.compactor._assembler.plan_compaction(case, at=1.0, without_summary=False)
    made = Made(*setup.compactor._assembler.finish(case, work, setup.author.write_extractive(work.summary_task)))
    assert [entry.wire is None for entry in made.compaction.entries[:3]] == [True, False, True]
    held = [p for m in made.history.conversation.messages for p in m.parts if getattr(p, "call_id", "") == pinned]
    assert [type(part) for part in held] == [ToolCall, ToolResult]
    assert pinned not in texts([source.message for source in work.summary_task.sources])


def test_a_note_is_the_text_where_no_summary_is_wanted():
    client = conversation(long_history(5), "chat")

    def noted(view: StrategyView) -> Sequence[PlanStep]:
        last = max(index for index, leaves in enumerate(view.removable) if leaves)
        return (Summarize(1, last, 40, "12 messages were left out, kept as art_x."),)

    work, made = make(CompactorSetup(noted), client)
    assert work.summary_task is None
    assert made.history.conversation.messages[1].parts == (Text("12 messages were left out, kept as art_x."),)
    assert made.compaction.writer == ""


def test_the_same_plan_gives_the_same_record():
    client = conversation(long_history(5), "messages")
    assert make(CompactorSetup(), client)[1].compaction == make(CompactorSetup(), client)[1].compaction


# -- what is refused -------------------------------------------------------------------------------------------------


def test_a_compaction_that_gains_less_than_a_tenth_is_not_made_unless_it_must_be():
    client = conversation(long_history(12, words=80), "chat")
    little = steps(Replace(2, 0, "gone", 1))
    setup = CompactorSetup(little)
    case = setup.case(client)
    work = setup.compactor._assembler.plan_compaction(case, at=1.0, without_summary=False)
    with pytest.raises(PlanNotApplicable, match="only"):
        setup.compactor._assembler.finish(case, work, None)
    for allowed in ({"is_requested": True}, {"must_succeed": True}, {"trigger": 0}):
        case = setup.case(client, decision=allowed)
        _, made, _ = setup.compactor._assembler.finish(case, work, None)
        assert made.before > made.after > 0.9 * made.before


def test_a_text_that_is_longer_than_what_it_replaces_is_not_used():
    client = conversation(long_history(3, words=5), "chat")
    setup = CompactorSetup(steps(Replace(2, 0, "longer " * 500, 500)))
    with pytest.raises(PlanNotApplicable, match="not be shorter"):
        make(setup, client)


def test_a_list_that_a_provider_would_refuse_is_not_sent():
    client = conversation(long_history(4), "chat")
    result = next(at for at, m in enumerate(client.messages) if m.has_tool_result)
    with pytest.raises(PlanNotApplicable, match="would be invalid: The call"):
        make(CompactorSetup(steps(Drop(result))), client)


def test_nothing_to_do_is_said_so():
    client = conversation(long_history(4), "chat")
    with pytest.raises(PlanNotApplicable, match="no message may be compacted"):
        make(CompactorSetup(steps()), client)


# -- orphans ---------------------------------------------------------------------------------------------------------


def test_orphans_are_taken_out_when_a_list_is_compacted_and_their_siblings_stay():
    request = {
        "model": "gpt-5",
        "messages": [
            {"role": "user", "content": "Begin."},
            {"role": "tool", "tool_call_id": "nobody", "content": "stray"},
            {"role": "assistant", "content": "I look.", "tool_calls": [
                {"id": "lost", "type": "function", "function": {"name": "read", "arguments": "{}"}}]},
            {"role": "user", "content": "And now this. " + "many words " * 200},
            {"role": "assistant", "content": "Done. " + "many words " * 200},
            {"role": "user", "content": "Go on."},
        ],
    }  # fmt: skip
    client = read(request, "chat")
    assert PROTOCOLS["chat"].find_problems(client.messages) != []
    _, made = make(CompactorSetup(steps(Replace(4, 0, "Done.", 1))), client)
    said = texts(made.history.conversation.messages)
    assert "stray" not in said
    assert "lost" not in said
    assert "I look." in said
    assert PROTOCOLS["chat"].find_problems(made.history.conversation.messages) == []


def test_calls_that_are_still_open_are_no_orphans():
    call = Message(b"1", "assistant", (ToolCall("a", "t", "{}"), ToolCall("b", "t", "{}")), b"")
    said = Message(b"0", "user", (Text("x"),), b"")
    half = Message(b"2", "tool", (ToolResult("a", ()),), b"")
    assert list(find_orphan_parts([said, call])) == []
    assert list(find_orphan_parts([said, call, half])) == []
    assert list(find_orphan_parts([said, call, half, said])) == [(1, 1)]
    assert list(find_orphan_parts([call, half, said, half])) == [(3, 0), (0, 1)]


def test_calls_of_one_id_that_were_made_at_once_are_no_orphans():
    """Some servers give no ids, or a tool's name for one."""
    twice = Message(b"1", "assistant", (ToolCall("", "t", "{}"), ToolCall("", "t", "{}")), b"")
    said = Message(b"0", "user", (Text("x"),), b"")
    answer = Message(b"2", "tool", (ToolResult("", ()),), b"")
    assert list(find_orphan_parts([said, twice, answer, answer])) == []
    assert list(find_orphan_parts([said, twice, answer, answer, answer])) == [(4, 0)]


@pytest.mark.parametrize(
    "item",
    [
        {"type": "function_call", "call_id": "a", "name": "t", "arguments": "{}", "async": True},
        {"type": "program", "call_id": "a", "code": "read()", "fingerprint": "f"},
        {"type": "mcp_approval_request", "id": "a", "name": "t", "arguments": "{}", "server_label": "s"},
        {"type": "function_call_output", "name": "events", "output": "The disk is full."},
    ],
    ids=lambda item: item["type"],
)
def test_a_result_without_a_waiting_call_is_no_orphan(item: dict[str, Any]):
    later = [{"role": "user", "content": "And the rest?"}, {"role": "assistant", "content": "Done."}]
    found = read({"model": "m", "input": [{"role": "user", "content": "x"}, item, *later]}, "responses").messages
    assert list(find_orphan_parts(found, PROTOCOLS["responses"].allows_late_answers)) == []
    assert list(find_orphan_parts(found)) == [(1, 0)]


@given(histories(max_turns=4), st.sampled_from(PROTOCOL_NAMES))
@SLOW
def test_a_legal_history_has_no_orphans(history: History, protocol_name: ProtocolName):
    assert list(find_orphan_parts(conversation(history, protocol_name).messages)) == []


# -- ranges ----------------------------------------------------------------------------------------------------------


@given(histories(min_turns=2, max_turns=5), st.sampled_from(PROTOCOL_NAMES), st.integers(5, 60), st.data())
@SLOW
def test_stretches_cover_all_keep_groups_whole_and_stay_where_they_were(
    history: History, protocol_name: ProtocolName, most: int, data: st.DataObject
):
    messages = conversation(history, protocol_name).messages
    weights = [4 + len(message.wire) // 20 for message in messages]
    last = data.draw(st.integers(0, len(messages) - 1))
    made = split_into_ranges(find_indivisible_groups(messages), 0, last, weights[: last + 1], most)
    assert [index for stretch in made for index in stretch] == list(range(last + 1))
    longer = split_into_ranges(find_indivisible_groups(messages), 0, len(messages) - 1, weights, most)
    assert made[:-1] == longer[: len(made) - 1]


def test_where_a_stretch_begins_is_not_looked_for_from_the_front():
    looked = 0

    class Counting(list[tuple[int, int]]):
        def __getitem__(self, index: Any) -> Any:
            nonlocal looked
            looked += 1
            return super().__getitem__(index)

    ranges = Counting((at, at) for at in range(10_000))
    assert split_into_ranges(ranges, 9_000, 9_002, [1, 1, 1], 2) == [range(9_000, 9_002), range(9_002, 9_003)]
    assert looked < 100


# -- any history, any plan -------------------------------------------------------------------------------------------


@given(
    histories(min_turns=2, max_turns=4),
    st.sampled_from(PROTOCOL_NAMES),
    st.sampled_from([summarize_most, drop_most, archive_results]),
)
@SLOW
def test_any_compaction_is_legal_and_keeps_what_is_protected(
    history: History, protocol_name: ProtocolName, propose: Strategy
):
    client = conversation(with_long_results(history), protocol_name)
    setup = CompactorSetup(propose)
    try:
        work, made = make(setup, client)
    except PlanNotApplicable:
        assume(False)
        return
    spoken = PROTOCOLS[protocol_name]
    assert spoken.find_problems(made.history.conversation.messages) == []
    forwarded = wires(made.history)
    view = work.plan.view
    for index, slot in enumerate(view.slots):
        if not view.free[index]:
            assert slot.message.wire in forwarded
    assert forwarded[-1] == client.messages[-1].wire
    assert setup.compactions.apply(spoken, TENANT, client, made.compaction).origins == made.history.origins
    assert encode(json.loads(forwarded[0]))
