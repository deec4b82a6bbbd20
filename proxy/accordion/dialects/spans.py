"""Where the values of a body stand in its bytes: what lets us compare, and write back, without re-encoding."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
"""Decodes the top level of a body to raw values."""

NULL = b"null"
_ENTRIES = msgspec.json.Decoder(list[msgspec.Raw])
_encode = msgspec.json.encode


class _Named(msgspec.Struct):
    model: str | None = None


_NAMED = msgspec.json.Decoder(_Named)

# So many bytes are looked through in one call, during which no other thread runs.
_PIECE = 1 << 18
_OTHERS = bytes(set(range(256)) - set(b"{[,:"))
_BACKSLASHES = re.compile(rb"\\*")
SPACE = re.compile(rb"\s*")
_KEY = re.compile(rb'[\s,{]*("(?:[^"\\]|\\.)*")\s*:\s*')
_GAP = re.compile(rb"[\s,]*")
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_TOKEN = re.compile(rb"[{}\[\]]|" + _STRING, re.DOTALL)
_TEXT_VALUE = re.compile(rb"\s*+:\s*+(" + _STRING + rb")", re.DOTALL)


def fields_of(raw: bytes) -> dict[str, bytes]:
    """The fields of a JSON object, each as its own bytes, in their order. Raises ValueError where it is none."""
    return {name: bytes(value) for name, value in FIELDS.decode(raw).items()}


def items_of(raw: bytes | msgspec.Raw) -> list[bytes]:
    """The entries of a JSON list, each as its own bytes. Raises ValueError where it is none."""
    return list(map(bytes, _ENTRIES.decode(raw)))


def object_of(fields: Mapping[str, bytes]) -> bytes:
    """The JSON object that has these fields, without white space between them."""
    return b"{" + b",".join([_encode(name) + b":" + value for name, value in fields.items()]) + b"}"


def list_of(items: Iterable[bytes]) -> bytes:
    """The JSON list of these entries, without white space between them."""
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


def without(fields: dict[str, bytes], *names: str) -> None:
    """Takes fields out of `fields` where they are there."""
    for name in names:
        fields.pop(name, None)


def place(body: bytes, listing: str, raw: Mapping[str, msgspec.Raw]) -> tuple[bytes, dict[str, bytes], int] | None:
    """The body's beginning up to the list's first entry, the fields that stand there, and where the list's last bracket
    stands. Of the list, which may be long, only the brackets are looked at: that its entries stand there `laid` tells.

    Walks the top level by the lengths of its values. None where the list is no array, or where a field comes twice
    (then the last one counts, and the places of the others are not known).
    """
    at, before, head, closes = 0, {}, b"", 0
    for name, value in raw.items():
        key = _KEY.match(body, at)
        if key is None:
            return None
        start, at = key.end(), key.end() + len(memoryview(value))
        if name == listing:
            head, closes = body[: start + 1], at - 1
            if head[-1:] != b"[" or body[closes:at] != b"]":
                return None
            continue
        text = bytes(value)
        if not body.startswith(text, start):
            return None
        if not head:
            before[name] = text
    ends = SPACE.match(body, at).end()  # type: ignore[union-attr]  # it always matches
    return (head, before, closes) if head and body[ends : ends + 1] == b"}" else None


def laid(body: bytes, at: int, wires: list[bytes]) -> tuple[tuple[bytes, ...], int]:
    """What stands before each entry from `at` on (commas, white space) and the entry, in turn, and where the last one
    ends; shorter than that where they do not fit."""
    found: list[bytes] = []
    for wire in wires:
        start = _GAP.match(body, at).end()  # type: ignore[union-attr]  # it always matches
        if not body.startswith(wire, start):
            break
        found += (body[at:start], wire)
        at = start + len(wire)
    return tuple(found), at


def holds_more(body: bytes, start: int, most: int) -> bool:
    """Whether `body` holds more than `most` keys and values from `start` on, where no string is open, without parsing
    it: a comma, a colon and an opening bracket outside of strings stand for one each."""
    count, at, quoted = 0, start, False
    while at < len(body) and count <= most:
        end = at + _PIECE
        if body[end - 1 : end] == b"\\":
            # A backslash and what it escapes stay together.
            end = _BACKSLASHES.match(body, end).end() + 1  # type: ignore[union-attr]  # it always matches
        pieces = body[at:end].replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        count += len(b"".join(pieces[quoted::2]).translate(None, _OTHERS))
        quoted ^= len(pieces) % 2 == 0
        at = end
    return count > most


def named_model(body: bytes) -> str | None:
    """The model that a JSON body names at its top level; None where it names none, or is no such body."""
    try:
        return _NAMED.decode(body).model
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        start, end = _model_span(body)
        try:
            return msgspec.json.decode(body[start:end], type=str)
        except (msgspec.MsgspecError, UnicodeError):
            return None


def with_model(body: bytes, model: str) -> bytes:
    """The body with another model named and every other byte as it was.

    A body in which a field comes twice is written anew, field by field. Raises msgspec.DecodeError where the body
    names none.
    """
    named = msgspec.json.encode(model)
    try:
        return with_fields(body, {"model": named})
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        start, end = _model_span(body)
        if not end:
            raise
        return body[:start] + named + body[end:]


def with_fields(raw: bytes, changed: Mapping[str, bytes | None]) -> bytes:
    """A JSON object with some of its fields replaced (by JSON values) or, where that is None, taken out, and every
    other byte as it was. Names that it does not have mean nothing.

    An object in which a field comes twice is written anew, field by field. Raises msgspec.DecodeError and the like
    where it cannot be decoded.
    """
    fields = FIELDS.decode(raw)
    if not changed.keys() & fields.keys():
        return raw
    out: list[bytes] = []
    at = copied = 0
    opened, cutting = False, False  # whether a field stays before; whether the first ones are being taken out
    for name, value in fields.items():
        key, text = _KEY.match(raw, at), bytes(value)
        if key is None or not raw.startswith(text, key.end()):
            break
        before, at = at, key.end() + len(text)
        new = changed.get(name, text)
        quote = key.start(1)
        if new is None:
            if opened:
                out.append(raw[copied:before])
                copied = at
            elif not cutting:
                out.append(raw[copied:quote])
            cutting = cutting or not opened
            continue
        if cutting:
            copied, cutting = quote, False
        opened = True
        if name in changed:
            out += (raw[copied : key.end()], new)
            copied = at
    else:
        if raw[at:].strip() == b"}":
            return b"".join(out) + raw[at if cutting else copied :]
    left = {name: changed.get(name, bytes(value)) for name, value in fields.items()}
    return object_of({name: value for name, value in left.items() if value is not None})


def _model_span(body: bytes) -> tuple[int, int]:
    """Where the text of the top-level `model` stands in a body that cannot be decoded (lone surrogates, NaN, nesting);
    `(0, 0)` where there is none. Of several the last counts, as everywhere."""
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
