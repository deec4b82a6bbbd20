"""Candidate lines of a summary: each with its sources, each piece with what it is worth and what it costs.

A line has a head and, appended to it, any number of extras. Both are taken word for word from the messages.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from accordion.summaries.facts import ResultFacts
from accordion.summaries.facts_rank import Material, Saying, Step, Uses
from accordion.summaries.facts_words import NO_WORDS
from accordion.summaries.instructions import WHOLE

REQUESTS, OPEN, STATED, FILES, STEPS = 0, 1, 2, 3, 4
TITLES: Final = ("Said by the user", "Promised and open", "Said by the assistant", "Files", "Calls and results")
WORDS: Final = frozenset({"paths", "names", "ids", "links", "fields"})
"""Labels of extras that are single words; the others are lines."""
SHARES: Final = (0.35, 0.4, 0.2, 1.0, 1.0)
"""The most of the room that each section may have."""
_ARGUMENT: Final = 160
_CITES: Final = 6
_PATH: Final = 0.05
_NAME: Final = 0.012
_ID: Final = 0.02
_FIELD: Final = 0.04
_HEADLINE: Final = 3.0
_PROMISED: Final = 1.0
_USER: Final = 1.2
_ASSISTANT: Final = 0.2
_TOLD: Final = 0.15
_OPENED: Final = 0.01
_DONE: Final = 0.15
_FADE: Final = 40_000
"""Characters of conversation after which most counts half."""
_OPEN_FADE: Final = 160_000
"""The same of what was promised: it may still be open."""

_CODE = re.compile(r"[A-Z]+|(?=\D*\d)(?=[^A-Za-z]*[A-Za-z])[\w#-]+")
"""Capitals alone, or letters and digits in one piece."""
_MEASURE = re.compile(r"[-+]?\d{0,3}(?:[.,]\d+)*")
_PROMISE = re.compile(
    r"\b(?:I(?:['’]ll| will|['’]m going to)|we(?:['’]ll| will)|you(?:['’]ll| will) (?:receive|get|hear|be)|"
    r"will be \w+ed|promised?|follow(?:ing)? up|pending|awaiting|waiting for|to-?dos?|remaining|(?:still|left) to|"
    r"still (?:open|missing)|next steps?|ich werde|wir werden|steht noch aus|je vais|nous allons|reste à|voy a|vamos a|"
    r"queda pendiente|vou|vamos|falta|farò|faremo|resta da|ik zal|we zullen|nog te)\b|"
    "(?:сделаю|отправлю|осталось)|我会|我将|待办|予定です|しておきます|하겠습니다",
    re.IGNORECASE,
)
"""What an assistant says of what it will do, or of what is still to be done."""


class Line:
    """One line in the making. `worth` is in expected later uses, `weight` in characters."""

    __slots__ = ("cites", "extras", "head", "section", "worth")

    def __init__(self, section: int, head: str, worth: float, cites: list[tuple[int, int]]) -> None:
        self.section = section
        self.head = head
        self.worth = worth
        self.cites = cites
        self.extras: list[tuple[float, str, str]] = []
        """Worth, label ("" for none), text."""


def cited(cites: Iterable[tuple[int, int]]) -> str:
    """`[3-4, 9]`: the first and the newest sources of a line."""
    spans = sorted(set(cites))
    if len(spans) > _CITES:
        spans = [spans[0], *spans[-_CITES + 1 :]]
    return "[" + ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans) + "]"


def one_line(text: str, most: int = _ARGUMENT) -> str:
    """A text on one line: the text itself where it is short, else its beginning up to a space, and an ellipsis."""
    stripped = text.strip()
    first = stripped.split("\n", 1)[0].rstrip() if "\n" in stripped else stripped
    if len(first) > most:
        end = first.rfind(" ", 0, most)
        first = first[:end].rstrip() if end > most // 3 else ""
    return first if len(first) == len(stripped) else f"{first} …"


def lines(
    material: Material, uses: Uses, visible: set[str], shown: Collection[str] = (), listed: Collection[str] = ()
) -> list[Line]:
    """Everything that could be written, unordered. `visible` words stand in the kept messages and are left out, and so
    are the lines that are `shown` there, and the lines and sentences that are `listed` as instructions. A line that was
    said twice is told once, the last time."""
    once = {*shown, *listed}
    out: list[Line] = [line for s in reversed(material.sayings) for line in _saying(s, once, listed)]
    made = _Steps(uses, visible)
    for number, step in enumerate(material.steps):
        made.add(number, step)
    made.share_out(material)
    return out + made.lines()


def _without(text: str, listed: Collection[str]) -> str:
    """A text without the sentences that are listed elsewhere."""
    for sentence in listed:
        if len(sentence) < len(text):
            text = text.replace(sentence, "…")
    return text


def _saying(saying: Saying, once: set[str], listed: Collection[str]) -> Iterator[Line]:
    facts = saying.facts
    user = facts.role != "assistant"
    fade = 1 / (1 + saying.age / _FADE)
    line = Line(REQUESTS if user else STATED, "", 0.0, [(saying.at, saying.at)])
    if facts.media:
        line.extras.append((0.3 * fade, "", f"({', '.join(facts.media)})"))
    # Beside a call it is the call that is announced.
    promised, may_promise = Line(OPEN, "", 0.0, [(saying.at, saying.at)]), not user and not facts.calls
    for number, said in enumerate(map(str.strip, facts.said.split("\n")[:200])):
        if len(said) < 3 or said.startswith("```") or said in once:
            continue
        once.add(said)
        text = _without(said, listed) if user and len(said) > WHOLE else said
        if may_promise and len(text) <= 300 and _PROMISE.search(text):
            promised.extras.append((_PROMISED / (1 + saying.age / _OPEN_FADE), "", text))
            continue
        worth = (_USER if user else _ASSISTANT) * fade / (1 + number / (8 if user else 2))
        if not user:
            # A line that ends in a colon announces the call beside it, which is listed anyway.
            worth *= (0.2 if text[-1] in ":：" else 1.0) * (1.0 if facts.calls else 2.0)
        line.extras.append((worth * min(1.0, len(text) / 40), "", text if len(text) < 600 else one_line(text, 400)))
    if line.extras:
        yield line
    if promised.extras:
        yield promised


class _Steps:
    """Gathers steps into lines: one for each file, one for each other call that differs."""

    def __init__(self, uses: Uses, visible: set[str]) -> None:
        self._uses = uses
        self._visible = visible
        self._by_head: dict[tuple[str, str], Line] = {}
        self._actions: dict[str, dict[str, list[tuple[int, int]]]] = {}
        self._line_of: list[Line] = []

    def lines(self) -> list[Line]:
        for path, actions in self._actions.items():
            line = self._by_head["", path]
            line.head = f"{path}: " + ", ".join(f"{name} {cited(cites)}" for name, cites in actions.items())
        return list(self._by_head.values())

    def add(self, number: int, step: Step) -> None:
        span = (step.at, step.until)
        fade = 1 / (1 + step.age / _FADE)
        path = _subject(step)
        if path:
            line = self._by_head.get(("", path))
            chance = _HEADLINE * self._uses.chance(path, _PATH, step.age)
            if path in self._visible:
                chance *= 0.2
            if line is None:
                line = self._by_head["", path] = Line(FILES, path, 0.0, [])
            line.worth = chance + _DONE * fade
            self._actions.setdefault(path, {}).setdefault(step.call.name, []).append(span)
        else:
            head = _head(step)
            line = self._by_head.get((step.call.name, head))
            if line is None:
                line = self._by_head[step.call.name, head] = Line(STEPS, head, 0.0, [])
            words = step.call.words
            worth = sum(
                _HEADLINE * self._uses.chance(w, _PATH, step.age) for w in (*words.paths, *words.ids) if w in head
            )
            worth += sum(self._uses.chance(w, _NAME, step.age) for w in words.names if w in head)
            line.worth = worth * 0.5 + _DONE * fade
        line.cites.append(span)
        self._line_of.append(line)
        if step.result is not None:
            line.extras.extend(_outcome(step.result, fade))

    def share_out(self, material: Material) -> None:
        """Gives each word that is not visible to the line of the step that showed it last."""
        for number, step in enumerate(material.steps):
            line = self._line_of[number]
            for label, words, base, weight in _kinds(step):
                for word in words:
                    if word in self._visible or self._uses.place.get(word) != number or word in line.head:
                        continue
                    line.extras.append((weight * self._uses.chance(word, base, step.age), label, word))
            if step.result is not None and step.result.fields:
                line.extras.extend(self._fields(number, step, step.result))

    def _fields(self, number: int, step: Step, result: ResultFacts) -> Iterator[tuple[float, str, str]]:
        seen: set[str] = set()
        for key, value in result.fields:
            if len(value) < 3 or value in seen or value in self._visible or self._uses.place.get(value) != number:
                continue
            seen.add(value)
            base = _FIELD * (3 if key in self._uses.keys else 1) * _form(value)
            yield _HEADLINE * self._uses.chance(value, base, step.age), "fields", f"{key} {value}" if key else value


def _kinds(step: Step) -> Iterator[tuple[str, Iterable[str], float, float]]:
    call, result = step.call.words, step.result.words if step.result is not None else NO_WORDS
    yield "paths", dict.fromkeys(call.paths + result.paths), _PATH, _HEADLINE
    yield "names", dict.fromkeys(call.names + result.names), _NAME, 1.0
    shown: tuple[str, ...] = () if step.result is not None and step.result.fields else result.ids
    yield "ids", dict.fromkeys(call.ids + shown), _ID, _HEADLINE
    yield "links", dict.fromkeys(call.links + result.links), _PATH, _HEADLINE


def _form(value: str) -> float:
    """How much likelier a value of this form is to be named by a later call than others are, as measured on recorded
    runs: a code is, a measure or a plain word is not."""
    if _CODE.fullmatch(value):
        return 2.0
    return 0.3 if (value.isalpha() and value.islower()) or _MEASURE.fullmatch(value) else 1.0


def _subject(step: Step) -> str:
    """The file that a call is about: its first argument, if that is a path."""
    if not step.call.fields:
        return ""
    value = step.call.fields[0][1]
    return value if len(value) <= 300 and value in step.call.words.paths else ""


def _head(step: Step) -> str:
    shown: list[str] = []
    for key, value in step.call.fields[:6]:
        # Beside the main argument only short values are shown: no numbers, no remarks.
        if shown and (len(value) > 200 or value.isdigit() or value.count(" ") > 2):
            continue
        text = one_line(value)
        shown.append(text if not shown or not key else f"{key}={text}")
    return f"{step.call.name}: {', '.join(shown)}" if shown else step.call.name


def _outcome(result: ResultFacts, fade: float) -> Iterator[tuple[float, str, str]]:
    yield from ((_OPENED * fade * (2 if text[-1:] in "{:(" else 1), "lines", text) for text in result.outline)
    for number, text in enumerate(result.trouble[:2]):
        yield _TOLD * (1.0 if result.error or not number else 0.4) * fade, "tool said", text
    if result.lines <= 2 and result.first and not result.trouble:
        yield 0.6 * _TOLD * fade, "tool said", result.first
    elif result.last and not result.trouble and not result.fields:
        yield (0.6 if result.last.count(" ") > 8 else 0.16) * _TOLD * fade, "tool said", result.last
