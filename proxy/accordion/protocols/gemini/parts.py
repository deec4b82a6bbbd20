"""Reads the parts of Gemini's contents. Source: as for protocol.py.

A call need not have an id, nor a result. Then the name of the function pairs them, in order: the result of a call
without an id names the same function.

A thought signature belongs to the part that carries it: to a call, to a text, or to an empty text of its own. It is
read as reasoning only in the last case, and where the part is a thought; all else that carries one is not reasoning,
and leaves only as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from accordion.model.conversation import Media, MediaKind, Part, Reasoning, Text, ToolCall, ToolResult
from accordion.protocols.gemini.fields import camel_case, get
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

CODE_EXECUTION = "code_execution"
"""The name under which the provider's own tool that runs code is read, and the id of its calls."""

PLAIN_RESULTS = ("output", "result", "content", "error")
"""The only field of a result that is just a text."""

_FAMILIES: dict[str, MediaKind] = {"image": "image", "audio": "audio", "video": "video"}
# Fields beside the data of a part. They are not its type.
_DESCRIPTIONS = frozenset(
    {"thought", "thoughtSignature", "videoMetadata", "mediaResolution", "partMetadata", "mediaProcessing"}
)


def read_parts(value: Any) -> Iterable[Part]:
    """Reads a content's list of parts."""
    if type(value) is list:
        return [part for entry in value for part in read_part(entry)]
    return () if value is None else read_part(value)


def read_part(entry: Any) -> Iterable[Part]:
    """Reads one part."""
    fields = as_mapping(entry)
    kind = part_type(fields)
    if kind == "text":
        return _read_text(fields)
    reader = _READERS.get(kind)
    return (reader(as_mapping(get(fields, kind))),) if reader is not None else _read_odd(entry)


def part_type(fields: dict[str, Any]) -> str:
    """Returns the name of the field that holds a part's data, in lower camel case; empty without one."""
    if "text" in fields:
        return "text"
    return next(
        (
            name
            for each, value in fields.items()
            if value is not None and (name := camel_case(each)) not in _DESCRIPTIONS
        ),
        "",
    )


def signature_of(fields: dict[str, Any]) -> str:
    """Returns the thought signature of a part; empty without one."""
    return as_string(get(fields, "thoughtSignature"))


def is_thought(fields: dict[str, Any]) -> bool:
    """Whether a part holds only reasoning: a thought, or an empty text with a signature."""
    return fields.get("thought") is True or (fields.get("text") == "" and bool(signature_of(fields)))


def call_id_of(call: dict[str, Any]) -> str:
    """Returns the id of a call or a result, or else the name of its function."""
    return as_string(call.get("id")) or as_string(call.get("name"))


def arguments_of(call: dict[str, Any]) -> str:
    """Returns the arguments of a call as JSON."""
    return arguments_text(call.get("args")) or "{}"


def _read_text(fields: dict[str, Any]) -> Iterable[Part]:
    text = fields.get("text")
    if type(text) is not str:
        return () if text is None else (opaque_part(fields, "text"),)
    if is_thought(fields):
        return (Reasoning(text, len(signature_of(fields))),)
    return (Text(text),) if text else ()


def _read_odd(entry: Any) -> Iterable[Part]:
    """Reads a part without known data. One with a signature only is reasoning."""
    fields = as_mapping(entry)
    kind = part_type(fields)
    if not kind and (signature := signature_of(fields)):
        return (Reasoning("", len(signature)),)
    return (opaque_part(entry, kind),)


def _read_call(call: dict[str, Any]) -> Part:
    return ToolCall(call_id_of(call), as_string(call.get("name")), arguments_of(call))


def _read_result(result: dict[str, Any]) -> Part:
    response = result.get("response")
    fields = as_mapping(response)
    media = (inner for entry in as_list(result.get("parts")) for inner in _read_result_part(entry))
    return ToolResult(call_id_of(result), (*_read_response(response), *media), failed(fields))


def failed(response: dict[str, Any]) -> bool:
    """Whether a result is an error: it has nothing but an error, or an error and no output."""
    return response.keys() == {"error"} or (bool(response.get("error")) and "output" not in response)


def plain_field(response: dict[str, Any]) -> str:
    """Returns the name of the field that is the whole result, a text; empty where the result is more than that."""
    name = next(iter(response), "")
    return name if len(response) == 1 and name in PLAIN_RESULTS and type(response[name]) is str else ""


def _read_response(response: Any) -> Iterable[Inner]:
    fields = as_mapping(response)
    if name := plain_field(fields):
        return text_parts(fields[name])
    return text_parts(encode(response).decode()) if response else ()


def _read_result_part(entry: Any) -> Iterable[Inner]:
    fields = as_mapping(entry)
    kind = part_type(fields)
    reader = _MEDIA.get(kind)
    return (reader(as_mapping(get(fields, kind))),) if reader is not None else (opaque_part(entry, kind),)


def _read_data(blob: dict[str, Any]) -> Media:
    media_type = as_string(get(blob, "mimeType"))
    return base64_media(_media_kind(media_type), media_type, blob.get("data"))


def _read_file(file: dict[str, Any]) -> Media:
    media_type = as_string(get(file, "mimeType"))
    return Media(_media_kind(media_type), media_type)


def _media_kind(media_type: str) -> MediaKind:
    return _FAMILIES.get(media_type.partition("/")[0], "file")


def _read_code(code: dict[str, Any]) -> Part:
    """Reads code that the provider runs, as a call of its own tool. The output follows in the same content."""
    return ToolCall(CODE_EXECUTION, CODE_EXECUTION, encode(code).decode())


def _read_output(result: dict[str, Any]) -> Part:
    is_failed = as_string(result.get("outcome")) not in {"", "OUTCOME_OK"}
    return ToolResult(CODE_EXECUTION, tuple(text_parts(result.get("output"))), is_failed)


_MEDIA: dict[str, Callable[[dict[str, Any]], Media]] = {"inlineData": _read_data, "fileData": _read_file}
_READERS: dict[str, Callable[[dict[str, Any]], Part]] = {
    **_MEDIA,
    "functionCall": _read_call,
    "functionResponse": _read_result,
    "executableCode": _read_code,
    "codeExecutionResult": _read_output,
}
