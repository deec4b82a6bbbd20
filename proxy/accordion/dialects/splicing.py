"""What the splices of all dialects do alike: usage over rounds, a client's copy of a reply, replies that are one JSON
document. For artifacts named in arguments see arguments.py.

Nothing here raises on what a provider sends or a client sends back.
"""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

import msgspec

from accordion.core.conversation import Message, Part, Text, ToolCall, ToolResult
from accordion.core.values import replace
from accordion.core.weaves import Weave
from accordion.dialects.shared import HOSTED, count, encode, mapping
from accordion.dialects.spans import NULL, is_list, items_of
from accordion.dialects.splice import RoundSeen, Splice, Wanted
from accordion.dialects.tap import BOUND

UNREAD = RoundSeen((), (), (), "", finished=False)
"""A round of which nothing was understood: nothing of it is answered."""

_EVENT = re.compile(rb".*?(?:(?:\r\n|\n|\r(?!\n))[\r\n]+|\Z)", re.DOTALL)

# -- usage ---------------------------------------------------------------------------


def usage_of_all(
    rounds: Sequence[Mapping[str, Any]], into: str, out: str, details: str, total: str = ""
) -> dict[str, Any]:
    """The provider's usage objects of the rounds of one reply, as one: the last round's, with the output of all.

    `into` and `out` name the counts of input and output tokens, `details` the object of what the output consists of
    (its counts are summed), `total` the sum of both, where the dialect has one and the last round gave it. `rounds`
    holds at least one object; one round stays as it is.
    """
    usage = dict(rounds[-1])
    if len(rounds) == 1:
        return usage
    usage[out] = sum(count(each.get(out)) for each in rounds)
    summed = _summed([mapping(each.get(details)) for each in rounds])
    if summed:
        usage[details] = summed
    if total and total in usage:
        usage[total] = count(usage.get(into)) + usage[out]
    return usage


def _summed(details: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    summed: dict[str, Any] = {}
    for each in details:
        for name, value in each.items():
            summed[name] = count(summed.get(name)) + value if count(value) else summed.get(name, value)
    return summed


# -- a client's copy of a reply --------------------------------------------------------


def even(texts: Iterable[str]) -> str:
    """The visible texts of a reply as one, white space made even: how a weave keeps it."""
    return " ".join(" ".join(texts).split())


def alike(one: str, other: str) -> bool:
    """Whether two texts say the same. White space does not count: clients join texts with it or without."""
    return "".join(one.split()) == "".join(other.split())


def copied(messages: Sequence[Message], weave: Weave) -> int:
    """How many of the entries that follow the weave's anchor are the client's copy of the reply; 0 where they are not.

    A copy is the assistant's entries in a row. It is known by its call ids, in any order; a reply without calls by its
    text. Reasoning behind the text belongs to it. Of a reply that showed neither it is an entry that says nothing.
    Calls that the provider itself answers count only where the weave names them.
    """
    replies = list(takewhile(lambda message: message.role == "assistant", messages))
    hosted = {call for message in replies for call in _hosted(message)}.difference(weave.calls)
    ids: set[str] = set()
    texts: list[str] = []
    run = 0
    for message in replies:
        made = _calls(message) - hosted
        told = [part.text for part in message.parts if isinstance(part, Text)]
        if not weave.calls and run and (made or told) and not ids and alike("".join(texts), weave.text):
            # Another reply of the assistant follows this one.
            break
        ids |= made
        texts += told
        run += 1
    if weave.calls or ids:
        return run if ids == set(weave.calls) else 0
    return run if alike("".join(texts), weave.text) else 0


def _calls(message: Message) -> set[str]:
    return {part.call_id for part in message.parts if isinstance(part, ToolCall) and part.call_id}


def _hosted(message: Message) -> Iterable[str]:
    """Calls of tools that the provider runs: by their ids, or because the answer stands in the assistant's message."""
    answered = (part.call_id for part in message.parts if isinstance(part, ToolResult))
    return (*answered, *(call for call in _calls(message) if call.startswith(HOSTED)))


def legible(arguments: str) -> str:
    """A call's arguments as they may be sent back: servers of open models refuse a list in which some are no JSON
    object. What is none is wrapped, as Anthropic's guide to fine-grained tool streaming does it."""
    if not arguments.strip():
        return "{}"
    try:
        if type(from_json(arguments)) is dict:
            return arguments
    except ValueError:
        pass
    return json.dumps({"INVALID_JSON": arguments}, ensure_ascii=False)


# -- replies that are one document ---------------------------------------------------


class Document(Splice):
    """A reply that is one JSON document: all rounds are read before anything goes on.

    A dialect reads a document once (`understand`), puts texts in the place of names (`put`), and writes the reply of
    all rounds (`written`). One that cannot be read, or outgrows `BOUND`, goes on as it came. One round in which nothing
    is ours and no artifact was put in place goes on in its own bytes.
    """

    def __init__(self) -> None:
        self.documents: list[dict[str, Any]] = []
        """What was read, a document a round, the last one's included."""
        self.rounds: list[RoundSeen] = []
        """What the rounds before the last said."""
        self._body = bytearray()
        self._seen: RoundSeen | None = None
        self._wanted: tuple[Wanted, ...] = ()
        self._changed = False
        self._too_large = False

    @abstractmethod
    def understand(self, document: dict[str, Any]) -> RoundSeen:
        """What the last document said. An error document, or one of another kind, is not finished."""

    @abstractmethod
    def named(self, document: dict[str, Any]) -> tuple[Wanted, ...]:
        """The artifacts named in the arguments of the client's calls in the document."""

    @abstractmethod
    def put(self, document: dict[str, Any], texts: Sequence[str | None]) -> bool:
        """Changes the document so that it has the texts of what is `named` in its place; whether any was put."""

    @abstractmethod
    def written(self) -> bytes:
        """The reply of all `documents`, the client's calls and the provider's words in order, ours left out."""

    def feed(self, block: bytes) -> bytes:
        """Takes any piece; returns nothing, unless the document is too large to be read."""
        if self._too_large:
            return block
        self._body += block
        if len(self._body) <= BOUND:
            return b""
        self._too_large, out = True, bytes(self._body)
        self._body.clear()
        return out

    @property
    def held(self) -> bool:
        """Whether the document is whole."""
        return self._whole() is not None

    @property
    def wanted(self) -> tuple[Wanted, ...]:
        """The artifacts that are named in the document, until they are given."""
        self._whole()
        return self._wanted

    def give(self, texts: Sequence[str | None]) -> bytes:
        """Puts the texts in their places; of a document nothing goes on yet."""
        if self._wanted:
            self._wanted = ()
            self._changed = self.put(self.documents[-1], texts) or self._changed
        return b""

    def round(self) -> RoundSeen:
        """What the document said, in the provider's words."""
        seen = self._whole()
        if seen is None:
            return UNREAD
        return replace(seen, resolved=self._changed)

    def next(self) -> None:
        """The next document continues this one."""
        self.rounds.append(self.round())
        self._body.clear()
        self._seen, self._wanted = None, ()

    def close(self) -> bytes:
        """The one document of all rounds. Where the last cannot be read it goes on as it came; where it never came, the
        reply is that of the rounds before it."""
        seen = self._whole()
        if seen is None and (self._body or not self.rounds):
            return bytes(self._body)
        if seen is not None and not (self.rounds or seen.ours or self._changed):
            return bytes(self._body)
        return self.written()

    def _whole(self) -> RoundSeen | None:
        if self._seen is None and self._body.rstrip().endswith(b"}"):
            try:
                document = from_json(bytes(self._body))
            except ValueError:
                return None
            if type(document) is dict:
                self._seen = self.understand(document)
                self.documents.append(document)
                self._wanted = self.named(document)
        return self._seen


def names_of(tools: Collection[Any], *path: str) -> frozenset[str]:
    """The names of tools, each found at the end of `path` within its definition."""
    found = set()
    for tool in tools:
        value: Any = tool
        for step in path:
            value = mapping(value).get(step)
        if type(value) is str:
            found.add(value)
    return frozenset(found)


def listed(fields: Mapping[str, bytes], name: str) -> list[bytes]:
    """The entries of a list in an object's field, as they came; none where it is no list."""
    raw = fields.get(name, NULL)
    if not is_list(raw):
        return []
    try:
        return items_of(raw)
    except (ValueError, RecursionError):
        return [to_json(each) for each in from_json(raw)]


# -- bytes -----------------------------------------------------------------------------


def cut(block: bytes) -> list[bytes]:
    """The events of whole `block`s, each with its end, as the very bytes that came."""
    if b"\r" in block:
        return [found.group() for found in _EVENT.finditer(block) if found.group()]
    if block.find(b"\n\n") == len(block) - 2:
        return [block]
    parts = block.split(b"\n\n")
    out = [part + b"\n\n" for part in parts[:-1]]
    return [*out, parts[-1]] if parts[-1] else out


def end_of(block: bytes, at: int) -> int:
    """Where the event that begins at `at` of whole events ends."""
    end = block.find(b"\n\n", at) + 2
    end = end if end > 1 else len(block)
    if block.find(b"\r", at, end) < 0:
        return end
    found = _EVENT.match(block, at)
    return found.end() if found is not None else len(block)


def well_formed(raw: bytes) -> bytes:
    """The same bytes, with U+FFFD in place of what is no UTF-8. JSON is UTF-8 (RFC 8259 8.1), and a call of our tool
    that cannot be decoded could not be hidden."""
    if raw.isascii():
        return raw
    try:
        raw.decode()
    except UnicodeDecodeError:
        return raw.decode(errors="replace").encode()
    return raw


def from_json(raw: bytes | str) -> Any:
    """Decodes what a provider sent; numbers stay as they are, half characters and NaN are no reason to fail. Raises
    ValueError."""
    try:
        return msgspec.json.decode(raw)
    except (ValueError, RecursionError):
        try:
            return json.loads(raw)
        except RecursionError as error:
            raise ValueError("the JSON is nested too deeply") from error


def to_json(value: Any) -> bytes:
    """Encodes what `from_json` decoded. Numbers that JSON has no word for become null."""
    try:
        return encode(value)
    except (OverflowError, UnicodeError):
        return json.dumps(value, separators=(",", ":")).encode()


def visible(parts: Iterable[Part]) -> str:
    """The text of the parts that are text."""
    return "".join(part.text for part in parts if isinstance(part, Text))
