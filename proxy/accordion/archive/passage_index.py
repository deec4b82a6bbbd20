"""The index of a conversation's passages, for the search of model/search.py.

Theory of operation. The text of each message is cut into passages of one sentence or line, or a few short ones, and
each passage is known by the set of its terms (`search_terms`). The messages are indexed in blocks of a fixed number,
and a block is found by the chain key of its last message: so a later request of the same history, or of a branch of it,
indexes only the messages of its last, incomplete block and those after it. `PassageIndex` joins the blocks of one
history. The index has all messages, in view or not; whoever searches decides what is of use.

With an embedding, a block also has the tokens of its passages, from the first search that needs them on.

Texts are not copied: a passage is a range of characters in a part of a message, and the client sends its whole history
with every request.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from sys import getsizeof
from typing import Final

import msgspec
from msgspec.structs import replace

from accordion.archive.artifacts import result_text
from accordion.archive.references import shorten_arguments
from accordion.model.boundaries import PartPosition, match_results_to_calls
from accordion.model.cache import BoundedCache
from accordion.model.conversation import Message, Part, Text, ToolCall, ToolResult
from accordion.model.search import TermBlock, TermIndex, TokenEmbedding
from accordion.model.words import search_terms

_BLOCK: Final = 64
"""Messages of a block."""
_MAX_CALL_DISTANCE: Final = 32
"""Messages between a call and its result."""
_MIN_PASSAGE, _MAX_PASSAGE = 40, 400
"""Characters of a passage."""
_MAX_PART: Final = 1_000_000
"""Characters of one part that are indexed."""
_BRIEF_CALL: Final = 300
"""Characters of a call's arguments up to which they belong to its result, and are no passages of their own."""
_BRIEF_RESULT: Final = 4_000
"""Characters of a result up to which the terms of its call belong to each of its passages, not to the first alone."""
_MAX_CALL: Final = 100
"""Characters of a call's arguments in the description of a passage."""
_END = re.compile(r"\n+|(?<=[.!?])[\"')\]]?\s+|(?<=[。！？])")
"""The end of a line or of a sentence."""
_MAX_DEPTH: Final = 12
"""Levels of a call's arguments, or of a result in JSON, that are read."""
_decode: Final = msgspec.json.Decoder().decode


class Passage(msgspec.Struct, frozen=True, gc=False):
    """The characters from `start` to `end` of the readable text of a part; `at` is its number in the history."""

    at: int
    position: PartPosition
    start: int
    end: int


class PassageBlock:
    """The passages of some messages with their terms, and with their tokens once they were needed."""

    __slots__ = ("fields", "lengths", "terms", "tokens")

    def __init__(self, passages: Sequence[tuple[int, int, int, int]], terms: Iterable[Iterable[str]]) -> None:
        """`passages` are message, part, start and end of each; `terms` its terms."""
        self.terms = TermBlock.of_terms(terms)
        self.fields = array("I", [*chain.from_iterable(passages)])
        self.tokens, self.lengths = b"", array("I")

    def __len__(self) -> int:
        """The number of passages."""
        return len(self.fields) // 4

    def __getitem__(self, at: int) -> Passage:
        message, part, start, end = self.fields[4 * at : 4 * at + 4]
        return Passage(at, (message, part), start, end)

    @property
    def size(self) -> int:
        """The memory that it takes, in bytes."""
        return self.terms.size + sum(map(getsizeof, (self.fields, self.tokens, self.lengths)))


class PassageIndex(TermIndex):
    """The blocks of one history, as one index."""

    def __init__(self, blocks: Sequence[PassageBlock]) -> None:
        super().__init__([each.terms for each in blocks], map(len, blocks))
        self._passages = blocks

    def __getitem__(self, at: int) -> Passage:
        number = bisect_right(self.starts, at) - 1
        return replace(self._passages[number][at - self.starts[number]], at=at)


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
        return PassageIndex([self._find_block(messages, chain_keys, each) for each in _ranges(count)])

    def embed(
        self, embedding: TokenEmbedding, messages: Sequence[Message], chain_keys: Sequence[bytes], count: int
    ) -> list[PassageBlock]:
        """Returns the blocks of the first `count` messages with the tokens of their passages."""
        blocks = list[PassageBlock]()
        for each in _ranges(count):
            block = self._find_block(messages, chain_keys, each)
            if len(block.lengths) < len(block):
                tokens = embedding.tokens_of([read_passage(messages, block[at]) for at in range(len(block))])
                block.tokens, block.lengths = b"".join(tokens), array("I", map(len, tokens))
                self._blocks.put(chain_keys[each.stop - 1], block, block.size)
            blocks.append(block)
        return blocks

    def _find_block(self, messages: Sequence[Message], chain_keys: Sequence[bytes], numbers: range) -> PassageBlock:
        key = chain_keys[numbers.stop - 1]
        block = self._blocks.get(key)
        if block is None:
            block = build_block(messages, numbers)
            self._blocks.put(key, block, block.size)
        return block


def _ranges(count: int) -> Iterator[range]:
    """Yields the messages of each block; a block ends at a multiple of its length, or at the end."""
    return (range(start, min(start + _BLOCK, count)) for start in range(0, count, _BLOCK))


def build_block(messages: Sequence[Message], numbers: range) -> PassageBlock:
    """Indexes messages of a list."""
    passages, terms = list[tuple[int, int, int, int]](), list[Iterable[str]]()
    start = max(0, numbers.start - _MAX_CALL_DISTANCE)
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
                if len(text) > _BRIEF_RESULT:
                    # Names that hundreds of passages have would find none of them.
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


def read_passage(messages: Sequence[Message], passage: Passage) -> str:
    """Returns the text of a passage."""
    message, part = passage.position
    return readable_text(messages[message].parts[part])[passage.start : passage.end]


def find_call(messages: Sequence[Message], result: PartPosition) -> ToolCall | None:
    """Returns the call of a result; None if the part is none, or if the call is far away."""
    start = max(0, result[0] - _MAX_CALL_DISTANCE)
    position = match_results_to_calls(messages[start : result[0] + 1]).get((result[0] - start, result[1]))
    call = messages[start + position[0]].parts[position[1]] if position else None
    return call if isinstance(call, ToolCall) else None


def describe_source(messages: Sequence[Message], position: PartPosition) -> str:
    """Describes what a passage is of: the author of a text, or the call of a result or of arguments."""
    at, part = position
    value = messages[at].parts[part]
    if isinstance(value, Text):
        return messages[at].role
    call = find_call(messages, position) if isinstance(value, ToolResult) else value
    name = "a tool"
    if isinstance(call, ToolCall):
        arguments = shorten_arguments(call.arguments)
        name = f"{shorten_arguments(call.name)}({arguments[:_MAX_CALL]}{'…' if len(arguments) > _MAX_CALL else ''})"
    return f"{'Result' if isinstance(value, ToolResult) else 'Arguments'} of {name}"


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
            scalars = list_scalars(_decode(part.arguments))
            return "\n".join(f"{key}: {text}" if key else text for key, text in scalars)
        except (ValueError, RecursionError):
            return part.arguments
    return ""


def list_scalars(value: object, key: str = "", depth: int = _MAX_DEPTH) -> Iterator[tuple[str, str]]:
    """Yields the texts and numbers in a value, in order, each with its key: "" if there is none."""
    if isinstance(value, str):
        if value:
            yield key, value
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield key, str(value)
    elif depth and isinstance(value, dict):
        for name, inner in value.items():
            yield from list_scalars(inner, name, depth - 1)
    elif depth and isinstance(value, list):
        for inner in value:
            yield from list_scalars(inner, key, depth - 1)
