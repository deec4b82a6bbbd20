"""Memory candidates that a model writes: a summary of a range, of which each line becomes a candidate.

The summary has the schema, the checks and the repair of compaction summaries (summaries/author.py), so that the
messages support each line. The section of a line decides the type of its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from accordion.features.memory.conversation.message_ranges import MessageRange
from accordion.features.memory.conversation.self_contained import is_self_contained
from accordion.features.memory.conversation.sentences import KnownText, own_parts
from accordion.features.memory.extraction.candidates import REPORTED, Kind, MemoryCandidate, is_safe
from accordion.model.ports import Summarizer, SummaryCaller, Tasks
from accordion.summaries.author import SummaryAuthor, SummaryRejected, SummaryTask
from accordion.summaries.extractive import ExtractiveWriter, SourceMessage
from accordion.summaries.prompts import Prompts
from accordion.summaries.schema import CONVERSATION_SECTIONS, find_citations, strip_citations

_BUDGET: Final = 4_000
"""Tokens of the whole block, of which the model's lines may take two fifths."""
_SELF_CONTAINED_RULE: Final = (
    "\nEach line is stored by itself and may be read years later, without the other lines and the messages. So each "
    'line names who, what and where: no "it", "this" or "above", no numbers of options or steps, no "today" or '
    '"yesterday".'
)
_FOCUS: Final = "\nThese topics matter most here: {}. Lines about them come first."
_KINDS: Final[dict[str, tuple[Kind, float]]] = {
    "secondary": ("preference", 5.0),
    "decisions": ("decision", 4.5),
    "solutions": ("solution", 4.0),
    "partial": ("question", 3.0),
    "next_steps": ("question", 2.0),
    "completed": ("fact", 2.5),
    "discoveries": ("fact", 2.5),
    "configuration": ("fact", 2.5),
    "issues": ("fact", 2.0),
    "important": ("fact", 2.0),
    "primary": ("fact", 2.0),
    "artifacts": ("fact", 1.5),
    "overview": ("fact", 1.5),
    "technologies": ("fact", 1.0),
    "state": ("fact", 1.0),
}
_LABELS: Final[dict[Kind, str]] = {
    "fact": "Stated in the conversation",
    "decision": "Decision",
    "preference": "User preference",
    "solution": "Solution",
    "question": "Open question",
}
_NAMES: Final = {section.label: section.name for section in CONVERSATION_SECTIONS}
_TOOL: Final = " (reported by a tool)"


class Narration(msgspec.Struct, frozen=True):
    """The candidates that a model wrote, its name, and its tokens."""

    candidates: list[MemoryCandidate]
    writer: str
    input: int
    output: int


class Narrator(msgspec.Struct, frozen=True):
    """Asks the configured model for candidates. `prompts` are those of summaries; `count` counts tokens."""

    summarizer: Summarizer
    summary_caller: SummaryCaller
    extractor: ExtractiveWriter
    tasks: Tasks
    prompts: Prompts
    count: Callable[[str], int]

    async def narrate(self, message_range: MessageRange, background: KnownText, focus: Sequence[str]) -> Narration:
        """Returns the candidates of a range that the model wrote and the messages support.

        Raises SummaryFailed, or SummaryRejected with the tokens that the model used.
        """
        extra_rules = _SELF_CONTAINED_RULE + (_FOCUS.format(", ".join(focus)) if focus else "")
        prompts = replace(self.prompts, rules=self.prompts.rules + extra_rules)
        author = SummaryAuthor(self.summarizer, self.extractor, self.tasks, prompts)
        task = SummaryTask(
            "conversation", _make_sources(message_range), (), _BUDGET, self.count, summary_caller=self.summary_caller
        )
        summary = await author.write(task)
        lines = (_make_candidate(line) for line in summary.narrative.splitlines())
        candidates = [each for each in lines if each is not None and not background.contains(each.text)]
        if not candidates:
            raise SummaryRejected("none of its statements can stand alone", input=summary.input, output=summary.output)
        return Narration(candidates, summary.writer, summary.input, summary.output)


def _make_sources(message_range: MessageRange) -> tuple[SourceMessage, ...]:
    """Returns the own parts of the range's messages, under the transcript's indexes."""
    messages = message_range.conversation.messages
    indexed = enumerate(zip(messages, own_parts(messages), strict=True), message_range.shift)
    return tuple(
        SourceMessage(position, replace(message, parts=parts))
        for position, (message, parts) in indexed
        if position >= message_range.first and parts
    )


def _make_candidate(line: str) -> MemoryCandidate | None:
    """Makes a candidate of a summary's line; None if it is not self-contained or useless later."""
    label, separator, text = strip_citations(line).partition(": ")
    is_report = label.endswith(_TOOL)
    kind, worth = _KINDS.get(_NAMES.get(label.removesuffix(_TOOL), ""), ("fact", 0.0))
    indexes = find_citations(line)
    if not separator or not worth or not indexes or not is_self_contained(text) or not is_safe(text):
        return None
    if is_report and kind in {"decision", "preference"}:
        return None
    candidate_label = REPORTED if is_report else _LABELS[kind]
    return MemoryCandidate(kind, text, candidate_label, min(indexes), max(indexes), worth)
