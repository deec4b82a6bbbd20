"""What would be lost in translation, or run by others than the provider, is refused by name.

LiteLLM leaves out what it has no word for and goes on; the model then answers a question that it has not seen.
`drop_params: true` in the model's `litellm_params` asks for that. The tables are of LiteLLM's own branches: what stands
in them arrives. Not refused is what agents send along whoever the provider is, and can do without: tools that a
provider runs itself, and what such tools said in an assistant's message.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from accordion.core.errors import BadRequest
from accordion.models.translate_fitting import Body, Target, is_custom, is_pdf, kind_of, openai_entry

_ITEMS = frozenset(
    {
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
        "computer_call_output",
        "web_search_call",
        "tool_result",
    }
)
"""Items of Responses that are translated. One without a type is a message."""
_HEARD_AND_SEEN = frozenset({"input_audio", "audio_url", "video_url"})
"""Parts of Chat Completions that Claude has no form for."""
_BLOCKS = frozenset({"text", "image", "document", "search_result", "tool_result", "tool_reference"})
"""Blocks of a user's message in Messages."""
_MOST_STOPS = 4
"""How many stop sequences Chat Completions has; LiteLLM cuts off the others."""


def refuse(litellm: Any, body: Body, target: Target, native: Any) -> None:
    """Raises BadRequest for what this provider cannot be asked. `native` is LiteLLM's description of the provider's
    own Responses API, None where it has none or the dialect is another.
    """
    if target.dialect == "responses" and native is None:
        for name in ("previous_response_id", "conversation"):
            if body.get(name) is not None:
                raise BadRequest(
                    f"`{name}` names state that this model's provider ({target.provider}) does not keep. "
                    "Send the whole conversation as `input`.",
                    code="unsupported_parameter",
                    param=name,
                )
    tools = body.get("tools")
    for tool in tools if isinstance(tools, list) else ():
        if _is_emulated(tool, target, native):
            raise BadRequest(
                f"A tool of type `{kind_of(tool)}` is not offered by this model's provider ({target.provider}).",
                code="unsupported_parameter",
                param="tools",
            )
    if not target.drop and not target.own_protocol and (lost := next(_lost(litellm, body, target), None)) is not None:
        name, what = lost
        raise BadRequest(
            f"{what} cannot be translated for this model's provider ({target.provider}). Leave it out, or set "
            "`drop_params: true` in the model's `litellm_params`.",
            code="unsupported_parameter",
            param=name,
        )


def _is_emulated(tool: Any, target: Target, native: Any) -> bool:
    """Whether LiteLLM would run a tool by asking others."""
    kind = kind_of(tool)
    return (
        (isinstance(kind, str) and kind.startswith("advisor") and target.provider != "anthropic")
        or (kind == "mcp" and str(tool.get("server_url", "")).startswith("litellm_proxy"))
        or (kind == "file_search" and not (native is not None and native.supports_native_file_search()))
    )


def _lost(litellm: Any, body: Body, target: Target) -> Iterator[tuple[str, str]]:
    """The field that something is in, and what it is."""
    stops = "stop_sequences" if target.dialect == "messages" else "stop"
    if isinstance(body.get(stops), list) and len(body[stops]) > _MOST_STOPS:
        yield stops, f"More than {_MOST_STOPS} `{stops}`"
    if target.dialect == "messages":
        openais = openai_entry(litellm, target) is not None
        for message in body["messages"]:
            if message.get("role") == "user":
                yield from (("messages", what) for what in _lost_blocks(message.get("content"), openais))
    elif target.dialect == "responses":
        yield from (("input", what) for what in _lost_items(body["input"]))
    elif "claude" in target.model.lower():
        for message in body["messages"]:
            if lost := _kinds(message.get("content")) & _HEARD_AND_SEEN:
                yield "messages", f"A part of type `{min(lost)}`"
        if any(map(is_custom, body.get("tools") or ())):
            yield "tools", "A tool of type `custom`"


def _kinds(parts: Any) -> set[Any]:
    return {part["type"] for part in parts if isinstance(kind_of(part), str)} if isinstance(parts, list) else set()


def _lost_items(items: Any) -> Iterator[str]:
    for item in items if isinstance(items, list) else ():
        if (kind := item.get("type") or "message") not in _ITEMS:
            yield f"An item of type `{kind}`"
        if "input_audio" in _kinds(item.get("content")):
            yield "A part of type `input_audio`"
        if "input_file" in _kinds(item.get("output")):
            yield "A part of type `input_file` in a tool's output"


def _lost_blocks(blocks: Any, openais: bool) -> Iterator[str]:
    for block in blocks if isinstance(blocks, list) else ():
        kind, source = kind_of(block), kind_of(block.get("source")) if isinstance(block, dict) else None
        if isinstance(kind, str) and kind not in _BLOCKS:
            yield f"A block of type `{kind}`"
        elif kind in ("image", "document") and source == "file":
            yield f"The file id of `{kind}`"
        elif openais and is_pdf(block):
            yield "A PDF"
        elif kind == "tool_result":
            yield from _lost_blocks(block.get("content"), openais)
