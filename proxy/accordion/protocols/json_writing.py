"""Writers of JSON that the protocols share. They change as little as possible: values keep the bytes they came in.

Only the reader knows which JSON value a part came from. So a writer walks the same JSON values in the same order as the
reader, and asks PartChanges for each value how its parts change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType
from typing import Any

import msgspec

from accordion.model.conversation import Conversation, Message, Opaque, Part, Reasoning, ToolCall, ToolResult
from accordion.protocols.json_spans import (
    NULL,
    fields_of,
    is_list,
    is_object,
    is_text,
    items_of,
    list_of,
    object_of,
    remove_fields,
)
from accordion.protocols.json_values import encode
from accordion.protocols.message_keys import BREAKPOINTS, CACHE_POINT, TEXT_TYPES, count_breakpoints, decode_json

# The fields of messages, items, results and documents that hold blocks.
_BLOCKS = ("content", "output", "source")
_WIRE = attrgetter("wire")
_NOTHING: Mapping[str, bytes | None] = MappingProxyType({})


def write_body(
    conversation: Conversation,
    messages_field: str,
    entries: Sequence[bytes],
    changed: Mapping[str, bytes | None] = _NOTHING,
) -> bytes:
    """Returns the request with another list of messages.

    The fields of the envelope stay as they came, in their order; those in `changed` (JSON values) are replaced, added,
    or, where they are None, removed. The field `messages_field` follows, with the preamble's messages and `entries`.
    The same arguments give the same bytes.
    """
    fields = dict(conversation.envelope)
    if changed:
        fields = {name: value for name, value in {**fields, **changed}.items() if value is not None}
    fields[messages_field] = b"["
    pieces = [*map(_WIRE, conversation.lead), *entries] or [b""]
    # The list is long, so it is joined only once.
    pieces[0] = object_of(fields)[:-1] + pieces[0]
    pieces[-1] += b"]}"
    return b",".join(pieces)


def join_blocks(
    wires: Sequence[bytes],
    own_positions: Collection[int],
    takes_before: Callable[[bytes], bool],
    takes_after: Callable[[bytes], bool],
    merge: Callable[[Sequence[bytes]], bytes],
    takes_more: Callable[[bytes], bool] = lambda _wire: False,
) -> list[bytes]:
    """Merges the blocks at the positions `own_positions` with the messages beside them.

    A block, or several in a row, is appended to the message before it if `takes_before` allows, and the message after
    it is appended if `takes_after` allows; `merge` joins them. If that is one of `takes_more`, those that follow it
    directly, since the messages between them are gone, are appended too. Every other message keeps its bytes, and so
    does a client's message at one of these positions if it has no content that can be joined.
    """
    blocks, position, out = {at for at in own_positions if takes_before(wires[at])}, 0, list[bytes]()
    while position < len(wires):
        if position not in blocks:
            out.append(wires[position])
            position += 1
            continue
        block_run = [out.pop()] if out and takes_before(out[-1]) else []
        while position < len(wires) and position in blocks:
            block_run.append(wires[position])
            position += 1
        if position < len(wires) and takes_after(wires[position]):
            block_run.append(wires[position])
            position += 1
            while position < len(wires) and takes_more(block_run[-1]) and takes_more(wires[position]):
                block_run.append(wires[position])
                position += 1
        out.append(merge(block_run))
    return out


def move_instructions(
    wires: Sequence[bytes], own_positions: Collection[int], role_of: Callable[[bytes], str]
) -> tuple[list[bytes], frozenset[int]]:
    """Moves instructions to where Anthropic's APIs take them, since their neighbours may be gone. Returns the messages
    and the new `own_positions`.

    A system message with content "must follow a 'user' message or an 'assistant' message ending in a server tool
    result" and "must precede an 'assistant' message or end the array" (Anthropic, "Mid-conversation system messages and
    tool changes"). So an instruction stands behind the input that follows it, a summary included, and before the
    model's next message; the order of instructions stays. `role_of` returns `system`, `user`, `assistant`, `paused` for
    an assistant message that ends in such a result, and an empty text for a message that may stand anywhere.
    """
    order, waiting, before, place = list[int](), list[int](), "", 0
    for index, wire in enumerate(wires):
        role = role_of(wire)
        if before and (role == "system" or (waiting and not role)):
            waiting.append(index)
            continue
        if role in ("assistant", "paused") and before in ("user", "paused"):
            order += waiting
            waiting, place = [], len(order)
        order.append(index)
        before = before if role in ("system", "") else role
        place = len(order) if before in ("user", "paused") else place
    # Behind the last reply, there may be no place; then the one before it is used.
    place = place or len(order)
    order[place:place] = waiting
    own = frozenset(own_positions)
    return [wires[index] for index in order], frozenset(at for at, index in enumerate(order) if index in own)


def without_breakpoints(wire: bytes) -> bytes:
    """Removes the cache breakpoints of a message, an item or a content block, also those of nested blocks, but nothing
    within a tool's arguments. Every other value keeps its bytes."""
    if not count_breakpoints(wire):
        return wire
    fields = fields_of(wire)
    remove_fields(fields, *BREAKPOINTS)
    for name in _BLOCKS:
        if is_list(fields.get(name, NULL)):
            fields[name] = list_of(
                [
                    without_breakpoints(item) if is_object(item) else item
                    for item in items_of(fields[name])
                    if not _is_breakpoint(item)
                ]
            )
        elif is_object(fields.get(name, NULL)):
            fields[name] = without_breakpoints(fields[name])
    return object_of(fields)


def _is_breakpoint(block: bytes) -> bool:
    return CACHE_POINT.encode() in block and is_object(block) and fields_of(block).keys() == {CACHE_POINT}


def arguments_object(text: str) -> bytes:
    """Returns a tool's arguments as the bytes of a JSON object. Raises ValueError if the text is none."""
    if type(decode_json(text)) is not dict:
        raise ValueError("the arguments of a call are a JSON object")
    return text.encode()


class ValueChange(msgspec.Struct, frozen=True):
    """The change of one JSON value: its new text, or None to remove it. `parts` are those that were read from it."""

    parts: tuple[Part, ...]
    text: str | None

    def require_removal(self, description: str) -> None:
        """Raises ValueError if the change is a text: this value can only be removed."""
        if self.text is not None:
            raise ValueError(f"{description} is left as it is or taken out")


def edit_part(raw: bytes, change: ValueChange, text_type: bytes) -> bytes | None:
    """Returns an entry of OpenAI's content list with another text; media become a text of the type `text_type` (JSON).
    Raises ValueError for a new text of reasoning."""
    if isinstance(change.parts[0], Reasoning):
        change.require_removal("reasoning")
    if change.text is None:
        return None
    if is_text(raw):
        return encode(change.text)
    fields = fields_of(raw)
    kind = decode_json(fields["type"])
    if kind in TEXT_TYPES:
        # Annotations and log probabilities refer to the characters of the old text.
        remove_fields(fields, "logprobs")
        if "annotations" in fields:
            fields["annotations"] = b"[]"
        return object_of({**fields, "text": encode(change.text)})
    if kind == "refusal":
        return object_of({**fields, "refusal": encode(change.text)})
    breakpoints = {name: fields[name] for name in BREAKPOINTS if name in fields}
    return object_of({"type": text_type, "text": encode(change.text), **breakpoints})


class PartChanges:
    """The changes of a message's parts, taken in the order in which the parts were read.

    `has_content` tells whether anything but reasoning remains so far. Raises ValueError for an index that no part has.
    """

    __slots__ = ("_changes", "_parts", "_position", "has_content")

    def __init__(self, message: Message, changes: Mapping[int, str | None]) -> None:
        self._parts, self._changes, self._position, self.has_content = message.parts, changes, 0, False
        if any(not 0 <= index < len(message.parts) for index in changes):
            raise ValueError("a part to be changed does not exist")

    def take(self, count: int) -> ValueChange | None:
        """Returns the change of the next value, from which `count` parts were read; None where it stays as it is.

        Several texts for one value are joined as lines. An empty text removes text or media: no protocol has a use for
        an empty block. Raises ValueError for an Opaque part, and for a new text of a result that holds one.
        """
        start, self._position = self._position, self._position + count
        parts = self._parts[start : self._position]
        if len(parts) != count:
            raise ValueError("the message's JSON has other parts than were read from it")
        new_texts = [self._changes[index] for index in range(start, self._position) if index in self._changes]
        if not new_texts:
            self.has_content = self.has_content or any(not isinstance(part, Reasoning) for part in parts)
            return None
        lines = [text for text in new_texts if text is not None]
        text = "\n".join(lines) if lines else None
        if text == "" and not any(isinstance(part, ToolCall | ToolResult) for part in parts):
            text = None
        for part in parts:
            nested_parts = part.parts if isinstance(part, ToolResult) and text is not None else ()
            if isinstance(part, Opaque) or any(isinstance(inner_part, Opaque) for inner_part in nested_parts):
                raise ValueError("a part that is not understood cannot be changed")
        self.has_content = self.has_content or text is not None
        return ValueChange(parts, text)

    def edit_each(
        self,
        list_json: bytes,
        parts: Callable[[Any], Iterable[Part]],
        write: Callable[[bytes, ValueChange], bytes | None],
    ) -> bytes | None:
        """Returns a JSON list with its entries changed: None where no entry is left, the same bytes where none changes.
        `parts` reads an entry, `write` writes a changed one."""
        items, out = items_of(list_json), list[bytes]()
        for raw in items:
            change = self.take(len(tuple(parts(decode_json(raw)))))
            edited = raw if change is None else write(raw, change)
            if edited is not None:
                out.append(edited)
        if out == items:
            return list_json
        return list_of(out) if out else None

    def check_all_taken(self) -> None:
        """Raises ValueError if some parts were not taken."""
        if self._position != len(self._parts):
            raise ValueError("the message's JSON has other parts than were read from it")
