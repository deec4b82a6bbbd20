"""A real model writes the summaries of recorded conversations: what the checks accept, and what is left beside the
extractive writer's record of the same messages."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from msgspec.structs import replace
from rich.progress import track

from accordion.accounting.token_meter import MessageTokenCache, TokenMeter
from accordion.archive.archive import Archive
from accordion.compaction.assembly import CompactionAssembler
from accordion.compaction.planner import Planner
from accordion.config import Settings
from accordion.model.errors import SummaryFailed
from accordion.model.ports import Route, Summarizer, SummaryCaller, SummaryLimits, SummaryRequest, SummaryResponse
from accordion.protocols.base import TextPrompt
from accordion.protocols.registry import PROTOCOLS
from accordion.protocols.written_messages import WrittenMessageReader
from accordion.providers.models.tokenizer import TiktokenCounter
from accordion.server.event_loop import LoopTasks
from accordion.stores.memory_store import InMemoryStore
from accordion.summaries.author import SummaryAuthor, SummaryTask
from accordion.summaries.checks import CheckedSummary
from accordion.summaries.digest import make_digest
from accordion.summaries.extractive import ExtractiveWriter
from accordion.summaries.prompts import load_prompts
from bench.compaction_steps import captured
from bench.endpoint import MODEL, SUMMARY, Endpoint, EndpointRelay, ModelCall, answers_file, dollars
from bench.question_sets import QuestionSet, sets_for
from bench.report import Table
from bench.run_settings import RunSettings

T = TypeVar("T")
_LIMITS: Final = SummaryLimits(input=24_000, output=4_000)
_CALLER: Final = SummaryCaller("bench", Route("openai", "openai", ""), "chat", MODEL, ())
_QUOTED = re.compile(r"(['\"]).*?\1 (?=does not)|\b\d+\b")
_DONE = re.compile(r"^(?:Done|Partly done)\b")


@dataclass
class WriterComparison:
    """A model's record of one conversation beside the extractive one, and what the model's cost."""

    problem: str = ""
    """The reason why the summary was rejected."""
    lines: int = 0
    dropped: list[str] = field(default_factory=list)
    """A reason for each line that the checks dropped, of all answers."""
    instructions: tuple[int, int, int] = (0, 0, 0)
    """The standing instructions of the messages; of them in the model's record, and in the extractive one."""
    statements: tuple[int, int, int] = (0, 0, 0)
    """The same for what the users stated."""
    plans_as_done: int = 0
    """Lines that tell a promise of the assistant as done."""
    calls: list[ModelCall] = field(default_factory=list)


class RelaySummarizer:
    """The Summarizer port over the relay, in the form in which the product asks."""

    def __init__(self, relay: EndpointRelay) -> None:
        self._relay = relay

    def limits(self, caller: SummaryCaller) -> SummaryLimits:
        """Returns the limits of one request."""
        return _LIMITS

    async def write(self, request: SummaryRequest, caller: SummaryCaller) -> SummaryResponse:
        """Requests a summary once."""
        prompt = TextPrompt(MODEL, request.instructions, request.text, request.max_tokens, schema=request.schema)
        body = json.loads(PROTOCOLS["chat"].write_prompt(prompt)) | {"temperature": 0, "seed": 1}
        status, answer = await asyncio.to_thread(self._relay.answer, body, SUMMARY)
        if status != 200:
            raise SummaryFailed(f"the model answered with status {status}")
        return SummaryResponse(answer["choices"][0]["message"].get("content") or "", MODEL)


class CheckRecorder(LoopTasks):
    """Runs the product's work, and records the checks of each answer: the error of a rejected one lacks them."""

    def __init__(self) -> None:
        super().__init__()
        self.checks: list[CheckedSummary] = []

    async def offload(self, call: Callable[..., T], *args: Any) -> T:
        """Runs a call in a thread."""
        outcome = await super().offload(call, *args)
        if isinstance(outcome, tuple) and isinstance(outcome[0], CheckedSummary):
            self.checks.append(outcome[0])
        return outcome


def run(setting: RunSettings) -> list[Table]:
    endpoint = Endpoint.from_options(setting.endpoint, setting.model, setting.key_env)
    sets, window, note = sets_for(setting, 14, 1)
    with EndpointRelay(endpoint, answers_file(endpoint)) as relay:
        compared = asyncio.run(_compare_all(relay, sets, window))
    table = _table(compared, endpoint.model)
    table.notes.append(note)
    return [table, _reasons(compared)]


async def _compare_all(relay: EndpointRelay, sets: Sequence[QuestionSet], window: int) -> list[WriterComparison]:
    compared = list[WriterComparison]()
    for each in track(sets, description="summaries"):
        task = await summary_task(each, window)
        if task is not None:
            compared.append(await compare(RelaySummarizer(relay), task, each))
            compared[-1].calls = relay.take()
    return compared


async def summary_task(whole: QuestionSet, window: int) -> SummaryTask | None:
    """Returns the task that the product would give its writer; None if the conversation needs no summary."""
    body = {"model": MODEL, "messages": [*whole.messages, {"role": "user", "content": "Please go on."}]}
    request, _ = await captured(json.dumps(body).encode(), window)
    counter = TiktokenCounter()
    counter.load()
    planner = Planner([entry.build() for entry in Settings().compaction.pipeline_of("")])
    parts = Archive(InMemoryStore()), MessageTokenCache(TokenMeter(counter)), WrittenMessageReader()
    assembler = CompactionAssembler(planner, planner, *parts, make_digest=make_digest)
    return assembler.plan_compaction(request, at=0.0, without_summary=False).summary_task


async def compare(summarizer: Summarizer, task: SummaryTask, whole: QuestionSet) -> WriterComparison:
    """Has both writers write, and compares their records."""
    extractor, recorder, found = ExtractiveWriter(), CheckRecorder(), WriterComparison()
    author = SummaryAuthor(summarizer, extractor, recorder, load_prompts())
    extract = text = author.write_extractive(task).text
    try:
        summary = await author.write(replace(task, summary_caller=_CALLER))
    except SummaryFailed as error:
        found.problem = _QUOTED.sub("…", error.message)
    else:
        text, found.lines = summary.text, len(summary.narrative.splitlines())
        found.plans_as_done = _count_plans_as_done(summary.narrative, whole)
    dropped = [line for check in recorder.checks for line in check.dropped_lines]
    found.dropped = [_QUOTED.sub("…", line.rpartition(": ")[2]) for line in dropped]
    standing = extractor.find_standing_instructions(task.sources, (), task.others)
    rules = [each.instruction.text for each in standing.cited]
    found.instructions = len(rules), sum(each in text for each in rules), sum(each in extract for each in rules)
    values = [each.value for each in whole.statements]
    found.statements = len(values), sum(each in text for each in values), sum(each in extract for each in values)
    return found


def _count_plans_as_done(narrative: str, whole: QuestionSet) -> int:
    promises = [each.value for each in whole.statements if each.kind == "promise"]
    return sum(bool(_DONE.match(line)) and any(value in line for value in promises) for line in narrative.splitlines())


# -- tables ------------------------------------------------------------------------------------------------------------


def _table(compared: Sequence[WriterComparison], model: str) -> Table:
    table = Table(f"Summaries that {model} writes", ("figure", "model", "extractive writer"))
    accepted = [each for each in compared if not each.problem]
    calls = [call for each in compared for call in each.calls]
    table.rows += [
        ["summaries", len(compared), len(compared)],
        ["accepted", len(accepted), None],
        ["lines that stayed", sum(each.lines for each in accepted), None],
        ["lines that were dropped, of all answers", sum(len(each.dropped) for each in compared), None],
        ["promises told as done", sum(each.plans_as_done for each in accepted), None],
        _shares("standing instructions, word for word, %", [each.instructions for each in compared]),
        _shares("what users stated, %", [each.statements for each in compared]),
        ["records with fewer statements than the extractive one", sum(_is_worse(each) for each in compared), None],
        ["requests to the model", len(calls), 0],
        ["tokens read", sum(call.input for call in calls), 0],
        ["tokens written", sum(call.output for call in calls), 0],
        ["seconds", sum(call.seconds for call in calls), None],
        ["dollars", dollars(calls, model), 0],
    ]
    worse = sum(_is_worse(each) for each in compared)
    table.goals.append(f"no record is worse than the extractive one: {worse} are, {'NOT met' if worse else 'met'}")
    return table


def _shares(name: str, counts: Sequence[tuple[int, int, int]]) -> list[str | float | int | None]:
    whole, model, extractive = (sum(each[at] for each in counts) for at in range(3))
    return [name, 100 * model / max(1, whole), 100 * extractive / max(1, whole)]


def _is_worse(each: WriterComparison) -> bool:
    return each.statements[1] < each.statements[2] or each.instructions[1] < each.instructions[2]


def _reasons(compared: Sequence[WriterComparison]) -> Table:
    table = Table("Why summaries were rejected, and lines dropped", ("reason", "summaries", "lines"))
    problems = Counter(each.problem for each in compared if each.problem)
    lines = Counter(reason for each in compared for reason in each.dropped)
    for reason in sorted(problems | lines, key=lambda each: -problems[each] - lines[each]):
        table.rows.append([reason, problems[reason], lines[reason]])
    return table
