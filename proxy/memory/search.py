"""Searching memories: candidates from the store, their final order, and what a reader has to know about summaries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from proxy.core.errors import BadRequest
from proxy.core.memories import Candidate, Embedder, Filter, Memories, Memory
from proxy.core.ports import Clock
from proxy.core.values import dataclass
from proxy.memory.corpus import wanted as of_topic
from proxy.memory.entries import clean, preview
from proxy.memory.ranking import Scores, ordered, words
from proxy.memory.reading import issue, verified, with_search

RESULTS, POOL = 32, 64
DEEP_RESULTS, DEEP_POOL = 100, 256
GROWTH: Final = 0.2
"""How much a topic may have grown before its summary counts as stale (systems/README D3)."""
QUERY_MOST: Final = 2_000
PREVIEW: Final = 50
_NAMED = 5


@dataclass(frozen=True, slots=True)
class Query:
    """What is searched for. `limit` is at most 32, of a deep search 100 (0: as many). `token` is the
    reading token of what came before; several may be given."""

    text: str
    wanted: Filter = Filter()
    deep: bool = False
    limit: int = 0
    explain: bool = False
    token: str | tuple[str, ...] = ""


@dataclass(frozen=True, slots=True)
class Result:
    """A memory that was found. `preview` is its beginning; `warning` says why a summary may no longer be right;
    `scores` why it stands where it does, where that was asked for."""

    memory: Memory
    score: float
    preview: str
    warning: str = ""
    scores: Scores | None = None


@dataclass(frozen=True, slots=True)
class Results:
    """What was found, the best first, of how many candidates, and the reading token that proves the search."""

    results: tuple[Result, ...]
    candidates: int
    token: str


class Search:
    """Searches the memories of a tenant."""

    def __init__(self, memories: Memories, embedder: Embedder, clock: Clock) -> None:
        self._memories = memories
        self._embedder = embedder
        self._clock = clock

    async def search(self, space: bytes, query: Query) -> Results:
        """The memories that answer a query best.

        Raises BadRequest (`search_without_words`, `query_too_long`, `bad_limit`, and those of a reading token) and
        StoreUnavailable.
        """
        text = clean(query.text)
        asked = _checked(text)
        most, pool = (DEEP_RESULTS, DEEP_POOL) if query.deep else (RESULTS, POOL)
        if not 0 <= query.limit <= most:
            raise BadRequest(
                f"A {'deep ' if query.deep else ''}search returns 1 to {most} memories.",
                code="bad_limit",
                param="limit",
            )
        now = self._clock.now()
        proof = verified(space, query.token, now=now)
        vector = await self._embedder.query(text)
        found = await self._memories.candidates(space, asked, vector, query.wanted, pool=pool)
        relevance = await self._embedder.relevance(text, found)
        best = ordered(text, found, relevance)[: query.limit or most]
        results = [
            Result(
                candidate.memory,
                scores.score,
                preview(candidate.memory.content, PREVIEW),
                await self.staleness(space, candidate.memory),
                scores if query.explain else None,
            )
            for candidate, scores in best
        ]
        proof = with_search(proof, text, _topics(text, query.wanted, found), deep=query.deep)
        return Results(tuple(results), len(found), issue(proof, now=now))

    async def staleness(self, space: bytes, memory: Memory) -> str:
        """Why a summary may no longer be right: its topic has grown by a fifth, or memories that it was written of were
        edited or deleted. Empty for one that is fresh, and for everything else."""
        if memory.type != "summary":
            return ""
        topic = next(iter((*memory.topics, *memory.macro_topics)), "")
        said = []
        if topic and memory.counted > 0:
            live = await self._memories.count(space, of_topic(topic, memory.project or None))
            if live >= memory.counted * (1 + GROWTH):
                said.append(f"it was written of {memory.counted} memories, and the topic now has {live}")
        said += await self._altered(space, memory.sources)
        if not said:
            return ""
        again = f' for "{topic}"' if topic else ""
        return f"This summary may be out of date: {'; '.join(said)}. Consider memory_consolidate{again}."

    async def _altered(self, space: bytes, sources: Sequence[tuple[str, str]]) -> list[str]:
        """What became of a summary's sources, in words."""
        found = await self._memories.get(space, [memory_id for memory_id, _ in sources]) if sources else []
        gone = [source[0] for source, now in zip(sources, found, strict=True) if now is None]
        edited = [
            source[0]
            for source, now in zip(sources, found, strict=True)
            if now is not None and now.revision != source[1]
        ]
        told = ((edited, "edited"), (gone, "deleted"))
        return [f"{len(ids)} of its sources {_were(ids)} {how} since ({_some(ids)})" for ids, how in told if ids]


def _topics(text: str, wanted: Filter, found: Sequence[Candidate]) -> set[str]:
    """The topics that a query asks for: those that it is restricted to, and those of what was found whose every word it
    names."""
    asked = frozenset(words(text))
    topics = {topic for each in found for topic in (*each.memory.topics, *each.memory.macro_topics)}
    named = {topic for topic in topics if (parts := words(topic)) and asked.issuperset(parts)}
    return {*wanted.topics, *named}


def _checked(text: str) -> tuple[str, ...]:
    """The words of a query. Raises BadRequest."""
    if len(text) > QUERY_MOST:
        raise BadRequest(
            f"A query has at most {QUERY_MOST:,} characters, and this one has {len(text):,}.",
            code="query_too_long",
            param="query",
        )
    asked = words(text)
    if not asked:
        raise BadRequest(
            "There are no words in this query: say what to search for, or list the memories instead.",
            code="search_without_words",
            param="query",
        )
    return asked


def _were(ids: Sequence[str]) -> str:
    return "was" if len(ids) == 1 else "were"


def _some(ids: Sequence[str]) -> str:
    return ", ".join(ids[:_NAMED]) + (", …" if len(ids) > _NAMED else "")
