"""Writes a summary without a model, from verbatim pieces of the messages that are likely to be needed again.

The facts of each message (facts.py) are paired and aged (fact_ranking.py), become candidate lines with an estimated
value (candidate_lines.py), and are chosen by value for each character until the budget is full.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal

import msgspec

from accordion.model.cache import ENTRY, BoundedCache, entry_size
from accordion.model.conversation import Message
from accordion.summaries.candidate_lines import (
    FILES,
    SHARES,
    TITLES,
    WORDS,
    CandidateLine,
    build_candidates,
    format_source_spans,
)
from accordion.summaries.fact_ranking import WordUsage, collect_words, order_material
from accordion.summaries.fact_words import WordClassifier
from accordion.summaries.facts import MessageFacts, author_text, extract_facts
from accordion.summaries.instructions import StandingInstructions, find_instructions, select_standing

_CHARACTERS_PER_TOKEN: Final = 3.4
"""A first estimate, corrected by counting."""
_CITATION_LENGTH: Final = 8
"""The usual characters of a line's citation."""


class SourceMessage(msgspec.Struct, frozen=True):
    """A message to summarize. `index` is its position in the client's list, counted from 0."""

    index: int
    message: Message


class ExtractiveWriter:
    """Writes extractive summaries. Safe to use from threads.

    Caches the facts of messages within `capacity` bytes, and the classes of words within `words` bytes.
    """

    def __init__(self, capacity: int = 16 * 2**20, words: int = 7 * 2**20) -> None:
        self._facts = BoundedCache[bytes, MessageFacts](capacity * 7 // 8, lambda _, facts: ENTRY + facts.size)
        self._instruction_tokens = BoundedCache[str, int](capacity // 8, entry_size)
        self._classifier = WordClassifier(words)

    def prepare_facts(self, messages: Sequence[Message]) -> None:
        """Extracts the facts of messages ahead of a compaction."""
        for message in messages:
            self._facts_of(message)

    def write(
        self,
        sources: Sequence[SourceMessage],
        *,
        remaining_messages: Sequence[Message],
        budget: int,
        count: Callable[[str], int],
        kind: Literal["conversation", "generation"],
        known_lines: frozenset[str] = frozenset(),
        only_work: bool = False,
    ) -> str:
        """Writes a summary of `sources` within `budget` tokens of `count`; "" if nothing fits.

        It repeats neither `remaining_messages`, which stay visible, nor `known_lines`. Every line cites its messages.
        `only_work`: without users' words, and without an assistant's that name nothing.
        """
        if budget <= 0 or not sources:
            return ""
        facts = [(s.index, self._facts_of(s.message)) for s in sources]
        visible_words = collect_words(self._facts_of(m) for m in remaining_messages)
        material = order_material(facts)
        visible_lines = {
            line.strip() for message in remaining_messages for line in self._facts_of(message).text.split("\n")
        }
        candidates = build_candidates(
            material, WordUsage(material), visible_words, visible_lines, known_lines, only_work=only_work
        )
        return _fit_candidates(candidates, budget, count)

    def count_instruction_tokens(self, message: Message) -> int:
        """Estimates the tokens of the standing instructions in a message, with those in an earlier summary."""
        if message.role != "user" or not (text := author_text(message)):
            return 0
        # Cached by text, because an edited message has the key of the original while a compaction is planned.
        tokens = self._instruction_tokens.get(text)
        if tokens is None:
            instructions = find_instructions(text)
            tokens = self._instruction_tokens[text] = int(
                sum(len(instruction.text) + _CITATION_LENGTH for instruction in instructions) / _CHARACTERS_PER_TOKEN
            )
        return tokens

    def find_standing_instructions(
        self,
        sources: Sequence[SourceMessage],
        remaining_messages: Sequence[Message],
        others: Sequence[SourceMessage] = (),
    ) -> StandingInstructions:
        """Finds the instructions and promises in `sources` that stand and do not occur in `remaining_messages`.

        `others` are the rest of the conversation: its instructions may replace those of the sources, and be replaced.
        """
        source_indexes = {source.index for source in sources}
        ordered = sorted((*sources, *others), key=lambda source: source.index)
        instructions = [
            (each.index, instruction) for each in ordered for instruction in self._facts_of(each.message).instructions
        ]
        visible_text = "\n".join(self._facts_of(message).text for message in remaining_messages) if instructions else ""
        return select_standing(instructions, lambda index, text: index in source_indexes and text not in visible_text)

    def _facts_of(self, message: Message) -> MessageFacts:
        facts = self._facts.get(message.key)
        if facts is None:
            facts = self._facts[message.key] = extract_facts(message, self._classifier)
        return facts


def _fit_candidates(candidates: list[CandidateLine], budget: int, count: Callable[[str], int]) -> str:
    pieces = _rank_pieces(candidates)
    available_characters = budget * _CHARACTERS_PER_TOKEN
    extras = sum(len(line.extras) for line in candidates)
    best_text = ""
    for attempt in range(1, 8):
        selection = _choose_pieces(candidates, pieces, available_characters)
        text = _render_candidates(candidates, selection)
        if not text or text == best_text:
            break
        tokens = count(text)
        if tokens <= budget:
            best_text = max(best_text, text, key=len)
            if tokens >= 0.97 * budget or sum(map(len, selection.values())) == extras:
                break
        # Each attempt shrinks a little more, so that a text with short tokens fits in the end.
        available_characters *= budget / tokens * (1 - 0.01 * attempt)
    return best_text


RankedPiece = tuple[float, int, int, int]
"""Value per character and position of the line, both negative so that the best and newest sort first; index of the
extra, or -1 for the head; characters."""


def _rank_pieces(candidates: list[CandidateLine]) -> list[RankedPiece]:
    ranked_pieces: list[RankedPiece] = []
    for position, line in enumerate(candidates):
        head = len(line.head) + 12
        if line.worth > 0:
            ranked_pieces.append((-line.worth / head, -position, -1, head))
        for number, (worth, _, text) in enumerate(line.extras):
            weight = len(text) + 3
            ranked_pieces.append((-worth / weight, -position, number, weight))
    ranked_pieces.sort()
    return ranked_pieces


def _choose_pieces(
    candidates: list[CandidateLine], pieces: list[RankedPiece], available_characters: float
) -> dict[int, list[int]]:
    selection: dict[int, list[int]] = {}
    remaining = [available_characters * share for share in SHARES]
    heads: dict[int, int] = {-p[1]: p[3] for p in pieces if p[2] < 0}
    for _, negative_position, number, length in pieces:
        position = -negative_position
        if position in selection and number < 0:
            continue
        weight = length if position in selection or number < 0 else length + heads.get(position, 12)
        section = candidates[position].section
        if weight > min(available_characters, remaining[section]):
            if available_characters < 30:
                break
            continue
        available_characters -= weight
        remaining[section] -= weight
        selection.setdefault(position, [])
        if number >= 0:
            selection[position].append(number)
    return selection


def _render_candidates(candidates: list[CandidateLine], selection: dict[int, list[int]]) -> str:
    sections: list[list[tuple[int, str]]] = [[] for _ in TITLES]
    for position, numbers in selection.items():
        line = candidates[position]
        sections[line.section].append((line.citations[-1][1], _render_line(line, sorted(numbers))))
    rows = []
    for title, lines in zip(TITLES, sections, strict=True):
        if lines:
            rows.append(f"## {title}")
            rows.extend(text for _, text in sorted(lines, key=lambda line: line[0]))
    return "\n".join(rows)


def _render_line(line: CandidateLine, numbers: list[int]) -> str:
    labels: dict[str, list[int]] = {}
    for number in numbers:
        labels.setdefault(line.extras[number][1], []).append(number)
    parts = []
    for label, extras in labels.items():
        if label:
            separator = " " if label in WORDS else " / "
            parts.append(f"{label}: " + separator.join(dict.fromkeys(line.extras[n][2] for n in extras)))
        else:
            parts.append(_render_quotes(line, extras))
    head = line.head if line.section == FILES else f"{format_source_spans(line.citations)} {line.head}".rstrip()
    return ("; " if line.head else " ").join([head, *parts])


def _render_quotes(line: CandidateLine, numbers: list[int]) -> str:
    """Joins lines of one message into one line, with an ellipsis for omitted ones."""
    text = ""
    for previous, number in zip([-1, *numbers], numbers, strict=False):
        text += ("" if not text else " / ") if number == previous + 1 else (" … " if text else "… ")
        text += line.extras[number][2]
    return text if numbers[-1] + 1 == len(line.extras) else f"{text} …"
