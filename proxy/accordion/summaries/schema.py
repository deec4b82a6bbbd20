"""What a model's summary must hold: one schema for each kind of fold, read strictly, and the lines that it becomes.

Every entry is `{text, sources}`; `sources` are the client's indexes of the messages that say so. A summary is kept and
checked as lines, each with a label and its citations, so that a line can be left out without harm to the others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Final

import msgspec

from accordion.core.plan import Kind
from accordion.core.values import dataclass

LONGEST_ANSWER: Final = 400_000
"""Characters. What is longer is not looked into."""

_STARTS: Final = 50
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]+")
_CITED_AT_END = re.compile(r"(?:\s*\[\d+(?:\s*[-–,]\s*\d+)*\])+(?=\.?$)")

Index = Annotated[int, msgspec.Meta(ge=0, le=10_000_000)]
Sources = Annotated[tuple[Index, ...], msgspec.Meta(max_length=80)]
Words = Annotated[str, msgspec.Meta(min_length=1, max_length=800)]


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One thing that is said, and the messages that it is taken from."""

    text: Words
    sources: Sources = ()


Few = Annotated[tuple[Entry, ...], msgspec.Meta(max_length=5)]
Many = Annotated[tuple[Entry, ...], msgspec.Meta(max_length=25)]


class Artifact(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file or a tool's result that matters, and why."""

    text: Words
    relevance: Annotated[str, msgspec.Meta(max_length=400)] = ""
    sources: Sources = ()


class Finding(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file or a tool's result of this task, with what was found in it."""

    text: Words
    sources: Sources = ()
    findings: Annotated[tuple[Entry, ...], msgspec.Meta(max_length=3)] = ()


class Goals(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the user wants."""

    primary: Many = ()
    secondary: Many = ()


class Outcomes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What came of it."""

    completed: Many = ()
    partial: Many = ()
    discoveries: Many = ()


class Technical(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What it is done with, what stood in the way, and what helped."""

    technologies: Many = ()
    configuration: Many = ()
    issues: Many = ()
    solutions: Many = ()


class Flow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the conversation went."""

    phases: Many = ()
    decisions: Many = ()
    shifts: Many = ()


class Continuation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is needed to go on."""

    state: Many = ()
    next_steps: Many = ()
    important: Many = ()


class ConversationSummary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The record of a history."""

    overview: Few
    goals: Goals = Goals()
    outcomes: Outcomes = Outcomes()
    technical: Technical = Technical()
    artifacts: Annotated[tuple[Artifact, ...], msgspec.Meta(max_length=25)] = ()
    flow: Flow = Flow()
    continuation: Continuation = Continuation()


class GenerationSummary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The record of what was done since the task."""

    gist: Few
    intent: Few = ()
    constraints: Few = ()
    decisions: Few = ()
    open_questions: Few = ()
    next_steps: Few = ()
    artifacts: Annotated[tuple[Finding, ...], msgspec.Meta(max_length=12)] = ()


Document = ConversationSummary | GenerationSummary


@dataclass(frozen=True, slots=True)
class Section:
    """How the entries at `path` read, and how they are treated.

    `rank` says what goes first where room is short (the highest). `user`: they say what the user wants. `orders`: the
    agent will act on them. `limits`: they say what the user's instructions say, which are listed word for word.
    `core`: a summary is none without any of these.
    """

    path: str
    label: str
    rank: int
    user: bool = False
    orders: bool = False
    limits: bool = False
    core: bool = False


CONVERSATION: Final = (
    Section("overview", "Overview", 0, core=True),
    Section("goals.primary", "Goal", 0, user=True),
    Section("goals.secondary", "Also wanted", 1, user=True, limits=True),
    Section("outcomes.completed", "Done", 1),
    Section("outcomes.partial", "Partly done", 1),
    Section("outcomes.discoveries", "Found", 2),
    Section("technical.technologies", "Uses", 5),
    Section("technical.configuration", "Configuration", 3),
    Section("technical.issues", "Issue", 3),
    Section("technical.solutions", "Solution", 3),
    Section("artifacts", "Artifact", 4),
    Section("flow.phases", "Phase", 7),
    Section("flow.decisions", "Decision", 2, orders=True),
    Section("flow.shifts", "Topic shift", 6),
    Section("continuation.state", "State", 0, core=True),
    Section("continuation.next_steps", "Next", 1, orders=True),
    Section("continuation.important", "Important", 1),
)
GENERATION: Final = (
    Section("gist", "Gist", 0, core=True),
    Section("intent", "Intent", 0, user=True, core=True),
    Section("constraints", "Constraint", 1, limits=True),
    Section("decisions", "Decision", 1, orders=True),
    Section("open_questions", "Open question", 2),
    Section("next_steps", "Next", 1, orders=True),
    Section("artifacts", "Finding", 3),
)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a summary. `sources` are sorted and distinct. `reported`: only tools say so."""

    section: Section
    text: str
    sources: tuple[int, ...]
    reported: bool = False

    def __str__(self) -> str:
        by = " (reported by a tool)" if self.reported else ""
        return f"{self.section.label}{by}: {self.text} {citations(self.sources)}"


def sections(kind: Kind) -> tuple[Section, ...]:
    """The sections of a kind of summary, in the order in which they read."""
    return CONVERSATION if kind == "conversation" else GENERATION


def decode(answer: str, kind: Kind) -> Document:
    """Reads a model's answer: one JSON object of the kind's schema, in code fences or between other words or not.

    Raises ValueError with what is wrong, in words that the model can act on.
    """
    schema: type[Document] = ConversationSummary if kind == "conversation" else GenerationSummary
    if len(answer) > LONGEST_ANSWER:
        raise ValueError(f"the answer has {len(answer):,} characters")
    problem, largest = "the answer holds no complete JSON object", len(answer) // 2
    for found in _objects(answer):
        try:
            return msgspec.json.decode(found.encode(), type=schema)
        except msgspec.ValidationError as error:
            # Of an object that is cut short only entries within can be read, and they are not what is wrong.
            if len(found) > largest:
                problem, largest = f"the JSON object does not fit: {error}", len(found)
        except (ValueError, RecursionError):
            continue
    raise ValueError(problem)


def lines(document: Document, kind: Kind) -> list[Line]:
    """The entries as lines, in order; text on one line, sources sorted."""
    found: list[Line] = []
    for section in sections(kind):
        held: object = document
        for name in section.path.split("."):
            held = getattr(held, name)
        for entry in held if isinstance(held, tuple) else ():
            found.extend(Line(section, tidy(text), tuple(sorted(set(sources)))) for text, sources in _said(entry))
    return found


def render(found: Iterable[Line]) -> str:
    """Compact text, a line each, every one ending in its citations."""
    return "\n".join(map(str, found))


def citations(sources: Sequence[int]) -> str:
    """`[12]`, `[3, 12-14]`: runs of three or more as ranges."""
    runs: list[list[int]] = []
    for index in sources:
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    texts = (f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)
    return f"[{', '.join(texts)}]"


def cited(text: str) -> frozenset[int]:
    """The messages that the lines of a rendered summary cite."""
    found: set[int] = set()
    for line in text.splitlines():
        at = line.rfind("[")
        inner = line[at + 1 : -1] if at >= 0 and line.endswith("]") else ""
        for piece in inner.split(",") if inner else ():
            first, _, last = piece.strip().partition("-")
            if first.isdecimal() and (not last or last.isdecimal()):
                found.update(range(int(first), min(int(last or first), int(first) + 100_000) + 1))
    return frozenset(found)


def uncited(text: str) -> str:
    """A rendered summary without its citations."""
    return "\n".join(_CITED_AT_END.sub("", line) for line in text.splitlines())


def tidy(text: str) -> str:
    """On one line, without control characters and without citations of its own at the end."""
    return _CITED_AT_END.sub("", " ".join(_CONTROL.sub(" ", text).split())).strip()


def _said(entry: object) -> Iterator[tuple[str, tuple[int, ...]]]:
    if isinstance(entry, Artifact):
        yield f"{entry.text}: {entry.relevance}" if entry.relevance else entry.text, entry.sources
    elif isinstance(entry, Finding):
        for finding in entry.findings:
            yield f"{entry.text}: {finding.text}", finding.sources or entry.sources
        if not entry.findings:
            yield entry.text, entry.sources
    elif isinstance(entry, Entry):
        yield entry.text, entry.sources


def _objects(answer: str) -> Iterator[str]:
    """Each JSON object that stands in a text, outermost ones only."""
    decoder, at = json.JSONDecoder(), 0
    for _ in range(_STARTS):
        at = answer.find("{", at)
        if at < 0:
            return
        try:
            _, end = decoder.raw_decode(answer, at)
        except (ValueError, RecursionError):
            at += 1
            continue
        yield answer[at:end]
        at = end
