"""A real model mends a repository of small faults, with a loop of the OpenAI SDK: with its whole history, and through
Accordion at a window that forces several compactions."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import openai
from rich.progress import Progress

from bench.endpoint import (
    MODEL,
    PURPOSE,
    QUESTION,
    Endpoint,
    EndpointRelay,
    ModelCall,
    accordion_before,
    answers_file,
    dollars,
)
from bench.faulty_repository import TOOLS, FaultyRepository, RepairTask, make_repository
from bench.report import Table
from bench.run_settings import RunSettings

WHOLE, ACCORDION = "the whole history", "Accordion, extractive writer"
ARMS: Final = (WHOLE, ACCORDION)
_WINDOW: Final = 8_000
_TASKS: Final = 20
_STEPS: Final = 10
"""Answers of the model for one task, at most."""


@dataclass
class RepairRun:
    """One run through all tasks. `stopped` is the reason why it ended early."""

    arm: str
    tasks: int = 0
    finished: int = 0
    steps: int = 0
    without_call: int = 0
    """Tasks for which the model called no tool at all."""
    rereads: int = 0
    broken: list[str] = field(default_factory=list)
    calls: list[ModelCall] = field(default_factory=list)
    stopped: str = ""


def run(setting: RunSettings) -> list[Table]:
    endpoint = Endpoint.from_options(setting.endpoint, setting.model, setting.key_env)
    window = (setting.windows or (_WINDOW,))[0]
    number = setting.questions or setting.fewer(_TASKS, 2)
    arms = [arm for arm in ARMS if not setting.only or any(each.lower() in arm.lower() for each in setting.only)]
    runs = list[RepairRun]()
    with EndpointRelay(endpoint, answers_file(endpoint)) as relay, Progress() as progress:
        bar = progress.add_task("tasks", total=len(arms) * number)
        for arm in arms:
            accordion = accordion_before(relay, window, by_model=False) if arm == ACCORDION else nullcontext(relay.url)
            with accordion as url, tempfile.TemporaryDirectory(prefix="bench-") as folder:
                agent = RepairAgent(url, make_repository(Path(folder), setting.seed, number), RepairRun(arm))
                for task in agent.repository.tasks:
                    if not agent.run.stopped:
                        agent.work(task)
                    progress.advance(bar)
                agent.run.calls, agent.run.rereads = relay.take(), agent.repository.rereads
                agent.run.broken = agent.repository.broken
                runs.append(agent.run)
    table = _table(runs, endpoint.model)
    table.notes.append(
        f"{number} tasks, at most {_STEPS} steps each, seed {setting.seed}; a window of {window:,} tokens"
    )
    return [table]


class RepairAgent:
    """The loop: one conversation for all tasks."""

    def __init__(self, url: str, repository: FaultyRepository, run: RepairRun) -> None:
        self.repository, self.run = repository, run
        self._client = openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=3_600)
        self._messages: list[Any] = [{"role": "user", "content": repository.opening}]
        self._messages.append({"role": "assistant", "content": f"Understood. {repository.word}"})

    def work(self, task: RepairTask) -> None:
        """Has the model work at a task until it reports, or has made all its steps."""
        self._messages.append({"role": "user", "content": task.request})
        before = self.run.steps
        try:
            while self.run.steps - before < _STEPS and self._step():
                pass
        except openai.APIStatusError as error:
            self.run.stopped = f"status {error.status_code}"
        last = self._messages[-1]
        self.repository.end_task(str(last.get("content") or "") if last["role"] == "assistant" else "")
        self.run.tasks += 1
        self.run.without_call += self._messages[-2] == {"role": "user", "content": task.request}
        self.run.finished += self.repository.run_test(task.test) == "passed"

    def _step(self) -> bool:
        """Asks the model once and runs its calls; returns whether it made any."""
        answer = self._client.chat.completions.create(
            model=MODEL,
            messages=self._messages,
            tools=TOOLS,  # type: ignore[arg-type]
            temperature=0,
            seed=1,
            max_tokens=1_000,
            extra_headers={PURPOSE: QUESTION, "x-accordion-session": "repair-agent"},
        )
        message = answer.choices[0].message
        self.run.steps += 1
        self._messages.append(message.model_dump(exclude_none=True, include={"role", "content", "tool_calls"}))
        for call in message.tool_calls or ():
            if call.type == "function":
                result = self.repository.call(call.function.name, _arguments(call.function.arguments))
                self._messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        return bool(message.tool_calls)


def _arguments(text: str) -> dict[str, Any]:
    try:
        arguments = json.loads(text)
    except ValueError:
        return {}
    return arguments if isinstance(arguments, dict) else {}


def _table(runs: Sequence[RepairRun], model: str) -> Table:
    columns = ("history", "finished", "tasks", "without a call", "rules broken", "steps", "read again", "tokens read")
    table = Table(f"Tasks that {model} finishes", (*columns, "tokens written", "seconds", "dollars"))
    for each in runs:
        tokens = sum(call.input for call in each.calls), sum(call.output for call in each.calls)
        seconds = sum(call.seconds for call in each.calls)
        counts = each.finished, each.tasks, each.without_call, len(each.broken), each.steps, each.rereads
        table.rows.append([each.arm, *counts, *tokens, seconds, dollars(each.calls, model)])
        if each.stopped:
            table.notes.append(f"{each.arm}: the run ended early, {each.stopped}")
    return table
