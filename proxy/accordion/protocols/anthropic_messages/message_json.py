"""The JSON of Anthropic messages: reads content blocks into parts, edits a message, creates one, merges neighbours,
sets a cache breakpoint.

Thinking stays byte-equal or is removed. Results of the provider's own tools, and its compaction blocks, are signed or
paired within one message and stay as they are. A text block is never empty.

Sources: as for protocol.py; the reference of the Messages API.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from accordion.model.conversation import Media, Message, Opaque, Part, Reasoning, ToolCall, ToolResult
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
    url_media,
)
from accordion.protocols.json_writing import PartChanges, ValueChange, arguments_object, join_blocks, move_instructions
from accordion.protocols.message_keys import decode_json

# -- reading -----------------------------------------------------------------------------------------------------------


HOSTED = frozenset({"server_tool_use", "mcp_tool_use"})
"""Types of blocks that call a tool of the provider."""

CALLS = HOSTED | {"tool_use"}
"""Types of blocks that call any tool."""


def read_parts(content: Any) -> Iterable[Part]:
    """Reads a message's content or the system prompt: a string, or blocks."""
    if type(content) is str:
        return text_parts(content)
    if type(content) is list:
        return [part for entry in content for part in _read_block(entry)]
    return () if content is None else (opaque_part(content),)


def read_settings(entry: dict[str, Any]) -> Iterable[Part]:
    """Reads the settings that hold from a system message on (Anthropic, "Change effort mid-conversation")."""
    return (opaque_part(entry["output_config"], "output_config"),) if entry.get("output_config") else ()


def _read_block(entry: Any) -> Iterable[Part]:
    """Reads one content block of a message."""
    kind = as_string(as_mapping(entry).get("type"))
    if kind == "text":
        return text_parts(entry.get("text"))
    if kind in CALLS:
        name, arguments = as_string(entry.get("name")), arguments_text(entry.get("input"))
        return (ToolCall(as_string(entry.get("id")), name, arguments),)
    if kind.endswith("tool_result"):
        return (_result(entry),)
    return _inner(entry, kind)


def _result(block: dict[str, Any]) -> Part:
    """Reads a `tool_result` of the user's tools, or a `*_tool_result` of the provider's."""
    content = block.get("content")
    failed = block.get("is_error") is True or as_string(as_mapping(content).get("type")).endswith("_error")
    return ToolResult(as_string(block.get("tool_use_id")), tuple(_read_content(content)), failed)


def _read_content(content: Any) -> Iterable[Inner]:
    """Reads the content of a result, a document or a search result."""
    if type(content) is str:
        return text_parts(content)
    if type(content) is dict:
        return _inner(content, as_string(content.get("type")))
    if type(content) is list:
        return [part for block in content for part in _inner(block, as_string(as_mapping(block).get("type")))]
    return () if content is None else (opaque_part(content),)


def _inner(block: Any, kind: str) -> Iterable[Inner]:
    if kind in {"text", "advisor_result"}:
        return text_parts(block.get("text"))
    if kind == "thinking":
        return (Reasoning(as_string(block.get("thinking")), len(as_string(block.get("signature")))),)
    if kind == "redacted_thinking":
        return (Reasoning("", len(as_string(block.get("data")))),)
    if kind == "image":
        return (_image(as_mapping(block.get("source"))),)
    if kind == "document":
        return (*text_parts(block.get("title"), block.get("context")), *_document(as_mapping(block.get("source"))))
    if kind == "search_result":
        return (*text_parts(block.get("title"), block.get("source")), *_read_content(block.get("content")))
    if kind == "fallback":
        # A marker that another model continued. No model reads it.
        return ()
    if kind == "compaction":
        # A summary that the provider wrote and signed, encrypted or not. The model reads it once.
        summary = as_string(block.get("content")) or as_string(block.get("encrypted_content"))
        return (Opaque("compaction", len(summary.encode())),)
    return _hosted_output(block, kind)


def _hosted_output(block: Any, kind: str) -> Iterable[Inner]:
    """Reads the output of a tool of the provider, and blocks that only such tools use."""
    if kind.endswith(("code_execution_result", "code_execution_view_result", "code_execution_str_replace_result")):
        lines = "\n".join(map(as_string, as_list(block.get("lines"))))
        encrypted = _encrypted_media(as_string(block.get("encrypted_stdout")))
        return (
            *text_parts(block.get("stdout"), block.get("stderr"), lines),
            *encrypted,
            *_read_content(block.get("content")),
        )
    if kind.endswith("code_execution_create_result"):
        return ()
    if kind == "web_fetch_result":
        return (*text_parts(block.get("url")), *_read_content(block.get("content")))
    if kind == "web_search_result":
        return (
            *text_parts(block.get("title"), block.get("url")),
            *_encrypted_media(as_string(block.get("encrypted_content"))),
        )
    if kind.endswith("code_execution_output"):
        return text_parts(block.get("file_id"))
    if kind.endswith("_tool_result_error"):
        return text_parts(block.get("error_code"), block.get("error_message"))
    if kind == "advisor_redacted_result":
        return _encrypted_media(as_string(block.get("encrypted_content")))
    if kind == "browser_state":
        tabs = [as_mapping(tab) for key in ("tabs", "state_changes") for tab in as_list(block.get(key))]
        return text_parts(*(tab.get(name) for tab in tabs for name in ("title", "url")))
    return (opaque_part(block),)


def _encrypted_media(data: str) -> Iterable[Media]:
    """Returns a page or an output that only the provider can decrypt. The model reads it as text."""
    return (Media("file", "text/plain", len(data) * 3 // 4),) if data else ()


def _image(source: dict[str, Any]) -> Media:
    if source.get("type") == "base64":
        return base64_media("image", as_string(source.get("media_type")), source.get("data"))
    return url_media("image", source.get("url"))


def _document(source: dict[str, Any]) -> Iterable[Inner]:
    kind = source.get("type")
    if kind == "text":
        return text_parts(source.get("data"))
    if kind == "content":
        return _read_content(source.get("content"))
    if kind == "base64":
        return (base64_media("file", as_string(source.get("media_type")), source.get("data")),)
    return (url_media("file", source.get("url")),)


# -- writing -----------------------------------------------------------------------------------------------------------


_THINKING = frozenset({"thinking", "redacted_thinking"})
_MEDIA = frozenset({"image", "document", "search_result"})
_CACHEABLE = frozenset(
    {
        *("image", "document", "search_result", "tool_use", "tool_result", "server_tool_use", "mcp_tool_use"),
        *("mcp_tool_result", "web_search_tool_result", "web_fetch_tool_result", "code_execution_tool_result"),
        *("bash_code_execution_tool_result", "text_editor_code_execution_tool_result", "tool_search_tool_result"),
        *("container_upload", "compaction"),
    }
)
_BREAKPOINT = b'{"type":"ephemeral"}'
_EXTENDABLE_CONTENT = frozenset({"text", "image", "document"})
"""The parts of a tool result that texts can stand beside."""
_RESULT_HEADING = b'{"type":"text","text":"[What follows is what the tool returned.]"}'


def edit_message(message: Message, changes: Mapping[int, str | None]) -> bytes | None:
    """Returns the message with parts changed; see WireProtocol.edit_message. Raises ValueError for a new text of
    thinking, and for any change of the provider's own tools or compaction blocks."""
    if not changes:
        return message.wire
    part_changes = PartChanges(message, changes)
    fields = fields_of(message.wire)
    content = fields.get("content", NULL)
    if is_list(content):
        fields["content"] = part_changes.edit_each(content, _read_block, _edit_block) or NULL
    else:
        change = part_changes.take(len(tuple(read_parts(decode_json(content)))))
        if change is not None and change.text is not None:
            fields["content"] = encode(change.text)
    part_changes.take(len(tuple(read_settings(decode_json(message.wire)))))
    part_changes.check_all_taken()
    return object_of(fields) if part_changes.has_content else None


def text_message(text: str) -> bytes:
    """Returns a user message with one text."""
    return encode({"role": "user", "content": [{"type": "text", "text": text}]})


def _edit_block(raw: bytes, change: ValueChange) -> bytes | None:
    """Replaces the text, the result or the input of a content block; media and documents become a text."""
    fields = fields_of(raw)
    kind = as_string(decode_json(fields.get("type", NULL)))
    if kind in _THINKING:
        change.require_removal("thinking")
    elif kind not in {"text", "tool_use", "tool_result"} and kind not in _MEDIA:
        raise ValueError(f"a block of the type {kind} cannot be changed")
    if change.text is None:
        return None
    if kind == "tool_result":
        return object_of({**fields, "content": encode(change.text)})
    if kind == "tool_use":
        return object_of({**fields, "input": arguments_object(change.text)})
    if kind in _MEDIA:
        fields = {"type": b'"text"'} | {name: value for name, value in fields.items() if name == "cache_control"}
    remove_fields(fields, "citations")
    return object_of({**fields, "text": encode(change.text)})


def join_messages(wires: Sequence[bytes], own_positions: Collection[int]) -> list[bytes]:
    """Merges the proxy's own blocks with the user messages beside them, so that roles alternate as before.

    A following message is merged too, since the messages between are gone. A block before tool results becomes a part
    of the first one: nothing may come between a call and its result, and a text behind results can make the model end
    its turn with an empty answer (Anthropic's "Handling stop reasons"). System messages stand behind the block; those
    in a row become one, as all servers take them.
    """
    has_instructions = any(b'"system"' in wire for wire in wires[1:])
    if has_instructions:
        wires, own_positions = move_instructions(wires, own_positions, _role)
    joined = join_blocks(
        wires,
        own_positions,
        _from_user,
        lambda wire: _from_user(wire) and (not _has_result(wire) or _find_extendable_result(wire) >= 0),
        _merge_messages,
    )
    return _merge_instructions(joined) if has_instructions else joined


def _merge_instructions(wires: Sequence[bytes]) -> list[bytes]:
    """Merges system messages in a row that have a role and content only."""
    out: list[bytes] = []
    for wire in wires:
        if len(out) > 1 and _is_plain_instruction(wire) and _is_plain_instruction(out[-1]):
            blocks = [*_content_blocks(fields_of(out[-1])), *_content_blocks(fields_of(wire))]
            out[-1] = object_of({"role": b'"system"', "content": list_of(blocks)})
        else:
            out.append(wire)
    return out


def _is_plain_instruction(wire: bytes) -> bool:
    return _role(wire) == "system" and fields_of(wire).keys() == {"role", "content"}


def _role(wire: bytes) -> str:
    """Returns the role of a message, as `move_instructions` asks for it."""
    if not is_object(wire):
        return ""
    fields = fields_of(wire)
    role = as_string(decode_json(fields.get("role", NULL)))
    blocks = _content_blocks(fields) if role != "user" else []
    if role == "system" and not blocks:
        # Without content it is a setting, and valid anywhere.
        return ""
    if role == "assistant" and blocks:
        is_paused = as_string(as_mapping(decode_json(blocks[-1])).get("type")).endswith("_tool_result")
        return "paused" if is_paused else role
    return role


def _merge_messages(wires: Sequence[bytes]) -> bytes:
    messages = [fields_of(wire) for wire in wires]
    *earlier, last = [_content_blocks(fields) for fields in messages]
    blocks = [block for each in earlier for block in each]
    if earlier and _has_result(wires[-1]):
        at = _find_extendable_result(wires[-1])
        last[at] = _extend_result(last[at], blocks)
        return object_of({**messages[-1], "content": list_of(last)})
    return object_of({**messages[-1], **messages[0], "content": list_of([*blocks, *last])})


def _find_extendable_result(wire: bytes) -> int:
    """Returns the index of the first tool result of a message, if texts can be put before its content; else -1."""
    for at, block in enumerate(_content_blocks(fields_of(wire))):
        fields = as_mapping(decode_json(block))
        if fields.get("type") != "tool_result":
            continue
        content = fields.get("content")
        is_plain = content is None or isinstance(content, str)
        is_extendable = isinstance(content, list) and all(
            as_mapping(part).get("type") in _EXTENDABLE_CONTENT for part in content
        )
        return at if is_plain or is_extendable else -1
    return -1


def _extend_result(block: bytes, texts: Sequence[bytes]) -> bytes:
    """Puts text blocks, and a line that says where they end, before the content of a tool result."""
    fields = fields_of(block)
    return object_of({**fields, "content": list_of([*texts, _RESULT_HEADING, *_content_blocks(fields)])})


def with_breakpoint(wire: bytes) -> bytes:
    """Sets a cache breakpoint on the last block that may carry one; the message is unchanged where it has one there, or
    has no such block."""
    fields = fields_of(wire)
    blocks = _content_blocks(fields)
    for index in range(len(blocks) - 1, -1, -1):
        block = as_mapping(decode_json(blocks[index]))
        kind = as_string(block.get("type"))
        if kind not in _CACHEABLE and not (kind == "text" and block.get("text")):
            continue
        if block.get("cache_control") is not None:
            return wire
        blocks[index] = object_of({**fields_of(blocks[index]), "cache_control": _BREAKPOINT})
        return object_of({**fields, "content": list_of(blocks)})
    return wire


def _content_blocks(fields: Mapping[str, bytes]) -> list[bytes]:
    """Returns the blocks of a message; a plain text as one block."""
    content = fields.get("content", NULL)
    if is_list(content):
        return items_of(content)
    if is_text(content) and content != b'""':
        return [object_of({"type": b'"text"', "text": content})]
    return []


def _from_user(wire: bytes) -> bool:
    """Whether a message is the user's, with content to which blocks can be added."""
    fields = fields_of(wire) if is_object(wire) else {}
    content = fields.get("content", NULL)
    return decode_json(fields.get("role", NULL)) == "user" and (is_list(content) or is_text(content))


def _has_result(wire: bytes) -> bool:
    content = decode_json(fields_of(wire)["content"])
    return type(content) is list and any(as_mapping(entry).get("type") == "tool_result" for entry in content)
