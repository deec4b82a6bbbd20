"""The content blocks of Anthropic's Messages: what each kind says, in parts.

Source: as for messages.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from accordion.core.conversation import Media, Opaque, Part, Reasoning, ToolCall, ToolResult
from accordion.dialects.shared import (
    Inner,
    arguments_text,
    base64_media,
    entries,
    mapping,
    opaque,
    string,
    texts,
    url_media,
)

HOSTED = frozenset({"server_tool_use", "mcp_tool_use"})
"""Blocks that call a tool which the provider runs."""

CALLS = HOSTED | {"tool_use"}
"""Those, and what calls a tool of the user's."""


def parts(content: Any) -> Iterable[Part]:
    """The parts of a message's content or of the system prompt: a string, or blocks."""
    if type(content) is str:
        return texts(content)
    if type(content) is list:
        return [part for entry in content for part in block(entry)]
    return () if content is None else (opaque(content),)


def block(entry: Any) -> Iterable[Part]:
    """What one content block of a message says."""
    kind = string(mapping(entry).get("type"))
    if kind == "text":
        return texts(entry.get("text"))
    if kind in CALLS:
        name, given = string(entry.get("name")), arguments_text(entry.get("input"))
        return (ToolCall(string(entry.get("id")), name, given),)
    if kind.endswith("tool_result"):
        return (_result(entry),)
    return _inner(entry, kind)


def _result(block: dict[str, Any]) -> Part:
    """`tool_result` of the user's tools, `*_tool_result` of the provider's."""
    content = block.get("content")
    failed = block.get("is_error") is True or string(mapping(content).get("type")).endswith("_error")
    return ToolResult(string(block.get("tool_use_id")), tuple(_contained(content)), failed)


def _contained(content: Any) -> Iterable[Inner]:
    """What stands inside a result, a document or a search result."""
    if type(content) is str:
        return texts(content)
    if type(content) is dict:
        return _inner(content, string(content.get("type")))
    if type(content) is list:
        return [part for block in content for part in _inner(block, string(mapping(block).get("type")))]
    return () if content is None else (opaque(content),)


def _inner(block: Any, kind: str) -> Iterable[Inner]:
    if kind in {"text", "advisor_result"}:
        return texts(block.get("text"))
    if kind == "thinking":
        return (Reasoning(string(block.get("thinking")), len(string(block.get("signature")))),)
    if kind == "redacted_thinking":
        return (Reasoning("", len(string(block.get("data")))),)
    if kind == "image":
        return (_image(mapping(block.get("source"))),)
    if kind == "document":
        return (*texts(block.get("title"), block.get("context")), *_document(mapping(block.get("source"))))
    if kind == "search_result":
        return (*texts(block.get("title"), block.get("source")), *_contained(block.get("content")))
    if kind == "fallback":
        # It marks where another model went on, and is not shown to any.
        return ()
    if kind == "compaction":
        # A summary that the provider wrote and signed. The model reads it once, whether it is sealed or not.
        held = string(block.get("content")) or string(block.get("encrypted_content"))
        return (Opaque("compaction", len(held.encode())),)
    return _gave(block, kind)


def _gave(block: Any, kind: str) -> Iterable[Inner]:
    """What a tool of the provider's gave, and what it is given."""
    if kind.endswith(("code_execution_result", "code_execution_view_result", "code_execution_str_replace_result")):
        lines = "\n".join(map(string, entries(block.get("lines"))))
        sealed = _sealed(string(block.get("encrypted_stdout")))
        return (*texts(block.get("stdout"), block.get("stderr"), lines), *sealed, *_contained(block.get("content")))
    if kind.endswith("code_execution_create_result"):
        return ()
    if kind == "web_fetch_result":
        return (*texts(block.get("url")), *_contained(block.get("content")))
    if kind == "web_search_result":
        return (*texts(block.get("title"), block.get("url")), *_sealed(string(block.get("encrypted_content"))))
    if kind.endswith("code_execution_output"):
        return texts(block.get("file_id"))
    if kind.endswith("_tool_result_error"):
        return texts(block.get("error_code"), block.get("error_message"))
    if kind == "advisor_redacted_result":
        return _sealed(string(block.get("encrypted_content")))
    if kind == "browser_state":
        tabs = [mapping(tab) for key in ("tabs", "state_changes") for tab in entries(block.get(key))]
        return texts(*(tab.get(name) for tab in tabs for name in ("title", "url")))
    return (opaque(block),)


def _sealed(held: str) -> Iterable[Media]:
    """A page or an output that only the provider can open. It is text to the model."""
    return (Media("file", "text/plain", len(held) * 3 // 4),) if held else ()


def _image(source: dict[str, Any]) -> Media:
    if source.get("type") == "base64":
        return base64_media("image", string(source.get("media_type")), source.get("data"))
    return url_media("image", source.get("url"))


def _document(source: dict[str, Any]) -> Iterable[Inner]:
    kind = source.get("type")
    if kind == "text":
        return texts(source.get("data"))
    if kind == "content":
        return _contained(source.get("content"))
    if kind == "base64":
        return (base64_media("file", string(source.get("media_type")), source.get("data")),)
    return (url_media("file", source.get("url")),)
