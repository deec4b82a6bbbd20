"""Ranks search results: fusion of candidates by rank, and the final order.

Reciprocal rank fusion (RRF) of candidates by words and by vectors only chooses the pool of candidates. The final order
comes from standardised scores: with fusion by rank and equal weights there, a tenth of the hits was lost in
measurements.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from accordion.features.memory.memories import Memory, MemoryType, SearchCandidate
from accordion.model.search import names_topic, relevance_of
from accordion.model.words import search_terms

FUSION_BOOST: Final[Mapping[MemoryType, float]] = {"summary": 1.4, "preference": 1.3}
"""Factors by type in the fusion, so that a topic's summary stays in the pool beside dozens of memories."""
SUMMARY_BOOST: Final = 1.3
"""Factor of a summary's final score, which stays at most 1."""

BODY_WEIGHT, CONTEXT_WEIGHT, AUTHOR_WEIGHT = 1.0, 0.4, 0.5
"""Weights of a word in the text itself, in its context, and in its author's name."""

_RANK = 60
_LEXICAL, _DENSE, _RELEVANCE = 1.0, 0.3, 1.2
_AUTHOR = 5.0
"""Bonus for memories of an author whom the query names: it outweighs any word."""
_NEIGHBOUR = 0.2
"""Share of the better neighbour's score in the same conversation, because an answer follows its question."""
_LOGISTIC_SCALE = 2.0
_NAMED = 2 / 3
"""The share of the least relevance that is enough for a memory that the query names."""


class SearchScores(msgspec.Struct, frozen=True):
    """The scores of a result.

    `lexical` and `dense` are the store's; `relevance`, from 0 to 1, is by words and by the embedder. `author` and
    `neighbour` are the amounts added for them. `score`, from 0 to 1, orders the results.
    """

    score: float
    lexical: float
    dense: float
    relevance: float
    author: float
    neighbour: float
    boost: float


def has_answer(query: str, candidates: Iterable[tuple[SearchCandidate, SearchScores]], least: float) -> bool:
    """Returns whether any candidate fits a query: by its relevance, which may be lower if the query names it.

    A query names a memory by its author or by one of its entities.
    """
    terms = frozenset(search_terms(query))
    return any(
        scores.relevance >= least
        or (
            scores.relevance >= _NAMED * least
            and (scores.author > 0 or any(names_topic(name, terms) for name in candidate.memory.entities))
        )
        for candidate, scores in candidates
    )


def fuse(
    lexical: Sequence[str], dense: Sequence[str], types: Mapping[str, MemoryType], pool: int
) -> list[tuple[str, int, int]]:
    """Fuses two lists of ids by rank; returns at most `pool` ids with their rank in both lists (-1: not in it).

    Summaries and preferences weigh more. An id that is not in `types` weighs as much as a fact.
    """
    by_words = {memory_id: rank for rank, memory_id in enumerate(lexical)}
    by_vector = {memory_id: rank for rank, memory_id in enumerate(dense)}

    def fused_score(memory_id: str) -> float:
        shares = (1 / (_RANK + ranks[memory_id]) for ranks in (by_words, by_vector) if memory_id in ranks)
        return sum(shares) * FUSION_BOOST.get(types.get(memory_id, "fact"), 1.0)

    best_ids = sorted(dict.fromkeys((*lexical, *dense)), key=fused_score, reverse=True)[:pool]
    return [(memory_id, by_words.get(memory_id, -1), by_vector.get(memory_id, -1)) for memory_id in best_ids]


def order_candidates(
    query: str, candidates: Sequence[SearchCandidate], meanings: Sequence[float]
) -> list[tuple[SearchCandidate, SearchScores]]:
    """Returns candidates with scores, best first. `meanings` (0 to 1) are the embedder's relevance of each."""
    terms = frozenset(search_terms(query))
    bonus = {author: _author_bonus(author, terms) for author in {candidate.memory.author for candidate in candidates}}
    authors = [bonus[candidate.memory.author] for candidate in candidates]
    lexical = _standardize([candidate.lexical for candidate in candidates])
    dense = _standardize([candidate.dense for candidate in candidates])
    relevances = _standardize(meanings)
    own_scores = [
        _LEXICAL * lexical[index] + _DENSE * dense[index] + _RELEVANCE * relevances[index] + authors[index]
        for index in range(len(candidates))
    ]
    neighbours = _neighbour_scores(candidates, own_scores)
    totals = [own_score + _NEIGHBOUR * neighbour for own_score, neighbour in zip(own_scores, neighbours, strict=True)]
    highest = max(totals, default=0.0)
    ordered = []
    for index, candidate in enumerate(candidates):
        # Many memories of a topic name it. Its summary must come first if the query names the topic.
        total = highest if _is_summary_of(candidate.memory, terms) else totals[index]
        boost = SUMMARY_BOOST if candidate.memory.type == "summary" else 1.0
        score = min(1.0, boost / (1 + math.exp(-total / _LOGISTIC_SCALE)))
        explained = SearchScores(
            score,
            candidate.lexical,
            candidate.dense,
            relevance_of(candidate.lexical, meanings[index]),
            authors[index],
            _NEIGHBOUR * neighbours[index],
            boost,
        )
        ordered.append((score, total, candidate, explained))
    ordered.sort(key=lambda entry: entry[:2], reverse=True)
    return [(candidate, explained) for _, _, candidate, explained in ordered]


def _author_bonus(author: str, terms: frozenset[str]) -> float:
    """Returns the bonus of an author's memories, for a query that has any part of the author's name."""
    return _AUTHOR if not terms.isdisjoint(search_terms(author)) else 0.0


def _is_summary_of(memory: Memory, terms: frozenset[str]) -> bool:
    """Returns whether a memory is the summary of a topic that the query names."""
    return memory.type == "summary" and any(names_topic(topic, terms) for topic in memory.topics)


def _standardize(values: Sequence[float]) -> list[float]:
    """Returns values with the mean 0 and the deviation 1, so that scores of several kinds can be added."""
    if not values:
        return []
    average = sum(values) / len(values)
    deviation = math.sqrt(sum((value - average) ** 2 for value in values) / len(values))
    return [(value - average) / deviation if deviation > 1e-9 else 0.0 for value in values]


def _neighbour_scores(candidates: Sequence[SearchCandidate], scores: Sequence[float]) -> list[float]:
    """Returns for each candidate the better score of its two neighbours in the conversation.

    The neighbours are the memories right before and right after it. Without any, the lowest of all scores counts.
    """
    lowest = min(scores, default=0.0)
    score_by_end: dict[tuple[str, str, int], float] = {}
    for candidate, score in zip(candidates, scores, strict=True):
        memory = candidate.memory
        if memory.conversation and memory.first >= 0:
            _raise_score(score_by_end, ("first", memory.conversation, memory.first), score)
            _raise_score(score_by_end, ("last", memory.conversation, memory.last), score)

    def best_neighbour(candidate: SearchCandidate) -> float:
        memory = candidate.memory
        previous = score_by_end.get(("last", memory.conversation, memory.first - 1), lowest)
        return max(previous, score_by_end.get(("first", memory.conversation, memory.last + 1), lowest))

    return [best_neighbour(candidate) for candidate in candidates]


def _raise_score(score_by_end: dict[tuple[str, str, int], float], end: tuple[str, str, int], score: float) -> None:
    score_by_end[end] = max(score, score_by_end.get(end, score))
