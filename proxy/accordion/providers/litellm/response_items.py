"""Repairs the output items of a Responses stream that LiteLLM builds from another protocol's chunks.

OpenAI's protocol promises, and its clients expect, that items are numbered in the order in which they are added, that
they are completed in this order, and that the response ends with the streamed items. LiteLLM reserves number 0 for a
message that may never come, or announces one that stays empty, and ends a message after later calls. It begins and ends
a reasoning item only if that comes first, and sends the signature only in the last event, with the text twice. It has
no event for a refusal.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from accordion.providers.litellm.thinking import ThinkingBlocks

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
    thinking: ThinkingBlocks = field(default_factory=ThinkingBlocks)

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


class ResponseItems:
    """Repairs one stream's events. `chunks` is LiteLLM's list of the chunks that it has read so far."""

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
