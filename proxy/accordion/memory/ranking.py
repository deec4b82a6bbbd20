"""The order of what a search finds: words of a query, fusion by rank, and the final order.

Candidates of words and of vectors are fused by rank (RRF), which only decides who is looked at. The final order comes
from standardised scores: fusing by rank there, with equal weights, was measured to throw away a tenth of the hits.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Final

from accordion.core.memories import Candidate, Memory, MemoryType
from accordion.core.values import dataclass

FUSION_BOOST: Final[Mapping[MemoryType, float]] = {"summary": 1.4, "preference": 1.3}
"""By type, where candidates are fused: a topic's summary outlives the pool's limit beside dozens of memories."""
SUMMARY_BOOST: Final = 1.3
"""Of the final score, which it does not lift above 1."""

BODY_WEIGHT, CONTEXT_WEIGHT, AUTHOR_WEIGHT = 1.0, 0.4, 0.5
"""What a word counts for in the text itself, in what was said before, and as its author's name."""

_RANK = 60
_LEXICAL, _DENSE, _RELEVANCE = 1.0, 0.3, 1.2
_AUTHOR = 5.0
"""A query that names somebody asks for what this person said: worth more than any word."""
_NEIGHBOUR = 0.2
"""Of the score of the better neighbour in the same conversation: what answers a question stands beside it."""
_STEEP = 2.0
_WORDS = 64

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
_STOP_TEXT = (
    "a an the of to in on at for and or is are was were be been do does did what when where who why how which "
    "with by from it its this that as has have had he she they his her their you your i my me we our about into "
    "after before so just really very not no yes oh hey hi wow thanks thank s t ll re ve m d would could should "
    "can will if but there them him us am also than then some any all too"
)
STOP_WORDS: Final = frozenset(_STOP_TEXT.split())


@dataclass(frozen=True, slots=True)
class Scores:
    """Why something stands where it does. `lexical` and `dense` are as the store gave them, `relevance` is from 0 to 1;
    `author` and `neighbour` are what was added for them. `score`, from 0 to 1, is what results are ordered by."""

    score: float
    lexical: float
    dense: float
    relevance: float
    author: float
    neighbour: float
    boost: float


def words(text: str) -> tuple[str, ...]:
    """The words to search for, in lower case, each once. Words that stand everywhere are left out, unless there are no
    others. Empty: there are no words in it."""
    found = dict.fromkeys(word.lower().replace("’", "'").removesuffix("'s") for word in _WORD.findall(text))
    telling = [word for word in found if word not in STOP_WORDS]
    return tuple(telling or found)[:_WORDS]


def named(topic: str, asked: frozenset[str]) -> bool:
    """Whether the words of a query name a topic: all of its words, of which it must have some."""
    parts = words(topic)
    return bool(parts) and asked.issuperset(parts)


def fuse(
    lexical: Sequence[str], dense: Sequence[str], types: Mapping[str, MemoryType], pool: int
) -> list[tuple[str, int, int]]:
    """Ids by reciprocal rank fusion, at most `pool`, each with its rank in both lists (-1: not in it).

    Summaries and preferences count for more. An id that `types` does not know counts as a plain memory.
    """
    by_words = {found: rank for rank, found in enumerate(lexical)}
    by_vector = {found: rank for rank, found in enumerate(dense)}

    def worth(found: str) -> float:
        shares = (1 / (_RANK + ranks[found]) for ranks in (by_words, by_vector) if found in ranks)
        return sum(shares) * FUSION_BOOST.get(types.get(found, "fact"), 1.0)

    best = sorted(dict.fromkeys((*lexical, *dense)), key=worth, reverse=True)[:pool]
    return [(found, by_words.get(found, -1), by_vector.get(found, -1)) for found in best]


def ordered(query: str, candidates: Sequence[Candidate], relevance: Sequence[float]) -> list[tuple[Candidate, Scores]]:
    """Candidates in their final order, the best first. `relevance` is how well each answers the query (0 to 1)."""
    asked = frozenset(words(query))
    bonus = {author: _bonus(author, asked) for author in {candidate.memory.author for candidate in candidates}}
    authors = [bonus[candidate.memory.author] for candidate in candidates]
    lexical = _standardised([candidate.lexical for candidate in candidates])
    dense = _standardised([candidate.dense for candidate in candidates])
    close = _standardised(relevance)
    own = [
        _LEXICAL * lexical[at] + _DENSE * dense[at] + _RELEVANCE * close[at] + authors[at]
        for at in range(len(candidates))
    ]
    beside = _neighbours(candidates, own)
    totals = [mine + _NEIGHBOUR * near for mine, near in zip(own, beside, strict=True)]
    best = max(totals, default=0.0)
    found = []
    for at, candidate in enumerate(candidates):
        # Every memory of a topic may name it; the summary of a topic that is asked for is the one to be read first.
        total = best if _sums_up(candidate.memory, asked) else totals[at]
        boost = SUMMARY_BOOST if candidate.memory.type == "summary" else 1.0
        score = min(1.0, boost / (1 + math.exp(-total / _STEEP)))
        told = Scores(
            score, candidate.lexical, candidate.dense, relevance[at], authors[at], _NEIGHBOUR * beside[at], boost
        )
        found.append((score, total, candidate, told))
    found.sort(key=lambda entry: entry[:2], reverse=True)
    return [(candidate, told) for _, _, candidate, told in found]


def _bonus(author: str, asked: frozenset[str]) -> float:
    """What an author's memories get where the query names the author, by any part of the name."""
    return _AUTHOR if any(len(part) > 1 and part in asked for part in words(author)) else 0.0


def _sums_up(memory: Memory, asked: frozenset[str]) -> bool:
    """Whether a memory is the summary of a topic that the query names."""
    return memory.type == "summary" and any(named(topic, asked) for topic in memory.topics)


def _standardised(values: Sequence[float]) -> list[float]:
    if not values:
        return []
    mean = sum(values) / len(values)
    spread = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
    return [(value - mean) / spread if spread > 1e-9 else 0.0 for value in values]


def _neighbours(candidates: Sequence[Candidate], scores: Sequence[float]) -> list[float]:
    """The score of the better of the memories right before and right behind each in its conversation; the least of all
    where none of them was found."""
    least = min(scores, default=0.0)
    ends: dict[tuple[str, str, int], float] = {}
    for candidate, score in zip(candidates, scores, strict=True):
        memory = candidate.memory
        if memory.conversation and memory.first >= 0:
            _raise(ends, ("first", memory.conversation, memory.first), score)
            _raise(ends, ("last", memory.conversation, memory.last), score)

    def beside(candidate: Candidate) -> float:
        memory = candidate.memory
        before = ends.get(("last", memory.conversation, memory.first - 1), least)
        return max(before, ends.get(("first", memory.conversation, memory.last + 1), least))

    return [beside(candidate) for candidate in candidates]


def _raise(ends: dict[tuple[str, str, int], float], at: tuple[str, str, int], score: float) -> None:
    ends[at] = max(score, ends.get(at, score))
