"""Writes the block that stands for messages that left the window: extracted from them, or told by a model and checked.

What a model tells is followed by what is extracted, so that names and figures that it left out are there too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Final

from accordion.core.conversation import Message, Text
from accordion.core.errors import SummaryFailed
from accordion.core.plan import Kind
from accordion.core.ports import Tasks
from accordion.core.summarizing import Asker, Summarizer, SummaryReply, SummaryRequest
from accordion.core.values import dataclass, replace
from accordion.summaries.block import block, label
from accordion.summaries.checks import Checked, check
from accordion.summaries.evidence import Evidence, gather
from accordion.summaries.extractive import Extractor, Source
from accordion.summaries.instructions import Instruction, Outdated, Standing, render, states
from accordion.summaries.prompts import Piece, Prompts, cut, pieces, repaired, transcript
from accordion.summaries.schema import cited, decode

TOLD: Final = 0.4
"""The share of a budget that a model's narrative may take; the rest is for what is extracted."""
FLOOR: Final = 0.5
"""The share of a block's room that standing instructions have before anything else."""
CEILING: Final = 0.85
"""The most of that room that they have: the rest is for what was promised, done and found."""
LISTED: Final = 0.4
"""The share that references may take."""
LEAST: Final = 80
"""A narrative of fewer tokens is not worth asking for."""
TRIAL: Final = 2_000
"""Tokens of messages that a model is given first which nobody has seen write a good summary."""
_SEAMS: Final = 8
"""Tokens that joining the parts of a block may add."""
_REST: Final = 12
"""Tokens of the line that says how many references there are besides."""


class SummaryRejected(SummaryFailed):
    """Models were asked and no summary came of it. `input` and `output` are the tokens that it cost all the same,
    `answers` how many answers there were."""

    def __init__(self, message: str, *, input: int = 0, output: int = 0, answers: int = 0) -> None:
        super().__init__(message)
        self.input, self.output, self.answers = input, output, answers


@dataclass(frozen=True, slots=True)
class SummaryTask:
    """What is to be told.

    `covered` are the messages that leave the window, in order, as the client sent them; `kept` those that stay.
    `others` are what users said besides: in what stays, and in what other summaries tell of.
    `since` is the client's index of the first message to be told of. `prior` is what a model told of the messages from
    there to before `prior_until`, empty where none did. `references` are
    lines about what the archive holds, to be listed at the end, `artifacts` the ids of what holds the messages from the
    first to the last of each. `budget` is what the whole block may count, in tokens
    of `count`. `task` is the user's message that the agent now works on, where it is not covered: it may be cited.
    """

    kind: Kind
    covered: tuple[Source, ...] = field(repr=False)
    kept: tuple[Message, ...] = field(repr=False)
    budget: int
    count: Callable[[str], int] = field(repr=False)
    prior: str = field(default="", repr=False)
    prior_until: int = 0
    since: int = 0
    references: tuple[str, ...] = field(default=(), repr=False)
    others: tuple[Source, ...] = field(default=(), repr=False)
    artifacts: tuple[tuple[int, int, str], ...] = ()
    asker: Asker | None = None
    task: Source | None = field(default=None, repr=False)

    def artifact(self, index: int) -> str:
        """The id of the artifact that holds a message, if any."""
        return next((name for first, last, name in self.artifacts if first <= index <= last), "")


@dataclass(frozen=True, slots=True)
class Summary:
    """The complete text of a block, and where it comes from.

    `narrative` is what a model told (checked; without what was extracted) of the client's messages from `since` to
    before `narrated`. `writer` is `extractive` or the model's name, `input` and `output` the tokens that it cost.
    `dropped` says which lines did not pass and why; it quotes them, so it is not for logs. `findings` are what was
    learnt from tool results, by the index of the message that holds them.
    """

    text: str = field(repr=False)
    narrative: str = field(default="", repr=False)
    narrated: int = 0
    writer: str = "extractive"
    input: int = 0
    output: int = 0
    dropped: tuple[str, ...] = field(default=(), repr=False)
    findings: tuple[tuple[int, str], ...] = field(default=(), repr=False)
    since: int = 0


@dataclass(frozen=True, slots=True)
class _Job:
    """All that asking for one summary needs, made ready."""

    task: SummaryTask
    asker: Asker
    limit: int
    evidence: Evidence
    pieces: tuple[Piece, ...]
    is_trial: bool = False
    """Whether the first piece is to find out whether the model can do it."""

    @property
    def longest(self) -> int:
        """The longest answer in tokens: the lines, and the JSON around them."""
        return self.limit * 2 + 400


class _Spent:
    """What the models that were asked cost so far."""

    def __init__(self) -> None:
        self.input = self.output = self.answers = 0
        self.model = ""

    def add(self, cost: SummaryReply | SummaryRejected) -> None:
        self.input += cost.input
        self.output += cost.output
        self.answers += cost.answers if isinstance(cost, SummaryRejected) else 1


class Author:
    """Writes summaries. Holds no state of its own; safe to use from several threads."""

    def __init__(self, summarizer: Summarizer | None, extractor: Extractor, tasks: Tasks, prompts: Prompts) -> None:
        self._summarizer = summarizer
        self._extractor = extractor
        self._tasks = tasks
        self._prompts = prompts

    @property
    def asks(self) -> bool:
        """Whether there is a model to be asked."""
        return self._summarizer is not None

    def extractive(self, task: SummaryTask) -> Summary:
        """A block that needs no model; what one told earlier stays. Never fails. CPU work: run it in a thread."""
        shown = _clipped(task.prior, int(task.budget * TOLD), task.count)
        summary = self._composed(task, Summary("", shown))
        return replace(summary, narrative=task.prior, narrated=task.prior_until if task.prior else 0, since=task.since)

    async def write(
        self, task: SummaryTask, heard: Callable[[Summary], None] | None = None, *, is_trial: bool = False
    ) -> Summary:
        """A block that a model told, checked, and repaired once where it did not pass.

        What is too long for the model goes in pieces; behind each, `heard` is given what is told so far (without a
        text), which holds if the rest never comes. `is_trial`: the model has not been seen to succeed. Then the first
        piece is a short one, and an answer to it without the JSON that was asked for is not repaired.

        Raises SummaryFailed where no model can be had, nothing is new, it fails, or what it writes does not pass
        (SummaryRejected where that cost something). The caller sets the time-out.
        """
        summarizer, asker = self._summarizer, task.asker
        if summarizer is None or asker is None:
            raise SummaryFailed("no model is configured to write summaries")
        job = await self._tasks.offload(self._prepared, task, asker, summarizer.room(asker), is_trial)
        spent, dropped = _Spent(), list[str]()
        told = Summary("", task.prior, task.prior_until, since=task.since)
        try:
            for piece in job.pieces:
                text = transcript(
                    piece, limit=job.limit, prior=told.narrative, prior_until=told.narrated, task=task.task
                )
                checked = await self._told(summarizer, job, piece, text, spent)
                dropped += checked.dropped
                told = Summary(
                    text="",
                    narrative=checked.text,
                    narrated=piece[-1].index + 1,
                    since=task.since,
                    writer=spent.model,
                    input=spent.input,
                    output=spent.output,
                    dropped=tuple(dropped),
                    findings=_findings(checked, task.kind),
                )
                if heard is not None:
                    heard(told)
        except SummaryFailed as error:
            raise SummaryRejected(
                error.message, input=spent.input, output=spent.output, answers=spent.answers
            ) from error
        return await self._tasks.offload(self._composed, task, told)

    def _prepared(self, task: SummaryTask, asker: Asker, room: int, is_trial: bool) -> _Job:
        """CPU work. Raises SummaryFailed where there is no room, or nothing that is not told yet."""
        limit = int(task.budget * TOLD)
        if limit < LEAST:
            raise SummaryFailed(f"a summary of {task.budget} tokens is too short for a model's text")
        new = [source for source in task.covered if source.index >= task.prior_until]
        if not new:
            raise SummaryFailed("everything is summarized already")
        evidence = gather(task.covered, task.kept, task.prior, task.task)
        evidence = replace(evidence, standing=self._extractor.standing(task.covered, (), task.others))
        job = _Job(task, asker, limit, evidence, ())
        # The count is of another model's tokens, maybe; what a repair adds must fit too.
        fixed = task.count(self._prompts.instructions(task.kind)) + max(limit, task.count(task.prior)) + job.longest
        fixed += 800 + (task.count(transcript((), limit=limit, task=task.task)) if task.task is not None else 0)
        free = int(room * 0.95) - fixed
        if free < 500:
            raise SummaryFailed("the window of the model that writes summaries is too small")
        cut_up = pieces(new, free, task.count, TRIAL if is_trial else 0)
        return replace(job, pieces=tuple(cut_up), is_trial=is_trial)

    async def _told(self, summarizer: Summarizer, job: _Job, piece: Piece, text: str, spent: _Spent) -> Checked:
        """What a model tells of one piece, checked; asked once more where it does not pass."""
        instructions, problem, asked = self._prompts.instructions(job.task.kind), "", text
        for attempt in range(2):
            try:
                reply = await summarizer.write(SummaryRequest(instructions, asked, job.longest), job.asker)
            except SummaryRejected as error:
                spent.add(error)
                raise
            spent.add(reply)
            spent.model = reply.model or spent.model
            checked, is_readable = await self._tasks.offload(_judged, reply.text, job, piece[-1].index)
            if not checked.problem:
                return checked
            problem = checked.problem
            if not attempt and job.is_trial and piece is job.pieces[0] and not is_readable:
                # Who cannot write the form at all seldom can when asked again, and that costs as much.
                raise SummaryFailed(f"the model's answer is not a summary: {problem}")
            answer = cut(reply.text, job.longest * 3)
            asked = repaired(text, self._prompts, answer, [problem, *checked.dropped])
        raise SummaryFailed(f"the model's summary failed the checks twice: {problem}")

    def _composed(self, task: SummaryTask, told: Summary) -> Summary:
        """The summary with its text: label, narrative, extract, references. Never fails."""
        if not task.covered:
            return told
        head = label(task.kind, task.covered[0].index, task.covered[-1].index)
        references = _listed(task.references, int(task.budget * LISTED), task.count)
        room = task.budget - task.count(block(head, "", "", "", references)) - _SEAMS
        instructions, texts, dropped, outdated = "", frozenset[str](), told.dropped, Standing().outdated
        try:
            instructions, texts, outdated = self._instructions(task, told, room)
        except Exception as error:
            # A fold must not fail for what is only an aid to memory.
            dropped = (*dropped, f"no instructions could be extracted: {type(error).__name__}")
        room -= task.count(instructions)
        narrative = _clipped(_current(told.narrative, outdated), max(0, room), task.count)
        room -= task.count(narrative)
        try:
            extract = self._extractor.write(
                task.covered, kept=_visible(task, narrative), budget=room, count=task.count, kind=task.kind, told=texts
            )
        except Exception as error:
            extract, dropped = "", (*dropped, f"nothing could be extracted: {type(error).__name__}")
        extract = _clipped(extract, max(0, room), task.count)
        if not extract and not narrative and not instructions:
            extract = _plainly(task.covered)
        return replace(told, text=block(head, instructions, narrative, extract, references), dropped=dropped)

    def _instructions(self, task: SummaryTask, told: Summary, room: int) -> tuple[str, frozenset[str], Outdated]:
        """The section of standing instructions, the texts that nothing else may tell, and what is outdated. The section
        has what a narrative leaves of the room, never less than `FLOOR` of it nor more than `CEILING`."""
        found = self._extractor.standing(task.covered, task.kept, task.others)
        most = int(room * CEILING)
        if told.narrative:
            most = max(int(room * FLOOR), min(most, room - task.count(told.narrative)))
        text, texts = render(found.cited, most, task.count, task.artifact)
        return text, texts | {instruction.text for _, instruction in found.outdated}, found.outdated


def _current(narrative: str, outdated: Outdated) -> str:
    """A narrative without the lines that tell what the user said before saying otherwise: they were true when they were
    written."""
    if not outdated or not narrative:
        return narrative
    by_index: dict[int, list[Instruction]] = {}
    for index, instruction in outdated:
        by_index.setdefault(index, []).append(instruction)
    return "\n".join(
        line
        for line in narrative.split("\n")
        if not any(states(line, each) for index in cited(line) for each in by_index.get(index, ()))
    )


def _judged(answer: str, job: _Job, upto: int) -> tuple[Checked, bool]:
    """What an answer is worth, and whether it has the form that was asked for."""
    try:
        document = decode(answer, job.task.kind)
    except ValueError as error:
        return Checked((), problem=str(error)), False
    return check(document, job.task.kind, job.evidence, limit=job.limit, count=job.task.count, upto=upto), True


def _visible(task: SummaryTask, narrative: str) -> tuple[Message, ...]:
    """What is not to be repeated in an extract: what stays, and what a model told."""
    if not narrative:
        return task.kept
    key = hashlib.blake2b(narrative.encode("utf-8", "replace"), digest_size=32).digest()
    return (*task.kept, Message(key, "user", (Text(narrative),), b""))


def _findings(checked: Checked, kind: Kind) -> tuple[tuple[int, str], ...]:
    if kind != "generation":
        return ()
    held = (line for line in checked.lines if line.section.path == "artifacts")
    return tuple((index, line.text) for line in held for index in line.sources)


def _listed(references: Sequence[str], budget: int, count: Callable[[str], int]) -> tuple[str, ...]:
    """The references, or the newest that there is room for and how many there are besides."""
    if len(references) < 2 or count("\n".join(references)) <= budget:
        return tuple(references)
    kept: list[str] = []
    budget -= _REST
    for line in reversed(references):
        budget -= count(f"{line}\n")
        if budget < 0:
            break
        kept.append(line)
    return (f"({len(references) - len(kept)} earlier parts are archived too)", *reversed(kept))


def _clipped(text: str, budget: int, count: Callable[[str], int]) -> str:
    """The first lines of a text that fit."""
    if not text or count(text) <= budget:
        return text
    held = text.split("\n")
    low, high = 0, len(held) - 1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if count("\n".join(held[:middle])) <= budget else (low, middle - 1)
    return "\n".join(held[:low]).rstrip()


def _plainly(covered: Sequence[Source]) -> str:
    """Where nothing could be extracted: what kinds of messages there were."""
    messages = [source.message for source in covered]
    results = sum(message.has_tool_result for message in messages)
    users = sum(message.has_user_text for message in messages)
    replies = sum(message.role == "assistant" for message in messages)
    return (
        f"{len(messages)} messages: {users} of the user's, {replies} of the assistant's, {results} with tool results. "
        f"[{covered[0].index}-{covered[-1].index}]"
    )
