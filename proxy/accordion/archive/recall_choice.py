"""Which of the things that left are quoted, and what of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from accordion.archive.recall_index import Index, Passage, text_of
from accordion.archive.recall_names import Name
from accordion.archive.recall_quotes import called, labelled, quoted
from accordion.core.conversation import Message, Part, ToolCall, ToolResult
from accordion.core.values import dataclass

_LEAST: Final = 120
"""Characters below which a quote says nothing."""
_LOOKS: Final = 8
"""Passages that are looked into for one excerpt."""
_NAMES: Final = 12
"""Names that lines are chosen by, the rarest ones."""
_LABEL: Final = 60
"""Characters of a label beside its source, roughly."""


@dataclass(frozen=True, slots=True)
class Quote:
    """What is shown of one source. `names` are those of the turn's names for which it was chosen, `message` is the
    client's index of where it stood, `artifact` may be empty."""

    text: str
    message: int
    artifact: str
    names: tuple[str, ...]


class Choice:
    """Which sources are quoted: those that hold the most and rarest of the names, the newest of equals."""

    def __init__(
        self,
        index: Index,
        messages: Sequence[Message],
        turn: Sequence[Message],
        results: set[str],
        names: Sequence[Name],
        shown: Sequence[str] = (),
    ) -> None:
        self._index, self._messages, self._names = index, messages, names
        self._results = results
        self._said = [text_of(part) for message in turn for part in message.parts]
        self._answers = [*shown, *(text for message in turn for text in results_in(message.parts))]
        self._calls = {(p.name, p.arguments) for message in turn for p in message.parts if isinstance(p, ToolCall)}

    def quotes(self, room: int, sources: int) -> list[Quote]:
        """At most `sources` quotes of together about `room` characters, the best first."""
        out: list[Quote] = []
        left = list(self._names)
        for _ in range(_LOOKS):
            if not left or len(out) >= sources:
                break
            number = self._best(left)
            here = sorted((name for name in self._names if number in name.passages), key=lambda n: len(n.passages))
            left = [name for name in left if number not in name.passages]
            share = room // min(sources - len(out), len(left) + 1)
            if share < _LEAST:
                break
            quote = self._quote(self._index.passages[number], tuple(name.text for name in here[:_NAMES]), share)
            if quote is not None:
                out.append(quote)
                room -= len(quote.text) + 2
        return out

    def _best(self, names: Sequence[Name]) -> int:
        score: dict[int, float] = {}
        for name in names:
            for number in name.passages:
                score[number] = score.get(number, 0.0) + 1 / len(name.passages)
        return max(score, key=lambda number: (score[number], number))

    def _quote(self, passage: Passage, names: tuple[str, ...], room: int) -> Quote | None:
        """What is shown of a passage; None where it would tell nothing new: the turn repeats its call, or the lines
        that hold the names are in view, or its whole result is."""
        call = self._messages[passage.call[0]].parts[passage.call[1]] if passage.call else None
        if isinstance(call, ToolCall) and (call.name, call.arguments) in self._calls:
            return None
        arguments, body = passage.texts(self._messages)
        source = self._source(passage, call)
        again = body in self._results
        inside = [name for name in names if name in body] if not again else []
        given = [name for name in names if name not in source and name in arguments] if not inside else []
        if given:
            text, lines = quoted(arguments, given, room - len(source) - _LABEL)
            source, known = f"Arguments of {source.removeprefix('Result of ')}", self._said
        elif again:
            return None
        else:
            text, lines = quoted(body or arguments, inside, room - len(source) - _LABEL)
            known = self._answers
        if not text or (lines and all(any(line.strip() in said for said in known) for line in lines)):
            return None
        message = passage.place[0]
        told = labelled(source, message, passage.artifact, text, whole=passage.whole)
        return Quote(told, message, passage.artifact, names)

    def _source(self, passage: Passage, call: Part | None) -> str:
        if isinstance(call, ToolCall):
            return f"{'Result of ' if passage.body else ''}{called(call.name, call.arguments)}"
        message, part = passage.place
        if isinstance(self._messages[message].parts[part], ToolResult):
            return "Result of a tool"
        return f"Said by the {self._messages[message].role}"


def results_in(parts: Iterable[Part]) -> Iterator[str]:
    """The texts of the results among some parts."""
    return (text_of(part) for part in parts if isinstance(part, ToolResult))
