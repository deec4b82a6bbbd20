"""Reads the fields of Chat Completions messages into parts. Source: as for protocol.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from accordion.model.conversation import Media, Part, Reasoning, Text, ToolCall
from accordion.protocols.json_values import (
    Inner,
    arguments_text,
    as_list,
    as_mapping,
    as_string,
    audio_media,
    file_media,
    opaque_part,
    text_parts,
    url_media,
)
from accordion.protocols.message_keys import TEXT_TYPES


def read_parts(content: Any) -> Iterable[Inner]:
    """Reads a message's content: a string, a list of parts, or nothing."""
    if type(content) is str:
        return (Text(content),) if content else ()
    if type(content) is list:
        return [part for entry in content for part in read_part(entry)]
    return () if content is None else (opaque_part(content),)


def read_part(entry: Any) -> Iterable[Inner]:
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
