"""The index of the words that left the window with a compaction, and the lookup of names in it.

The index has whole words only. A name (a path, an identifier, a quotation) is looked up by its words, and then searched
for in the few passages that hold all of them. The words are those of the client's messages, in view or not, in runs
from one compaction to the next: so a later compaction of the conversation indexes only the messages that it adds
(`WordRun`). What left with a compaction are its passages, and `PassageWords` finds words in them.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain
from operator import itemgetter
from sys import getsizeof
from typing import Any, Final

import msgspec

from accordion.archive.artifacts import ArchivedRange, result_text
from accordion.archive.references import artifact_id, growing_range_ids
from accordion.model.boundaries import PartPosition, match_results_to_calls
from accordion.model.compaction import CompactedConversation
from accordion.model.conversation import Message, Part, Text, ToolCall, ToolResult
from accordion.model.plan import WRITTEN_BY_COMPACTION
from accordion.model.tenant import TenantScope
from accordion.model.words import mask_symbols

_MAX_PART: Final = 1_000_000
"""Characters of one part that are indexed."""
_MIN_WORD, _MAX_WORD = 3, 64
"""Bytes of a word that is indexed."""
_MAX_NAME_WORDS: Final = 4
"""Words of a name that are looked up, the rarest ones."""
_MAX_DEPTH: Final = 12
_MAX_RANGE: Final = 200
"""Messages of an archived range; longer ones are not recognized."""
_WORD_CHARACTERS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"
_SEPARATORS_AS_SPACES: Final = bytes(c if c >= 128 or bytes((c,)) in _WORD_CHARACTERS else 32 for c in range(256))
_ESCAPED = re.compile(r'[":\\\x00-\x1f]')
_LETTER = re.compile(r"[^\W\d_]")
_STRINGS: Final = frozenset({str})
_decode: Final = msgspec.json.Decoder().decode
_INDEX_BYTES: Final = 600
"""The memory of an index beside its arrays and the ids of artifacts."""
_MAX_SHORT: Final = 2**16
"""Numbers below this fit into two bytes."""


_FIELDS: Final = 7
"""Numbers of a packed passage."""
_NOWHERE: Final = (-1, -1)


def _pack(numbers: list[int]) -> array[int]:
    """Returns numbers that are not negative in as few bytes as a look-up by position allows."""
    return array("H" if max(numbers, default=0) < _MAX_SHORT else "I", numbers)


class Passage(msgspec.Struct, frozen=True):
    """A part that left the window: a tool result, a text, or a call whose result is in view or missing.

    `body` is the position of the result or text, `call` that of the call; `has_archived_call` says whether the call
    left too. `artifact` holds the passage (empty if that is not known), and nothing else if `whole` is set.
    """

    body: PartPosition | None
    call: PartPosition | None
    has_archived_call: bool
    artifact: str
    whole: bool

    @property
    def position(self) -> PartPosition:
        """Its position in the client's messages."""
        return self.body or self.call or (0, 0)

    @property
    def archived_positions(self) -> Iterable[PartPosition]:
        """The positions of its parts that left."""
        return filter(None, (self.body, self.call if self.has_archived_call else None))

    def texts(self, messages: Sequence[Message]) -> tuple[str, str]:
        """Returns the arguments of its call and its body; each is empty if there is none or it did not leave."""
        return self.call_text(messages), self.body_text(messages)

    def call_text(self, messages: Sequence[Message]) -> str:
        """Returns the arguments of its call; empty if the call did not leave."""
        call = self.call if self.has_archived_call else None
        return readable_text(messages[call[0]].parts[call[1]]) if call else ""

    def body_text(self, messages: Sequence[Message]) -> str:
        """Returns the text of its result, or its own."""
        return readable_text(messages[self.body[0]].parts[self.body[1]]) if self.body else ""

    def call_contains(self, text: str, messages: Sequence[Message], *, literal: bool) -> bool:
        """Whether the arguments hold a text; `literal` is whether JSON writes this text as it is (`is_literal`)."""
        part = messages[self.call[0]].parts[self.call[1]] if self.call and self.has_archived_call else None
        if not isinstance(part, ToolCall):
            return False
        raw = part.arguments
        # Decoding takes time. JSON may write slashes, and all other signs, with a backslash.
        escape = "\\u00" if text.isascii() else "\\u"
        if literal and text not in raw and escape not in raw and "\\/" not in raw:
            return False
        return text in readable_text(part)


class PassageList:
    """The passages of an index, in 14 bytes each; as objects they would take more than the words."""

    __slots__ = ("_artifacts", "_fields")

    def __init__(self, passages: Iterable[Passage]) -> None:
        artifacts, fields = dict[str, int](), list[int]()
        for each in passages:
            for message, part in (each.body or _NOWHERE, each.call or _NOWHERE):
                fields += message + 1, part + 1
            fields += each.has_archived_call, each.whole, artifacts.setdefault(each.artifact, len(artifacts))
        self._artifacts, self._fields = tuple(artifacts), _pack(fields)

    @property
    def size(self) -> int:
        """The memory that it takes, in bytes."""
        return getsizeof(self._fields) + sum(map(getsizeof, self._artifacts)) + 8 * len(self._artifacts)

    def __len__(self) -> int:
        return len(self._fields) // _FIELDS

    def __iter__(self) -> Iterator[Passage]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, number: int) -> Passage:
        fields = self._fields[_FIELDS * number : _FIELDS * (number + 1)]
        message, part, call_message, call_part, has_archived_call, whole, artifact = fields
        body = (message - 1, part - 1) if message else None
        call = (call_message - 1, call_part - 1) if call_message else None
        return Passage(body, call, bool(has_archived_call), self._artifacts[artifact], bool(whole))


class WordLookup(ABC):
    """Finds the texts that hold words; the texts have numbers."""

    __slots__ = ()

    @abstractmethod
    def numbers_of(self, word: bytes) -> Sequence[int]:
        """Returns the numbers of the texts that hold a word, in order; empty where none does."""

    def find(self, words: Iterable[bytes], limit: int | None = None) -> Sequence[int]:
        """Returns the numbers of the texts that hold all of the words, or the `limit` rarest of them, in order."""
        numbers, *others = sorted(map(self.numbers_of, words), key=len)[:limit] or [()]
        for each in others:
            if not numbers:
                break
            # Both are sorted: a number of the other list is right before the place where it would be inserted again.
            numbers = [number for number in numbers if each[bisect_right(each, number) - 1] == number]
        return numbers


class WordIndex(WordLookup):
    """For each word of some texts, the numbers of the texts that hold it.

    It takes some 15 bytes a word, because it holds hashes of 64 bits in place of words: that two of 100,000 words have
    the same one is 1 in 10^9. Python salts them, so that no text can be made for it.
    """

    __slots__ = ("_hashes", "_numbers", "_starts")

    def __init__(self, texts: Iterable[Iterable[bytes]]) -> None:
        """`texts` are the words of each text, each word once; those of 3 to 64 bytes are indexed."""
        numbers_by_word: dict[bytes, list[int]] = {}
        for number, words in enumerate(texts):
            for word in words:
                known = numbers_by_word.get(word)
                if known is None:
                    numbers_by_word[word] = [number]
                else:
                    known.append(number)
        by_hash = sorted((word for word in numbers_by_word if _MIN_WORD <= len(word) <= _MAX_WORD), key=hash)
        lists = [numbers_by_word[word] for word in by_hash]
        self._hashes = array("q", list(map(hash, by_hash)))
        self._starts = _pack([*accumulate(map(len, lists), initial=0)])
        self._numbers = _pack([*chain.from_iterable(lists)])

    @property
    def size(self) -> int:
        """The memory that it takes, in bytes."""
        return getsizeof(self._hashes) + getsizeof(self._starts) + getsizeof(self._numbers)

    def numbers_of(self, word: bytes) -> Sequence[int]:
        """Returns the numbers of the texts that hold a word, in order; empty where none does."""
        word_hash = hash(word)
        at = bisect_left(self._hashes, word_hash)
        if at == len(self._hashes) or self._hashes[at] != word_hash:
            return ()
        return self._numbers[self._starts[at] : self._starts[at + 1]]


class WordRun(msgspec.Struct, frozen=True):
    """The words of each part of the client's messages from `start` to `end` (exclusive), whichever of them left."""

    start: int
    end: int
    words: WordIndex


class PassageWords(WordLookup):
    """For each word of some passages, the numbers of the passages that hold it.

    `covered` are the messages that a compaction covers, and `runs` have their words.
    """

    __slots__ = ("_none", "_runs")

    def __init__(self, passages: Sequence[Passage], runs: Sequence[WordRun], covered: Sequence[Message]) -> None:
        self._none = len(passages)
        numbers = {position: number for number, each in enumerate(passages) for position in each.archived_positions}
        self._runs = tuple(
            (run.words, _pack([numbers.get(each, self._none) for each in _part_positions(run, covered)]))
            for run in runs
        )

    @property
    def size(self) -> int:
        """The memory that it takes, in bytes."""
        return sum(words.size + getsizeof(passages) for words, passages in self._runs)

    def numbers_of(self, word: bytes) -> Sequence[int]:
        """Returns the numbers of the passages that hold a word, in order; empty where none does."""
        numbers = set[int]()
        for words, passages in self._runs:
            numbers.update(map(passages.__getitem__, words.numbers_of(word)))
        numbers.discard(self._none)
        return sorted(numbers)


def _part_positions(run: WordRun, covered: Sequence[Message]) -> Iterator[PartPosition]:
    return ((at, part) for at in range(run.start, run.end) for part in range(len(covered[at].parts)))


class RecallIndex(msgspec.Struct, frozen=True):
    """The passages that left with a compaction, oldest first, and their words; `size` is in bytes.

    `runs` have the words of all messages that the compaction covers.
    """

    passages: PassageList
    words: WordLookup
    size: int
    runs: tuple[WordRun, ...] = ()
    compaction_id: str = ""

    def artifact(self, message: int) -> str:
        """Returns the artifact that holds the text of a message; empty if that is not known."""
        return next((each.artifact for each in self.passages if each.body and each.body[0] == message), "")

    def find(self, text: str) -> tuple[tuple[bytes, ...], Sequence[int]]:
        """Returns the words of a text, and the numbers of the passages that hold the rarest of them, oldest first.

        The numbers are empty if no passage holds one of the words.
        """
        words = words_of_name(text)
        return words, self.words.find(words, _MAX_NAME_WORDS)


def is_literal(text: str) -> bool:
    """Whether JSON writes a text as it is.

    It may write a number in another form; a key with its value and characters that take a backslash differ always.
    """
    return _LETTER.search(text) is not None and _ESCAPED.search(text) is None


def build_index(
    tenant: TenantScope,
    history: CompactedConversation,
    client: Sequence[Message],
    words: frozenset[bytes] | None = None,
    runs: tuple[WordRun, ...] = (),
) -> RecallIndex:
    """Returns the index of the content that the compaction in force removed from the client's messages.

    `words`: only these are indexed, which takes a third of the time; all words if None. `runs` are those of the index
    of an earlier compaction of these messages, whose words are not read again.
    """
    covered = client[: history.covered_count]
    start = runs[-1].end if runs else 0
    if start < len(covered):
        parts = (part for message in covered[start:] for part in message.parts)
        new_words = WordIndex(words_in(readable_text(part), words) for part in parts)
        runs = (*runs, WordRun(start, len(covered), new_words))
    passages = tuple(_passages(tenant, history, covered))
    packed, passage_words = PassageList(passages), PassageWords(passages, runs, covered)
    name = history.compaction.id if history.compaction is not None else ""
    return RecallIndex(packed, passage_words, _INDEX_BYTES + passage_words.size + packed.size, runs, name)


# -- readable texts ----------------------------------------------------------------------------------------------------


def words_in(text: str, words: frozenset[bytes] | None = None) -> set[bytes] | frozenset[bytes]:
    """Returns the words of a text: runs of letters, digits and underscores.

    `words`: only those among them.
    """
    pieces = _split(text[:_MAX_PART])
    return set(pieces) if words is None else words.intersection(pieces)


def words_of_name(name: str) -> tuple[bytes, ...]:
    """Returns the words by which a name is looked up, each once, in order."""
    return tuple(dict.fromkeys(word for word in _split(name) if _MIN_WORD <= len(word) <= _MAX_WORD))


def _split(text: str) -> list[bytes]:
    data = text.encode() if text.isascii() else mask_symbols(text).encode("utf-8", "replace")
    return data.translate(_SEPARATORS_AS_SPACES).split()


def readable_text(part: Part) -> str:
    """Returns the readable text of a part: none for reasoning, the decoded arguments for a call."""
    if isinstance(part, Text):
        return part.text
    if isinstance(part, ToolResult):
        parts = part.parts
        # Most results are one text.
        return parts[0].text if len(parts) == 1 and isinstance(parts[0], Text) else result_text(part)
    if isinstance(part, ToolCall):
        return "\n".join([f"{key}: {value}" if key else value for key, value in argument_scalars(part.arguments)])
    return ""


def argument_scalars(arguments: str) -> list[tuple[str, str]]:
    """Returns the scalars of a call's arguments with their keys, in order; the text itself if it is not JSON."""
    try:
        value = _decode(arguments)
    except (ValueError, RecursionError):
        return [("", arguments)] if arguments else []
    if type(value) is dict and _STRINGS.issuperset(map(type, value.values())):
        # Most calls have string arguments only.
        return [*value.items()]
    scalars: list[tuple[str, str]] = []
    _add_scalars(value, "", _MAX_DEPTH, scalars)
    return scalars


def _add_scalars(value: Any, key: str, depth: int, scalars: list[tuple[str, str]]) -> None:
    """Adds the scalars of a value to a list."""
    if isinstance(value, str):
        scalars.append((key, value))
    elif isinstance(value, bool) or value is None or not depth:
        return
    elif isinstance(value, dict):
        for name, inner in value.items():
            _add_scalars(inner, name, depth - 1, scalars)
    elif isinstance(value, list):
        for inner in value:
            _add_scalars(inner, key, depth - 1, scalars)
    else:
        scalars.append((key, str(value)))


# -- passages ----------------------------------------------------------------------------------------------------------


def _passages(tenant: TenantScope, history: CompactedConversation, covered: Sequence[Message]) -> Iterator[Passage]:
    """Yields the covered parts that are not in view unchanged: results with their calls, and texts."""
    visible = _visible_parts(history, covered)
    calls_by_result = match_results_to_calls(covered)
    artifacts = _ArtifactLookup(tenant, history, covered)
    calls_with_result = {call for result, call in calls_by_result.items() if result not in visible}
    for at, message in enumerate(covered):
        for number, part in enumerate(message.parts):
            position = at, number
            if position in visible:
                continue
            if isinstance(part, ToolResult):
                call = calls_by_result.get(position)
                yield Passage(position, call, call not in visible, *artifacts.find(position))
            elif isinstance(part, ToolCall) and position not in calls_with_result:
                yield Passage(None, position, True, *artifacts.find(position))
            elif isinstance(part, Text) and message.role in ("user", "assistant"):
                yield Passage(position, None, False, *artifacts.find(position))


def _visible_parts(history: CompactedConversation, covered: Sequence[Message]) -> set[PartPosition]:
    """Returns the parts of the covered messages that the forwarded list has unchanged."""
    visible: set[PartPosition] = set()
    forwarded = history.conversation.messages
    for at in range(_count_compacted(history)):
        origin, edited = history.origins[at], history.spans[at][2]
        if origin >= 0:
            parts = covered[origin].parts
            visible.update(
                (origin, part) for part in range(len(parts)) if not edited or parts[part] in forwarded[at].parts
            )
    return visible


def _count_compacted(history: CompactedConversation) -> int:
    """Returns how many messages of the forwarded list replace those that the compaction covers."""
    covered = history.covered_count
    return bisect_left(history.spans, covered, key=itemgetter(0))


class _ArtifactLookup:
    """Finds the artifacts of a compaction that hold its passages."""

    def __init__(self, tenant: TenantScope, history: CompactedConversation, covered: Sequence[Message]) -> None:
        self._tenant, self._covered = tenant, covered
        self._ids = frozenset(history.compaction.artifacts if history.compaction is not None else ())
        written_spans = (
            history.spans[at] for at in range(_count_compacted(history)) if history.origins[at] == WRITTEN_BY_COMPACTION
        )
        self._range_by_message: dict[int, str] = {}
        for first, last, _ in written_spans:
            for each in self._find_ranges(first, last):
                for at in range(each.first, each.last + 1):
                    self._range_by_message.setdefault(at, each.artifact_id)

    def find(self, position: PartPosition) -> tuple[str, bool]:
        """Returns the artifact that holds a part, and whether it holds nothing else; ("", False) if there is none."""
        part_id = artifact_id(self._tenant, self._covered[position[0]].key, position[1])
        if part_id in self._ids:
            return part_id, True
        return self._range_by_message.get(position[0], ""), False

    def _find_ranges(self, first: int, last: int) -> Iterator[ArchivedRange]:
        """Yields the archived ranges from `first` on, one after the other: a known id shows where each ends."""
        start = first
        while start <= last:
            keys = [message.key for message in self._covered[start : min(last + 1, start + _MAX_RANGE)]]
            numbered_ids = enumerate(growing_range_ids(self._tenant, keys), start)
            match = next(((end, name) for end, name in numbered_ids if name in self._ids), None)
            if match is None:
                return
            end, name = match
            yield ArchivedRange(start, end, name)
            start = end + 1


# -- names -------------------------------------------------------------------------------------------------------------

_MAX_PASSAGES: Final = 8
"""A name in more passages than this distinguishes none of them."""
_MAX_CANDIDATES: Final = 50
_MAX_SEARCHED: Final = 20_000_000
"""Characters that are searched for the names of one turn, if their words alone do not decide."""


class TurnName(msgspec.Struct, frozen=True):
    """A name in a turn, with the numbers of the passages that hold it.

    `plain` is whether it is a single word, so that a text with the word has the name.
    """

    text: str
    words: tuple[bytes, ...]
    passages: tuple[int, ...]
    plain: bool


class NameLookup:
    """Looks up the names of one turn in the index of what left `messages`."""

    def __init__(self, index: RecallIndex, messages: Sequence[Message]) -> None:
        self._index, self._messages = index, messages
        self._searched = 0

    def __call__(self, text: str) -> TurnName | None:
        """Returns the name with its passages; None if no passage holds it, or too many do."""
        word = text.encode("utf-8", "replace")
        numbers = self._index.words.numbers_of(word)
        if numbers:
            # For a single word the index is complete.
            return TurnName(text, (word,), tuple(numbers), plain=True) if len(numbers) <= _MAX_PASSAGES else None
        words, candidates = self._index.find(text)
        if not candidates or len(candidates) > _MAX_CANDIDATES:
            return None
        matches = self._search(text, candidates)
        return TurnName(text, words, tuple(matches), plain=False) if 0 < len(matches) <= _MAX_PASSAGES else None

    def _search(self, text: str, numbers: Sequence[int]) -> list[int]:
        """Returns the passages that hold a text, at most one more than is useful; none once the limit is reached."""
        matches: list[int] = []
        literal = is_literal(text)
        for number in numbers:
            passage = self._index.passages[number]
            # The body comes first: most names are in there, and arguments have to be decoded.
            body = passage.body_text(self._messages)
            self._searched += len(body)
            if text in body or passage.call_contains(text, self._messages, literal=literal):
                matches.append(number)
            if self._searched > _MAX_SEARCHED:
                return []
            if len(matches) > _MAX_PASSAGES:
                break
        return matches
