"""Finds what users said that holds on, and lists it verbatim at the start of every summary.

Rules, preferences, decisions and corrections are standing instructions. They hold until the user changes them, so they
are chosen by their form (sentence_forms.py), never by their age. Below them stand facts and requests, the assistant's
promises, and what is still open. Code writes these sections in every summary, so no model can omit or reword a line.

Flow: `find_instructions` and `find_promises` extract the instructions or promises of one message, `select_standing`
removes replaced ones, `render_instructions` writes the section within a budget. `states_instruction` compares a summary
line with an instruction, for checks.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice, starmap
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from accordion.model.words import EAST_ASIA
from accordion.sessions.user_text import is_client_summary, user_text
from accordion.summaries.pasted_text import mark_pasted
from accordion.summaries.schema import format_citations
from accordion.summaries.sentence_forms import (
    BRIEF,
    BULLET,
    FACT,
    REQUEST,
    RULE,
    STATEMENT,
    Claim,
    is_change,
    is_correction,
    is_order,
    needs_previous,
    opens_with_verb,
    parse_claim,
    parse_item,
    rank_promise,
    rank_sentence,
    split_clauses,
    split_sentences,
)

TITLE: Final = "Standing instructions from the user"
FACTS_TITLE: Final = "Facts and requests from the user"
PROMISE_TITLE: Final = "Promises and open items"
OPENING: Final = "[Record of message"
"""The beginning of every summary."""

_CORRECTION: Final = 5
"""The priority of a correction of an instruction elsewhere in the window."""

MAX_JOINED_LENGTH: Final = 240
"""Maximum characters of sentences that stay together because they explain each other, and of a promise."""
_MAX_EDGE_LINES: Final = 200
"""Lines to read at both ends of a long text."""
_MAX_INSTRUCTIONS: Final = 48
"""The largest number of instructions from one message."""
_MAX_NAMED_EARLIER: Final = 3
"""The largest number of earlier messages in the note on an instruction."""
_MAX_RUNS: Final = 4
"""Runs of messages in the line about omitted instructions; beyond that it names the first and the last message."""
_MAX_RELATED: Final = 32
"""The largest number of earlier instructions to compare with for each kind of relation."""
_MAX_WORD_OCCURRENCES: Final = 256
"""The largest number of occurrences of its words in earlier instructions to read for a correction, rare words first."""
_MAX_ARTIFACTS: Final = 2
"""The largest number of artifacts in the line about omitted instructions."""

_MIN_ITEMS: Final = 5
_MAX_ITEMS: Final = 1_000
"""The smallest and the largest number of items of a list of facts."""
_ITEM_SEPARATOR: Final = "; "
_SYSTEM: Final = "(system message)"
"""The note on an instruction in a system or developer message."""
_FACT_ITEM = re.compile(r"[^\W_a-z][^;?!`*_{}<>\[\]()=|/\\#\n]{8,200}[^\s;:?!`*_{}<>\[\]()=|/\\#]")
"""A statement in a list: one sentence without signs of code, not a heading."""
_REFERENCE = re.compile(r"^\[\d+-\d+\] art_\w+, .*$", re.MULTILINE)
_SECTION = re.compile(rf"^## (?:{TITLE}|{FACTS_TITLE}|{PROMISE_TITLE})$", re.MULTILINE)
_INDEX = re.compile(r"^\[(\d+)[\d, -]*\] ")
_NOTES = re.compile(r"(?: \((?:replaces|newer than|older than) \[\d+\](?:, \[\d+\])*\))+$")
_ANY_TAG = re.compile(r"</?[\w-]+>")
_EAST_ASIA = re.compile(f"[{EAST_ASIA}]+")
_NOTE = re.compile(r"^\[[^\[\]]*\s[^\[\]]*\]\s+(?=\S)")
"""A note of a client before a text, such as "[Image #1]"."""
_RULES_HEADING = re.compile(
    r"\b(?:rules|guidelines|conventions|style|preferences|constraints|regeln|vorgaben|règles|consignes|reglas|normas)\b"
    r"[^.!?]*:$|(?:规则|規則|规范|要求|ルール)[^。]*[:：]$",
    re.IGNORECASE,
)
"""A line above a list of rules."""
_NOT_PROSE = re.compile(
    r"^(?:[<>|$#{}\[\]]|//|/\*|\w+\s*=\s|(?:def|class|return)\s.*[:;({]?$|(?:if|for|while)\s(?:.*[;({]|[^,]*:(?:\s\w+)?)$|"
    r"import\s|from\s\S+\simport\s)|[;{}]$|\t|  {4,}"
)


class Instruction(msgspec.Struct, frozen=True):
    """A line or sentence of a user, verbatim.

    `rank` is from STATEMENT to RULE; `claims` has one entry for each sentence. `is_change`: something is different from
    now on. `is_correction`: and something was wrong. `is_promise`: the assistant promised it, or it is still open.
    `is_of_system`: it is a rule in a system or developer message. `is_item`: it is one of a list of facts.
    """

    text: str
    rank: int
    claims: tuple[Claim, ...]
    is_change: bool
    is_correction: bool
    is_promise: bool = False
    is_of_system: bool = False
    is_item: bool = False

    @property
    def is_rule(self) -> bool:
        """Whether it is a standing instruction."""
        return self.rank == RULE and not self.is_promise

    @property
    def is_listed(self) -> bool:
        """Whether a summary lists it. Other statements only tell which older values are outdated."""
        return self.rank > STATEMENT or self.is_promise

    @property
    def is_fact(self) -> bool:
        """Whether it is a fact or a request of its own, in no list."""
        return self.rank != RULE and not self.is_promise and not self.is_item

    @property
    def size(self) -> int:
        """The approximate size in bytes."""
        return 400 + sum(600 + 80 * (2 * len(each.words) + len(each.figures)) for each in self.claims)

    @property
    def words(self) -> frozenset[str]:
        """The words of all its claims."""
        return frozenset().union(*(claim.words for claim in self.claims))


class CitedInstruction(msgspec.Struct, frozen=True):
    """An instruction with the client's index of its message.

    It replaces the instructions of the messages `replaces`, and may contradict those of `newer_than` and `older_than`;
    the latter are newer, and elsewhere in the window. The highest `priority` is listed first if space is short.
    """

    index: int
    instruction: Instruction
    replaces: tuple[int, ...] = ()
    newer_than: tuple[int, ...] = ()
    older_than: tuple[int, ...] = ()
    priority: int = 0

    def __str__(self) -> str:
        notes = [
            f"({word} {', '.join(f'[{index}]' for index in indexes[-_MAX_NAMED_EARLIER:])})"
            for word, indexes in (
                ("replaces", self.replaces),
                ("newer than", self.newer_than),
                ("older than", self.older_than),
            )
            if indexes
        ]
        author = [_SYSTEM] if self.instruction.is_of_system else []
        return " ".join([f"[{self.index}]", *author, self.instruction.text, *notes])


class OutdatedInstruction(NamedTuple):
    """An instruction that a newer one replaces or may contradict, with the index of its message."""

    message_index: int
    instruction: Instruction


class StandingInstructions(msgspec.Struct, frozen=True):
    """The instructions to list, in order, and the outdated ones, which no line of the summary may repeat.

    `promises` are the assistant's.
    """

    cited: tuple[CitedInstruction, ...] = ()
    outdated: tuple[OutdatedInstruction, ...] = ()
    promises: tuple[CitedInstruction, ...] = ()

    def in_order(self) -> tuple[CitedInstruction, ...]:
        """Returns the instructions and promises to list, in the order of their messages."""
        return tuple(sorted((*self.cited, *self.promises), key=lambda each: each.index))


def find_instructions(text: str) -> tuple[Instruction, ...]:
    """Finds the instructions and statements in a user's text, in order, with those that a summary in it lists."""
    before, lines, after = _split_at_summary(text)
    return (
        *_find_in_text(before),
        *chain.from_iterable(starmap(_read_listed_line, lines)),
        *_find_in_text(after),
    )


def _find_in_text(text: str) -> Iterator[Instruction]:
    """Yields the instructions in a user's own text, and the items of lists of facts after them."""
    items = find_items(text)
    sentences = ((each, rank) for each, rank in _rank_sentences(text) if BULLET.sub("", each).rstrip(".") not in items)
    yield from starmap(build_instruction, islice(sentences, _MAX_INSTRUCTIONS))
    yield from map(_build_item, items)


def _read_listed_line(title: str, line: str) -> Iterator[Instruction]:
    """Yields what a line of a summary lists in the section with a title."""
    if title == PROMISE_TITLE:
        yield _build_promise(line)
    elif line.startswith(_SYSTEM):
        yield replace(build_instruction(line.removeprefix(_SYSTEM).lstrip(), RULE), is_of_system=True)
    elif title == TITLE:
        yield build_instruction(line, RULE)
    elif _ITEM_SEPARATOR in line:
        yield from map(_build_item, line.split(_ITEM_SEPARATOR))
    else:
        yield build_instruction(line, _rank_fact(line))


def _rank_fact(sentence: str) -> int:
    return min(FACT, max(map(rank_sentence, split_sentences(sentence)), default=0)) or STATEMENT


def find_items(text: str) -> dict[str, None]:
    """Finds the items of lists of facts: five numbered or marked lines or more in a row, each a statement."""
    items, run = dict[str, None](), list[str]()
    for line in (*text.split("\n"), ""):
        stripped = line.strip()
        item = BULLET.sub("", stripped, count=1)
        if item != stripped and _FACT_ITEM.fullmatch(item) is not None and not opens_with_verb(item):
            run.append(item.rstrip("."))
        elif stripped or not run:
            if len(run) >= _MIN_ITEMS:
                items.update(dict.fromkeys(run[:_MAX_ITEMS]))
            run = []
    if len(run) >= _MIN_ITEMS:
        items.update(dict.fromkeys(run[:_MAX_ITEMS]))
    return items


def find_system_rules(text: str) -> tuple[Instruction, ...]:
    """Finds the lasting orders in a system or developer message, in order. The rest of it holds for its round."""
    sentences = (part for line in _prose_lines(_ANY_TAG.sub("\n", text)) for part in split_sentences(line))
    rules = (
        sentence
        for sentence in sentences
        if len(sentence) <= MAX_JOINED_LENGTH and rank_sentence(sentence) == RULE and is_order(BULLET.sub("", sentence))
    )
    found = (replace(build_instruction(sentence, RULE), is_of_system=True) for sentence in rules)
    return tuple(islice(found, _MAX_INSTRUCTIONS))


def find_promises(text: str) -> tuple[Instruction, ...]:
    """Finds the promises and open items in an assistant's text, in order."""
    sentences = (part for line in _prose_lines(text) for part in split_sentences(line))
    promises = (sentence for sentence in sentences if len(sentence) <= MAX_JOINED_LENGTH and rank_promise(sentence))
    return tuple(_build_promise(sentence) for sentence in islice(promises, _MAX_INSTRUCTIONS))


def select_standing(
    instructions: Iterable[tuple[int, Instruction]], is_listed: Callable[[int, str], bool]
) -> StandingInstructions:
    """Selects the instructions in force, each once, of those for which `is_listed(message index, text)` is true.

    An instruction on the same subject replaces the earlier one. If the two only may contradict each other, both stay,
    and the newer one has a note. Instructions that are not listed occur elsewhere in the window, and count like others.
    """
    instruction_index, in_force_by_position = _InstructionIndex(), dict[int, CitedInstruction]()
    shown_positions = set[int]()
    outdated: dict[int, OutdatedInstruction] = {}
    for position, (index, instruction) in enumerate(instructions):
        if is_listed(index, instruction.text):
            shown_positions.add(position)
        # Few long ones would fit. The user's own come first.
        priority = instruction.rank - (len(instruction.text) > BRIEF and not instruction.is_rule)
        if instruction.is_of_system:
            priority = STATEMENT
        replaced_indexes, newer_than = set[int](), set[int]()
        for other in instruction_index.find_related(instruction):
            earlier = in_force_by_position[other]
            if earlier.instruction.is_of_system != instruction.is_of_system:
                continue
            if is_replacement(instruction, earlier.instruction):
                del in_force_by_position[other]
                instruction_index.remove(other, earlier.instruction)
                targets = replaced_indexes
            elif may_replace(instruction, earlier.instruction):
                targets = newer_than
                if position not in shown_positions:
                    in_force_by_position[other] = replace(earlier, older_than=(*earlier.older_than, index))
            else:
                continue
            if earlier.instruction.text != instruction.text:
                targets.add(earlier.index)
                outdated[other] = OutdatedInstruction(earlier.index, earlier.instruction)
                priority = max(priority, earlier.priority)
                if other not in shown_positions:
                    priority = _CORRECTION - (len(instruction.text) > BRIEF)
        in_force_by_position[position] = CitedInstruction(
            index, instruction, tuple(sorted(replaced_indexes)), tuple(sorted(newer_than)), priority=priority
        )
        instruction_index.add(position, instruction)
    in_force = {cited.instruction.text for position, cited in in_force_by_position.items() if position not in outdated}
    listed = [cited for position, cited in in_force_by_position.items() if position in shown_positions]
    return StandingInstructions(
        tuple(cited for cited in listed if not cited.instruction.is_promise),
        tuple(each for each in outdated.values() if each.instruction.text not in in_force),
        tuple(cited for cited in listed if cited.instruction.is_promise),
    )


def render_instructions(
    instructions: Sequence[CitedInstruction],
    budget: int,
    count: Callable[[str], int],
    artifact: Callable[[int], str] | None = None,
    *,
    other_budget: int | None = None,
) -> tuple[str, frozenset[str]]:
    """Renders the instructions and promises that fit into `budget` tokens of `count`. Also returns their texts.

    What is no standing instruction has at most `other_budget` tokens of them.
    Corrections of instructions elsewhere in the window come first, then rules, then statements, and newer ones before
    older ones, so that an old instruction never appears without the newer one that may contradict it. A last line names
    the messages of omitted instructions, and their artifacts: `artifact` returns the id for a message, or "" if no line
    about it is needed.
    """
    if not instructions or budget <= 0:
        return "", frozenset()
    text = _render_section(instructions, instructions, artifact)
    others = [each for each in instructions if not each.instruction.is_rule]
    other_budget = budget if other_budget is None else other_budget
    if count(text) <= budget and (not others or count(_render_section(others, others, artifact)) <= other_budget):
        return text, frozenset(each.instruction.text for each in instructions)
    frame = count(_render_section(instructions, (), artifact))
    selection = _choose_instructions(instructions, budget - frame, other_budget - frame, count)
    while (text := _render_section(instructions, selection, artifact)) and count(text) > budget:
        if not selection:
            return "", frozenset()
        selection.pop()
    return text, frozenset(each.instruction.text for each in selection)


def _choose_instructions(
    instructions: Sequence[CitedInstruction], budget: int, other_budget: int, count: Callable[[str], int]
) -> list[CitedInstruction]:
    """Chooses the instructions that fit, by value; no instruction without the newer ones that may contradict it."""
    selection = list[CitedInstruction]()
    omitted_by_index: dict[int, list[Instruction]] = {}
    for cited in _order_by_value(instructions):
        tokens = count(cited.instruction.text + _ITEM_SEPARATOR if cited.instruction.is_item else f"{cited}\n")
        available = budget if cited.instruction.is_rule else min(budget, other_budget)
        is_outdated = any(may_replace(each, cited.instruction) for each in omitted_by_index.get(cited.index, ()))
        if tokens <= available and not is_outdated:
            budget -= tokens
            other_budget -= 0 if cited.instruction.is_rule else tokens
            selection.append(cited)
        else:
            for index in cited.newer_than:
                omitted_by_index.setdefault(index, []).append(cited.instruction)
    return selection


def _order_by_value(instructions: Sequence[CitedInstruction]) -> list[CitedInstruction]:
    """Orders instructions by priority.

    Of equal ones that last, changes come first, since an earlier one may say the opposite in other words; then short
    ones, since more of them fit. Of the others, newer ones come first. An instruction comes after a newer one that may
    contradict it.
    """
    keys = list[tuple[int, int, int]]()
    newer_by_index: dict[int, list[tuple[tuple[int, int, int], Instruction]]] = {}
    for position in range(len(instructions) - 1, -1, -1):
        cited = instructions[position]
        length = len(cited.instruction.text) if cited.priority >= FACT and not cited.instruction.is_change else 0
        if cited.instruction.is_item:
            length = MAX_JOINED_LENGTH
        newer = newer_by_index.get(cited.index, ())
        newer_keys = (key for key, instruction in newer if may_replace(instruction, cited.instruction))
        keys.append(max([(-cited.priority, length, -position), *newer_keys]))
        for index in cited.newer_than:
            newer_by_index.setdefault(index, []).append((keys[-1], cited.instruction))
    keys.reverse()
    return [
        instructions[position]
        for position in sorted(range(len(instructions)), key=lambda number: (keys[number], -number))
    ]


def is_replacement(later: Instruction, earlier: Instruction) -> bool:
    """Whether `later` certainly repeats `earlier` with another value."""
    if later.text == earlier.text:
        return True
    if len(earlier.claims) == 1:
        return any(_replaces(claim, earlier.claims[0]) for claim in later.claims)
    # Otherwise every sentence must come again, with the same or another value.
    return any(_replaces(claim, each) for claim in later.claims for each in earlier.claims) and all(
        any(claim == each or _replaces(claim, each) for claim in later.claims) for each in earlier.claims
    )


def may_replace(later: Instruction, earlier: Instruction) -> bool:
    """Whether the two may contradict each other."""
    return any(
        _may_replace(claim, other, later.is_change and (later.rank == RULE or later.is_correction))
        for claim in later.claims
        for other in earlier.claims
    )


def states_instruction(text: str, instruction: Instruction, *, reversed: bool = False) -> bool:
    """Whether a text states the same as an instruction of one sentence. `reversed`: with the opposite negation."""
    if len(instruction.claims) != 1:
        return False
    text_claim, claim = parse_claim(text), instruction.claims[0]
    is_reversed = text_claim.is_negative != claim.is_negative
    return (
        len(claim.words) > 1
        and claim.words <= text_claim.words
        and {figure for figure, _ in claim.figures} <= {figure for figure, _ in text_claim.figures}
        and is_reversed == reversed
    )


class _InstructionIndex:
    """Finds the earlier instructions in force that may be related to one, without comparing it with all.

    It returns a bounded number of them, the newest for each kind of relation. Older ones of the same kind are related
    to these in turn, so that an order by age still holds for all.
    """

    def __init__(self) -> None:
        self._words: dict[int, frozenset[str]] = {}
        self._positions_by_key: dict[object, dict[int, None]] = {}

    def add(self, position: int, instruction: Instruction) -> None:
        self._words[position] = _words_and_figures(instruction)
        for key in _index_keys(instruction):
            self._positions_by_key.setdefault(key, {})[position] = None

    def remove(self, position: int, instruction: Instruction) -> None:
        del self._words[position]
        for key in _index_keys(instruction):
            self._positions_by_key[key].pop(position, None)

    def find_related(self, instruction: Instruction) -> list[int]:
        """Returns the positions of the instructions to compare with, in order."""
        if instruction.is_promise:
            return list(self._newest((True, instruction.text)))
        keys = chain(((False, instruction.text),), *map(_relation_keys, instruction.claims))
        positions = {position for key in keys for position in self._newest(key)}
        if instruction.is_change:
            positions.update(self._with_shared_words(_words_and_figures(instruction)))
        return sorted(positions)

    def _newest(self, key: object) -> Iterator[int]:
        return islice(reversed(self._positions_by_key.get(key, {})), _MAX_RELATED)

    def _with_shared_words(self, words: frozenset[str]) -> Iterator[int]:
        """Yields the positions that share words: those that share most, and newest."""
        by_rarity = sorted((self._positions_by_key[word] for word in words if word in self._positions_by_key), key=len)
        candidates = dict.fromkeys(islice(chain.from_iterable(map(reversed, by_rarity)), _MAX_WORD_OCCURRENCES))
        shared_counts = ((len(words & self._words[position]), position) for position in candidates)
        ranked = sorted((pair for pair in shared_counts if pair[0]), reverse=True)
        return (position for _, position in ranked[: 2 * _MAX_RELATED])


def _index_keys(instruction: Instruction) -> Iterator[object]:
    """Yields all keys under which an instruction can be found."""
    yield instruction.is_promise, instruction.text
    # A promise is only repeated: another one on the same subject adds to it.
    if instruction.is_promise:
        return
    for claim in instruction.claims:
        yield from _subject_keys(claim)
        yield from (("words", claim.words, claim.is_negative), ("stem", claim.stem, claim.is_negative))
    yield from _words_and_figures(instruction)


def _relation_keys(claim: Claim) -> Iterator[object]:
    """Yields the keys of the claims that one may replace or contradict: see `_replaces` and `_may_replace`."""
    yield from _subject_keys(claim)
    yield "words", claim.words, False
    if not claim.is_negative:
        # Prohibitions of different things add up.
        yield from (("words", claim.words, True), ("stem", claim.stem, False), ("stem", claim.stem, True))


def _subject_keys(claim: Claim) -> Iterator[object]:
    """Yields the keys that claims on one subject share: its words, or all words but for the values, or the figures."""
    if claim.subject:
        yield "subject", claim.subject
    if claim.figures:
        yield "figures", claim.words, tuple(figure for figure, _ in claim.figures)
        yield "values", claim.words, tuple("" if is_value else figure for figure, is_value in claim.figures)


def _words_and_figures(instruction: Instruction) -> frozenset[str]:
    return instruction.words.union(figure for claim in instruction.claims for figure, _ in claim.figures)


def _render_section(
    instructions: Sequence[CitedInstruction],
    selection: Sequence[CitedInstruction],
    artifact: Callable[[int], str] | None,
) -> str:
    selected = set(map(id, selection))
    listed = [each for each in instructions if id(each) in selected]
    rules = [str(each) for each in listed if each.instruction.is_rule]
    facts = [str(each) for each in listed if each.instruction.is_fact]
    promises = [str(each) for each in listed if each.instruction.is_promise]
    facts += _render_items([each for each in listed if each.instruction.is_item])
    omitted = _render_omission([each.index for each in instructions if id(each) not in selected], artifact)
    lines = [f"## {TITLE}", *rules] if rules or not (facts or promises) else []
    lines += [f"## {FACTS_TITLE}", *facts] if facts else []
    lines += omitted
    return "\n".join([*lines, *([f"## {PROMISE_TITLE}", *promises] if promises else [])])


def _render_items(items: Sequence[CitedInstruction]) -> list[str]:
    """Renders the items of lists in one line, sorted, so that the same subjects stand together."""
    if not items:
        return []
    citations = format_citations(sorted({each.index for each in items}))
    return [f"{citations} {_ITEM_SEPARATOR.join(sorted(each.instruction.text for each in items))}"]


def _render_omission(omitted: Sequence[int], artifact: Callable[[int], str] | None) -> list[str]:
    """Renders the line about the instructions that have no room, by the indexes of their messages."""
    if not omitted:
        return []
    citations = format_citations(sorted(set(omitted)))
    if citations.count(",") >= _MAX_RUNS:
        citations = f"[{min(omitted)}-{max(omitted)}]"
    names = list(dict.fromkeys(filter(None, map(artifact, sorted(set(omitted)))))) if artifact else []
    archive_note = f"; archived in {', '.join(names)}" if 0 < len(names) <= _MAX_ARTIFACTS else ""
    return [f"({len(omitted)} more left out, from {citations}{archive_note}.)"]


def _replaces(later: Claim, earlier: Claim) -> bool:
    if later.subject and later.subject == earlier.subject:
        return later.has_value and earlier.has_value and not _repeats_value(later, earlier)
    return len(later.words) > 1 and later.words == earlier.words and _differ_in_values(later, earlier)


def _may_replace(later: Claim, earlier: Claim, is_change: bool) -> bool:
    if _repeats(later, earlier) and not (is_change and later.words > earlier.words):
        return False
    if later.subject and later.subject == earlier.subject:
        return not _repeats_value(later, earlier)
    if is_change:
        shared_count, least_count = len(later.words & earlier.words), min(len(later.words), len(earlier.words))
        if shared_count * 2 >= least_count and (shared_count >= 2 or least_count == 2):
            return True
    if len(later.words) > 1 and later.words == earlier.words:
        # Prohibitions of different things add up, and an instruction in another form needs no note.
        return later.is_negative != earlier.is_negative or (not later.is_negative and later.figures != earlier.figures)
    return not later.is_negative and len(later.stem) > 1 and later.stem == earlier.stem


def _repeats(later: Claim, earlier: Claim) -> bool:
    """Whether the two say the same, one of them in more words."""
    is_same = later.figures == earlier.figures and later.is_negative == earlier.is_negative
    return is_same and (later.words <= earlier.words or earlier.words <= later.words)


def _repeats_value(later: Claim, earlier: Claim) -> bool:
    """Whether the two state the same value, maybe with other words around it."""
    if not later.value or not earlier.value:
        return False
    if later.value == earlier.value:
        return later.is_negative == earlier.is_negative
    return later.value < earlier.value or earlier.value < later.value


def _differ_in_values(later: Claim, earlier: Claim) -> bool:
    """Whether all figures that differ are values."""
    if len(later.figures) != len(earlier.figures):
        return False
    different = [pair for pair in zip(later.figures, earlier.figures, strict=True) if pair[0][0] != pair[1][0]]
    return bool(different) and all(first[1] and second[1] for first, second in different)


def _split_at_summary(text: str) -> tuple[str, list[tuple[str, str]], str]:
    """Returns a user's text before a summary of this proxy, the lines that it lists, and the text after it.

    A client may send back a summary. Apart from the listed lines, nothing in it is the user's text. Each comes with the
    title of its section, in the order in which they were said.
    """
    start = text.find(OPENING)
    section = _SECTION.search(text, start) if start >= 0 else None
    if section is None or (start and text[start - 1] != "\n"):
        return text, [], ""
    ends = [match.end() for match in _REFERENCE.finditer(text, section.start())]
    lines, title = list[tuple[int, str, str]](), ""
    for line in text[section.start() :].partition("\n\n")[0].split("\n"):
        if line.startswith("## "):
            title = line[3:]
        elif (index := _INDEX.match(line)) is not None:
            lines.append((int(index.group(1)), title, _NOTES.sub("", line[index.end() :])))
    lines.sort(key=lambda each: each[0])
    return text[:start], [(title, line) for _, title, line in lines], text[ends[-1] :] if ends else ""


def _rank_sentences(text: str) -> Iterator[tuple[str, int]]:
    """Yields the sentences that are more than remarks, verbatim, each joined with those that it needs, and the rank.

    Of pasted material, tables, quoted mails, the middle of a long text, and a client's own messages in the user's role,
    these are only lasting orders that correct nothing: the user may want them, and its facts and requests are not the
    user's.
    """
    is_typed, is_list_of_rules = bool(user_text(text)) and not is_client_summary(text), False
    for line in mark_pasted(_lines_without_code(text)):
        is_own = is_typed and not line.is_pasted
        is_item = BULLET.match(line.text) is not None
        if is_own and is_item and is_list_of_rules and len(line.text) <= MAX_JOINED_LENGTH:
            yield line.text, RULE
            continue
        is_list_of_rules = is_own and not is_item and _RULES_HEADING.search(line.text) is not None
        is_table_or_quotation = line.text.startswith(("|", ">"))
        is_own = is_own and not is_table_or_quotation
        for text_part in re.split(r"[|>]\s*", line.text) if is_table_or_quotation else (line.text,):
            for part, rank in _join_dependent(text_part.strip()) if _is_prose(text_part) else ():
                is_listed = is_own or (rank == RULE and _is_general_order(BULLET.sub("", part)))
                if is_listed and _is_long_enough(part):
                    yield part, rank


def _is_general_order(sentence: str) -> bool:
    return is_order(sentence) and not is_correction(sentence)


def _join_dependent(line: str) -> Iterator[tuple[str, int]]:
    """Yields the ranked sentences of a line, each joined with the one before it if it needs that.

    Joined ones have at most `MAX_JOINED_LENGTH` characters. Consecutive sentences of one rank stay together, too. Of a
    sentence that is longer these are the clauses.
    """
    start, end, rank, position, previous = 0, 0, 0, 0, -1
    for sentence, is_clause in chain.from_iterable(map(_split_long, split_sentences(line))):
        first = line.index(sentence, position)
        position = first + len(sentence)
        sentence_rank = rank_sentence(sentence)
        is_dependent = sentence_rank and not is_clause and needs_previous(sentence)
        is_alike = sentence_rank == rank or (
            is_dependent and sentence_rank >= min(rank, REQUEST) and line[end - 1] not in "?!？！"
        )
        if rank and not (sentence_rank and is_alike and position - start <= MAX_JOINED_LENGTH):
            yield line[start:end], rank
            rank = 0
        if sentence_rank:
            if not rank:
                is_with_previous = is_dependent and previous >= 0 and position - previous <= MAX_JOINED_LENGTH
                start = previous if is_with_previous else first
            end, rank = position, max(rank, sentence_rank)
        previous = -1 if sentence_rank or sentence[-1] in "?!？！" else first
    if rank:
        yield line[start:end], rank


def _split_long(sentence: str) -> list[tuple[str, bool]]:
    """Returns a sentence, or the clauses of a long one, each with whether it is a clause."""
    if len(sentence) <= MAX_JOINED_LENGTH:
        return [(sentence, False)]
    return [(clause, True) for clause in split_clauses(sentence)]


def _prose_lines(text: str) -> Iterator[str]:
    return filter(_is_prose, _lines_without_code(text))


def _lines_without_code(text: str) -> list[str]:
    """Returns the lines of a text, at both ends if it is very long, stripped and without code, with empty lines."""
    lines = text.split("\n")
    if len(lines) > 2 * _MAX_EDGE_LINES:
        lines = [*lines[:_MAX_EDGE_LINES], *lines[-_MAX_EDGE_LINES:]]
    without_code, is_fenced = list[str](), False
    for line in lines:
        stripped = line.strip()
        if stripped.startswith("```"):
            is_fenced = not is_fenced
        elif is_fenced or _looks_like_code(line, stripped):
            continue
        else:
            without_code.append(_NOTE.sub("", stripped))
    return without_code


def _is_prose(line: str) -> bool:
    return _is_long_enough(line) and not _NOT_PROSE.search(line)


def _looks_like_code(line: str, stripped: str) -> bool:
    """Whether a line is indented like code; a list item may be indented."""
    return (
        line[:1] in " \t"
        and not BULLET.match(stripped)
        and len(line.expandtabs(4)) - len(line.expandtabs(4).lstrip()) >= 4
    )


def _is_long_enough(text: str) -> bool:
    return len(text) >= 8 or len(_EAST_ASIA.sub("", text)) <= len(text) - 4


def _build_promise(sentence: str) -> Instruction:
    return replace(build_instruction(sentence, rank_promise(sentence) or STATEMENT), is_promise=True)


def _build_item(text: str) -> Instruction:
    return Instruction(text, FACT, (parse_item(text),), False, False, is_item=True)


def build_instruction(sentence: str, rank: int | None = None) -> Instruction:
    """Builds the instruction of a sentence, with its rank if that is known; a remark counts as a statement."""
    text = BULLET.sub("", sentence)
    claims = tuple(map(parse_claim, split_sentences(text)))
    has_change = is_change(text)
    # A correction counts only where something is to change.
    rank = (rank_sentence(sentence) or STATEMENT) if rank is None else rank
    return Instruction(sentence, rank, claims, has_change, has_change and is_correction(text))
