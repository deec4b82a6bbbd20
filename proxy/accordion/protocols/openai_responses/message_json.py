"""The JSON of the items of a Responses list: reads an item into parts, edits one, creates one, prepares the list for
sending.

A call that the provider runs itself (web search, code interpreter, MCP, …) is one item with its output; it is read as a
call and its result. Each kind of output has its own form. An item that cannot hold a text (a screenshot, a list of
tools), or whose content the provider checks (actions, hosted calls), can only be removed.

Source: `openai/types/responses/response_input_item_param.py` of the openai SDK.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from accordion.model.conversation import (
    UNKNOWN_WORDS,
    Message,
    Opaque,
    Part,
    Reasoning,
    Role,
    Text,
    ToolCall,
    ToolResult,
)
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
    base64_media,
    encode,
    file_media,
    from_json,
    opaque_part,
    role_of,
    text_parts,
    url_media,
)
from accordion.protocols.json_writing import PartChanges, arguments_object, edit_part
from accordion.protocols.message_keys import TEXT_TYPES, decode_json

# -- reading -----------------------------------------------------------------------------------------------------------


Item = dict[str, Any]
TRIGGER = "compaction_trigger"
"""The type of an item that asks for a compaction."""


class CallForm(NamedTuple):
    """The form of a call item: the tool's name, if the item has none, and the field of the arguments."""

    name: str
    arguments: str


CALLS = {
    "function_call": CallForm("", "arguments"),
    "custom_tool_call": CallForm("", "input"),
    "mcp_approval_request": CallForm("", "arguments"),
    "tool_search_call": CallForm("tool_search", "arguments"),
    "shell_call": CallForm("shell", "action"),
    "local_shell_call": CallForm("local_shell", "action"),
    "apply_patch_call": CallForm("apply_patch", "operation"),
    "computer_call": CallForm("computer", "action"),
    "program": CallForm("program", "code"),
}
"""Calls whose result is another item."""

HOSTED_CALLS = {
    "web_search_call": CallForm("web_search", "action"),
    "file_search_call": CallForm("file_search", "queries"),
    "code_interpreter_call": CallForm("code_interpreter", "code"),
    "image_generation_call": CallForm("image_generation", ""),
    "mcp_call": CallForm("", "arguments"),
}
"""Calls that the provider runs itself; each is one item with its output."""

_SEARCHES = frozenset({"tool_search_call", "tool_search_output"})
_OUTPUTS = frozenset(
    {
        *("function_call_output", "custom_tool_call_output", "shell_call_output", "local_shell_call_output"),
        *("apply_patch_call_output", "computer_call_output", "tool_search_output", "program_output"),
        "mcp_approval_response",
    }
)


def is_hosted_call(entry: Item) -> bool:
    """Whether an item is a call or an output of a tool that the provider ran within the response."""
    kind = as_string(entry.get("type"))
    return kind in HOSTED_CALLS or kind in _OUTPUTS or (kind in _SEARCHES and not entry.get("call_id"))


def read_item(entry: Item, size: int) -> tuple[Role, tuple[Part, ...]]:
    """Returns the role and the parts of one item; `size` is that of its JSON in bytes."""
    kind = as_string(entry.get("type")) or ("message" if "role" in entry else "item_reference")
    if kind == "message":
        return role_of(entry.get("role")), tuple(read_content(entry.get("content")))
    if kind == "reasoning":
        return "assistant", (_reasoning(entry),)
    if kind in _SEARCHES and not entry.get("call_id"):
        # A search that the provider ran itself: nothing links its call and its output.
        return "other", (Opaque(kind, size),)
    if kind in CALLS:
        return "assistant", (read_call(entry, CALLS[kind]),)
    if kind in _OUTPUTS:
        return "tool", (_result(entry, kind),)
    if kind in HOSTED_CALLS:
        call = read_call(entry, HOSTED_CALLS[kind])
        failed = entry.get("status") == "failed" or bool(entry.get("error"))
        return "assistant", (call, ToolResult(call.call_id, tuple(_hosted_output(entry)), failed))
    if kind == "compaction":
        return "other", (Opaque(kind, len(as_string(entry.get("encrypted_content")))),)
    if kind == "item_reference" and (part := _read_reference(as_string(entry.get("id")))):
        return "assistant", (part,)
    # configuration_update, additional_tools, mcp_list_tools, compaction_trigger, other references, unknown items
    return ("developer" if kind == "additional_tools" else "other"), (opaque_part(entry, kind, size),)


def read_call(entry: Item, form: CallForm) -> ToolCall:
    """Returns the call that an item makes. Several actions together are its arguments."""
    arguments = entry.get(form.arguments)
    if arguments is None and form.arguments == "action":
        arguments = entry.get("actions")
    is_request = entry.get("type") == "mcp_approval_request"
    approval_id = as_string(entry.get("id" if is_request else "approval_request_id"))
    return ToolCall(_call_id(entry), as_string(entry.get("name")) or form.name, arguments_text(arguments), approval_id)


def read_content(value: Any) -> Iterable[Inner]:
    """Reads a message's content or a call's output."""
    if type(value) is str:
        return text_parts(value)
    if type(value) is list:
        return [part for entry in value for part in _part(entry)]
    if type(value) is dict:
        return _part(value)
    return () if value is None else (opaque_part(value),)


def _call_id(entry: Item) -> str:
    return as_string(entry.get("call_id")) or as_string(entry.get("id"))


def _part(part: Any) -> Iterable[Inner]:
    if type(part) is str:
        return text_parts(part)
    kind = as_string(as_mapping(part).get("type"))
    if kind in TEXT_TYPES or kind == "summary_text":
        return text_parts(part.get("text"))
    reader = _PARTS.get(kind)
    return (reader(part),) if reader is not None else (opaque_part(part),)


def _image(part: Item) -> Inner:
    return url_media("image", part.get("image_url"), part.get("detail"))


def _file(part: Item) -> Inner:
    return file_media(part.get("file_data"), part.get("filename"), part.get("detail"))


def _audio(part: Item) -> Inner:
    return audio_media(part.get("input_audio"))


def _refusal(part: Item) -> Inner:
    return Text(as_string(part.get("refusal")))


def _reasoning_text(part: Item) -> Inner:
    return Reasoning(as_string(part.get("text")))


_PARTS: dict[str, Callable[[Item], Inner]] = {
    "input_image": _image,
    "computer_screenshot": _image,
    "input_file": _file,
    "input_audio": _audio,
    "refusal": _refusal,
    "reasoning_text": _reasoning_text,
}


def _read_reference(name: str) -> Reasoning | Text | None:
    """Returns the part that an item reference stands for, by OpenAI's ids (`rs_…`, `msg_…`); None for any other.

    Clients that leave their history with the provider (the AI SDK does) refer to reasoning and texts, and send calls.
    """
    if name.startswith("rs_"):
        return Reasoning("")
    return Text(f"{UNKNOWN_WORDS}{name})") if name.startswith("msg_") else None


def _reasoning(entry: Item) -> Reasoning:
    """Reads the raw reasoning, or its summary without it."""
    entries = as_list(entry.get("content")) or as_list(entry.get("summary"))
    text = "\n".join(filter(None, (as_string(as_mapping(part).get("text")) for part in entries)))
    return Reasoning(text, len(as_string(entry.get("encrypted_content"))))


def _result(entry: Item, kind: str) -> ToolResult:
    failed = entry.get("status") == "failed"
    if kind == "shell_call_output":
        parts: Iterable[Inner] = _shell_output(entry.get("output"))
    elif kind == "tool_search_output":
        parts = [opaque_part(tool, "tool") for tool in as_list(entry.get("tools"))]
    elif kind == "program_output":
        parts = text_parts(entry.get("result"))
    elif kind == "mcp_approval_response":
        is_denied = entry.get("approve") is not True
        reason = as_string(entry.get("reason")) or ("denied" if is_denied else "approved")
        return ToolResult(as_string(entry.get("approval_request_id")), tuple(text_parts(reason)), is_denied)
    else:
        parts = read_content(entry.get("output"))
    return ToolResult(_call_id(entry), tuple(parts), failed)


def _shell_output(output: Any) -> Iterable[Inner]:
    if type(output) is not list:
        return read_content(output)
    chunks = [as_mapping(chunk) for chunk in output]
    return [part for chunk in chunks for part in text_parts(chunk.get("stdout"), chunk.get("stderr"))]


def _hosted_output(entry: Item) -> Iterable[Inner]:
    """Reads the output of a call that the provider ran itself."""
    yield from read_content(entry.get("output"))
    if entry.get("error"):
        yield from text_parts(arguments_text(entry["error"]))
    for result in map(as_mapping, as_list(entry.get("results"))):
        yield from text_parts(result.get("filename"), result.get("text"))
    for output in as_list(entry.get("outputs")):
        logs = as_mapping(output).get("logs")
        yield Text(logs) if type(logs) is str else url_media("image", as_mapping(output).get("url"))
    if entry.get("type") == "image_generation_call" and entry.get("result"):
        yield base64_media("image", "", entry["result"])


# -- writing -----------------------------------------------------------------------------------------------------------


_TEXT_OUTPUTS = frozenset(
    {"function_call_output", "custom_tool_call_output", "local_shell_call_output", "apply_patch_call_output"}
)
# Items that do not need their id, because they have their content.
_SELF_CONTAINED = frozenset({"message", "function_call", "custom_tool_call", "shell_call", "apply_patch_call"})
_MODEL_ITEMS = frozenset(
    {*CALLS, *HOSTED_CALLS, "reasoning", "item_reference", "mcp_list_tools", "compaction", "message"}
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


def is_self_contained(fields: Mapping[str, bytes]) -> bool:
    """Whether an item does not need its id."""
    return _kind(fields) in _SELF_CONTAINED


def is_trigger(entry: bytes) -> bool:
    """Whether an item asks for a compaction. It must be the last of its list."""
    return b"compaction_trigger" in entry and as_string(as_mapping(from_json(entry)).get("type")) == TRIGGER


def _kind(fields: Mapping[str, bytes]) -> str:
    return as_string(decode_json(fields.get("type", NULL))) or ("message" if "role" in fields else "item_reference")


def _set_text(fields: dict[str, bytes], kind: str, text: str) -> None:
    """Replaces the output or the arguments of an item by a text."""
    if kind in _TEXT_OUTPUTS:
        fields["output"] = encode(text)
    elif kind == "shell_call_output":
        fields["output"] = _write_shell_output(fields.get("output", NULL), text)
    elif kind == "program_output":
        fields["result"] = encode(text)
    elif kind == "mcp_approval_response":
        fields["reason"] = encode(text)
    elif kind == "function_call":
        arguments = arguments_object(text)
        as_object = is_object(fields.get("arguments", NULL))
        fields["arguments"] = arguments if as_object else encode(text)
    elif kind == "custom_tool_call":
        fields["input"] = encode(text)
    else:
        raise ValueError(f"an item of the type {kind} is left as it is or taken out")


def _write_shell_output(output: bytes, text: str) -> bytes:
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
        change = part_changes.take(len(tuple(read_content(decode_json(content)))))
        if change is not None and change.text is not None:
            fields["content"] = encode(change.text)
        return
    text_type = b'"output_text"' if decode_json(fields.get("role", NULL)) == "assistant" else b'"input_text"'
    entries = content if is_list(content) else list_of([content])
    written = part_changes.edit_each(
        entries, lambda part: read_content([part]), partial(edit_part, text_type=text_type)
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
        if b'"id"' not in wire or not is_object(wire):
            continue
        fields = fields_of(wire)
        if "id" in fields and is_self_contained(fields) and _is_made_by_model(fields):
            follows[index] = _follows_reasoning(out, index, follows)
            if not follows[index]:
                remove_fields(fields, "id")
                out[index] = object_of(fields)
    return out


def _is_made_by_model(fields: Mapping[str, bytes]) -> bool:
    """Whether the model made this item, or the provider within its response, not the user or a tool."""
    kind = _kind(fields)
    if kind == "tool_search_output":
        return decode_json(fields.get("call_id", NULL)) is None
    return kind in _MODEL_ITEMS and (kind != "message" or decode_json(fields.get("role", NULL)) == "assistant")


def _follows_reasoning(wires: Sequence[bytes], position: int, follows: Mapping[int, bool]) -> bool:
    """Whether reasoning comes before the item `position` in the same response. `follows` has the answers for earlier
    items."""
    for back in range(position - 1, -1, -1):
        if back in follows:
            return follows[back]
        fields = fields_of(wires[back]) if is_object(wires[back]) else {}
        if not _is_made_by_model(fields):
            return False
        if _kind(fields) in {"reasoning", "item_reference"}:
            return True
    return False
