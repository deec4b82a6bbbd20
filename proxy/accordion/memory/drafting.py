"""`memory_consolidate_draft`: a summary of a topic, laid out from all of its memories, to be read and bettered.

Four parts in present tense; each line names the memories that it is of. Nothing is made up: a line is a memory's own
text, shortened.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from heapq import nlargest
from itertools import chain, islice
from typing import Final

from accordion.core.errors import BadRequest
from accordion.core.memories import Memories, Memory
from accordion.core.ports import Tasks
from accordion.core.values import dataclass
from accordion.memory.consolidate import FEWEST, summary_id
from accordion.memory.corpus import corpus, topic_of
from accordion.memory.sentences import folded
from accordion.memory.standing import claims, content

MOST: Final = 500
"""Tokens of a draft."""
_AIM: Final = 470
PARTS: Final = ("What it is", "Present state and key decisions", "Solved problems", "Open questions")
_SHARES: Final = (0.25, 0.4, 0.25, 0.1)
_LINE: Final = 240
"""Characters of a line."""
_LOOKS: Final = 300
"""Lines that are looked through for one that says what another memory says, and more."""
_BEST: Final = 100
"""Lines of each part that are weighed: many more than there is room for."""
_NAMED: Final = 3
"""Memories that one line names, the newest."""
_LABELLED: Final = re.compile(r'^(?P<label>[A-Z][^"`]{2,80}(?:`[^`]*`\.?[^"`]{0,60})?): "(?P<text>.*)"$', re.DOTALL)
_ERROR: Final = re.compile(r"reported `([^`]*)`")
_PROBLEM: Final = 90
"""Characters of the error that a line begins with."""
_DEFINES: Final = re.compile(r"\b(?:is|are|means|consists? of|contains?|lives? in|serves?|uses?|runs? on)\b")
_PRESENT: Final = {
    "decided": "decides", "chose": "chooses", "preferred": "prefers", "used": "uses", "was": "is", "were": "are",
    "had": "has", "kept": "keeps", "ran": "runs", "lived": "lives", "needed": "needs", "wanted": "wants",
    "switched": "switches", "moved": "moves", "replaced": "replaces", "depended": "depends", "required": "requires",
    "agreed": "agrees", "returned": "returns", "contained": "contains", "failed": "fails", "passed": "passes",
    "supported": "supports", "stored": "stores", "stated": "states", "said": "says", "asked": "asks", "told": "tells",
}  # fmt: skip
_PLURAL: Final = re.compile(r"\b(?:I|we|you|they|[a-z]+s and [a-z]+|all|both)\s+$", re.IGNORECASE)
_PAST: Final = re.compile(rf"\b(?:{'|'.join(_PRESENT)})\b(?! (?:by|in|under|at|on|as|with|for|inside)\b)")
"""Before these words most are participles (`the keys stored under`)."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A draft. `count` are the topic's memories, `sources` those that its lines name, `summary` the id of the topic's
    present summary (to be read and extended), empty where there is none."""

    topic: str
    text: str
    tokens: int
    count: int
    sources: tuple[str, ...]
    summary: str = ""


@dataclass(frozen=True, slots=True)
class _Line:
    """A line in the making: the memories that say so, the newest first."""

    part: int
    text: str
    ids: tuple[str, ...]
    worth: float

    def __str__(self) -> str:
        return f"- {self.text} [{', '.join(self.ids[:_NAMED])}]"


@dataclass(frozen=True, slots=True)
class Drafting:
    """Writes drafts. `count` counts tokens of a text."""

    memories: Memories
    count: Callable[[str], int]
    tasks: Tasks

    async def draft(self, space: bytes, topic: str, *, project: str | None = None) -> Draft:
        """A draft of 300 to 500 tokens, less where the memories say less. Raises BadRequest where the topic has too few
        of them, and StoreUnavailable."""
        topic = topic_of(topic)
        held = await corpus(self.memories, space, topic, project)
        if len(held) < FEWEST:
            raise BadRequest(
                f"Topic {topic!r} has {len(held)} memories; a summary needs at least {FEWEST}. Read them instead.",
                code="too_few_memories",
                param="topic",
            )
        old = (await self.memories.get(space, [summary_id(topic, project)]))[0]
        current = old.id if old is not None and old.type == "summary" else ""
        return await self.tasks.offload(self._drafted, topic, held, current)

    def _drafted(self, topic: str, held: Sequence[Memory], current: str) -> Draft:
        """Slow: up to a second for the largest topics."""
        chosen = self._fitted(topic, _lines(topic, held))
        text = _text(topic, chosen)
        named = tuple(dict.fromkeys(name for line in chosen for name in line.ids[:_NAMED]))
        return Draft(topic, text, self.count(text), len(held), named, current)

    def _fitted(self, topic: str, lines: Sequence[_Line]) -> list[_Line]:
        """The best lines of each part within its share of the room; then the best of the rest."""
        room = _AIM - self.count(_text(topic, ()))
        left = [room * share for share in _SHARES]
        best = (
            nlargest(_BEST, [line for line in lines if line.part == part], key=_worth) for part in range(len(PARTS))
        )
        ranked = sorted(chain.from_iterable(best), key=_worth, reverse=True)
        sizes = {id(line): self.count(f"{line}\n") for line in ranked}
        chosen: list[_Line] = []
        for line in ranked:
            if sizes[id(line)] <= left[line.part]:
                left[line.part] -= sizes[id(line)]
                chosen.append(line)
        room -= sum(sizes[id(line)] for line in chosen)
        for line in ranked:
            if line not in chosen and sizes[id(line)] <= room:
                room -= sizes[id(line)]
                chosen.append(line)
        while chosen and self.count(_text(topic, chosen)) > MOST:
            chosen.pop()
        return chosen


def _lines(topic: str, held: Sequence[Memory]) -> list[_Line]:
    """A line for each memory, those that say the same as one. `held` are newest first."""
    found: dict[str, _Line] = {}
    for age, memory in enumerate(held):
        text, by = _told(memory)
        said = folded(text)
        if not said:
            continue
        same = said if said in found else next((other for other in _newest(found) if said in other), None)
        if same is not None:
            line = found[same]
            found[same] = _Line(line.part, line.text, (*line.ids, memory.id), line.worth + 0.5)
            continue
        part = _part(topic, memory, text)
        worth = 1 / (1 + age / 20) + 0.2 * min(4, len(claims(text))) + 0.3 * (topic in text.lower()) + 0.4 * (by != "")
        found[said] = _Line(part, f"{by}{text}", (memory.id,), worth)
    lines = list(found.values())
    if lines and all(line.part for line in lines):
        # Nothing says what the topic is: what matters most of what is stated stands there.
        best = max((line for line in lines if line.part == 1), key=lambda line: line.worth, default=lines[0])
        lines[lines.index(best)] = _Line(0, best.text, best.ids, best.worth)
    return lines


def _worth(line: _Line) -> float:
    return line.worth


def _newest(found: dict[str, _Line]) -> Iterable[str]:
    return islice(reversed(found), _LOOKS)


def _told(memory: Memory) -> tuple[str, str]:
    """What a memory says, shortened and in present tense, and who says it where that matters."""
    labelled = _LABELLED.match(memory.content)
    text = labelled["text"] if labelled is not None else memory.content
    label = labelled["label"] if labelled is not None else ""
    if "Reported by a tool" in label:
        return f'"{_short(text)}"', "A tool reports, unchecked: "
    if (error := _ERROR.search(label)) is not None:
        text = f"`{_short(error.group(1), _PROBLEM)}`: {text}"
    by = "The user: " if "user" in label.split("told by")[-1].lower() else ""
    return _present(_short(text)), by


def _part(topic: str, memory: Memory, text: str) -> int:
    if memory.type == "question":
        return 3
    if memory.type == "solution":
        return 2
    if memory.type in {"decision", "preference"}:
        return 1
    words = set(content(topic))
    return 0 if _DEFINES.search(text) and words & set(content(text)) else 1


def _short(text: str, most: int = _LINE) -> str:
    """On one line, cut at a word where it is long."""
    line = " ".join(text.split())
    if len(line) <= most:
        return line
    end = line.rfind(" ", 0, most)
    return f"{line[: end if end > most // 2 else most].rstrip(' ,;:')} …"


def _present(text: str) -> str:
    """The first verb in present tense, where it is one of those that stories are told with."""
    found = _PAST.search(text)
    if found is None or '"' in text[: found.start()] or "`" in text[: found.start()]:
        return text
    before = text[: found.start()]
    if re.search(r"\b(?:is|are|was|were|be|been|being|has|have|had|it's|to|by)\s+(?:\w+ly\s+)?$", before):
        # A participle: the tense is in the word before it.
        return text
    now = _PRESENT[found.group()]
    if _PLURAL.search(before) and now not in {"is", "are", "has"}:
        now = {"chooses": "choose", "switches": "switch", "passes": "pass"}.get(now, now.removesuffix("s"))
    elif _PLURAL.search(before):
        now = {"has": "have", "is": "are"}.get(now, now)
    return f"{before}{now}{text[found.end() :]}"


def _text(topic: str, lines: Iterable[_Line]) -> str:
    """The four parts under their titles; one that has no line says so."""
    by_part: list[list[_Line]] = [[] for _ in PARTS]
    for line in lines:
        by_part[line.part].append(line)
    out = [f"# {topic}"]
    for title, found in zip(PARTS, by_part, strict=True):
        out += [f"## {title}", *(map(str, found) if found else ["(nothing is remembered)"])]
    return "\n".join(out)
