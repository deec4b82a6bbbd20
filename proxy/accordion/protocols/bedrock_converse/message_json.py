"""The JSON of Converse messages: reads content blocks into parts, edits a message, creates one, merges neighbours.

A block is an object with one field, whose name is the block's type. Fields beside it are kept and not read. Reasoning
stays equal or is removed. A block that is not understood stays as it is. Source: as for protocol.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from accordion.model.conversation import Media, MediaKind, Message, Part, Reasoning, ToolCall, ToolResult
from accordion.protocols.json_spans import NULL, fields_of, is_list, is_object, items_of, list_of, object_of
from accordion.protocols.json_values import (
    Inner,
    arguments_text,
    as_list,
    as_mapping,
    as_string,
    base64_media,
    encode,
    opaque_part,
    text_parts,
)
from accordion.protocols.json_writing import PartChanges, ValueChange, arguments_object, join_blocks, move_instructions
from accordion.protocols.message_keys import CACHE_POINT, decode_json

# -- reading -----------------------------------------------------------------------------------------------------------


_DOCUMENT_TYPES = {"pdf": "application/pdf", "html": "text/html", "csv": "text/csv", "md": "text/markdown"}


def read_parts(content: Any) -> Iterable[Part]:
    """Reads a message's content, or the system prompt: a list of blocks."""
    if type(content) is list:
        return [part for entry in content for part in _read_block(entry)]
    return () if content is None else (opaque_part(content),)


def block_type(fields: dict[str, Any]) -> str:
    """Returns the type of a block; empty where it has none."""
    return next((name for name, value in fields.items() if value is not None), "")


def _read_block(entry: Any) -> Iterable[Part]:
    """Reads one block of a message."""
    fields = as_mapping(entry)
    kind = block_type(fields)
    value = as_mapping(fields.get(kind))
    if kind == "toolUse":
        arguments = arguments_text(value.get("input")) or "{}"
        return (ToolCall(as_string(value.get("toolUseId")), as_string(value.get("name")), arguments),)
    if kind == "toolResult":
        parts = tuple(part for block in as_list(value.get("content")) for part in _read_inner(block))
        return (ToolResult(as_string(value.get("toolUseId")), parts, value.get("status") == "error"),)
    return () if kind == CACHE_POINT else _read_inner(entry)


def _read_inner(entry: Any) -> Iterable[Inner]:
    """Reads a block that may also be in a result."""
    fields = as_mapping(entry)
    kind = block_type(fields)
    if kind == "text":
        return text_parts(fields["text"])
    if kind == "json":
        return text_parts(encode(fields["json"]).decode())
    reader, value = _READERS.get(kind), fields.get(kind)
    if reader is None or type(value) is not dict:
        return (opaque_part(entry, kind),)
    return reader(value)


def _read_reasoning(block: dict[str, Any]) -> Iterable[Inner]:
    text = as_mapping(block.get("reasoningText"))
    sealed = as_string(text.get("signature")) + as_string(block.get("redactedContent"))
    return (Reasoning(as_string(text.get("text")), len(sealed)),)


def _read_media(kind: MediaKind) -> Callable[[dict[str, Any]], Iterable[Inner]]:
    def read(block: dict[str, Any]) -> Iterable[Inner]:
        return (_media(kind, f"{kind}/{as_string(block.get('format'))}", as_mapping(block.get("source"))),)

    return read


def _media(kind: MediaKind, media_type: str, source: dict[str, Any]) -> Media:
    data = source.get("bytes")
    return base64_media(kind, media_type, data) if type(data) is str else Media(kind, media_type)


def _read_document(block: dict[str, Any]) -> Iterable[Inner]:
    source = as_mapping(block.get("source"))
    texts = text_parts(block.get("name"), block.get("context"), source.get("text"))
    if "text" in source or "content" in source:
        return (*texts, *_texts_of(source.get("content")))
    name = as_string(block.get("format"))
    media_type = _DOCUMENT_TYPES.get(name, "text/plain" if name == "txt" else f"application/{name}")
    return (*texts, _media("file", media_type, source))


def _read_guarded(block: dict[str, Any]) -> Iterable[Inner]:
    image = block.get("image")
    texts = text_parts(as_mapping(block.get("text")).get("text"))
    return (*texts, *(_read_media("image")(image) if type(image) is dict else ()))


def _read_cited(block: dict[str, Any]) -> Iterable[Inner]:
    return text_parts("".join(part.text for part in _texts_of(block.get("content"))))


def _read_search_result(block: dict[str, Any]) -> Iterable[Inner]:
    return (*text_parts(block.get("title"), block.get("source")), *_texts_of(block.get("content")))


def _texts_of(content: Any) -> Iterable[Any]:
    return text_parts(*(as_mapping(each).get("text") for each in as_list(content)))


_READERS: dict[str, Callable[[dict[str, Any]], Iterable[Inner]]] = {
    "reasoningContent": _read_reasoning,
    "image": _read_media("image"),
    "video": _read_media("video"),
    "audio": _read_media("audio"),
    "document": _read_document,
    "guardContent": _read_guarded,
    "citationsContent": _read_cited,
    "searchResult": _read_search_result,
}


# -- writing -----------------------------------------------------------------------------------------------------------


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
        fields["content"] = part_changes.edit_each(content, _read_block, _edit_block) or NULL
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
    if kind == "text":
        return object_of({**fields, kind: encode(change.text)})
    return encode({"text": change.text})


def join_messages(wires: Sequence[bytes], own_positions: Collection[int]) -> list[bytes]:
    """Merges the proxy's own blocks with the user messages beside them, and then messages of one role in a row, whose
    neighbours are gone.

    A block before results becomes a part of the first one, as in Messages: nothing may come between a call and its
    result, and a text behind results can make the model end its turn with an empty answer. System messages stand behind
    the block.
    """
    if any(b'"system"' in wire for wire in wires[1:]):
        wires, own_positions = move_instructions(wires, own_positions, _role)
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
    return as_string(decode_json(fields_of(wire).get("role", NULL))) if is_object(wire) else ""


def _has_content(wire: bytes) -> bool:
    return is_object(wire) and is_list(fields_of(wire).get("content", NULL))


def _from_user(wire: bytes) -> bool:
    """Whether a message is the user's, with content to which blocks can be added."""
    return _has_content(wire) and _role(wire) == "user"


def _is_result(block: bytes) -> bool:
    return is_object(block) and is_object(fields_of(block).get("toolResult", NULL))


def _is_cache_point(block: bytes) -> bool:
    return is_object(block) and "cachePoint" in fields_of(block)
