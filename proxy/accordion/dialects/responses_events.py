"""One event of a Responses stream: read only as far as it is asked, and written back with as little changed as can be.

Source: the type files of the openai SDK (`openai/types/responses/*_event.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from accordion.dialects.responses_round import parsed, text_in
from accordion.dialects.shared import encode
from accordion.dialects.spans import object_of
from accordion.dialects.splicing import to_json
from accordion.dialects.sse import events

DELTA = "response.function_call_arguments.delta"
DONE = "response.function_call_arguments.done"
ENDS = frozenset({"response.completed", "response.incomplete", "response.failed"})
OPENINGS = frozenset({"response.created", "response.queued", "response.in_progress"})

ARGUMENTS = f"event: {DELTA}\ndata:".encode()
"""How an event begins that is a piece of the arguments of a call."""

_TEXTS = frozenset(
    f"event: response.{name}.delta".encode()
    for name in (
        *("output_text", "refusal", "reasoning_text", "reasoning_summary_text", "custom_tool_call_input"),
        *("code_interpreter_call_code", "mcp_call_arguments"),
    )
)
_DATA = re.compile(rb"(?:\A|(?<=[\r\n])|(?<=\A\xef\xbb\xbf))data:[^\r\n]*(?:(?:\r\n|\r|\n)data:[^\r\n]*)*")


class _Piece(msgspec.Struct, gc=False):
    delta: str
    type: str = ""
    item_id: str = ""
    output_index: int | None = None

    @property
    def key(self) -> int | str:
        """As that of its event."""
        return self.item_id if self.output_index is None else self.output_index


_PIECE = msgspec.json.Decoder(_Piece)


def is_one(block: bytes) -> bool:
    """Whether this is one event of two lines; a quick look that may miss others."""
    return block.find(b"\n", block.find(b"\n") + 1) == len(block) - 2 and block.endswith(b"\n\n")


def says_nothing(block: bytes) -> bool:
    """Whether events say nothing of calls or of the response. One that by its name is a piece of a text needs no other
    look; a name quoted within a text is escaped there."""
    end = block.find(b"\n")
    if block[:end] in _TEXTS and block.find(b"\n", end + 1) == len(block) - 2:
        return True
    return not (b"function_call_arguments" in block or b"output_item." in block or b'"response"' in block)


def piece_of(raw: bytes) -> _Piece | None:
    """What an event says if it is a piece of the arguments of a call."""
    start = len(ARGUMENTS)
    if not raw.startswith(ARGUMENTS):
        start = raw.find(b"data:") + 5
        if start < 5 or b"function_call_arguments.delta" not in raw:
            return None
    try:
        piece = _PIECE.decode(raw[start:])
    except (ValueError, RecursionError):
        return None
    return piece if piece.type == DELTA else None


class Event:
    """One event: its bytes, and the fields of its JSON object (none where it has no such data)."""

    __slots__ = ("begun", "fields", "kind", "raw")

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        found = next(events(raw), None)
        self.fields: Mapping[str, bytes] = parsed(found.data) if found is not None else {}
        self.kind = self.text("type") or (found.name.decode(errors="replace") if found is not None else "")
        self.begun = False
        """Whether its piece of arguments was looked at, so that it only waits for what they name."""

    @property
    def cut(self) -> bool:
        """Whether it breaks off within its JSON."""
        return b"{" in self.raw and not self.raw.endswith((b"\n\n", b"\r\n\r\n", b"\r\r"))

    @property
    def key(self) -> int | str:
        """What tells its item from others: the place in the provider's output, or, where that is not said, the id."""
        index = self.number("output_index")
        return self.text("item_id") if index is None else index

    def text(self, name: str) -> str:
        """A field that holds a text; empty where it does not."""
        return text_in(self.fields, name)

    def number(self, name: str) -> int | None:
        """A field that holds a whole number that is not negative."""
        raw = self.fields.get(name, b"")
        return int(raw) if raw.isdigit() and len(raw) < 20 else None

    def with_fields(self, changes: Mapping[str, bytes]) -> bytes:
        """The event with these fields; the very same bytes where it has them already. Lines beside its data stay."""
        fields = self.fields
        if all(fields.get(name) == value for name, value in changes.items()):
            return self.raw
        written = b"data: " + object_of({**fields, **changes})
        return _DATA.sub(lambda _: written, self.raw, count=1)


def delta(beside: Event, item_id: str, text: str) -> Event:
    """One more delta of arguments, to be shown before the event `beside`, which ends them."""
    named = f"event: {DELTA}\n".encode() if beside.raw.lstrip(b"\xef\xbb\xbf").startswith(b"event:") else b""
    fields = {name: beside.fields[name] for name in ("sequence_number", "output_index") if name in beside.fields}
    told = {"type": encode(DELTA), "item_id": encode(item_id), **fields, "delta": to_json(text)}
    return Event(named + b"data: " + object_of(told) + b"\n\n")


class Numbers:
    """The numbers of the events, and the places of their items, as the client sees them over all rounds: the
    provider's own until something is hidden, from there on without gaps."""

    __slots__ = ("_count", "_next", "_own", "_places", "changed")

    def __init__(self) -> None:
        self.changed = False
        """Whether the client's numbers or places are not the provider's."""
        self._next: int | None = None
        self._places: dict[int, int] = {}
        self._own = True
        self._count = 0

    def count_from(self, event: Event) -> None:
        """From this event on the client's numbers are not the provider's."""
        self.changed = True
        if self._next is None:
            self._next = event.number("sequence_number")

    def hide(self, event: Event) -> bytes:
        """Nothing, in the place of an event."""
        self.count_from(event)
        index = event.number("output_index")
        if self._own and index is not None and "item" in event.fields:
            self._own = False
            self.reached(index)
        return b""

    def show(self, event: Event, changes: Mapping[str, bytes] | None = None) -> bytes:
        """The event with these changes, its number and its place."""
        fields = dict(changes or {})
        if self._next is not None and "sequence_number" in event.fields:
            fields["sequence_number"] = b"%d" % self._next
            self._next += 1
        index = event.number("output_index")
        if index is not None:
            fields["output_index"] = b"%d" % self._place(index)
        return event.with_fields(fields)

    def reached(self, count: int) -> None:
        """So many places are taken at least."""
        self._count = max(self._count, count)

    def next(self) -> None:
        """The provider begins to count again."""
        self._places.clear()
        self._own = False

    def _place(self, index: int) -> int:
        place = self._places.get(index)
        if place is None:
            place = self._places[index] = index if self._own else self._count
            self.reached(place + 1)
        return place
