"""Candidates that a model tells: the summary of a stretch, line by line, each line checked against its messages.

The summary is the one that folds use, with its schema, its checks and its repair (summaries/author.py). What a line
becomes is said by the section that it stands in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from accordion.core.ports import Tasks
from accordion.core.summarizing import Asker, Summarizer
from accordion.core.values import dataclass, replace
from accordion.memory.extraction import REPORTED, Candidate, Kind, safe
from accordion.memory.sentences import Background, own_parts
from accordion.memory.standing import stands
from accordion.memory.stretches import Stretch
from accordion.summaries.author import Author, SummaryRejected, SummaryTask
from accordion.summaries.extractive import Extractor, Source
from accordion.summaries.prompts import Prompts
from accordion.summaries.schema import CONVERSATION, cited, uncited

_BUDGET: Final = 4_000
"""Tokens of the whole block, of which the model's lines may take two fifths."""
_ALONE: Final = (
    "\nEach line is kept by itself and read years later, without the others and without the messages. So each line "
    "names who, what and where: no it, this or above, no numbers of options or steps, no today or yesterday."
)
_FOCUS: Final = "\nWhat matters most here are these topics: {}. Lines about them come first."
_KINDS: Final[dict[str, tuple[Kind, float]]] = {
    "goals.secondary": ("preference", 5.0),
    "flow.decisions": ("decision", 4.5),
    "technical.solutions": ("solution", 4.0),
    "outcomes.partial": ("question", 3.0),
    "continuation.next_steps": ("question", 2.0),
    "outcomes.completed": ("fact", 2.5),
    "outcomes.discoveries": ("fact", 2.5),
    "technical.configuration": ("fact", 2.5),
    "technical.issues": ("fact", 2.0),
    "continuation.important": ("fact", 2.0),
    "goals.primary": ("fact", 2.0),
    "artifacts": ("fact", 1.5),
    "overview": ("fact", 1.5),
    "technical.technologies": ("fact", 1.0),
    "continuation.state": ("fact", 1.0),
}
_TOLD: Final[dict[Kind, str]] = {
    "fact": "Told of the conversation",
    "decision": "Decision",
    "preference": "Wish of the user",
    "solution": "Solution",
    "question": "Open",
}
_OF: Final = {section.label: section.path for section in CONVERSATION}
_TOOL: Final = " (reported by a tool)"


@dataclass(frozen=True, slots=True)
class Narrated:
    """What a model told of a stretch, its name, and the tokens that it took."""

    candidates: list[Candidate]
    writer: str
    input: int
    output: int


@dataclass(frozen=True, slots=True)
class Narrator:
    """Asks the configured model, in the name of `asker`. `prompts` are those of summaries; `count` counts tokens."""

    summarizer: Summarizer
    asker: Asker
    extractor: Extractor
    tasks: Tasks
    prompts: Prompts
    count: Callable[[str], int]

    async def told(self, stretch: Stretch, background: Background, focus: Sequence[str]) -> Narrated:
        """What the model tells of a stretch and the messages bear out. Raises SummaryFailed, SummaryRejected where that
        cost something."""
        asked = _ALONE + (_FOCUS.format(", ".join(focus)) if focus else "")
        prompts = replace(self.prompts, rules=self.prompts.rules + asked)
        author = Author(self.summarizer, self.extractor, self.tasks, prompts)
        task = SummaryTask("conversation", _sources(stretch), (), _BUDGET, self.count, asker=self.asker)
        summary = await author.write(task)
        lines = (_candidate(line) for line in summary.narrative.splitlines())
        found = [each for each in lines if each is not None and not background.holds(each.text)]
        if not found:
            raise SummaryRejected("none of its statements can stand alone", input=summary.input, output=summary.output)
        return Narrated(found, summary.writer, summary.input, summary.output)


def _sources(stretch: Stretch) -> tuple[Source, ...]:
    """What the speakers and tools of the stretch say themselves, under the transcript's indexes."""
    messages = stretch.conversation.messages
    indexed = enumerate(zip(messages, own_parts(messages), strict=True), stretch.shift)
    return tuple(
        Source(at, replace(message, parts=parts)) for at, (message, parts) in indexed if at >= stretch.first and parts
    )


def _candidate(line: str) -> Candidate | None:
    """A line of a checked summary; None where it is of no use beyond its conversation, or cannot stand alone."""
    label, found, text = uncited(line).partition(": ")
    reported = label.endswith(_TOOL)
    kind, worth = _KINDS.get(_OF.get(label.removesuffix(_TOOL), ""), ("fact", 0.0))
    indexes = cited(line)
    if not found or not worth or not indexes or not stands(text) or not safe(text):
        return None
    if reported and kind in {"decision", "preference"}:
        return None
    told = REPORTED if reported else _TOLD[kind]
    return Candidate(kind, text, told, min(indexes), max(indexes), worth)
