"""The search by words, and by meaning where the embedding is installed: in archived conversations and in memories.

Theory of operation. A text is known by its terms (`search_terms` of words.py). A `TermIndex` has the numbers of the
texts with each term. `TermScores` adds up, for each text, the weights of the query's terms in it: the rarer a term, the
more, as in BM25. An index of texts of all lengths also has BM25's share of each term in each text; passages are short,
and each of their terms counts in full. Terms near a text count half, as an answer stands next to its question.

An embedding (`TokenEmbedding`) finds how well a text answers a query in other words. Whether anything fits at all is
decided by those who search: their least scores are measured on questions that nothing answers (bench/README.md).
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import nlargest
from itertools import accumulate, chain
from sys import getsizeof
from typing import Final, Protocol

from accordion.model.words import search_terms

NEAR: Final = 3
"""Texts on either side whose terms count for a text, as an answer may share no word with its question."""
NEAR_SHARE: Final = 0.5
"""The share of its weight that a term has near a text."""
_WHOLE: Final = 0.9
"""The meaning of a text that answers all of a query."""
_BLOCK_BYTES: Final = 800
"""The memory of a block beside its arrays."""


class TermBlock:
    """The numbers of the texts that have a term, for some texts.

    `keys` are the terms as numbers, in order. The texts with the key at `i` are `numbers[starts[i] : starts[i + 1]]`,
    and `shares` are how much the term counts in them, or empty: 1 in all.
    """

    __slots__ = ("_keys", "_numbers", "_shares", "_starts")

    def __init__(self, keys: array[int], starts: array[int], numbers: array[int], shares: array[float]) -> None:
        self._keys, self._starts, self._numbers, self._shares = keys, starts, numbers, shares

    @classmethod
    def of_terms(cls, terms: Iterable[Iterable[str]]) -> TermBlock:
        """Builds the block of texts, each given by its terms; the key of a term is its hash in this process."""
        numbers_by_term = defaultdict[str, list[int]](list)
        for number, each in enumerate(terms):
            for term in set(each):
                numbers_by_term[term].append(number)
        by_hash = sorted(numbers_by_term, key=hash)
        lists = [numbers_by_term[term] for term in by_hash]
        starts = array("I", [*accumulate(map(len, lists), initial=0)])
        return cls(array("q", map(hash, by_hash)), starts, array("I", chain.from_iterable(lists)), array("f"))

    @property
    def size(self) -> int:
        """The memory that it takes, in bytes."""
        return _BLOCK_BYTES + sum(map(getsizeof, (self._keys, self._starts, self._numbers, self._shares)))

    def find(self, key: int) -> tuple[Sequence[int], Sequence[float]]:
        """Returns the numbers of the texts with a term, in order, and its shares."""
        at = bisect_left(self._keys, key)
        if at == len(self._keys) or self._keys[at] != key:
            return (), ()
        place = slice(self._starts[at], self._starts[at + 1])
        return self._numbers[place], self._shares[place]


class TermIndex:
    """Blocks of texts as one index. `lengths` are the numbers of texts in them; `key` gives the key of a term."""

    def __init__(self, blocks: Sequence[TermBlock], lengths: Iterable[int], key: Callable[[str], int] = hash) -> None:
        self._blocks, self._key = blocks, key
        self.starts = [*accumulate(lengths, initial=0)]
        """The number of the first text of each block, and the number of all texts."""

    def __len__(self) -> int:
        """The number of texts."""
        return self.starts[-1]

    def find(self, term: str) -> list[int]:
        """Returns the numbers of the texts with a term, in order."""
        key, numbers = self._key(term), list[int]()
        for start, block in zip(self.starts, self._blocks, strict=False):
            numbers += [start + each for each in block.find(key)[0]]
        return numbers

    def shares(self, term: str) -> Iterator[float]:
        """Yields how much a term counts in the texts that `find` returns; nothing if it counts in full."""
        key = self._key(term)
        return chain.from_iterable(block.find(key)[1] for block in self._blocks)

    def weight(self, count: int) -> float:
        """Returns the weight of a term that `count` texts have: the rarer, the more."""
        return math.log(1 + (len(self) - count + 0.5) / (count + 0.5))


class TermScores:
    """The scores of the texts of an index for the terms of a query."""

    def __init__(self, index: TermIndex, factors: Mapping[str, float] | None = None) -> None:
        """`factors` says how much each term of the query counts."""
        self._index = index
        self.weights = dict[str, float]()
        """The weight of each term."""
        self.terms = defaultdict[int, list[str]](list)
        """The terms that each text has."""
        self.sums = defaultdict[int, float](float)
        """The score of each text by its own terms."""
        for term, factor in (factors or {}).items():
            self.add(term, index.find(term), factor, index.shares(term))

    def add(self, term: str, numbers: Sequence[int], factor: float, shares: Iterable[float] = ()) -> None:
        """Adds a term, or a name, that these texts have."""
        weight = self.weights[term] = factor * self._index.weight(len(numbers)) if numbers else 0.0
        for number in numbers:
            self.terms[number].append(term)
            self.sums[number] += weight
        for number, share in zip(numbers, shares, strict=False):
            self.sums[number] += weight * (share - 1)

    def best(self, count: int) -> list[int]:
        """Returns the numbers of the texts with the highest scores."""
        return nlargest(count, self.sums, key=self.sums.__getitem__)

    def sum_of(self, terms: Iterable[str]) -> float:
        """Returns the sum of the weights of some terms."""
        return sum(map(self.weights.__getitem__, terms))

    def near(self, number: int, terms: Sequence[str]) -> float:
        """Returns what the terms in and near a text add to the score of a part of it that has `terms`."""
        places = range(number - NEAR, number + NEAR + 1)
        near = set(chain.from_iterable(self.terms.get(each, ()) for each in places))
        return NEAR_SHARE * self.sum_of(near.difference(terms))


class TokenEmbedding(Protocol):
    """Compares texts by their tokens' vectors. Safe to use from threads."""

    def tokens_of(self, texts: Sequence[str]) -> list[bytes]:
        """Returns the tokens of each text, two bytes each."""

    def compare(self, query: str, tokens: bytes, lengths: Sequence[int]) -> list[float]:
        """Returns how well each text answers a query, from 0 to 1. Tokens near a text count `NEAR_SHARE`.

        `tokens` are those of all texts, in order, and `lengths` the bytes of each.
        """


def relevance_of(words: float, meaning: float) -> float:
    """Returns how well a text answers a query, from 0 to 1, by its words and by an embedding.

    `words` is its score in weights of a term that one text alone has; two such terms count in full. `meaning` is from 0
    to 1. A text that answers all of a query fits, however common its words are.
    """
    return meaning if meaning >= _WHOLE else (min(words / 2, 1.0) + meaning) / 2


def names_topic(topic: str, terms: frozenset[str]) -> bool:
    """Returns whether a query with these terms names a topic, an entity or a person: it has all of its terms."""
    return bool(own := search_terms(topic)) and terms.issuperset(own)
