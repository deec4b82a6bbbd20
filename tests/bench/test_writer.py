"""A model's summaries beside the extractive writer's."""

from __future__ import annotations

import pytest

from bench.question_sets import QuestionSet, rule_set
from bench.scenarios.writer import compare, summary_task
from tests.summary_samples import FakeSummarizer, good_summary, line, task

NO_STATEMENTS = QuestionSet("c", "runs", [], [])


@pytest.mark.parametrize("is_good", [True, False])
async def test_a_model_s_record_keeps_all_that_the_extractive_one_keeps(is_good):
    answers = [good_summary()] if is_good else ["I cannot do this."]
    found = await compare(FakeSummarizer(answers), task(), NO_STATEMENTS)
    assert bool(found.problem) is not is_good
    assert (found.lines > 0) is is_good
    whole, model, extractive = found.instructions
    assert whole >= model == extractive >= 1


async def test_reasons_of_dropped_lines_are_counted_without_what_they_quote():
    summary = {"overview": [line("The file `lost.py` is new", 0)]}
    found = await compare(FakeSummarizer([summary]), task(), NO_STATEMENTS)
    assert found.problem == "the model's summary failed the checks twice: only … lines of it remain"
    assert found.dropped == ["…does not occur literally in the messages"] * 2


async def test_a_writer_gets_the_task_that_the_product_makes_of_a_conversation():
    whole = rule_set(1, 4_000)
    found = await summary_task(whole, 4_000)
    assert found is not None
    assert len(found.sources) > len(whole.messages) // 2
    comparison = await compare(FakeSummarizer(["no summary"]), found, whole)
    assert comparison.statements == (12, 12, 12)
