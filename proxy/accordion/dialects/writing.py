"""Writing JSON back with as little changed as can be: values are joined as the bytes they came in.

Common to the dialects. What a message's parts are is known by its reading alone, so a writer walks the same JSON values
in the same order, and asks for each value what is to become of the parts that were read of it (`Asked`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType
from typing import Any

from accordion.core.conversation import Conversation, Message, Opaque, Part, Reasoning, ToolCall, ToolResult
from accordion.core.values import dataclass
from accordion.dialects.keys import BREAKPOINTS, TEXT_TYPES, breakpoints, read
from accordion.dialects.shared import encode
from accordion.dialects.spans import NULL, fields_of, is_list, is_object, is_text, items_of, list_of, object_of, without

# Where blocks stand in messages, items, results and documents.
_BLOCKS = ("content", "output", "source")
_WIRE = attrgetter("wire")
_NOTHING: Mapping[str, bytes | None] = MappingProxyType({})


def body(
    conversation: Conversation,
    listing: str,
    entries: Sequence[bytes],
    changed: Mapping[str, bytes | None] = _NOTHING,
) -> bytes:
    """The request with another list: the fields of its envelope as they came and in their order, those in `changed`
    (JSON values) replaced, added, or, where they are None, removed; then the list `listing`, of the entries that belong
    to the preamble and `entries`. The same arguments give the same bytes."""
    fields = dict(conversation.envelope)
    if changed:
        fields = {name: value for name, value in {**fields, **changed}.items() if value is not None}
    fields[listing] = b"["
    listed = [*map(_WIRE, conversation.lead), *entries] or [b""]
    # The list is long, so it is joined only once.
    listed[0] = object_of(fields)[:-1] + listed[0]
    listed[-1] += b"]}"
    return b",".join(listed)


def beside(
    wires: Sequence[bytes],
    ours: Collection[int],
    before: Callable[[bytes], bool],
    behind: Callable[[bytes], bool],
    together: Callable[[Sequence[bytes]], bytes],
) -> list[bytes]:
    """The list with the blocks at the places `ours`, and what stands beside them, made one message by `together`.

    Such a block, or several in a row, goes behind the message before it where that may hold more (`before`), and the
    message that follows goes behind it (`behind`). Every other message keeps its bytes.
    """
    written, at, out = frozenset(ours), 0, list[bytes]()
    while at < len(wires):
        if at not in written:
            out.append(wires[at])
            at += 1
            continue
        run = [out.pop()] if out and before(out[-1]) else []
        while at < len(wires) and at in written:
            run.append(wires[at])
            at += 1
        if at < len(wires) and behind(wires[at]):
            run.append(wires[at])
            at += 1
        out.append(together(run))
    return out


def unmarked(wire: bytes) -> bytes:
    """A message, an item or a content block without the cache breakpoints in it: those of blocks within blocks too,
    none of what a tool was given. Every other value keeps its bytes."""
    if not breakpoints(wire):
        return wire
    fields = fields_of(wire)
    without(fields, *BREAKPOINTS)
    for name in _BLOCKS:
        if is_list(fields.get(name, NULL)):
            fields[name] = list_of([unmarked(item) if is_object(item) else item for item in items_of(fields[name])])
        elif is_object(fields.get(name, NULL)):
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


def part_of(raw: bytes, change: Change, spoken: bytes) -> bytes | None:
    """An entry of a content list of OpenAI's with its text replaced; one that held media becomes a text of the kind
    `spoken` (JSON). Raises ValueError where reasoning is to be rewritten."""
    if isinstance(change.parts[0], Reasoning):
        change.removal("reasoning")
    if change.text is None:
        return None
    if is_text(raw):
        return encode(change.text)
    fields = fields_of(raw)
    kind = read(fields["type"])
    if kind in TEXT_TYPES:
        # They count the characters of the text that was there.
        without(fields, "logprobs")
        if "annotations" in fields:
            fields["annotations"] = b"[]"
        return object_of({**fields, "text": encode(change.text)})
    if kind == "refusal":
        return object_of({**fields, "refusal": encode(change.text)})
    marks = {name: fields[name] for name in BREAKPOINTS if name in fields}
    return object_of({"type": spoken, "text": encode(change.text), **marks})


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

    def each(
        self,
        listed: bytes,
        parts: Callable[[Any], Iterable[Part]],
        write: Callable[[bytes, Change], bytes | None],
    ) -> bytes | None:
        """The JSON list `listed` with every entry as it is asked for, written by `write`; None where none is left, the
        same bytes where nothing is asked. `parts` reads an entry."""
        items, kept = items_of(listed), list[bytes]()
        for raw in items:
            change = self.take(len(tuple(parts(read(raw)))))
            written = raw if change is None else write(raw, change)
            if written is not None:
                kept.append(written)
        if kept == items:
            return listed
        return list_of(kept) if kept else None

    def done(self) -> None:
        """Raises ValueError where parts were read of something that no value was taken for."""
        if self._at != len(self._parts):
            raise ValueError("the message's JSON has other parts than were read of it")
