"""`memory_consolidate_draft`: drafts a summary of a topic from all of its memories, for the caller to improve.

A draft has four parts in present tense. Each line is a memory's own text, shortened, and cites its memories.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from heapq import nlargest
from itertools import chain, islice
from typing import Final

import msgspec

from accordion.memory.consolidation import FEWEST, summary_id
from accordion.memory.corpus import load_corpus, normalize_topic
from accordion.memory.self_contained import content_words, find_claims
from accordion.memory.sentences import normalize_words
from accordion.model.errors import BadRequest
from accordion.model.memories import Memory, MemoryStore
from accordion.model.ports import Tasks
from accordion.model.tenant import TenantScope

MOST: Final = 500
"""Tokens of a draft."""
_TARGET_TOKENS: Final = 470
PARTS: Final = ("What it is", "Present state and key decisions", "Solved problems", "Open questions")
_SHARES: Final = (0.25, 0.4, 0.25, 0.1)
_MAX_LINE_LENGTH: Final = 240
"""Characters of a line."""
_MAX_COMPARED_LINES: Final = 300
"""Lines that are searched for one that contains another memory's text."""
_MAX_CANDIDATES: Final = 100
"""Lines of each part that are considered: many more than fit."""
_MAX_CITED_IDS: Final = 3
"""Memories that one line cites, the newest."""
_LABELLED_QUOTATION: Final = re.compile(
    r'^(?P<label>[A-Z][^"`]{2,80}(?:`[^`]*`\.?[^"`]{0,60})?): "(?P<text>.*)"$', re.DOTALL
)
_ERROR: Final = re.compile(r"reported `([^`]*)`")
_MAX_ERROR_LENGTH: Final = 90
"""Characters of the error that a line begins with."""
_DEFINING_VERB: Final = re.compile(r"\b(?:is|are|means|consists? of|contains?|lives? in|serves?|uses?|runs? on)\b")
_PRESENT_FORMS: Final = {
    "decided": "decides", "chose": "chooses", "preferred": "prefers", "used": "uses", "was": "is", "were": "are",
    "had": "has", "kept": "keeps", "ran": "runs", "lived": "lives", "needed": "needs", "wanted": "wants",
    "switched": "switches", "moved": "moves", "replaced": "replaces", "depended": "depends", "required": "requires",
    "agreed": "agrees", "returned": "returns", "contained": "contains", "failed": "fails", "passed": "passes",
    "supported": "supports", "stored": "stores", "stated": "states", "said": "says", "asked": "asks", "told": "tells",
}  # fmt: skip
_PLURAL_SUBJECT: Final = re.compile(r"\b(?:I|we|you|they|[a-z]+s and [a-z]+|all|both)\s+$", re.IGNORECASE)
_PAST_VERB: Final = re.compile(rf"\b(?:{'|'.join(_PRESENT_FORMS)})\b(?! (?:by|in|under|at|on|as|with|for|inside)\b)")
"""Verbs in past tense. Before these prepositions, most are participles (`the keys stored under`)."""


class ConsolidationDraft(msgspec.Struct, frozen=True):
    """A draft of a summary.

    `count` is the number of the topic's memories, `sources` are the ids that its lines cite, `summary` is the id of the
    topic's present summary (to be read and extended), empty if there is none.
    """

    topic: str
    text: str
    tokens: int
    count: int
    sources: tuple[str, ...]
    summary: str = ""


class _DraftLine(msgspec.Struct, frozen=True):
    """A line of a draft with the ids of its memories, the newest first."""

    part: int
    text: str
    ids: tuple[str, ...]
    worth: float

    def __str__(self) -> str:
        return f"- {self.text} [{', '.join(self.ids[:_MAX_CITED_IDS])}]"


class DraftWriter(msgspec.Struct, frozen=True):
    """Writes drafts of summaries. `count` counts the tokens of a text."""

    memories: MemoryStore
    count: Callable[[str], int]
    tasks: Tasks

    async def draft(self, tenant: TenantScope, topic: str, *, project: str | None = None) -> ConsolidationDraft:
        """Writes a draft of 300 to 500 tokens, or fewer if the memories are short.

        Raises BadRequest if the topic has too few memories, and StoreUnavailable.
        """
        topic = normalize_topic(topic)
        corpus = await load_corpus(self.memories, tenant, topic, project)
        if len(corpus) < FEWEST:
            raise BadRequest(
                f"Topic {topic!r} has {len(corpus)} memories; a summary needs at least {FEWEST}. Read them instead.",
                code="too_few_memories",
                param="topic",
            )
        summary = (await self.memories.get(tenant, [summary_id(topic, project)]))[0]
        current_id = summary.id if summary is not None and summary.type == "summary" else ""
        return await self.tasks.offload(self._write_draft, topic, corpus, current_id)

    def _write_draft(self, topic: str, corpus: Sequence[Memory], current_id: str) -> ConsolidationDraft:
        """Writes a draft. Slow: up to a second for the largest topics."""
        selection = self._choose_lines(topic, _make_lines(topic, corpus))
        text = _render_draft(topic, selection)
        sources = tuple(dict.fromkeys(memory_id for line in selection for memory_id in line.ids[:_MAX_CITED_IDS]))
        return ConsolidationDraft(topic, text, self.count(text), len(corpus), sources, current_id)

    def _choose_lines(self, topic: str, lines: Sequence[_DraftLine]) -> list[_DraftLine]:
        """Chooses the best lines of each part within its share of the tokens, then the best of the rest."""
        available = _TARGET_TOKENS - self.count(_render_draft(topic, ()))
        part_budgets = [available * share for share in _SHARES]
        best_by_part = (
            nlargest(_MAX_CANDIDATES, [line for line in lines if line.part == part], key=_worth)
            for part in range(len(PARTS))
        )
        ranked_lines = sorted(chain.from_iterable(best_by_part), key=_worth, reverse=True)
        sizes = {id(line): self.count(f"{line}\n") for line in ranked_lines}
        selection: list[_DraftLine] = []
        for line in ranked_lines:
            if sizes[id(line)] <= part_budgets[line.part]:
                part_budgets[line.part] -= sizes[id(line)]
                selection.append(line)
        available -= sum(sizes[id(line)] for line in selection)
        for line in ranked_lines:
            if line not in selection and sizes[id(line)] <= available:
                available -= sizes[id(line)]
                selection.append(line)
        while selection and self.count(_render_draft(topic, selection)) > MOST:
            selection.pop()
        return selection


def _make_lines(topic: str, corpus: Sequence[Memory]) -> list[_DraftLine]:
    """Makes a line of each memory, and one of memories with the same text. `corpus` is newest first."""
    by_words: dict[str, _DraftLine] = {}
    for age, memory in enumerate(corpus):
        text, prefix = _draft_sentence(memory)
        words = normalize_words(text)
        if not words:
            continue
        known_words = (
            words
            if words in by_words
            else next((longer_words for longer_words in _newest_keys(by_words) if words in longer_words), None)
        )
        if known_words is not None:
            line = by_words[known_words]
            by_words[known_words] = _DraftLine(line.part, line.text, (*line.ids, memory.id), line.worth + 0.5)
            continue
        part = _find_part(topic, memory, text)
        worth = (
            1 / (1 + age / 20)
            + 0.2 * min(4, len(find_claims(text)))
            + 0.3 * (topic in text.lower())
            + 0.4 * (prefix != "")
        )
        by_words[words] = _DraftLine(part, f"{prefix}{text}", (memory.id,), worth)
    lines = list(by_words.values())
    if lines and all(line.part for line in lines):
        # No memory defines the topic, so the best statement takes that part.
        best = max((line for line in lines if line.part == 1), key=lambda line: line.worth, default=lines[0])
        lines[lines.index(best)] = _DraftLine(0, best.text, best.ids, best.worth)
    return lines


def _worth(line: _DraftLine) -> float:
    return line.worth


def _newest_keys(by_words: dict[str, _DraftLine]) -> Iterable[str]:
    return islice(reversed(by_words), _MAX_COMPARED_LINES)


def _draft_sentence(memory: Memory) -> tuple[str, str]:
    """Returns a memory's text, shortened and in present tense, and a prefix for its speaker if that matters."""
    match = _LABELLED_QUOTATION.match(memory.content)
    text = match["text"] if match is not None else memory.content
    label = match["label"] if match is not None else ""
    if "Reported by a tool" in label:
        return f'"{_shorten(text)}"', "A tool reports, unchecked: "
    if (error := _ERROR.search(label)) is not None:
        text = f"`{_shorten(error.group(1), _MAX_ERROR_LENGTH)}`: {text}"
    prefix = "The user: " if "user" in label.split("told by")[-1].lower() else ""
    return _to_present_tense(_shorten(text)), prefix


def _find_part(topic: str, memory: Memory, text: str) -> int:
    if memory.type == "question":
        return 3
    if memory.type == "solution":
        return 2
    if memory.type in {"decision", "preference"}:
        return 1
    words = set(content_words(topic))
    return 0 if _DEFINING_VERB.search(text) and words & set(content_words(text)) else 1


def _shorten(text: str, max_length: int = _MAX_LINE_LENGTH) -> str:
    """Returns a text on one line, cut between words if it is long."""
    line = " ".join(text.split())
    if len(line) <= max_length:
        return line
    end = line.rfind(" ", 0, max_length)
    return f"{line[: end if end > max_length // 2 else max_length].rstrip(' ,;:')} …"


def _to_present_tense(text: str) -> str:
    """Puts the first verb into present tense, if it is a common verb in past tense."""
    verb = _PAST_VERB.search(text)
    if verb is None or '"' in text[: verb.start()] or "`" in text[: verb.start()]:
        return text
    beginning = text[: verb.start()]
    if re.search(r"\b(?:is|are|was|were|be|been|being|has|have|had|it's|to|by)\s+(?:\w+ly\s+)?$", beginning):
        # A participle: the tense is in the word before it.
        return text
    present = _PRESENT_FORMS[verb.group()]
    if _PLURAL_SUBJECT.search(beginning) and present not in {"is", "are", "has"}:
        present = {"chooses": "choose", "switches": "switch", "passes": "pass"}.get(present, present.removesuffix("s"))
    elif _PLURAL_SUBJECT.search(beginning):
        present = {"has": "have", "is": "are"}.get(present, present)
    return f"{beginning}{present}{text[verb.end() :]}"


def _render_draft(topic: str, lines: Iterable[_DraftLine]) -> str:
    """Renders the four parts under their titles. A part without lines has a line that says this."""
    by_part: list[list[_DraftLine]] = [[] for _ in PARTS]
    for line in lines:
        by_part[line.part].append(line)
    rows = [f"# {topic}"]
    for title, part_lines in zip(PARTS, by_part, strict=True):
        rows += [f"## {title}", *(map(str, part_lines) if part_lines else ["(nothing is remembered)"])]
    return "\n".join(rows)
