from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from accordion.compaction.background import (
    FIRST_PAUSE,
    TOKENS_BETWEEN_TRIALS,
    PreparationLimits,
    PreparedSummary,
    SummaryWriter,
)
from accordion.compaction.request import CompactionResult
from accordion.compaction.strategies.base import StrategyView
from accordion.model.conversation import Conversation, Text
from accordion.model.errors import SummaryFailed
from accordion.model.plan import PlanStep, Summarize
from accordion.protocols.registry import PROTOCOLS
from accordion.stores.memory_store import InMemoryStore
from accordion.summaries.author import Summary, SummaryRejected, SummaryTask
from tests.compaction.compactor_setup import (
    CONVERSATION,
    CompactorSetup,
    ScriptedAuthor,
    archive_results,
    conversation,
    long_history,
    summarize_most,
    summary_caller,
)
from tests.fakes import FickleStore

TOLD = "A model told this."


def summarize_newest(view: StrategyView) -> Sequence[PlanStep]:
    """One summary of the later half of all groups that may leave."""
    groups = [group for group in view.groups if view.removable[group[0]]]
    return (Summarize(groups[len(groups) // 2][0], groups[-1][1], 400),)


PREPARE = {"action": "prepare"}


def build_setup(**changes: Any) -> CompactorSetup:
    return CompactorSetup(teller=True, **changes)


def teller(of: CompactorSetup) -> ScriptedAuthor:
    assert isinstance(of.author, ScriptedAuthor)
    return of.author


def client(turns: int = 6, **options: Any) -> Conversation:
    return conversation(long_history(turns, **options), "chat")


async def ask(of: CompactorSetup, asked: Conversation, **changes: Any) -> CompactionResult:
    changes.setdefault("summary_caller", summary_caller())
    compacted = await of.compactions.find(PROTOCOLS["chat"], CONVERSATION, asked, check_store=False)
    return await of.compactor.compact(of.case(asked, compacted, **changes))


def summary_text(outcome: CompactionResult) -> str:
    messages = outcome.history.conversation.messages
    return "\n".join(part.text for message in messages for part in message.parts if isinstance(part, Text))


async def settle() -> None:
    for _ in range(30):
        await asyncio.sleep(0)


async def test_a_summary_is_prepared_from_the_soft_threshold_on_and_used_at_the_trigger():
    setup = build_setup()
    passed = await ask(setup, client(4), decision=PREPARE)
    assert passed == CompactionResult(passed.history)
    await setup.tasks.done()
    assert len(teller(setup).asked) == 1
    made = await ask(setup, client(6))
    assert TOLD in summary_text(made)
    compaction = made.history.compaction
    assert compaction is not None
    assert (compaction.writer, compaction.input, compaction.output) == ("model-x", 100, 20)
    assert compaction.narrative == TOLD
    assert 0 < compaction.narrative_end <= compaction.covered_count
    # What came after the model wrote is extracted from the messages.
    assert "Turn 5" in summary_text(made) or "file_5" in summary_text(made)
    assert len(teller(setup).asked) == 1


async def test_preparing_is_done_once_for_many_requests():
    setup = build_setup()
    teller(setup).may.clear()
    for turns in (4, 4, 5):
        await ask(setup, client(turns), decision=PREPARE)
        await settle()
    teller(setup).may.set()
    await setup.tasks.done()
    await ask(setup, client(5), decision=PREPARE)
    await setup.tasks.done()
    assert len(teller(setup).asked) == 1


async def test_while_a_model_writes_and_there_is_room_the_request_passes_insertions():
    setup = build_setup()
    teller(setup).may.clear()
    asked = client(6)
    for _ in range(3):
        outcome = await ask(setup, asked)
        assert outcome == CompactionResult(outcome.history, is_waiting_for_summary=True)
        assert outcome.history.conversation is asked
        await settle()
    assert setup.planner.planned == 1
    teller(setup).may.set()
    await setup.tasks.done()
    assert TOLD in summary_text(await ask(setup, asked))


async def test_at_a_trigger_of_zero_an_extract_does_until_the_model_has_written():
    """It compactions every request; nobody waits, and none passes insertions."""
    setup = build_setup()
    teller(setup).may.clear()
    for turns in (6, 9):
        outcome = await ask(setup, client(turns), decision={"trigger": 0})
        assert outcome.history.compaction is not None
        assert outcome.history.compaction.writer == "extractive"
        await settle()
    assert len(teller(setup).asked) == 1
    teller(setup).may.set()
    await setup.tasks.done()
    assert TOLD in summary_text(await ask(setup, client(12), decision={"trigger": 0}))


async def test_a_request_that_must_be_compacted_waits_for_the_model():
    setup = build_setup()
    teller(setup).may.clear()
    waiting = asyncio.create_task(ask(setup, client(6), decision={"must_succeed": True}))
    await settle()
    assert not waiting.done()
    teller(setup).may.set()
    assert TOLD in summary_text(await waiting)


async def test_it_waits_only_so_long_and_then_an_extract_must_do():
    setup = build_setup(wait_seconds=0.01)
    teller(setup).may.clear()
    outcome = await ask(setup, client(6), decision={"is_requested": True})
    assert outcome.history.compaction is not None
    assert outcome.history.compaction.writer == "extractive"
    assert TOLD not in summary_text(outcome)
    teller(setup).may.set()
    await setup.tasks.done()


async def test_without_a_model_a_compaction_at_the_trigger_is_made_at_once():
    setup = build_setup()
    outcome = await ask(setup, client(6), summary_caller=None)
    assert outcome.history.compaction is not None
    assert outcome.history.compaction.writer == "extractive"
    assert teller(setup).asked == []


async def test_a_plan_that_needs_no_summary_is_carried_out_at_once():
    setup = build_setup(propose=archive_results)
    outcome = await ask(setup, client(6))
    assert outcome.history.compaction is not None
    assert teller(setup).asked == []


async def test_a_summary_of_a_rewound_history_is_not_used():
    setup = build_setup()
    await ask(setup, client(6), decision=PREPARE)
    await setup.tasks.done()
    other = conversation(long_history(6, words=151), "chat")
    assert client(6).chain[0] == other.chain[0]
    outcome = await ask(setup, other, decision={"is_requested": True})
    assert len(teller(setup).asked) == 2
    assert outcome.history.compaction is not None
    shorter = await ask(setup, client(3), decision={"must_succeed": True})
    assert shorter.history.compaction is not None
    assert shorter.history.compaction.narrative_end <= len(client(3).chain)


async def test_a_summary_that_failed_is_not_tried_again_until_the_history_has_grown():
    setup = build_setup()
    teller(setup).error = SummaryFailed("no")
    await ask(setup, client(20), decision=PREPARE)
    await setup.tasks.done()
    for turns in (20, 21):
        await ask(setup, client(turns), decision=PREPARE)
        await setup.tasks.done()
    assert len(teller(setup).asked) == 1
    # At the trigger an extract does, and nothing canned is stored.
    outcome = await ask(setup, client(21))
    assert outcome.history.compaction is not None
    assert outcome.history.compaction.writer == "extractive"
    assert outcome.history.compaction.narrative == ""


async def test_after_a_tenth_more_it_is_tried_again():
    setup = build_setup()
    teller(setup).error = SummaryFailed("no")
    await ask(setup, client(20), decision=PREPARE)
    await setup.tasks.done()
    teller(setup).error = None
    await ask(setup, client(24), decision=PREPARE)
    await setup.tasks.done()
    assert len(teller(setup).asked) == 2
    assert TOLD in summary_text(await ask(setup, client(25)))


async def test_after_a_failed_summary_an_extract_serves_at_the_trigger():
    setup = build_setup()
    teller(setup).error = SummaryFailed("no")
    await ask(setup, client(20), decision=PREPARE)
    await setup.tasks.done()
    outcome = await ask(setup, client(24))
    assert outcome.history.compaction is not None
    assert outcome.history.compaction.writer == "extractive"
    assert len(teller(setup).asked) == 1


async def test_a_compaction_does_not_wait_for_another_try_after_one_that_failed():
    setup = build_setup()
    teller(setup).error = SummaryFailed("no")
    await ask(setup, client(20), decision=PREPARE)
    await setup.tasks.done()
    teller(setup).may.clear()
    await ask(setup, client(24), decision=PREPARE)
    await settle()
    outcome = await ask(setup, client(25))
    assert outcome.history.compaction is not None
    assert outcome.history.compaction.writer == "extractive"
    teller(setup).may.set()
    await setup.tasks.done()
    assert len(teller(setup).asked) == 2


async def test_who_can_wait_has_it_tried_again_after_a_tenth_more():
    setup = build_setup()
    teller(setup).error = SummaryFailed("no")
    await ask(setup, client(20), decision=PREPARE)
    await setup.tasks.done()
    teller(setup).error = None
    assert TOLD in summary_text(await ask(setup, client(24), decision={"is_requested": True}))


async def test_a_writer_that_never_ends_is_given_up():
    setup = build_setup(bounds=PreparationLimits(timeout_seconds=0.01))
    teller(setup).may.clear()
    await ask(setup, client(6), decision=PREPARE)
    await setup.tasks.done()
    outcome = await ask(setup, client(6))
    assert outcome.history.compaction is not None
    assert outcome.history.compaction.writer == "extractive"


async def test_only_so_many_are_written_at_once_in_all_and_for_a_tenant():
    setup = build_setup(bounds=PreparationLimits(max_concurrent=3, max_per_tenant=2))
    teller(setup).may.clear()
    for number in range(4):
        await ask(setup, client(4), decision=PREPARE, session=f"s-{number}")
        await settle()
    assert len(teller(setup).asked) == 2
    for number in range(4):
        await ask(setup, client(4), decision=PREPARE, session=f"t-{number}", tenant="other")
        await settle()
    assert len(teller(setup).asked) == 3
    teller(setup).may.set()
    await setup.tasks.done()


async def test_a_summary_prepared_by_another_worker_is_used():
    store = InMemoryStore()
    one, other = build_setup(store=store), build_setup(store=store)
    teller(one).may.clear()
    await ask(one, client(5), decision=PREPARE)
    await settle()
    await ask(other, client(5), decision=PREPARE)
    await other.tasks.done()
    assert teller(other).asked == []
    teller(one).may.set()
    await one.tasks.done()
    assert TOLD in summary_text(await ask(other, client(6)))
    assert teller(other).asked == []


async def test_a_summary_is_prepared_while_the_store_is_away():
    store = FickleStore()
    store.away = True
    setup = build_setup(store=store)
    await ask(setup, client(5), decision=PREPARE)
    await setup.tasks.done()
    store.away = False
    assert TOLD in summary_text(await ask(setup, client(6)))


async def test_the_next_summary_goes_on_from_what_was_told_before():
    setup = build_setup()
    await ask(setup, client(6), decision=PREPARE)
    await setup.tasks.done()
    first = await ask(setup, client(6))
    assert first.history.compaction is not None
    await ask(setup, client(14), decision=PREPARE)
    await setup.tasks.done()
    task = teller(setup).asked[1]
    assert (task.prior_narrative, task.prior_until) == (TOLD, first.history.compaction.narrative_end)
    assert task.sources[0].index == 1


async def test_a_narrative_of_one_task_does_not_begin_that_of_the_whole_conversation():
    """A mid-generation compaction tells of the work since the task; one of the conversation then tells of all before
    it."""
    setup = build_setup(propose=summarize_newest)
    await ask(setup, client(6), decision=PREPARE)
    await setup.tasks.done()
    first = await ask(setup, client(6))
    assert first.history.compaction is not None
    assert first.history.compaction.narrative_start > 1
    setup.planner.propose = summarize_most
    await ask(setup, client(14), decision=PREPARE)
    await setup.tasks.done()
    task = teller(setup).asked[1]
    assert (task.prior_narrative, task.prior_until, task.first_index) == ("", 0, 1)
    assert [source.index for source in task.sources][:3] == [1, 2, 3]


class Piecewise(ScriptedAuthor):
    """Tells of a first piece, and fails at the second or never ends."""

    async def write(
        self, task: SummaryTask, on_partial: Callable[[Summary], None] | None = None, *, is_trial: bool = False
    ) -> Summary:
        self.asked.append(task)
        assert on_partial is not None
        on_partial(Summary("", TOLD, task.sources[0].index + 3, "model-x", 100, 20, narrative_start=task.first_index))
        await self.may.wait()
        raise SummaryRejected("no", input=130, output=25, answers=1)


@pytest.mark.parametrize("ends", [True, False])
async def test_the_finished_pieces_of_a_summary_are_used_if_the_rest_fails(ends: bool):
    setup = build_setup(bounds=PreparationLimits(timeout_seconds=0.01))
    setup.author = Piecewise(setup.author)
    setup.preparations._author = setup.author
    if not ends:
        setup.author.may.clear()
    await ask(setup, client(6), decision=PREPARE)
    await setup.tasks.done()
    made = await ask(setup, client(6))
    assert TOLD in summary_text(made)
    compaction = made.history.compaction
    assert compaction is not None
    assert compaction.narrative_end == setup.author.asked[0].sources[0].index + 3 < compaction.covered_count
    assert made.outcome is not None
    assert (compaction.input, compaction.output) == (100, 20)
    # What came of nothing is told too.
    assert (made.outcome.input, made.outcome.output) == ((130, 25) if ends else (100, 20))


class Repeating(ScriptedAuthor):
    """Has nothing new to tell."""

    async def write(
        self, task: SummaryTask, on_partial: Callable[[Summary], None] | None = None, *, is_trial: bool = False
    ) -> Summary:
        self.asked.append(task)
        return Summary("", TOLD, task.prior_until, "extractive", narrative_start=task.first_index)


async def test_where_there_is_nothing_new_to_tell_a_compaction_does_not_wait_for_it():
    setup = build_setup()
    setup.author = Repeating(setup.author)
    setup.preparations._author = setup.author
    passed = await ask(setup, client(6))
    assert passed.history.compaction is None
    await setup.tasks.done()
    made = await ask(setup, client(6))
    assert made.history.compaction is not None
    assert made.history.compaction.writer == "extractive"
    assert len(setup.author.asked) == 1


async def test_without_a_model_the_facts_are_looked_up_ahead():
    setup = build_setup()
    await ask(setup, client(6), decision=PREPARE, summary_caller=None)
    await setup.tasks.done()
    assert len(setup.extractor._facts) == len({message.key for message in client(6).messages})
    assert teller(setup).asked == []


async def test_a_conversation_that_jumps_over_its_trigger_is_summarized_with_its_new_part():
    setup = build_setup()
    await ask(setup, client(6), decision=PREPARE)
    await setup.tasks.done()
    first = await ask(setup, client(6))
    await ask(setup, client(14))
    await setup.tasks.done()
    second = await ask(setup, client(14))
    assert len(teller(setup).asked) == 2
    assert first.history.compaction is not None
    assert second.history.compaction is not None
    assert second.history.compaction.narrative_end > first.history.compaction.narrative_end


async def test_a_summary_that_another_worker_has_is_not_written_again():
    store = InMemoryStore()
    one, other = build_setup(store=store), build_setup(store=store)
    await ask(one, client(5), decision=PREPARE)
    await one.tasks.done()
    await ask(other, client(5), decision=PREPARE)
    await other.tasks.done()
    assert teller(other).asked == []
    assert TOLD in summary_text(await ask(other, client(6)))


def test_a_prepared_summary_serves_only_its_own_prefix():
    whole = client(3)
    assert PreparedSummary("", 3, whole.chain[2], "", 0, 0).is_valid_for(whole, 2)
    assert not PreparedSummary("", 3, whole.chain[2], "", 0, 0).is_valid_for(whole, 3)
    assert not PreparedSummary("", 3, whole.chain[1], "", 0, 0).is_valid_for(whole, 0)
    assert not PreparedSummary("", 0, b"", "", 0, 0).is_valid_for(whole, 0)
    assert not PreparedSummary("", 99, whole.chain[2], "", 0, 0).is_valid_for(whole, 0)


async def test_a_compaction_does_not_forget_that_the_model_failed():
    setup = build_setup()
    teller(setup).error = SummaryRejected("no", input=130, output=25, answers=2)
    await ask(setup, client(6), decision=PREPARE)
    await setup.tasks.done()
    made = await ask(setup, client(6))
    assert made.outcome is not None
    assert (made.outcome.writer, made.outcome.input, made.outcome.output) == ("extractive", 130, 25)
    assert (made.outcome.failed_answers, made.outcome.failed_input, made.outcome.failed_output) == (2, 130, 25)
    for turns in (12, 20, 30):
        again = await ask(setup, client(turns), decision={"must_succeed": True})
        assert again.outcome is not None
        assert (again.outcome.failed_answers, again.outcome.input) == (0, 0)
    assert len(teller(setup).asked) == 1


async def test_a_paused_model_is_tried_again_and_trusted_once_it_succeeds():
    setup = build_setup()
    teller(setup).error = SummaryRejected("no", input=130, output=25, answers=1)
    await ask(setup, client(6), decision=PREPARE)
    await setup.tasks.done()
    teller(setup).error = None
    setup.clock.advance(FIRST_PAUSE)
    setup.writers.count_request(SummaryWriter("local", "openai", "gpt-5"), TOKENS_BETWEEN_TRIALS)
    assert TOLD in summary_text(await ask(setup, client(12), decision={"is_requested": True}))
    assert TOLD in summary_text(await ask(setup, client(30), decision={"is_requested": True}))
    assert teller(setup).trials == [True, True, False]


async def test_where_only_the_trial_passed_the_model_is_paused_all_the_same():
    setup = build_setup(bounds=PreparationLimits(timeout_seconds=0.01))
    setup.author = Piecewise(setup.author)
    setup.preparations._author = setup.author
    await ask(setup, client(6), decision=PREPARE)
    await setup.tasks.done()
    assert not setup.writers.may_try(SummaryWriter("local", "openai", "gpt-5"), "another session")
