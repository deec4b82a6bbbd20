"""Questions made from recorded runs and users' rules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.question_sets import question_sets, rule_set, run_questions
from bench.scenarios.reader import newest


def run_of(*results: str) -> list[dict[str, Any]]:
    """A run with one call for each result, and words at its end that are never asked about."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Look at the servers."}]
    for number, result in enumerate(results):
        function = {"name": "look_up", "arguments": json.dumps({"id": number})}
        call = {"id": f"c{number}", "type": "function", "function": function}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": result})
    return [*messages, *[{"role": "assistant", "content": "Done."}] * 4]


def test_a_value_of_one_result_is_asked_for_by_its_call():
    (question,) = run_questions(run_of('{"host": "db-7.internal", "is_up": true}'))
    assert question.expected == "db-7.internal"
    assert question.text == 'You called look_up with {"id": 0}. Which value has `host` in the result?'


def test_what_more_than_one_place_answers_is_not_asked():
    twice = '{"port": 5432, "other": {"port": 6543}}'
    assert [each.expected for each in run_questions(run_of(twice))] == []
    assert [each.expected for each in run_questions(run_of("port: 5432", "The port is 5432"))] == []


def test_runs_of_your_own_are_trajectories(tmp_path: Path):
    messages = run_of(*(f'{{"host{at}": "db-{at}.internal"}} ' + "x" * 500 for at in range(8)))
    steps: list[dict[str, Any]] = [{"source": "user", "message": messages[0]["content"]}]
    for call, result in zip(messages[1:17:2], messages[2:17:2], strict=True):
        made = call["tool_calls"][0]
        name, arguments = made["function"]["name"], json.loads(made["function"]["arguments"])
        observed = {"source_call_id": made["id"], "content": result["content"]}
        steps.append(
            {
                "source": "agent",
                "tool_calls": [{"tool_call_id": made["id"], "function_name": name, "arguments": arguments}],
                "observation": {"results": [observed]},
            }
        )
    steps += [{"source": "agent", "message": "Done."}] * 4
    run = {"schema_version": "ATIF-v1.4", "session_id": "run-1", "agent": {"name": "a"}, "steps": steps}
    (tmp_path / "run.json").write_text(json.dumps(run))
    runs = [each for each in question_sets(tmp_path, 1, 1_000, 1, 4) if each.kind == "runs"]
    assert [each.id for each in runs] == ["run-1"]
    assert all(each.expected.endswith(".internal") for each in runs[0].questions)
    assert len(runs[0].questions) == 4


def test_a_pair_of_statements_is_asked_in_both_orders():
    whole = rule_set(1, 4_000)
    first, second = whole.questions[:2]
    assert (first.expected, second.expected) == ("A", "B")
    assert first.text.split("\nA: ")[1].split("\nB: ") == second.text.split("\nA: ")[1].split("\nB: ")[::-1]
    assert len(whole.questions) == 2 * len(whole.statements)


def test_the_wrong_statement_of_a_pair_never_stood_there_unless_it_was_corrected():
    whole = rule_set(1, 4_000)
    text = json.dumps(whole.messages)
    for statement, question in zip(whole.statements, whole.questions[::2], strict=True):
        right, wrong = question.text.split("\nA: ")[1].split("\nB: ")
        assert right in text
        assert (wrong in text) == (statement.kind == "correction") or statement.kind == "correction of the opening"


def test_the_newest_messages_begin_with_no_result_whose_call_is_cut_off():
    messages = [{"role": "system", "content": "Be brief."}, *run_of("a" * 500, "b" * 20)]
    size = len(json.dumps(messages[-5:])) + len(json.dumps(messages[:1])) + 10
    kept = newest(messages, size)
    assert kept[0]["role"] == "system"
    assert kept[1:] == messages[-4:]
    assert newest(messages, 10**6) == messages
