"""Readers of JSON values that the protocols share: fields, text, media and errors."""

from __future__ import annotations

import binascii
import codecs
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec

from accordion.model.conversation import Media, MediaKind, Opaque, Reasoning, Role, Text
from accordion.model.errors import AccordionError
from accordion.model.media_types import count_pages, detect_file_type
from accordion.model.records import ARGUMENTS
from accordion.protocols.message_keys import BREAKPOINTS, decode_json

Inner = Text | Reasoning | Media | Opaque
"""A part inside a tool result."""

encode = msgspec.json.encode

HOSTED = ("srvtoolu_", "mcptoolu_")
"""Prefixes of the ids of calls that Anthropic runs itself. Their results come in the same response, or in the next one
if it was paused."""

COUNTS = 2**53
"""Counts are below this limit: JSON does not keep larger whole numbers exactly."""

# Length of the base64 that is decoded to read an image's header: 64 KiB of data, in whole groups of four.
_HEAD = 87_380
# Decoding keeps every other thread from running, so long data is decoded in pieces (in whole groups of four).
_PIECE = 1 << 20
_DATA_HEADER = 256
_PLAIN_ERROR_FIELDS = frozenset({"message", "type", "code", "param", "status"})
_ERROR_TEXT_FIELD = re.compile(r"(?:message|msg|detail)$", re.IGNORECASE)
"""Matches the name of a field with an error's text."""
_PDF = "application/pdf"
_FAMILIES = frozenset({"text", "image", "audio", "video"})
# Text of at least so many characters that looks like base64 is counted as media.
_MIN_BASE64 = 1_024
_BASE64 = re.compile(r"(?i:data:[^,]{0,240},)?[A-Za-z0-9+/_\r\n-]++=*+\s*+").fullmatch
_ROLES: dict[Any, Role] = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}


def from_json(raw: bytes | str) -> Any:
    """Decodes JSON of a provider: numbers stay as they are, lone surrogates and NaN are accepted. Raises ValueError."""
    try:
        return msgspec.json.decode(raw)
    except (ValueError, RecursionError):
        try:
            return json.loads(raw)
        except RecursionError as error:
            raise ValueError("the JSON is nested too deeply") from error


def to_json(value: Any) -> bytes:
    """Encodes a value of `from_json`. Numbers that JSON cannot express become null."""
    try:
        return encode(value)
    except (OverflowError, UnicodeError):
        return json.dumps(value, separators=(",", ":")).encode()


def role_of(value: Any) -> Role:
    """Returns the role that a protocol's word stands for; `other` for an unknown one."""
    return _ROLES.get(value, "other") if type(value) is str else "other"


def as_string(value: Any) -> str:
    """Returns the value if it is a string, else an empty one."""
    return value if type(value) is str else ""


def as_mapping(value: Any) -> dict[str, Any]:
    """Returns the value if it is an object, else an empty one."""
    return value if type(value) is dict else {}


def as_list(value: Any) -> list[Any]:
    """Returns the value if it is a list, else an empty one."""
    return value if type(value) is list else []


def as_count(value: Any) -> int:
    """Returns the value if it is a count (a whole number from 0 on that JSON keeps exactly), else 0."""
    return value if type(value) is int and 0 <= value < COUNTS else 0


def decode_field(fields: Mapping[str, bytes], name: str) -> Any:
    """Decodes a top-level field; None where it is absent or cannot be decoded."""
    raw = fields.get(name)
    if raw is None:
        return None
    try:
        return decode_json(raw)
    except ValueError:
        return None


def first_limit(fields: Mapping[str, bytes], *names: str) -> int | None:
    """Returns the first of these fields that holds a whole number."""
    for name in names:
        if name in fields:
            value = decode_field(fields, name)
            if type(value) is int and value >= 0:
                return value
    return None


def tool_definitions(*values: Any) -> tuple[str, ...]:
    """Returns tool definitions and schemas as compact JSON without cache breakpoints, one text for each list entry."""
    texts = []
    for value in values:
        for entry in value if type(value) is list else [value]:
            if entry is None:
                continue
            if type(entry) is dict:
                entry = {name: field for name, field in entry.items() if name not in BREAKPOINTS}  # noqa: PLW2901
            texts.append(encode(entry).decode())
    return tuple(texts)


def opaque_part(value: Any, kind: str = "", size: int = 0) -> Opaque:
    """Returns an unknown part, named by its type, with the size of its JSON."""
    size = size or len(encode(value))
    runs = tuple(_base64_lengths(value)) if size >= _MIN_BASE64 else ()
    return Opaque(kind or as_string(as_mapping(value).get("type")), size, runs)


def _base64_lengths(value: Any) -> Iterable[int]:
    """Yields the lengths of the texts in a JSON value that are entirely base64, bare or as a data: URL."""
    pending_values = [value]
    while pending_values:
        item = pending_values.pop()
        if type(item) is dict:
            pending_values += item.values()
        elif type(item) is list:
            pending_values += item
        elif type(item) is str and len(item) >= _MIN_BASE64 and _BASE64(item):
            yield len(item)


def text_parts(*values: Any) -> Iterable[Text]:
    """Returns a Text for each value that is a string and not empty."""
    return (Text(value) for value in values if type(value) is str and value)


def arguments_text(value: Any) -> str:
    """Returns arguments as text: unchanged if they are text, else as JSON."""
    if type(value) is str:
        return value
    return "" if value is None else encode(value).decode()


def bounded_arguments(arguments: str) -> str:
    """Returns a call's arguments, or an empty text if they are too long to be recorded."""
    return arguments if len(arguments) <= ARGUMENTS else ""


def url_media(kind: MediaKind, url: Any, detail: Any = "") -> Media:
    """Returns media at a URL, or inside it if it is a data: URL."""
    url = as_string(url)
    if url[:5].lower() != "data:":
        return Media(kind, detail=as_string(detail))
    comma = url.find(",", 0, _DATA_HEADER)
    header = url[5:comma].lower() if comma > 0 else ""
    media_type = header.split(";", 1)[0].strip()
    if comma > 0 and ";base64" in header:
        return base64_media(kind, media_type, url, comma + 1, detail)
    return Media(kind, media_type, size=len(url) - comma - 1, detail=as_string(detail))


def base64_media(kind: MediaKind, media_type: str, data: Any, start: int = 0, detail: Any = "") -> Media:
    """Returns media in base64 text that begins at `start`. Only its beginning is decoded, except for a PDF, whose pages
    may be anywhere."""
    data = as_string(data)
    size = max(0, (len(data) - start) * 3 // 4 - data.count("=", max(start, len(data) - 2)))
    head = _decode_base64(data[start : start + _HEAD])
    detected, width, height = detect_file_type(head) if head else ("", 0, 0)
    media_type = detected or media_type
    if kind == "file" and not detected and media_type != _PDF and _is_text(head):
        media_type = _text_type(media_type)
    pages = count_pages(_decode_base64(data[start:])) if media_type == _PDF else 0
    return Media(_kind(kind, media_type), media_type, size, width, height, pages, as_string(detail))


def _is_text(head: bytes) -> bool:
    """Whether a file that begins with these bytes is text: UTF-8, cut off anywhere, without a zero byte."""
    try:
        return b"\0" not in head and bool(codecs.getincrementaldecoder("utf-8")().decode(head))
    except UnicodeDecodeError:
        return False


def _text_type(media_type: str) -> str:
    """Returns a text type for any name that a client gives: there are more names for code than a list could hold."""
    family, _, kind = media_type.partition("/")
    if family != "application":
        return media_type if family in _FAMILIES else "text/plain"
    return "text/plain" if kind in {"", "octet-stream"} else f"text/{kind}"


def _decode_base64(text: str) -> bytes:
    """Decodes base64; empty where it is invalid."""
    if "\n" in text or "\r" in text or " " in text:
        text = "".join(text.split())
    # Whole groups of four only: the last, cut off, does not matter for reading the beginning.
    end = len(text) // 4 * 4
    try:
        return b"".join(binascii.a2b_base64(text[index : min(end, index + _PIECE)]) for index in range(0, end, _PIECE))
    except ValueError:
        return b""


def file_media(data: Any, filename: Any = "", detail: Any = "") -> Media:
    """Returns a file sent inline, as a data: URL or as bare base64; an empty one is stored by the provider."""
    data = as_string(data)
    if data[:5].lower() == "data:":
        return url_media("file", data, detail)
    media_type = _PDF if as_string(filename).lower().endswith(".pdf") else ""
    return base64_media("file", media_type, data, 0, detail) if data else Media("file", media_type)


def audio_media(value: Any) -> Media:
    """Returns sound sent inline in OpenAI's form: its `format`, and its `data` as base64."""
    kind = as_string(as_mapping(value).get("format"))
    return base64_media("audio", f"audio/{kind}" if kind else "", as_mapping(value).get("data"))


def openai_error(error: AccordionError, request_id: str) -> dict[str, Any]:
    """Returns the inner object of an OpenAI error. Clients show only the message, so the request id is in it."""
    return {
        "message": f"{error.message} (request id: {request_id})",
        "type": error.type,
        "param": error.param,
        "code": error.code,
    }


def find_error(body: bytes) -> dict[str, Any]:
    """Returns an error body in the form that clients read, an object with the object `error`; empty if it is no error.

    vLLM sends the inner object alone, FastAPI a `detail`, Baidu an `error_msg`, Ollama's `error` is a text, Gemini's is
    in a list.
    """
    try:
        value = decode_json(body)
    except ValueError:
        return {}
    if type(value) is list and len(value) == 1:
        value = value[0]
    if type(value) is not dict:
        return {}
    error = value.get("error")
    if type(error) is dict:
        return value if error else {}
    texts = (text for name, text in value.items() if type(text) is str and text and _ERROR_TEXT_FIELD.search(name))
    message = error or next(texts, None)
    if type(message) is not str:
        return {}
    return {"error": {name: value[name] for name in ("type", "param", "code") if name in value} | {"message": message}}


def find_error_text(value: Any) -> str:
    """Returns the text of an error in a response's JSON, in any form that providers use; empty where there is none.

    It is the error's message, or the whole error as JSON if it has more fields: OpenRouter puts the provider's own
    error in `metadata`, and llama.cpp its limit in `n_ctx`.
    """
    if type(value) is list and len(value) == 1:
        value = value[0]
    if type(value) is not dict:
        return ""
    error = value.get("error")
    if type(error) is dict:
        message = as_string(error.get("message"))
        return message if message and error.keys() <= _PLAIN_ERROR_FIELDS else encode(error).decode()
    if type(error) is str and error:
        return error
    if value.get("object") == "error" or value.get("type") == "error":
        return as_string(value.get("message")) or "error"
    return ""


def _kind(kind: MediaKind, media_type: str) -> MediaKind:
    """Returns the kind that the media type implies, where the protocol only says `file`."""
    family = media_type.partition("/")[0]
    return cast(MediaKind, family) if kind == "file" and family in {"image", "audio", "video"} else kind
