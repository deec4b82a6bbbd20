"""Reads the content blocks of Anthropic messages into parts. Source: as for protocol.py."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from accordion.model.conversation import Media, Opaque, Part, Reasoning, ToolCall, ToolResult
from accordion.protocols.json_values import (
    Inner,
    arguments_text,
    as_list,
    as_mapping,
    as_string,
    base64_media,
    opaque_part,
    text_parts,
    url_media,
)

HOSTED = frozenset({"server_tool_use", "mcp_tool_use"})
"""Types of blocks that call a tool of the provider."""

CALLS = HOSTED | {"tool_use"}
"""Types of blocks that call any tool."""


def read_parts(content: Any) -> Iterable[Part]:
    """Reads a message's content or the system prompt: a string, or blocks."""
    if type(content) is str:
        return text_parts(content)
    if type(content) is list:
        return [part for entry in content for part in read_block(entry)]
    return () if content is None else (opaque_part(content),)


def read_block(entry: Any) -> Iterable[Part]:
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
