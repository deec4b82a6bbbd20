"""What stands in view in front of a turn, so that nothing of it is recalled."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, repeat
from operator import contains, itemgetter
from typing import Final

from accordion.archive.recall_index import text_of, words_in
from accordion.archive.recall_names import Name
from accordion.core.conversation import Conversation, Message, Part, ToolCall, ToolResult
from accordion.core.spelling import LETTERS
from accordion.core.values import dataclass, replace

Seen = tuple[tuple[str, ...], tuple[str, ...]]
"""The texts of some parts, and those of the results among them."""

_LETTERS: Final = f"[0-9A-Za-z_{LETTERS}]"
"""What `words_in` takes for characters of words."""
_WITHIN = re.compile(_LETTERS + "{2}")
"""Two characters of one word."""
_TRIES: Final = 16
"""So many places at most are looked at one by one: making a pattern takes as long."""
_WORD: Final = 140
"""Bytes that a word takes, beside a bit for each message."""


@dataclass(frozen=True, slots=True)
class View:
    """The texts of the system prompt, of the entries that belong to it (`lead`), of `count` messages, of which the last
    has the chain key `last`, and of what was put behind them. `words` tells of each word which of the first `read` of
    those hold it, bit by bit; `size` is what all that takes in bytes beside the conversation."""

    preamble: Sequence[Part]
    lead: Sequence[Message]
    count: int
    last: bytes
    seen: tuple[Seen, ...]
    words: Mapping[bytes, int]
    read: int
    size: int

    def begins(self, client: Conversation, chain: Sequence[bytes]) -> bool:
        """Whether a list with these chain keys begins with it."""
        if (self.preamble, self.lead) != (client.preamble, client.lead) or self.count > len(chain):
            return False
        return self.count == 0 or chain[self.count - 1] == self.last

    def grown(self, messages: Sequence[Message], chain: Sequence[bytes]) -> View:
        """The same of a list that begins with it; their texts are searched as they are, since words would cost more."""
        if self.count == len(messages):
            return self
        new = messages[self.count :]
        seen, size = (*self.seen, *[read(message.parts) for message in new]), self.size + sum(map(_size_of, new))
        return replace(self, count=len(messages), last=chain[-1], seen=seen, size=size)

    def with_texts(self, newest: Sequence[Seen]) -> View:
        """The same with these behind it."""
        return replace(self, seen=(*self.seen, *newest))

    def holds(self, name: Name) -> bool:
        """Whether a name stands in it."""
        held = (1 << self.read) - 1
        for word in name.words:
            held &= self.words.get(word, 0)
        # What holds all its words shows the name wherever that stands in it.
        if held and (name.plain or any(name.text in text for at in _bits(held) for text in self.seen[at][0])):
            return True
        return _among(name, self.seen[self.read :])


def view_of(client: Conversation, messages: Sequence[Message], chain: Sequence[bytes]) -> View:
    """The view of these messages, which have these chain keys, behind the client's system prompt."""
    listed = (*client.lead, *messages)
    seen = (read(client.preamble), *[read(message.parts) for message in listed])
    words = _words_of(seen)
    size = sum(map(_size_of, listed)) + (_WORD + len(seen) // 8) * len(words)
    return View(client.preamble, client.lead, len(messages), chain[-1] if chain else b"", seen, words, len(seen), size)


def read(parts: Sequence[Part]) -> Seen:
    """What can be read in some parts, one text for each."""
    texts = [text_of(part) for part in parts]
    results = [text for part, text in zip(parts, texts, strict=True) if isinstance(part, ToolResult)]
    return tuple(filter(None, texts)), tuple(results)


def _words_of(seen: Sequence[Seen]) -> dict[bytes, int]:
    words: dict[bytes, int] = {}
    for at, (texts, _) in enumerate(seen):
        for word in set().union(*map(words_in, texts)):
            words[word] = words.get(word, 0) | 1 << at
    return words


def _size_of(message: Message) -> int:
    """What the texts of a message take; most are its own, but for those of calls."""
    return 300 + sum([len(part.arguments) for part in message.parts if isinstance(part, ToolCall)])


def _bits(number: int) -> Iterator[int]:
    """The places of the bits that are set, the highest first."""
    while number:
        at = number.bit_length() - 1
        yield at
        number ^= 1 << at


def _among(name: Name, seen: Sequence[Seen]) -> bool:
    sought = name.text
    # Most names stand nowhere, which is soon told.
    if not any(map(contains, chain.from_iterable(map(itemgetter(0), seen)), repeat(sought))):
        return False
    words = [word.decode() for word in name.words]
    for texts, _ in reversed(seen):
        if any(sought in text for text in texts) and all(any(_stands(word, text) for text in texts) for word in words):
            return True
    return False


def _stands(word: str, text: str) -> bool:
    """Whether a word stands in the text with no more of a word around it."""
    at = text.find(word)
    for _ in range(_TRIES):
        if at < 0:
            return False
        if not (at and _WITHIN.match(text, at - 1)) and not _WITHIN.match(text, at + len(word) - 1):
            return True
        at = text.find(word, at + 1)
    return re.search(f"{word}(?!{_LETTERS})(?<!{_LETTERS}{word})", text) is not None
