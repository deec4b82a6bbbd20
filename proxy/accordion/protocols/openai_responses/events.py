"""Reads the events of a Responses stream, and writes them back with as few changes as possible.

Source: the type files of the openai SDK (`openai/types/responses/*_event.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from accordion.protocols.json_spans import object_of
from accordion.protocols.json_values import encode
from accordion.protocols.openai_responses.rounds import split_object, text_field
from accordion.protocols.sse import read_events
from accordion.protocols.tool_loop_shared import to_json

DELTA = "response.function_call_arguments.delta"
DONE = "response.function_call_arguments.done"
ENDS = frozenset({"response.completed", "response.incomplete", "response.failed"})
OPENINGS = frozenset({"response.created", "response.queued", "response.in_progress"})

ARGUMENTS = f"event: {DELTA}\ndata:".encode()
"""The first bytes of an event with a piece of a call's arguments."""

_TEXT_DELTAS = frozenset(
    f"event: response.{name}.delta".encode()
    for name in (
        *("output_text", "refusal", "reasoning_text", "reasoning_summary_text", "custom_tool_call_input"),
        *("code_interpreter_call_code", "mcp_call_arguments"),
    )
)
_DATA = re.compile(rb"(?:\A|(?<=[\r\n])|(?<=\A\xef\xbb\xbf))data:[^\r\n]*(?:(?:\r\n|\r|\n)data:[^\r\n]*)*")


class _ArgumentsDelta(msgspec.Struct, gc=False):
    delta: str
    type: str = ""
    item_id: str = ""
    output_index: int | None = None

    @property
    def key(self) -> int | str:
        """The same as ResponsesEvent.key."""
        return self.item_id if self.output_index is None else self.output_index


_ARGUMENTS_DELTA = msgspec.json.Decoder(_ArgumentsDelta)


def is_single_event(block: bytes) -> bool:
    """Whether this is one event of two lines: a quick check that may miss others."""
    return block.find(b"\n", block.find(b"\n") + 1) == len(block) - 2 and block.endswith(b"\n\n")


def has_no_content(block: bytes) -> bool:
    """Whether events have nothing about calls or the response. The name of a text delta decides alone; a name quoted
    within a text is escaped there."""
    end = block.find(b"\n")
    if block[:end] in _TEXT_DELTAS and block.find(b"\n", end + 1) == len(block) - 2:
        return True
    return not (b"function_call_arguments" in block or b"output_item." in block or b'"response"' in block)


def read_arguments_delta(raw: bytes) -> _ArgumentsDelta | None:
    """Reads an event with a piece of a call's arguments; None for any other event."""
    start = len(ARGUMENTS)
    if not raw.startswith(ARGUMENTS):
        start = raw.find(b"data:") + 5
        if start < 5 or b"function_call_arguments.delta" not in raw:
            return None
    try:
        delta = _ARGUMENTS_DELTA.decode(raw[start:])
    except (ValueError, RecursionError):
        return None
    return delta if delta.type == DELTA else None


class ResponsesEvent:
    """One event: its bytes, and the fields of its JSON object (empty where its data is none)."""

    __slots__ = ("fields", "is_scanned", "kind", "raw")

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        event = next(read_events(raw), None)
        self.fields: Mapping[str, bytes] = split_object(event.data) if event is not None else {}
        self.kind = self.text("type") or (event.name.decode(errors="replace") if event is not None else "")
        self.is_scanned = False
        """Whether its piece of arguments was scanned, so that it only waits for artifacts."""

    @property
    def is_truncated(self) -> bool:
        """Whether it ends within its JSON."""
        return b"{" in self.raw and not self.raw.endswith((b"\n\n", b"\r\n\r\n", b"\r\r"))

    @property
    def key(self) -> int | str:
        """The key of its item: the position in the provider's output, or the id where there is no position."""
        index = self.number("output_index")
        return self.text("item_id") if index is None else index

    def text(self, name: str) -> str:
        """Returns a field with a text; empty where it has none."""
        return text_field(self.fields, name)

    def number(self, name: str) -> int | None:
        """Returns a field with a whole number from 0 on; None where it has none."""
        raw = self.fields.get(name, b"")
        return int(raw) if raw.isdigit() and len(raw) < 20 else None

    def with_fields(self, changes: Mapping[str, bytes]) -> bytes:
        """Returns the event with these fields; the same bytes where it has them already. Lines other than data stay."""
        fields = self.fields
        if all(fields.get(name) == value for name, value in changes.items()):
            return self.raw
        data = b"data: " + object_of({**fields, **changes})
        return _DATA.sub(lambda _: data, self.raw, count=1)


def arguments_delta(end: ResponsesEvent, item_id: str, text: str) -> ResponsesEvent:
    """Returns one more delta of arguments, to be sent before the event `end`, which ends them."""
    name_line = f"event: {DELTA}\n".encode() if end.raw.lstrip(b"\xef\xbb\xbf").startswith(b"event:") else b""
    fields = {name: end.fields[name] for name in ("sequence_number", "output_index") if name in end.fields}
    data = {"type": encode(DELTA), "item_id": encode(item_id), **fields, "delta": to_json(text)}
    return ResponsesEvent(name_line + b"data: " + object_of(data) + b"\n\n")


class EventNumbers:
    """Renumbers the events and the positions of their items for the client, over all rounds.

    They are the provider's own until the first event is hidden, and without gaps from there on.
    """

    __slots__ = ("_count", "_is_original", "_next", "_positions", "is_changed")

    def __init__(self) -> None:
        self.is_changed = False
        """Whether the client's numbers or positions differ from the provider's."""
        self._next: int | None = None
        self._positions: dict[int, int] = {}
        self._is_original = True
        self._count = 0

    def count_from(self, event: ResponsesEvent) -> None:
        """Starts the client's own numbers at this event."""
        self.is_changed = True
        if self._next is None:
            self._next = event.number("sequence_number")

    def hide(self, event: ResponsesEvent) -> bytes:
        """Hides an event; returns no bytes."""
        self.count_from(event)
        index = event.number("output_index")
        if self._is_original and index is not None and "item" in event.fields:
            self._is_original = False
            self.reserve_positions(index)
        return b""

    def show(self, event: ResponsesEvent, changes: Mapping[str, bytes] | None = None) -> bytes:
        """Returns the event with these changes, its number and its position."""
        fields = dict(changes or {})
        if self._next is not None and "sequence_number" in event.fields:
            fields["sequence_number"] = b"%d" % self._next
            self._next += 1
        index = event.number("output_index")
        if index is not None:
            fields["output_index"] = b"%d" % self._position(index)
        return event.with_fields(fields)

    def reserve_positions(self, count: int) -> None:
        """Sets the next position to at least `count`."""
        self._count = max(self._count, count)

    def start_round(self) -> None:
        """Starts the next round, in which the provider counts from 0 again."""
        self._positions.clear()
        self._is_original = False

    def _position(self, index: int) -> int:
        position = self._positions.get(index)
        if position is None:
            position = self._positions[index] = index if self._is_original else self._count
            self.reserve_positions(position + 1)
        return position
