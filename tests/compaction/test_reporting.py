"""What is told of a compaction."""

import pytest

from accordion.compaction.apply import PlanNotApplicable
from accordion.compaction.assembly import CompactionAssembler
from accordion.compaction.reporting import (
    describe_outcome,
    is_in_force,
    report_compaction,
    report_failure,
)
from accordion.model.budget import Decision
from accordion.model.compaction import Compaction, CompactionEntry, StrategyRecord
from accordion.model.errors import StoreUnavailable, Unreadable
from accordion.model.records import CompactionOutcome
from tests.fakes import FakeWindows
from tests.pipeline_setup import CHAT, PipelineSetup

COMPACTION = Compaction(
    id="f-1",
    anchor=b"a",
    covered_count=1,
    entries=(CompactionEntry(0, 0),),
    kind="generation",
    cause="automatic",
    utilization=0.8,
    steps=(StrategyRecord("summarize", 900, 300),),
    before=900,
    after=300,
    generation=2,
    at=1.0,
    input=7,
    output=5,
    tokens_saved=1_500,
)
DECISION = Decision("compact", "over it", trigger=800, kind="generation")


def test_what_is_saved_is_all_by_which_the_clients_list_is_shorter():
    assert report_compaction(COMPACTION, "compacted", DECISION).saved == 1_500
    assert report_compaction(COMPACTION, "replayed").saved == 1_500


def test_a_compaction_that_failed_saves_what_the_one_before_it_saves():
    alone = report_failure(DECISION, "automatic", 0.8, 900, "nothing_to_compact", "no message may be compacted")
    upon = report_failure(
        DECISION, "automatic", 0.8, 900, "nothing_to_compact", "no message may be compacted", COMPACTION
    )
    assert (alone.saved, upon.saved) == (0, 1_500)
    assert not is_in_force(alone)
    assert is_in_force(upon)


def test_only_what_was_compacted_counts_as_in_force():
    assert is_in_force(report_compaction(COMPACTION, "replayed"))
    assert not is_in_force(CompactionOutcome("observed", before=9, after=3))
    assert not is_in_force(None)


def test_the_record_tells_every_field():
    seen = report_compaction(COMPACTION, "compacted", DECISION)
    told = describe_outcome(seen)
    tokens = {"input", "output", "failed_answers", "failed_input", "failed_output"}
    assert {*told} == {
        f"summary_{name}" if name in tokens else name for name in CompactionOutcome.__struct_encode_fields__
    }
    assert (told["summary_input"], told["summary_output"]) == (7, 5)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (PlanNotApplicable("too_little", "it would gain only 1.0%"), "too_little"),
        (StoreUnavailable("the store did not answer within 0.25 s"), "store"),
        (Unreadable("no such message"), "other"),
        (KeyError("secret"), "internal"),
    ],
)
async def test_a_failure_is_reported_with_its_kind(error: Exception, kind: str, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(CompactionAssembler, "plan_compaction", fail)
    setup = PipelineSetup(windows=FakeWindows(3_000))
    words = " ".join(f"word{number}" for number in range(2_000))
    messages = [{"role": role, "content": words[:4_000]} for role in ("user", "assistant") * 3]
    await setup.ask(CHAT, {"model": "gpt-5", "messages": [*messages, {"role": "user", "content": "Go on."}]})
    outcome = setup.recorder.exchanges[-1].compaction
    assert outcome is not None
    assert (outcome.state, outcome.failure) == ("failed", kind)
    assert "secret" not in outcome.reason
