"""The index of a conversation's passages, and the search for words in it.

Theory of operation. The text of each message is cut into passages of one sentence or line, or a few short ones, and
each passage is known by the set of its terms (`search_terms`). The messages are indexed in blocks of a fixed number,
and a block is found by the chain key of its last message: so a later request of the same history, or of a branch of it,
indexes only the messages of its last, incomplete block and those after it. `PassageIndex` joins the blocks of one
history. The index has all messages, in view or not; whoever searches decides what is of use.

Texts are not copied: a passage is a range of characters in a part of a message, and the client sends its whole history
with every request.
"""

from __future__ import annotations

import math
import re
from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain
from sys import getsizeof
from typing import Final

import msgspec

from accordion.archive.artifacts import result_text
from accordion.model.boundaries import PartPosition, match_results_to_calls
from accordion.model.cache import BoundedCache
from accordion.model.conversation import Message, Part, Text, ToolCall, ToolResult
from accordion.model.words import search_terms

_BLOCK: Final = 64
"""Messages of a block."""
MAX_CALL_DISTANCE: Final = 32
"""Messages between a call and its result."""
_MIN_PASSAGE, _MAX_PASSAGE = 40, 400
"""Characters of a passage."""
_MAX_PART: Final = 1_000_000
"""Characters of one part that are indexed."""
_BRIEF_CALL: Final = 300
"""Characters of a call's arguments up to which they belong to its result, and are no passages of their own."""
_END = re.compile(r"\n+|(?<=[.!?])[\"')\]]?\s+|(?<=[。！？])")
"""The end of a line or of a sentence."""
_BLOCK_BYTES: Final = 800
"""The memory of a block beside its arrays."""
_decode: Final = msgspec.json.Decoder().decode


class Passage(msgspec.Struct, frozen=True, gc=False):
    """The characters from `start` to `end` of the readable text of a part; `at` is its number in the history."""

    at: int
    position: PartPosition
    start: int
    end: int


class PassageBlock:
    """The passages of some messages, and the numbers of those that have a term."""

    __slots__ = ("_hashes", "_numbers", "_starts", "fields")

    def __init__(self, passages: Sequence[tuple[int, int, int, int]], terms: Sequence[Iterable[str]]) -> None:
        """`passages` are message, part, start and end of each; `terms` its terms."""
        numbers_by_term = defaultdict[str, list[int]](list)
        for number, each in enumerate(terms):
            for term in set(each):
                numbers_by_term[term].append(number)
        by_hash = sorted(numbers_by_term, key=hash)
        lists = [numbers_by_term[term] for term in by_hash]
        self._hashes = array("q", list(map(hash, by_hash)))
        self._starts = array("I", [*accumulate(map(len, lists), initial=0)])
        self._numbers = array("I", [*chain.from_iterable(lists)])
        self.fields = array("I", [*chain.from_iterable(passages)])

    @property
    def size(self) -> int:
        """The memory that it takes, in bytes."""
        arrays = self._hashes, self._starts, self._numbers, self.fields
        return _BLOCK_BYTES + sum(map(getsizeof, arrays))

    def numbers_of(self, term: str) -> Sequence[int]:
        """Returns the numbers of the passages with a term, in order."""
        term_hash = hash(term)
        at = bisect_left(self._hashes, term_hash)
        if at == len(self._hashes) or self._hashes[at] != term_hash:
            return ()
        return self._numbers[self._starts[at] : self._starts[at + 1]]


class PassageIndex:
    """The blocks of one history, as one index."""

    def __init__(self, blocks: Sequence[PassageBlock]) -> None:
        self._blocks = blocks
        self._starts = [*accumulate((len(block.fields) // 4 for block in blocks), initial=0)]

    def __len__(self) -> int:
        """The number of passages."""
        return self._starts[-1]

    def __getitem__(self, at: int) -> Passage:
        number = bisect_right(self._starts, at) - 1
        first = 4 * (at - self._starts[number])
        message, part, start, end = self._blocks[number].fields[first : first + 4]
        return Passage(at, (message, part), start, end)

    def find(self, term: str) -> list[int]:
        """Returns the numbers of the passages with a term, in order."""
        numbers: list[int] = []
        for start, block in zip(self._starts, self._blocks, strict=False):
            numbers += [start + each for each in block.numbers_of(term)]
        return numbers

    def weight(self, count: int) -> float:
        """Returns the weight of a term that `count` passages have: the rarer, the more."""
        return math.log(1 + (len(self) - count + 0.5) / (count + 0.5))


class PassageIndexes:
    """The indexes of conversations, within `capacity` bytes. Safe to use from threads."""

    def __init__(self, capacity: int = 32 * 2**20) -> None:
        self._blocks = BoundedCache[bytes, PassageBlock](capacity)

    @property
    def size(self) -> int:
        """The memory that the indexes take, in bytes."""
        return self._blocks.size

    def pending_bytes(self, messages: Sequence[Message], chain_keys: Sequence[bytes], count: int) -> int:
        """Returns the bytes of the first `count` messages that `index` must read."""
        missing = (each for each in _ranges(count) if chain_keys[each.stop - 1] not in self._blocks)
        return sum(len(messages[at].wire) for each in missing for at in each)

    def index(self, messages: Sequence[Message], chain_keys: Sequence[bytes], count: int) -> PassageIndex:
        """Returns the index of the first `count` messages, whose chain keys are `chain_keys`."""
        blocks = list[PassageBlock]()
        for each in _ranges(count):
            key = chain_keys[each.stop - 1]
            block = self._blocks.get(key)
            if block is None:
                block = build_block(messages, each)
                self._blocks.put(key, block, block.size)
            blocks.append(block)
        return PassageIndex(blocks)


def _ranges(count: int) -> Iterator[range]:
    """Yields the messages of each block; a block ends at a multiple of its length, or at the end."""
    return (range(start, min(start + _BLOCK, count)) for start in range(0, count, _BLOCK))


def build_block(messages: Sequence[Message], numbers: range) -> PassageBlock:
    """Indexes messages of a list."""
    passages, terms = list[tuple[int, int, int, int]](), list[Iterable[str]]()
    start = max(0, numbers.start - MAX_CALL_DISTANCE)
    calls = match_results_to_calls(messages[start : numbers.stop])
    for at in numbers:
        for part_at, part in enumerate(messages[at].parts):
            text = readable_text(part)[:_MAX_PART]
            if not text or (isinstance(part, ToolCall) and len(part.arguments) <= _BRIEF_CALL):
                continue
            call = calls.get((at - start, part_at))
            label = _call_terms(messages[start + call[0]].parts[call[1]]) if call else ()
            for first, last in _cut(text):
                passages.append((at, part_at, first, last))
                terms.append((*search_terms(text[first:last]), *label))
                label = ()
    return PassageBlock(passages, terms)


def _call_terms(call: Part) -> Sequence[str]:
    return search_terms(f"{call.name} {readable_text(call)[:_BRIEF_CALL]}") if isinstance(call, ToolCall) else ()


def _cut(text: str) -> Iterator[tuple[int, int]]:
    """Cuts a text into the ranges of its passages: at the ends of lines and sentences, and within long ones."""
    start = end = 0
    for stop in chain((match.end() for match in _END.finditer(text)), [len(text)]):
        if start < end and (end - start >= _MIN_PASSAGE or stop - start > _MAX_PASSAGE):
            yield start, end
            start = end
        while stop - start > _MAX_PASSAGE:
            # Without a space, it is data.
            middle = text.rfind(" ", start + _MIN_PASSAGE, start + _MAX_PASSAGE) + 1 or start + _MAX_PASSAGE
            yield start, middle
            start = middle
        end = stop
    if text[start:].strip():
        yield start, len(text)


# -- readable texts ----------------------------------------------------------------------------------------------------


def readable_text(part: Part) -> str:
    """Returns the readable text of a part: none for reasoning, the decoded arguments for a call."""
    if isinstance(part, Text):
        return part.text
    if isinstance(part, ToolResult):
        parts = part.parts
        # Most results are one text.
        return parts[0].text if len(parts) == 1 and isinstance(parts[0], Text) else result_text(part)
    if isinstance(part, ToolCall):
        try:
            return "\n".join(_scalars_of(_decode(part.arguments), ""))
        except (ValueError, RecursionError):
            return part.arguments
    return ""


def _scalars_of(value: object, key: str) -> Iterator[str]:
    """Yields the texts and numbers in a value, each with its key."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _scalars_of(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from _scalars_of(inner, key)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield f"{key}: {value}" if key else str(value)
