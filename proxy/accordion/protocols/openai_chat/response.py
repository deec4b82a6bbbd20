"""Parses the responses of Chat Completions, and writes chunks.

Theory of operation. A response is a completion, or a stream of chunks that ends with `[DONE]`. A chunk has choices,
each with a `delta`: role, content, reasoning, or pieces of calls by their index; the last one has the finish reason.
Usage comes in a chunk of its own after that, with every chunk (then the last counts), beside the choices, in Groq's
field, in a choice, or never. Some servers give parallel calls the same index, and only the id distinguishes them.

ChatParser turns either into the events of response_parser.py. Two forms are frequent, so each has a faster way: a chunk
with only more arguments of one call, and a completion in the published form, which msgspec decodes into types. The tool
loop rewrites chunks; `read_chunk` returns a chunk's JSON object, in which numbers stay as they are.

Source: the type files of the openai SDK (`openai/types/chat`), and what compatible servers add to them.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgspec

from accordion.model.conversation import ToolCall
from accordion.model.records import Usage
from accordion.protocols.json_values import COUNTS, as_count, as_list, as_mapping, as_string, from_json, to_json
from accordion.protocols.message_keys import parse_number
from accordion.protocols.openai_chat.message_json import read_calls
from accordion.protocols.response_parser import (
    END,
    CallPiece,
    Content,
    Finish,
    Identity,
    ResponseEvent,
    ResponseParser,
    ResponsePart,
    UsageReport,
    content_of_field,
    content_of_list,
    frame_event,
)

_USAGE = re.compile(rb'"usage"\s*:\s*\{').search
# Without the quote before the name, the search is twice as fast. It finds `native_finish_reason` too, which only causes
# a needless read.
_FINISH = re.compile(rb'finish_reason"\s*:\s*"').search
_CALL = re.compile(rb'"(?:tool_calls|function_call)"\s*:\s*[\[{]').search
_ERROR = re.compile(rb'"error"\s*:\s*[^\sn]').search
_LEGACY = "function_call"
# Some servers give neither id nor model; after so many events the parser stops looking for them.
_MAX_FIRST_EVENTS = 8
_OTHER_CONTENT = ("refusal", "audio")

_Count = Annotated[int, msgspec.Meta(ge=0, lt=COUNTS)]


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


class _PromptDetails(msgspec.Struct):
    cached_tokens: _Count | None = None
    cache_write_tokens: _Count | None = None


class _CompletionDetails(msgspec.Struct):
    reasoning_tokens: _Count | None = None


class _CompletionUsage(msgspec.Struct):
    prompt_tokens: _Count
    completion_tokens: _Count = 0
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None
    prompt_cache_hit_tokens: _Count | None = None


class _CompletionMessage(msgspec.Struct):
    tool_calls: list[Any] | None = None
    function_call: dict[str, Any] | None = None


class _CompletionChoice(msgspec.Struct):
    message: _CompletionMessage
    finish_reason: str | None = None


class _Completion(msgspec.Struct):
    """A completion in the published form. A possible error does not match it."""

    id: str
    model: str
    choices: list[_CompletionChoice]
    usage: _CompletionUsage
    error: None = None
    object: Literal["chat.completion"] = "chat.completion"
    type: None = None


_decode_chunk = msgspec.json.Decoder(_Chunk).decode
_decode_completion = msgspec.json.Decoder(_Completion, float_hook=parse_number).decode
_NO_PROMPT_DETAILS, _NO_COMPLETION_DETAILS = _PromptDetails(), _CompletionDetails()


class ChatParser(ResponseParser):
    """Parses a completion, or a stream of chunks."""

    may_end_at_finish = True

    def __init__(self, *, is_stream: bool, reads_content: bool = False) -> None:
        super().__init__(is_stream=is_stream, reads_content=reads_content)
        # The events in which the id and the model are still looked for.
        self._first_events = _MAX_FIRST_EVENTS
        self._has_id = self._has_model = False
        # The id of the latest call at each (choice, index).
        self._open: dict[tuple[int, int], str] = {}
        self._has_legacy_call = False

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

    def parse_event(self, raw: bytes) -> ResponseEvent:
        """Parses a chunk, by a faster way if it has only more arguments of a call, as most chunks of a call do."""
        delta = None if self._first_events else _read_arguments_delta(raw)
        if delta is None:
            return super().parse_event(raw)
        position, text = delta
        return ResponseEvent(raw, parts=(CallPiece((position, self._open.get(position, "")), "", "", text),))

    def parse_document(self, body: bytes) -> ResponseEvent:
        """Parses a completion, by a faster way if it has the published form and its content is not read."""
        parts = None if self.reads_content else read_published_form(body)
        return super().parse_document(body) if parts is None else ResponseEvent(body, data=body, parts=parts)

    def read_marker(self, data: bytes) -> tuple[ResponsePart, ...]:
        """`[DONE]` ends the stream."""
        return (END,) if is_done(data) else ()

    def read_data(self, data: dict[str, Any]) -> tuple[ResponsePart, ...]:
        """Returns the meaning of a chunk."""
        parts = [] if self._has_id and self._has_model else self._read_identity(data)
        choices = as_list(data.get("choices"))
        if (usage := find_usage(data, choices)) is not None:
            parts.append(UsageReport(usage))
        for position, choice in enumerate(map(as_mapping, choices)):
            if reason := as_string(choice.get("finish_reason")):
                parts.append(Finish(reason))
            delta = as_mapping(choice.get("delta"))
            if self.reads_content:
                parts += _read_content(delta, position)
            self._read_calls(parts, as_count(choice.get("index")), delta)
        return tuple(parts)

    def read_document(self, data: dict[str, Any]) -> tuple[ResponsePart, ...]:
        """Returns the meaning of a completion."""
        parts = read_any_form(data)
        if self.reads_content:
            choices = map(as_mapping, as_list(data.get("choices")))
            for position, choice in enumerate(choices):
                parts += tuple(_read_content(as_mapping(choice.get("message")), position))
        return parts

    def _read_identity(self, data: dict[str, Any]) -> list[ResponsePart]:
        response_id, model = as_string(data.get("id")), as_string(data.get("model"))
        identity = Identity("" if self._has_id else response_id, "" if self._has_model else model)
        self._has_id, self._has_model = self._has_id or bool(response_id), self._has_model or bool(model)
        self._first_events = 0 if self._has_id and self._has_model else max(0, self._first_events - 1)
        return [identity] if response_id or model else []

    def _read_calls(self, parts: list[ResponsePart], choice: int, delta: dict[str, Any]) -> None:
        for position, call in enumerate(as_list(delta.get("tool_calls"))):
            parts.append(self._read_call(choice, position, as_mapping(call)))
        legacy = as_mapping(delta.get("function_call"))
        name = as_string(legacy.get("name"))
        self._has_legacy_call = self._has_legacy_call or bool(name)
        if legacy and self._has_legacy_call:
            parts.append(CallPiece(_LEGACY, name, name, as_string(legacy.get("arguments"))))

    def _read_call(self, choice: int, position: int, call: dict[str, Any]) -> CallPiece:
        index = call.get("index")
        place = (choice, index if type(index) is int else position)
        call_id = as_string(call.get("id"))
        if call_id:
            self._open[place] = call_id
        custom = as_mapping(call.get("custom"))
        function = as_mapping(call.get("function")) or custom
        arguments = function.get("input" if function is custom else "arguments")
        key = (place, self._open.get(place, ""))
        return CallPiece(key, call_id, as_string(function.get("name")), as_string(arguments))


def _read_content(message: dict[str, Any], position: int) -> list[ResponsePart]:
    """Returns the content of a message or a delta. Only that of the first choice is the answer's text."""
    parts: list[ResponsePart] = [*content_of_list(message.get("content"))]
    for name in ("reasoning_content", "reasoning"):
        parts += content_of_field("reasoning", message.get(name))
    for name in _OTHER_CONTENT:
        parts += content_of_field("other", message.get(name))
    return parts if position == 0 else [Content("other") for _ in parts]


def _read_arguments_delta(piece: bytes) -> tuple[tuple[int, int], str] | None:
    """Returns (choice, index) and text of a chunk with only more arguments of one call; None for any other chunk."""
    if not piece.startswith(b"data: {") or piece.find(b"\n") < len(piece) - 2:
        return None
    try:
        chunk = _decode_chunk(piece[6:])
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


def read_published_form(body: bytes) -> tuple[ResponsePart, ...] | None:
    """Reads a completion in the published form; None for any other, and for a possible error. `read_any_form` returns
    the same, in more than twice the time."""
    try:
        completion = _decode_completion(body)
    except (ValueError, RecursionError):
        return None
    counts = completion.usage
    prompt_details = counts.prompt_tokens_details or _NO_PROMPT_DETAILS
    completion_details = counts.completion_tokens_details or _NO_COMPLETION_DETAILS
    usage = Usage(
        counts.prompt_tokens,
        counts.completion_tokens,
        prompt_details.cached_tokens or counts.prompt_cache_hit_tokens or 0,
        prompt_details.cache_write_tokens or 0,
        completion_details.reasoning_tokens or 0,
    )
    finish = ""
    calls: list[CallPiece] = []
    for choice in completion.choices:
        finish = finish or choice.finish_reason or ""
        message = choice.message
        if message.tool_calls or message.function_call:
            _add_whole_calls(calls, {"tool_calls": message.tool_calls, "function_call": message.function_call})
    return (Identity(completion.id, completion.model), UsageReport(usage), Finish(finish), *calls)


def read_any_form(data: dict[str, Any]) -> tuple[ResponsePart, ...]:
    """Reads any completion, as far as its fields are known."""
    finish = ""
    calls: list[CallPiece] = []
    choices = as_list(data.get("choices"))
    for entry in choices:
        choice = as_mapping(entry)
        finish = finish or as_string(choice.get("finish_reason"))
        _add_whole_calls(calls, as_mapping(choice.get("message")))
    identity = Identity(as_string(data.get("id")), as_string(data.get("model")))
    return (identity, UsageReport(find_usage(data, choices)), Finish(finish), *calls)


def find_usage(data: dict[str, Any], choices: list[Any]) -> Usage | None:
    """Finds the usage: servers put it beside the choices, in Groq's field, or in the last choice."""
    usage = as_mapping(data.get("usage") or as_mapping(data.get("x_groq")).get("usage"))
    if not usage and choices:
        usage = as_mapping(as_mapping(choices[-1]).get("usage"))
    if "prompt_tokens" not in usage:
        return None
    prompt_details = as_mapping(usage.get("prompt_tokens_details"))
    completion_details = as_mapping(usage.get("completion_tokens_details"))
    return Usage(
        input=as_count(usage["prompt_tokens"]),
        output=as_count(usage.get("completion_tokens")),
        cached=as_count(prompt_details.get("cached_tokens")) or as_count(usage.get("prompt_cache_hit_tokens")),
        cache_write=as_count(prompt_details.get("cache_write_tokens")),
        reasoning=as_count(completion_details.get("reasoning_tokens")),
    )


def _add_whole_calls(pieces: list[CallPiece], message: dict[str, Any]) -> None:
    for call in read_calls(message):
        if isinstance(call, ToolCall):
            pieces.append(CallPiece(len(pieces), call.call_id, call.name, call.arguments, is_whole=True))


def read_chunk(raw: bytes) -> dict[str, Any] | None:
    """Reads a chunk; None where its data is no object, as `[DONE]`, or unreadable."""
    data = event_data(raw)
    try:
        value = from_json(data) if data else None
    except ValueError:
        return None
    return value if type(value) is dict else None


def event_data(raw: bytes) -> bytes:
    """Returns the data of an event; empty where it has none."""
    if raw.startswith(b"data:") and raw.find(b"\n") == len(raw) - 2 and b"\r" not in raw:
        # The usual layout needs no search for lines.
        return raw[5:-2].strip()
    return (frame_event(raw).data or b"").strip()


def is_done(data: bytes) -> bool:
    """Whether an event's data is the marker of the end."""
    return data.startswith(b"[DONE]")


def write_event(data: dict[str, Any]) -> bytes:
    """Returns an event with this data."""
    return b"data: " + to_json(data) + b"\n\n"
