"""Reads the items of a Responses list into parts.

Source: `openai/types/responses/response_input_item_param.py` of the openai SDK. A call that the provider runs
itself (web search, code interpreter, MCP, …) is one item with its output; it is read as a call and its result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from accordion.model.conversation import UNKNOWN_WORDS, Opaque, Part, Reasoning, Role, Text, ToolCall, ToolResult
from accordion.protocols.json_values import (
    Inner,
    arguments_text,
    as_list,
    as_mapping,
    as_string,
    audio_media,
    base64_media,
    file_media,
    opaque_part,
    role_of,
    text_parts,
    url_media,
)
from accordion.protocols.message_keys import TEXT_TYPES

Item = dict[str, Any]


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

HOSTED = {
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
    return kind in HOSTED or kind in _OUTPUTS or (kind in _SEARCHES and not entry.get("call_id"))


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
    if kind in HOSTED:
        call = read_call(entry, HOSTED[kind])
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
    return ToolCall(_call_id(entry), as_string(entry.get("name")) or form.name, arguments_text(arguments))


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
        return ToolResult(as_string(entry.get("approval_request_id")), (opaque_part(entry),))
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
