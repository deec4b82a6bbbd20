"""The JSON of Gemini's contents: reads it into parts, edits a content, creates one, merges neighbours.

The names of fields come in lower camel case and in snake case: protobuf's JSON form accepts either. A call need not
have an id, nor a result. Then the name of the function pairs them, in order: every result names the function. Google's
examples answer a call with an id by a result without one, and Gemini CLI makes up ids for its results of calls that
have none.

A thought signature belongs to the part that carries it: to a call, to a text, or to an empty text of its own. It is
read as reasoning only in the last case, and where the part is a thought; all else that carries one is not reasoning,
and leaves only as a whole. A part keeps its signature as long as it stays. Where the part of a parallel batch that
carries the signature of its step leaves, the signature goes to the first call that stays: the provider requires it
there (the guide "Thought signatures"). Source: as for protocol.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from accordion.model.conversation import Media, MediaKind, Message, Part, Reasoning, Text, ToolCall, ToolResult
from accordion.protocols.json_spans import (
    NULL,
    fields_of,
    is_list,
    is_object,
    items_of,
    list_of,
    object_of,
    remove_fields,
)
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
from accordion.protocols.json_writing import PartChanges, ValueChange, arguments_object, join_blocks
from accordion.protocols.message_keys import decode_json

# -- names of fields ---------------------------------------------------------------------------------------------------


Value = TypeVar("Value")

_CAPITAL = re.compile("[A-Z]")
_UNDERSCORE = re.compile("_([a-z0-9])")


@lru_cache(256)
def _snake_case(name: str) -> str:
    """Returns the other spelling of a name in lower camel case."""
    return _CAPITAL.sub(lambda match: "_" + match[0].lower(), name)


@lru_cache(256)
def camel_case(name: str) -> str:
    """Returns a name in lower camel case, whatever its spelling."""
    return _UNDERSCORE.sub(lambda match: match[1].upper(), name) if "_" in name else name


def spelling(value: Mapping[str, Any], name: str) -> str:
    """Returns the spelling of a name (given in lower camel case) that an object has; `name` itself if it has none."""
    other = _snake_case(name)
    return other if other in value and name not in value else name


def get(value: Mapping[str, Value], name: str) -> Value | None:
    """Returns the field of this name (given in lower camel case), in either spelling; None where there is none."""
    found = value.get(name)
    return value.get(_snake_case(name)) if found is None else found


def dig(value: Any, *names: str) -> Any:
    """Returns the field at the end of a path of names within objects; None where it is not there."""
    for name in names:
        value = get(as_mapping(value), name)
    return value


def both_spellings(names: Iterable[str]) -> tuple[str, ...]:
    """Returns each name in both spellings."""
    return tuple(dict.fromkeys(each for name in names for each in (name, _snake_case(name))))


# -- reading -----------------------------------------------------------------------------------------------------------


_CODE_EXECUTION = "code_execution"
"""The name under which the provider's own tool that runs code is read, and the id of its calls."""

_PLAIN_RESULTS = ("output", "result", "content", "error")
"""The only field of a result that is just a text."""

_FAMILIES: dict[str, MediaKind] = {"image": "image", "audio": "audio", "video": "video"}
# Fields beside the data of a part. They are not its type.
_DESCRIPTIONS = frozenset(
    {"thought", "thoughtSignature", "videoMetadata", "mediaResolution", "partMetadata", "mediaProcessing"}
)


def read_parts(value: Any) -> Iterable[Part]:
    """Reads a content's list of parts."""
    if type(value) is list:
        return [part for entry in value for part in _read_part(entry)]
    return () if value is None else _read_part(value)


def _read_part(entry: Any) -> Iterable[Part]:
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
    return ToolResult(
        call_id_of(result), (*_read_response(response), *media), _failed(fields), as_string(result.get("name"))
    )


def _failed(response: dict[str, Any]) -> bool:
    """Whether a result is an error: it has nothing but an error, or an error and no output."""
    return response.keys() == {"error"} or (bool(response.get("error")) and "output" not in response)


def _plain_field(response: dict[str, Any]) -> str:
    """Returns the name of the field that is the whole result, a text; empty where the result is more than that."""
    name = next(iter(response), "")
    return name if len(response) == 1 and name in _PLAIN_RESULTS and type(response[name]) is str else ""


def _read_response(response: Any) -> Iterable[Inner]:
    fields = as_mapping(response)
    if name := _plain_field(fields):
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
    return ToolCall(_CODE_EXECUTION, _CODE_EXECUTION, encode(code).decode())


def _read_output(result: dict[str, Any]) -> Part:
    is_failed = as_string(result.get("outcome")) not in {"", "OUTCOME_OK"}
    return ToolResult(_CODE_EXECUTION, tuple(text_parts(result.get("output"))), is_failed)


_MEDIA: dict[str, Callable[[dict[str, Any]], Media]] = {"inlineData": _read_data, "fileData": _read_file}
_READERS: dict[str, Callable[[dict[str, Any]], Part]] = {
    **_MEDIA,
    "functionCall": _read_call,
    "functionResponse": _read_result,
    "executableCode": _read_code,
    "codeExecutionResult": _read_output,
}


# -- writing -----------------------------------------------------------------------------------------------------------


_SIGNATURE = "thoughtSignature"
_USER = (b'"user"', b'""', NULL)


def edit_message(message: Message, changes: Mapping[int, str | None]) -> bytes | None:
    """Returns the content with parts changed; see WireProtocol.edit_message. Raises ValueError for a new text of a
    thought, and for any change of parts that are not understood."""
    if not changes:
        return message.wire
    part_changes = PartChanges(message, changes)
    if not is_object(message.wire):
        raise ValueError("a content that is not understood cannot be changed")
    fields = fields_of(message.wire)
    parts = fields.get("parts", NULL)
    if is_list(parts):
        edited = part_changes.edit_each(parts, _read_part, _edit_part)
        fields["parts"] = NULL if edited is None else _keep_signature(message, parts, edited)
    part_changes.check_all_taken()
    return object_of(fields) if part_changes.has_content else None


def text_message(text: str) -> bytes:
    """Returns a user content with one text."""
    return encode({"role": "user", "parts": [{"text": text}]})


def _edit_part(raw: bytes, change: ValueChange) -> bytes | None:
    """Replaces the text, the result, or the arguments of a part; media become a text."""
    fields = fields_of(raw)
    decoded = decode_json(raw)
    kind = part_type(decoded)
    if kind in {"", "text"} and not isinstance(decoded.get("text"), str):
        change.require_removal("a signature")
    elif decoded.get("thought") is True or decoded.get("text") == "":
        change.require_removal("a thought")
    if change.text is None:
        return None
    if kind in _MEDIA:
        return encode({"text": change.text})
    if kind == "text":
        return object_of({**fields, "text": encode(change.text)})
    name = spelling(fields, kind)
    data = fields_of(fields[name])
    if kind == "functionCall":
        data["args"] = arguments_object(change.text)
    elif kind == "functionResponse":
        data["response"] = _plain_response(as_mapping(decode_json(data.get("response", NULL))), change.text)
        remove_fields(data, "parts")
    elif kind == "codeExecutionResult":
        data["output"] = encode(change.text)
    elif kind == "executableCode":
        return object_of({**fields, name: arguments_object(change.text)})
    return object_of({**fields, name: object_of(data)})


def _plain_response(response: dict[str, object], text: str) -> bytes:
    """Returns a result that is only a text, under the name that it had, or that says whether it was an error."""
    return encode({_plain_field(response) or ("error" if _failed(response) else "output"): text})


def _keep_signature(message: Message, before: bytes, after: bytes) -> bytes:
    """Returns the parts with the signature of the step at their first call, if the call that had it has left."""
    if b"hought" not in before or before == after or not any(isinstance(part, ToolCall) for part in message.parts):
        return after
    first_before, first_after = _first_call(items_of(before)), _first_call(items_of(after))
    signature = signature_of(decode_json(first_before[1])) if first_before is not None else ""
    if not signature or first_after is None or signature_of(decode_json(first_after[1])):
        return after
    parts = items_of(after)
    parts[first_after[0]] = object_of({**fields_of(first_after[1]), _SIGNATURE: encode(signature)})
    return list_of(parts)


def _first_call(parts: Sequence[bytes]) -> tuple[int, bytes] | None:
    """Returns the first part that is a call, and its index."""
    return next(
        ((index, raw) for index, raw in enumerate(parts) if is_object(raw) and _has_field(raw, "functionCall")), None
    )


def _has_field(raw: bytes, name: str) -> bool:
    """Whether a JSON object has a field of this name, in either spelling."""
    return get(fields_of(raw), name) is not None


def join_messages(wires: Sequence[bytes], own_positions: Collection[int]) -> list[bytes]:
    """Merges the proxy's own blocks with the user contents beside them, so that roles alternate as before.

    A block before results follows them in their content: nothing may come between a call and its result.
    """
    return join_blocks(wires, own_positions, _from_user, _from_user, _merge_contents, _has_no_result)


def _merge_contents(wires: Sequence[bytes]) -> bytes:
    contents = [fields_of(wire) for wire in wires]
    *earlier, last = [items_of(fields["parts"]) for fields in contents]
    texts = [part for parts in earlier for part in parts]
    if _has_result(last):
        end = max(index for index, part in enumerate(last) if _is_result(part)) + 1
        return object_of({**contents[-1], "parts": list_of([*last[:end], *texts, *last[end:]])})
    return object_of({**contents[-1], **contents[0], "parts": list_of([*texts, *last])})


def _has_no_result(wire: bytes) -> bool:
    return _from_user(wire) and not _has_result(items_of(fields_of(wire)["parts"]))


def _has_result(parts: Sequence[bytes]) -> bool:
    return any(map(_is_result, parts))


def _is_result(part: bytes) -> bool:
    return is_object(part) and _has_field(part, "functionResponse")


def _from_user(wire: bytes) -> bool:
    """Whether a content is the user's, with a list of parts."""
    fields = fields_of(wire) if is_object(wire) else {}
    return fields.get("role", NULL) in _USER and is_list(fields.get("parts", NULL))
