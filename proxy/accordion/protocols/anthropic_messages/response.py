"""Parses the responses of Anthropic Messages, and writes their events back with as few changes as possible.

Theory of operation. A response is one message, or a stream: `message_start` has the message without content, then
`content_block_start`, `content_block_delta` and `content_block_stop` come for each content block, by its index, then
`message_delta` with the stop reason, and `message_stop`. `ping` and `error` may come anywhere. Counts of usage are
cumulative: those of `message_delta` replace those of `message_start`. A call begins with an empty input, which comes in
pieces; some servers give it all at once.

MessagesParser turns either into the events of response_parser.py. The tool loop rewrites events; `read_messages_event`
reads one as a MessagesEvent, and `with_index` and `with_fields` write a changed one, in which all else is still the
provider's JSON. Deltas that only add text have the same bytes before it: DeltaPattern recognises those by one pattern,
so that they pass unread.

Sources: the streaming reference of the Messages API; the type files of the anthropic SDK.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from accordion.model.records import Usage
from accordion.protocols.anthropic_messages.message_json import CALLS, HOSTED
from accordion.protocols.json_spans import NULL, fields_of, object_of
from accordion.protocols.json_values import arguments_text, as_count, as_list, as_mapping, as_string
from accordion.protocols.message_keys import decode_json
from accordion.protocols.response_parser import (
    END,
    RESPONSE_START,
    CallPiece,
    Content,
    Finish,
    Identity,
    ResponseEvent,
    ResponseParser,
    ResponsePart,
    UsageReport,
    content_of_list,
    frame_event,
)
from accordion.protocols.sse import read_events

INPUT_COUNTS = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
"""The counts whose sum is the input."""

_NONE: Final = msgspec.Raw(b"")
# A text delta in Anthropic's layout, up to the text. (Spaces may precede its last brace.)
_TEXT_DELTA = re.compile(
    rb'(?:event: ?content_block_delta\n)?data: ?\{"type": ?"content_block_delta", ?"index": ?(\d+), ?"delta": ?\{'
    rb'"type": ?"(?:text|thinking|input_json)_delta", ?"(?:text|thinking|partial_json)": ?"'
)
# An event in Anthropic's layout, up to and with the index.
_INDEX = re.compile(rb'(?:event: ?[a-z_]+\n)?data: ?\{"type": ?"content_block_[a-z]+", ?"index": ?(\d+)[,}]')


class EventDelta(msgspec.Struct):
    """The `delta` of a content_block_delta or message_delta event, with the fields of all types of deltas."""

    type: str = ""
    text: str = ""
    partial_json: str = ""
    thinking: str = ""
    signature: str = ""
    citation: msgspec.Raw = _NONE
    content: msgspec.Raw = _NONE
    encrypted_content: msgspec.Raw = _NONE
    stop_reason: Any = None
    container: Any = None


class MessagesEvent(msgspec.Struct):
    """The data of an event, with the fields of all types of events."""

    type: str = ""
    index: int = -1
    delta: EventDelta | None = None
    content_block: msgspec.Raw = _NONE
    message: msgspec.Raw = _NONE
    usage: msgspec.Raw = _NONE


_decode = msgspec.json.Decoder(MessagesEvent).decode
_decode_text = msgspec.json.Decoder(str).decode


class MessagesParser(ResponseParser):
    """Parses a message, or a stream of events."""

    def __init__(self, *, is_stream: bool, reads_content: bool = False) -> None:
        super().__init__(is_stream=is_stream, reads_content=reads_content)
        self._counts: dict[str, Any] = {}
        self._first_usage: Usage | None = None
        self._usage: Usage | None = None
        self._has_hosted_call = False
        # The number of the call that began last at each index.
        self._calls: dict[int, int] = {}
        self._call_count = 0

    def may_matter(self, block: bytes) -> bool:
        """Selects all events but content deltas; of these only the deltas of a call's input."""
        return (
            b"message_" in block
            or b"content_block_start" in block
            or b"input_json_delta" in block
            or (b"error" in block and (b'"error"' in block or b"event: error" in block))
        )

    def parse_event(self, raw: bytes) -> ResponseEvent:
        """Parses an event, by a faster way if it is a delta of a call's input."""
        if not self.reads_content and b"input_json_delta" in raw:
            value = read_messages_event(raw)
            if value is not None and value.delta is not None and value.delta.type == "input_json_delta":
                return ResponseEvent(raw, parts=self._read_input(value.index, value.delta.partial_json))
        return super().parse_event(raw)

    def read_data(self, data: dict[str, Any]) -> tuple[ResponsePart, ...]:
        """Returns the meaning of an event by its own type."""
        kind = data.get("type")
        if kind == "message_start":
            message = as_mapping(data.get("message"))
            report = self._count(message)
            self._first_usage = self._usage
            return (RESPONSE_START, _identity(message), report)
        if kind == "content_block_start":
            return self._begin_block(as_count(data.get("index")), as_mapping(data.get("content_block")))
        if kind == "message_delta":
            reason = as_string(as_mapping(data.get("delta")).get("stop_reason"))
            report = self._count(data)
            return (Finish(reason), report) if reason else (report,)
        if kind == "message_stop":
            return (END,)
        is_delta = kind == "content_block_delta"
        return self._read_delta(as_count(data.get("index")), as_mapping(data.get("delta"))) if is_delta else ()

    def read_document(self, data: dict[str, Any]) -> tuple[ResponsePart, ...]:
        """Returns the meaning of a message."""
        blocks = [as_mapping(block) for block in as_list(data.get("content"))]
        call_blocks = [block for block in blocks if as_string(block.get("type")) in CALLS]
        calls = [
            _call_piece(position, block, arguments_text(block.get("input")))
            for position, block in enumerate(call_blocks)
        ]
        usage = as_mapping(data.get("usage"))
        is_sum = "iterations" not in usage and any(as_string(block.get("type")) in HOSTED for block in blocks)
        content = content_of_list([block for block in blocks if block not in call_blocks]) if self.reads_content else ()
        reason = as_string(data.get("stop_reason"))
        return (
            _identity(data),
            *content,
            *calls,
            UsageReport(read_usage(usage), 0 if is_sum else None),
            Finish(reason),
        )

    def _begin_block(self, index: int, block: dict[str, Any]) -> tuple[ResponsePart, ...]:
        kind = as_string(block.get("type"))
        self._has_hosted_call = self._has_hosted_call or kind in HOSTED
        if kind not in CALLS:
            self._calls.pop(index, None)
            return content_of_list([block]) if self.reads_content else ()
        key = self._calls[index] = self._call_count
        self._call_count += 1
        whole_input = as_mapping(block.get("input"))
        return (_call_piece(key, block, arguments_text(whole_input) if whole_input else ""),)

    def _read_delta(self, index: int, delta: dict[str, Any]) -> tuple[ResponsePart, ...]:
        kind = delta.get("type")
        if kind == "input_json_delta":
            return self._read_input(index, as_string(delta.get("partial_json")))
        if not self.reads_content:
            return ()
        if kind == "text_delta":
            return (Content("text", as_string(delta.get("text"))),)
        return (
            Content("reasoning", as_string(delta.get("thinking"))) if kind == "thinking_delta" else Content("other"),
        )

    def _read_input(self, index: int, text: str) -> tuple[ResponsePart, ...]:
        key = self._calls.get(index)
        return () if key is None else (CallPiece(key, "", "", text),)

    def _count(self, holder: dict[str, Any]) -> UsageReport:
        usage = as_mapping(holder.get("usage"))
        self._counts.update((name, value) for name, value in usage.items() if value is not None)
        self._usage = read_usage(self._counts) or self._usage
        if not self._has_hosted_call or "iterations" in self._counts:
            return UsageReport(self._usage)
        return UsageReport(self._usage, self._first_usage.input if self._first_usage is not None else 0)


def _identity(message: Mapping[str, Any]) -> Identity:
    return Identity(as_string(message.get("id")), as_string(message.get("model")))


def _call_piece(key: int, block: Mapping[str, Any], arguments: str) -> CallPiece:
    return CallPiece(key, as_string(block.get("id")), as_string(block.get("name")), arguments, is_whole=True)


def read_usage(usage: Mapping[str, Any]) -> Usage | None:
    """Reads a usage object; None where it has no counts.

    The input is the sum of uncached tokens, cache writes and cache reads. If the provider ran several rounds
    (`iterations`), the input is that of the model's last round; a compaction's own count is none.
    """
    if "input_tokens" not in usage and "output_tokens" not in usage:
        return None
    rounds = [as_mapping(entry) for entry in as_list(usage.get("iterations"))]
    last_round = next((entry for entry in reversed(rounds) if entry.get("type") == "message"), usage)
    uncached_tokens, cache_writes, cache_reads = (as_count(last_round.get(name)) for name in INPUT_COUNTS)
    return Usage(
        input=uncached_tokens + cache_writes + cache_reads,
        output=as_count(usage.get("output_tokens")),
        cached=cache_reads,
        cache_write=cache_writes,
        reasoning=as_count(as_mapping(usage.get("output_tokens_details")).get("thinking_tokens")),
    )


def read_messages_event(raw: bytes) -> MessagesEvent | None:
    """Reads the data of an event; None where it is no MessagesEvent."""
    position = raw.find(b"\ndata:")
    if position >= 0 and not raw.startswith(b"data"):
        try:
            # The usual layout needs no search for lines.
            return _decode(raw[position + 6 :])
        except (ValueError, RecursionError):
            pass
    data = frame_event(raw).data
    try:
        return None if data is None else _decode(data)
    except (ValueError, RecursionError):
        return None


class DeltaPattern:
    """Recognises deltas of one block that are equal except for their text: `opening` is an event up to its text.

    Such events need not be read when they come, and their texts are decoded together.
    """

    __slots__ = ("_between_texts", "_opening", "match", "run")

    def __init__(self, opening: bytes) -> None:
        escaped = re.escape(opening)
        self._opening = opening
        events = re.compile(rb"(?:" + escaped + rb"[^\n]*+\n\n)++")
        self.match, self.run = events.fullmatch, events.match
        """Match only such events: a complete block, or from a position on."""
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
    name = as_string(decode_json(data.get("type", NULL)))
    return b"event: %s\ndata: %s\n\n" % (name.encode(), object_of(data))


def _data(piece: bytes) -> bytes | None:
    event = next(read_events(piece), None)
    return None if event is None else event.data
