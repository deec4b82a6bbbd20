"""Estimates how likely each word is to be needed again, from its use so far.

The constants are rounded shares measured on recorded agent runs: of the words before a compaction, how many occur in
the agent's own later calls. Use as an argument counts most, then mention in text, then occurrence in several results,
then recency. The word's own spelling does not count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from accordion.summaries.fact_words import ExtractedWords
from accordion.summaries.facts import CallFacts, MessageFacts, ResultFacts

_FADE_CHARACTERS: Final = 120_000
"""Characters of later conversation after which a fact counts half."""
_CALL_REUSE: Final = 0.06
_SPOKEN_FACTOR: Final = 1.6


class CallStep(msgspec.Struct, frozen=True):
    """A tool call with its result. `at` and `until` are message indexes; `age` is in characters from the end."""

    at: int
    until: int
    age: int
    call: CallFacts
    result: ResultFacts | None


class Utterance(msgspec.Struct, frozen=True):
    """A text of a user or the assistant."""

    at: int
    age: int
    facts: MessageFacts


class SummaryMaterial(msgspec.Struct, frozen=True):
    """The facts of all summarized messages, in order."""

    steps: tuple[CallStep, ...]
    utterances: tuple[Utterance, ...]
    total: int


def order_material(facts_by_index: Sequence[tuple[int, MessageFacts]]) -> SummaryMaterial:
    """Pairs each result with the nearest earlier call of its id, and measures ages."""
    sizes = [_count_characters(f) for _, f in facts_by_index]
    remaining_size = sum(sizes)
    total = remaining_size
    open_calls: dict[str, tuple[int, int, CallFacts, int]] = {}
    steps: list[CallStep | None] = []
    utterances: list[Utterance] = []
    for (message_index, facts), size in zip(facts_by_index, sizes, strict=True):
        remaining_size -= size
        if facts.text or facts.media:
            utterances.append(Utterance(message_index, remaining_size, facts))
        for call in facts.calls:
            open_calls[call.call_id] = (len(steps), message_index, call, remaining_size)
            steps.append(CallStep(message_index, message_index, remaining_size, call, None))
        for result in facts.results:
            step_index, call_index, call, _ = open_calls.pop(
                result.call_id, (-1, message_index, CallFacts("", "", (), ExtractedWords()), 0)
            )
            step = CallStep(call_index, message_index, remaining_size, call, result)
            if step_index < 0:
                steps.append(step)
            else:
                steps[step_index] = step
    return SummaryMaterial(tuple(s for s in steps if s is not None), tuple(utterances), total)


def _count_characters(facts: MessageFacts) -> int:
    calls = sum(len(v) for c in facts.calls for _, v in c.fields)
    return len(facts.text) + calls + sum(r.size for r in facts.results) + 20


class WordUsage:
    """Counts the occurrences of each word in calls, in texts and in results."""

    def __init__(self, material: SummaryMaterial) -> None:
        self.call_counts: Counter[str] = Counter()
        self.spoken_counts: Counter[str] = Counter()
        self.result_counts: Counter[str] = Counter()
        self.last_step: dict[str, int] = {}
        """The last step that contains a word."""
        self.argument_names: set[str] = set()
        """The names of arguments: result fields with the same names are likely to become arguments."""
        for number, step in enumerate(material.steps):
            self._count_call(step.call, number)
            if step.result is not None:
                self._count_result(step.result, number)
        for utterance in material.utterances:
            words = utterance.facts.words
            for group in (words.paths, words.ids, words.names, words.links):
                self.spoken_counts.update(group)

    def _count_call(self, call: CallFacts, number: int) -> None:
        words = call.words
        for group in (words.paths, words.ids, words.names, words.links):
            self.call_counts.update(group)
            self.last_step.update(dict.fromkeys(group, number))
        self.argument_names.update(k for k, _ in call.fields)
        self.call_counts.update({v for _, v in call.fields if len(v) <= 200})

    def _count_result(self, result: ResultFacts, number: int) -> None:
        words = result.words
        for group in (words.paths, words.ids, words.names, words.links):
            self.result_counts.update(group)
            self.last_step.update(dict.fromkeys(group, number))
        values = {v for _, v in result.fields}
        self.result_counts.update(values)
        self.last_step.update(dict.fromkeys(values, number))

    def estimate_reuse(self, word: str, base: float, age: int) -> float:
        """Estimates the share of such words in later calls. `base` is the share for one occurrence in a result."""
        call_count = self.call_counts[word]
        p = base * min(self.result_counts[word] + 1, 7) / 2 + _CALL_REUSE * min(call_count, 4)
        if word in self.spoken_counts:
            p *= _SPOKEN_FACTOR
        return p / (1 + age / _FADE_CHARACTERS)


def collect_words(message_facts: Iterable[MessageFacts]) -> set[str]:
    """Collects all words of messages."""
    all_words: set[str] = set()
    for facts in message_facts:
        for words in (facts.words, *(c.words for c in facts.calls), *(r.words for r in facts.results)):
            all_words.update(words.paths, words.ids, words.names, words.links)
        for fields in (*(c.fields for c in facts.calls), *(r.fields for r in facts.results)):
            all_words.update(v for _, v in fields if len(v) <= 200)
    return all_words
