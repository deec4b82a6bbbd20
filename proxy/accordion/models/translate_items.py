"""The output items of a Responses stream that LiteLLM makes of another protocol's chunks.

OpenAI's protocol promises, and its clients rely on it, that items are numbered as they are added, that each is whole
when it is done, in that order too, and that the response ends with the items that were streamed. LiteLLM keeps number
0 for a message that may never come, or announces one that stays empty, and ends a message behind the calls that came
after it; it begins and ends a thought only where that comes first, and keeps the signature for the last event, beside
a text that stands there twice. What a model says in place of an answer, a refusal, is none of its events.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from accordion.models.translate_thinking import Thinking

Event = dict[str, Any]

_BEGIN = {"response.created", "response.in_progress"}
_ADDED = "response.output_item.added"
_DONE = "response.output_item.done"
_THOUGHT = "response.reasoning_summary_"


@dataclass(slots=True)
class _Thought:
    """A reasoning item on its way."""

    id: str
    text: str = ""
    thinking: Thinking = field(default_factory=Thinking)

    def item(self) -> Event:
        """The whole item. LiteLLM finds the signed blocks in `encrypted_content` when it is sent back."""
        summary = [{"type": "summary_text", "text": self.text}] if self.text else []
        item = {"id": self.id, "type": "reasoning", "status": "completed", "summary": summary}
        if signed := [block for block in self.thinking.blocks if block.get("signature") or block.get("data")]:
            item["encrypted_content"] = json.dumps(signed, separators=(",", ":"))
        return item


@dataclass(slots=True)
class _Refusal:
    """A message that holds nothing but what the model refused."""

    id: str
    text: str

    def events(self) -> Iterator[Event]:
        """The whole message, as it is streamed. LiteLLM has no event at which a piece could be told."""
        item = {"id": self.id, "type": "message", "role": "assistant", "content": []}
        part = {"item_id": self.id, "content_index": 0}
        yield {"type": _ADDED, "item": item | {"status": "in_progress"}}
        yield part | {"type": "response.content_part.added", "part": {"type": "refusal", "refusal": ""}}
        yield part | {"type": "response.refusal.delta", "delta": self.text}
        yield part | {"type": "response.refusal.done", "refusal": self.text}
        yield part | {"type": "response.content_part.done", "part": {"type": "refusal", "refusal": self.text}}
        yield {"type": _DONE, "item": self.item()}

    def item(self) -> Event:
        """The whole item."""
        part = {"type": "refusal", "refusal": self.text}
        return {"id": self.id, "type": "message", "role": "assistant", "status": "completed", "content": [part]}


class Items:
    """Mends one stream's events. `chunks` is LiteLLM's list of the chunks it has read so far, as they came."""

    def __init__(self, chunks: list[Any]) -> None:
        self._chunks = chunks
        self._read = 0
        self._numbers: dict[str, int] = {}
        self._opening: list[Event] = []
        self._thought: _Thought | None = None
        self._made: list[Event] = []
        self._refused = ""
        self._endings: dict[int, list[Event]] = {}
        self._ended = 0

    def mend(self, event: Event) -> Iterator[Event]:
        """What the client gets for one of LiteLLM's events: nothing, the event, or others around it too."""
        for mended in (event,) if event["type"] in _BEGIN else self._mended(event):
            yield from self._in_order(mended)

    def _in_order(self, event: Event) -> Iterator[Event]:
        """The event, or where it ends an item, as soon as the items before are done. LiteLLM ends all at the end."""
        number = event.get("output_index")
        if isinstance(number, int) and event["type"].endswith(".done"):
            self._endings.setdefault(number, []).append(event)
            while (ending := self._endings.get(self._ended)) and ending[-1]["type"] == _DONE:
                yield from self._endings.pop(self._ended)
                self._ended += 1
            return
        if "response" in event:
            for left in sorted(self._endings):
                yield from self._endings.pop(left)
        yield event

    def _mended(self, event: Event) -> Iterator[Event]:
        kind = event["type"]
        delta = (event.get("delta") or "") if kind == f"{_THOUGHT}text.delta" else ""
        pieces = self._new_pieces()
        if pieces or delta:
            yield from self._think(pieces, delta)
        if kind.startswith(_THOUGHT) or event.get("item", {}).get("type") == "reasoning":
            return
        yield from self._end_thought()
        if self._refused and "response" in event:
            refusal, self._refused = _Refusal(f"msg_{uuid.uuid4()}", self._refused), ""
            self._made.append(refusal.item())
            yield from map(self._numbered, refusal.events())
        yield from self._pass_on(event)

    def _new_pieces(self) -> list[dict[str, Any]]:
        """The pieces of thinking blocks in the chunks that were read since the last event. A refusal is kept."""
        new, self._read = self._chunks[self._read :], len(self._chunks)
        deltas = [choice.get("delta") or {} for chunk in new for choice in chunk.get("choices") or ()]
        self._refused += "".join(delta.get("refusal") or "" for delta in deltas)
        return [piece for delta in deltas for piece in delta.get("thinking_blocks") or ()]

    def _think(self, pieces: list[dict[str, Any]], delta: str) -> Iterator[Event]:
        if (thought := self._thought) is None:
            thought = self._thought = _Thought(f"rs_{uuid.uuid4()}")
            item = {"id": thought.id, "type": "reasoning", "status": "in_progress", "summary": []}
            yield self._numbered({"type": _ADDED, "item": item})
        for piece in pieces:
            thought.thinking.add(piece)
        if delta:
            if not thought.text:
                yield self._of_thought(thought, "part.added", part={"type": "summary_text", "text": ""})
            thought.text += delta
            yield self._of_thought(thought, "text.delta", delta=delta)

    def _end_thought(self) -> Iterator[Event]:
        if (thought := self._thought) is None:
            return
        self._thought = None
        item = thought.item()
        self._made.append(item)
        if thought.text:
            yield self._of_thought(thought, "text.done", text=thought.text)
            yield self._of_thought(thought, "part.done", part=item["summary"][0])
        yield self._numbered({"type": _DONE, "item": item})

    def _of_thought(self, thought: _Thought, kind: str, **fields: Any) -> Event:
        return self._numbered({"type": _THOUGHT + kind, "item_id": thought.id, "summary_index": 0, **fields})

    def _pass_on(self, event: Event) -> Iterator[Event]:
        """An event of no thought. What opens a message is held back until the message says something."""
        kind = event["type"]
        if kind == _ADDED and event["item"].get("type") == "message":
            self._opening = [event]
            return
        if self._opening and kind == "response.content_part.added":
            self._opening.append(event)
            return
        if self._opening and _item_id(event) == _item_id(self._opening[0]):
            if kind.endswith(".done") and not event.get("text"):
                return
            opening, self._opening = self._opening, []
            yield from map(self._numbered, opening)
        if "response" in event:
            event["response"]["output"] = self._streamed(event["response"].get("output") or [])
        yield self._numbered(event)

    def _numbered(self, event: Event) -> Event:
        name = _item_id(event)
        if event["type"] == _ADDED:
            self._numbers.setdefault(name, len(self._numbers))
        if name in self._numbers:
            event["output_index"] = self._numbers[name]
        return event

    def _streamed(self, output: list[Event]) -> list[Event]:
        """The items of the whole response as they were streamed, and behind them what LiteLLM did not stream."""
        items = [*self._made]
        for item in output:
            kind = item.get("type")
            parts = item.get("content") or ()
            empty = kind == "message" and not any(part.get("text") or part.get("refusal") for part in parts)
            if kind != "reasoning" and not empty:
                items.append(item)
        return sorted(items, key=lambda item: self._numbers.get(item.get("id", ""), len(self._numbers)))


def _item_id(event: Event) -> str:
    """Of the item that an event is of; nothing where it is of none."""
    name = event.get("item_id") or event.get("item", {}).get("id")
    return name if isinstance(name, str) else ""
