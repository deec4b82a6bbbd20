"""The items of a Responses list: what each kind is, in parts.

Source: `openai/types/responses/response_input_item_param.py` of the openai SDK. Calls that the provider runs itself
(web search, code interpreter, MCP, …) stand in one item with what they gave; they are read as a call and its result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from accordion.core.conversation import UNHEARD, Opaque, Part, Reasoning, Role, Text, ToolCall, ToolResult
from accordion.dialects.keys import TEXT_TYPES
from accordion.dialects.shared import (
    Inner,
    arguments_text,
    audio_media,
    base64_media,
    entries,
    file_media,
    mapping,
    opaque,
    role_of,
    string,
    texts,
    url_media,
)

Item = dict[str, Any]


class Call(NamedTuple):
    """How an item calls a tool: the name it stands for (where it names none itself), and where the arguments are."""

    name: str
    arguments: str


CALLS = {
    "function_call": Call("", "arguments"),
    "custom_tool_call": Call("", "input"),
    "mcp_approval_request": Call("", "arguments"),
    "tool_search_call": Call("tool_search", "arguments"),
    "shell_call": Call("shell", "action"),
    "local_shell_call": Call("local_shell", "action"),
    "apply_patch_call": Call("apply_patch", "operation"),
    "computer_call": Call("computer", "action"),
    "program": Call("program", "code"),
}
"""Calls that another item answers."""

HOSTED = {
    "web_search_call": Call("web_search", "action"),
    "file_search_call": Call("file_search", "queries"),
    "code_interpreter_call": Call("code_interpreter", "code"),
    "image_generation_call": Call("image_generation", ""),
    "mcp_call": Call("", "arguments"),
}
"""Calls that the provider runs itself; each stands in one item with what it gave."""

_SEARCHES = frozenset({"tool_search_call", "tool_search_output"})
_OUTPUTS = frozenset(
    {
        *("function_call_output", "custom_tool_call_output", "shell_call_output", "local_shell_call_output"),
        *("apply_patch_call_output", "computer_call_output", "tool_search_output", "program_output"),
        "mcp_approval_response",
    }
)


def ran(entry: Item) -> bool:
    """Whether an item of a reply is a tool's that the provider ran within it; its model then read on."""
    kind = string(entry.get("type"))
    return kind in HOSTED or kind in _OUTPUTS or (kind in _SEARCHES and not entry.get("call_id"))


def item(entry: Item, size: int) -> tuple[Role, tuple[Part, ...]]:
    """Role and parts of one item; `size` is that of its JSON in bytes."""
    kind = string(entry.get("type")) or ("message" if "role" in entry else "item_reference")
    if kind == "message":
        return role_of(entry.get("role")), tuple(content(entry.get("content")))
    if kind == "reasoning":
        return "assistant", (_reasoning(entry),)
    if kind in _SEARCHES and not entry.get("call_id"):
        # A search that the provider ran itself: call and output do not say that they belong together.
        return "other", (Opaque(kind, size),)
    if kind in CALLS:
        return "assistant", (call(entry, CALLS[kind]),)
    if kind in _OUTPUTS:
        return "tool", (_result(entry, kind),)
    if kind in HOSTED:
        made = call(entry, HOSTED[kind])
        failed = entry.get("status") == "failed" or bool(entry.get("error"))
        return "assistant", (made, ToolResult(made.call_id, tuple(_gave(entry)), failed))
    if kind == "compaction":
        return "other", (Opaque(kind, len(string(entry.get("encrypted_content")))),)
    if kind == "item_reference" and (told := _referred(string(entry.get("id")))):
        return "assistant", (told,)
    # configuration_update, additional_tools, mcp_list_tools, compaction_trigger, other references, what is unknown
    return ("developer" if kind == "additional_tools" else "other"), (opaque(entry, kind, size),)


def call(entry: Item, how: Call) -> ToolCall:
    """The call that an item makes. Where several actions are given, they are its arguments."""
    given = entry.get(how.arguments)
    if given is None and how.arguments == "action":
        given = entry.get("actions")
    return ToolCall(_call_id(entry), string(entry.get("name")) or how.name, arguments_text(given))


def content(value: Any) -> Iterable[Inner]:
    """The parts of a message's content or of a call's output."""
    if type(value) is str:
        return texts(value)
    if type(value) is list:
        return [part for entry in value for part in _part(entry)]
    if type(value) is dict:
        return _part(value)
    return () if value is None else (opaque(value),)


def _call_id(entry: Item) -> str:
    return string(entry.get("call_id")) or string(entry.get("id"))


def _part(part: Any) -> Iterable[Inner]:
    if type(part) is str:
        return texts(part)
    kind = string(mapping(part).get("type"))
    if kind in TEXT_TYPES or kind == "summary_text":
        return texts(part.get("text"))
    reader = _PARTS.get(kind)
    return (reader(part),) if reader is not None else (opaque(part),)


def _image(part: Item) -> Inner:
    return url_media("image", part.get("image_url"), part.get("detail"))


def _file(part: Item) -> Inner:
    return file_media(part.get("file_data"), part.get("filename"), part.get("detail"))


def _audio(part: Item) -> Inner:
    return audio_media(part.get("input_audio"))


def _refusal(part: Item) -> Inner:
    return Text(string(part.get("refusal")))


def _thought(part: Item) -> Inner:
    return Reasoning(string(part.get("text")))


_PARTS: dict[str, Callable[[Item], Inner]] = {
    "input_image": _image,
    "computer_screenshot": _image,
    "input_file": _file,
    "input_audio": _audio,
    "refusal": _refusal,
    "reasoning_text": _thought,
}


def _referred(name: str) -> Reasoning | Text | None:
    """What an item of a reply is that is named only, as OpenAI's ids tell (`rs_…`, `msg_…`); None for all else, a call
    maybe. Clients that leave their history to the provider (the AI SDK does) name reasoning and texts, and send calls.
    """
    if name.startswith("rs_"):
        return Reasoning("")
    return Text(f"{UNHEARD}{name})") if name.startswith("msg_") else None


def _reasoning(entry: Item) -> Reasoning:
    """The raw reasoning where it is given, else the summary of it."""
    told = entries(entry.get("content")) or entries(entry.get("summary"))
    text = "\n".join(filter(None, (string(mapping(part).get("text")) for part in told)))
    return Reasoning(text, len(string(entry.get("encrypted_content"))))


def _result(entry: Item, kind: str) -> ToolResult:
    failed = entry.get("status") == "failed"
    if kind == "shell_call_output":
        parts: Iterable[Inner] = _shell(entry.get("output"))
    elif kind == "tool_search_output":
        parts = [opaque(tool, "tool") for tool in entries(entry.get("tools"))]
    elif kind == "program_output":
        parts = texts(entry.get("result"))
    elif kind == "mcp_approval_response":
        return ToolResult(string(entry.get("approval_request_id")), (opaque(entry),))
    else:
        parts = content(entry.get("output"))
    return ToolResult(_call_id(entry), tuple(parts), failed)


def _shell(output: Any) -> Iterable[Inner]:
    if type(output) is not list:
        return content(output)
    chunks = [mapping(chunk) for chunk in output]
    return [part for chunk in chunks for part in texts(chunk.get("stdout"), chunk.get("stderr"))]


def _gave(entry: Item) -> Iterable[Inner]:
    """What a call that the provider ran itself gave."""
    yield from content(entry.get("output"))
    if entry.get("error"):
        yield from texts(arguments_text(entry["error"]))
    for found in entries(entry.get("results")):
        yield from texts(mapping(found).get("filename"), mapping(found).get("text"))
    for output in entries(entry.get("outputs")):
        logs = mapping(output).get("logs")
        yield Text(logs) if type(logs) is str else url_media("image", mapping(output).get("url"))
    if entry.get("type") == "image_generation_call" and entry.get("result"):
        yield base64_media("image", "", entry["result"])
