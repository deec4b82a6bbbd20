"""Writes the items of a Responses list: edits one, creates one, prepares the list for sending.

Source: the type files of the openai SDK. Each kind of output has its own form. An item that cannot hold a text (a
screenshot, a list of tools), or whose content the provider checks (actions, hosted calls), can only be removed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from accordion.model.conversation import Message
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
from accordion.protocols.json_values import as_string, encode
from accordion.protocols.json_writing import PartChanges, arguments_object, edit_part
from accordion.protocols.message_keys import decode_json
from accordion.protocols.openai_responses import items

_OUTPUTS = frozenset(
    {"function_call_output", "custom_tool_call_output", "local_shell_call_output", "apply_patch_call_output"}
)
# Items that do not need their id, because they have their content.
_SELF_CONTAINED = frozenset({"message", "function_call", "custom_tool_call", "shell_call", "apply_patch_call"})
_MODEL_ITEMS = frozenset(
    {*items.CALLS, *items.HOSTED, "reasoning", "item_reference", "mcp_list_tools", "compaction", "message"}
)


def edit_message(message: Message, changes: Mapping[int, str | None]) -> bytes | None:
    """Returns the item with parts changed; see WireProtocol.edit_message. Reasoning, and items that hold a call with
    its result, can only be removed as a whole."""
    if not changes:
        return message.wire
    part_changes = PartChanges(message, changes)
    if is_text(message.wire):
        change = part_changes.take(len(message.parts))
        return encode(change.text) if change is not None and change.text is not None else None
    fields = fields_of(message.wire)
    kind = _kind(fields)
    if kind == "message":
        _edit_content(fields, part_changes)
    else:
        change = part_changes.take(len(message.parts))
        if change is None or change.text is None:
            return None
        _set_text(fields, kind, change.text)
    part_changes.check_all_taken()
    return object_of(fields) if part_changes.has_content else None


def text_message(text: str) -> bytes:
    """Returns a user message with one text."""
    return encode({"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]})


def _kind(fields: Mapping[str, bytes]) -> str:
    return as_string(decode_json(fields.get("type", NULL))) or ("message" if "role" in fields else "item_reference")


def _set_text(fields: dict[str, bytes], kind: str, text: str) -> None:
    """Replaces the output or the arguments of an item by a text."""
    if kind in _OUTPUTS:
        fields["output"] = encode(text)
    elif kind == "shell_call_output":
        fields["output"] = _shell_output(fields.get("output", NULL), text)
    elif kind == "program_output":
        fields["result"] = encode(text)
    elif kind == "function_call":
        arguments = arguments_object(text)
        as_object = is_object(fields.get("arguments", NULL))
        fields["arguments"] = arguments if as_object else encode(text)
    elif kind == "custom_tool_call":
        fields["input"] = encode(text)
    else:
        raise ValueError(f"an item of the type {kind} is left as it is or taken out")


def _shell_output(output: bytes, text: str) -> bytes:
    """Returns a shell's output as one chunk, with the outcome of the last one."""
    if not is_list(output):
        return encode(text)
    chunks = items_of(output)
    if not chunks:
        raise ValueError("a shell output without chunks cannot hold a text")
    return list_of([object_of({**fields_of(chunks[-1]), "stdout": encode(text), "stderr": b'""'})])


def _edit_content(fields: dict[str, bytes], part_changes: PartChanges) -> None:
    content = fields.get("content", NULL)
    if is_text(content) or content == NULL:
        change = part_changes.take(len(tuple(items.read_content(decode_json(content)))))
        if change is not None and change.text is not None:
            fields["content"] = encode(change.text)
        return
    text_type = b'"output_text"' if decode_json(fields.get("role", NULL)) == "assistant" else b'"input_text"'
    entries = content if is_list(content) else list_of([content])
    written = part_changes.edit_each(
        entries, lambda part: items.read_content([part]), partial(edit_part, text_type=text_type)
    )
    fields["content"] = written or b"[]"


def join_messages(wires: Sequence[bytes]) -> list[bytes]:
    """Returns the items as they are sent. A plain string becomes a message.

    An item of the model loses its id if its reasoning was removed: by the id the provider knows the reasoning, and
    rejects the item without it ("Item 'fc_…' of type 'function_call' was provided without its required 'reasoning'
    item"). This depends only on the earlier items of the same response, so an item is always sent the same way. Every
    other item keeps its bytes.
    """
    out = [text_message(decode_json(wire)) if is_text(wire) else wire for wire in wires]
    follows: dict[int, bool] = {}
    for index, wire in enumerate(out):
        if b'"id"' not in wire:
            continue
        fields = fields_of(wire)
        if "id" in fields and _kind(fields) in _SELF_CONTAINED and _is_made_by_model(fields):
            follows[index] = _follows_reasoning(out, index, follows)
            if not follows[index]:
                remove_fields(fields, "id")
                out[index] = object_of(fields)
    return out


def _is_made_by_model(fields: Mapping[str, bytes]) -> bool:
    """Whether the model made this item, not the user or a tool."""
    kind = _kind(fields)
    return kind in _MODEL_ITEMS and (kind != "message" or decode_json(fields.get("role", NULL)) == "assistant")


def _follows_reasoning(wires: Sequence[bytes], position: int, follows: Mapping[int, bool]) -> bool:
    """Whether reasoning comes before the item `position` in the same response. `follows` has the answers for earlier
    items."""
    for back in range(position - 1, -1, -1):
        if back in follows:
            return follows[back]
        fields = fields_of(wires[back])
        if not _is_made_by_model(fields):
            return False
        if _kind(fields) in {"reasoning", "item_reference"}:
            return True
    return False
