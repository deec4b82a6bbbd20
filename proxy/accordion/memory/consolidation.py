"""`memory_consolidate`: writes the one active summary of a topic.

The caller must have read the memories that the summary is about. This module enforces the rules for every caller:
enough memories, enough text, and a proof of a deep search and of full reads.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec
from msgspec.structs import replace

from accordion.memory.corpus import corpus_filter, load_corpus, normalize_topic
from accordion.memory.entries import CONTENT_MOST, ConcurrentWrite, finish_memory, make_memory_id
from accordion.memory.reader import ReadProof, verify_tokens
from accordion.model.errors import BadRequest
from accordion.model.memories import Conflict, Memory, MemoryChange, MemoryFilter, MemoryStore
from accordion.model.ports import Clock
from accordion.model.tenant import TenantScope

FEWEST: Final = 10
"""Memories that a topic needs for a summary."""
SHORTEST: Final = 200
"""Tokens that a summary needs."""
READS: Final = 20
"""Memories that must be read in full, or all if there are fewer."""
_MAX_LENGTH: Final = CONTENT_MOST - 400
"""Characters of a summary without its footer."""
_CITATION: Final = re.compile(r"\bmem-[0-9a-zA-Z-]{4,60}")
_FOOTER: Final = re.compile(r'\n+---\nWritten \d{4}-\d{2}-\d{2} of [\d,]+ memories on "[^\n]*"\.[ \t]*(?=\n|$)')
_WARNING: Final = re.compile(r"(?m)^\[?This summary may be out of date: [^\n]*(?:\n|$)")
"""The warning of a stale summary (search.py)."""


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
        topic = normalize_topic(topic)
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
    return f'\n\n---\nWritten {day} of {count:,} memories on "{topic}".'


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
