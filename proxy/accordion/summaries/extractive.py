"""The summary writer that needs no model: picks, word for word, what is likeliest to be needed again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal

from accordion.core.cache import ENTRY, Cache, weigh_entry
from accordion.core.conversation import Message
from accordion.core.values import dataclass
from accordion.summaries.facts import Facts, facts_of, said_in
from accordion.summaries.facts_lines import FILES, SHARES, TITLES, WORDS, Line, cited, lines
from accordion.summaries.facts_rank import Uses, material, words_of
from accordion.summaries.facts_words import Judge
from accordion.summaries.instructions import Standing, instructions_of, standing

_CHARACTERS: Final = 3.4
"""Of one token, as a first guess; corrected by counting."""
_CITATION: Final = 8
"""Characters of a line's citation, about."""


@dataclass(frozen=True, slots=True)
class Source:
    """A message that leaves the window. `index` is its place in the client's list, counted from 0."""

    index: int
    message: Message


class Extractor:
    """Writes extractive summaries. Remembers the facts of messages within `capacity` bytes, and what kind a word is
    within `words` bytes. Safe to use from threads."""

    def __init__(self, capacity: int = 16 * 2**20, words: int = 7 * 2**20) -> None:
        self._facts = Cache[bytes, Facts](capacity * 7 // 8, lambda _, facts: ENTRY + facts.size)
        self._instructed = Cache[str, int](capacity // 8, weigh_entry)
        self._judge = Judge(words)

    def prepare(self, messages: Sequence[Message]) -> None:
        """Extracts the facts of messages ahead, so that a fold need not."""
        for message in messages:
            self._of(message)

    def write(
        self,
        covered: Sequence[Source],
        *,
        kept: Sequence[Message],
        budget: int,
        count: Callable[[str], int],
        kind: Literal["conversation", "generation"],
        told: frozenset[str] = frozenset(),
    ) -> str:
        """The text that stands for `covered`, of at most `budget` tokens as `count` counts them; "" where nothing fits.

        `kept` stays visible and is not repeated, nor are the lines `told` elsewhere. Every line names its messages.
        """
        if budget <= 0 or not covered:
            return ""
        facts = [(s.index, self._of(s.message)) for s in covered]
        visible = words_of(self._of(m) for m in kept)
        found = material(facts)
        said = {line.strip() for message in kept for line in self._of(message).said.split("\n")}
        candidates = lines(found, Uses(found), visible, said, told)
        return _fitted(candidates, budget, count)

    def instructed(self, message: Message) -> int:
        """Tokens that the standing instructions in a message take, about; those in an earlier summary included."""
        if message.role != "user" or not (said := said_in(message)):
            return 0
        # By the text: while a compaction is planned, an edited message has the key of the original.
        known = self._instructed.get(said)
        if known is None:
            found = instructions_of(said)
            known = self._instructed[said] = int(sum(len(each.text) + _CITATION for each in found) / _CHARACTERS)
        return known

    def standing(self, covered: Sequence[Source], kept: Sequence[Message], others: Sequence[Source] = ()) -> Standing:
        """The instructions of users in `covered` that are in force and do not stand in `kept`. `others` are the rest of
        the conversation: its instructions may be corrected, or correct what is covered."""
        listed = {source.index for source in covered}
        sources = sorted((*covered, *others), key=lambda source: source.index)
        stated = [(source.index, each) for source in sources for each in self._of(source.message).instructions]
        visible = "\n".join(self._of(message).said for message in kept) if stated else ""
        return standing(stated, lambda index, text: index in listed and text not in visible)

    def _of(self, message: Message) -> Facts:
        facts = self._facts.get(message.key)
        if facts is None:
            facts = self._facts[message.key] = facts_of(message, self._judge)
        return facts


def _fitted(candidates: list[Line], budget: int, count: Callable[[str], int]) -> str:
    pieces = _pieces(candidates)
    room = budget * _CHARACTERS
    extras = sum(len(line.extras) for line in candidates)
    best = ""
    for attempt in range(1, 8):
        chosen = _chosen(candidates, pieces, room)
        text = _render(candidates, chosen)
        if not text or text == best:
            break
        used = count(text)
        if used <= budget:
            best = max(best, text, key=len)
            if used >= 0.97 * budget or sum(map(len, chosen.values())) == extras:
                break
        # A little more is taken off each time, so that a text whose tokens are short comes to fit too.
        room *= budget / used * (1 - 0.01 * attempt)
    return best


Piece = tuple[float, int, int, int]
"""Worth for each character and place of the line, both negative so that the best and newest sort first; place of the
extra, or -1 for the head; characters."""


def _pieces(candidates: list[Line]) -> list[Piece]:
    out: list[Piece] = []
    for place, line in enumerate(candidates):
        head = len(line.head) + 12
        if line.worth > 0:
            out.append((-line.worth / head, -place, -1, head))
        for number, (worth, _, text) in enumerate(line.extras):
            weight = len(text) + 3
            out.append((-worth / weight, -place, number, weight))
    out.sort()
    return out


def _chosen(candidates: list[Line], pieces: list[Piece], room: float) -> dict[int, list[int]]:
    chosen: dict[int, list[int]] = {}
    left = [room * share for share in SHARES]
    heads: dict[int, int] = {-p[1]: p[3] for p in pieces if p[2] < 0}
    for _, behind, number, own in pieces:
        place = -behind
        if place in chosen and number < 0:
            continue
        weight = own if place in chosen or number < 0 else own + heads.get(place, 12)
        section = candidates[place].section
        if weight > min(room, left[section]):
            if room < 30:
                break
            continue
        room -= weight
        left[section] -= weight
        chosen.setdefault(place, [])
        if number >= 0:
            chosen[place].append(number)
    return chosen


def _render(candidates: list[Line], chosen: dict[int, list[int]]) -> str:
    sections: list[list[tuple[int, str]]] = [[] for _ in TITLES]
    for place, numbers in chosen.items():
        line = candidates[place]
        sections[line.section].append((line.cites[-1][1], _line(line, sorted(numbers))))
    out = []
    for title, found in zip(TITLES, sections, strict=True):
        if found:
            out.append(f"## {title}")
            out.extend(text for _, text in sorted(found, key=lambda f: f[0]))
    return "\n".join(out)


def _line(line: Line, numbers: list[int]) -> str:
    labels: dict[str, list[int]] = {}
    for number in numbers:
        labels.setdefault(line.extras[number][1], []).append(number)
    out = []
    for label, found in labels.items():
        if label:
            glue = " " if label in WORDS else " / "
            out.append(f"{label}: " + glue.join(dict.fromkeys(line.extras[n][2] for n in found)))
        else:
            out.append(_quoted(line, found))
    head = line.head if line.section == FILES else f"{cited(line.cites)} {line.head}".rstrip()
    return ("; " if line.head else " ").join([head, *out])


def _quoted(line: Line, numbers: list[int]) -> str:
    """Lines of one message on one line; an ellipsis stands for those left out between them."""
    out = ""
    for before, number in zip([-1, *numbers], numbers, strict=False):
        out += ("" if not out else " / ") if number == before + 1 else (" … " if out else "… ")
        out += line.extras[number][2]
    return out if numbers[-1] + 1 == len(line.extras) else f"{out} …"
