"""Writing Anthropic's messages: one edited, one of our own, blocks put beside each other, a cache breakpoint.

Sources: reference of the Messages API. Thinking is byte-equal or gone; what the provider's own tools gave, and its
compaction blocks, are signed or paired within one message and stay as they are; a block of text is never empty.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from accordion.core.conversation import Message
from accordion.dialects import messages_blocks
from accordion.dialects.keys import read
from accordion.dialects.shared import encode, mapping, string
from accordion.dialects.spans import NULL, fields_of, is_list, is_object, is_text, items_of, list_of, object_of, without
from accordion.dialects.writing import Asked, Change, arguments_of, beside

_THINKING = frozenset({"thinking", "redacted_thinking"})
_MEDIA = frozenset({"image", "document", "search_result"})
_MARKABLE = frozenset(
    {
        *("image", "document", "search_result", "tool_use", "tool_result", "server_tool_use", "mcp_tool_use"),
        *("mcp_tool_result", "web_search_tool_result", "web_fetch_tool_result", "code_execution_tool_result"),
        *("bash_code_execution_tool_result", "text_editor_code_execution_tool_result", "tool_search_tool_result"),
        *("container_upload", "compaction"),
    }
)
_MARK = b'{"type":"ephemeral"}'


def edited(message: Message, changes: Mapping[int, str | None]) -> bytes | None:
    """The message with parts changed; see Dialect.edit. Thinking, what the provider's own tools did, and compaction
    blocks are not rewritten: ValueError."""
    if not changes:
        return message.wire
    asked = Asked(message, changes)
    fields = fields_of(message.wire)
    content = fields.get("content", NULL)
    if is_list(content):
        fields["content"] = asked.each(content, messages_blocks.block, _block) or NULL
    else:
        change = asked.take(len(tuple(messages_blocks.parts(read(content)))))
        if change is not None and change.text is not None:
            fields["content"] = encode(change.text)
    asked.done()
    return object_of(fields) if asked.left else None


def block(text: str) -> bytes:
    """A user's message that holds one text."""
    return encode({"role": "user", "content": [{"type": "text", "text": text}]})


def _block(raw: bytes, change: Change) -> bytes | None:
    """A content block with its text, result or input replaced; media and documents become a text."""
    fields = fields_of(raw)
    kind = string(read(fields.get("type", NULL)))
    if kind in _THINKING:
        change.removal("thinking")
    elif kind not in {"text", "tool_use", "tool_result"} and kind not in _MEDIA:
        raise ValueError(f"a block of the type {kind} is passed on as it is")
    if change.text is None:
        return None
    if kind == "tool_result":
        return object_of({**fields, "content": encode(change.text)})
    if kind == "tool_use":
        return object_of({**fields, "input": arguments_of(change.text)})
    if kind in _MEDIA:
        fields = {"type": b'"text"'} | {name: value for name, value in fields.items() if name == "cache_control"}
    without(fields, "citations")
    return object_of({**fields, "text": encode(change.text)})


def joined(wires: Sequence[bytes], ours: Collection[int]) -> list[bytes]:
    """The list with blocks of ours made part of the user's messages beside them, so that speakers alternate as before.

    A message that follows is joined too where it holds no tool result, since what stood between is gone. So is what the
    system said within the list, where it may not stand any more (see `_homeless`), word for word.
    """
    homeless = _homeless(wires)
    if homeless:
        wires = [_quoted(wire) if at in homeless else wire for at, wire in enumerate(wires)]
        ours = {*ours, *homeless}
    return beside(wires, ours, _from_user, lambda wire: _from_user(wire) and not _has_result(wire), _together)


def _homeless(wires: Sequence[bytes]) -> set[int]:
    """The system's messages, behind the first, that do not stand behind a user's message (or what the provider's own
    tool gave) and before an assistant's or at the end, as the API wants it, since what stood there has left.

    Source: errors of the Messages API (beta mid-conversation-system-2026-04-07): such a message "must follow a 'user'
    message or an 'assistant' message ending in a server tool result" and "must precede an 'assistant' message or end
    the array".
    """
    if not any(b'"system"' in wire for wire in wires[1:]):
        return set()
    # One that holds no words sets something for what follows, and stands wherever the client has it.
    read_as = [
        (at, _role(wire)) for at, wire in enumerate(wires) if _role(wire) != "system" or _contained(fields_of(wire))
    ]
    found = set[int]()
    for place, (at, role) in enumerate(read_as):
        if role != "system" or not place:
            continue
        before, speaker = read_as[place - 1]
        led = speaker == "user" or (speaker == "assistant" and _ends_with_result(wires[before]))
        if not led or (place + 1 < len(read_as) and read_as[place + 1][1] != "assistant"):
            found.add(at)
    return found


def _quoted(wire: bytes) -> bytes:
    """What the system said, in a user's message."""
    text = encode({"type": "text", "text": "[The system said here, word for word:]"})
    return object_of({"role": b'"user"', "content": list_of([text, *_contained(fields_of(wire))])})


def _role(wire: bytes) -> str:
    return string(read(fields_of(wire).get("role", NULL))) if is_object(wire) else ""


def _ends_with_result(wire: bytes) -> bool:
    blocks = _contained(fields_of(wire)) if is_object(wire) else []
    return bool(blocks) and string(mapping(read(blocks[-1])).get("type")).endswith("_tool_result")


def _together(wires: Sequence[bytes]) -> bytes:
    held = [fields_of(wire) for wire in wires]
    blocks = [block for fields in held for block in _contained(fields)]
    return object_of({**held[-1], **held[0], "content": list_of(blocks)})


def marked(wire: bytes) -> bytes:
    """The message with a cache breakpoint on the last of its blocks that may carry one; as it was where it has one
    there, or where none may."""
    fields = fields_of(wire)
    blocks = _contained(fields)
    for at in range(len(blocks) - 1, -1, -1):
        held = mapping(read(blocks[at]))
        kind = string(held.get("type"))
        if kind not in _MARKABLE and not (kind == "text" and held.get("text")):
            continue
        if held.get("cache_control") is not None:
            return wire
        blocks[at] = object_of({**fields_of(blocks[at]), "cache_control": _MARK})
        return object_of({**fields, "content": list_of(blocks)})
    return wire


def _contained(fields: Mapping[str, bytes]) -> list[bytes]:
    """The blocks of a message; a plain text as one block."""
    content = fields.get("content", NULL)
    if is_list(content):
        return items_of(content)
    if is_text(content) and content != b'""':
        return [object_of({"type": b'"text"', "text": content})]
    return []


def _from_user(wire: bytes) -> bool:
    """Whether a message is the user's, and of a shape that blocks may be added to."""
    fields = fields_of(wire) if is_object(wire) else {}
    content = fields.get("content", NULL)
    return read(fields.get("role", NULL)) == "user" and (is_list(content) or is_text(content))


def _has_result(wire: bytes) -> bool:
    content = read(fields_of(wire)["content"])
    return type(content) is list and any(mapping(entry).get("type") == "tool_result" for entry in content)
