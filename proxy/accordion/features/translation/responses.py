"""Converts LiteLLM's responses to bytes of the client's protocol.

LiteLLM returns pydantic objects (Chat Completions, Responses) or the wire format (Messages). This module adds what the
protocols promise and LiteLLM omits: null fields, sequence numbers, an empty `choices` beside the usage.
`_ThinkingBlocks` and `_ResponseItems` repair what it streams wrongly. A stream that ends without its protocol's last
event raises UpstreamDisconnected.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec

from accordion.features.translation.litellm_compat import collected_chunks, has_invented_end, message_events
from accordion.features.translation.requests import LiteLLMCall
from accordion.model.errors import UpstreamDisconnected
from accordion.model.ports import Headers
from accordion.protocols.sse import SseBuffer, parse, split_events

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
    if call.protocol_name == "chat":
        _complete_chat(value, "message", ("content", "refusal"))
        _drop_unreported(value)
    elif call.protocol_name == "responses":
        _complete_response(value)
    return _encode(value)


async def stream_events(call: LiteLLMCall, result: Any) -> AsyncGenerator[bytes, None]:
    """Yields a streamed response as whole server-sent events. Closing it closes LiteLLM's stream."""
    shape = {"chat": _chat_events, "responses": _response_events, "messages": _message_events}[call.protocol_name]
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
    thinking_by_choice: dict[int, _ThinkingBlocks] = {}
    async for chunk in result:
        value = _as_dict(chunk)
        value["model"] = call.model
        for choice in value.get("choices", ()):
            _number_thinking(choice, thinking_by_choice)
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
    items = _ResponseItems(chunks) if (chunks := collected_chunks(result)) is not None else None
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
                yield _own_event(call, piece)
            continue
        value = _as_dict(item)
        kind = str(value.get("type", ""))
        if kind == "message_start":
            value["message"] = {**value["message"], "model": call.model}
        yield kind, b"event: " + kind.encode() + b"\ndata: " + _encode(value) + b"\n\n"
    if unfinished_event := buffer.flush().strip():
        yield _own_event(call, unfinished_event + b"\n\n")


def _own_event(call: LiteLLMCall, piece: bytes) -> tuple[str, bytes]:
    """Returns a provider's own event; the first one gets the client's name for the model."""
    event = parse(piece)
    kind = event.name.decode("latin-1") if event is not None else ""
    if event is not None and kind == "message_start":
        piece = b"event: message_start\ndata: " + _with_model_name(event.data, call.model) + b"\n\n"
    return kind, piece


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


class _ThinkingBlocks:
    """The thinking blocks of one answer. `blocks` are in order, each joined from the pieces so far.

    LiteLLM's pieces have no `index`, without which OpenAI's clients cannot join them. It also repeats the whole text of
    the block with the signature, so that the joined block is not the signed one.
    """

    def __init__(self) -> None:
        self.blocks: list[dict[str, Any]] = []
        self._open = False

    def add(self, piece: dict[str, Any]) -> dict[str, Any]:
        """Returns the piece in a form that clients can join: with its block's `index`, without repeated text.

        A signature, or the data of a redacted block, ends its block.
        """
        if not self._open or piece.get("type") != self.blocks[-1].get("type"):
            self.blocks.append({"type": piece.get("type")})
        block = self.blocks[-1]
        self._open = not (piece.get("signature") or piece.get("data"))
        if not self._open and piece.get("thinking") and piece["thinking"] == block.get("thinking"):
            piece = piece | {"thinking": ""}
        for name in ("thinking", "signature", "data"):
            if isinstance(text := piece.get(name), str):
                block[name] = block.get(name, "") + text
        return piece | {"index": len(self.blocks) - 1}


def _number_thinking(choice: dict[str, Any], blocks_by_choice: dict[int, _ThinkingBlocks]) -> None:
    """Numbers the pieces in one choice of a chunk. `blocks_by_choice` are the earlier blocks by the choice's index.

    LiteLLM's second copy of them, which no client could join, is removed.
    """
    delta = choice.get("delta") or {}
    if not (pieces := delta.get("thinking_blocks")):
        return
    thinking = blocks_by_choice.setdefault(choice.get("index", 0), _ThinkingBlocks())
    delta["thinking_blocks"] = [thinking.add(piece) for piece in pieces]
    (delta.get("provider_specific_fields") or {}).pop("thinking_blocks", None)


Event = dict[str, Any]

_FIRST_EVENTS = {"response.created", "response.in_progress"}
_ITEM_ADDED = "response.output_item.added"
_ITEM_DONE = "response.output_item.done"
_REASONING_PREFIX = "response.reasoning_summary_"


@dataclass(slots=True)
class _ReasoningItem:
    """A reasoning item that is being streamed."""

    id: str
    text: str = ""
    thinking: _ThinkingBlocks = field(default_factory=_ThinkingBlocks)

    def item(self) -> Event:
        """Returns the whole item. LiteLLM reads the signed blocks in `encrypted_content` when a client returns it."""
        summary = [{"type": "summary_text", "text": self.text}] if self.text else []
        item = {"id": self.id, "type": "reasoning", "status": "completed", "summary": summary}
        if signed := [block for block in self.thinking.blocks if block.get("signature") or block.get("data")]:
            item["encrypted_content"] = json.dumps(signed, separators=(",", ":"))
        return item


@dataclass(slots=True)
class _RefusalItem:
    """A message with a refusal only."""

    id: str
    text: str

    def events(self) -> Iterator[Event]:
        """Yields the events of the whole message. LiteLLM has no events for its pieces."""
        item = {"id": self.id, "type": "message", "role": "assistant", "content": []}
        part = {"item_id": self.id, "content_index": 0}
        yield {"type": _ITEM_ADDED, "item": item | {"status": "in_progress"}}
        yield part | {"type": "response.content_part.added", "part": {"type": "refusal", "refusal": ""}}
        yield part | {"type": "response.refusal.delta", "delta": self.text}
        yield part | {"type": "response.refusal.done", "refusal": self.text}
        yield part | {"type": "response.content_part.done", "part": {"type": "refusal", "refusal": self.text}}
        yield {"type": _ITEM_DONE, "item": self.item()}

    def item(self) -> Event:
        """Returns the whole item."""
        part = {"type": "refusal", "refusal": self.text}
        return {"id": self.id, "type": "message", "role": "assistant", "status": "completed", "content": [part]}


class _ResponseItems:
    """Repairs the output items of a Responses stream that LiteLLM builds from another protocol's chunks.

    OpenAI's protocol promises, and its clients expect, that items are numbered in the order in which they are added,
    that they are completed in this order, and that the response ends with the streamed items. LiteLLM reserves number 0
    for a message that may never come, or announces one that stays empty, and ends a message after later calls. It
    begins and ends a reasoning item only if that comes first, and sends the signature only in the last event, with the
    text twice. It has no event for a refusal.

    `chunks` is LiteLLM's list of the chunks that it has read so far.
    """

    def __init__(self, chunks: list[Any]) -> None:
        self._chunks = chunks
        self._read_count = 0
        self._numbers: dict[str, int] = {}
        self._delayed_start: list[Event] = []
        self._reasoning: _ReasoningItem | None = None
        self._completed_items: list[Event] = []
        self._refusal = ""
        self._end_events: dict[int, list[Event]] = {}
        self._ended_count = 0

    def repair(self, event: Event) -> Iterator[Event]:
        """Yields the client's events for one of LiteLLM's: none, the event, or further ones around it."""
        for repaired in (event,) if event["type"] in _FIRST_EVENTS else self._repair_event(event):
            yield from self._in_order(repaired)

    def _in_order(self, event: Event) -> Iterator[Event]:
        """Yields an event; delays the end of an item until all earlier items are done."""
        number = event.get("output_index")
        if isinstance(number, int) and event["type"].endswith(".done"):
            self._end_events.setdefault(number, []).append(event)
            while (end_events := self._end_events.get(self._ended_count)) and end_events[-1]["type"] == _ITEM_DONE:
                yield from self._end_events.pop(self._ended_count)
                self._ended_count += 1
            return
        if "response" in event:
            for number_left in sorted(self._end_events):
                yield from self._end_events.pop(number_left)
        yield event

    def _repair_event(self, event: Event) -> Iterator[Event]:
        kind = event["type"]
        delta = (event.get("delta") or "") if kind == f"{_REASONING_PREFIX}text.delta" else ""
        pieces = self._new_pieces()
        if pieces or delta:
            yield from self._add_thinking(pieces, delta)
        if kind.startswith(_REASONING_PREFIX) or event.get("item", {}).get("type") == "reasoning":
            return
        yield from self._end_thought()
        if self._refusal and "response" in event:
            refusal, self._refusal = _RefusalItem(f"msg_{uuid.uuid4()}", self._refusal), ""
            self._completed_items.append(refusal.item())
            yield from map(self._with_number, refusal.events())
        yield from self._pass_on(event)

    def _new_pieces(self) -> list[dict[str, Any]]:
        """Returns the pieces of thinking blocks in the chunks since the last event, and collects refusals."""
        new_chunks, self._read_count = self._chunks[self._read_count :], len(self._chunks)
        deltas = [choice.get("delta") or {} for chunk in new_chunks for choice in chunk.get("choices") or ()]
        self._refusal += "".join(delta.get("refusal") or "" for delta in deltas)
        return [piece for delta in deltas for piece in delta.get("thinking_blocks") or ()]

    def _add_thinking(self, pieces: list[dict[str, Any]], delta: str) -> Iterator[Event]:
        if (reasoning := self._reasoning) is None:
            reasoning = self._reasoning = _ReasoningItem(f"rs_{uuid.uuid4()}")
            item = {"id": reasoning.id, "type": "reasoning", "status": "in_progress", "summary": []}
            yield self._with_number({"type": _ITEM_ADDED, "item": item})
        for piece in pieces:
            reasoning.thinking.add(piece)
        if delta:
            if not reasoning.text:
                yield self._thought_event(reasoning, "part.added", part={"type": "summary_text", "text": ""})
            reasoning.text += delta
            yield self._thought_event(reasoning, "text.delta", delta=delta)

    def _end_thought(self) -> Iterator[Event]:
        if (reasoning := self._reasoning) is None:
            return
        self._reasoning = None
        item = reasoning.item()
        self._completed_items.append(item)
        if reasoning.text:
            yield self._thought_event(reasoning, "text.done", text=reasoning.text)
            yield self._thought_event(reasoning, "part.done", part=item["summary"][0])
        yield self._with_number({"type": _ITEM_DONE, "item": item})

    def _thought_event(self, reasoning: _ReasoningItem, kind: str, **fields: Any) -> Event:
        return self._with_number(
            {"type": _REASONING_PREFIX + kind, "item_id": reasoning.id, "summary_index": 0, **fields}
        )

    def _pass_on(self, event: Event) -> Iterator[Event]:
        """Yields an event of another item. The beginning of a message waits until the message has content."""
        kind = event["type"]
        if kind == _ITEM_ADDED and event["item"].get("type") == "message":
            self._delayed_start = [event]
            return
        if self._delayed_start and kind == "response.content_part.added":
            self._delayed_start.append(event)
            return
        if self._delayed_start and _item_id(event) == _item_id(self._delayed_start[0]):
            if kind.endswith(".done") and not event.get("text"):
                return
            start_events, self._delayed_start = self._delayed_start, []
            yield from map(self._with_number, start_events)
        if "response" in event:
            event["response"]["output"] = self._streamed_items(event["response"].get("output") or [])
        yield self._with_number(event)

    def _with_number(self, event: Event) -> Event:
        name = _item_id(event)
        if event["type"] == _ITEM_ADDED:
            self._numbers.setdefault(name, len(self._numbers))
        if name in self._numbers:
            event["output_index"] = self._numbers[name]
        return event

    def _streamed_items(self, output: list[Event]) -> list[Event]:
        """Returns the items of the whole response in the streamed order, then those that LiteLLM did not stream."""
        items = [*self._completed_items]
        for item in output:
            kind = item.get("type")
            parts = item.get("content") or ()
            empty = kind == "message" and not any(part.get("text") or part.get("refusal") for part in parts)
            if kind != "reasoning" and not empty:
                items.append(item)
        return sorted(items, key=lambda item: self._numbers.get(item.get("id", ""), len(self._numbers)))


def _item_id(event: Event) -> str:
    """Returns the id of an event's item; empty if it has none."""
    name = event.get("item_id") or event.get("item", {}).get("id")
    return name if isinstance(name, str) else ""
