"""Finds and replaces JSON values as bytes, without decoding and encoding the rest."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import msgspec

FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
"""Decodes an object's fields to raw values."""

NULL = b"null"
_ENTRIES = msgspec.json.Decoder(list[msgspec.Raw])
_encode = msgspec.json.encode


class _ModelField(msgspec.Struct):
    model: str | None = None


_MODEL_DECODER = msgspec.json.Decoder(_ModelField)

# Bytes that are searched in one call, during which no other thread runs.
_PIECE = 1 << 18
_UNCOUNTED_BYTES = bytes(set(range(256)) - set(b"{[,:"))
_BACKSLASHES = re.compile(rb"\\*")
SPACE = re.compile(rb"\s*")
_KEY = re.compile(rb'[\s,{]*("(?:[^"\\]|\\.)*")\s*:\s*')
_SEPARATOR = re.compile(rb"[\s,]*")
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_TOKEN = re.compile(rb"[{}\[\]]|" + _STRING, re.DOTALL)
_TEXT_VALUE = re.compile(rb"\s*+:\s*+(" + _STRING + rb")", re.DOTALL)


def fields_of(raw: bytes) -> dict[str, bytes]:
    """Returns the fields of a JSON object as bytes, in order. Raises ValueError if it is no object."""
    return {name: bytes(value) for name, value in FIELDS.decode(raw).items()}


def items_of(raw: bytes | msgspec.Raw) -> list[bytes]:
    """Returns the entries of a JSON list as bytes. Raises ValueError if it is no list."""
    return list(map(bytes, _ENTRIES.decode(raw)))


def object_of(fields: Mapping[str, bytes]) -> bytes:
    """Returns the JSON object with these fields, without white space between them."""
    return b"{" + b",".join([_encode(name) + b":" + value for name, value in fields.items()]) + b"}"


def list_of(items: Iterable[bytes]) -> bytes:
    """Returns the JSON list of these entries, without white space between them."""
    return b"[" + b",".join(items) + b"]"


def is_text(raw: bytes) -> bool:
    """Whether the bytes of a JSON value are those of a string."""
    return raw[:1] == b'"'


def is_list(raw: bytes) -> bool:
    """Whether the bytes of a JSON value are those of a list."""
    return raw[:1] == b"["


def is_object(raw: bytes) -> bool:
    """Whether the bytes of a JSON value are those of an object."""
    return raw[:1] == b"{"


def remove_fields(fields: dict[str, bytes], *names: str) -> None:
    """Removes fields if they are present."""
    for name in names:
        fields.pop(name, None)


class SplitBody(msgspec.Struct, frozen=True):
    """A body that is split at its list. `head` and `leading_fields`: see `split_at_list`; `pieces` and `end`: see
    `split_entries`. `fields` are all fields but the list, `entries` those of the list."""

    head: bytes
    leading_fields: dict[str, bytes]
    fields: dict[str, bytes]
    entries: list[bytes]
    pieces: tuple[bytes, ...]
    end: int


def split_body(body: bytes, messages_field: str) -> SplitBody | None:
    """Splits a body at its list, in one pass over its bytes. Raises msgspec.MsgspecError and the like if it is no JSON.

    None where the list is no array, or empty, or where a field comes twice.
    """
    decoder, opening = _list_reader(messages_field)
    try:
        entries = list(map(bytes, decoder.decode(body).entries))
    except msgspec.ValidationError:
        return None
    for match in opening.finditer(body) if entries else ():
        start = match.end()
        pieces, end = split_entries(body, start, entries)
        list_end = SPACE.match(body, end).end()  # type: ignore[union-attr]  # it always matches
        if len(pieces) < 2 * len(entries) or body[list_end : list_end + 1] != b"]":
            continue  # The name of a field within another field.
        # The entries are known to be JSON. So they are the list's if the rest has an empty list in their place.
        rest = body[:start] + body[list_end:]
        raw = FIELDS.decode(rest)
        found = split_at_list(rest, messages_field, raw)
        if found is None or (len(found[0]), found[2]) != (start, start):
            return None
        fields = {name: bytes(value) for name, value in raw.items() if name != messages_field}
        return SplitBody(found[0], found[1], fields, entries, pieces, end)
    return None


@lru_cache(16)
def _list_reader(messages_field: str) -> tuple[msgspec.json.Decoder[Any], re.Pattern[bytes]]:
    """Returns a decoder of a body's list, and the pattern of where it begins."""
    fields = [("entries", list[msgspec.Raw], msgspec.field(name=messages_field))]
    body_type = msgspec.defstruct("ListOfBody", fields)
    opening = re.compile(rb'"%b"\s*+:\s*+\[' % re.escape(messages_field.encode()))
    return msgspec.json.Decoder(body_type), opening


def split_at_list(
    body: bytes, messages_field: str, raw: Mapping[str, msgspec.Raw]
) -> tuple[bytes, dict[str, bytes], int] | None:
    """Returns the body up to the list's opening bracket, the fields before the list, and the list's closing bracket.

    Walks the top level by the lengths of its values, and checks only the brackets of the list, which may be long:
    `split_entries` checks its entries. None where the list is no array, or where a field comes twice (then the last one
    counts, and the positions of the others are not known).
    """
    position, leading_fields, head, list_end = 0, {}, b"", 0
    for name, value in raw.items():
        key = _KEY.match(body, position)
        if key is None:
            return None
        start, position = key.end(), key.end() + len(memoryview(value))
        if name == messages_field:
            head, list_end = body[: start + 1], position - 1
            if head[-1:] != b"[" or body[list_end:position] != b"]":
                return None
            continue
        text = bytes(value)
        if not body.startswith(text, start):
            return None
        if not head:
            leading_fields[name] = text
    value_end = SPACE.match(body, position).end()  # type: ignore[union-attr]  # it always matches
    return (head, leading_fields, list_end) if head and body[value_end : value_end + 1] == b"}" else None


def split_entries(body: bytes, position: int, wires: list[bytes]) -> tuple[tuple[bytes, ...], int]:
    """Returns, in turn, the bytes before each entry (commas, white space) and the entry, and the end of the last one.

    Begins at `position`, and stops at the first entry that is not there.
    """
    pieces: list[bytes] = []
    for wire in wires:
        start = _SEPARATOR.match(body, position).end()  # type: ignore[union-attr]  # it always matches
        if not body.startswith(wire, start):
            break
        pieces += (body[position:start], wire)
        position = start + len(wire)
    return tuple(pieces), position


def exceeds_count(body: bytes, start: int, limit: int) -> bool:
    """Whether `body` has more than `limit` keys and values from `start` on, where no string is open. It counts commas,
    colons and opening brackets outside of strings, without parsing."""
    if not _may_exceed_count(body, start, limit):
        return False
    count, position, is_in_string = 0, start, False
    while position < len(body) and count <= limit:
        end = position + _PIECE
        if body[end - 1 : end] == b"\\":
            # A backslash and the character that it escapes stay together.
            end = _BACKSLASHES.match(body, end).end() + 1  # type: ignore[union-attr]  # it always matches
        pieces = body[position:end].replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        count += len(b"".join(pieces[is_in_string::2]).translate(None, _UNCOUNTED_BYTES))
        is_in_string ^= len(pieces) % 2 == 0
        position = end
    return count > limit


def _may_exceed_count(body: bytes, start: int, limit: int) -> bool:
    """Counts commas, colons and opening brackets from `start` on, those in strings too: a seventh of the time. It stops
    where the bytes that are left are too few."""
    count, position = 0, start
    while count <= limit < count + len(body) - position:
        count += len(body[position : position + _PIECE].translate(None, _UNCOUNTED_BYTES))
        position += _PIECE
    return count > limit


def find_model(body: bytes) -> str | None:
    """Returns the model that a JSON body names at its top level; None where it names none, or is no JSON object."""
    try:
        return _MODEL_DECODER.decode(body).model
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        start, end = _model_span(body)
        try:
            return msgspec.json.decode(body[start:end], type=str)
        except (msgspec.MsgspecError, UnicodeError):
            return None


def with_model(body: bytes, model: str) -> bytes:
    """Returns the body with another model and every other byte unchanged.

    A body in which a field comes twice is encoded again, field by field. Raises msgspec.DecodeError where the body
    names no model.
    """
    value = msgspec.json.encode(model)
    try:
        return with_fields(body, {"model": value})
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        start, end = _model_span(body)
        if not end:
            raise
        return body[:start] + value + body[end:]


def with_fields(raw: bytes, changed: Mapping[str, bytes | None]) -> bytes:
    """Returns a JSON object with fields replaced by JSON values, or removed if None, and every other byte unchanged.

    Fields that it does not have are ignored. An object in which a field comes twice is encoded again, field by field.
    Raises msgspec.DecodeError and the like where it cannot be decoded.
    """
    fields = FIELDS.decode(raw)
    if not changed.keys() & fields.keys():
        return raw
    out: list[bytes] = []
    position = copied_end = 0
    has_field, is_removing = False, False  # whether a field before remains; whether the first ones are being removed
    for name, value in fields.items():
        key, text = _KEY.match(raw, position), bytes(value)
        if key is None or not raw.startswith(text, key.end()):
            break
        previous_end, position = position, key.end() + len(text)
        new_value = changed.get(name, text)
        quote = key.start(1)
        if new_value is None:
            if has_field:
                out.append(raw[copied_end:previous_end])
                copied_end = position
            elif not is_removing:
                out.append(raw[copied_end:quote])
            is_removing = is_removing or not has_field
            continue
        if is_removing:
            copied_end, is_removing = quote, False
        has_field = True
        if name in changed:
            out += (raw[copied_end : key.end()], new_value)
            copied_end = position
    else:
        if raw[position:].strip() == b"}":
            return b"".join(out) + raw[position if is_removing else copied_end :]
    merged = {name: changed.get(name, bytes(value)) for name, value in fields.items()}
    return object_of({name: value for name, value in merged.items() if value is not None})


def _model_span(body: bytes) -> tuple[int, int]:
    """Returns the span of the top-level `model` in a body that cannot be decoded (lone surrogates, NaN, nesting), or
    `(0, 0)`. Of several the last counts, as everywhere."""
    depth, span = 0, (0, 0)
    if body.lstrip()[:1] != b"{":
        return span
    for token in _TOKEN.finditer(body):
        text = token.group()
        if text in (b"{", b"["):
            depth += 1
        elif text in (b"}", b"]"):
            depth -= 1
        elif depth == 1 and text == b'"model"' and (value := _TEXT_VALUE.match(body, token.end())) is not None:
            span = value.span(1)
    return span
