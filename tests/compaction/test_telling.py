"""What is told of a fold."""

import ast
import inspect

import pytest

from accordion.compaction import apply, assembly, compactor, layout
from accordion.compaction.reporting import (
    FAILURE_KINDS,
    describe_outcome,
    failure_kind,
    is_in_force,
    report_compaction,
    report_failure,
)
from accordion.model.budget import Decision
from accordion.model.compaction import Compaction, StepRecord, VerbatimRange
from accordion.model.errors import StoreUnavailable
from accordion.model.records import CompactionOutcome

COMPACTION = Compaction(
    id="f-1",
    anchor=b"a",
    covered=1,
    entries=(VerbatimRange(0, 0),),
    kind="generation",
    cause="automatic",
    utilization=0.8,
    steps=(StepRecord("summarize", 900, 300),),
    before=900,
    after=300,
    generation=2,
    at=1.0,
    input=7,
    output=5,
    removed=1_500,
)
DECISION = Decision("compact", "over it", trigger=800, kind="generation")


def test_what_is_saved_is_all_by_which_the_clients_list_is_shorter():
    assert report_compaction(COMPACTION, "folded", DECISION).saved == 1_500
    assert report_compaction(COMPACTION, "replayed").saved == 1_500


def test_a_fold_that_failed_saves_what_the_one_before_it_saves():
    alone = report_failure(DECISION, "automatic", 0.8, 900, "no message may be compacted")
    upon = report_failure(DECISION, "automatic", 0.8, 900, "no message may be compacted", COMPACTION)
    assert (alone.saved, upon.saved) == (0, 1_500)
    assert not is_in_force(alone)
    assert is_in_force(upon)


def test_only_what_was_folded_counts_as_in_force():
    assert is_in_force(report_compaction(COMPACTION, "replayed"))
    assert not is_in_force(CompactionOutcome("observed", before=9, after=3))
    assert not is_in_force(None)


def test_the_record_tells_every_field():
    seen = report_compaction(COMPACTION, "folded", DECISION)
    told = describe_outcome(seen)
    tokens = {"input", "output", "failed_answers", "failed_input", "failed_output"}
    assert {*told} == {f"summary_{name}" if name in tokens else name for name in CompactionOutcome.__slots__}
    assert (told["summary_input"], told["summary_output"]) == (7, 5)


@pytest.mark.parametrize("module", [compactor, assembly, apply, layout])
def test_every_reason_that_the_compactor_gives_is_counted_under_a_name_of_its_own(module):
    reasons = [
        "".join(piece.value if isinstance(piece, ast.Constant) else "..." for piece in pieces)
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "PlanNotApplicable"
        for pieces in [node.args[0].values if isinstance(node.args[0], ast.JoinedStr) else [node.args[0]]]
        if any(isinstance(piece, ast.Constant) for piece in pieces)
    ]
    assert reasons
    assert {failure_kind(reason) for reason in reasons} <= set(FAILURE_KINDS) - {
        "other",
        "internal",
        "store",
        "put_off",
    }


@pytest.mark.parametrize(
    ("reason", "name"),
    [
        ("no message may be compacted; not tried again under 3,400 tokens", "put_off"),
        ("the store is away", "store"),
        ("the store did not answer within 0.25 s", "store"),
        ("Redis did not answer within 1 s", "store"),
        ("an internal error: KeyError in view_for, line 3", "internal"),
        ("an internal error; the request went on as it came", "internal"),
        ("", "other"),
        (StoreUnavailable("SQLite: disk I/O error").message, "store"),
    ],
)
def test_failures_are_counted_under_few_names(reason: str, name: str):
    assert failure_kind(reason) == name
