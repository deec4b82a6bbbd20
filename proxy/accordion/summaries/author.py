"""Writes the summary block that replaces compacted messages.

`SummaryAuthor` is called by the compactor with a `SummaryTask`. `write_extractive` needs no model: it composes the
label, the users' standing instructions (instructions.py), an earlier narrative, extracted lines (extractive.py) and
references to the archive. `write` first asks a model for a narrative: it renders the transcript in pieces (prompts.py),
decodes each answer (schema.py), checks every line against the messages (checks.py), and repairs a failed answer once.
The extracted lines follow the narrative, because they have names and figures that the model left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from accordion.archive.artifacts import ArchivedRange
from accordion.model.budget import CompactionKind
from accordion.model.conversation import Message, Text
from accordion.model.errors import SummaryFailed
from accordion.model.hidden_fields import StructWithHiddenFields
from accordion.model.ports import Summarizer, SummaryCaller, SummaryLimits, SummaryRequest, SummaryResponse, Tasks
from accordion.summaries.checks import CheckedSummary, check
from accordion.summaries.evidence import Evidence, gather_evidence
from accordion.summaries.extractive import ExtractiveWriter, SourceMessage
from accordion.summaries.instructions import (
    OPENING,
    Instruction,
    OutdatedInstruction,
    StandingInstructions,
    render_instructions,
    states_instruction,
)
from accordion.summaries.prompts import (
    Prompts,
    TranscriptPiece,
    cut_middle,
    render_repair,
    render_transcript,
    split_into_pieces,
)
from accordion.summaries.schema import answer_schema, decode_answer, find_citations
from accordion.summaries.sentence_forms import FACT, RULE

REFERENCES_TITLE: Final = "Archived messages"
"""The heading above the references to the archive."""
NARRATIVE_SHARE: Final = 0.4
"""The share of a budget for a model's narrative; the rest is for extracted lines."""
MAX_INSTRUCTION_SHARE: Final = 0.85
"""The largest share of a block for standing instructions, facts and promises; the rest is for the work itself."""
OTHER_SHARE: Final = 0.75
"""The largest share of a block for facts, requests and promises."""
REFERENCE_SHARE: Final = 0.4
"""The share for references."""
MIN_NARRATIVE_TOKENS: Final = 80
"""A shorter narrative is not worth a model call."""
TRIAL_TOKENS: Final = 2_000
"""Tokens of messages in the first piece for a model that has not yet written a good summary."""
_ANSWER_OVERHEAD: Final = 400
"""Tokens of an answer beside twice those of its lines."""
_JOIN_TOKENS: Final = 8
"""Tokens that joining the parts of a block may add."""
_OMISSION_TOKENS: Final = 12
"""Tokens of the line that counts omitted references."""


class SummaryRejected(SummaryFailed):
    """Model calls that gave no usable summary. `input` and `output` are their tokens, `answers` their number."""

    def __init__(self, message: str, *, input: int = 0, output: int = 0, answers: int = 0) -> None:
        super().__init__(message)
        self.input, self.output, self.answers = input, output, answers


class SummaryTask(StructWithHiddenFields, frozen=True):
    """The input of a summary.

    `sources` are the messages to summarize, in order, as the client sent them; `remaining_messages` stay in the window.
    `others` are the users' messages that are not summarized: remaining ones, and those that other summaries cover.
    `first_index` is the client's index of the first summarized message. `prior_narrative` is a model's earlier text
    about the messages from there to before `prior_until`, or empty. `reference_lines` describe artifacts at the end of
    the block. `artifacts` are the archived ranges of the summarized messages.
    `budget` limits the whole block, in tokens of `count_tokens`. `task_message` is the user's message that the agent
    works on, if it is not a source; it may be cited. `instructions` are the user's own for a model's summary.
    `earlier_messages` are the user's from before the client compacted the conversation itself: their standing
    instructions are listed, with the number of the first source.
    """

    hidden_fields = frozenset(
        {
            "sources",
            "remaining_messages",
            "count_tokens",
            "prior_narrative",
            "reference_lines",
            "others",
            "task_message",
            "instructions",
            "earlier_messages",
        }
    )

    kind: CompactionKind
    sources: tuple[SourceMessage, ...]
    remaining_messages: tuple[Message, ...]
    budget: int
    count_tokens: Callable[[str], int]
    prior_narrative: str = ""
    prior_until: int = 0
    first_index: int = 0
    reference_lines: tuple[str, ...] = ()
    others: tuple[SourceMessage, ...] = ()
    artifacts: tuple[ArchivedRange, ...] = ()
    summary_caller: SummaryCaller | None = None
    task_message: SourceMessage | None = None
    instructions: str = ""
    earlier_messages: tuple[Message, ...] = ()

    @property
    def sources_with_earlier(self) -> tuple[SourceMessage, ...]:
        """The sources, and before them the earlier messages."""
        first = self.sources[0].index if self.sources else 0
        return (*(SourceMessage(first, message) for message in self.earlier_messages), *self.sources)

    def artifact(self, index: int) -> str:
        """Returns the id of the artifact that contains a message, or an empty string."""
        return next((each.artifact_id for each in self.artifacts if each.first <= index <= each.last), "")


class Summary(StructWithHiddenFields, frozen=True):
    """The complete text of a block, and its origin.

    `narrative` is a model's checked text, without extracted lines, about the client's messages from `narrative_start`
    to before `narrative_end`. `writer` is `extractive` or the model's name, `input` and `output` are its tokens.
    `dropped_lines` are the rejected lines with reasons; they quote messages, so they are not for logs. `findings` are
    facts from tool results, each with the index of its message.
    """

    hidden_fields = frozenset({"text", "narrative", "dropped_lines", "findings"})

    text: str
    narrative: str = ""
    narrative_end: int = 0
    writer: str = "extractive"
    input: int = 0
    output: int = 0
    dropped_lines: tuple[str, ...] = ()
    findings: tuple[tuple[int, str], ...] = ()
    narrative_start: int = 0


class _SummaryJob(msgspec.Struct, frozen=True):
    """The prepared input of the model calls for one summary."""

    task: SummaryTask
    summary_caller: SummaryCaller
    max_narrative_tokens: int
    evidence: Evidence
    pieces: tuple[TranscriptPiece, ...]
    is_trial: bool = False
    """Whether the first piece tests if the model can write a summary."""

    @property
    def max_answer_tokens(self) -> int:
        """The limit of an answer in tokens: the lines, and the JSON around them."""
        return self.max_narrative_tokens * 2 + _ANSWER_OVERHEAD


class _InstructionSection(msgspec.Struct, frozen=True):
    """The section of standing instructions, the lines that nothing else may repeat, and the outdated instructions.

    `has_all_rules`, `has_all_facts`: all standing instructions have room; and so have the facts.
    """

    text: str = ""
    known_lines: frozenset[str] = frozenset()
    outdated: tuple[OutdatedInstruction, ...] = ()
    has_all_rules: bool = True
    has_all_facts: bool = True


class _ModelCost:
    """The cost of the model calls so far."""

    def __init__(self) -> None:
        self.input = self.output = self.answers = 0
        self.model = ""

    def add(self, cost: SummaryResponse | SummaryRejected) -> None:
        self.input += cost.input
        self.output += cost.output
        self.answers += cost.answers if isinstance(cost, SummaryRejected) else 1


class SummaryAuthor:
    """Writes summaries. Has no state of its own; safe to use from several threads."""

    def __init__(
        self, summarizer: Summarizer | None, extractor: ExtractiveWriter, tasks: Tasks, prompts: Prompts
    ) -> None:
        self._summarizer = summarizer
        self._extractor = extractor
        self._tasks = tasks
        self._prompts = prompts

    @property
    def has_model(self) -> bool:
        """Whether a model is configured."""
        return self._summarizer is not None

    def write_extractive(self, task: SummaryTask) -> Summary:
        """Writes a block without a model, with the earlier narrative. Never fails. CPU work: run it in a thread."""
        narrative = _clip_lines(task.prior_narrative, int(task.budget * NARRATIVE_SHARE), task.count_tokens)
        summary = self._compose(task, Summary("", narrative))
        return replace(
            summary,
            narrative=task.prior_narrative,
            narrative_end=task.prior_until if task.prior_narrative else 0,
            narrative_start=task.first_index,
        )

    async def write(
        self, task: SummaryTask, on_partial: Callable[[Summary], None] | None = None, *, is_trial: bool = False
    ) -> Summary:
        """Writes a block with a model's narrative, checked, and repaired once if a check fails.

        A transcript that is too long for the model goes in pieces. After each piece `on_partial` gets the narrative so
        far (without a block text), which stays valid if the rest fails. `is_trial`: the model has not succeeded yet.
        Then the first piece is short, and an answer to it without the requested JSON is not repaired.

        Raises SummaryFailed if there is no model, nothing new to summarize, or an error, and SummaryRejected if model
        calls failed and cost tokens. The caller sets the time limit.
        """
        summarizer, caller = self._summarizer, task.summary_caller
        if summarizer is None or caller is None:
            raise SummaryFailed("no model is configured to write summaries")
        job = await self._tasks.offload(self._prepare_job, task, caller, summarizer.limits(caller), is_trial)
        cost, dropped_lines = _ModelCost(), list[str]()
        summary = Summary("", task.prior_narrative, task.prior_until, narrative_start=task.first_index)
        try:
            for piece in job.pieces:
                text = render_transcript(
                    piece,
                    max_tokens=job.max_narrative_tokens,
                    prior_narrative=summary.narrative,
                    prior_until=summary.narrative_end,
                    task_message=task.task_message,
                )
                checked = await self._narrate_piece(summarizer, job, piece, text, cost)
                dropped_lines += checked.dropped_lines
                summary = Summary(
                    text="",
                    narrative=checked.text,
                    narrative_end=piece[-1].index + 1,
                    narrative_start=task.first_index,
                    writer=cost.model,
                    input=cost.input,
                    output=cost.output,
                    dropped_lines=tuple(dropped_lines),
                    findings=_collect_findings(checked, task.kind),
                )
                if on_partial is not None:
                    on_partial(summary)
        except SummaryFailed as error:
            raise SummaryRejected(error.message, input=cost.input, output=cost.output, answers=cost.answers) from error
        return await self._tasks.offload(self._compose, task, summary)

    def _prepare_job(
        self, task: SummaryTask, summary_caller: SummaryCaller, limits: SummaryLimits, is_trial: bool
    ) -> _SummaryJob:
        """Prepares the model calls; CPU work. Raises SummaryFailed for lack of space or of new messages."""
        limit = min(int(task.budget * NARRATIVE_SHARE), (limits.output - _ANSWER_OVERHEAD) // 2)
        if limit < MIN_NARRATIVE_TOKENS:
            raise SummaryFailed(
                f"a summary of {task.budget} tokens, or an answer of at most {limits.output}, is too short for a "
                "model's text"
            )
        new_sources = [source for source in task.sources if source.index >= task.prior_until]
        if not new_sources:
            raise SummaryFailed("everything is summarized already")
        evidence = gather_evidence(task.sources, task.remaining_messages, task.prior_narrative, task.task_message)
        evidence = replace(
            evidence, standing=self._extractor.find_standing_instructions(task.sources_with_earlier, (), task.others)
        )
        job = _SummaryJob(task, summary_caller, limit, evidence, ())
        # The tokens may be another model's, and the text of a repair must fit, too.
        fixed_tokens = (
            task.count_tokens(self._prompts.instructions_for(task.kind, task.instructions))
            + max(limit, task.count_tokens(task.prior_narrative))
            + job.max_answer_tokens
        )
        fixed_tokens += 800 + (
            task.count_tokens(render_transcript((), max_tokens=limit, task_message=task.task_message))
            if task.task_message is not None
            else 0
        )
        free_tokens = int(limits.input * 0.95) - fixed_tokens
        if free_tokens < 500:
            raise SummaryFailed("the window of the model that writes summaries is too small")
        pieces = split_into_pieces(new_sources, free_tokens, task.count_tokens, TRIAL_TOKENS if is_trial else 0)
        return replace(job, pieces=tuple(pieces), is_trial=is_trial)

    async def _narrate_piece(
        self, summarizer: Summarizer, job: _SummaryJob, piece: TranscriptPiece, text: str, cost: _ModelCost
    ) -> CheckedSummary:
        """Asks the model about one piece, checks the answer, and asks once more if a check fails."""
        instructions = self._prompts.instructions_for(job.task.kind, job.task.instructions)
        schema = answer_schema(job.task.kind)
        problem, prompt, usable = "", text, CheckedSummary(())
        for attempt in range(2):
            try:
                reply = await summarizer.write(
                    SummaryRequest(instructions, prompt, job.max_answer_tokens, schema), job.summary_caller
                )
            except SummaryRejected as error:
                cost.add(error)
                raise
            cost.add(reply)
            cost.model = reply.model or cost.model
            checked, is_readable = await self._tasks.offload(_check_answer, reply.text, job, piece[-1].index)
            if not checked.problem:
                return checked
            problem = checked.problem
            if checked.is_usable and len(checked.lines) > len(usable.lines):
                usable = checked
            if not attempt and job.is_trial and piece is job.pieces[0] and not is_readable:
                # A model that does not write the JSON at all seldom does the second time, at the same cost.
                raise SummaryFailed(f"the model's answer is not a summary: {problem}")
            answer = cut_middle(reply.text, job.max_answer_tokens * 3)
            prompt = render_repair(text, self._prompts, answer, [problem, *checked.dropped_lines])
        if usable.lines:
            return usable
        raise SummaryFailed(f"the model's summary failed the checks twice: {problem}")

    def _compose(self, task: SummaryTask, summary: Summary) -> Summary:
        """Composes the block's text: label, instructions, narrative, extracted lines, references. Never fails."""
        if not task.sources:
            return summary
        head = render_label(task.kind, task.sources[0].index, task.sources[-1].index)
        section, dropped_lines = _InstructionSection(), summary.dropped_lines
        standing = StandingInstructions()
        extractor = self._extractor.for_one_summary()
        try:
            standing = extractor.find_standing_instructions(
                task.sources_with_earlier, task.remaining_messages, task.others
            )
        except Exception as error:
            # A compaction must not fail because of the summary.
            dropped_lines = (*dropped_lines, f"no instructions could be extracted: {type(error).__name__}")
        block_tokens = task.budget - task.count_tokens(head) - _JOIN_TOKENS
        rules = [each for each in standing.cited if each.instruction.is_rule]
        max_rule_tokens = int(block_tokens * MAX_INSTRUCTION_SHARE)
        rule_tokens = task.count_tokens(render_instructions(rules, max_rule_tokens, task.count_tokens)[0])
        references = _fit_references(
            task.reference_lines,
            min(int(task.budget * REFERENCE_SHARE), block_tokens - rule_tokens - _OMISSION_TOKENS),
            task.count_tokens,
        )
        available_tokens = task.budget - task.count_tokens(render_block(head, "", "", "", references)) - _JOIN_TOKENS
        section = _write_instructions(extractor, standing, task, summary, available_tokens, references)
        available_tokens -= task.count_tokens(section.text)
        narrative = _clip_lines(
            _remove_outdated_lines(summary.narrative, section.outdated), max(0, available_tokens), task.count_tokens
        )
        available_tokens -= task.count_tokens(narrative)
        try:
            extract = _write_extract(extractor, task, narrative, available_tokens, section)
        except Exception as error:
            extract, dropped_lines = "", (*dropped_lines, f"nothing could be extracted: {type(error).__name__}")
        extract = _clip_lines(extract, max(0, available_tokens), task.count_tokens)
        if not extract and not narrative and not section.text:
            extract = _describe_message_kinds(task.sources)
        return replace(
            summary, text=render_block(head, section.text, narrative, extract, references), dropped_lines=dropped_lines
        )


def _write_instructions(
    extractor: ExtractiveWriter,
    standing: StandingInstructions,
    task: SummaryTask,
    summary: Summary,
    available_tokens: int,
    references: Sequence[str],
) -> _InstructionSection:
    """Writes the sections of standing instructions, facts and promises within `available_tokens` tokens.

    They have at most `MAX_INSTRUCTION_SHARE`, and what other lines leave. Facts and promises have at most
    `OTHER_SHARE`, and beside a narrative what that leaves, if it is more.
    """
    instructions = [each for each in standing.in_order() if each.instruction.is_listed]
    wanted_lines = {each.instruction.text for each in instructions}
    known_lines = frozenset(wanted_lines.union(instruction.text for _, instruction in standing.outdated))
    other_tokens = int(available_tokens * OTHER_SHARE)
    if summary.narrative:
        other_tokens = max(other_tokens, available_tokens - task.count_tokens(summary.narrative))
    max_tokens = max(int(available_tokens * MAX_INSTRUCTION_SHARE), min(available_tokens, other_tokens))

    def unlisted_artifact(index: int) -> str:
        artifact = task.artifact(index)
        return "" if any(artifact in line for line in references) else artifact

    def render(tokens: int, other_tokens: int) -> tuple[_InstructionSection, frozenset[str]]:
        text, listed_lines = render_instructions(
            instructions, tokens, task.count_tokens, unlisted_artifact, other_budget=other_tokens
        )
        omitted_ranks = {each.instruction.rank for each in instructions if each.instruction.text not in listed_lines}
        has_all_facts = max(omitted_ranks, default=0) < FACT
        section = _InstructionSection(text, known_lines, standing.outdated, RULE not in omitted_ranks, has_all_facts)
        return section, listed_lines

    section, listed_lines = render(max_tokens, other_tokens)
    if summary.narrative or listed_lines.issuperset(wanted_lines):
        return section
    other_lines = _write_extract(extractor, task, "", available_tokens - task.count_tokens(section.text), section)
    unused_tokens = available_tokens - task.count_tokens(f"{section.text}\n{other_lines}")
    return render(max_tokens + unused_tokens, other_tokens + unused_tokens)[0] if unused_tokens > 0 else section


def _write_extract(
    extractor: ExtractiveWriter, task: SummaryTask, narrative: str, budget: int, section: _InstructionSection
) -> str:
    return extractor.write(
        task.sources,
        remaining_messages=_visible_messages(task, narrative),
        budget=budget,
        count=task.count_tokens,
        kind=task.kind,
        known_lines=section.known_lines,
        # A user's other sentences come after the facts, and the assistant's after the rules.
        has_users_texts=section.has_all_facts,
        only_work=not section.has_all_rules,
    )


def _remove_outdated_lines(narrative: str, outdated: tuple[OutdatedInstruction, ...]) -> str:
    """Removes the lines that repeat outdated instructions; they were right when they were written."""
    if not outdated or not narrative:
        return narrative
    by_index: dict[int, list[Instruction]] = {}
    for index, instruction in outdated:
        by_index.setdefault(index, []).append(instruction)
    return "\n".join(
        line
        for line in narrative.split("\n")
        if not any(states_instruction(line, each) for index in find_citations(line) for each in by_index.get(index, ()))
    )


def _check_answer(answer: str, job: _SummaryJob, last_index: int) -> tuple[CheckedSummary, bool]:
    """Checks an answer. Also returns whether it has the requested form."""
    try:
        lines = decode_answer(answer, job.task.kind)
    except ValueError as error:
        return CheckedSummary((), problem=str(error)), False
    return check(
        lines,
        job.task.kind,
        job.evidence,
        limit=job.max_narrative_tokens,
        count=job.task.count_tokens,
        last_index=last_index,
    ), True


def _visible_messages(task: SummaryTask, narrative: str) -> tuple[Message, ...]:
    """Returns the texts that extracted lines must not repeat: the remaining messages and the narrative."""
    if not narrative:
        return task.remaining_messages
    key = hashlib.blake2b(narrative.encode("utf-8", "replace"), digest_size=32).digest()
    return (*task.remaining_messages, Message(key, "user", (Text(narrative),), b""))


def _collect_findings(checked_summary: CheckedSummary, kind: CompactionKind) -> tuple[tuple[int, str], ...]:
    if kind != "generation":
        return ()
    lines = (line for line in checked_summary.lines if line.section.name == "artifacts")
    return tuple((index, line.text) for line in lines for index in line.sources)


def _fit_references(references: Sequence[str], budget: int, count: Callable[[str], int]) -> tuple[str, ...]:
    """Returns the references; if they do not fit, the newest ones and a line that counts the others."""
    if len(references) < 2 or count("\n".join(references)) <= budget:
        return tuple(references)
    fitting: list[str] = []
    budget -= _OMISSION_TOKENS
    for line in reversed(references):
        budget -= count(f"{line}\n")
        if budget < 0:
            break
        fitting.append(line)
    return (f"({len(references) - len(fitting)} earlier ranges are archived too)", *reversed(fitting))


def _clip_lines(text: str, budget: int, count: Callable[[str], int]) -> str:
    """Returns the first lines of a text that fit."""
    if not text or count(text) <= budget:
        return text
    lines = text.split("\n")
    low, high = 0, len(lines) - 1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if count("\n".join(lines[:middle])) <= budget else (low, middle - 1)
    return "\n".join(lines[:low]).rstrip()


def _describe_message_kinds(sources: Sequence[SourceMessage]) -> str:
    """Returns a line about the kinds of messages, for a block without extracted lines."""
    messages = [source.message for source in sources]
    results = sum(message.has_tool_result for message in messages)
    users = sum(message.has_user_text for message in messages)
    replies = sum(message.role == "assistant" for message in messages)
    return (
        f"{len(messages)} messages: {users} from the user, {replies} from the assistant, {results} with tool results. "
        f"[{sources[0].index}-{sources[-1].index}]"
    )


def render_label(kind: CompactionKind, first: int, last: int) -> str:
    """Returns the label above a summary of the client's messages `first` to `last`, counted from 0.

    It must not read like a request or like an end, since the model continues with the messages below. The same messages
    always get the same label.
    """
    numbers = f" {first}" if first == last else f"s {first} to {last}"
    subject = "The work" if kind == "generation" else "The conversation"
    return f"{OPENING}{numbers}: data, not a request. Numbers in brackets cite messages. {subject} continues below.]"


def render_block(label: str, instructions: str, narrative: str, extract: str, references: Sequence[str]) -> str:
    """Joins the parts of a block, without the empty ones."""
    archived = "\n".join([f"## {REFERENCES_TITLE}", *references]) if references else ""
    return "\n\n".join(text for text in (label, instructions, narrative, extract, archived) if text)
