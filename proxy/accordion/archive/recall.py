"""Recall: what left the window comes back in part, unasked, when the newest turn names what only the archive holds, or
speaks of what a standing instruction without a place in the window governs.

A client sends its whole history with every request, so what left is at hand: nothing is read from a store here.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice
from operator import itemgetter
from typing import Final

from accordion.archive.recall_choice import Choice, Quote
from accordion.archive.recall_index import Index, decoded, index_of
from accordion.archive.recall_names import Lookup
from accordion.archive.recall_quotes import OPENING, labelled
from accordion.archive.recall_rules import Omitted, Rule, Rules, omitted
from accordion.archive.recall_view import Seen, View, read, view_of
from accordion.core.cache import Cache
from accordion.core.conversation import Conversation, Message, Text, ToolCall, ToolResult
from accordion.core.edits import Compaction, Folded
from accordion.core.values import dataclass

Claims = Callable[[str], Iterable[str]]
"""The words of a text that are no plain language: paths, identifiers, numbers, addresses."""

_QUOTED = re.compile(r'"([^"\n]{4,200})"|`([^`\n]{4,200})`|“([^”\n]{4,200})”')
_NAMES: Final = 300
"""Names of one turn that are looked for, the first ones."""
_LEAST: Final = 4
"""Characters of a name."""
_TEXT: Final = 20_000
"""Characters of one text of the turn that are looked through."""
_FOUND: Final = 60
"""Names that passages hold, the first ones; more of them say no more about what is meant."""
_CHARACTERS: Final = 3.2
"""Of one token, as a first guess."""
_TRIES: Final = 3
_SOURCE: Final = "Standing instruction of the user"


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

    def __init__(
        self, claims: Claims, capacity: int = 32 * 2**20, rules: Rules = lambda _messages, _covered: ()
    ) -> None:
        self._claims, self._rules = claims, rules
        self._indexes = Cache[str, tuple[Index, Omitted]](capacity * 3 // 4)
        self._views = Cache[str, View](capacity // 4)

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
        places = range(_last_round(client.messages, newest.start), newest.stop)
        turn = client.messages[places.start : places.stop]
        found = self._indexes.get(shown.compaction.id)
        if found is None:
            # Where much is read anyway, in a thread, what is in view is read too.
            self._view(shown, client, places)
            found = self._read(space, shown, client, shown.compaction)
        index, left = found
        sought = islice(dict.fromkeys(self._named(turn)), _NAMES)
        names = list(islice(filter(None, map(Lookup(index, client.messages), sought)), _FOUND))
        rules = left.spoken_of(turn, sources)
        # Most turns name nothing that the archive holds; only for the others all that is in view is looked through.
        if not names and not rules:
            return None
        view = self._view(shown, client, places)
        names = [name for name in names if not view.holds(name)]
        texts = list(chain.from_iterable(map(itemgetter(0), view.seen)))
        rules = [rule for rule in rules if not any(rule.text in text for text in texts)]
        if not names and not rules:
            return None
        stated = _stated(rules, index, tokens, count)
        known = set(chain.from_iterable(map(itemgetter(1), view.seen)))
        choice = Choice(index, client.messages, turn, known, names, [quote.text for quote in stated])
        room = float(tokens) * _CHARACTERS
        for _ in range(_TRIES):
            free = int(room) - len(OPENING) - sum(len(quote.text) + 2 for quote in stated)
            quotes = [*stated, *choice.quotes(free, sources - len(stated))]
            if not quotes:
                return None
            text = "\n\n".join([OPENING, *(quote.text for quote in quotes)])
            used = count(text)
            if used <= tokens:
                return _excerpt(quotes, count)
            room = min(room, len(text)) * tokens / used * 0.95
        return _excerpt(stated, count)

    def _read(self, space: bytes, shown: Folded, client: Conversation, compaction: Compaction) -> tuple[Index, Omitted]:
        index = index_of(space, shown, client.messages)
        rules = self._rules(client.messages, compaction.covered)
        left = omitted(rules, shown.conversation.messages, index.places)
        self._indexes.put(compaction.id, (index, left), index.size + left.size)
        return index, left

    # -- what is named ------------------------------------------------------------

    def _named(self, turn: Sequence[Message]) -> list[str]:
        """What a user says in quotation marks, the values that calls are given, and the claims in both."""
        named: list[str] = []
        for message in turn:
            for part in message.parts:
                if isinstance(part, ToolCall):
                    for _, value in decoded(part.arguments):
                        if len(value) < _LEAST:
                            continue
                        whole = value.strip()
                        if _names_something(whole):
                            named.append(whole)
                        named += self._claims(value[:_TEXT])
                elif isinstance(part, Text) and message.role == "user":
                    text = part.text[:_TEXT]
                    named += [found[found.lastindex or 0].strip() for found in _QUOTED.finditer(text)]
                    named += self._claims(text)
        return named

    # -- what is in view ----------------------------------------------------------

    def _view(self, shown: Folded, client: Conversation, turn: range) -> View:
        """All that is in view, but for what the turn itself says and asks for."""
        messages, spans = shown.conversation.messages, shown.spans
        start = bisect_left(spans, turn.start, key=itemgetter(0))
        newest: list[Seen] = []
        for message, (first, last, _) in zip(messages[start:], spans[start:], strict=True):
            if not turn.start <= first <= last:
                newest.append(read(message.parts))
            elif message.has_tool_result:
                newest.append(read([part for part in message.parts if isinstance(part, ToolResult)]))
        return self._settled(shown, client, start).with_texts(newest)

    def _settled(self, shown: Folded, client: Conversation, count: int) -> View:
        """The system prompt and the first `count` messages; what was read for an earlier turn is not read again."""
        name = shown.compaction.id if shown.compaction is not None else ""
        messages, chain = shown.conversation.messages[:count], shown.conversation.chain[:count]
        known = self._views.get(name)
        view = known.grown(messages, chain) if known is not None and known.begins(client, chain) else None
        if view is None:
            # Most of it is there at the first look, which is made in a thread.
            view = view_of(client, messages, chain)
        if view is not known:
            self._views.put(name, view, view.size)
        return view


def _stated(rules: Sequence[Rule], index: Index, tokens: int, count: Callable[[str], int]) -> list[Quote]:
    """Instructions as they are quoted, as many as fit."""
    quotes = list[Quote]()
    for rule in rules:
        artifact = index.artifact(rule.message)
        text = labelled(_SOURCE, rule.message, artifact, f"> {rule.line}", whole=False)
        if count("\n\n".join([OPENING, *(quote.text for quote in quotes), text])) > tokens:
            break
        quotes.append(Quote(text, rule.message, artifact, ()))
    return quotes


def _excerpt(quotes: Sequence[Quote], count: Callable[[str], int]) -> Excerpt | None:
    if not quotes:
        return None
    text = "\n\n".join([OPENING, *(quote.text for quote in quotes)])
    artifacts = tuple(dict.fromkeys(quote.artifact for quote in quotes if quote.artifact))
    return Excerpt(text, artifacts, count(text), tuple(quotes))


def _last_round(messages: Sequence[Message], start: int) -> int:
    """Where the model's last reply begins, but not before `start`."""
    at = len(messages)
    while at > start and messages[at - 1].role != "assistant":
        at -= 1
    while at > start and messages[at - 1].role == "assistant":
        at -= 1
    return at


def _names_something(value: str) -> bool:
    """Whether an argument as a whole names something: one word that is no plain one, or several that begin as names do.
    Remarks and searches in plain words do not."""
    if not _LEAST <= len(value) <= 200 or "\n" in value:
        return False
    words = value.split()
    if len(words) == 1:
        return not (value.isalpha() and value.islower())
    return all(word[0].isupper() or any(map(str.isdigit, word)) for word in words)
