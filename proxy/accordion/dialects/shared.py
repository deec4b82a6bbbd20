"""What the dialects have in common: reading fields, text, media; the shape of OpenAI's errors."""

from __future__ import annotations

import binascii
import codecs
import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec

from accordion.core.conversation import Media, MediaKind, Opaque, Reasoning, Role, Text
from accordion.core.errors import AccordionError
from accordion.core.media import sniff
from accordion.core.pdf import pages_of
from accordion.core.records import ARGUMENTS
from accordion.dialects.keys import BREAKPOINTS, read

Inner = Text | Reasoning | Media | Opaque
"""What may stand inside a tool's result."""

encode = msgspec.json.encode

HOSTED = ("srvtoolu_", "mcptoolu_")
"""How the ids of calls begin that Anthropic runs itself. They are answered in the same reply, or, where that was
paused, in the next one."""

COUNTS = 2**53
"""Counts are less than this: JSON does not keep larger whole numbers exactly."""

# So much base64 is decoded to look at the beginning of an image: 64 KiB of data, in whole groups of four.
_HEAD = 87_380
# Decoding holds up every other thread, so that much is decoded piece by piece (in whole groups of four).
_PIECE = 1 << 20
_DATA_HEADER = 256
_USUAL = frozenset({"message", "type", "code", "param", "status"})
_PDF = "application/pdf"
_FAMILIES = frozenset({"text", "image", "audio", "video"})
# From so many characters on what looks like base64 is taken for media.
_RUN = 1_024
_BASE64 = re.compile(r"(?i:data:[^,]{0,240},)?[A-Za-z0-9+/_\r\n-]++=*+\s*+").fullmatch
_ROLES: dict[Any, Role] = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}


def role_of(value: Any) -> Role:
    """The role that a protocol's word stands for; `other` where it is none that is known."""
    return _ROLES.get(value, "other") if type(value) is str else "other"


def string(value: Any) -> str:
    """The value if it is a string, else an empty one."""
    return value if type(value) is str else ""


def mapping(value: Any) -> dict[str, Any]:
    """The value if it is an object, else an empty one."""
    return value if type(value) is dict else {}


def entries(value: Any) -> list[Any]:
    """The value if it is a list, else an empty one."""
    return value if type(value) is list else []


def count(value: Any) -> int:
    """The value if it is a count (a whole number that is not negative, and that JSON keeps exactly), else 0."""
    return value if type(value) is int and 0 <= value < COUNTS else 0


def field(fields: Mapping[str, bytes], name: str) -> Any:
    """A top-level field, decoded; None where it is absent or cannot be decoded."""
    raw = fields.get(name)
    if raw is None:
        return None
    try:
        return read(raw)
    except ValueError:
        return None


def limit(fields: Mapping[str, bytes], *names: str) -> int | None:
    """The first of these fields that holds a whole number."""
    for name in names:
        if name in fields:
            value = field(fields, name)
            if type(value) is int and value >= 0:
                return value
    return None


def definitions(*values: Any) -> tuple[str, ...]:
    """Tool definitions and schemas as compact JSON, cache breakpoints left out. Lists are taken apart."""
    texts = []
    for value in values:
        for entry in value if type(value) is list else [value]:
            if entry is None:
                continue
            if type(entry) is dict:
                entry = {name: held for name, held in entry.items() if name not in BREAKPOINTS}  # noqa: PLW2901
            texts.append(encode(entry).decode())
    return tuple(texts)


def opaque(value: Any, kind: str = "", size: int = 0) -> Opaque:
    """A part that is not understood, named by its type, sized by its JSON."""
    size = size or len(encode(value))
    runs = tuple(_runs(value)) if size >= _RUN else ()
    return Opaque(kind or string(mapping(value).get("type")), size, runs)


def _runs(value: Any) -> Iterable[int]:
    """The lengths of the texts in a JSON value that are base64 as a whole, bare or as a data: URL."""
    left = [value]
    while left:
        held = left.pop()
        if type(held) is dict:
            left += held.values()
        elif type(held) is list:
            left += held
        elif type(held) is str and len(held) >= _RUN and _BASE64(held):
            yield len(held)


def texts(*values: Any) -> Iterable[Text]:
    """A Text for each value that is a string and not empty."""
    return (Text(value) for value in values if type(value) is str and value)


def arguments_text(value: Any) -> str:
    """Arguments as text: as they stood if they were text, else as JSON."""
    if type(value) is str:
        return value
    return "" if value is None else encode(value).decode()


def noted(arguments: str) -> str:
    """What is noted of a call's arguments: all of them, or nothing where they are too long."""
    return arguments if len(arguments) <= ARGUMENTS else ""


def url_media(kind: MediaKind, url: Any, detail: Any = "") -> Media:
    """Media behind a URL, or within it if it is a data: URL."""
    url = string(url)
    if url[:5].lower() != "data:":
        return Media(kind, detail=string(detail))
    comma = url.find(",", 0, _DATA_HEADER)
    header = url[5:comma].lower() if comma > 0 else ""
    media_type = header.split(";", 1)[0].strip()
    if comma > 0 and ";base64" in header:
        return base64_media(kind, media_type, url, comma + 1, detail)
    return Media(kind, media_type, size=len(url) - comma - 1, detail=string(detail))


def base64_media(kind: MediaKind, media_type: str, data: Any, start: int = 0, detail: Any = "") -> Media:
    """Media within base64 text that begins at `start`. Only its beginning is decoded, but all of a PDF, whose pages
    may stand anywhere."""
    data = string(data)
    size = max(0, (len(data) - start) * 3 // 4 - data.count("=", max(start, len(data) - 2)))
    head = _decoded(data[start : start + _HEAD])
    found, width, height = sniff(head) if head else ("", 0, 0)
    media_type = found or media_type
    if kind == "file" and not found and media_type != _PDF and _is_text(head):
        media_type = _text_type(media_type)
    pages = pages_of(_decoded(data[start:])) if media_type == _PDF else 0
    return Media(_kind(kind, media_type), media_type, size, width, height, pages, string(detail))


def _is_text(head: bytes) -> bool:
    """Whether a file that begins so is text: UTF-8, wherever it was cut off, without a zero byte."""
    try:
        return b"\0" not in head and bool(codecs.getincrementaldecoder("utf-8")().decode(head))
    except UnicodeDecodeError:
        return False


def _text_type(media_type: str) -> str:
    """The type of a text, whatever a client calls it: there are more names for code than a list could hold."""
    family, _, kind = media_type.partition("/")
    if family != "application":
        return media_type if family in _FAMILIES else "text/plain"
    return "text/plain" if kind in {"", "octet-stream"} else f"text/{kind}"


def _decoded(text: str) -> bytes:
    """What base64 stands for; nothing where it is none."""
    if "\n" in text or "\r" in text or " " in text:
        text = "".join(text.split())
    # Whole groups of four only: what is cut off matters to nobody who looks at the beginning.
    end = len(text) // 4 * 4
    try:
        return b"".join(binascii.a2b_base64(text[at : min(end, at + _PIECE)]) for at in range(0, end, _PIECE))
    except ValueError:
        return b""


def file_media(data: Any, filename: Any = "", detail: Any = "") -> Media:
    """A file sent inline, as a data: URL or as bare base64; an empty one is known to the provider only."""
    data = string(data)
    if data[:5].lower() == "data:":
        return url_media("file", data, detail)
    media_type = _PDF if string(filename).lower().endswith(".pdf") else ""
    return base64_media("file", media_type, data, 0, detail) if data else Media("file", media_type)


def audio_media(given: Any) -> Media:
    """Sound sent inline as OpenAI's protocols do: its `format`, and its `data` as base64."""
    kind = string(mapping(given).get("format"))
    return base64_media("audio", f"audio/{kind}" if kind else "", mapping(given).get("data"))


def openai_error(error: AccordionError, request_id: str) -> dict[str, Any]:
    """The inside of an OpenAI error. Its clients show the message alone, so the request id is said there."""
    return {
        "message": f"{error.message} (request id: {request_id})",
        "type": error.type,
        "param": error.param,
        "code": error.code,
    }


def refused(body: bytes) -> dict[str, Any]:
    """The error that is all of a reply, in the shape that clients read: an object whose `error` is one; empty where it
    is none. vLLM sends the inside alone, FastAPI a `detail`, Ollama's `error` is a text, Gemini's is in
    a list."""
    try:
        value = read(body)
    except ValueError:
        return {}
    if type(value) is list and len(value) == 1:
        value = value[0]
    if type(value) is not dict:
        return {}
    error = value.get("error")
    if type(error) is dict:
        return value if error else {}
    said = error or value.get("message") or value.get("detail")
    if type(said) is not str:
        return {}
    return {"error": {name: value[name] for name in ("type", "param", "code") if name in value} | {"message": said}}


def error_text(value: Any) -> str:
    """The text of an error in a reply's JSON, in any of the shapes that providers use; empty where there is none.

    That is its message, or all of it as JSON where it says more: what OpenRouter hands on stands in `metadata`, and
    llama.cpp's limit in `n_ctx`.
    """
    if type(value) is list and len(value) == 1:
        value = value[0]
    if type(value) is not dict:
        return ""
    error = value.get("error")
    if type(error) is dict:
        said = string(error.get("message"))
        return said if said and error.keys() <= _USUAL else encode(error).decode()
    if type(error) is str and error:
        return error
    if value.get("object") == "error" or value.get("type") == "error":
        return string(value.get("message")) or "error"
    return ""


def _kind(kind: MediaKind, media_type: str) -> MediaKind:
    """What it is by its media type, where the protocol only says `file`."""
    family = media_type.partition("/")[0]
    return cast(MediaKind, family) if kind == "file" and family in {"image", "audio", "video"} else kind
