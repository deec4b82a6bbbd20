"""Renumbers the events of a Responses stream for the client, and writes events of the proxy's own."""

from __future__ import annotations

from collections.abc import Mapping

from accordion.protocols.json_spans import object_of
from accordion.protocols.json_values import encode, to_json
from accordion.protocols.openai_responses.response import DELTA, ResponsesEvent


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
