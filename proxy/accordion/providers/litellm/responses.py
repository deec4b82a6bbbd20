"""Converts LiteLLM's responses to bytes of the client's protocol.

LiteLLM returns pydantic objects (Chat Completions, Responses) or the wire format (Messages). This module adds what the
protocols promise and LiteLLM omits: null fields, sequence numbers, an empty `choices` beside the usage.
response_items.py and thinking.py repair items and thinking blocks. A stream that ends without its protocol's last event
raises UpstreamDisconnected.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from accordion.model.errors import UpstreamDisconnected
from accordion.model.ports import Headers
from accordion.protocols.sse import SseBuffer, parse, split_events
from accordion.providers.litellm.litellm_compat import collected_chunks, has_invented_end, message_events
from accordion.providers.litellm.requests import LiteLLMCall
from accordion.providers.litellm.response_items import ResponseItems
from accordion.providers.litellm.thinking import ThinkingBlocks, number_thinking

_USEFUL_HEADERS = (
    "retry-after",
    "x-should-retry",
    "x-ratelimit-",
    "anthropic-ratelimit-",
    "request-id",
    "x-request-id",
)
_RESPONSE_ENDS = {"response.completed", "response.incomplete", "response.failed", "error"}
_MAX_EVENT_SIZE = 64 << 20
"""The largest event, in bytes."""


def render_document(call: LiteLLMCall, result: Any) -> bytes:
    """Returns a whole response as one JSON document."""
    value = _as_dict(result)
    value["model"] = call.model
    if call.dialect == "chat":
        _complete_chat(value, "message", ("content", "refusal"))
        _drop_unreported(value)
    elif call.dialect == "responses":
        _complete_response(value)
    return _encode(value)


async def stream_events(call: LiteLLMCall, result: Any) -> AsyncGenerator[bytes, None]:
    """Yields a streamed response as whole server-sent events. Closing it closes LiteLLM's stream."""
    shape = {"chat": _chat_events, "responses": _response_events, "messages": _message_events}[call.dialect]
    try:
        async for piece in shape(call, result):
            yield piece
    finally:
        if (close := getattr(result, "aclose", None)) is not None:
            with suppress(Exception):  # the response has ended or is broken
                await close()


def useful_headers(headers: Mapping[str, Any]) -> Headers:
    """Returns the headers of a provider that are useful to a client."""
    return tuple(
        (name.lower().encode("latin-1"), str(value).encode("latin-1", "replace"))
        for name, value in headers.items()
        if name.lower().startswith(_USEFUL_HEADERS)
    )


async def _chat_events(call: LiteLLMCall, result: Any) -> AsyncGenerator[bytes, None]:
    finished = False
    thinking_by_choice: dict[int, ThinkingBlocks] = {}
    async for chunk in result:
        value = _as_dict(chunk)
        value["model"] = call.model
        for choice in value.get("choices", ()):
            number_thinking(choice, thinking_by_choice)
        _complete_chat(value, "delta", ())
        usage = value.pop("usage", None)
        choices = value.get("choices", [])
        finished = finished or any(choice["finish_reason"] for choice in choices)
        if finished and has_invented_end(result):
            raise truncation_error()
        is_empty = all(not choice["delta"] and not choice["finish_reason"] for choice in choices)
        if call.usage:
            value["usage"] = usage and {name: count for name, count in usage.items() if name != "cost"}
        if is_empty:
            if not (call.usage and usage and usage.get("total_tokens")):
                continue
            value["choices"] = []
        yield b"data: " + _encode(value) + b"\n\n"
    if not finished:
        raise truncation_error()
    yield b"data: [DONE]\n\n"


async def _response_events(call: LiteLLMCall, result: Any) -> AsyncGenerator[bytes, None]:
    last_type, number = "", 0
    # Only events that LiteLLM builds from chunks are repaired; a provider's own events are correct.
    items = ResponseItems(chunks) if (chunks := collected_chunks(result)) is not None else None
    async for event in result:
        value = _as_dict(event)
        if value.get("type") == "response.completed" and has_invented_end(result):
            raise truncation_error()
        for repaired in items.repair(value) if items is not None else (value,):
            last_type = str(repaired.get("type", ""))
            repaired["sequence_number"] = number
            number += 1
            if isinstance(response := repaired.get("response"), dict):
                response["model"] = call.model
                _complete_response(response)
            yield b"event: " + last_type.encode() + b"\ndata: " + _encode(repaired) + b"\n\n"
    if last_type not in _RESPONSE_ENDS:
        raise truncation_error()


async def _message_events(call: LiteLLMCall, result: Any) -> AsyncGenerator[bytes, None]:
    has_ended = False
    async for kind, piece in _message_pieces(call, message_events(result)):
        if kind in ("message_delta", "message_stop") and has_invented_end(result):
            raise truncation_error()
        has_ended = has_ended or kind in ("message_stop", "error")
        yield piece
    if not has_ended:
        raise truncation_error()


async def _message_pieces(call: LiteLLMCall, source: Any) -> AsyncGenerator[tuple[str, bytes], None]:
    """Yields each event's type and bytes: LiteLLM's events, or a provider's own, whose pieces may end anywhere."""
    buffer = SseBuffer(max_pending=_MAX_EVENT_SIZE)
    async for item in source:
        if isinstance(item, bytes | str):
            for piece in split_events(buffer.feed(item if isinstance(item, bytes) else item.encode())):
                if piece:
                    yield _own_event(call, piece)
            continue
        value = _as_dict(item)
        kind = str(value.get("type", ""))
        if kind == "message_start":
            value["message"] = {**value["message"], "model": call.model}
        yield kind, b"event: " + kind.encode() + b"\ndata: " + _encode(value) + b"\n\n"
    if unfinished_event := buffer.flush().strip():
        yield _own_event(call, unfinished_event)


def _own_event(call: LiteLLMCall, piece: bytes) -> tuple[str, bytes]:
    """Returns a provider's own event; the first one gets the client's name for the model."""
    event = parse(piece)
    kind = event.name.decode("latin-1") if event is not None else ""
    if event is not None and kind == "message_start":
        piece = b"event: message_start\ndata: " + _with_model_name(event.data, call.model)
    return kind, piece + b"\n\n"


def truncation_error() -> UpstreamDisconnected:
    """Returns the error for a provider that disconnected in the middle of its response."""
    return UpstreamDisconnected(
        "Connection lost: the provider went away before its answer ended. Send the request again."
    )


def _with_model_name(data: bytes, model: str) -> bytes:
    """Returns the first event's data with the client's name for the model; unchanged if it is no such event."""
    try:
        value = json.loads(data)
        value["message"]["model"] = model
    except (ValueError, TypeError, KeyError):
        return data
    return _encode(value)


def _as_dict(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        plain: dict[str, Any] = value.model_dump(mode="json", exclude_none=True)
        return plain
    return dict(value)


def _complete_chat(value: dict[str, Any], part: str, nullable: tuple[str, ...]) -> None:
    for choice in value.get("choices", ()):
        choice.setdefault("finish_reason", None)
        choice.setdefault("logprobs", None)
        message = choice.setdefault(part, {})
        for name in nullable:
            # LiteLLM stores content without a field of its own, such as a refusal, beside the fields.
            message.setdefault(name, (message.get("provider_specific_fields") or {}).get(name))
        for holder in (choice, message):
            if not any((holder.get("provider_specific_fields") or {}).values()):
                holder.pop("provider_specific_fields", None)


def _complete_response(response: dict[str, Any]) -> None:
    for name in ("error", "incomplete_details", "instructions"):
        response.setdefault(name, None)
    response.pop("provider_specific_fields", None)
    for item in response.get("output") or ():
        if item.get("type") == "reasoning":
            _complete_reasoning(item)
    _drop_unreported(response)


def _complete_reasoning(item: dict[str, Any]) -> None:
    """Moves the text of a reasoning item to `summary`, which is required; LiteLLM stores it as an answer's text."""
    item.pop("role", None)
    texts = [part for part in item.get("content") or () if part.get("type") == "output_text"]
    if texts:
        item["summary"] = [{"type": "summary_text", "text": part["text"]} for part in texts]
    if texts or not item.get("content"):
        item.pop("content", None)
    item.setdefault("summary", [])


def _drop_unreported(value: dict[str, Any]) -> None:
    """Removes a usage of 0, which the provider did not report, and the cost, which LiteLLM computes itself."""
    usage = value.get("usage")
    if isinstance(usage, dict):
        usage.pop("cost", None)
        if not usage.get("total_tokens"):
            del value["usage"]


def _encode(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except (UnicodeEncodeError, TypeError):  # lone surrogates
        return json.dumps(value, default=str).encode()
