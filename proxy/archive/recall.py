"""Recall: what left the window comes back in part, unasked, when the newest turn names what only the archive holds.

A client sends its whole history with every request, so what left is at hand: nothing is read from a store here.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from operator import itemgetter
from typing import Final

from proxy.archive.cache import Cache
from proxy.archive.recall_choice import Choice, Name, Quote, results_in
from proxy.archive.recall_index import Index, decoded, index_of, texts_of, words_in
from proxy.archive.recall_quotes import OPENING
from proxy.core.conversation import Conversation, Message, Part, Text, ToolCall, ToolResult
from proxy.core.edits import Folded
from proxy.core.values import dataclass

Claims = Callable[[str], Iterable[str]]
"""The words of a text that are no plain language: paths, identifiers, numbers, addresses."""

_Seen = tuple[tuple[str, ...], tuple[str, ...]]
"""The texts of some parts, and those of the results among them."""

_QUOTED = re.compile(r'"([^"\n]{4,200})"|`([^`\n]{4,200})`|“([^”\n]{4,200})”')
_WITHIN = re.compile(r"[0-9A-Za-z_\u00c0-\u024f\u0370-\u04ff]{2}")
"""Two characters of one word, by what `words_in` takes for words."""
_NAMES: Final = 300
"""Names of one turn that are looked for, the first ones."""
_TEXT: Final = 20_000
"""Characters of one text of the turn that are looked through."""
_COMMON: Final = 8
"""What stands in more passages than this tells none of them from the others."""
_LOOKS: Final = 50
_FOUND: Final = 60
"""Names that passages hold, the first ones; more of them say no more about what is meant."""
_SCANNED: Final = 20_000_000
"""Characters that one turn's names are looked for in, where their words alone do not tell."""
_CHARACTERS: Final = 3.2
"""Of one token, as a first guess."""
_TRIES: Final = 3
_WORD: Final = 140
"""Bytes that a word takes, beside a bit for each message."""


@dataclass(frozen=True, slots=True)
class _View:
    """What stands in view in front of a turn: the keys of its messages, the texts of the system prompt and of each
    message, for each word of the first `read` of them which ones hold it (bit by bit), and what all that takes in bytes
    beside the conversation."""

    preamble: Sequence[Part]
    keys: list[bytes]
    seen: tuple[_Seen, ...]
    words: Mapping[bytes, int]
    read: int
    size: int


@dataclass(frozen=True, slots=True)
class Excerpt:
    """What is put in front of the newest turn: its text, the artifacts that it names, and what it counts."""

    text: str
    artifacts: tuple[str, ...]
    tokens: int
    quotes: tuple[Quote, ...] = ()


class Recaller:
    """Finds and words excerpts. Remembers, within `capacity` bytes, which words stand in what each fold took out, and
    the texts of the messages in view. Safe to use from threads."""

    def __init__(self, claims: Claims, capacity: int = 32 * 2**20) -> None:
        self._claims = claims
        self._indexes = Cache[str, Index](capacity * 3 // 4)
        self._views = Cache[str, _View](capacity // 4)

    def pending(self, shown: Folded, client: Conversation) -> int:
        """Bytes that have yet to be read to know what the fold took out; where they are many, `excerpt` belongs in a
        thread."""
        if shown.compaction is None or shown.compaction.id in self._indexes:
            return 0
        return sum(len(message.wire) for message in client.messages[: shown.compaction.covered])

    def excerpt(
        self,
        space: bytes,
        shown: Folded,
        client: Conversation,
        newest: range,
        count: Callable[[str], int],
        *,
        tokens: int = 1_500,
        sources: int = 3,
    ) -> Excerpt | None:
        """The excerpt that the newest turn asks for by what it names; None where it names nothing that only the archive
        holds, or nothing fits.

        `space` is the tenant's key. `shown` is the list as it would be forwarded, with what was read back and recalled
        earlier; `client` is what the client sent, `newest` the indexes of its messages that came behind those of the
        request before. `count` counts a text's tokens: at most `tokens` are given, of at most `sources` sources.
        """
        if shown.compaction is None or tokens <= 0 or sources <= 0:
            return None
        places = range(max(newest.start, _last_round(client.messages)), newest.stop)
        turn = client.messages[places.start : places.stop]
        if shown.compaction.id not in self._indexes:
            # Where much is read anyway, in a thread, what is in view is read too.
            self._view(shown, client, places)
        index = self._index(space, shown, client)
        names = list(islice(self._sought(index, client, turn), _FOUND))
        # Most turns name nothing that the archive holds; only for the others all that is in view is looked through.
        if not names:
            return None
        view = self._view(shown, client, places)
        names = [name for name in names if not _visible(name, view)]
        if not names:
            return None
        known = {text for _, results in view.seen for text in results}
        choice = Choice(index, client.messages, turn, known, names)
        room = float(tokens) * _CHARACTERS
        for _ in range(_TRIES):
            quotes = choice.quotes(int(room) - len(OPENING), sources)
            if not quotes:
                return None
            text = "\n\n".join([OPENING, *(quote.text for quote in quotes)])
            used = count(text)
            if used <= tokens:
                artifacts = tuple(dict.fromkeys(quote.artifact for quote in quotes if quote.artifact))
                return Excerpt(text, artifacts, used, tuple(quotes))
            room = min(room, len(text)) * tokens / used * 0.95
        return None

    # -- what is named ------------------------------------------------------------

    def _sought(self, index: Index, client: Conversation, turn: Sequence[Message]) -> Iterator[Name]:
        """The names of the turn that passages hold, and not too many of them."""
        scanned = 0
        for text in islice(dict.fromkeys(self._named(turn)), _NAMES):
            words = tuple(words_in(text))
            found = index.holding(words)
            name = Name(text, words, tuple(found))
            if found and not name.plain:
                if len(found) > _LOOKS:
                    continue
                held = list[int]()
                for number in found:
                    passage = index.passages[number]
                    # Most names stand in what was said, and arguments have to be decoded.
                    said = passage.said(client.messages)
                    scanned += len(said)
                    if text in said or passage.gives(text, client.messages):
                        held.append(number)
                    if len(held) > _COMMON or scanned > _SCANNED:
                        break
                if scanned > _SCANNED:
                    continue
                name = Name(text, words, tuple(held))
            if 0 < len(name.passages) <= _COMMON:
                yield name

    def _named(self, turn: Sequence[Message]) -> Iterator[str]:
        """What a user says in quotation marks, the values that calls are given, and the claims in both."""
        for message in turn:
            for part in message.parts:
                if isinstance(part, Text) and message.role == "user":
                    text = part.text[:_TEXT]
                    yield from (found[found.lastindex or 0].strip() for found in _QUOTED.finditer(text))
                    yield from self._claims(text)
                elif isinstance(part, ToolCall):
                    for _, value in decoded(part.arguments):
                        if _names_something(value.strip()):
                            yield value.strip()
                        yield from self._claims(value[:_TEXT])

    # -- what is in view ----------------------------------------------------------

    def _view(self, shown: Folded, client: Conversation, turn: range) -> _View:
        """All that is in view, but for what the turn itself says and asks for."""
        messages, spans = shown.conversation.messages, shown.spans
        start = bisect_left(spans, turn.start, key=itemgetter(0))
        settled = self._settled(shown, client, (*client.lead, *messages[:start]))
        newest = list[_Seen]()
        for message, (first, last, _) in zip(messages[start:], spans[start:], strict=True):
            if not turn.start <= first <= last:
                newest.append(_read(message.parts))
            elif message.has_tool_result:
                newest.append(_read([part for part in message.parts if isinstance(part, ToolResult)]))
        return replace(settled, seen=(*settled.seen, *newest))

    def _settled(self, shown: Folded, client: Conversation, messages: Sequence[Message]) -> _View:
        """The system prompt and these messages; what was read for an earlier turn is not read again."""
        name = shown.compaction.id if shown.compaction is not None else ""
        keys, known = [message.key for message in messages], self._views.get(name)
        if known is None or known.preamble != client.preamble or known.keys != keys[: len(known.keys)]:
            seen = (_read(client.preamble), *[_read(message.parts) for message in messages])
            # Most of it is there at the first look, which is made in a thread; of the rest words would cost more.
            words = _words_of(seen)
            size = sum(map(_size_of, messages)) + (_WORD + len(seen) // 8) * len(words)
            known = _View(client.preamble, keys, seen, words, len(seen), size)
            self._views.put(name, known, known.size)
        elif len(known.keys) < len(keys):
            new = messages[len(known.keys) :]
            seen = (*known.seen, *[_read(message.parts) for message in new])
            known = replace(known, keys=keys, seen=seen, size=known.size + sum(map(_size_of, new)))
            self._views.put(name, known, known.size)
        return known

    def _index(self, space: bytes, shown: Folded, client: Conversation) -> Index:
        name = shown.compaction.id if shown.compaction is not None else ""
        known = self._indexes.get(name)
        if known is None:
            known = index_of(space, shown, client.messages)
            self._indexes.put(name, known, known.size)
        return known


def _read(parts: Sequence[Part]) -> _Seen:
    return tuple(texts_of(parts)), tuple(results_in(parts))


def _words_of(seen: Sequence[_Seen]) -> dict[bytes, int]:
    words: dict[bytes, int] = {}
    for at, (texts, _) in enumerate(seen):
        for word in set[bytes]().union(*map(words_in, texts)):
            words[word] = words.get(word, 0) | 1 << at
    return words


def _size_of(message: Message) -> int:
    """What the texts of a message take; most are its own, but for those of calls."""
    return 300 + sum([len(part.arguments) for part in message.parts if isinstance(part, ToolCall)])


def _visible(name: Name, view: _View) -> bool:
    # A search through a text costs a small part of finding its words, and most names stand near the end.
    if _among(name, view.seen[view.read :]):
        return True
    held = (1 << view.read) - 1
    for word in name.words:
        held &= view.words.get(word, 0)
    return held != 0 and (name.plain or _among(name, [view.seen[at] for at in range(view.read) if held >> at & 1]))


def _among(name: Name, seen: Sequence[_Seen]) -> bool:
    sought = name.text
    for texts, _ in reversed(seen):
        for text in texts:
            if sought in text and (_stands(sought, text) or (not name.plain and _holds(texts, name))):
                return True
    return False


def _stands(sought: str, text: str) -> bool:
    """Whether it stands somewhere in the text with no more of a word around it."""
    at = text.find(sought)
    while at >= 0:
        end = at + len(sought)
        if not (at and _WITHIN.match(text, at - 1)) and not _WITHIN.match(text, end - 1):
            return True
        at = text.find(sought, at + 1)
    return False


def _holds(texts: Sequence[str], name: Name) -> bool:
    """Whether all its words stand in these texts."""
    return set().union(*map(words_in, texts)).issuperset(name.words)


def _last_round(messages: Sequence[Message]) -> int:
    """Where the model's last reply begins."""
    at = len(messages)
    while at and messages[at - 1].role != "assistant":
        at -= 1
    while at and messages[at - 1].role == "assistant":
        at -= 1
    return at


def _names_something(value: str) -> bool:
    """Whether an argument as a whole names something: one word that is no plain one, or several that begin as names do.
    Remarks and searches in plain words do not."""
    if not 4 <= len(value) <= 200 or "\n" in value:
        return False
    words = value.split()
    if len(words) == 1:
        return not (value.isalpha() and value.islower())
    return all(word[0].isupper() or any(map(str.isdigit, word)) for word in words)
