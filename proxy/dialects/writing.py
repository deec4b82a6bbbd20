"""Writing JSON back with as little changed as can be: values are joined as the bytes they came in.

Common to the dialects. What a message's parts are is known by its reading alone, so a writer walks the same JSON values
in the same order, and asks for each value what is to become of the parts that were read of it (`Asked`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from proxy.core.conversation import Conversation, Message, Opaque, Part, Reasoning, ToolCall, ToolResult
from proxy.core.values import dataclass
from proxy.dialects.keys import BREAKPOINTS, breakpoints, read
from proxy.dialects.spans import FIELDS

_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_NOTHING: Mapping[str, bytes | None] = MappingProxyType({})

NULL = b"null"
# Where blocks stand in messages, items, results and documents.
_BLOCKS = ("content", "output", "source")
encode = msgspec.json.encode


def fields_of(raw: bytes) -> dict[str, bytes]:
    """The fields of a JSON object, each as its own bytes, in their order. Raises ValueError where it is none."""
    return {name: bytes(value) for name, value in FIELDS.decode(raw).items()}


def items_of(raw: bytes) -> list[bytes]:
    """The entries of a JSON list, each as its own bytes. Raises ValueError where it is none."""
    return [bytes(value) for value in _LIST.decode(raw)]


def object_of(fields: Mapping[str, bytes]) -> bytes:
    """The JSON object that has these fields, without white space between them."""
    return b"{" + b",".join([encode(name) + b":" + value for name, value in fields.items()]) + b"}"


def list_of(items: Iterable[bytes]) -> bytes:
    """The JSON list of these entries, without white space between them."""
    return b"[" + b",".join(items) + b"]"


def is_text(raw: bytes) -> bool:
    """Whether the bytes of a JSON value are those of a string."""
    return raw[:1] == b'"'


def is_list(raw: bytes) -> bool:
    """Whether the bytes of a JSON value are those of a list."""
    return raw[:1] == b"["


def body(
    conversation: Conversation,
    listing: str,
    entries: Sequence[bytes],
    changed: Mapping[str, bytes | None] = _NOTHING,
) -> bytes:
    """The request with another list: the fields of its envelope as they came and in their order, those in `changed`
    (JSON values) replaced, added, or, where they are None, removed; then the list `listing`, of the entries that belong
    to the preamble and `entries`. The same arguments give the same bytes."""
    fields: dict[str, bytes] = {}
    for name, value in {**conversation.envelope, **changed}.items():
        if value is not None and name != listing:
            fields[name] = value
    fields[listing] = list_of([*(message.wire for message in conversation.lead), *entries])
    return object_of(fields)


def unmarked(wire: bytes) -> bytes:
    """A message, an item or a content block without the cache breakpoints in it: those of blocks within blocks too,
    none of what a tool was given. Every other value keeps its bytes."""
    if not breakpoints(wire):
        return wire
    fields = fields_of(wire)
    without(fields, *BREAKPOINTS)
    for name in _BLOCKS:
        if is_list(fields.get(name, NULL)):
            fields[name] = list_of([unmarked(item) if item[:1] == b"{" else item for item in items_of(fields[name])])
        elif fields.get(name, NULL)[:1] == b"{":
            fields[name] = unmarked(fields[name])
    return object_of(fields)


def arguments_of(text: str) -> bytes:
    """Arguments for a tool as the bytes of a JSON object. Raises ValueError where the text is none."""
    if type(read(text)) is not dict:
        raise ValueError("the arguments of a call are a JSON object")
    return text.encode()


@dataclass(frozen=True, slots=True)
class Change:
    """What is to become of one JSON value: it has `text` instead of what it held, or is gone where that is None.
    `parts` are those that were read of it."""

    parts: tuple[Part, ...]
    text: str | None

    def removal(self, what: str) -> None:
        """Raises ValueError where something is to be written in the place of what leaves only as a whole."""
        if self.text is not None:
            raise ValueError(f"{what} is left as it is or taken out")


class Asked:
    """What is asked of a message's parts, taken in the order in which they were read.

    `left` tells whether something of the message stays so far that is not reasoning. Raises ValueError for an index
    that no part has.
    """

    __slots__ = ("_at", "_changes", "_parts", "left")

    def __init__(self, message: Message, changes: Mapping[int, str | None]) -> None:
        self._parts, self._changes, self._at, self.left = message.parts, changes, 0, False
        if any(not 0 <= index < len(message.parts) for index in changes):
            raise ValueError("a part to be changed does not exist")

    def take(self, count: int) -> Change | None:
        """What is asked of the next value, of which `count` parts were read; None where it stays as it is.

        Of several texts for one value the lines follow each other. An empty text in the place of text or media takes
        it out: no protocol has a use for an empty block. Raises ValueError for what is passed on unseen: an Opaque
        part, and a result that holds one, of which nothing may be told in other words.
        """
        start, self._at = self._at, self._at + count
        parts = self._parts[start : self._at]
        if len(parts) != count:
            raise ValueError("the message's JSON has other parts than were read of it")
        hits = [self._changes[index] for index in range(start, self._at) if index in self._changes]
        if not hits:
            self.left = self.left or any(not isinstance(part, Reasoning) for part in parts)
            return None
        told = [text for text in hits if text is not None]
        text = "\n".join(told) if told else None
        if text == "" and not any(isinstance(part, ToolCall | ToolResult) for part in parts):
            text = None
        for part in parts:
            inner = part.parts if isinstance(part, ToolResult) and text is not None else ()
            if isinstance(part, Opaque) or any(isinstance(held, Opaque) for held in inner):
                raise ValueError("what is not understood is not changed")
        self.left = self.left or text is not None
        return Change(parts, text)

    def done(self) -> None:
        """Raises ValueError where parts were read of something that no value was taken for."""
        if self._at != len(self._parts):
            raise ValueError("the message's JSON has other parts than were read of it")


def without(fields: dict[str, bytes], *names: str) -> None:
    """Takes fields out of `fields` where they are there."""
    for name in names:
        fields.pop(name, None)
