"""How likely each fact is to be needed again, told by how it was used so far.

Figures are rounded shares measured on recorded agent runs: of the words seen before a fold, how many the agent's own
later calls name. Having been an argument before counts most, then being spoken of, then coming up in several results,
then being recent. No word counts for what it is called.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from accordion.core.values import dataclass
from accordion.summaries.facts import CallFacts, Facts, ResultFacts
from accordion.summaries.facts_words import Words

_FADE: Final = 120_000
"""Characters of conversation after which a fact counts half."""
_CALLED: Final = 0.06
_SPOKEN: Final = 1.6


@dataclass(frozen=True, slots=True)
class Step:
    """A tool call with its result. `at` and `until` are message indexes, `age` characters from the end."""

    at: int
    until: int
    age: int
    call: CallFacts
    result: ResultFacts | None


@dataclass(frozen=True, slots=True)
class Saying:
    """What a user or the assistant wrote."""

    at: int
    age: int
    facts: Facts


@dataclass(frozen=True, slots=True)
class Material:
    """All that is covered, put in order."""

    steps: tuple[Step, ...]
    sayings: tuple[Saying, ...]
    total: int


def material(indexed: Sequence[tuple[int, Facts]]) -> Material:
    """Pairs calls with their results (the nearest earlier call with that id) and measures ages."""
    sizes = [_size(f) for _, f in indexed]
    after = sum(sizes)
    total = after
    open_calls: dict[str, tuple[int, int, CallFacts, int]] = {}
    steps: list[Step | None] = []
    sayings: list[Saying] = []
    for (at, facts), size in zip(indexed, sizes, strict=True):
        after -= size
        if facts.said or facts.media:
            sayings.append(Saying(at, after, facts))
        for call in facts.calls:
            open_calls[call.call_id] = (len(steps), at, call, after)
            steps.append(Step(at, at, after, call, None))
        for result in facts.results:
            place, since, call, _ = open_calls.pop(result.call_id, (-1, at, CallFacts("", "", (), Words()), 0))
            step = Step(since, at, after, call, result)
            if place < 0:
                steps.append(step)
            else:
                steps[place] = step
    return Material(tuple(s for s in steps if s is not None), tuple(sayings), total)


def _size(facts: Facts) -> int:
    calls = sum(len(v) for c in facts.calls for _, v in c.fields)
    return len(facts.said) + calls + sum(r.size for r in facts.results) + 20


class Uses:
    """Counts how often and where each word came up: in calls, in what was said, in results."""

    def __init__(self, material: Material) -> None:
        self.called: Counter[str] = Counter()
        self.spoken: Counter[str] = Counter()
        self.found: Counter[str] = Counter()
        self.place: dict[str, int] = {}
        """The step that showed a word last."""
        self.keys: set[str] = set()
        """Names of arguments: fields of results that are called alike are likely to be passed on."""
        for number, step in enumerate(material.steps):
            self._call(step.call, number)
            if step.result is not None:
                self._result(step.result, number)
        for saying in material.sayings:
            words = saying.facts.words
            for group in (words.paths, words.ids, words.names, words.links):
                self.spoken.update(group)

    def _call(self, call: CallFacts, number: int) -> None:
        words = call.words
        for group in (words.paths, words.ids, words.names, words.links):
            self.called.update(group)
            self.place.update(dict.fromkeys(group, number))
        self.keys.update(k for k, _ in call.fields)
        self.called.update({v for _, v in call.fields if len(v) <= 200})

    def _result(self, result: ResultFacts, number: int) -> None:
        words = result.words
        for group in (words.paths, words.ids, words.names, words.links):
            self.found.update(group)
            self.place.update(dict.fromkeys(group, number))
        values = {v for _, v in result.fields}
        self.found.update(values)
        self.place.update(dict.fromkeys(values, number))

    def chance(self, word: str, base: float, age: int) -> float:
        """The share of such words that later calls name. `base` is that of a word seen once in a result."""
        called = self.called[word]
        p = base * min(self.found[word] + 1, 7) / 2 + _CALLED * min(called, 4)
        if word in self.spoken:
            p *= _SPOKEN
        return p / (1 + age / _FADE)


def words_of(many: Iterable[Facts]) -> set[str]:
    """All words that stand in some messages."""
    out: set[str] = set()
    for facts in many:
        for words in (facts.words, *(c.words for c in facts.calls), *(r.words for r in facts.results)):
            out.update(words.paths, words.ids, words.names, words.links)
        for fields in (*(c.fields for c in facts.calls), *(r.fields for r in facts.results)):
            out.update(v for _, v in fields if len(v) <= 200)
    return out
