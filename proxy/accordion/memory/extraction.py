"""What is worth remembering of a conversation, by rule: decisions, preferences, solved problems, facts, open questions.

Nothing is reworded: what is remembered is quoted, under who said it. What only a tool said is never more than a report.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from heapq import nsmallest
from typing import Final, Literal

from accordion.core.values import dataclass, replace
from accordion.memory import speech
from accordion.memory.credentials import has_credential
from accordion.memory.sentences import Background, Sentence, folded
from accordion.memory.standing import claims, content, stands, tells
from accordion.memory.steps import Record, Step
from accordion.summaries.facts import trouble

Kind = Literal["fact", "decision", "preference", "solution", "question"]

_WORTH: Final[dict[Kind, float]] = {"preference": 5.0, "decision": 4.5, "solution": 4.0, "question": 3.0, "fact": 1.0}
_LABEL: Final[dict[tuple[Kind, bool], str]] = {
    ("preference", True): "Preference of the user",
    ("decision", True): "Decision of the user",
    ("solution", True): "Problem and solution, told by the user",
    ("question", True): "Open question of the user",
    ("fact", True): "The user said",
    ("preference", False): "The assistant stated",
    ("decision", False): "Decision, told by the assistant",
    ("solution", False): "Problem and solution, told by the assistant",
    ("question", False): "Open question, told by the assistant",
    ("fact", False): "The assistant stated",
}
REPORTED: Final = "Reported by a tool, not checked"
_TITLE: Final = re.compile(r"[A-Z][\w #()-]{1,40}: +")
_POINTER: Final = re.compile(r"^(?:it|this|that|they|these|those|he|she|both)\b", re.IGNORECASE)
_REPEATED: Final = 6
"""Words of an assistant's sentence that stand in a result, from which on it is the tool's."""
_LOOKED_THROUGH: Final = 2_000_000
"""Characters of a result."""
_RAISED: Final = re.compile(r"(?:E +)?[\w.]*(?:Error|Exception|FAILED|panic|fatal)\b")
_SOLVED_WITHIN: Final = 40
"""Messages between an error and what is told to be its solution."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Something that may be remembered. `text` is what was said, `label` says by whom and as what; `first` and `last`
    are the messages that it was said in."""

    kind: Kind
    text: str
    label: str
    first: int
    last: int
    worth: float
    weak: bool = False
    """Whether it is only worth remembering where somebody asks for what it is about."""

    @property
    def content(self) -> str:
        """The memory's text."""
        return f'{self.label}: "{self.text}"'


def candidates(
    said: Sequence[Sentence], record: Record, background: Background, *, since: int = 0, ends: bool = True
) -> list[Candidate]:
    """Everything that rules find, in the order in which it was said, each thing once. `said` is looked through, with
    the errors that tools reported from the message `since` on. `ends`: nothing was said behind it."""
    reported = _Reported(record.steps)
    last_at = said[-1].at if said and ends else -1
    found: list[Candidate] = []
    for each in said:
        if background.holds(each.text) or has_credential(each.text):
            continue
        made = _of_user(each, each.at == last_at) if each.speaker == "user" else _of_assistant(each, reported)
        if made is not None and (whole := _standing(made, each, background)) is not None:
            found.append(whole)
    return unique(_with_problems(found, [step for step in record.steps if step.at >= since]))


def unique(found: Iterable[Candidate]) -> list[Candidate]:
    """Without those that say what another says, or part of it: of these the one that says more stays."""
    kept: list[Candidate] = []
    marks: list[tuple[str, frozenset[str], frozenset[str]]] = []
    near = _Near()
    for each in found:
        bare = folded(each.text)
        mark = bare, frozenset(bare.split()), frozenset(claims(each.text))
        at = next((at for at in near.places(mark[1]) if _alike(mark, marks[at])), -1)
        if at < 0:
            near.add(mark[1], len(kept))
            kept.append(each)
            marks.append(mark)
        elif marks[at][0] in bare and len(bare) > len(marks[at][0]):
            # It is worth what the better of both is.
            best = max(each, kept[at], key=lambda one: (not one.weak, one.worth))
            kept[at], marks[at] = replace(each, worth=best.worth, weak=best.weak), mark
            near.add(mark[1], at)
    return kept


class _Near:
    """Which of many texts may be alike to another: not each has to be compared with each.

    Of a text that is part of another, all words but the two at its ends are whole words of the other; of two that have
    17 of 20 words in common, 3 of 20 may differ. So one of a few words of a text, whichever they are, stands in the
    other too. The rarest few lead to the fewest.
    """

    def __init__(self) -> None:
        self._all: defaultdict[str, list[int]] = defaultdict(list)
        self._rarest: defaultdict[str, list[int]] = defaultdict(list)

    def add(self, words: frozenset[str], place: int) -> None:
        """A text of these words stands at this place."""
        for word in self._few(words):
            self._rarest[word].append(place)
        for word in words:
            self._all[word].append(place)

    def places(self, words: frozenset[str]) -> list[int]:
        """Where texts stand that may be alike to one of these words, in order."""
        found = {place for word in self._few(words) for place in self._all.get(word, ())}
        found.update(place for word in words for place in self._rarest.get(word, ()))
        return sorted(found)

    def _few(self, words: frozenset[str]) -> list[str]:
        return nsmallest(1 + max(2, 3 * len(words) // 20), words, key=lambda word: len(self._all.get(word, ())))


def _alike(one: tuple[str, frozenset[str], frozenset[str]], other: tuple[str, frozenset[str], frozenset[str]]) -> bool:
    """Whether two say the same: one is part of the other, or nearly all words and all names are."""
    if one[0] in other[0] or other[0] in one[0]:
        return True
    return one[2] == other[2] and 20 * len(one[1] & other[1]) >= 17 * len(one[1] | other[1])


def safe(text: str) -> bool:
    """Whether a text holds no credential and gives no orders."""
    return speech.ORDERS.search(text) is None and not has_credential(text)


# -- who says what ----------------------------------------------------------------


def _of_user(said: Sentence, newest: bool) -> Candidate | None:
    text = said.text
    if text.endswith("?"):
        # What was asked last has no answer in what is recorded; what was asked before has.
        return _made("question", said) if newest else None
    if speech.DECIDED.search(text):
        return _made("decision", said)
    if speech.USER_WANTS.search(text):
        return _made("preference", said)
    if speech.DECIDES.search(text):
        return _made("decision", said)
    if speech.OPEN.search(text):
        return _made("question", said)
    if speech.SOLVES.search(text):
        return _made("solution", said)
    asks = speech.ASKS.match(text) is not None
    named = len(claims(text))
    if (named and not asks and speech.STATES.search(text)) or (named and asks):
        return replace(_made("fact", said), worth=(2.0 if asks else 3.0) + min(3, named) * 0.2, label=_asked(asks))
    return replace(_made("fact", said), weak=True, label=_asked(asks))


def _asked(asks: bool) -> str:
    return "The user asked" if asks else _LABEL["fact", True]


def _of_assistant(said: Sentence, reported: _Reported) -> Candidate | None:
    text = said.text
    # `Coder: Write the test` is a plan too.
    titled = _TITLE.match(text)
    if text.endswith("?") or speech.PLANS.match(text) or speech.BIDS.match(text, titled.end() if titled else 0):
        return None
    if speech.ORDERS.search(text):
        return None
    if reported.holds(said):
        return replace(_made("fact", said), label=REPORTED, worth=0.8)
    named = len(claims(text))
    for kind, rule in _SPEAKS:
        if rule(text):
            made = _made(kind, said)
            return replace(made, worth=made.worth + min(3, named) * 0.3, weak=kind == "solution" and not named)
    if named and speech.STATES.search(text):
        return replace(_made("fact", said), worth=1.0 + min(4, named) * 0.35)
    return replace(_made("fact", said), weak=True, worth=0.5) if tells(text) else None


_SPEAKS: Final[tuple[tuple[Kind, Callable[[str], object]], ...]] = (
    ("solution", speech.SOLVES.search),
    ("decision", speech.DECIDED.search),
    ("question", speech.OPEN.search),
)


def _made(kind: Kind, said: Sentence) -> Candidate:
    user = said.speaker == "user"
    worth = _WORTH[kind] * (1.0 if user else 0.8)
    return Candidate(kind, said.text, _LABEL[kind, user], said.at, said.at, worth)


def _standing(made: Candidate, said: Sentence, background: Background) -> Candidate | None:
    """The candidate where it stands alone, else with the sentence before it where that does; else None."""
    if stands(made.text):
        return made if len(content(made.text)) >= 2 or claims(made.text) else None
    before = said.before
    if not before or speech.PLANS.match(before) or not stands(before) or background.holds(before) or not safe(before):
        return None
    rest = _POINTER.sub("", made.text, count=1)
    # What comes behind the word that stands for the sentence before must itself point nowhere else.
    if rest == made.text or not stands(f"What was named{rest}"):
        return None
    return replace(made, text=f"{before} {made.text}")


class _Reported:
    """What tools said: a sentence that stood there before is not the assistant's own."""

    def __init__(self, steps: Sequence[Step]) -> None:
        told = ((s.at, folded(s.result)) for s in steps if s.result and len(s.result) < _LOOKED_THROUGH)
        self._all = [(at, text, frozenset(text.split())) for at, text in told]

    def holds(self, said: Sentence) -> bool:
        bare = folded(said.text)
        words = bare.split()
        # Few results have all of its words (the first and the last may be parts of words there): few are searched.
        inner = frozenset(words[1:-1])
        return len(words) >= _REPEATED and any(
            at < said.at and inner <= known and bare in text for at, text, known in self._all
        )


# -- solved problems --------------------------------------------------------------


def _with_problems(found: Sequence[Candidate], steps: Sequence[Step]) -> list[Candidate]:
    """Solutions with the errors that tools reported before them, each error with the first solution told."""
    errors = [(step.at, told) for step in steps if (told := _problem(step))]
    out: list[Candidate] = []
    for each in found:
        if each.kind == "solution" and not each.label.endswith("user"):
            met = [(at, told) for at, told in errors if each.first - _SOLVED_WITHIN <= at < each.first]
            at, told = met[-1] if met else (0, "")
            if set(content(told)) & set(content(each.text)):
                errors = [error for error in errors if error[0] > each.first]
                each = replace(each, label=f"Problem: {told} {each.label}", first=at, worth=each.worth + 0.5)  # noqa: PLW2901
        out.append(each)
    return out


def _problem(step: Step) -> str:
    """An error as a tool reported it; empty where it says nothing, or gives orders."""
    for line in trouble((step.result or "")[:200_000]):
        told = " ".join(line.split())
        if 12 <= len(told) <= 240 and (step.failed or _RAISED.match(told)) and safe(told):
            return f"the tool {step.name} reported `{told}`."
    return ""
