"""The events of Anthropic's Messages: read where they stand, and written with as little changed as can be.

Source: the streaming reference of the Messages API.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from accordion.dialects.keys import read
from accordion.dialects.shared import encode, string
from accordion.dialects.spans import NULL, fields_of, object_of
from accordion.dialects.sse import events

_NONE: Final = msgspec.Raw(b"")
# A delta of text as Anthropic writes it, up to the text. Spaces may stand before its last brace.
_TOLD = re.compile(
    rb'(?:event: ?content_block_delta\n)?data: ?\{"type": ?"content_block_delta", ?"index": ?(\d+), ?"delta": ?\{'
    rb'"type": ?"(?:text|thinking|input_json)_delta", ?"(?:text|thinking|partial_json)": ?"'
)
# Where the index stands in an event as Anthropic writes it.
_INDEX = re.compile(rb'(?:event: ?[a-z_]+\n)?data: ?\{"type": ?"content_block_[a-z]+", ?"index": ?(\d+)[,}]')


class Delta(msgspec.Struct):
    """The `delta` of an event of the kind content_block_delta; the fields of all kinds in one."""

    type: str = ""
    text: str = ""
    partial_json: str = ""
    thinking: str = ""
    signature: str = ""
    citation: msgspec.Raw = _NONE
    content: msgspec.Raw = _NONE
    encrypted_content: msgspec.Raw = _NONE


class Event(msgspec.Struct):
    """What matters of an event's data; the fields of all kinds in one."""

    type: str = ""
    index: int = -1
    delta: Delta | None = None
    content_block: msgspec.Raw = _NONE
    message: msgspec.Raw = _NONE
    usage: msgspec.Raw = _NONE


_decode = msgspec.json.Decoder(Event).decode
_decode_text = msgspec.json.Decoder(str).decode


def event_of(piece: bytes) -> Event | None:
    """The event, where it is one that can be read."""
    at = piece.find(b"\ndata:")
    if at >= 0 and not piece.startswith(b"data"):
        try:
            # The usual layout is decoded where it stands.
            return _decode(piece[at + 6 :])
        except (ValueError, RecursionError):
            pass
    data = _data(piece)
    try:
        return None if data is None else _decode(data)
    except (ValueError, RecursionError):
        return None


class Alike:
    """Deltas of one block that are written as one before them, but for their text: as `opening`, up to where it stands.
    Such events need not be read when they come, and their texts are found together."""

    __slots__ = ("_closed", "_opening", "match", "run")

    def __init__(self, opening: bytes, but: bytes = b"") -> None:
        opened = re.escape(opening)
        self._opening = opening
        several = re.compile(rb"(?:" + opened + rb"[^\n" + but + rb"]*+\n\n)++")
        self.match, self.run = several.fullmatch, several.match
        """Whether these are nothing but whole events of that kind, in whose texts no byte of `but` stands; and those
        that follow a place."""
        self._closed = re.compile(rb'"\} *+\}\n\n(?:' + opened + rb"|\Z)")

    def text(self, raw: bytes) -> str | None:
        """What such events say together; None where they say more, or cannot be read. The closing at the end of a line
        ends a text: within one, line ends are escaped, and no bare one may be left."""
        text = self._closed.sub(b"", raw[len(self._opening) :])
        try:
            return _decode_text(b'"' + text + b'"')
        except ValueError:
            return None


def opening_of(piece: bytes, index: int) -> bytes:
    """How a delta of text of the block `index` begins; empty where it is none of the usual layout."""
    opened = _TOLD.match(piece)
    return opened.group() if opened is not None and opened.group(1) == b"%d" % index else b""


def fields_in(piece: bytes) -> dict[str, bytes]:
    """The fields of the event's data. Raises ValueError where they are no object."""
    return fields_of(_data(piece) or NULL)


def placed(piece: bytes, place: int) -> bytes:
    """The event of a content block with this index."""
    index = b"%d" % place
    usual = _INDEX.match(piece)
    if usual is None:
        return changed(piece, {"index": index})
    return piece[: usual.start(1)] + index + piece[usual.end(1) :]


def changed(piece: bytes, fields: Mapping[str, bytes]) -> bytes:
    """The event with some fields of its data replaced."""
    held = {**fields_in(piece), **fields}
    return _event(string(read(held.get("type", NULL))), object_of(held))


def argued(place: int, text: str) -> bytes:
    """A piece of a call's arguments as an event; nothing where there is none."""
    if not text:
        return b""
    delta = {"type": "input_json_delta", "partial_json": text}
    return _event("content_block_delta", encode({"type": "content_block_delta", "index": place, "delta": delta}))


def _event(name: str, data: bytes) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), data)


def _data(piece: bytes) -> bytes | None:
    event = next(events(piece), None)
    return None if event is None else event.data
