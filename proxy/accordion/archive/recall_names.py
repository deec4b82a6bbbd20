"""Names that a turn names, and which of the things that left hold each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from accordion.archive.recall_index import Index, literal
from accordion.core.conversation import Message
from accordion.core.values import dataclass

_COMMON: Final = 8
"""What stands in more passages than this tells none of them from the others."""
_LOOKS: Final = 50
_SCANNED: Final = 20_000_000
"""Characters that one turn's names are looked for in, where their words alone do not tell."""


@dataclass(frozen=True, slots=True)
class Name:
    """A name that the turn names and only the archive holds, with the numbers of the passages that do. `plain`: it is
    one word and nothing else, so that where the word stands the name does."""

    text: str
    words: tuple[bytes, ...]
    passages: tuple[int, ...]
    plain: bool


class Lookup:
    """Looks up the names of one turn in an index of what left `messages`."""

    def __init__(self, index: Index, messages: Sequence[Message]) -> None:
        self._index, self._messages = index, messages
        self._scanned = 0

    def __call__(self, text: str) -> Name | None:
        """The name that passages hold, and not too many of them; else None."""
        word = text.encode("utf-8", "replace")
        places = self._index.places.get(word)
        if places is not None:
            # Of what is a word and nothing else, the index tells all.
            numbers = (places,) if isinstance(places, int) else places
            return Name(text, (word,), tuple(numbers), plain=True) if len(numbers) <= _COMMON else None
        words, found = self._index.holding(text)
        if not found or len(found) > _LOOKS:
            return None
        held = self._held(text, found)
        return Name(text, words, tuple(held), plain=False) if 0 < len(held) <= _COMMON else None

    def _held(self, text: str, numbers: Sequence[int]) -> list[int]:
        """Those of these passages that hold a text, one more than tells them from others at most; none of them where
        enough was looked through."""
        held: list[int] = []
        plain = literal(text)
        for number in numbers:
            passage = self._index.passages[number]
            # Most names stand in what was said, and arguments have to be decoded.
            said = passage.said(self._messages)
            self._scanned += len(said)
            if text in said or passage.gives(text, self._messages, literal=plain):
                held.append(number)
            if self._scanned > _SCANNED:
                return []
            if len(held) > _COMMON:
                break
        return held
