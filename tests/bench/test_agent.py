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
    code = f"def gross(net): return round(net * (1 + {rate}), 6)"
    repository.call("write_file", {"path": task.module, "content": code})
    assert repository.run_test(task.test) == "passed"


def test_broken_rules_and_files_read_again_are_counted(repository):
    module, test = repository.tasks[0].module, repository.tasks[0].test
    for _ in range(2):
        repository.call("read_file", {"path": module})
    repository.call("write_file", {"path": module, "content": f"{repository.comment}\n"})
    repository.call("read_file", {"path": module})
    assert (repository.rereads, repository.broken) == (1, [])
    repository.call("write_file", {"path": module, "content": "x = 1\n"})
    repository.call("write_file", {"path": test, "content": ""})
    repository.check_report(f"Mended. {repository.word}.")
    repository.check_report("Mended.")
    assert repository.broken == ["a module without the comment", "a test was changed", "a report without the word"]
    assert repository.run_test(test).startswith("failed")


@pytest.mark.parametrize("path", ["../outside.py", "/outside.py", "part_01.txt"])
def test_files_outside_the_repository_are_refused(repository, path):
    assert repository.call("write_file", {"path": path, "content": "x"}).startswith("error")


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
