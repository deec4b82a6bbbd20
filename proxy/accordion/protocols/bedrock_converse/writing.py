"""Writes Converse messages: edits one, creates one, merges neighbours.

Reasoning stays equal or is removed. A block that is not understood stays as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from accordion.model.conversation import Message
from accordion.protocols.bedrock_converse.blocks import block_type, read_block
from accordion.protocols.json_spans import NULL, fields_of, is_list, is_object, items_of, list_of, object_of
from accordion.protocols.json_values import encode
from accordion.protocols.json_writing import PartChanges, ValueChange, arguments_object, join_blocks
from accordion.protocols.message_keys import decode_json

_EXTENDABLE = frozenset({"text", "json", "image", "document"})
"""The parts of a result that texts can stand beside."""
_RESULT_HEADING = b'{"text":"[What follows is what the tool returned.]"}'


def edit_message(message: Message, changes: Mapping[int, str | None]) -> bytes | None:
    """Returns the message with parts changed; see WireProtocol.edit_message. Raises ValueError for a new text of
    reasoning, and for any change of blocks that are not understood."""
    if not changes:
        return message.wire
    part_changes = PartChanges(message, changes)
    if not is_object(message.wire):
        raise ValueError("a message that is not understood cannot be changed")
    fields = fields_of(message.wire)
    content = fields.get("content", NULL)
    if is_list(content):
        fields["content"] = part_changes.edit_each(content, read_block, _edit_block) or NULL
    part_changes.check_all_taken()
    return object_of(fields) if part_changes.has_content else None


def text_message(text: str) -> bytes:
    """Returns a user message with one text."""
    return encode({"role": "user", "content": [{"text": text}]})


def _edit_block(raw: bytes, change: ValueChange) -> bytes | None:
    """Replaces the input, the result or the text of a block; all else that is read becomes a text."""
    fields = fields_of(raw)
    kind = block_type(decode_json(raw))
    if kind == "reasoningContent":
        change.require_removal("reasoning")
    if change.text is None:
        return None
    if kind == "toolUse":
        return object_of(
            {**fields, kind: object_of({**fields_of(fields[kind]), "input": arguments_object(change.text)})}
        )
    if kind == "toolResult":
        content = [{"text": change.text}] if change.text else []
        return object_of({**fields, kind: object_of({**fields_of(fields[kind]), "content": encode(content)})})
    return encode({"text": change.text})


def join_messages(wires: Sequence[bytes], own_positions: Collection[int]) -> list[bytes]:
    """Merges the proxy's own blocks with the user messages beside them, and then messages of one role in a row, whose
    neighbours are gone.

    A block before results becomes a part of the first one, as in Messages: nothing may come between a call and its
    result, and a text behind results can make the model end its turn with an empty answer.
    """
    joined = join_blocks(wires, own_positions, _from_user, _from_user, _merge_messages)
    out: list[bytes] = []
    for wire in joined:
        if out and _has_content(wire) and _has_content(out[-1]) and _role(wire) == _role(out[-1]):
            wire = _merge_messages([out.pop(), wire])  # noqa: PLW2901
        out.append(wire)
    return out


def _merge_messages(wires: Sequence[bytes]) -> bytes:
    messages = [fields_of(wire) for wire in wires]
    *earlier, last = [items_of(fields["content"]) for fields in messages]
    blocks = [block for each in earlier for block in each]
    fields = {**messages[-1], **messages[0]}
    first = next((at for at, block in enumerate(last) if _is_result(block)), -1)
    if first < 0 or any(map(_is_result, blocks)):
        return object_of({**fields, "content": list_of([*blocks, *last])})
    if _is_extendable(last[first]):
        last[first] = _extend_result(last[first], [block for block in blocks if not _is_cache_point(block)])
        return object_of({**fields, "content": list_of(last)})
    return object_of({**fields, "content": list_of([*last, *blocks])})


def _is_extendable(block: bytes) -> bool:
    content = decode_json(fields_of(fields_of(block)["toolResult"]).get("content", b"[]"))
    return type(content) is list and all(type(each) is dict and block_type(each) in _EXTENDABLE for each in content)


def _extend_result(block: bytes, texts: Sequence[bytes]) -> bytes:
    """Puts text blocks, and a line that says where they end, before the content of a result."""
    fields = fields_of(block)
    result = fields_of(fields["toolResult"])
    content = [*texts, _RESULT_HEADING, *items_of(result.get("content", b"[]"))]
    return object_of({**fields, "toolResult": object_of({**result, "content": list_of(content)})})


def _role(wire: bytes) -> str:
    return str(decode_json(fields_of(wire).get("role", NULL)))


def _has_content(wire: bytes) -> bool:
    return is_object(wire) and is_list(fields_of(wire).get("content", NULL))


def _from_user(wire: bytes) -> bool:
    """Whether a message is the user's, with content to which blocks can be added."""
    return _has_content(wire) and _role(wire) == "user"


def _is_result(block: bytes) -> bool:
    return is_object(block) and is_object(fields_of(block).get("toolResult", NULL))


def _is_cache_point(block: bytes) -> bool:
    return is_object(block) and "cachePoint" in fields_of(block)
