"""Builds the candidate lines of an extractive summary, with sources and an estimated value for each piece.

A line has a head and any number of extras after it. Both are verbatim from the messages. The values are tuned on
recorded agent runs: the expected number of later uses.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from accordion.summaries.fact_ranking import CallStep, SummaryMaterial, Utterance, WordUsage
from accordion.summaries.fact_words import NO_EXTRACTED_WORDS
from accordion.summaries.facts import ResultFacts
from accordion.summaries.instructions import WHOLE

REQUESTS, STATED, FILES, STEPS = 0, 1, 2, 3
TITLES: Final = ("Said by the user", "Said by the assistant", "Files", "Calls and results")
WORDS: Final = frozenset({"paths", "names", "ids", "links", "fields"})
"""The labels of extras that are single words; the others are lines."""
SHARES: Final = (0.35, 0.2, 1.0, 1.0)
"""The largest share of the budget for each section."""
_MAX_ARGUMENT_LENGTH: Final = 160
_MAX_CITATIONS: Final = 6
_PATH_REUSE: Final = 0.05
_NAME_REUSE: Final = 0.012
_ID_REUSE: Final = 0.02
_FIELD_REUSE: Final = 0.04
_HEADLINE_WORTH: Final = 3.0
_USER_WORTH: Final = 1.2
_ASSISTANT_WORTH: Final = 0.2
_TOOL_LINE_WORTH: Final = 0.15
_OUTLINE_WORTH: Final = 0.01
_STEP_WORTH: Final = 0.15
_FADE_CHARACTERS: Final = 40_000
"""Characters of later conversation after which the value is half."""

_CODE = re.compile(r"[A-Z]+|(?=\D*\d)(?=[^A-Za-z]*[A-Za-z])[\w#-]+")
"""Capitals alone, or letters and digits in one piece."""
_MEASURE = re.compile(r"[-+]?\d{0,3}(?:[.,]\d+)*")


class CandidateLine:
    """A candidate line. `worth` is the head's expected number of later uses."""

    __slots__ = ("citations", "extras", "head", "section", "worth")

    def __init__(self, section: int, head: str, worth: float, citations: list[tuple[int, int]]) -> None:
        self.section = section
        self.head = head
        self.worth = worth
        self.citations = citations
        self.extras: list[tuple[float, str, str]] = []
        """Value, label ("" for none), text."""


def format_source_spans(citations: Iterable[tuple[int, int]]) -> str:
    """Formats the first and the newest sources of a line: `[3-4, 9]`."""
    spans = sorted(set(citations))
    if len(spans) > _MAX_CITATIONS:
        spans = [spans[0], *spans[-_MAX_CITATIONS + 1 :]]
    return "[" + ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans) + "]"


def to_one_line(text: str, max_length: int = _MAX_ARGUMENT_LENGTH) -> str:
    """Shortens a text to one line: its beginning up to a space, and an ellipsis if anything is left out."""
    stripped = text.strip()
    line = stripped.split("\n", 1)[0].rstrip() if "\n" in stripped else stripped
    if len(line) > max_length:
        end = line.rfind(" ", 0, max_length)
        line = line[:end].rstrip() if end > max_length // 3 else ""
    return line if len(line) == len(stripped) else f"{line} …"


def build_candidates(
    material: SummaryMaterial,
    word_usage: WordUsage,
    visible_words: set[str],
    visible_lines: Collection[str] = (),
    listed: Collection[str] = (),
    *,
    only_work: bool = False,
) -> list[CandidateLine]:
    """Builds all candidate lines, unordered.

    Leaves out `visible_words` and `visible_lines`, which occur in the remaining messages, and the `listed` lines and
    sentences of instructions. Of repeated lines only the last one counts. `only_work`: without users' words, and
    without an assistant's that name nothing.
    """
    used_lines = {*visible_lines, *listed}
    lines: list[CandidateLine] = [
        line
        for utterance in reversed(material.utterances)
        if not only_work or _is_work(utterance)
        for line in _utterance_lines(utterance, used_lines, listed)
    ]
    step_lines = _StepLines(word_usage, visible_words)
    for number, step in enumerate(material.steps):
        step_lines.add_step(number, step)
    step_lines.assign_words(material)
    return lines + step_lines.build_lines()


def _without(text: str, listed_texts: Collection[str]) -> str:
    """Replaces sentences that are listed elsewhere with an ellipsis."""
    for sentence in listed_texts:
        if len(sentence) < len(text):
            text = text.replace(sentence, "…")
    return text


def _is_work(utterance: Utterance) -> bool:
    """Whether an assistant's text has names, paths, ids, links or figures."""
    return utterance.facts.role == "assistant" and utterance.facts.words != NO_EXTRACTED_WORDS


def _utterance_lines(utterance: Utterance, used_lines: set[str], listed: Collection[str]) -> Iterator[CandidateLine]:
    facts = utterance.facts
    is_user = facts.role != "assistant"
    fade = 1 / (1 + utterance.age / _FADE_CHARACTERS)
    line = CandidateLine(REQUESTS if is_user else STATED, "", 0.0, [(utterance.at, utterance.at)])
    listed_texts = [each.text for each in facts.instructions if each.text in listed]
    if facts.media:
        line.extras.append((0.3 * fade, "", f"({', '.join(facts.media)})"))
    for number, line_text in enumerate(map(str.strip, facts.text.split("\n")[:200])):
        if len(line_text) < 3 or line_text.startswith("```") or line_text in used_lines:
            continue
        used_lines.add(line_text)
        # A user's short line is an instruction as a whole.
        text = line_text if is_user and len(line_text) <= WHOLE else _without(line_text, listed_texts)
        if text == "…":
            continue
        worth = (_USER_WORTH if is_user else _ASSISTANT_WORTH) * fade / (1 + number / (8 if is_user else 2))
        if not is_user:
            # A line that ends in a colon announces the call after it, which is listed anyway.
            worth *= (0.2 if text[-1] in ":：" else 1.0) * (1.0 if facts.calls else 2.0)
        line.extras.append((worth * min(1.0, len(text) / 40), "", text if len(text) < 600 else to_one_line(text, 400)))
    if line.extras:
        yield line


class _StepLines:
    """Groups steps into lines: one for each file, and one for each other distinct call."""

    def __init__(self, uses: WordUsage, visible: set[str]) -> None:
        self._uses = uses
        self._visible = visible
        self._by_head: dict[tuple[str, str], CandidateLine] = {}
        self._actions: dict[str, dict[str, list[tuple[int, int]]]] = {}
        self._step_lines: list[CandidateLine] = []

    def build_lines(self) -> list[CandidateLine]:
        for path, actions in self._actions.items():
            line = self._by_head["", path]
            line.head = f"{path}: " + ", ".join(
                f"{name} {format_source_spans(cites)}" for name, cites in actions.items()
            )
        return list(self._by_head.values())

    def add_step(self, number: int, step: CallStep) -> None:
        span = (step.at, step.until)
        fade = 1 / (1 + step.age / _FADE_CHARACTERS)
        path = _find_subject_path(step)
        if path:
            line = self._by_head.get(("", path))
            chance = _HEADLINE_WORTH * self._uses.estimate_reuse(path, _PATH_REUSE, step.age)
            if path in self._visible:
                chance *= 0.2
            if line is None:
                line = self._by_head["", path] = CandidateLine(FILES, path, 0.0, [])
            line.worth = chance + _STEP_WORTH * fade
            self._actions.setdefault(path, {}).setdefault(step.call.name, []).append(span)
        else:
            head = _call_headline(step)
            line = self._by_head.get((step.call.name, head))
            if line is None:
                line = self._by_head[step.call.name, head] = CandidateLine(STEPS, head, 0.0, [])
            words = step.call.words
            worth = sum(
                _HEADLINE_WORTH * self._uses.estimate_reuse(w, _PATH_REUSE, step.age)
                for w in (*words.paths, *words.ids)
                if w in head
            )
            worth += sum(self._uses.estimate_reuse(w, _NAME_REUSE, step.age) for w in words.names if w in head)
            line.worth = worth * 0.5 + _STEP_WORTH * fade
        line.citations.append(span)
        self._step_lines.append(line)
        if step.result is not None:
            line.extras.extend(_outcome_pieces(step.result, fade))

    def assign_words(self, material: SummaryMaterial) -> None:
        """Adds each word that is not visible to the line of the last step that contains it."""
        for number, step in enumerate(material.steps):
            line = self._step_lines[number]
            for label, words, base, weight in _word_kinds(step):
                for word in words:
                    if word in self._visible or self._uses.last_step.get(word) != number or word in line.head:
                        continue
                    line.extras.append((weight * self._uses.estimate_reuse(word, base, step.age), label, word))
            if step.result is not None and step.result.fields:
                line.extras.extend(self._result_fields(number, step, step.result))

    def _result_fields(self, number: int, step: CallStep, result: ResultFacts) -> Iterator[tuple[float, str, str]]:
        values: set[str] = set()
        for key, value in result.fields:
            if len(value) < 3 or value in values or value in self._visible or self._uses.last_step.get(value) != number:
                continue
            values.add(value)
            base = _FIELD_REUSE * (3 if key in self._uses.argument_names else 1) * _form_factor(value)
            yield (
                _HEADLINE_WORTH * self._uses.estimate_reuse(value, base, step.age),
                "fields",
                f"{key} {value}" if key else value,
            )


def _word_kinds(step: CallStep) -> Iterator[tuple[str, Iterable[str], float, float]]:
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


def _find_subject_path(step: CallStep) -> str:
    """Returns the path that a call is about: its first argument, if that is a path."""
    if not step.call.fields:
        return ""
    value = step.call.fields[0][1]
    return value if len(value) <= 300 and value in step.call.words.paths else ""


def _call_headline(step: CallStep) -> str:
    arguments: list[str] = []
    for key, value in step.call.fields[:6]:
        # Besides the main argument only short values: no numbers, no remarks.
        if arguments and (len(value) > 200 or value.isdigit() or value.count(" ") > 2):
            continue
        text = to_one_line(value)
        arguments.append(text if not arguments or not key else f"{key}={text}")
    return f"{step.call.name}: {', '.join(arguments)}" if arguments else step.call.name


def _outcome_pieces(result: ResultFacts, fade: float) -> Iterator[tuple[float, str, str]]:
    yield from ((_OUTLINE_WORTH * fade * (2 if text[-1:] in "{:(" else 1), "lines", text) for text in result.outline)
    for number, text in enumerate(result.trouble[:2]):
        yield _TOOL_LINE_WORTH * (1.0 if result.error or not number else 0.4) * fade, "tool said", text
    if result.lines <= 2 and result.first and not result.trouble:
        yield 0.6 * _TOOL_LINE_WORTH * fade, "tool said", result.first
    elif result.last and not result.trouble and not result.fields:
        yield (0.6 if result.last.count(" ") > 8 else 0.16) * _TOOL_LINE_WORTH * fade, "tool said", result.last
