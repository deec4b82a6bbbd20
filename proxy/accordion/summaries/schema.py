"""The JSON schema of a model's summary, one for each kind of compaction, and the lines that it becomes.

Every entry is `{text, sources}`; `sources` are the client's indexes of the messages that support it. A summary is
stored and checked as lines, each with a label and its citations, so that a line can be dropped without harm to the
others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Final

import msgspec

from accordion.model.budget import CompactionKind

MAX_ANSWER_LENGTH: Final = 400_000
"""Characters. A longer answer is not parsed."""

_MAX_OBJECTS: Final = 50
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]+")
_CITED_AT_END = re.compile(r"(?:\s*\[\d+(?:\s*[-–,]\s*\d+)*\])+(?=\.?$)")

MessageIndex = Annotated[int, msgspec.Meta(ge=0, le=10_000_000)]
MessageIndexes = Annotated[tuple[MessageIndex, ...], msgspec.Meta(max_length=80)]
EntryText = Annotated[str, msgspec.Meta(min_length=1, max_length=800)]


class SummaryEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A statement and its source messages."""

    text: EntryText
    sources: MessageIndexes = ()


ShortList = Annotated[tuple[SummaryEntry, ...], msgspec.Meta(max_length=5)]
LongList = Annotated[tuple[SummaryEntry, ...], msgspec.Meta(max_length=25)]


class ArtifactEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An important file or tool result, and its relevance."""

    text: EntryText
    relevance: Annotated[str, msgspec.Meta(max_length=400)] = ""
    sources: MessageIndexes = ()


class ArtifactFindings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file or tool result of this task, with its findings."""

    text: EntryText
    sources: MessageIndexes = ()
    findings: Annotated[tuple[SummaryEntry, ...], msgspec.Meta(max_length=3)] = ()


class SummaryGoals(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The user's goals."""

    primary: LongList = ()
    secondary: LongList = ()


class SummaryOutcomes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The outcomes of the conversation."""

    completed: LongList = ()
    partial: LongList = ()
    discoveries: LongList = ()


class TechnicalNotes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Technologies, configuration, issues and solutions."""

    technologies: LongList = ()
    configuration: LongList = ()
    issues: LongList = ()
    solutions: LongList = ()


class ConversationFlow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The course of the conversation."""

    phases: LongList = ()
    decisions: LongList = ()
    shifts: LongList = ()


class Continuation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The information needed to continue."""

    state: LongList = ()
    next_steps: LongList = ()
    important: LongList = ()


class ConversationSummary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The summary of a history (conversation level)."""

    overview: ShortList
    goals: SummaryGoals = SummaryGoals()
    outcomes: SummaryOutcomes = SummaryOutcomes()
    technical: TechnicalNotes = TechnicalNotes()
    artifacts: Annotated[tuple[ArtifactEntry, ...], msgspec.Meta(max_length=25)] = ()
    flow: ConversationFlow = ConversationFlow()
    continuation: Continuation = Continuation()


class GenerationSummary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The summary of the work since the task (generation level)."""

    gist: ShortList
    intent: ShortList = ()
    constraints: ShortList = ()
    decisions: ShortList = ()
    open_questions: ShortList = ()
    next_steps: ShortList = ()
    artifacts: Annotated[tuple[ArtifactFindings, ...], msgspec.Meta(max_length=12)] = ()


SummaryDocument = ConversationSummary | GenerationSummary


class SummarySection(msgspec.Struct, frozen=True):
    """The label of the entries at `path`, and their treatment.

    Entries with the highest `rank` are dropped first. `is_user_claim`: they are about the user's wishes.
    `is_instruction`: the agent will act on them. `limits`: they repeat the user's instructions, which the block lists
    verbatim. `is_essential`: a summary needs at least one such entry.
    """

    path: str
    label: str
    rank: int
    is_user_claim: bool = False
    is_instruction: bool = False
    limits: bool = False
    is_essential: bool = False


CONVERSATION_SECTIONS: Final = (
    SummarySection("overview", "Overview", 0, is_essential=True),
    SummarySection("goals.primary", "Goal", 0, is_user_claim=True),
    SummarySection("goals.secondary", "Also wanted", 1, is_user_claim=True, limits=True),
    SummarySection("outcomes.completed", "Done", 1),
    SummarySection("outcomes.partial", "Partly done", 1),
    SummarySection("outcomes.discoveries", "Found", 2),
    SummarySection("technical.technologies", "Uses", 5),
    SummarySection("technical.configuration", "Configuration", 3),
    SummarySection("technical.issues", "Issue", 3),
    SummarySection("technical.solutions", "Solution", 3),
    SummarySection("artifacts", "Artifact", 4),
    SummarySection("flow.phases", "Phase", 7),
    SummarySection("flow.decisions", "Decision", 2, is_instruction=True),
    SummarySection("flow.shifts", "Topic shift", 6),
    SummarySection("continuation.state", "State", 0, is_essential=True),
    SummarySection("continuation.next_steps", "Next", 1, is_instruction=True),
    SummarySection("continuation.important", "Important", 1),
)
GENERATION_SECTIONS: Final = (
    SummarySection("gist", "Gist", 0, is_essential=True),
    SummarySection("intent", "Intent", 0, is_user_claim=True, is_essential=True),
    SummarySection("constraints", "Constraint", 1, limits=True),
    SummarySection("decisions", "Decision", 1, is_instruction=True),
    SummarySection("open_questions", "Open question", 2),
    SummarySection("next_steps", "Next", 1, is_instruction=True),
    SummarySection("artifacts", "Finding", 3),
)


class SummaryLine(msgspec.Struct, frozen=True):
    """A line of a summary. `sources` are sorted and distinct. `is_tool_report`: only tool results support it."""

    section: SummarySection
    text: str
    sources: tuple[int, ...]
    is_tool_report: bool = False

    def __str__(self) -> str:
        by = " (reported by a tool)" if self.is_tool_report else ""
        return f"{self.section.label}{by}: {self.text} {format_citations(self.sources)}"


def sections_for(kind: CompactionKind) -> tuple[SummarySection, ...]:
    """Returns the sections of a kind of summary, in order."""
    return CONVERSATION_SECTIONS if kind == "conversation" else GENERATION_SECTIONS


def decode_answer(answer: str, kind: CompactionKind) -> SummaryDocument:
    """Decodes a model's answer: a JSON object of the kind's schema, maybe in code fences or between other text.

    Raises ValueError with a message for the model.
    """
    schema: type[SummaryDocument] = ConversationSummary if kind == "conversation" else GenerationSummary
    if len(answer) > MAX_ANSWER_LENGTH:
        raise ValueError(f"the answer is too long: {len(answer):,} characters")
    problem, largest = "the answer contains no complete JSON object", len(answer) // 2
    for json_text in _find_json_objects(answer):
        try:
            return msgspec.json.decode(json_text.encode(), type=schema)
        except msgspec.ValidationError as error:
            # In a truncated object only inner entries can be parsed, and their errors are not the problem.
            if len(json_text) > largest:
                problem, largest = f"the JSON object does not have the required form: {error}", len(json_text)
        except (ValueError, RecursionError):
            continue
    raise ValueError(problem)


def build_lines(document: SummaryDocument, kind: CompactionKind) -> list[SummaryLine]:
    """Turns the entries into lines, in order, each with its text on one line and sorted sources."""
    lines: list[SummaryLine] = []
    for section in sections_for(kind):
        entries: object = document
        for name in section.path.split("."):
            entries = getattr(entries, name)
        for entry in entries if isinstance(entries, tuple) else ():
            lines.extend(
                SummaryLine(section, clean_text(text), tuple(sorted(set(sources))))
                for text, sources in _entry_texts(entry)
            )
    return lines


def render_lines(lines: Iterable[SummaryLine]) -> str:
    """Renders lines as text, each with its citations at the end."""
    return "\n".join(map(str, lines))


def format_citations(sources: Sequence[int]) -> str:
    """Formats citations: `[12]`, `[3, 12-14]`, with runs of three or more as ranges."""
    runs: list[list[int]] = []
    for index in sources:
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    texts = (f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)
    return f"[{', '.join(texts)}]"


def find_citations(text: str) -> frozenset[int]:
    """Returns the indexes of the messages that a rendered summary cites."""
    indexes: set[int] = set()
    for line in text.splitlines():
        position = line.rfind("[")
        content = line[position + 1 : -1] if position >= 0 and line.endswith("]") else ""
        for piece in content.split(",") if content else ():
            first, _, last = piece.strip().partition("-")
            if first.isdecimal() and (not last or last.isdecimal()):
                indexes.update(range(int(first), min(int(last or first), int(first) + 100_000) + 1))
    return frozenset(indexes)


def strip_citations(text: str) -> str:
    """Removes the citations from a rendered summary."""
    return "\n".join(_CITED_AT_END.sub("", line) for line in text.splitlines())


def clean_text(text: str) -> str:
    """Puts a text on one line, without control characters and without its own citations at the end."""
    return _CITED_AT_END.sub("", " ".join(_CONTROL.sub(" ", text).split())).strip()


def _entry_texts(entry: object) -> Iterator[tuple[str, tuple[int, ...]]]:
    if isinstance(entry, ArtifactEntry):
        yield f"{entry.text}: {entry.relevance}" if entry.relevance else entry.text, entry.sources
    elif isinstance(entry, ArtifactFindings):
        for finding in entry.findings:
            yield f"{entry.text}: {finding.text}", finding.sources or entry.sources
        if not entry.findings:
            yield entry.text, entry.sources
    elif isinstance(entry, SummaryEntry):
        yield entry.text, entry.sources


def _find_json_objects(answer: str) -> Iterator[str]:
    """Yields the outermost JSON objects in a text."""
    decoder, position = json.JSONDecoder(), 0
    for _ in range(_MAX_OBJECTS):
        position = answer.find("{", position)
        if position < 0:
            return
        try:
            _, end = decoder.raw_decode(answer, position)
        except (ValueError, RecursionError):
            position += 1
            continue
        yield answer[position:end]
        position = end
