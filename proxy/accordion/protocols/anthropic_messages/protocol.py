"""The Anthropic Messages protocol: `POST /v1/messages`.

Theory of operation. A request has the system prompt in `system` and a list `messages` in which user and assistant
alternate. A message is a string or a list of content blocks: text, media, thinking, calls, and results, which come
first in the user message after their calls. blocks.py reads blocks into parts and writing.py edits them. Cache
breakpoints (`cache_control`) are explicit, so `with_breakpoint` sets them. A response is a message, or a stream of
events that start, extend and stop content blocks by index, between `message_start` and `message_stop`; `observer` reads
either. The artifact tool is in tools.py.

Source: the type files of the anthropic SDK (`anthropic/types`, `anthropic/types/beta`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from accordion.model.conversation import Message, Part, ProviderState
from accordion.model.errors import AccordionError, ContextOverflow, ThreadNotFound
from accordion.model.records import ObservedCall, ObservedResponse, Usage
from accordion.protocols.anthropic_messages import writing
from accordion.protocols.anthropic_messages.blocks import CALLS, HOSTED, read_parts
from accordion.protocols.anthropic_messages.events import read_event
from accordion.protocols.base import ReadMessage, ResponseObserver, WireProtocol
from accordion.protocols.json_values import (
    arguments_text,
    as_count,
    as_list,
    as_mapping,
    as_string,
    bounded_arguments,
    decode_field,
    encode,
    find_error,
    first_limit,
    opaque_part,
    role_of,
    tool_definitions,
)
from accordion.protocols.legality import find_messages_problems
from accordion.protocols.message_keys import canonical_object, decode_json
from accordion.protocols.response_observer import BodyObserver, StreamObserver

_INPUTS = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")


class AnthropicMessages(WireProtocol):
    """The Anthropic Messages protocol."""

    name = "messages"
    messages_field = "messages"
    has_breakpoints = True
    request_id = b"request-id"

    def read_message(self, raw: bytes) -> ReadMessage:
        """Reads one message. User messages have the results of the user's tools, assistant messages those of the
        provider's own tools."""
        entry = decode_json(raw)
        if type(entry) is not dict:
            return ReadMessage("other", (opaque_part(entry),), [entry])
        return ReadMessage(role_of(entry.get("role")), tuple(read_parts(entry.get("content"))), canonical_object(entry))

    def is_preamble(self, message: ReadMessage) -> bool:
        """Whether a message is the system's. The prompt is a field, and a system message at the start is a part of
        it."""
        return message.role in {"system", "developer"}

    def read_preamble(self, fields: Mapping[str, bytes]) -> tuple[Part, ...]:
        """Reads `system`, a string or blocks."""
        return tuple(read_parts(decode_field(fields, "system")))

    def read_tools(self, fields: Mapping[str, bytes]) -> tuple[str, ...]:
        """Reads tools, and the schema of the answer."""
        config = as_mapping(decode_field(fields, "output_config"))
        output_format = as_mapping(config.get("format") or decode_field(fields, "output_format"))
        return tool_definitions(decode_field(fields, "tools"), output_format.get("schema"))

    def read_max_output(self, fields: Mapping[str, bytes]) -> int | None:
        """Reads `max_tokens`."""
        return first_limit(fields, "max_tokens")

    def read_previous(self, fields: Mapping[str, bytes]) -> str | None:
        """Reads the id of the message that a stored thread continues from (beta message-threads)."""
        thread = decode_field(fields, "thread")
        return as_string(as_mapping(thread).get("previous_message_id")) or None

    def provider_state(self, fields: Mapping[str, bytes]) -> ProviderState:
        """Returns `thread` if the request begins or continues one."""
        return "thread" if as_mapping(decode_field(fields, "thread")) else ""

    def render_error(self, error: AccordionError, request_id: str) -> bytes:
        """Writes `{"type": "error", "error": {type, message}, "request_id"}`.

        An overflow has exactly Anthropic's own words, since agents match the whole message. A missing thread has
        `details`, which the SDKs' helpers read.
        """
        message = error.message
        if isinstance(error, ContextOverflow):
            message = f"prompt is too long: {error.tokens} tokens > {error.limit} maximum"
        details: dict[str, Any] = {"type": error.anthropic_type, "message": message}
        if isinstance(error, ThreadNotFound):
            details["details"] = {"error_code": error.code}
        return encode({"type": "error", "error": details, "request_id": request_id})

    def render_stream_error(self, error: AccordionError, request_id: str, before: bytes = b"") -> bytes:
        """Writes an `error` event, on which the official SDKs raise; no `message_stop` follows."""
        return b"event: error\ndata: " + self.render_error(error, request_id) + b"\n\n"

    def stream_provider_error(self, body: bytes) -> bytes:
        """Writes an `error` event with the provider's error."""
        error = find_error(body)
        if not error:
            return b""
        event = {**error, "type": "error", "error": {"type": "api_error", **error["error"]}}
        return b"event: error\ndata: " + encode(event) + b"\n\n"

    def edit_message(self, message: Message, changes: Mapping[int, str | None]) -> bytes | None:
        """Returns the message with parts changed; None if only thinking is left."""
        return writing.edit_message(message, changes)

    def text_message(self, text: str) -> bytes:
        """Returns `{"role": "user", "content": [{"type": "text", "text": text}]}`."""
        return writing.text_message(text)

    def join_messages(self, wires: Sequence[bytes], own_positions: Collection[int]) -> list[bytes]:
        """Merges the proxy's own blocks with the user messages beside them."""
        return writing.join_messages(wires, own_positions)

    def with_breakpoint(self, wire: bytes) -> bytes:
        """Sets `cache_control` on the last block that may carry it."""
        return writing.with_breakpoint(wire)

    def find_problems(self, messages: Sequence[Message]) -> list[str]:
        """Checks that results start the user message after their calls, that nothing is empty, and the user is
        first."""
        return find_messages_problems(messages)

    def observer(self, stream: bool) -> ResponseObserver:
        """Creates an observer of events, or of a message."""
        return _MessagesObserver() if stream else BodyObserver(_read_message)


class _MessagesObserver(StreamObserver):
    """Observes events. Counts are cumulative: those of `message_delta` replace those of `message_start`."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: dict[str, Any] = {}
        self._first_usage: Usage | None = None
        self._has_hosted_call = False

    def may_matter(self, block: bytes) -> bool:
        """Selects all events but content deltas; of these only the deltas of a call's input."""
        return (
            b"message_" in block
            or b"content_block_start" in block
            or b"input_json_delta" in block
            or (b"error" in block and (b'"error"' in block or b"event: error" in block))
        )

    def read_event(self, data: dict[str, Any]) -> None:
        """Reads one event by its own type."""
        kind = data.get("type")
        if kind == "message_start":
            message = as_mapping(data.get("message"))
            self.response_id = as_string(message.get("id"))
            self.model = as_string(message.get("model"))
            self._count(message)
            self._first_usage = self.usage
        elif kind == "content_block_start":
            block = as_mapping(data.get("content_block"))
            kind = as_string(block.get("type"))
            if kind in CALLS:
                self._begin_call(as_count(data.get("index")), block)
            self._has_hosted_call = self._has_hosted_call or kind in HOSTED
        elif kind == "message_delta":
            self.finish = as_string(as_mapping(data.get("delta")).get("stop_reason")) or self.finish
            self._count(data)
        elif kind == "message_stop":
            self.ended = True
        elif kind == "error":
            self.note_error(data)

    def _begin_call(self, index: int, block: dict[str, Any]) -> None:
        """Records a call. It begins with an empty input, which comes in pieces; some servers give it all at once."""
        arguments = as_mapping(block.get("input"))
        self.calls[index] = ObservedCall(
            as_string(block.get("id")),
            as_string(block.get("name")),
            bounded_arguments(arguments_text(arguments)) if arguments else "",
        )

    def _read(self, piece: bytes) -> None:
        """Reads one event, by a faster way if it is a delta of a call's input."""
        event = read_event(piece) if b"input_json_delta" in piece else None
        if event is None or event.delta is None or event.delta.type != "input_json_delta":
            super()._read(piece)
        elif event.index in self.calls:
            self.note_arguments(event.index, event.delta.partial_json)

    def _count(self, holder: dict[str, Any]) -> None:
        usage = as_mapping(holder.get("usage"))
        self._counts.update((name, value) for name, value in usage.items() if value is not None)
        self.usage = _read_usage(self._counts) or self.usage
        if self._has_hosted_call and "iterations" not in self._counts:
            self.first = self._first_usage.input if self._first_usage is not None else 0


def _read_message(data: dict[str, Any]) -> ObservedResponse:
    blocks = [as_mapping(block) for block in as_list(data.get("content"))]
    calls = (_read_call(block) for block in blocks if as_string(block.get("type")) in CALLS)
    usage = as_mapping(data.get("usage"))
    return ObservedResponse(
        as_string(data.get("id")),
        as_string(data.get("model")),
        _read_usage(usage),
        as_string(data.get("stop_reason")),
        tuple(calls),
        first=0
        if "iterations" not in usage and any(as_string(block.get("type")) in HOSTED for block in blocks)
        else None,
    )


def _read_call(block: dict[str, Any]) -> ObservedCall:
    """Reads a complete call."""
    arguments = bounded_arguments(arguments_text(block.get("input")))
    return ObservedCall(as_string(block.get("id")), as_string(block.get("name")), arguments)


def _read_usage(usage: dict[str, Any]) -> Usage | None:
    """Reads the usage. The input is the sum of uncached tokens, cache writes and cache reads. If the provider ran
    several rounds (`iterations`), the input is that of the model's last round; a compaction's own count is none."""
    if "input_tokens" not in usage and "output_tokens" not in usage:
        return None
    rounds = [as_mapping(entry) for entry in as_list(usage.get("iterations"))]
    last_round = next((entry for entry in reversed(rounds) if entry.get("type") == "message"), usage)
    uncached_tokens, cache_writes, cache_reads = (as_count(last_round.get(name)) for name in _INPUTS)
    return Usage(
        input=uncached_tokens + cache_writes + cache_reads,
        output=as_count(usage.get("output_tokens")),
        cached=cache_reads,
        cache_write=cache_writes,
        reasoning=as_count(as_mapping(usage.get("output_tokens_details")).get("thinking_tokens")),
    )
