"""Recall: puts an excerpt of archived content in front of a turn that names it.

Theory of operation. A client sends its whole history with every request, so all that a compaction took out is at hand:
nothing is read from a store here. `recall_index` lists the passages that left the window and the words of each, once
for each compaction: behind the response, and for the first turn only the words of that turn. Words that an earlier
compaction's index has are not read again. For each request,
`ArtifactSearch.find_excerpt` takes the names in the newest turn (`_find_names`), keeps those that passages hold and
that are not in view (`NameLookup`, `VisibleTexts`), chooses the passages to quote (`QuoteChoice`), and quotes the lines
around the names (`recall_quotes`). A standing instruction of the user that no message in view states any more (`Rule`)
is quoted too, when the turn is about its subject.

The insertions package places the excerpt in the request, and keeps it there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain, islice, repeat
from operator import contains
from sys import getsizeof
from typing import Final

import msgspec
from msgspec.structs import replace

from accordion.archive.recall_index import (
    NameLookup,
    Passage,
    RecallIndex,
    TurnName,
    WordIndex,
    WordLookup,
    argument_scalars,
    build_index,
    readable_text,
    words_in,
    words_of_name,
)
from accordion.archive.recall_quotes import OPENING, label_quote, quote_text, render_call
from accordion.model.cache import ENTRY, BoundedCache
from accordion.model.compaction import CompactedConversation, Compaction
from accordion.model.conversation import Conversation, Message, Part, Text, ToolCall, ToolResult
from accordion.model.tenant import TenantScope
from accordion.model.words import LETTERS, stems_of

FindWords = Callable[[str], Iterable[str]]
"""Finds the words of a text that are not plain language: paths, identifiers, numbers, addresses."""

_QUOTED = re.compile(r'"([^"\n]{4,200})"|`([^`\n]{4,200})`|“([^”\n]{4,200})”')
_MAX_TURN_NAMES: Final = 300
"""Names of one turn that are looked up, the first ones."""
_MIN_NAME: Final = 4
"""Characters of a name."""
_MAX_TEXT: Final = 20_000
"""Characters of one text of the turn that are searched for names."""
_MAX_FOUND_NAMES: Final = 60
"""Names that passages hold, the first ones; more of them say no more about the subject."""
_CHARACTERS_PER_TOKEN: Final = 3.2
"""A first guess."""
_FITTING_TRIES: Final = 3
_MAX_PARTIAL_INDEXES: Final = 1_000
_MAX_RUNS: Final = 16
"""Runs of an index; instead of more, the next index has a single one."""
_RULE_SOURCE: Final = "Standing instruction from the user"
"""The source of an instruction in the label of its quote."""


class Excerpt(msgspec.Struct, frozen=True):
    """The text that is put in front of the newest turn, the artifacts that it names, and its tokens."""

    text: str
    artifacts: tuple[str, ...]
    tokens: int
    quotes: tuple[Quote, ...] = ()


class ArtifactSearch:
    """Finds and writes excerpts. Safe to use from threads.

    Caches, within `capacity` bytes, the index of each compaction, the instructions that it left out, and the words in
    view.
    """

    def __init__(
        self,
        find_words: FindWords,
        capacity: int = 32 * 2**20,
        rules: FindRules = lambda _messages, _covered, _text: (),
    ) -> None:
        self._find_words, self._find_rules = find_words, rules
        self._indexes = BoundedCache[bytes, RecallIndex](capacity * 9 // 16)
        """By the chain key of the last message that is covered: the compaction that was indexed last."""
        self._partial_indexes = BoundedCache[str, None](_MAX_PARTIAL_INDEXES * ENTRY)
        """The compactions of which a turn had an index of its own words only."""
        # Apart from the indexes, because they are small, and to find them again takes the longest.
        self._omitted_rules = BoundedCache[str, OmittedRules](capacity * 2 // 16)
        self._views = BoundedCache[str, RecallView](capacity * 5 // 16)

    def pending_bytes(self, history: CompactedConversation, client: Conversation) -> int:
        """Returns the bytes that `find_excerpt` must read to index the compaction and to find the instructions that it
        left out; many of them belong in a thread."""
        compaction = history.compaction
        if compaction is None or (
            compaction.id in self._omitted_rules and self._get_index(compaction, client) is not None
        ):
            return 0
        return sum(len(message.wire) for message in client.messages[: compaction.covered_count])

    def find_excerpt(
        self,
        tenant: TenantScope,
        history: CompactedConversation,
        client: Conversation,
        newest: range,
        count: Callable[[str], int],
        *,
        tokens: int = 1_500,
        sources: int = 3,
    ) -> Excerpt | None:
        """Returns the excerpt for the newest turn; None if it names nothing archived, or nothing fits.

        `history` is the list as it would be forwarded, with earlier tool rounds and excerpts; `client` is the client's
        own conversation, `newest` the indexes of its messages that the request before did not have. `count` counts the
        tokens of a text: the excerpt has at most `tokens`, from at most `sources` sources.
        """
        if history.compaction is None or tokens <= 0 or sources <= 0:
            return None
        turn_range = range(_last_round_start(client.messages, newest.start), newest.stop)
        turn = client.messages[turn_range.start : turn_range.stop]
        candidates = list(islice(dict.fromkeys(self._find_names(turn)), _MAX_TURN_NAMES))
        index, omitted_rules = self._find_index(tenant, history, client, history.compaction, candidates)
        names = list(islice(filter(None, map(NameLookup(index, client.messages), candidates)), _MAX_FOUND_NAMES))
        rules = omitted_rules.relevant_to(turn, sources)
        # Most turns name nothing archived. Only for the others, all texts in view are searched.
        if not names and not rules:
            return None
        visible = self._visible_texts(history, client, turn_range)
        names = [name for name in names if not visible.contains(name)]
        rules = [rule for rule in rules if not visible.contains_text(rule.text)]
        if not names and not rules:
            return None
        rule_quotes = _quote_rules(rules, index, tokens, count)
        quoted = [quote.text for quote in rule_quotes]
        choice = QuoteChoice(index, client.messages, turn, visible.results, names, quoted)
        characters = float(tokens) * _CHARACTERS_PER_TOKEN
        for _ in range(_FITTING_TRIES):
            available = int(characters) - len(OPENING) - sum(len(quote.text) + 2 for quote in rule_quotes)
            quotes = [*rule_quotes, *choice.choose(available, sources - len(rule_quotes))]
            if not quotes:
                return None
            text = "\n\n".join([OPENING, *(quote.text for quote in quotes)])
            token_count = count(text)
            if token_count <= tokens:
                return _build_excerpt(quotes, count)
            characters = min(characters, len(text)) * tokens / token_count * 0.95
        return _build_excerpt(rule_quotes, count)

    def index_compaction(
        self, tenant: TenantScope, history: CompactedConversation, client: Conversation
    ) -> RecallIndex | None:
        """Indexes the compaction of a history, if there is one, and the texts in view, for the turns to come.

        `history` is the list as it is forwarded.
        """
        compaction = history.compaction
        if compaction is None:
            return None
        view = build_view(client, history.conversation.messages, history.conversation.chain)
        self._views.put(compaction.id, view, view.size)
        return self._get_index(compaction, client) or self._build_index(tenant, history, client, compaction)

    def _build_index(
        self, tenant: TenantScope, history: CompactedConversation, client: Conversation, compaction: Compaction
    ) -> RecallIndex:
        key = self._find_earlier(compaction, client)
        # Two indexes with the same runs would count them twice.
        earlier = self._indexes.pop(key) if key is not None else None
        runs = earlier.runs if earlier is not None and len(earlier.runs) < _MAX_RUNS else ()
        index = build_index(tenant, history, client.messages, runs=runs)
        self._indexes.put(client.chain[compaction.covered_count - 1], index, index.size)
        self._partial_indexes.pop(compaction.id)
        return index

    def _get_index(self, compaction: Compaction, client: Conversation) -> RecallIndex | None:
        index = self._indexes.get(client.chain[compaction.covered_count - 1])
        return index if index is not None and index.compaction_id == compaction.id else None

    def _find_earlier(self, compaction: Compaction, client: Conversation) -> bytes | None:
        """Returns the key of the index that covers the most of the messages that a compaction covers."""
        keys = reversed(client.chain[: compaction.covered_count])
        return next((key for key in keys if key in self._indexes), None)

    def _find_index(
        self,
        tenant: TenantScope,
        history: CompactedConversation,
        client: Conversation,
        compaction: Compaction,
        names: Sequence[str],
    ) -> tuple[RecallIndex, OmittedRules]:
        """Returns the index of a compaction, and the instructions that it left out.

        The first turn after the first compaction gets an index of its own words only: the client waits for it, and the
        whole index is made behind the response. If that did not happen, the second turn makes it. A later compaction is
        indexed by the first turn, since it only adds messages to an index.
        """
        omitted_rules, rules = self._omitted_rules.get(compaction.id), list[Rule]()
        if omitted_rules is None:
            visible = (part for message in history.conversation.messages for part in message.parts)
            visible_text = "\n".join(map(readable_text, visible))
            rules = list(self._find_rules(client.messages, compaction.covered_count, visible_text))
        index = self._get_index(compaction, client)
        if index is None and (
            compaction.id in self._partial_indexes or self._find_earlier(compaction, client) is not None
        ):
            index = self._build_index(tenant, history, client, compaction)
        if index is None:
            words = {word for name in names for word in (name.encode("utf-8", "replace"), *words_of_name(name))}
            words.update(word for rule in rules for name in _names_in(rule) for word in _forms_of(name))
            index = build_index(tenant, history, client.messages, frozenset(words))
            self._partial_indexes.put(compaction.id, None, ENTRY)
        if omitted_rules is None:
            omitted_rules = describe_omitted_rules(rules, index.words)
            self._omitted_rules.put(compaction.id, omitted_rules, omitted_rules.size)
        return index, omitted_rules

    def _find_names(self, turn: Sequence[Message]) -> list[str]:
        """Lists the user's quotations, the arguments of calls, and the words that are not plain language."""
        names: list[str] = []
        for message in turn:
            for part in message.parts:
                if isinstance(part, ToolCall):
                    for _, value in argument_scalars(part.arguments):
                        if len(value) < _MIN_NAME:
                            continue
                        whole = value.strip()
                        if _is_name(whole):
                            names.append(whole)
                        names += self._find_words(value[:_MAX_TEXT])
                elif isinstance(part, Text) and message.role == "user":
                    text = part.text[:_MAX_TEXT]
                    names += [match[match.lastindex or 0].strip() for match in _QUOTED.finditer(text)]
                    names += self._find_words(text)
        return names

    def _visible_texts(self, history: CompactedConversation, client: Conversation, turn: range) -> VisibleTexts:
        """Returns all texts in view, except those of the turn itself (but with the results that it brought)."""
        messages, spans = history.conversation.messages, history.spans
        # A summary that covers the turn's beginning stands behind it.
        start = next((at for at, (first, _, _) in enumerate(spans) if first >= turn.start), len(spans))
        newest = list[Sequence[Part]]()
        for message, (first, last, _) in zip(messages[start:], spans[start:], strict=True):
            if not turn.start <= first <= last:
                newest.append(message.parts)
            elif message.has_tool_result:
                newest.append([part for part in message.parts if isinstance(part, ToolResult)])
        return VisibleTexts(self._build_view(history, client, start), client, messages, newest)

    def _build_view(self, history: CompactedConversation, client: Conversation, count: int) -> RecallView:
        """Returns the view of the system prompt and the first `count` messages; extends the one of an earlier turn."""
        name = history.compaction.id if history.compaction is not None else ""
        messages, keys = history.conversation.messages[:count], history.conversation.chain[:count]
        cached = self._views.get(name)
        view = cached.extend(messages, keys) if cached is not None and cached.is_prefix_of(client, keys) else None
        if view is None:
            # To index all messages takes as long as to search them for a hundred names.
            view = build_view(client, (), ()).extend(messages, keys)
        if view is not cached:
            self._views.put(name, view, view.size)
        return view


def _build_excerpt(quotes: Sequence[Quote], count: Callable[[str], int]) -> Excerpt | None:
    if not quotes:
        return None
    text = "\n\n".join([OPENING, *(quote.text for quote in quotes)])
    artifacts = tuple(dict.fromkeys(quote.artifact for quote in quotes if quote.artifact))
    return Excerpt(text, artifacts, count(text), tuple(quotes))


def _last_round_start(messages: Sequence[Message], start: int) -> int:
    """Returns the index where the model's last response begins, but at least `start`."""
    at = len(messages)
    while at > start and messages[at - 1].role != "assistant":
        at -= 1
    while at > start and messages[at - 1].role == "assistant":
        at -= 1
    return at


def _is_name(value: str) -> bool:
    """Whether an argument as a whole is a name: one word that is not a plain one, or several that begin as names do.

    Remarks and searches in plain words are not.
    """
    if not _MIN_NAME <= len(value) <= 200 or "\n" in value:
        return False
    words = value.split()
    if len(words) == 1:
        return not (value.isalpha() and value.islower())
    return all(word[0].isupper() or any(map(str.isdigit, word)) for word in words)


# -- the choice of quotes ----------------------------------------------------------------------------------------------

_MIN_QUOTE: Final = 120
"""Characters below which a quote is of no use."""
_MAX_TRIED_PASSAGES: Final = 8
"""Passages that are tried for one excerpt."""
_MAX_QUOTED_NAMES: Final = 12
"""Names by which lines are chosen, the rarest ones."""
_LABEL_LENGTH: Final = 60
"""Characters of a quote's label beside its source, roughly."""


class Quote(msgspec.Struct, frozen=True):
    """A quote of one source.

    `names` are the turn's names for which it was chosen, `message` is the client's index of the message that is quoted,
    `artifact` may be empty.
    """

    text: str
    message: int
    artifact: str
    names: tuple[str, ...]


class QuoteChoice:
    """Chooses the passages to quote: those that hold the most and rarest of the names, the newest of equals.

    `results` are the texts of the results in view, `quoted` texts that the excerpt quotes already.
    """

    def __init__(
        self,
        index: RecallIndex,
        messages: Sequence[Message],
        turn: Sequence[Message],
        results: set[str],
        names: Sequence[TurnName],
        quoted: Sequence[str] = (),
    ) -> None:
        self._index, self._messages, self._names = index, messages, names
        self._results = results
        self._turn_texts = [readable_text(part) for message in turn for part in message.parts]
        self._known_results = [*quoted, *(text for message in turn for text in _result_texts(message.parts))]
        self._calls = {(p.name, p.arguments) for message in turn for p in message.parts if isinstance(p, ToolCall)}

    def choose(self, characters: int, sources: int) -> list[Quote]:
        """Returns at most `sources` quotes, together of about `characters` characters, the best first."""
        quotes: list[Quote] = []
        unquoted = list(self._names)
        for _ in range(_MAX_TRIED_PASSAGES):
            if not unquoted or len(quotes) >= sources:
                break
            number = self._best_passage(unquoted)
            names = sorted((name for name in self._names if number in name.passages), key=lambda n: len(n.passages))
            unquoted = [name for name in unquoted if number not in name.passages]
            share = characters // min(sources - len(quotes), len(unquoted) + 1)
            if share < _MIN_QUOTE:
                break
            texts = tuple(name.text for name in names[:_MAX_QUOTED_NAMES])
            quote = self._quote(self._index.passages[number], texts, share)
            if quote is not None:
                quotes.append(quote)
                characters -= len(quote.text) + 2
        return quotes

    def _best_passage(self, names: Sequence[TurnName]) -> int:
        scores: dict[int, float] = {}
        for name in names:
            for number in name.passages:
                scores[number] = scores.get(number, 0.0) + 1 / len(name.passages)
        return max(scores, key=lambda number: (scores[number], number))

    def _quote(self, passage: Passage, names: tuple[str, ...], characters: int) -> Quote | None:
        """Quotes a passage; returns None if nothing of it is new.

        Nothing is new if the turn repeats its call, or if the lines with the names, or its whole result, are in
        view.
        """
        call = self._messages[passage.call[0]].parts[passage.call[1]] if passage.call else None
        if isinstance(call, ToolCall) and (call.name, call.arguments) in self._calls:
            return None
        arguments, body = passage.texts(self._messages)
        source = self._describe_source(passage, call)
        is_in_view = body in self._results
        body_names = [name for name in names if name in body] if not is_in_view else []
        argument_names = [name for name in names if name not in source and name in arguments] if not body_names else []
        characters -= len(source) + _LABEL_LENGTH
        if argument_names:
            text, lines = quote_text(arguments, argument_names, characters)
            source, visible_texts = f"Arguments of {source.removeprefix('Result of ')}", self._turn_texts
        elif is_in_view:
            return None
        else:
            text, lines = quote_text(body or arguments, body_names, characters)
            visible_texts = self._known_results
        if not text or (lines and all(any(line.strip() in other for other in visible_texts) for line in lines)):
            return None
        message = passage.position[0]
        labelled_quote = label_quote(source, message, passage.artifact, text, whole=passage.whole)
        return Quote(labelled_quote, message, passage.artifact, names)

    def _describe_source(self, passage: Passage, call: Part | None) -> str:
        if isinstance(call, ToolCall):
            return f"{'Result of ' if passage.body else ''}{render_call(call.name, call.arguments)}"
        message, part = passage.position
        if isinstance(self._messages[message].parts[part], ToolResult):
            return "Result of a tool"
        return f"Said by the {self._messages[message].role}"


def _result_texts(parts: Iterable[Part]) -> Iterator[str]:
    return (readable_text(part) for part in parts if isinstance(part, ToolResult))


# -- the texts in view -------------------------------------------------------------------------------------------------


_LETTERS: Final = f"[0-9A-Za-z_{LETTERS}]"
"""The characters of words, as `words_in` splits them."""
_INSIDE_WORD = re.compile(_LETTERS + "{2}")
"""Two characters of one word."""
_MAX_TRIED_POSITIONS: Final = 16
"""Occurrences that are checked one by one: to compile a pattern takes as long."""
_VIEW_BYTES: Final = 700
"""The memory of a view beside its words and the arguments of calls."""


class RecallView(msgspec.Struct, frozen=True):
    """The words in view in front of a turn, so that nothing of them is recalled.

    In view are the system prompt, whose hash is `preamble`, and `count` messages, of which the last has the chain key
    `last`. `words` are those of the system prompt (number 0) and of the first `indexed` messages. `later_calls` has the
    arguments of the calls in each message after these, since to decode them takes time. All other texts are those of
    the request: with a copy here, an idle conversation would take as much memory as an active one. `size` is in bytes.
    """

    preamble: int
    count: int
    last: bytes
    words: WordIndex
    indexed: int
    later_calls: tuple[tuple[str, ...], ...]
    size: int

    def is_prefix_of(self, client: Conversation, keys: Sequence[bytes]) -> bool:
        """Whether a list with these chain keys begins with this view."""
        if self.preamble != hash(client.preamble) or self.count > len(keys):
            return False
        return self.count == 0 or keys[self.count - 1] == self.last

    def extend(self, messages: Sequence[Message], keys: Sequence[bytes]) -> RecallView:
        """Returns the view of a longer list that begins with this one.

        The new texts are searched without an index, since to split them into words would cost more.
        """
        if self.count == len(messages):
            return self
        new_calls = [tuple(_read_calls(message.parts)) for message in messages[self.count :]]
        size = self.size + sum(60 + sum(map(getsizeof, calls)) for calls in new_calls)
        later_calls = (*self.later_calls, *new_calls)
        return replace(self, count=len(messages), last=keys[-1], later_calls=later_calls, size=size)


def build_view(client: Conversation, messages: Sequence[Message], keys: Sequence[bytes]) -> RecallView:
    """Returns the view of these messages, whose chain keys are `keys`, after the client's system prompt."""
    parts = (client.preamble, *[message.parts for message in messages])
    words = WordIndex(set().union(*map(words_in, map(readable_text, each))) for each in parts)
    last = keys[-1] if keys else b""
    return RecallView(hash(client.preamble), len(messages), last, words, len(messages), (), _VIEW_BYTES + words.size)


class VisibleTexts:
    """The texts in view of one request: the system prompt, the messages of `view`, and the parts of some after them."""

    def __init__(
        self, view: RecallView, client: Conversation, messages: Sequence[Message], newest: Sequence[Sequence[Part]]
    ) -> None:
        self._view, self._newest, self._preamble = view, newest, client.preamble
        self._messages = messages[: view.count]

    def contains(self, name: TurnName) -> bool:
        """Whether a name is in view."""
        numbers = self._view.words.find(name.words)
        # A message that holds all words of the name and its text shows the name.
        if numbers and (name.plain or any(name.text in text for at in numbers for text in self._indexed_texts(at))):
            return True
        return _is_in_texts(name, self._later)

    def contains_text(self, text: str) -> bool:
        """Whether one of the texts contains a text."""
        return any(text in other for other in self._all)

    @cached_property
    def results(self) -> set[str]:
        """The texts of all results."""
        parts = (*[message.parts for message in self._messages], *self._newest)
        return set(chain.from_iterable(map(_result_texts, parts)))

    def _indexed_texts(self, number: int) -> Iterable[str]:
        return map(readable_text, self._messages[number - 1].parts if number else self._preamble)

    @cached_property
    def _later(self) -> Sequence[Sequence[str]]:
        """The texts of each message without an index."""
        later = zip(self._messages[self._view.indexed :], self._view.later_calls, strict=True)
        return [
            *[[*_read_others(message.parts), *calls] for message, calls in later],
            *[[*map(readable_text, parts)] for parts in self._newest],
        ]

    @cached_property
    def _all(self) -> Sequence[str]:
        indexed = map(self._indexed_texts, range(self._view.indexed + 1))
        return [*chain.from_iterable(indexed), *chain.from_iterable(self._later)]


def _read_calls(parts: Iterable[Part]) -> Iterator[str]:
    return (readable_text(part) for part in parts if isinstance(part, ToolCall))


def _read_others(parts: Iterable[Part]) -> Iterator[str]:
    return (readable_text(part) for part in parts if not isinstance(part, ToolCall))


def _is_in_texts(name: TurnName, entries: Sequence[Sequence[str]]) -> bool:
    # Most names are in no text at all, which one fast pass shows.
    if not any(map(contains, chain.from_iterable(entries), repeat(name.text))):
        return False
    words = [word.decode() for word in name.words]
    for texts in reversed(entries):
        if any(name.text in text for text in texts) and all(
            any(_has_word(word, text) for text in texts) for word in words
        ):
            return True
    return False


def _has_word(word: str, text: str) -> bool:
    """Whether the text has this word as a whole word."""
    at = text.find(word)
    for _ in range(_MAX_TRIED_POSITIONS):
        if at < 0:
            return False
        if not (at and _INSIDE_WORD.match(text, at - 1)) and not _INSIDE_WORD.match(text, at + len(word) - 1):
            return True
        at = text.find(word, at + 1)
    return re.search(f"{word}(?!{_LETTERS})(?<!{_LETTERS}{word})", text) is not None


# -- standing instructions ---------------------------------------------------------------------------------------------

_MAX_RARE: Final = 8
"""A name in more passages than this is not rare."""
_NAME = re.compile(r"(?<=[^.!?\s] )[^\W\d_a-z][\w-]{2,}|[\w-]*\d[\w-]*")
"""A word with a capital that begins no sentence, or with a digit."""
_MIN_SHARE: Final = 0.5
"""The share of an instruction's stems that a turn about its subject has."""
_ENTRY_BYTES, _RULE_BYTES = 500, 900


class Rule(msgspec.Struct, frozen=True):
    """An instruction of the user that is in force.

    `message` is the client's index of its message, `text` its own text, `line` the text with notes on the instructions
    that it replaces.
    """

    message: int
    text: str
    line: str


FindRules = Callable[[Sequence[Message], int, str], Iterable[Rule]]
"""Finds the instructions in force among the first messages of a list, given their number, that a text does not state.
"""


class OmittedRules(msgspec.Struct, frozen=True):
    """The instructions that no message in view states, with the stems of each, and those of each rare name in it."""

    rules: tuple[Rule, ...] = ()
    stems: tuple[frozenset[str], ...] = ()
    names: tuple[tuple[frozenset[str], ...], ...] = ()

    @property
    def size(self) -> int:
        """The memory that it takes, in bytes, roughly."""
        return _ENTRY_BYTES + _RULE_BYTES * len(self.rules)

    def relevant_to(self, turn: Sequence[Message], limit: int) -> list[Rule]:
        """Returns at most `limit` instructions about the subject of a turn, by its texts and calls; the best first."""
        if not self.rules:
            return []
        texts = [text[:_MAX_TEXT] for message in turn for text in _subject_texts(message)]
        turn_stems = stems_of("\n".join(texts))
        ranking: list[tuple[float, int]] = []
        for at, (stems, names) in enumerate(zip(self.stems, self.names, strict=True)):
            common = len(stems & turn_stems)
            share = common / len(stems) if stems else 0.0
            is_named = any(name <= turn_stems for name in names)
            if is_named or (share >= _MIN_SHARE and (common > 1 or len(stems) == 1)):
                ranking.append((share + is_named, at))
        return [self.rules[at] for _, at in sorted(ranking, reverse=True)[:limit]]


def describe_omitted_rules(rules: Sequence[Rule], archived_words: WordLookup) -> OmittedRules:
    """Returns these instructions with what finds those about a turn's subject."""
    names = [
        tuple(filter(None, (stems_of(name) for name in _names_in(rule) if _is_rare(name, archived_words))))
        for rule in rules
    ]
    return OmittedRules(tuple(rules), tuple(stems_of(rule.text) for rule in rules), tuple(names))


def _quote_rules(rules: Sequence[Rule], index: RecallIndex, tokens: int, count: Callable[[str], int]) -> list[Quote]:
    """Returns a quote for each instruction, as many as fit."""
    quotes = list[Quote]()
    for rule in rules:
        artifact = index.artifact(rule.message)
        text = label_quote(_RULE_SOURCE, rule.message, artifact, f"> {rule.line}", whole=False)
        if count("\n\n".join([OPENING, *(quote.text for quote in quotes), text])) > tokens:
            break
        quotes.append(Quote(text, rule.message, artifact, ()))
    return quotes


def _names_in(rule: Rule) -> list[str]:
    return [name for name in _NAME.findall(rule.text) if len(name) >= _MIN_NAME]


def _is_rare(name: str, archived_words: WordLookup) -> bool:
    return sum(len(archived_words.numbers_of(word)) for word in _forms_of(name)) <= _MAX_RARE


def _forms_of(name: str) -> set[bytes]:
    return {form.encode("utf-8", "replace") for form in (name, name.lower())}


def _subject_texts(message: Message) -> Iterable[str]:
    for part in message.parts:
        if isinstance(part, ToolCall):
            yield f"{part.name}\n{readable_text(part)}"
        elif isinstance(part, Text):
            yield part.text
