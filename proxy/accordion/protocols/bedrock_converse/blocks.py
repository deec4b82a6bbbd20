"""Reads the content blocks of Converse messages into parts. Source: as for protocol.py.

A block is an object with one field, whose name is the block's type. Fields beside it are kept and not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from accordion.model.conversation import Media, MediaKind, Part, Reasoning, ToolCall, ToolResult
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
)
from accordion.protocols.message_keys import CACHE_POINT

_DOCUMENT_TYPES = {"pdf": "application/pdf", "html": "text/html", "csv": "text/csv", "md": "text/markdown"}


def read_parts(content: Any) -> Iterable[Part]:
    """Reads a message's content, or the system prompt: a list of blocks."""
    if type(content) is list:
        return [part for entry in content for part in read_block(entry)]
    return () if content is None else (opaque_part(content),)


def block_type(fields: dict[str, Any]) -> str:
    """Returns the type of a block; empty where it has none."""
    return next((name for name, value in fields.items() if value is not None), "")


def read_block(entry: Any) -> Iterable[Part]:
    """Reads one block of a message."""
    fields = as_mapping(entry)
    kind = block_type(fields)
    value = as_mapping(fields.get(kind))
    if kind == "toolUse":
        arguments = arguments_text(value.get("input")) or "{}"
        return (ToolCall(as_string(value.get("toolUseId")), as_string(value.get("name")), arguments),)
    if kind == "toolResult":
        parts = tuple(part for block in as_list(value.get("content")) for part in _read_inner(block))
        return (ToolResult(as_string(value.get("toolUseId")), parts, value.get("status") == "error"),)
    return () if kind == CACHE_POINT else _read_inner(entry)


def _read_inner(entry: Any) -> Iterable[Inner]:
    """Reads a block that may also be in a result."""
    fields = as_mapping(entry)
    kind = block_type(fields)
    if kind == "text":
        return text_parts(fields["text"])
    if kind == "json":
        return text_parts(encode(fields["json"]).decode())
    reader, value = _READERS.get(kind), fields.get(kind)
    if reader is None or type(value) is not dict:
        return (opaque_part(entry, kind),)
    return reader(value)


def _read_reasoning(block: dict[str, Any]) -> Iterable[Inner]:
    text = as_mapping(block.get("reasoningText"))
    sealed = as_string(text.get("signature")) + as_string(block.get("redactedContent"))
    return (Reasoning(as_string(text.get("text")), len(sealed)),)


def _read_media(kind: MediaKind) -> Callable[[dict[str, Any]], Iterable[Inner]]:
    def read(block: dict[str, Any]) -> Iterable[Inner]:
        return (_media(kind, f"{kind}/{as_string(block.get('format'))}", as_mapping(block.get("source"))),)

    return read


def _media(kind: MediaKind, media_type: str, source: dict[str, Any]) -> Media:
    data = source.get("bytes")
    return base64_media(kind, media_type, data) if type(data) is str else Media(kind, media_type)


def _read_document(block: dict[str, Any]) -> Iterable[Inner]:
    source = as_mapping(block.get("source"))
    texts = text_parts(block.get("name"), block.get("context"), source.get("text"))
    if "text" in source or "content" in source:
        return (*texts, *_texts_of(source.get("content")))
    name = as_string(block.get("format"))
    media_type = _DOCUMENT_TYPES.get(name, "text/plain" if name == "txt" else f"application/{name}")
    return (*texts, _media("file", media_type, source))


def _read_guarded(block: dict[str, Any]) -> Iterable[Inner]:
    image = block.get("image")
    texts = text_parts(as_mapping(block.get("text")).get("text"))
    return (*texts, *(_read_media("image")(image) if type(image) is dict else ()))


def _read_cited(block: dict[str, Any]) -> Iterable[Inner]:
    return text_parts("".join(part.text for part in _texts_of(block.get("content"))))


def _read_search_result(block: dict[str, Any]) -> Iterable[Inner]:
    return (*text_parts(block.get("title"), block.get("source")), *_texts_of(block.get("content")))


def _texts_of(content: Any) -> Iterable[Any]:
    return text_parts(*(as_mapping(each).get("text") for each in as_list(content)))


_READERS: dict[str, Callable[[dict[str, Any]], Iterable[Inner]]] = {
    "reasoningContent": _read_reasoning,
    "image": _read_media("image"),
    "video": _read_media("video"),
    "audio": _read_media("audio"),
    "document": _read_document,
    "guardContent": _read_guarded,
    "citationsContent": _read_cited,
    "searchResult": _read_search_result,
}
