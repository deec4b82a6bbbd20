"""Writes a summary without a model, from verbatim pieces of the messages that are likely to be needed again.

Theory of operation. The facts of each message (facts.py) are paired and aged, and become candidate lines. A line has a
head and any number of extras after it, both verbatim from the messages, each with an estimated value: the expected
number of later uses. The pieces are chosen by value for each character until the budget is full.

The constants of the values are rounded shares measured on recorded agent runs: of the words before a compaction, how
many occur in the agent's own later calls. Use as an argument counts most, then mention in text, then occurrence in
several results, then recency. The word's own spelling does not count.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from copy import copy
from itertools import chain
from math import log
from typing import Final, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from accordion.model.cache import ENTRY, BoundedCache, entry_size
from accordion.model.conversation import INSTRUCTION_ROLES, Message, Text
from accordion.model.words import search_terms
from accordion.sessions.user_text import remove_client_blocks
from accordion.summaries.dates import is_date
from accordion.summaries.facts import (
    NO_EXTRACTED_WORDS,
    CallFacts,
    ExtractedWords,
    MessageFacts,
    ResultFacts,
    WordClassifier,
    extract_facts,
)
from accordion.summaries.instructions import Instruction, StandingInstructions, find_instructions, select_standing
from accordion.summaries.sentence_forms import BULLET, has_particulars, is_remark, split_sentences, without_vocative

_CHARACTERS_PER_TOKEN: Final = 3.4
"""A first estimate, corrected by counting."""
_CITATION_LENGTH: Final = 12
"""The usual characters of a line's citation and notes."""


class SourceMessage(msgspec.Struct, frozen=True):
    """A message to summarize. `index` is its position in the client's list, counted from 0."""

    index: int
    message: Message


class ExtractiveWriter:
    """Writes extractive summaries. Safe to use from threads.

    Caches the facts of messages within `capacity` bytes, and the classes of words within `words` bytes.
    """

    def __init__(self, capacity: int = 16 * 2**20, words: int = 7 * 2**20) -> None:
        self._facts = BoundedCache[bytes, MessageFacts](capacity * 3 // 4, lambda _, facts: ENTRY + facts.size)
        self._instructions = BoundedCache[str, tuple[Instruction, ...]](capacity // 4, _size_of_instructions)
        self._classifier = WordClassifier(words)
        self._summary_facts: dict[bytes, MessageFacts] | None = None

    def for_one_summary(self) -> ExtractiveWriter:
        """Returns a writer with the same caches that keeps all facts it reads until it is dropped.

        Those of a long conversation may be more than the cache holds, and a summary reads them several times.
        """
        writer = copy(self)
        writer._summary_facts = {}
        return writer

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
        has_users_texts: bool = True,
        only_work: bool = False,
    ) -> str:
        """Writes a summary of `sources` within `budget` tokens of `count`; "" if nothing fits.

        It repeats neither `remaining_messages`, which stay visible, nor `known_lines`. Every line cites its messages.
        `has_users_texts`: users' texts are among the lines. `only_work`: leaves out texts of the assistant without
        names, paths, ids, links or figures.
        """
        if budget <= 0 or not sources:
            return ""
        facts = [(s.index, self._facts_of(s.message)) for s in sources]
        visible_words = _collect_words(self._facts_of(m) for m in remaining_messages)
        material = _order_material(facts)
        utterances = [
            each
            for each in material.utterances
            if (has_users_texts if each.facts.role != "assistant" else not only_work or _has_names(each))
        ]
        material = replace(material, utterances=tuple(utterances))
        visible_lines = {
            line.strip() for message in remaining_messages for line in self._facts_of(message).text.split("\n")
        }
        candidates = _build_candidates(material, _WordUsage(material), visible_words, visible_lines, known_lines)
        return _fit_candidates(candidates, budget, count)

    def count_instruction_tokens(self, message: Message) -> int:
        """Estimates the tokens of the instructions in a message that a summary lists, with those in an earlier one."""
        if message.role != "user" or not (text := message.text):
            return 0
        is_text = all(isinstance(part, Text) for part in message.parts)
        # An edited message has the key of the original while a compaction is planned. Equal texts have the same facts.
        instructions = self._facts_of(message).instructions if is_text else self._find_instructions(text)
        return sum(_estimate_tokens(each.text) for each in instructions if each.is_listed)

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
        facts = self._summary_facts.get(message.key) if self._summary_facts else None
        facts = facts or self._facts.get(message.key)
        if facts is None or (message.role == "user" and facts.text != message.text):
            facts = self._facts[message.key] = extract_facts(message, self._classifier, self._find_instructions)
        if self._summary_facts is not None:
            self._summary_facts[message.key] = facts
        return facts

    def _find_instructions(self, text: str) -> tuple[Instruction, ...]:
        """Finds the instructions in a user's text, once for its tokens and its facts.

        Cached by text, because an edited message has the key of the original while a compaction is planned.
        """
        instructions = self._instructions.get(text)
        if instructions is None:
            instructions = self._instructions[text] = find_instructions(text)
        return instructions


def _estimate_tokens(text: str) -> int:
    """Estimates the tokens of a line with its citation. Outside of ASCII a character has about one."""
    ascii_length = len(text.encode("ascii", "ignore"))
    return int((ascii_length + _CITATION_LENGTH) / _CHARACTERS_PER_TOKEN) + len(text) - ascii_length


def _size_of_instructions(text: str, instructions: tuple[Instruction, ...]) -> int:
    return entry_size(text, instructions) + sum(instruction.size for instruction in instructions)


def _fit_candidates(candidates: list[_CandidateLine], budget: int, count: Callable[[str], int]) -> str:
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
        factor = budget / tokens * (1 - 0.01 * attempt)
        if tokens <= budget and factor < 1:
            # With less space there is no longer text.
            break
        available_characters *= factor
    return best_text


class _RankedPiece(NamedTuple):
    """A piece of a candidate line. Its order is that of choice: the most valuable and newest first."""

    negative_density: float
    """The value for each character, negated."""
    negative_position: int
    """The line's index, negated."""
    number: int
    """The index of the extra; -1 for the line's head."""
    length: int
    """Characters."""


def _rank_pieces(candidates: list[_CandidateLine]) -> list[_RankedPiece]:
    ranked_pieces: list[_RankedPiece] = []
    for position, line in enumerate(candidates):
        head = len(line.head) + 12
        if line.worth > 0:
            ranked_pieces.append(_RankedPiece(-line.worth / head, -position, -1, head))
        for number, extra in enumerate(line.extras):
            length = len(extra.text) + 3
            ranked_pieces.append(_RankedPiece(-extra.worth / length, -position, number, length))
    ranked_pieces.sort()
    return ranked_pieces


def _choose_pieces(
    candidates: list[_CandidateLine], pieces: list[_RankedPiece], available_characters: float
) -> dict[int, list[int]]:
    selection: dict[int, list[int]] = {}
    remaining = [available_characters * share for share in _SHARES]
    head_lengths = {-piece.negative_position: piece.length for piece in pieces if piece.number < 0}
    for (_, negative_position, number, piece_length), is_shared in chain(
        ((piece, True) for piece in pieces), ((piece, False) for piece in pieces)
    ):
        position, length = -negative_position, piece_length
        if position in selection and (number < 0 or number in selection[position]):
            continue
        if position not in selection and number >= 0:
            # The first extra of a line needs its head.
            length += head_lengths.get(position, 12)
        section = candidates[position].section
        # What the shares leave goes to the most valuable pieces of any section.
        if length > (min(available_characters, remaining[section]) if is_shared else available_characters):
            if available_characters < 30:
                break
            continue
        available_characters -= length
        remaining[section] -= length
        selection.setdefault(position, [])
        if number >= 0:
            selection[position].append(number)
    return selection


def _render_candidates(candidates: list[_CandidateLine], selection: dict[int, list[int]]) -> str:
    sections: list[list[tuple[int, str]]] = [[] for _ in _TITLES]
    for position, numbers in selection.items():
        line = candidates[position]
        sections[line.section].append((line.citations[-1][1], _render_line(line, sorted(numbers))))
    rows = []
    for title, lines in zip(_TITLES, sections, strict=True):
        if lines:
            rows.append(f"## {title}")
            rows.extend(text for _, text in sorted(lines, key=lambda line: line[0]))
    return "\n".join(rows)


def _render_line(line: _CandidateLine, numbers: list[int]) -> str:
    labels: dict[str, list[int]] = {}
    for number in numbers:
        labels.setdefault(line.extras[number].label, []).append(number)
    parts = []
    for label, extras in labels.items():
        if label:
            separator = " " if label in _WORDS else " / "
            parts.append(f"{label}: " + separator.join(dict.fromkeys(line.extras[each].text for each in extras)))
        else:
            parts.append(_render_quotes(line, extras))
    head = line.head if line.section == _FILES else f"{_format_source_spans(line.citations)} {line.head}".rstrip()
    return ("; " if line.head else " ").join([head, *parts])


def _render_quotes(line: _CandidateLine, numbers: list[int]) -> str:
    """Joins lines of one message into one line, with an ellipsis for omitted ones."""
    text = ""
    for previous, number in zip([-1, *numbers], numbers, strict=False):
        text += ("" if not text else " / ") if number == previous + 1 else (" … " if text else "… ")
        text += line.extras[number].text
    return text if numbers[-1] + 1 == len(line.extras) else f"{text} …"


# -- candidate lines ---------------------------------------------------------------------------------------------------

_REQUESTS, _STATED, _FILES, _STEPS = 0, 1, 2, 3
"""The sections of a summary, as indexes of `_TITLES` and `_SHARES`."""
_TITLES: Final = ("Said by the user", "Said by the assistant", "Files", "Tool calls and results")
_WORDS: Final = frozenset({"paths", "names", "ids", "links", "fields"})
"""The labels of extras that are single words; the others are lines."""
_SHARES: Final = (0.35, 0.35, 1.0, 1.0)
"""The largest share of the budget for each section."""
_MAX_ARGUMENT_LENGTH: Final = 160
_MAX_CITATIONS: Final = 6
# The expected number of later uses of a word of each kind that occurred once in a result; then the worth of a line or
# text in the same unit, by its kind. Some are factors: the uses of a word in a line's head count `_HEADLINE_WORTH`
# times.
_PATH_REUSE: Final = 0.05
_NAME_REUSE: Final = 0.012
_ID_REUSE: Final = 0.02
_FIELD_REUSE: Final = 0.04
_HEADLINE_WORTH: Final = 3.0
_USER_WORTH: Final = 1.2
_ASSISTANT_WORTH: Final = 0.2
_STATED_FACTOR: Final = 5.0
"""For what the assistant says to the user, not before a call."""
_BESIDE_WORK: Final = 0.45
"""For what is said in a conversation with tools, whose calls tell most of the work."""
_TOOL_LINE_WORTH: Final = 0.15
_OUTLINE_WORTH: Final = 0.01
_STEP_WORTH: Final = 0.15
_FADE_CHARACTERS: Final = 40_000
"""Characters of later conversation after which the value is half."""

_MIN_WEIGHT: Final = 1.0
"""A sentence tells something if its terms weigh as much as one that no other text has."""
_MAX_WEIGHT: Final = 12.0

_CODE = re.compile(r"[A-Z]+|(?=\D*\d)(?=[^A-Za-z]*[A-Za-z])[\w#-]+")
"""Capitals alone, or letters and digits in one piece."""
_ELLIPSES = re.compile(r"…(?:\s*…)+")
_MEASURE = re.compile(r"[-+]?\d{0,3}(?:[.,]\d+)*")


class _Extra(NamedTuple):
    """A piece after a line's head: its expected number of later uses, its label (empty: none) and its text."""

    worth: float
    label: str
    text: str


class _CandidateLine:
    """A candidate line. `worth` is the head's expected number of later uses; `citations` are the first and the last
    message of each source."""

    __slots__ = ("citations", "extras", "head", "section", "worth")

    def __init__(self, section: int, head: str, worth: float, citations: list[tuple[int, int]]) -> None:
        self.section = section
        self.head = head
        self.worth = worth
        self.citations = citations
        self.extras: list[_Extra] = []


def _format_source_spans(citations: Iterable[tuple[int, int]]) -> str:
    """Formats the first and the newest sources of a line: `[3-4, 9]`."""
    spans = sorted(set(citations))
    if len(spans) > _MAX_CITATIONS:
        spans = [spans[0], *spans[-_MAX_CITATIONS + 1 :]]
    return "[" + ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans) + "]"


def _to_one_line(text: str, max_length: int = _MAX_ARGUMENT_LENGTH) -> str:
    """Shortens a text to one line: its beginning up to a space, and an ellipsis if anything is left out."""
    stripped = text.strip()
    line = stripped.split("\n", 1)[0].rstrip() if "\n" in stripped else stripped
    if len(line) > max_length:
        end = line.rfind(" ", 0, max_length)
        line = line[:end].rstrip() if end > max_length // 3 else ""
    return line if len(line) == len(stripped) else f"{line} …"


def _build_candidates(
    material: _SummaryMaterial,
    word_usage: _WordUsage,
    visible_words: set[str],
    visible_lines: Collection[str] = (),
    listed: Collection[str] = (),
) -> list[_CandidateLine]:
    """Builds all candidate lines, unordered.

    Leaves out `visible_words` and `visible_lines`, which occur in the remaining messages, and the `listed` lines and
    sentences of instructions. Of repeated sentences only the last one counts.
    """
    used_lines = {*visible_lines, *listed}
    factor = _BESIDE_WORK if material.steps else 1.0
    rarity = _TermRarity([each.facts.text for each in material.utterances])
    lines: list[_CandidateLine] = [
        line
        for utterance in reversed(material.utterances)
        for line in _utterance_lines(utterance, used_lines, listed, factor, rarity)
    ]
    step_lines = _StepLines(word_usage, visible_words)
    for number, step in enumerate(material.steps):
        step_lines.add_step(number, step)
    step_lines.assign_words(material)
    return lines + step_lines.build_lines()


def _has_names(utterance: _Utterance) -> bool:
    """Whether a text has names, paths, ids, links or figures."""
    return utterance.facts.words != NO_EXTRACTED_WORDS


def _without(text: str, listed_texts: Collection[str]) -> str:
    """Replaces sentences that are listed elsewhere with an ellipsis, one for several in a row."""
    for sentence in listed_texts:
        if len(sentence) < len(text):
            text = text.replace(sentence, "…")
    return _ELLIPSES.sub("…", text)


def _utterance_lines(
    utterance: _Utterance, used_lines: set[str], listed: Collection[str], factor: float, rarity: _TermRarity
) -> Iterator[_CandidateLine]:
    facts = utterance.facts
    is_user = facts.role != "assistant"
    fade = factor / (1 + utterance.age / _FADE_CHARACTERS)
    line = _CandidateLine(_REQUESTS if is_user else _STATED, "", 0.0, [(utterance.at, utterance.at)])
    if facts.media:
        line.extras.append(_Extra(0.3 * fade, "", f"({', '.join(facts.media)})"))
    listed_texts = [each.text for each in facts.instructions if each.text in listed and not each.is_item]
    for number, sentence in enumerate(_split_utterance(facts.text, used_lines)):
        text = _without(sentence, listed_texts)
        if text == "…" or BULLET.sub("", sentence, count=1).rstrip(".") in listed:
            continue
        worth = (
            (_USER_WORTH if is_user else _ASSISTANT_WORTH)
            * fade
            / (1 + number / (8 if is_user or factor == 1.0 else 2))
        )
        if not is_user:
            # A line that ends in a colon announces the call after it, which is listed anyway.
            worth *= (0.2 if text[-1] in ":：" else 1.0) * (1.0 if facts.calls else _STATED_FACTOR)
        extra_text = text if len(text) < 600 else _to_one_line(text, 400)
        if content := rarity.estimate_content(text):
            line.extras.append(_Extra(worth * content, "", extra_text))
    if line.extras:
        yield line


def _split_utterance(text: str, used: set[str]) -> Iterator[str]:
    """Yields the sentences of a text that are not used yet, from its first lines; lines of code as a whole."""
    is_fenced = False
    for line in map(str.strip, text.split("\n")[:200]):
        if line.startswith("```"):
            is_fenced = not is_fenced
            continue
        if line in used or is_date(line):
            continue
        for sentence in [line] if is_fenced else split_sentences(line):
            if len(sentence) >= 3 and sentence not in used:
                used.add(sentence)
                yield sentence


class _TermRarity:
    """How rare each term is among some texts: what few of them have tells most."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._counts = Counter(term for text in texts for term in set(search_terms(text)))
        self._total = len(texts)

    def estimate_content(self, sentence: str) -> float:
        """Estimates how much a sentence of the texts tells, from 0 to about 4: by its terms, names and figures."""
        if is_remark(sentence):
            return 0.0
        terms = set(search_terms(without_vocative(sentence)))
        weight = sum(log(1 + self._total / max(1, self._counts[term])) for term in terms) / log(1 + self._total)
        if weight < _MIN_WEIGHT:
            return 0.0
        return min(weight, _MAX_WEIGHT) / 4 * (1.3 if has_particulars(sentence) else 1.0)


class _StepLines:
    """Groups steps into lines: one for each file, and one for each other distinct call."""

    def __init__(self, uses: _WordUsage, visible: set[str]) -> None:
        self._uses = uses
        self._visible = visible
        self._by_head: dict[tuple[str, str], _CandidateLine] = {}
        self._actions: dict[str, dict[str, list[tuple[int, int]]]] = {}
        self._step_lines: list[_CandidateLine] = []

    def build_lines(self) -> list[_CandidateLine]:
        for path, actions in self._actions.items():
            line = self._by_head["", path]
            line.head = f"{path}: " + ", ".join(
                f"{name} {_format_source_spans(cites)}" for name, cites in actions.items()
            )
        return list(self._by_head.values())

    def add_step(self, number: int, step: _CallStep) -> None:
        span = (step.at, step.until)
        fade = 1 / (1 + step.age / _FADE_CHARACTERS)
        path = _find_subject_path(step)
        if path:
            line = self._by_head.get(("", path))
            worth = _HEADLINE_WORTH * self._uses.estimate_reuse(path, _PATH_REUSE, step.age)
            if path in self._visible:
                worth *= 0.2
            if line is None:
                line = self._by_head["", path] = _CandidateLine(_FILES, path, 0.0, [])
            line.worth = worth + _STEP_WORTH * fade
            self._actions.setdefault(path, {}).setdefault(step.call.name, []).append(span)
        else:
            head = _call_headline(step)
            line = self._by_head.get((step.call.name, head))
            if line is None:
                line = self._by_head[step.call.name, head] = _CandidateLine(_STEPS, head, 0.0, [])
            words = step.call.words
            worth = sum(
                _HEADLINE_WORTH * self._uses.estimate_reuse(word, _PATH_REUSE, step.age)
                for word in (*words.paths, *words.ids)
                if word in head
            )
            worth += sum(self._uses.estimate_reuse(word, _NAME_REUSE, step.age) for word in words.names if word in head)
            line.worth = worth * 0.5 + _STEP_WORTH * fade
        line.citations.append(span)
        self._step_lines.append(line)
        if step.result is not None:
            line.extras.extend(_outcome_pieces(step.result, fade))

    def assign_words(self, material: _SummaryMaterial) -> None:
        """Adds each word that is not visible to the line of the last step that contains it."""
        for number, step in enumerate(material.steps):
            line = self._step_lines[number]
            for label, words, base, factor in _word_kinds(step):
                for word in words:
                    if word in self._visible or self._uses.last_step.get(word) != number or word in line.head:
                        continue
                    line.extras.append(_Extra(factor * self._uses.estimate_reuse(word, base, step.age), label, word))
            if step.result is not None and step.result.fields:
                line.extras.extend(self._result_fields(number, step, step.result))

    def _result_fields(self, number: int, step: _CallStep, result: ResultFacts) -> Iterator[_Extra]:
        values: set[str] = set()
        for key, value in result.fields:
            if len(value) < 3 or value in values or value in self._visible or self._uses.last_step.get(value) != number:
                continue
            values.add(value)
            base = _FIELD_REUSE * (3 if key in self._uses.argument_names else 1) * _form_factor(value)
            worth = _HEADLINE_WORTH * self._uses.estimate_reuse(value, base, step.age)
            yield _Extra(worth, "fields", f"{key} {value}" if key else value)


def _word_kinds(step: _CallStep) -> Iterator[tuple[str, Iterable[str], float, float]]:
    """Yields label, words, reuse of one occurrence, and factor of the worth, for each kind of words in a step."""
    call, result = step.call.words, step.result.words if step.result is not None else NO_EXTRACTED_WORDS
    yield "paths", dict.fromkeys(call.paths + result.paths), _PATH_REUSE, _HEADLINE_WORTH
    yield "names", dict.fromkeys(call.names + result.names), _NAME_REUSE, 1.0
    result_ids: tuple[str, ...] = () if step.result is not None and step.result.fields else result.ids
    yield "ids", dict.fromkeys(call.ids + result_ids), _ID_REUSE, _HEADLINE_WORTH
    yield "links", dict.fromkeys(call.links + result.links), _PATH_REUSE, _HEADLINE_WORTH


def _form_factor(value: str) -> float:
    """Returns the factor for a value's form: codes recur in later calls, measures and plain words less (measured)."""
    if _CODE.fullmatch(value):
        return 2.0
    return 0.3 if (value.isalpha() and value.islower()) or _MEASURE.fullmatch(value) else 1.0


def _find_subject_path(step: _CallStep) -> str:
    """Returns the path that a call is about: its first argument, if that is a path."""
    if not step.call.fields:
        return ""
    value = step.call.fields[0][1]
    return value if len(value) <= 300 and value in step.call.words.paths else ""


def _call_headline(step: _CallStep) -> str:
    arguments: list[str] = []
    for key, value in step.call.fields[:6]:
        # Besides the main argument only short values: no numbers, no remarks.
        if arguments and (len(value) > 200 or value.isdigit() or value.count(" ") > 2):
            continue
        text = _to_one_line(value)
        arguments.append(text if not arguments or not key else f"{key}={text}")
    return f"{step.call.name}: {', '.join(arguments)}" if arguments else step.call.name


def _outcome_pieces(result: ResultFacts, fade: float) -> Iterator[_Extra]:
    for text in result.outline:
        yield _Extra(_OUTLINE_WORTH * fade * (2 if text[-1:] in "{:(" else 1), "lines", text)
    for number, text in enumerate(result.trouble[:2]):
        yield _Extra(_TOOL_LINE_WORTH * (1.0 if result.error or not number else 0.4) * fade, "output", text)
    if result.lines <= 2 and result.first and not result.trouble:
        yield _Extra(0.6 * _TOOL_LINE_WORTH * fade, "output", result.first)
    elif result.last and not result.trouble and not result.fields:
        factor = 0.6 if result.last.count(" ") > 8 else 0.16
        yield _Extra(factor * _TOOL_LINE_WORTH * fade, "output", result.last)


# -- the use of words so far -------------------------------------------------------------------------------------------

_WORD_FADE_CHARACTERS: Final = 120_000
"""Characters of later conversation after which a fact counts half."""
_CALL_REUSE: Final = 0.06
"""Added to the share for each use in a call, up to four."""
_SPOKEN_FACTOR: Final = 1.6
"""For a word that also occurs in a text of the user or the assistant."""


class _CallStep(msgspec.Struct, frozen=True):
    """A tool call with its result. `at` and `until` are message indexes; `age` is in characters from the end."""

    at: int
    until: int
    age: int
    call: CallFacts
    result: ResultFacts | None


class _Utterance(msgspec.Struct, frozen=True):
    """A text of a user or the assistant."""

    at: int
    age: int
    facts: MessageFacts


class _SummaryMaterial(msgspec.Struct, frozen=True):
    """The facts of all summarized messages, in order."""

    steps: tuple[_CallStep, ...]
    utterances: tuple[_Utterance, ...]
    total: int


def _order_material(facts_by_index: Sequence[tuple[int, MessageFacts]]) -> _SummaryMaterial:
    """Pairs each result with the nearest earlier call of its id, and measures ages."""
    sizes = [_count_characters(f) for _, f in facts_by_index]
    remaining_size = sum(sizes)
    total = remaining_size
    open_calls: dict[str, tuple[int, int, CallFacts, int]] = {}
    steps: list[_CallStep | None] = []
    utterances: list[_Utterance] = []
    for (message_index, facts), size in zip(facts_by_index, sizes, strict=True):
        remaining_size -= size
        if facts.role in INSTRUCTION_ROLES:
            continue
        if facts.media or (facts.text and (facts.role != "user" or remove_client_blocks(facts.text).strip())):
            utterances.append(_Utterance(message_index, remaining_size, facts))
        for call in facts.calls:
            open_calls[call.call_id] = (len(steps), message_index, call, remaining_size)
            steps.append(_CallStep(message_index, message_index, remaining_size, call, None))
        for result in facts.results:
            step_index, call_index, call, _ = open_calls.pop(
                result.call_id, (-1, message_index, CallFacts("", "", (), ExtractedWords()), 0)
            )
            step = _CallStep(call_index, message_index, remaining_size, call, result)
            if step_index < 0:
                steps.append(step)
            else:
                steps[step_index] = step
    return _SummaryMaterial(tuple(s for s in steps if s is not None), tuple(utterances), total)


def _count_characters(facts: MessageFacts) -> int:
    calls = sum(len(v) for c in facts.calls for _, v in c.fields)
    return len(facts.text) + calls + sum(r.size for r in facts.results) + 20


class _WordUsage:
    """Counts the occurrences of each word in calls, in texts and in results."""

    def __init__(self, material: _SummaryMaterial) -> None:
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
        share = base * min(self.result_counts[word] + 1, 7) / 2 + _CALL_REUSE * min(call_count, 4)
        if word in self.spoken_counts:
            share *= _SPOKEN_FACTOR
        return share / (1 + age / _WORD_FADE_CHARACTERS)


def _collect_words(message_facts: Iterable[MessageFacts]) -> set[str]:
    """Collects all words of messages."""
    all_words: set[str] = set()
    for facts in message_facts:
        for words in (facts.words, *(c.words for c in facts.calls), *(r.words for r in facts.results)):
            all_words.update(words.paths, words.ids, words.names, words.links)
        for fields in (*(c.fields for c in facts.calls), *(r.fields for r in facts.results)):
            all_words.update(v for _, v in fields if len(v) <= 200)
    return all_words
