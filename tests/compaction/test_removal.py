"""Where a summary says that what it stands for is kept: all of it, in pieces that can be read, in little room."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.archive.artifacts import artifact_text
from accordion.compaction import removal
from accordion.compaction.removal import merge_oldest
from accordion.compaction.request import CompactionResult
from accordion.compaction.strategies.base import StrategyView
from accordion.model.conversation import Conversation
from accordion.model.plan import Drop, PlanStep, Summarize
from accordion.protocols.registry import PROTOCOLS
from tests.compaction.compactor_setup import (
    CONVERSATION,
    TENANT,
    CompactorSetup,
    Strategy,
    conversation,
    long_history,
    read,
)
from tests.histories import PROTOCOL_NAMES, Call, History, HistoryRound, ProtocolName, Turn, body

PNG = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAABAAAAAMACAIAAAA12IJa" + "A" * 4_000
LINE = re.compile(r"\[(\d+)-(\d+)\] (art_\w{12}), [\d,]+ tokens(?:; in slices: ((?:art_\w{12} ?)+))?")


def summarizing(budget: int) -> Strategy:
    """One summary of so many tokens, of all that may leave."""

    def propose(view: StrategyView) -> Sequence[PlanStep]:
        groups = [group for group in view.groups if view.removable[group[0]]]
        return (Summarize(groups[0][0], groups[-1][1], budget),)

    return propose


async def compact(setup: CompactorSetup, client: Conversation) -> CompactionResult:
    compacted = await setup.compactions.find(PROTOCOLS[client.protocol_name], CONVERSATION, client, check_store=False)
    return await setup.compactor.compact(setup.case(client, compacted, decision={"is_requested": True}))


def listed(outcome: CompactionResult) -> list[tuple[int, int, str, list[str]]]:
    """The first and the last message of each range that the list shows, its id, those of its slices."""
    text = b"\n".join(message.wire for message in outcome.history.conversation.messages).decode()
    return [(int(first), int(last), name, slices.split()) for first, last, name, slices in LINE.findall(text)]


async def load_text(setup: CompactorSetup, client: Conversation, name: str) -> str:
    """What is kept under an id."""
    [artifact] = await setup.archive.load_artifacts(TENANT, [name])
    assert artifact is not None
    rows = await setup.archive.load_rows(TENANT, artifact.keys)
    read = setup.reader.reader_for(PROTOCOLS[client.protocol_name], TENANT)
    return artifact_text(artifact, [read(rows[key]) for key in artifact.keys])


def with_result(text: str) -> History:
    """A history in which one result is this text."""
    history = long_history(3)
    long = Turn(
        ("Read all of it.",), (HistoryRound((Call("call_long", "read", {"path": "long.log"}, text),)),), "It is read."
    )
    return History((long, *history.turns), history.system)


@pytest.mark.parametrize("protocol_name", PROTOCOL_NAMES)
async def test_a_result_that_is_too_long_to_be_taken_back_at_once_is_listed_in_slices_too(
    protocol_name: ProtocolName,
) -> None:
    lines = [f"line {number} of the log, with words" for number in range(2_500)]
    client, setup = conversation(with_result("\n".join(lines)), protocol_name), CompactorSetup(summarizing(400))
    outcome = await compact(setup, client)
    [(_, _, whole, slices)] = [each for each in listed(outcome) if each[3]]
    everything = await load_text(setup, client, whole)
    texts = [(await load_text(setup, client, name)).split("\n", 1)[1] for name in slices]
    assert len(slices) == 3
    assert "".join(texts) == everything
    assert all(line in everything for line in lines)
    assert all(len(text.split()) < removal.MAX_RANGE_TOKENS * 1.1 for text in texts)


async def test_what_is_dropped_right_behind_a_summary_takes_nothing_off_its_list() -> None:
    def propose(view: StrategyView) -> Sequence[PlanStep]:
        groups = [group for group in view.groups if view.removable[group[0]]]
        half = len(groups) // 2
        first, last = groups[half]
        return (Summarize(groups[0][0], groups[half - 1][1], 400), *map(Drop, range(first, last + 1)))

    client, setup = conversation(long_history(6), "chat"), CompactorSetup(propose)
    outcome = await compact(setup, client)
    assert outcome.history.compaction is not None
    ends = [entry.last for entry in outcome.history.compaction.entries if entry.wire is not None]
    assert [last for _, last, *_ in listed(outcome)][-1:] == ends


async def test_a_text_that_fits_one_answer_has_no_slices() -> None:
    client, setup = conversation(long_history(6), "chat"), CompactorSetup(summarizing(400))
    found = listed(await compact(setup, client))
    assert found
    assert all(not slices for *_, slices in found)


async def test_many_images_with_little_text_have_no_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removal, "MAX_RANGE_TOKENS", 1_000)
    request = body(long_history(4, words=5), "chat")
    picture = {"type": "image_url", "image_url": {"url": PNG}}
    request["messages"][5]["content"] = [{"type": "text", "text": "What is this?"}, *[picture] * 4]
    found = listed(await compact(CompactorSetup(summarizing(200)), read(request, "chat")))
    assert found
    assert all(not slices for *_, slices in found)


@pytest.mark.parametrize("budget", [70, 90, 120, 200, 400])
async def test_all_that_left_is_found_by_what_is_listed_however_little_room_there_is(
    monkeypatch: pytest.MonkeyPatch, budget: int
) -> None:
    monkeypatch.setattr(removal, "MAX_RANGE_TOKENS", 200)
    setup = CompactorSetup(summarizing(budget))
    for turns in (12, 16, 20):
        client = conversation(long_history(turns), "chat")
        outcome = await compact(setup, client)
        assert outcome.history.compaction is not None
        found = listed(outcome)
        text = "\n".join([await load_text(setup, client, name) for _, _, name, _ in found])
        for turn in range(turns - 1):
            assert f"word{turn}_0_149" in text
        assert [first for first, *_ in found][1:] == [last + 1 for _, last, *_ in found][:-1]


async def test_what_is_gathered_anew_is_not_written_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removal, "MAX_RANGE_TOKENS", 200)
    setup = CompactorSetup(summarizing(70))
    await compact(setup, conversation(long_history(12), "chat"))
    client = conversation(long_history(30), "chat")
    compacted = await setup.compactions.find(PROTOCOLS["chat"], CONVERSATION, client, check_store=False)
    case = setup.case(client, compacted, decision={"is_requested": True})
    work = setup.compactor._assembler.plan_compaction(case, at=1.0, without_summary=False)
    gone = {message.key for message in client.messages[5:40]}
    assert any(artifact.first < 10 < 20 < artifact.last for artifact in work.removed_content.artifacts)
    assert work.removed_content.rows
    assert not gone & {row.key for row in work.removed_content.rows}


@given(st.lists(st.integers(6, 40), max_size=80), st.integers(0, 400))
def test_what_is_gathered_covers_all_and_takes_no_more_than_its_room(costs: list[int], room: int) -> None:
    found = merge_oldest(costs, room, 6)
    assert [at for run in found for at in run] == list(range(len(costs)))
    taken = [costs[run.start] if len(run) == 1 else 6 for run in found]
    # What there is no room for at all is one entry; what stands first may have to be told in fewer words.
    assert sum(taken) <= room or len(found) == 1 or 6 + sum(taken[1:]) <= room
    if sum(costs) <= room:
        assert all(len(run) == 1 for run in found)


def test_a_later_list_gathers_what_an_earlier_one_did() -> None:
    before, after = (merge_oldest([10] * count, 80, 10) for count in (10, 12))
    assert before == [range(2), range(2, 4), *(range(at, at + 1) for at in range(4, 10))]
    assert after == [range(2), range(2, 4), range(4, 6), range(6, 8), *(range(at, at + 1) for at in range(8, 12))]
