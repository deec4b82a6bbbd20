"""Reads the events of Anthropic Messages, and writes them back with as few changes as possible.

Source: the streaming reference of the Messages API.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from accordion.protocols.json_spans import NULL, fields_of, object_of
from accordion.protocols.json_values import as_string, encode
from accordion.protocols.message_keys import decode_json
from accordion.protocols.sse import read_events

_NONE: Final = msgspec.Raw(b"")
# A text delta in Anthropic's layout, up to the text. (Spaces may precede its last brace.)
_TEXT_DELTA = re.compile(
    rb'(?:event: ?content_block_delta\n)?data: ?\{"type": ?"content_block_delta", ?"index": ?(\d+), ?"delta": ?\{'
    rb'"type": ?"(?:text|thinking|input_json)_delta", ?"(?:text|thinking|partial_json)": ?"'
)
# An event in Anthropic's layout, up to and with the index.
_INDEX = re.compile(rb'(?:event: ?[a-z_]+\n)?data: ?\{"type": ?"content_block_[a-z]+", ?"index": ?(\d+)[,}]')


class ContentDelta(msgspec.Struct):
    """The `delta` of a content_block_delta event, with the fields of all types of deltas."""

    type: str = ""
    text: str = ""
    partial_json: str = ""
    thinking: str = ""
    signature: str = ""
    citation: msgspec.Raw = _NONE
    content: msgspec.Raw = _NONE
    encrypted_content: msgspec.Raw = _NONE


class MessagesEvent(msgspec.Struct):
    """The data of an event that matters, with the fields of all types of events."""

    type: str = ""
    index: int = -1
    delta: ContentDelta | None = None
    content_block: msgspec.Raw = _NONE
    message: msgspec.Raw = _NONE
    usage: msgspec.Raw = _NONE


_decode = msgspec.json.Decoder(MessagesEvent).decode
_decode_text = msgspec.json.Decoder(str).decode


def read_event(piece: bytes) -> MessagesEvent | None:
    """Reads an event; None where it is unreadable."""
    position = piece.find(b"\ndata:")
    if position >= 0 and not piece.startswith(b"data"):
        try:
            # The usual layout needs no copy of the data.
            return _decode(piece[position + 6 :])
        except (ValueError, RecursionError):
            pass
    data = _data(piece)
    try:
        return None if data is None else _decode(data)
    except (ValueError, RecursionError):
        return None


class DeltaPattern:
    """Recognises deltas of one block that are equal except for their text: `opening` is an event up to its text.

    Such events need not be read when they come, and their texts are decoded together.
    """

    __slots__ = ("_between_texts", "_opening", "match", "run")

    def __init__(self, opening: bytes, excluded_bytes: bytes = b"") -> None:
        escaped = re.escape(opening)
        self._opening = opening
        events = re.compile(rb"(?:" + escaped + rb"[^\n" + excluded_bytes + rb"]*+\n\n)++")
        self.match, self.run = events.fullmatch, events.match
        """Match only such events, without a byte of `excluded` in their texts: a complete block, or from a position
        on."""
        self._between_texts = re.compile(rb'"\} *+\}\n\n(?:' + escaped + rb"|\Z)")

    def read_text(self, raw: bytes) -> str | None:
        """Returns the joined text of such events; None where they have other content, or are unreadable.

        The braces before a line end close a text: line ends within a text are escaped, so no bare one may be left.
        """
        text = self._between_texts.sub(b"", raw[len(self._opening) :])
        try:
            return _decode_text(b'"' + text + b'"')
        except ValueError:
            return None


def delta_opening(piece: bytes, index: int) -> bytes:
    """Returns a text delta of the block `index` up to its text; empty for other events and layouts."""
    match = _TEXT_DELTA.match(piece)
    return match.group() if match is not None and match.group(1) == b"%d" % index else b""


def read_fields(piece: bytes) -> dict[str, bytes]:
    """Returns the fields of an event's data. Raises ValueError if it is no object."""
    return fields_of(_data(piece) or NULL)


def with_index(piece: bytes, new_index: int) -> bytes:
    """Returns an event with another index."""
    index = b"%d" % new_index
    match = _INDEX.match(piece)
    if match is None:
        return with_fields(piece, {"index": index})
    return piece[: match.start(1)] + index + piece[match.end(1) :]


def with_fields(piece: bytes, fields: Mapping[str, bytes]) -> bytes:
    """Returns an event with some fields of its data replaced."""
    data = {**read_fields(piece), **fields}
    return _event(as_string(decode_json(data.get("type", NULL))), object_of(data))


def arguments_event(index: int, text: str) -> bytes:
    """Returns an event with a piece of a call's arguments; empty without text."""
    if not text:
        return b""
    delta = {"type": "input_json_delta", "partial_json": text}
    return _event("content_block_delta", encode({"type": "content_block_delta", "index": index, "delta": delta}))


def _event(name: str, data: bytes) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), data)


def _data(piece: bytes) -> bytes | None:
    event = next(read_events(piece), None)
    return None if event is None else event.data
