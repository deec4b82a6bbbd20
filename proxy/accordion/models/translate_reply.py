"""From LiteLLM's answers to bytes of the client's protocol.

LiteLLM gives pydantic objects (Chat Completions, Responses) or the wire's own form (Messages). Added is what the
protocols promise and LiteLLM leaves out: fields that are null, sequence numbers, an empty `choices` beside the usage;
what it gets wrong of items and thinking is mended in translate_items.py and translate_thinking.py. A stream that ends
without its protocol's last word raises UpstreamCut.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from accordion.core.errors import UpstreamCut
from accordion.core.ports import Headers
from accordion.dialects.sse import Events, parse, pieces
from accordion.models.translate_items import Items
from accordion.models.translate_request import Call
from accordion.models.translate_thinking import Thinking, number_thinking

_KEPT = ("retry-after", "x-should-retry", "x-ratelimit-", "anthropic-ratelimit-", "request-id", "x-request-id")
_RESPONSE_ENDS = {"response.completed", "response.incomplete", "response.failed", "error"}
_LONGEST = 64 << 20
"""How long one event may grow before it is whole, in bytes."""
_INNER = ("_anthropic_wrapper", "litellm_custom_stream_wrapper", "completion_stream", "_stream")
"""Where LiteLLM's streams keep those that they are made from."""


def document(call: Call, result: Any) -> bytes:
    """A whole answer as one JSON document."""
    value = _plain(result)
    value["model"] = call.model
    if call.dialect == "chat":
        _complete_chat(value, "message", ("content", "refusal"))
        _drop_unreported(value)
    elif call.dialect == "responses":
        _complete_response(value)
    return _encode(value)


async def events(call: Call, result: Any) -> AsyncGenerator[bytes, None]:
    """A streamed answer as server-sent events, each whole. Closing it closes LiteLLM's stream."""
    shape = {"chat": _chat_events, "responses": _response_events, "messages": _message_events}[call.dialect]
    try:
        async for piece in shape(call, result):
            yield piece
    finally:
        if (close := getattr(result, "aclose", None)) is not None:
            with suppress(Exception):  # the reply is over, or broken already
                await close()


def kept_headers(headers: Mapping[str, Any]) -> Headers:
    """Those of a provider's headers that are of use to a client."""
    return tuple(
        (name.lower().encode("latin-1"), str(value).encode("latin-1", "replace"))
        for name, value in headers.items()
        if name.lower().startswith(_KEPT)
    )


async def _chat_events(call: Call, result: Any) -> AsyncGenerator[bytes, None]:
    finished = False
    answers: dict[int, Thinking] = {}
    async for chunk in result:
        value = _plain(chunk)
        value["model"] = call.model
        for choice in value.get("choices", ()):
            number_thinking(choice, answers)
        _complete_chat(value, "delta", ())
        usage = value.pop("usage", None)
        choices = value.get("choices", [])
        finished = finished or any(choice["finish_reason"] for choice in choices)
        if finished and _broken_off(result):
            raise cut()
        bare = all(not choice["delta"] and not choice["finish_reason"] for choice in choices)
        if call.usage:
            value["usage"] = usage and {name: count for name, count in usage.items() if name != "cost"}
        if bare:
            if not (call.usage and usage and usage.get("total_tokens")):
                continue
            value["choices"] = []
        yield b"data: " + _encode(value) + b"\n\n"
    if not finished:
        raise cut()
    yield b"data: [DONE]\n\n"


async def _response_events(call: Call, result: Any) -> AsyncGenerator[bytes, None]:
    last, number = "", 0
    # Only what LiteLLM makes of chunks is mended; a provider's own events are as they should be.
    items = Items(chunks) if (chunks := getattr(result, "collected_chat_completion_chunks", None)) is not None else None
    async for event in result:
        value = _plain(event)
        if value.get("type") == "response.completed" and _broken_off(result):
            raise cut()
        for mended in items.mend(value) if items is not None else (value,):
            last = str(mended.get("type", ""))
            mended["sequence_number"] = number
            number += 1
            if isinstance(response := mended.get("response"), dict):
                response["model"] = call.model
                _complete_response(response)
            yield b"event: " + last.encode() + b"\ndata: " + _encode(mended) + b"\n\n"
    if last not in _RESPONSE_ENDS:
        raise cut()


async def _message_events(call: Call, result: Any) -> AsyncGenerator[bytes, None]:
    ended = False
    # The adapter's bytes would hold LiteLLM's own words for what went wrong; its events raise it.
    async for kind, piece in _message_pieces(call, getattr(result, "_anthropic_wrapper", result)):
        if kind in ("message_delta", "message_stop") and _broken_off(result):
            raise cut()
        ended = ended or kind in ("message_stop", "error")
        yield piece
    if not ended:
        raise cut()


async def _message_pieces(call: Call, source: Any) -> AsyncGenerator[tuple[str, bytes], None]:
    """Each event's kind and bytes: of LiteLLM's making, or a provider's own, which arrive cut anywhere."""
    arriving = Events(hold=_LONGEST)
    async for item in source:
        if isinstance(item, bytes | str):
            for piece in pieces(arriving.feed(item if isinstance(item, bytes) else item.encode())):
                if piece:
                    yield _own_event(call, piece)
            continue
        value = _plain(item)
        kind = str(value.get("type", ""))
        if kind == "message_start":
            value["message"] = {**value["message"], "model": call.model}
        yield kind, b"event: " + kind.encode() + b"\ndata: " + _encode(value) + b"\n\n"
    if rest := arriving.flush().strip():
        yield _own_event(call, rest)


def _own_event(call: Call, piece: bytes) -> tuple[str, bytes]:
    """A provider's own event; the first names the model in the client's words."""
    event = parse(piece)
    kind = event.name.decode("latin-1") if event is not None else ""
    if event is not None and kind == "message_start":
        piece = b"event: message_start\ndata: " + _renamed(event.data, call.model)
    return kind, piece + b"\n\n"


def _broken_off(result: Any) -> bool:
    """Whether LiteLLM made up the end: it gives a reason to stop where the provider gave none."""
    source = result
    while source is not None and not hasattr(source, "received_finish_reason"):
        source = next((inner for name in _INNER if (inner := getattr(source, name, None)) is not None), None)
    return source is not None and source.received_finish_reason is None


def cut() -> UpstreamCut:
    """What is said of a provider that went away in the middle of its answer."""
    return UpstreamCut("Connection lost: the provider went away before its answer ended. Send the request again.")


def _renamed(data: bytes, model: str) -> bytes:
    """The data of the first event with the model's name in the client's words; as it is where it is none."""
    try:
        value = json.loads(data)
        value["message"]["model"] = model
    except (ValueError, TypeError, KeyError):
        return data
    return _encode(value)


def _plain(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        plain: dict[str, Any] = value.model_dump(mode="json", exclude_none=True)
        return plain
    return dict(value)


def _complete_chat(value: dict[str, Any], part: str, nullable: tuple[str, ...]) -> None:
    for choice in value.get("choices", ()):
        choice.setdefault("finish_reason", None)
        choice.setdefault("logprobs", None)
        said = choice.setdefault(part, {})
        for name in nullable:
            # LiteLLM keeps what it has no field for, such as a refusal, beside the fields.
            said.setdefault(name, (said.get("provider_specific_fields") or {}).get(name))
        for holder in (choice, said):
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
    """A thought is told in `summary`, which is always there; LiteLLM gives it as an answer's text."""
    item.pop("role", None)
    said = [part for part in item.get("content") or () if part.get("type") == "output_text"]
    if said:
        item["summary"] = [{"type": "summary_text", "text": part["text"]} for part in said]
    if said or not item.get("content"):
        item.pop("content", None)
    item.setdefault("summary", [])


def _drop_unreported(value: dict[str, Any]) -> None:
    """A usage of nothing was not reported; a cost is LiteLLM's reckoning, not the provider's word."""
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
