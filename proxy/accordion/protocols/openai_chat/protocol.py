"""The OpenAI Chat Completions protocol: `POST /v1/chat/completions`.

Theory of operation. A request has one list, `messages`; system and developer messages at its start are the preamble.
`read_message` turns each message into parts (parts.py), `edit_message` and `join_messages` write messages back with as
few changes as possible (writing.py). A response is a completion (completion.py) or a stream of chunks that ends with
`[DONE]`; `observer` reads usage, finish reason and calls from either. Most chunks only add text, so the observer parses
a chunk only if a quick byte search finds a field that matters. The artifact tool is in tools.py.

Source: the type files of the openai SDK (`openai/types/chat`), and what compatible servers add to them
(`reasoning_content` of DeepSeek and vLLM, `reasoning` and `reasoning_details` of OpenRouter,
`thinking_blocks` of LiteLLM, `video_url` of vLLM, `x_groq` of Groq).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from accordion.model.conversation import Message, Part, Text, ToolResult
from accordion.model.errors import AccordionError, ContextOverflow
from accordion.protocols.base import ReadMessage, ResponseObserver, WireProtocol
from accordion.protocols.json_values import (
    as_count,
    as_list,
    as_mapping,
    as_string,
    decode_field,
    encode,
    find_error,
    first_limit,
    opaque_part,
    openai_error,
    role_of,
    tool_definitions,
)
from accordion.protocols.legality import find_chat_problems
from accordion.protocols.message_keys import canonical_object, canonical_text_message, decode_json
from accordion.protocols.openai_chat import writing
from accordion.protocols.openai_chat.completion import find_usage, read_any_form, read_published_form
from accordion.protocols.openai_chat.parts import read_calls, read_parts, read_reasoning, read_refusal_and_audio
from accordion.protocols.response_observer import BodyObserver, StreamObserver

_USAGE = re.compile(rb'"usage"\s*:\s*\{').search
# Without the quote before the name, the search is twice as fast. It finds `native_finish_reason` too, which only causes
# a needless read.
_FINISH = re.compile(rb'finish_reason"\s*:\s*"').search
_CALL = re.compile(rb'"(?:tool_calls|function_call)"\s*:\s*[\[{]').search
_ERROR = re.compile(rb'"error"\s*:\s*[^\sn]').search
_LEGACY = "function_call"
# Some servers give neither id nor model; after so many events the observer stops looking for them.
_MAX_FIRST_EVENTS = 8


class _Function(msgspec.Struct):
    arguments: str
    name: str | None = None


class _CallDelta(msgspec.Struct):
    function: _Function
    index: int
    id: str | None = None


class _Delta(msgspec.Struct):
    tool_calls: list[_CallDelta]


class _ChunkChoice(msgspec.Struct):
    delta: _Delta
    index: int = 0
    finish_reason: str | None = None
    usage: Any = None


class _Chunk(msgspec.Struct):
    """A chunk with more arguments of calls."""

    choices: list[_ChunkChoice]
    usage: Any = None
    x_groq: Any = None
    error: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode


class OpenAIChat(WireProtocol):
    """The OpenAI Chat Completions protocol."""

    name = "chat"
    messages_field = "messages"

    def read_message(self, raw: bytes) -> ReadMessage:
        """Reads one message. The function's name pairs a legacy `function_call` with its result."""
        entry = decode_json(raw)
        if type(entry) is not dict:
            return ReadMessage("other", (opaque_part(entry),), [entry])
        role = role_of(entry.get("role"))
        content = entry.get("content")
        if len(entry) == 2 and type(content) is str and role != "tool":
            canonical = canonical_object(entry) if role == "other" else canonical_text_message(entry["role"], content)
            return ReadMessage(role, (Text(content),) if content else (), canonical)
        parts: tuple[Part, ...]
        if role == "tool":
            call_id = entry.get("tool_call_id") or entry.get("name")
            parts = (ToolResult(as_string(call_id), tuple(read_parts(content))),)
        else:
            parts = (*read_reasoning(entry), *read_parts(content), *read_refusal_and_audio(entry), *read_calls(entry))
        return ReadMessage(role, parts, canonical_object(entry))

    def is_preamble(self, message: ReadMessage) -> bool:
        """System and developer messages at the start are the system prompt."""
        return message.role in {"system", "developer"}

    def read_preamble(self, fields: Mapping[str, bytes]) -> tuple[Part, ...]:
        """Returns nothing: the system prompt is in the list."""
        return ()

    def read_tools(self, fields: Mapping[str, bytes]) -> tuple[str, ...]:
        """Reads tools, legacy functions, and the schema of the answer."""
        schema = as_mapping(decode_field(fields, "response_format")).get("json_schema")
        return tool_definitions(decode_field(fields, "tools"), decode_field(fields, "functions"), schema)

    def read_max_output(self, fields: Mapping[str, bytes]) -> int | None:
        """Reads `max_completion_tokens`, or the older `max_tokens`."""
        return first_limit(fields, "max_completion_tokens", "max_tokens")

    def render_error(self, error: AccordionError, request_id: str) -> bytes:
        """Writes `{"error": {message, type, param, code}}`; an overflow in OpenAI's own words, which agents search
        for."""
        inner = openai_error(error, request_id)
        if isinstance(error, ContextOverflow):
            inner["message"] = (
                f"This model's maximum context length is {error.limit} tokens. However, your messages resulted in "
                f"{error.tokens} tokens. Please reduce the length of the messages. {error.folding} "
                f"(request id: {request_id})"
            )
            inner["param"] = "messages"
        return encode({"error": inner})

    def render_stream_error(self, error: AccordionError, request_id: str, before: bytes = b"") -> bytes:
        """Writes a chunk with `error`, on which the official SDKs raise; no `[DONE]` follows."""
        return b"data: " + self.render_error(error, request_id) + b"\n\n"

    def stream_provider_error(self, body: bytes) -> bytes:
        """Writes a chunk with the provider's error."""
        error = find_error(body)
        return b"data: " + encode(error) + b"\n\n" if error else b""

    def edit_message(self, message: Message, changes: Mapping[int, str | None]) -> bytes | None:
        """Returns the message with parts changed; None if only reasoning is left."""
        return writing.edit_message(message, changes)

    def text_message(self, text: str) -> bytes:
        """Returns `{"role": "user", "content": text}`."""
        return writing.text_message(text)

    def join_messages(self, wires: Sequence[bytes], own_positions: Collection[int]) -> list[bytes]:
        """Merges the proxy's own blocks with the user messages beside them."""
        return writing.join_messages(wires, own_positions)

    def with_breakpoint(self, wire: bytes) -> bytes:
        """Returns the message unchanged: the provider finds its cached prefix by itself."""
        return wire

    def find_problems(self, messages: Sequence[Message]) -> list[str]:
        """Checks that results directly follow their calls, every call is answered, and the user is first."""
        return find_chat_problems(messages)

    def observer(self, stream: bool) -> ResponseObserver:
        """Creates an observer of chunks, or of a completion."""
        return _ChunkObserver() if stream else BodyObserver(read_any_form, read_published_form)


class _ChunkObserver(StreamObserver):
    """Observes chunks. Usage may come with the last one, with every one (then the last counts), or never."""

    def __init__(self) -> None:
        super().__init__()
        self._first_events = _MAX_FIRST_EVENTS
        # The id of the latest call at each (choice, index).
        self._open: dict[tuple[int, int], str] = {}

    def may_matter(self, block: bytes) -> bool:
        """Selects the first events, for id and model; then finish reasons, calls, usage, errors and `[DONE]`."""
        return bool(
            self._first_events
            or (b'"usage"' in block and _USAGE(block))
            or _FINISH(block)
            or b"[DONE]" in block
            or (b'_call' in block and _CALL(block))
            or (b'"error"' in block and _ERROR(block))
        )  # fmt: skip

    def read_marker(self, data: bytes) -> None:
        """`[DONE]` ends the stream."""
        if data.startswith(b"[DONE]"):
            self.ended = True

    def read_event(self, data: dict[str, Any]) -> None:
        """Reads one chunk."""
        self.response_id = self.response_id or as_string(data.get("id"))
        self.model = self.model or as_string(data.get("model"))
        self._first_events = 0 if self.response_id and self.model else max(0, self._first_events - 1)
        choices = as_list(data.get("choices"))
        self.usage = find_usage(data, choices) or self.usage
        for entry in choices:
            choice = as_mapping(entry)
            self.finish = as_string(choice.get("finish_reason")) or self.finish
            delta = as_mapping(choice.get("delta"))
            for position, call in enumerate(as_list(delta.get("tool_calls"))):
                self._read_call(as_count(choice.get("index")), position, as_mapping(call))
            legacy = as_mapping(delta.get("function_call"))
            if legacy.get("name"):
                self.note_call(_LEGACY, legacy["name"], legacy["name"])
            self.note_arguments(_LEGACY, legacy.get("arguments"))

    def _read_call(self, choice: int, position: int, call: dict[str, Any]) -> None:
        """Reads a piece of a call. Some servers give parallel calls the same index, and only the id distinguishes
        them."""
        index = call.get("index")
        position_key = (choice, index if type(index) is int else position)
        call_id = as_string(call.get("id"))
        if call_id:
            self._open[position_key] = call_id
        custom = as_mapping(call.get("custom"))
        function = as_mapping(call.get("function")) or custom
        key = (position_key, self._open.get(position_key, ""))
        self.note_call(key, call_id, function.get("name"))
        self.note_arguments(key, function.get("input" if function is custom else "arguments"))

    def _read(self, piece: bytes) -> None:
        """Reads one event, by a faster way if it has only more arguments of a call, as most events of a call do."""
        delta = _read_arguments_delta(piece)
        if delta is None or self._first_events:
            super()._read(piece)
            return
        position_key, text = delta
        key = (position_key, self._open.get(position_key, ""))
        if key not in self.calls:
            self.note_call(key, "", "")
        self.note_arguments(key, text)


def _read_arguments_delta(piece: bytes) -> tuple[tuple[int, int], str] | None:
    """Returns (choice, index) and text of a chunk with only more arguments of one call; None for any other chunk."""
    if not piece.startswith(b"data: {") or b"\n" in piece:
        return None
    try:
        chunk = _decode(piece[6:])
    except (ValueError, RecursionError):
        return None
    if len(chunk.choices) != 1 or not (chunk.usage is chunk.x_groq is chunk.error is None):
        return None
    choice = chunk.choices[0]
    if choice.finish_reason is not None or choice.usage is not None or len(choice.delta.tool_calls) != 1:
        return None
    call = choice.delta.tool_calls[0]
    if call.id or call.function.name or call.index < 0 or choice.index < 0:
        return None
    return (choice.index, call.index), call.function.arguments
