"""Searching memories: candidates from the store, their final order, and what a reader has to know about summaries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from accordion.core.errors import BadRequest
from accordion.core.memories import Candidate, Embedder, Filter, Memories, Memory
from accordion.core.ports import Clock
from accordion.core.values import dataclass
from accordion.memory.corpus import wanted as of_topic
from accordion.memory.entries import clean
from accordion.memory.ranking import Scores, named, ordered, words
from accordion.memory.reading import issue, verified, with_search

RESULTS, POOL = 32, 64
DEEP_RESULTS, DEEP_POOL = 100, 256
GROWTH: Final = 0.2
"""How much a topic may have grown before its summary counts as stale."""
QUERY_MOST: Final = 2_000
_NAMED = 5
_AT_ONCE: Final = 500
"""Sources of summaries that are read in one go: a store does nothing long."""


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
    """A memory that was found. `warning` says why a summary may no longer be right; `scores` why it stands where it
    does, where that was asked for."""

    memory: Memory
    score: float
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
        warnings = await self.warnings(space, [candidate.memory for candidate, _ in best])
        results = [
            Result(candidate.memory, scores.score, warning, scores if query.explain else None)
            for (candidate, scores), warning in zip(best, warnings, strict=True)
        ]
        proof = with_search(proof, text, _topics(text, query.wanted, found), deep=query.deep)
        return Results(tuple(results), len(found), issue(proof, now=now))

    async def warnings(self, space: bytes, memories: Sequence[Memory]) -> list[str]:
        """Why each may no longer be right: of a summary, because its topic has grown by a fifth, or memories that it
        was written of were edited or deleted. Empty for what is fresh. Sources are read together, topics counted once.
        """
        summaries = [memory for memory in memories if memory.type == "summary"]
        ids = list(dict.fromkeys(memory_id for each in summaries for memory_id, _ in each.sources))
        revisions: dict[str, str] = {}
        for at in range(0, len(ids), _AT_ONCE):
            found = await self._memories.get(space, ids[at : at + _AT_ONCE])
            revisions |= {memory.id: memory.revision for memory in found if memory is not None}
        corpora = dict.fromkeys(_corpus(each) for each in summaries if _topic(each) and each.counted > 0)
        live = {wanted: await self._memories.count(space, wanted) for wanted in corpora}
        return [_warning(each, live, revisions) if each.type == "summary" else "" for each in memories]


def _topic(summary: Memory) -> str:
    return next(iter((*summary.topics, *summary.macro_topics)), "")


def _corpus(summary: Memory) -> Filter:
    """The memories that a summary would be written of now."""
    return of_topic(_topic(summary), summary.project or None)


def _warning(summary: Memory, live: Mapping[Filter, int], revisions: Mapping[str, str]) -> str:
    """Why a summary may no longer be right, given how many memories each topic has and the revisions of those that are
    there."""
    said = []
    now = live.get(_corpus(summary), 0)
    if summary.counted > 0 and now >= summary.counted * (1 + GROWTH):
        said.append(f"it was written of {summary.counted} memories, and the topic now has {now}")
    gone = [name for name, _ in summary.sources if name not in revisions]
    edited = [name for name, then in summary.sources if revisions.get(name, then) != then]
    told = ((edited, "edited"), (gone, "deleted"))
    said += [f"{len(ids)} of its sources {_were(ids)} {how} since ({_some(ids)})" for ids, how in told if ids]
    if not said:
        return ""
    again = f' for "{topic}"' if (topic := _topic(summary)) else ""
    return f"This summary may be out of date: {'; '.join(said)}. Consider memory_consolidate{again}."


def _topics(text: str, wanted: Filter, found: Sequence[Candidate]) -> set[str]:
    """The topics that a query asks for: those that it is restricted to, and those of what was found whose every word it
    names."""
    asked = frozenset(words(text))
    topics = {topic for each in found for topic in (*each.memory.topics, *each.memory.macro_topics)}
    return {*wanted.topics, *(topic for topic in topics if named(topic, asked))}


def _checked(text: str) -> tuple[str, ...]:
    """The words of a query. Raises BadRequest."""
    if len(text) > QUERY_MOST:
        raise BadRequest(
            f"A query has at most {QUERY_MOST:,} characters; this one has {len(text):,}.",
            code="query_too_long",
            param="query",
        )
    asked = words(text)
    if not asked:
        raise BadRequest(
            "This query has no words. Give words to search for, or list the memories instead.",
            code="search_without_words",
            param="query",
        )
    return asked


def _were(ids: Sequence[str]) -> str:
    return "was" if len(ids) == 1 else "were"


def _some(ids: Sequence[str]) -> str:
    return ", ".join(ids[:_NAMED]) + (", …" if len(ids) > _NAMED else "")
