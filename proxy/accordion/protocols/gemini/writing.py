"""Writes Gemini's contents: edits one, creates one, merges neighbours.

A part keeps its thought signature as long as it stays. Where the part of a parallel batch that carries the signature
of its step leaves, the signature goes to the first call that stays: the provider requires it there (the guide "Thought
signatures").
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from accordion.model.conversation import Message, ToolCall
from accordion.protocols.gemini.fields import get, spelling
from accordion.protocols.gemini.parts import failed, part_type, plain_field, read_part, signature_of
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
from accordion.protocols.json_values import as_mapping, encode
from accordion.protocols.json_writing import PartChanges, ValueChange, arguments_object, join_blocks
from accordion.protocols.message_keys import decode_json

SIGNATURE = "thoughtSignature"
_MEDIA = frozenset({"inlineData", "fileData"})
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
        edited = part_changes.edit_each(parts, read_part, _edit_part)
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
    return encode({plain_field(response) or ("error" if failed(response) else "output"): text})


def _keep_signature(message: Message, before: bytes, after: bytes) -> bytes:
    """Returns the parts with the signature of the step at their first call, if the call that had it has left."""
    if b"hought" not in before or before == after or not any(isinstance(part, ToolCall) for part in message.parts):
        return after
    first_before, first_after = _first_call(items_of(before)), _first_call(items_of(after))
    signature = signature_of(decode_json(first_before[1])) if first_before is not None else ""
    if not signature or first_after is None or signature_of(decode_json(first_after[1])):
        return after
    parts = items_of(after)
    parts[first_after[0]] = object_of({**fields_of(first_after[1]), SIGNATURE: encode(signature)})
    return list_of(parts)


def _first_call(parts: Sequence[bytes]) -> tuple[int, bytes] | None:
    """Returns the first part that is a call, and its index."""
    return next(
        ((index, raw) for index, raw in enumerate(parts) if is_object(raw) and has_field(raw, "functionCall")), None
    )


def has_field(raw: bytes, name: str) -> bool:
    """Whether a JSON object has a field of this name, in either spelling."""
    return get(fields_of(raw), name) is not None


def join_messages(wires: Sequence[bytes], own_positions: Collection[int]) -> list[bytes]:
    """Merges the proxy's own blocks with the user contents beside them, so that roles alternate as before.

    A block before results follows them in their content: nothing may come between a call and its result.
    """
    return join_blocks(wires, own_positions, _from_user, _from_user, _merge_contents)


def _merge_contents(wires: Sequence[bytes]) -> bytes:
    contents = [fields_of(wire) for wire in wires]
    *earlier, last = [items_of(fields["parts"]) for fields in contents]
    texts = [part for parts in earlier for part in parts]
    if _has_result(last):
        end = max(index for index, part in enumerate(last) if _is_result(part)) + 1
        return object_of({**contents[-1], "parts": list_of([*last[:end], *texts, *last[end:]])})
    return object_of({**contents[-1], **contents[0], "parts": list_of([*texts, *last])})


def _has_result(parts: Sequence[bytes]) -> bool:
    return any(map(_is_result, parts))


def _is_result(part: bytes) -> bool:
    return is_object(part) and has_field(part, "functionResponse")


def _from_user(wire: bytes) -> bool:
    """Whether a content is the user's, with a list of parts."""
    fields = fields_of(wire) if is_object(wire) else {}
    return fields.get("role", NULL) in _USER and is_list(fields.get("parts", NULL))
