"""The messages of Chat Completions: what each of their fields says, in parts.

Source: as for chat.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from accordion.core.conversation import Media, Part, Reasoning, Text, ToolCall
from accordion.dialects.keys import TEXT_TYPES
from accordion.dialects.shared import (
    Inner,
    arguments_text,
    audio_media,
    entries,
    file_media,
    mapping,
    opaque,
    string,
    texts,
    url_media,
)


def parts(content: Any) -> Iterable[Inner]:
    """The parts of a message's content: a string, a list of parts, or nothing."""
    if type(content) is str:
        return (Text(content),) if content else ()
    if type(content) is list:
        return [said for entry in content for said in part(entry)]
    return () if content is None else (opaque(content),)


def part(entry: Any) -> Iterable[Inner]:
    """What one entry of a content list says."""
    if type(entry) is str:
        return texts(entry)
    kind = string(mapping(entry).get("type"))
    if kind in TEXT_TYPES:
        return texts(entry.get("text"))
    reader = _PARTS.get(kind)
    return (reader(entry),) if reader is not None else (opaque(entry),)


def _image(part: dict[str, Any]) -> Inner:
    image = part.get("image_url")
    url, detail = (image.get("url"), image.get("detail")) if type(image) is dict else (image, part.get("detail"))
    return url_media("image", url, detail)


def _video(part: dict[str, Any]) -> Inner:
    return url_media("video", mapping(part.get("video_url")).get("url"))


def _audio_url(part: dict[str, Any]) -> Inner:
    return url_media("audio", mapping(part.get("audio_url")).get("url"))


def _audio(part: dict[str, Any]) -> Inner:
    return audio_media(part.get("input_audio"))


def _file(part: dict[str, Any]) -> Inner:
    file = mapping(part.get("file"))
    return file_media(file.get("file_data"), file.get("filename"))


def _refusal(part: dict[str, Any]) -> Inner:
    return Text(string(part.get("refusal")))


def _thinking(part: dict[str, Any]) -> Inner:
    return Reasoning(string(part.get("thinking")), len(string(part.get("signature"))))


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
"""Lists of blocks of thoughts, OpenRouter's and LiteLLM's. In a stream they come in pieces, numbered by `index`."""


def reasoning(entry: dict[str, Any]) -> Iterable[Part]:
    """What servers add to an assistant message: its thoughts under one of two names, and the same in blocks, some of
    which are sealed or signed."""
    text = string(entry.get("reasoning_content")) or string(entry.get("reasoning"))
    blocks = [mapping(held) for name in BLOCKS for held in entries(entry.get(name))]
    if not text:
        told = (string(block.get(name)) for block in blocks for name in ("text", "summary", "thinking"))
        text = "\n".join(filter(None, told))
    sealed = sum(len(string(block.get(name))) for block in blocks for name in ("data", "signature"))
    return (Reasoning(text, sealed),) if text or sealed else ()


def spoken(entry: dict[str, Any]) -> Iterable[Part]:
    """A refusal, and an earlier reply's sound, which is known to the provider by its id."""
    yield from texts(entry.get("refusal"))
    if entry.get("audio"):
        yield Media("audio")


def calls(entry: dict[str, Any]) -> Iterable[Part]:
    """The calls of an assistant's message: one part for each entry of `tool_calls`, then the legacy call."""
    for call in entries(entry.get("tool_calls")):
        custom = mapping(call).get("custom")
        function = custom if type(custom) is dict else mapping(mapping(call).get("function"))
        if not function:
            yield opaque(call, "tool_call")
            continue
        arguments = function.get("input") if custom else function.get("arguments")
        yield ToolCall(string(call.get("id")), string(function.get("name")), arguments_text(arguments))
    legacy = entry.get("function_call")
    if type(legacy) is dict:
        name = string(legacy.get("name"))
        yield ToolCall(name, name, arguments_text(legacy.get("arguments")))
