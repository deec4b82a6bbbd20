"""The repository of small faults, and the loop that works at it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.faulty_repository import FaultyRepository, make_repository
from bench.scenarios.agent import RepairAgent, RepairRun
from tests.bench.model_endpoint import make_relay


@pytest.fixture
def repository(tmp_path: Path) -> FaultyRepository:
    return make_repository(tmp_path / "files", 1, 4)


def test_every_test_fails_before_the_work(repository):
    assert [repository.run_test(task.test)[:6] for task in repository.tasks] == ["failed"] * 4


def test_the_number_of_a_task_stands_in_the_opening_message_alone(repository):
    task = repository.tasks[3]
    rate = repository.opening.partition("rate of part_04 is ")[2].partition(". ")[0].rstrip(".")
    texts = [path.read_text() for path in repository.folder.rglob("*.py")]
    assert not any(rate in text for text in [*texts, task.request])
    change = {"old": "return round(net, 6)", "new": f"return round(net * (1 + {rate}), 6)"}
    assert repository.call("replace_text", {"path": task.module, **change}) == "replaced"
    assert repository.run_test(task.test) == "passed"


def test_broken_rules_and_files_read_again_are_counted(repository):
    module, test = repository.tasks[0].module, repository.tasks[0].test
    for _ in range(2):
        repository.call("read_file", {"path": module})
    change = {"old": '"""Part 1."""', "new": f'{repository.comment}\n"""Part 1."""'}
    repository.call("replace_text", {"path": module, **change})
    repository.call("read_file", {"path": module})
    repository.end_task(f"Mended. {repository.word}.")
    assert (repository.rereads, repository.broken) == (1, [])
    repository.call("replace_text", {"path": module, "old": repository.comment, "new": "#"})
    repository.call("replace_text", {"path": test, "old": "assert", "new": "True or"})
    repository.end_task("Mended.")
    assert repository.broken == ["a module without the comment", "a test was changed", "a report without the word"]


def test_a_test_does_not_get_the_environment(repository, monkeypatch):
    monkeypatch.setenv("READER_KEY", "sk-secret")
    (repository.folder / "look.py").write_text("import os, sys\nsys.exit(str(dict(os.environ)))\n")
    assert "sk-secret" not in repository.run_test("look.py")


@pytest.mark.parametrize(("old", "times"), [("", 0), ("nowhere", 0), ("return", 13)])
def test_only_a_text_that_occurs_once_is_replaced(repository, old, times):
    error = f"error: the old text occurs {times} times"
    assert repository.call("replace_text", {"path": "part_01.py", "old": old, "new": "x"}) == error


@pytest.mark.parametrize("path", ["../outside.py", "/outside.py", "part_01.txt"])
def test_files_outside_the_repository_are_refused(repository, path):
    assert repository.call("read_file", {"path": path}).startswith("error")


def test_an_agent_runs_the_calls_of_the_model_until_its_report(tmp_path, repository):
    def answer(body: dict[str, Any]) -> Any:
        if body["messages"][-1]["role"] == "tool":
            return f"Mended. {repository.word}"
        function = {"name": "read_file", "arguments": json.dumps({"path": "part_01.py"})}
        return {"content": None, "tool_calls": [{"id": "c1", "type": "function", "function": function}]}

    with make_relay(tmp_path / "answers", answer) as relay:
        agent = RepairAgent(relay.url, repository, RepairRun("any"))
        agent.work(repository.tasks[0])
        assert (agent.run.tasks, agent.run.finished, agent.run.steps, agent.run.without_call) == (1, 0, 2, 0)
        assert len(relay.take()) == 2
    assert repository.broken == []
