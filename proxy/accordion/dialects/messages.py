"""Anthropic Messages: `POST /v1/messages`.

Source: the type files of the anthropic SDK (`anthropic/types`, `anthropic/types/beta`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from accordion.core.conversation import Kept, Message, Part
from accordion.core.errors import AccordionError, ContextOverflow, ThreadGone
from accordion.core.records import CallSeen, ReplySeen, Usage
from accordion.dialects import messages_writing
from accordion.dialects.base import Dialect, ReadMessage, Tap
from accordion.dialects.keys import read, tidy
from accordion.dialects.legality import messages_problems
from accordion.dialects.messages_blocks import CALLS, HOSTED, parts
from accordion.dialects.messages_events import event_of
from accordion.dialects.shared import (
    arguments_text,
    count,
    definitions,
    encode,
    entries,
    field,
    limit,
    mapping,
    noted,
    opaque,
    refused,
    role_of,
    string,
)
from accordion.dialects.tap import BodyTap, StreamTap

_INPUTS = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")


class Messages(Dialect):
    """The dialect of Anthropic's Messages."""

    name = "messages"
    listing = "messages"
    marks = True
    request_id = b"request-id"

    def message(self, raw: bytes) -> ReadMessage:
        """Reads one message. Results that a user's tools gave stand in user messages, those of the provider's own
        tools in assistant messages."""
        entry = read(raw)
        if type(entry) is not dict:
            return ReadMessage("other", (opaque(entry),), [entry])
        return ReadMessage(role_of(entry.get("role")), tuple(parts(entry.get("content"))), tidy(entry))

    def is_preamble(self, message: ReadMessage) -> bool:
        """The system prompt is a field; a system message with nothing before it is read as a part of it."""
        return message.role in {"system", "developer"}

    def preamble(self, fields: Mapping[str, bytes]) -> tuple[Part, ...]:
        """`system`, a string or blocks."""
        return tuple(parts(field(fields, "system")))

    def tools(self, fields: Mapping[str, bytes]) -> tuple[str, ...]:
        """Tools, and the schema of the answer."""
        config = mapping(field(fields, "output_config"))
        output_format = mapping(config.get("format") or field(fields, "output_format"))
        return definitions(field(fields, "tools"), output_format.get("schema"))

    def max_output(self, fields: Mapping[str, bytes]) -> int | None:
        """`max_tokens`."""
        return limit(fields, "max_tokens")

    def previous(self, fields: Mapping[str, bytes]) -> str | None:
        """The message that a thread kept by the provider goes on from (beta message-threads)."""
        thread = field(fields, "thread")
        return string(mapping(thread).get("previous_message_id")) or None

    def kept(self, fields: Mapping[str, bytes]) -> Kept:
        """A `thread`, where the request begins one or goes on from one."""
        return "thread" if mapping(field(fields, "thread")) else ""

    def error(self, error: AccordionError, request_id: str) -> bytes:
        """`{"type": "error", "error": {type, message}, "request_id"}`; an overflow in Anthropic's own words, to the
        letter: agents match the whole message. A thread that is gone has `details`, which the SDKs' helpers read."""
        message = error.message
        if isinstance(error, ContextOverflow):
            message = f"prompt is too long: {error.tokens} tokens > {error.limit} maximum"
        inner: dict[str, Any] = {"type": error.anthropic_type, "message": message}
        if isinstance(error, ThreadGone):
            inner["details"] = {"error_code": error.code}
        return encode({"type": "error", "error": inner, "request_id": request_id})

    def stream_error(self, error: AccordionError, request_id: str, before: bytes = b"") -> bytes:
        """An `error` event, on which the official SDKs raise; no `message_stop` follows."""
        return b"event: error\ndata: " + self.error(error, request_id) + b"\n\n"

    def stream_refusal(self, body: bytes) -> bytes:
        """The same with what the provider said."""
        said = refused(body)
        if not said:
            return b""
        told = {**said, "type": "error", "error": {"type": "api_error", **said["error"]}}
        return b"event: error\ndata: " + encode(told) + b"\n\n"

    def edit(self, message: Message, changes: Mapping[int, str | None]) -> bytes | None:
        """A message with parts changed. An assistant's message that only thinks is nothing."""
        return messages_writing.edited(message, changes)

    def text(self, text: str) -> bytes:
        """`{"role": "user", "content": [{"type": "text", "text"}]}`."""
        return messages_writing.block(text)

    def joined(self, wires: Sequence[bytes], ours: Collection[int]) -> list[bytes]:
        """Our blocks become a part of the user's messages beside them."""
        return messages_writing.joined(wires, ours)

    def marked(self, wire: bytes) -> bytes:
        """`cache_control` on the last block that may carry it."""
        return messages_writing.marked(wire)

    def problems(self, messages: Sequence[Message]) -> list[str]:
        """Results at the start of the user's message behind the calls, nothing empty, the user first."""
        return messages_problems(messages)

    def tap(self, stream: bool) -> Tap:
        """A tap for events, or for a whole message."""
        return _EventTap() if stream else BodyTap(_whole)


class _EventTap(StreamTap):
    """Watches events. Counts are cumulative: what `message_delta` says replaces what `message_start` said."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: dict[str, Any] = {}
        self._opened: Usage | None = None
        self._hosted = False

    def matters(self, block: bytes) -> bool:
        """Of the deltas of content only those of a call's input say something here."""
        return (
            b"message_" in block
            or b"content_block_start" in block
            or b"input_json_delta" in block
            or (b"error" in block and (b'"error"' in block or b"event: error" in block))
        )

    def event(self, data: dict[str, Any]) -> None:
        """Reads one event by its own type."""
        kind = data.get("type")
        if kind == "message_start":
            message = mapping(data.get("message"))
            self.response_id = string(message.get("id"))
            self.model = string(message.get("model"))
            self._count(message)
            self._opened = self.usage
        elif kind == "content_block_start":
            block = mapping(data.get("content_block"))
            kind = string(block.get("type"))
            if kind in CALLS:
                self._begun(count(data.get("index")), block)
            self._hosted = self._hosted or kind in HOSTED
        elif kind == "message_delta":
            self.finish = string(mapping(data.get("delta")).get("stop_reason")) or self.finish
            self._count(data)
        elif kind == "message_stop":
            self.ended = True
        elif kind == "error":
            self.fail(data)

    def _begun(self, index: int, block: dict[str, Any]) -> None:
        """A call begins with an empty input, and its input comes in pieces; some servers give it all at once."""
        given = mapping(block.get("input"))
        self.calls[index] = CallSeen(
            string(block.get("id")), string(block.get("name")), noted(arguments_text(given)) if given else ""
        )

    def _read(self, piece: bytes) -> None:
        """Deltas of a call's input are read quickly."""
        read = event_of(piece) if b"input_json_delta" in piece else None
        if read is None or read.delta is None or read.delta.type != "input_json_delta":
            super()._read(piece)
        elif read.index in self.calls:
            self.given(read.index, read.delta.partial_json)

    def _count(self, holder: dict[str, Any]) -> None:
        said = mapping(holder.get("usage"))
        self._counts.update((name, value) for name, value in said.items() if value is not None)
        self.usage = _usage(self._counts) or self.usage
        if self._hosted and "iterations" not in self._counts:
            self.first = self._opened.input if self._opened is not None else 0


def _whole(data: dict[str, Any]) -> ReplySeen:
    blocks = [mapping(block) for block in entries(data.get("content"))]
    calls = (_made(block) for block in blocks if string(block.get("type")) in CALLS)
    usage = mapping(data.get("usage"))
    return ReplySeen(
        string(data.get("id")),
        string(data.get("model")),
        _usage(usage),
        string(data.get("stop_reason")),
        tuple(calls),
        first=0 if "iterations" not in usage and any(string(block.get("type")) in HOSTED for block in blocks) else None,
    )


def _made(block: dict[str, Any]) -> CallSeen:
    """A call that is whole."""
    arguments = noted(arguments_text(block.get("input")))
    return CallSeen(string(block.get("id")), string(block.get("name")), arguments)


def _usage(said: dict[str, Any]) -> Usage | None:
    """All input is the uncached, the written and the read. Where the provider went through several rounds
    (`iterations`), the context is that of the last one of the model; a compaction's own count is none."""
    if "input_tokens" not in said and "output_tokens" not in said:
        return None
    rounds = [mapping(entry) for entry in entries(said.get("iterations"))]
    last = next((entry for entry in reversed(rounds) if entry.get("type") == "message"), said)
    fresh, written, cached = (count(last.get(name)) for name in _INPUTS)
    return Usage(
        input=fresh + written + cached,
        output=count(said.get("output_tokens")),
        cached=cached,
        cache_write=written,
        reasoning=count(mapping(said.get("output_tokens_details")).get("thinking_tokens")),
    )
