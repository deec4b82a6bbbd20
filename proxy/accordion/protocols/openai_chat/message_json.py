"""The JSON of Chat Completions messages: reads it into parts, and writes edited, new and joined messages. Source: as
for protocol.py.

The writer walks a message in the order in which it is read: reasoning, content, refusal, audio, calls.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from accordion.model.conversation import Media, Message, Part, Reasoning, Text, ToolCall
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
    audio_media,
    encode,
    file_media,
    opaque_part,
    role_of,
    text_parts,
    url_media,
)
from accordion.protocols.json_writing import PartChanges, ValueChange, arguments_object, edit_part, join_blocks
from accordion.protocols.message_keys import TEXT_TYPES, decode_json

# -- reading -----------------------------------------------------------------------------------------------------------


def read_parts(content: Any) -> Iterable[Inner]:
    """Reads a message's content: a string, a list of parts, or nothing."""
    if type(content) is str:
        return (Text(content),) if content else ()
    if type(content) is list:
        return [part for entry in content for part in _read_part(entry)]
    return () if content is None else (opaque_part(content),)


def _read_part(entry: Any) -> Iterable[Inner]:
    """Reads one entry of a content list."""
    if type(entry) is str:
        return text_parts(entry)
    kind = as_string(as_mapping(entry).get("type"))
    if kind in TEXT_TYPES:
        return text_parts(entry.get("text"))
    reader = _PARTS.get(kind)
    return (reader(entry),) if reader is not None else (opaque_part(entry),)


def _image(part: dict[str, Any]) -> Inner:
    image = part.get("image_url")
    url, detail = (image.get("url"), image.get("detail")) if type(image) is dict else (image, part.get("detail"))
    return url_media("image", url, detail)


def _video(part: dict[str, Any]) -> Inner:
    return url_media("video", as_mapping(part.get("video_url")).get("url"))


def _audio_url(part: dict[str, Any]) -> Inner:
    return url_media("audio", as_mapping(part.get("audio_url")).get("url"))


def _audio(part: dict[str, Any]) -> Inner:
    return audio_media(part.get("input_audio"))


def _file(part: dict[str, Any]) -> Inner:
    file = as_mapping(part.get("file"))
    return file_media(file.get("file_data"), file.get("filename"))


def _refusal(part: dict[str, Any]) -> Inner:
    return Text(as_string(part.get("refusal")))


def _thinking(part: dict[str, Any]) -> Inner:
    return Reasoning(as_string(part.get("thinking")), len(as_string(part.get("signature"))))


_PARTS: dict[str, Callable[[dict[str, Any]], Inner]] = {
    "image_url": _image,
    "video_url": _video,
    "audio_url": _audio_url,
    "input_audio": _audio,
    "file": _file,
    "refusal": _refusal,
    "thinking": _thinking,
}


BLOCKS = ("reasoning_details", "thinking_blocks")
"""Fields with lists of reasoning blocks, OpenRouter's and LiteLLM's. A stream sends them in pieces, by `index`."""


def read_reasoning(entry: dict[str, Any]) -> Iterable[Part]:
    """Reads the reasoning that servers add to an assistant message: a text under one of two names, and the same in
    blocks, some of them encrypted or signed."""
    text = as_string(entry.get("reasoning_content")) or as_string(entry.get("reasoning"))
    blocks = [as_mapping(block) for name in BLOCKS for block in as_list(entry.get(name))]
    if not text:
        texts = (as_string(block.get(name)) for block in blocks for name in ("text", "summary", "thinking"))
        text = "\n".join(filter(None, texts))
    encrypted_size = sum(len(as_string(block.get(name))) for block in blocks for name in ("data", "signature"))
    return (Reasoning(text, encrypted_size),) if text or encrypted_size else ()


def read_refusal_and_audio(entry: dict[str, Any]) -> Iterable[Part]:
    """Reads a refusal, and the audio of an earlier response, which the provider stores under its id."""
    yield from text_parts(entry.get("refusal"))
    if entry.get("audio"):
        yield Media("audio")


def read_calls(entry: dict[str, Any]) -> Iterable[Part]:
    """Reads an assistant message's calls: one part for each entry of `tool_calls`, then the legacy call."""
    for call in as_list(entry.get("tool_calls")):
        custom = as_mapping(call).get("custom")
        function = custom if type(custom) is dict else as_mapping(as_mapping(call).get("function"))
        if not function:
            yield opaque_part(call, "tool_call")
            continue
        arguments = function.get("input") if custom else function.get("arguments")
        yield ToolCall(as_string(call.get("id")), as_string(function.get("name")), arguments_text(arguments))
    legacy = entry.get("function_call")
    if type(legacy) is dict:
        name = as_string(legacy.get("name"))
        yield ToolCall(name, name, arguments_text(legacy.get("arguments")))


def read_added_tools(entry: dict[str, Any]) -> Iterable[Part]:
    """Reads the tools that a system message adds (Moonshot's models)."""
    return (opaque_part(entry["tools"], "tools"),) if entry.get("tools") else ()


# -- writing -----------------------------------------------------------------------------------------------------------


# The same reasoning under the names of several servers: it is removed as a whole.
_REASONING_FIELDS = ("reasoning_content", "reasoning", *BLOCKS)
_RESULT_HEADING = b'"[What follows is what the tool returned.]"'


def edit_message(message: Message, changes: Mapping[int, str | None]) -> bytes | None:
    """Returns the message with parts changed; see WireProtocol.edit_message. Reasoning can only be removed."""
    if not changes:
        return message.wire
    part_changes = PartChanges(message, changes)
    entry = decode_json(message.wire)
    if type(entry) is not dict:
        raise ValueError("a message that is not understood cannot be changed")
    fields = fields_of(message.wire)
    if role_of(entry.get("role")) == "tool":
        _edit_result(fields, part_changes)
    else:
        has_more = not (len(entry) == 2 and type(entry.get("content")) is str)
        if has_more:
            _edit_reasoning(entry, fields, part_changes)
        _edit_content(fields, part_changes)
        if has_more:
            _edit_refusal_and_audio(entry, fields, part_changes)
            _edit_calls(entry, fields, part_changes)
            part_changes.take(len(tuple(read_added_tools(entry))))
    part_changes.check_all_taken()
    return object_of(fields) if part_changes.has_content else None


def join_messages(wires: Sequence[bytes], own_positions: Collection[int]) -> list[bytes]:
    """Merges the proxy's own blocks with the user messages beside them.

    OpenAI accepts two user messages in a row; the chat templates of many self-hosted models do not. A block before a
    tool result becomes a part of the result: nothing may come between a call and its result, and those templates, like
    some providers, reject a user message directly after results. Messages with more fields than role and content are
    not merged.
    """
    return join_blocks(
        wires,
        own_positions,
        _is_plain_user_message,
        lambda wire: _is_plain_user_message(wire) or _is_text_result(wire),
        _merge_messages,
        _is_plain_user_message,
    )


def _is_plain_user_message(wire: bytes) -> bool:
    """Whether a message is the user's and has only a role and content."""
    fields = fields_of(wire) if is_object(wire) else {}
    if fields.keys() != {"role", "content"} or decode_json(fields["role"]) != "user":
        return False
    return is_text(fields["content"]) or is_list(fields["content"])


def _is_text_result(wire: bytes) -> bool:
    """Whether a message is a tool result with text."""
    fields = fields_of(wire) if is_object(wire) else {}
    content = fields.get("content", NULL)
    return decode_json(fields.get("role", NULL)) == "tool" and (is_text(content) or is_list(content))


def _merge_messages(wires: Sequence[bytes]) -> bytes:
    last_fields, head = fields_of(wires[-1]), {"role": b'"user"'}
    contents = [fields_of(wire)["content"] for wire in wires]
    if decode_json(last_fields["role"]) == "tool":
        head = last_fields
        contents.insert(-1, _RESULT_HEADING)
    if all(map(is_text, contents)):
        content = encode("\n\n".join(decode_json(text) for text in contents))
    else:
        content = list_of([part for each in contents for part in _as_parts(each)])
    return object_of({**head, "content": content})


def _as_parts(content: bytes) -> list[bytes]:
    return items_of(content) if is_list(content) else [object_of({"type": b'"text"', "text": content})]


def text_message(text: str) -> bytes:
    """Returns a user message with one text."""
    return encode({"role": "user", "content": text})


def _edit_result(fields: dict[str, bytes], part_changes: PartChanges) -> None:
    change = part_changes.take(1)
    if change is not None and change.text is not None:
        fields["content"] = encode(change.text)


def _edit_reasoning(entry: dict[str, object], fields: dict[str, bytes], part_changes: PartChanges) -> None:
    change = part_changes.take(len(tuple(read_reasoning(entry))))
    if change is not None:
        change.require_removal("reasoning")
        remove_fields(fields, *_REASONING_FIELDS)


def _edit_content(fields: dict[str, bytes], part_changes: PartChanges) -> None:
    content = fields.get("content", NULL)
    if not is_list(content):
        change = part_changes.take(len(tuple(read_parts(decode_json(content)))))
        if change is not None:
            fields["content"] = NULL if change.text is None else encode(change.text)
        return
    fields["content"] = part_changes.edit_each(content, _read_part, partial(edit_part, text_type=b'"text"')) or NULL


def _text(text: str) -> dict[str, bytes]:
    return {"type": b'"text"', "text": encode(text)}


def _edit_refusal_and_audio(entry: dict[str, object], fields: dict[str, bytes], part_changes: PartChanges) -> None:
    refusal = as_string(entry.get("refusal"))
    change = part_changes.take(1 if refusal else 0)
    if change is not None:
        remove_fields(fields, "refusal")
        if change.text is not None:
            fields["refusal"] = encode(change.text)
    change = part_changes.take(1 if entry.get("audio") else 0)
    if change is not None:
        remove_fields(fields, "audio")
        if change.text is not None:
            _append_text(fields, change.text)


def _append_text(fields: dict[str, bytes], text: str) -> None:
    """Adds a text after the message's content."""
    content = fields.get("content", NULL)
    if is_list(content) or (is_text(content) and content != b'""'):
        fields["content"] = list_of([*_as_parts(content), object_of(_text(text))])
    else:
        fields["content"] = encode(text)


def _edit_calls(entry: dict[str, object], fields: dict[str, bytes], part_changes: PartChanges) -> None:
    """Edits `tool_calls`, one part for each entry, then the legacy call. The field is removed with its last call."""
    if as_list(entry.get("tool_calls")):
        calls = part_changes.edit_each(
            fields["tool_calls"], lambda call: read_calls({"tool_calls": [call]}), _edit_call
        )
        if calls is None:
            remove_fields(fields, "tool_calls")
        else:
            fields["tool_calls"] = calls
    if type(entry.get("function_call")) is dict:
        change = part_changes.take(1)
        if change is not None and change.text is None:
            remove_fields(fields, "function_call")
        elif change is not None and change.text is not None:
            fields["function_call"] = _replace_arguments(fields["function_call"], change.text)
    if "content" not in fields and not any(name in fields for name in ("tool_calls", "function_call")):
        fields["content"] = NULL


def _edit_call(raw: bytes, change: ValueChange) -> bytes | None:
    if change.text is None:
        return None
    fields = fields_of(raw)
    if as_mapping(decode_json(fields.get("custom", NULL))):
        custom = fields_of(fields["custom"])
        return object_of({**fields, "custom": object_of({**custom, "input": encode(change.text)})})
    return object_of({**fields, "function": _replace_arguments(fields["function"], change.text)})


def _replace_arguments(raw: bytes, text: str) -> bytes:
    """Replaces a function's arguments; they stay a text or an object, as they were."""
    fields = fields_of(raw)
    arguments = arguments_object(text)
    as_object = is_object(fields.get("arguments", NULL))
    return object_of({**fields, "arguments": arguments if as_object else encode(text)})
