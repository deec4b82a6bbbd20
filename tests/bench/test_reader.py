"""The reader: a model that knows only what stands in its prompt answers questions through Accordion."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.endpoint import EndpointRelay
from bench.question_sets import rule_set
from bench.scenarios.reader import ARMS, BY_MODEL, EXTRACTIVE, FULL, NEWEST, NOTHING, ReaderAnswer, ReaderRun, table_of
from tests.bench.model_endpoint import ENDPOINT, make_relay


def literal_reader(body: dict[str, Any]) -> str:
    """A model that answers with the letter of the statement that stands in the prompt, and writes no summary."""
    *before, question = [str(each["content"]) for each in body["messages"]]
    first, _, second = question.partition("\nA: ")[2].partition("\nB: ")
    text = "\n".join([*before, question.partition("Which of these two")[0]])
    return "A" if first in text or second not in text else "B"


def read(file: Path) -> tuple[list[ReaderAnswer], int]:
    whole = rule_set(1, 4_000)
    sets = [replace(whole, questions=whole.questions[:8])]
    with make_relay(file, literal_reader) as relay:
        return ReaderRun(relay, 3_000, ARMS, 32_000).ask_all(sets), relay.asked


@pytest.mark.rest
def test_all_arms_are_asked_the_same_questions_and_a_second_run_asks_nothing(tmp_path):
    answers, asked = read(tmp_path / "answers")
    by_arm = {arm: [each for each in answers if each.arm == arm] for arm in ARMS}
    assert {len(each) for each in by_arm.values()} == {8}
    share = {arm: sum(each.is_right for each in own) / len(own) for arm, own in by_arm.items()}
    assert share[NOTHING] == 0.5
    assert share[FULL] > 0.9
    assert share[EXTRACTIVE] > share[NEWEST]
    assert all(each.is_in_prompt for each in by_arm[FULL])
    assert not any(each.is_in_prompt for each in by_arm[NOTHING])
    sent = {arm: max(len(call.messages) for each in own for call in each.calls) for arm, own in by_arm.items()}
    assert sent[EXTRACTIVE] < sent[FULL] / 2
    assert any(call.purpose == "summary" for each in by_arm[BY_MODEL] for call in each.calls)
    assert asked > 24
    again, asked = read(tmp_path / "answers")
    assert ([each.reply for each in again], asked) == ([each.reply for each in answers], 0)


def test_a_refused_question_counts_as_wrong_and_the_run_goes_on(tmp_path):
    whole = rule_set(1, 4_000)
    refused = httpx.MockTransport(lambda _: httpx.Response(400, json={"error": {"message": "too long"}}))
    with EndpointRelay(ENDPOINT, tmp_path / "answers", refused) as relay:
        answers = ReaderRun(relay, 3_000, [FULL], 32_000).ask_all([replace(whole, questions=whole.questions[:2])])
    assert [(each.reply, each.is_right) for each in answers] == [("failed with status 400", False)] * 2


def test_the_table_has_a_row_for_each_prompt_with_its_paired_difference():
    def answer(arm: str, question: str, *, right: bool) -> ReaderAnswer:
        return ReaderAnswer("c", "rules", arm, question, "A", "letter", "A", right, right)

    answers = [answer(EXTRACTIVE, "q", right=True), answer(EXTRACTIVE, "r", right=True)]
    answers += [answer(NEWEST, "q", right=True), answer(NEWEST, "r", right=False)]
    extractive, others = table_of(answers, "small").rows
    assert extractive[:8] == [EXTRACTIVE, "100 (100-100)", None, None, "100 (100-100)", None, "+50 (+50 to +50)", 100]
    assert others[:8] == [NEWEST, "50 (50-50)", None, None, "50 (50-50)", None, None, 50]
