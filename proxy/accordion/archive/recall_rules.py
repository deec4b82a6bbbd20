"""Which standing instructions that have no place in the window a turn speaks of."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from accordion.archive.recall_index import text_of
from accordion.core.conversation import Message, Text, ToolCall
from accordion.core.subjects import stems_of
from accordion.core.values import dataclass

_TEXT: Final = 20_000
"""Characters of one text of the turn that are read."""
_RARE: Final = 8
"""What stands in more passages than this names nothing."""
_NAME = re.compile(r"(?<=[^.!?\s] )[^\W\d_a-z][\w-]{2,}|[\w-]*\d[\w-]*")
"""A word with a capital that begins no sentence, or with a digit."""
_LEAST: Final = 4
"""Characters of a name."""
_SHARE: Final = 0.5
"""So much of what tells an instruction is in a turn that speaks of it."""
_BYTES: Final = 900


@dataclass(frozen=True, slots=True)
class Rule:
    """An instruction of a user that is in force: the client's index of its message, its own text, and that with notes
    on others that it replaces."""

    message: int
    text: str
    line: str


Rules = Callable[[Sequence[Message], int], Iterable[Rule]]
"""The instructions in force of the first messages of a list, so many."""


@dataclass(frozen=True, slots=True)
class Omitted:
    """Instructions without a place in the window. `stems` tell by what each is known, and `names` are the rare
    names in it, each as its own stems."""

    rules: tuple[Rule, ...] = ()
    stems: tuple[frozenset[str], ...] = ()
    names: tuple[tuple[frozenset[str], ...], ...] = ()

    @property
    def size(self) -> int:
        """Bytes that it takes."""
        return _BYTES * len(self.rules)

    def spoken_of(self, turn: Sequence[Message], most: int) -> list[Rule]:
        """The instructions that a turn speaks of, in what is said and in what tools are called and given: at most
        `most`, those first of which it says the most."""
        if not self.rules:
            return []
        texts = [text[:_TEXT] for message in turn for text in _spoken(message)]
        said = stems_of("\n".join(texts))
        found: list[tuple[float, int]] = []
        for at, (stems, names) in enumerate(zip(self.stems, self.names, strict=True)):
            common = len(stems & said)
            share = common / len(stems) if stems else 0.0
            is_named = any(name <= said for name in names)
            if is_named or (share >= _SHARE and (common > 1 or len(stems) == 1)):
                found.append((share + is_named, at))
        return [self.rules[at] for _, at in sorted(found, reverse=True)[:most]]


def omitted(rules: Iterable[Rule], shown: Sequence[Message], places: Mapping[bytes, int | list[int]]) -> Omitted:
    """Those of these instructions that stand in none of the messages that are `shown`. `places` tells of each word that
    left in how many passages it stands."""
    texts = [text_of(part) for message in shown for part in message.parts]
    left = [rule for rule in rules if not any(rule.text in text for text in texts)]
    names = [
        tuple(filter(None, (stems_of(name) for name in _NAME.findall(rule.text) if _is_rare(name, places))))
        for rule in left
    ]
    return Omitted(tuple(left), tuple(stems_of(rule.text) for rule in left), tuple(names))


def _is_rare(name: str, places: Mapping[bytes, int | list[int]]) -> bool:
    if len(name) < _LEAST:
        return False
    counts = (places.get(word.encode("utf-8", "replace"), 0) for word in {name, name.lower()})
    return sum(1 if isinstance(each, int) else len(each) for each in counts) <= _RARE


def _spoken(message: Message) -> Iterable[str]:
    for part in message.parts:
        if isinstance(part, ToolCall):
            yield f"{part.name}\n{text_of(part)}"
        elif isinstance(part, Text):
            yield part.text
