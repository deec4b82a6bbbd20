"""Refuses content that a translation would lose, or that others than the provider would run.

LiteLLM silently drops content that it cannot translate; the model then answers an incomplete question. With
`drop_params: true` in the model's `litellm_params`, the operator accepts that. The tables list the content that LiteLLM
translates, by its own code. Content that agents send to every provider and can do without is not refused: tools that a
provider runs itself, and the results of such tools in an assistant's message.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from accordion.model.errors import BadRequest
from accordion.providers.litellm.fitting import Body, TranslationTarget, is_custom, is_pdf, kind_of, openai_entry

_TRANSLATED_ITEMS = frozenset(
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
"""Items of Responses that are translated. An item without a type is a message."""
_AUDIO_AND_VIDEO = frozenset({"input_audio", "audio_url", "video_url"})
"""Parts of Chat Completions that Claude does not support."""
_TRANSLATED_BLOCKS = frozenset({"text", "image", "document", "search_result", "tool_result", "tool_reference"})
"""Blocks of a user's message in Messages."""
_MAX_STOPS = 4
"""The largest number of stop sequences in Chat Completions; LiteLLM drops the others."""


def check_supported(litellm: Any, body: Body, target: TranslationTarget, native: Any) -> None:
    """Raises BadRequest for content that this provider does not support.

    `native` is LiteLLM's description of the provider's own Responses API; None if it has none, or for other protocols.
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
    if (
        not target.drop
        and not target.own_protocol
        and (loss := next(_find_losses(litellm, body, target), None)) is not None
    ):
        name, content = loss
        raise BadRequest(
            f"{content} cannot be translated for this model's provider ({target.provider}). Leave it out, or set "
            "`drop_params: true` in the model's `litellm_params`.",
            code="unsupported_parameter",
            param=name,
        )


def _is_emulated(tool: Any, target: TranslationTarget, native: Any) -> bool:
    """Whether LiteLLM would run a tool itself, with the help of others."""
    kind = kind_of(tool)
    return (
        (isinstance(kind, str) and kind.startswith("advisor") and target.provider != "anthropic")
        or (kind == "mcp" and str(tool.get("server_url", "")).startswith("litellm_proxy"))
        or (kind == "file_search" and not (native is not None and native.supports_native_file_search()))
    )


def _find_losses(litellm: Any, body: Body, target: TranslationTarget) -> Iterator[tuple[str, str]]:
    """Yields the field and a description of content that would be lost."""
    stops = "stop_sequences" if target.dialect == "messages" else "stop"
    if isinstance(body.get(stops), list) and len(body[stops]) > _MAX_STOPS:
        yield stops, f"More than {_MAX_STOPS} `{stops}`"
    if target.dialect == "messages":
        is_openai_model = openai_entry(litellm, target) is not None
        for message in body["messages"]:
            if message.get("role") == "user":
                yield from (
                    ("messages", content) for content in _find_lost_blocks(message.get("content"), is_openai_model)
                )
    elif target.dialect == "responses":
        yield from (("input", content) for content in _find_lost_items(body["input"]))
    elif "claude" in target.model.lower():
        for message in body["messages"]:
            if kinds := _kinds(message.get("content")) & _AUDIO_AND_VIDEO:
                yield "messages", f"A part of type `{min(kinds)}`"
        if any(map(is_custom, body.get("tools") or ())):
            yield "tools", "A tool of type `custom`"


def _kinds(parts: Any) -> set[Any]:
    return {part["type"] for part in parts if isinstance(kind_of(part), str)} if isinstance(parts, list) else set()


def _find_lost_items(items: Any) -> Iterator[str]:
    for item in items if isinstance(items, list) else ():
        if (kind := item.get("type") or "message") not in _TRANSLATED_ITEMS:
            yield f"An item of type `{kind}`"
        if "input_audio" in _kinds(item.get("content")):
            yield "A part of type `input_audio`"
        if "input_file" in _kinds(item.get("output")):
            yield "A part of type `input_file` in a tool's output"


def _find_lost_blocks(blocks: Any, openais: bool) -> Iterator[str]:
    for block in blocks if isinstance(blocks, list) else ():
        kind, source = kind_of(block), kind_of(block.get("source")) if isinstance(block, dict) else None
        if isinstance(kind, str) and kind not in _TRANSLATED_BLOCKS:
            yield f"A block of type `{kind}`"
        elif kind in ("image", "document") and source == "file":
            yield f"The file id of `{kind}`"
        elif openais and is_pdf(block):
            yield "A PDF"
        elif kind == "tool_result":
            yield from _find_lost_blocks(block.get("content"), openais)
