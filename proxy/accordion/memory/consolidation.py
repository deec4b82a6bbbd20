"""The one active summary of a topic: `memory_consolidate` writes it, `memory_consolidate_draft` drafts a text for it.

The corpus of a topic are the memories that its summary is written from. The caller of `memory_consolidate` must have
read them. The rules are enforced for every caller: enough memories, enough text, and a proof of a deep search and of
full reads. A draft has four parts in present tense, for the caller to improve. Each of its lines is a memory's own
text, shortened, and cites its memories.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from heapq import nlargest
from itertools import chain, islice
from typing import Final

import msgspec
from msgspec.structs import replace

from accordion.memory.entries import (
    CONTENT_MOST,
    NAME_MOST,
    ConcurrentWrite,
    clean_name,
    finish_memory,
    make_memory_id,
)
from accordion.memory.reader import ReadProof, verify_tokens
from accordion.memory.self_contained import content_words, find_claims
from accordion.memory.sentences import normalize_words
from accordion.model.errors import BadRequest
from accordion.model.memories import SINGLE_TYPES, Conflict, Memory, MemoryChange, MemoryFilter, MemoryStore
from accordion.model.ports import Clock, Tasks
from accordion.model.tenant import TenantScope

_MAX_MEMORIES: Final = 20_000
"""Memories of one topic that are loaded."""
FEWEST: Final = 10
"""Memories that a topic needs for a summary."""
SHORTEST: Final = 200
"""Tokens that a summary needs."""
READS: Final = 20
"""Memories that must be read in full, or all if there are fewer."""
_MAX_LENGTH: Final = CONTENT_MOST - 400
"""Characters of a summary without its footer."""
_CITATION: Final = re.compile(r"\bmem-[0-9a-zA-Z-]{4,60}")
_FOOTER: Final = re.compile(r'\n+---\nWritten \d{4}-\d{2}-\d{2} from [\d,]+ memories on "[^\n]*"\.[ \t]*(?=\n|$)')
_WARNING: Final = re.compile(r"(?m)^\[?This summary may be out of date: [^\n]*(?:\n|$)")
"""The warning of a stale summary (search.py)."""
DRAFT_MOST: Final = 500
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


def _normalize_topic(topic: object) -> str:
    """Returns a topic in lower case, on one line. Raises BadRequest if it is invalid."""
    name = clean_name(topic).lower() if isinstance(topic, str) and len(topic) <= NAME_MOST else ""
    if not name:
        raise BadRequest(
            f"A topic must be a string of 1 to {NAME_MOST} characters.", code="invalid_topic", param="topic"
        )
    return name


def corpus_filter(topic: str, project: str | None) -> MemoryFilter:
    """Returns the filter of a topic's corpus, in all projects if `project` is None."""
    return MemoryFilter(types=SINGLE_TYPES, topics=(topic,), project=project)


async def load_corpus(memories: MemoryStore, tenant: TenantScope, topic: str, project: str | None) -> Sequence[Memory]:
    """Returns a topic's corpus, newest first, from one snapshot. Raises StoreUnavailable."""
    return (await memories.list_memories(tenant, corpus_filter(topic, project), limit=_MAX_MEMORIES)).memories


# -- writing a summary ------------------------------------------------------------------------------------------------


class ConsolidationResult(msgspec.Struct, frozen=True):
    """The active summary, the id of its archived predecessor (empty for none), and the summary's meaningful tokens."""

    summary: Memory
    archived: str = ""
    tokens: int = 0


class Consolidator:
    """Writes summaries of topics. `count` counts the tokens of a text."""

    def __init__(self, memories: MemoryStore, clock: Clock, count: Callable[[str], int]) -> None:
        self._memories, self._clock, self._count = memories, clock, count

    async def consolidate(
        self,
        tenant: TenantScope,
        topic: str,
        content: str,
        proof: str | Sequence[str],
        *,
        project: str | None = None,
        author: str = "",
    ) -> ConsolidationResult:
        """Makes `content` the topic's active summary and archives its predecessor.

        Passing the text of an archived summary restores it. Without a project, the corpus includes all projects. Raises
        BadRequest if the topic has too few memories, the text has too few tokens, or `proof` (reading tokens of a
        deep search on the topic and of full reads) is not sufficient; ConcurrentWrite, StoreUnavailable. Nothing is
        written then.
        """
        topic = _normalize_topic(topic)
        content = strip_summary(content)
        tokens = self._check(content)
        count = await self._memories.count(tenant, corpus_filter(topic, project))
        if count < FEWEST:
            raise BadRequest(
                f"Topic {topic!r} has {count} memories; a summary needs at least {FEWEST}. Read them instead.",
                code="too_few_memories",
                param="topic",
            )
        corpus = await load_corpus(self._memories, tenant, topic, project)
        memory_id = summary_id(topic, project)
        current = (await self._memories.get(tenant, [memory_id]))[0]
        read_memories = _check_proof(verify_tokens(tenant, proof, now=self._clock.now()), topic, corpus, current)
        summary = self._make_summary(
            memory_id, topic, content, count, _sources(content, corpus, read_memories), project, author
        )
        return await self._replace(tenant, topic, summary, current, tokens)

    def _check(self, content: str) -> int:
        """Returns the meaningful tokens of a text. Raises BadRequest if it is too long or too short."""
        if len(content) > _MAX_LENGTH:
            raise BadRequest(
                f"The summary has {len(content):,} characters; it may have at most {_MAX_LENGTH:,}. 300 to 500 "
                "tokens are best.",
                code="content_too_long",
                param="content",
            )
        tokens = count_meaningful_tokens(content, self._count)
        if tokens < SHORTEST:
            raise BadRequest(
                f"The summary has {tokens} tokens that count; it needs at least {SHORTEST}, 300 to 500 are best. "
                "Repeated text, padding and invisible characters do not count. Say what the topic is, its present "
                "state and key decisions, solved problems, and open questions.",
                code="content_too_short",
                param="content",
            )
        return tokens

    def _make_summary(
        self,
        memory_id: str,
        topic: str,
        content: str,
        count: int,
        sources: tuple[tuple[str, str], ...],
        project: str | None,
        author: str,
    ) -> Memory:
        now = self._clock.now()
        footer = make_footer(count, topic, now)
        summary = Memory(
            id=memory_id,
            type="summary",
            content=content + footer,
            topics=(topic,),
            project=project or "",
            source="consolidation",
            author=author,
            sources=sources,
            counted=count,
        )
        return finish_memory(summary, now=now)

    async def _replace(
        self, tenant: TenantScope, topic: str, summary: Memory, current: Memory | None, tokens: int
    ) -> ConsolidationResult:
        """Writes the summary and archives its predecessors. Raises ConcurrentWrite."""
        active = MemoryFilter(types=("summary",), topics=(topic,), project=summary.project)
        # Imported summaries are active under other ids.
        imported = [
            each for each in (await self._memories.list_memories(tenant, active)).memories if each.id != summary.id
        ]
        memories, archived_id = [summary], ""
        for each in (*([current] if current is not None and current.type == "summary" else []), *imported):
            copy = _archive_copy(each, topic, self._clock.now())
            if each.id == summary.id:
                archived_id = make_memory_id("archived", each.id, each.revision, repr(each.created))
                copy = replace(copy, id=archived_id)
            memories.append(copy)
        require = [(summary.id, current), *((each.id, each) for each in imported)]
        try:
            await self._memories.write(tenant, MemoryChange(put=tuple(memories), require=tuple(require)))
        except Conflict as error:
            raise ConcurrentWrite(
                f"Somebody else wrote the summary of {topic!r} at the same time. Nothing was written. Read the new "
                f"summary ({summary.id}), extend it where it lacks something, and consolidate again."
            ) from error
        return ConsolidationResult(summary, archived_id or next((each.id for each in imported), ""), tokens)


def summary_id(topic: str, project: str | None) -> str:
    """Returns the id of a topic's active summary. It never changes, so that concurrent writers conflict."""
    return make_memory_id("summary", project or "", topic)


def strip_summary(content: object) -> str:
    """Returns a summary's text without the footer and the warnings of an earlier version. Raises BadRequest."""
    if not isinstance(content, str):
        raise BadRequest("content must be a string.", code="invalid_content", param="content")
    return _FOOTER.sub("", _WARNING.sub("", content)).strip()


def make_footer(count: int, topic: str, at: float) -> str:
    """Returns the footer of a summary: the number of its topic's memories, and the day."""
    day = datetime.fromtimestamp(at, UTC).date().isoformat()
    return f'\n\n---\nWritten {day} from {count:,} memories on "{topic}".'


def _sources(content: str, corpus: Sequence[Memory], read_memories: Sequence[Memory]) -> tuple[tuple[str, str], ...]:
    """Returns (id, revision) of the memories that were read or that the text cites."""
    source_ids = {memory.id for memory in read_memories}.union(_CITATION.findall(content))
    return tuple((memory.id, memory.revision) for memory in corpus if memory.id in source_ids)


def _archive_copy(summary: Memory, topic: str, now: float) -> Memory:
    """Returns a summary as an archived one, which a search on its topic does not find."""
    return replace(summary, type="summary_archived", topics=(), macro_topics=(), former_topic=topic, updated=now)


def _check_proof(proof: ReadProof, topic: str, corpus: Sequence[Memory], current: Memory | None) -> list[Memory]:
    """Returns the topic's memories that were read in full. Raises BadRequest if they are too few."""
    if not proof.has_searched_deeply(topic):
        raise BadRequest(
            f"Run memory_deep_search on topic {topic!r} first, then read at least {min(READS, len(corpus))} of its "
            "memories in full, and pass on the reading token that these calls return.",
            code="deep_search_required",
            param="proof",
        )
    read_memories = proof.find_read(corpus)
    needed = min(READS, len(corpus))
    if len(read_memories) < needed:
        missing = needed - len(read_memories)
        read_ids = {memory.id for memory in read_memories}
        unread = [memory.id for memory in corpus if memory.id not in read_ids][: min(5, missing)]
        raise BadRequest(
            f"{len(read_memories)} of the {len(corpus)} memories on {topic!r} were read in full in their present "
            f"version; {needed} must be. Read {missing} more, such as {', '.join(unread)}, and pass on the reading "
            "token that this returns.",
            code="reads_required",
            param="proof",
        )
    if current is not None and current.type == "summary" and not proof.find_read([current]):
        raise BadRequest(
            f"Topic {topic!r} already has a summary. Read it first ({current.id}) and extend it, then pass on "
            "the reading token that this returns.",
            code="summary_unread",
            param="proof",
        )
    return read_memories


_SPLIT: Final = re.compile(r"\n+|(?<=[.!?。！？])\s*")
_UNIT: Final = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|\S+")
"""A word; in scripts without spaces a character."""
_PHRASE: Final = 4
"""Words of a phrase, which counts once."""
_RUN: Final = re.compile(r"(.)\1{3,}")
_WORD: Final = 80
"""Characters of a word that count. The rest of a longer word is data."""
_WORDS_PER_REPETITION: Final = 16
"""A word counts at most once for each of this many words of the text."""
_REPETITION_DISTANCE: Final = 6


def remove_padding(text: str) -> str:
    """Returns a text without padding. It serves counting, not reading.

    Padding is invisible characters, punctuation without words, repeated lines and phrases, and words that are repeated
    too often.
    """
    words = _unique_words(_unique_sentences(_remove_invisible(text)))
    max_repeats = max(_REPETITION_DISTANCE, len(words) // _WORDS_PER_REPETITION)
    counts: Counter[str] = Counter()
    result: list[str] = []
    for word in words:
        key = word.strip("\"'`()[]{}<>,;:!?.*_#|-").lower()
        counts[key] += 1
        if any(map(str.isalnum, key)) and counts[key] <= max_repeats:
            result.append(_RUN.sub(r"\1\1\1", word)[:_WORD])
    return " ".join(result)


def count_meaningful_tokens(text: str, count: Callable[[str], int]) -> int:
    """Counts the tokens of a text without padding."""
    return count(remove_padding(text))


def _remove_invisible(text: str) -> str:
    """Removes invisible characters: format, control, unassigned, private and filler characters, and stacked marks."""
    result: list[str] = []
    mark_count = 0
    for character in unicodedata.normalize("NFKC", text):
        category = unicodedata.category(character)
        mark_count = mark_count + 1 if category in {"Mn", "Me"} else 0
        if character == "\n" or category == "Zs":
            result.append("\n" if character == "\n" else " ")
        elif category[0] != "C" and mark_count < 3 and character not in "\u115f\u1160\u3164\uffa0\u2800":
            result.append(character)
        elif category == "Cc":
            result.append(" ")
    return "".join(result)


def _unique_sentences(text: str) -> list[str]:
    """Returns each sentence or line once, compared without case, punctuation and numbers."""
    by_key: dict[str, str] = {}
    for sentence in _SPLIT.split(text):
        key = " ".join(re.findall(r"\w+", re.sub(r"\d+", "0", sentence.lower())))
        if key:
            by_key.setdefault(key, sentence)
    return list(by_key.values())


def _unique_words(sentences: list[str]) -> list[str]:
    """Returns all words in order, without those that end a repeated phrase."""
    words = [word for sentence in sentences for word in _UNIT.findall(sentence)]
    phrases: set[tuple[str, ...]] = set()
    result: list[str] = []
    for index, word in enumerate(words):
        phrase = tuple(part.lower() for part in words[max(0, index - _PHRASE + 1) : index + 1])
        if len(phrase) < _PHRASE or phrase not in phrases:
            result.append(word)
        phrases.add(phrase)
    return result


# -- drafts -----------------------------------------------------------------------------------------------------------


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
        topic = _normalize_topic(topic)
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
        while selection and self.count(_render_draft(topic, selection)) > DRAFT_MOST:
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
    prefix = "The user: " if "user" in label.split("stated by")[-1].lower() else ""
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
        rows += [f"## {title}", *(map(str, part_lines) if part_lines else ["(no memories)"])]
    return "\n".join(rows)
