"""The responses of a Responses tool loop: a stream of events, or a response object, without the artifact tool's calls.

Theory of operation of the stream. Each event has a sequence number and, if it is about an item, the item's position.
`feed` takes events one by one:

- Events without an item and without the response pass unread, as long as nothing was hidden.
- `response.created` and the other opening events list the request's tools: the artifact tool is removed from them.
  Those of later rounds are hidden.
- The events of an item that is an own call are hidden (`_hidden`). From the first hidden event on, EventNumbers
  renumbers the others, so that the client sees no gap.
- `response.completed` and the other end events are kept back (`_end`). `continue_response` drops the end event, and the
  numbers continue; `close` writes it, with the items and the usage of all rounds.

The provider stores under the id of the last round only that round: a response object, or the events of its stream
(`GET /responses/{id}`, with `stream=true`). `rewrite_document` and `rewrite_events` put the others before it, so that
the client gets the same response again.

Source: the type files of the openai SDK (`openai/types/responses/*_event.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from accordion.model.insertions import ToolRoundInsertion
from accordion.protocols.json_spans import NULL, fields_of, is_list, is_object, list_of, object_of
from accordion.protocols.json_values import as_list, as_mapping, as_string, decode_field, encode, to_json
from accordion.protocols.openai_responses.message_json import CALLS, read_call, read_item
from accordion.protocols.openai_responses.response import (
    ENDS,
    OPENINGS,
    ResponsesEvent,
    decode_object,
    has_item_or_response,
    read_usage,
    split_object,
    text_field,
)
from accordion.protocols.sse import split_events
from accordion.protocols.tool_loop import (
    ArtifactToolCall,
    ObservedRound,
    ToolLoopDocument,
    ToolLoopResponse,
    legible_arguments,
    list_field,
    normalize_space,
    sum_round_usage,
    visible_text,
)

# Fields of the first round that a merged response keeps: later rounds come from requests of the proxy.
_FIRST_ROUND_FIELDS = ("id", "created_at", "tool_choice")


class ResponseObject(msgspec.Struct, frozen=True):
    """A response object: its fields as JSON, and the visible items of its output; None where it has no output."""

    fields: Mapping[str, bytes]
    output: tuple[bytes, ...] | None


# -- items -----------------------------------------------------------------------------


def _is_own_call(entry: Mapping[str, Any], tool: str) -> bool:
    """Whether an item is a call of the artifact tool."""
    return entry.get("type") == "function_call" and entry.get("name") == tool


def build_round(
    items: Iterable[tuple[dict[str, Any], bytes]], tool: str, fields: Mapping[str, bytes], *, finished: bool
) -> ObservedRound:
    """Builds a round from its items, decoded and as they came, and the usage in its response object's fields. Its
    entries have no own calls of an unfinished response, since nobody answers them, nor reasoning that leads to nothing
    then."""
    items = list(items)
    resent = [item for item in items if finished or not _is_own_call(item[0], tool)]
    while resent and not finished and resent[-1][0].get("type") == "reasoning":
        resent.pop()
    own_calls = [entry for entry, _ in items if _is_own_call(entry, tool)]
    return ObservedRound(
        entries=tuple(
            _sendable(raw if not _is_own_call(entry, tool) else _with_legible_arguments(entry, raw))
            for entry, raw in resent
        ),
        own_calls=tuple(
            ArtifactToolCall(as_string(entry.get("call_id")), tool, read_call(entry, CALLS["function_call"]).arguments)
            for entry in own_calls
        ),
        client_call_ids=tuple(
            filter(None, (_client_call_id(entry) for entry, _ in items if not _is_own_call(entry, tool)))
        ),
        text=normalize_space(
            visible_text(read_item(entry, 0)[1]) for entry, _ in items if entry.get("type", "message") == "message"
        ),
        finished=finished,
        usage=read_usage(as_mapping(decode_field(fields, "usage"))),
    )


def _client_call_id(entry: Mapping[str, Any]) -> str:
    """Returns the id of a call that the client answers; empty for any other item. A search without a call id is the
    provider's own."""
    kind = as_string(entry.get("type"))
    if kind not in CALLS or (kind == "tool_search_call" and not entry.get("call_id")):
        return ""
    return as_string(entry.get("call_id")) or as_string(entry.get("id"))


def _with_legible_arguments(entry: Mapping[str, Any], raw: bytes) -> bytes:
    """Returns an own call with arguments that are a JSON object."""
    arguments = as_string(entry.get("arguments"))
    text = legible_arguments(arguments)
    return raw if text == arguments else object_of({**split_object(raw), "arguments": to_json(text)})


def _sendable(raw: bytes) -> bytes:
    """Returns the item as it came, unless it has lone surrogates, which no request may contain."""
    try:
        fields_of(raw)
    except (ValueError, RecursionError):
        return json.dumps(decode_object(raw), ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
    return raw


# -- response objects --------------------------------------------------------------------


def _visible_response(fields: Mapping[str, bytes], tool: str) -> ResponseObject:
    items = tuple(raw for raw in list_field(fields, "output") if not _is_own_call(decode_object(raw), tool))
    return ResponseObject(fields, items if is_list(fields.get("output", NULL)) else None)


def _without_own_tool(fields: Mapping[str, bytes], tool: str) -> dict[str, bytes]:
    """Removes the artifact tool from the tools of a response object."""
    if tool.encode() not in fields.get("tools", NULL):
        return dict(fields)
    tools = list_field(fields, "tools")
    client_tools = [each for each in tools if not _is_own_tool(each, tool)]
    return dict(fields) if client_tools == tools else {**fields, "tools": list_of(client_tools)}


def _is_own_tool(raw: bytes, tool: str) -> bool:
    definition = decode_object(raw) if is_object(raw) and tool.encode() in raw else {}
    return definition.get("type") == "function" and definition.get("name") == tool


def merge_rounds(rounds: Sequence[ResponseObject], tool: str) -> dict[str, bytes]:
    """Merges the response objects of all rounds: the last one, with the id of the first, all visible items, and the
    usage of all. A single round without own calls keeps the bytes of every field. `rounds` has at least one."""
    last_round = rounds[-1]
    fields = _without_own_tool(last_round.fields, tool)
    if last_round.output is not None and list(last_round.output) != list_field(fields, "output"):
        fields["output"] = list_of(last_round.output)
    if len(rounds) == 1:
        return fields
    first_fields = rounds[0].fields
    fields |= {name: first_fields[name] for name in _FIRST_ROUND_FIELDS if name in first_fields}
    if last_round.output is not None:
        fields["output"] = list_of(raw for each in rounds for raw in each.output or ())
    usages = [decode_object(each.fields.get("usage", NULL)) for each in rounds]
    if usages[-1]:
        reported_usages = [usage for usage in usages if usage]
        total = sum_round_usage(
            reported_usages, "input_tokens", "output_tokens", "output_tokens_details", "total_tokens"
        )
        fields["usage"] = to_json(total)
    if "output_text" in fields:
        fields["output_text"] = to_json("".join(text_field(each.fields, "output_text") for each in rounds))
    return fields


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


class ResponsesToolStream(ToolLoopResponse):
    """A response as a stream of events."""

    def __init__(self, tool: str) -> None:
        self._tool, self._tool_name = tool, encode(tool)[1:-1]
        self._numbers = EventNumbers()
        self._response_ids: list[str] = []
        self._earlier_responses: list[ResponseObject] = []
        self._begin_round()

    def _begin_round(self) -> None:
        self._items: list[tuple[dict[str, Any], bytes]] = []
        self._hidden: set[int | str] = set()
        self._end: ResponsesEvent | None = None
        self._response = ResponseObject({}, None)
        self._late_events: list[bytes] = []

    @property
    def response_ids(self) -> tuple[str, ...]:
        """The provider's ids of the rounds, in order."""
        return tuple(self._response_ids)

    def feed(self, block: bytes) -> bytes:
        """Takes whole events; returns those that pass, in the same bytes where nothing changes."""
        is_unread = self._passes_unread(block)
        self.non_text_events = b"" if is_unread and b"error" not in block else None
        return block if is_unread else b"".join(map(self._take_event, split_events(block)))

    def _passes_unread(self, events: bytes) -> bool:
        return not (self._numbers.is_changed or has_item_or_response(events))

    @property
    def is_round_over(self) -> bool:
        """Whether the response's end event has come."""
        return self._end is not None

    def read_round(self) -> ObservedRound:
        """Returns the round, from the complete items, or from the end event if that has more."""
        items, output = self._items, list_field(self._response.fields, "output")
        if len(output) > len(items):
            items = [(decode_object(raw), raw) for raw in output]
        completed = self._end is not None and self._end.kind == "response.completed"
        finished = completed and text_field(self._response.fields, "status", "completed") == "completed"
        return build_round(items, self._tool, self._response.fields, finished=finished)

    def continue_response(self) -> None:
        """Drops the end event; the next response continues this one."""
        self._earlier_responses.append(self._response)
        self._numbers.start_round()
        self._begin_round()

    def close(self) -> bytes:
        """Returns the end event, with the items and the usage of all rounds; nothing if it never came."""
        if self._end is None:
            return b""
        changes = {}
        if self._response.fields:
            merged = merge_rounds([*self._earlier_responses, self._response], self._tool)
            if merged != self._response.fields:
                changes["response"] = object_of(merged)
        return self._numbers.show(self._end, changes) + b"".join(self._late_events)

    # -- event by event ------------------------------------------------------------------

    def _take_event(self, raw: bytes) -> bytes:
        """Returns the bytes of an event that pass."""
        if self._passes_unread(raw):
            return raw
        if self._end is not None:
            self._late_events.append(raw)
            return b""
        event = ResponsesEvent(raw)
        if not event.fields:
            # Comments and markers. A truncated event is useless to the client, and may be of an own call.
            return b"" if event.is_truncated or self._tool_name in raw else raw
        if event.kind in ENDS:
            return self._take_end(event)
        if is_object(event.fields.get("response", NULL)):
            return self._take_opening(event)
        if is_object(event.fields.get("item", NULL)):
            return self._take_item(event)
        if event.key in self._hidden:
            return self._numbers.hide(event)
        return self._numbers.show(event)

    def _take_opening(self, event: ResponsesEvent) -> bytes:
        response = split_object(event.fields["response"])
        self._note_response(response)
        if self._earlier_responses and event.kind in OPENINGS:
            return self._numbers.hide(event)
        return self._numbers.show(event, self._visible_changes(response))

    def _visible_changes(self, response: Mapping[str, bytes]) -> dict[str, bytes]:
        """Returns the changed fields of an event with a response object; empty where it passes as it is."""
        visible = _without_own_tool(response, self._tool)
        if "id" in visible and self._earlier_responses:
            visible["id"] = to_json(self._response_ids[0])
        return {} if visible == response else {"response": object_of(visible)}

    def _note_response(self, response: Mapping[str, bytes]) -> None:
        response_id = text_field(response, "id")
        if response_id and response_id not in self._response_ids[-1:]:
            self._response_ids.append(response_id)

    def _take_item(self, event: ResponsesEvent) -> bytes:
        raw = event.fields["item"]
        entry = decode_object(raw)
        key = as_string(entry.get("id")) if event.key == "" else event.key
        if _is_own_call(entry, self._tool) or key in self._hidden:
            self._hidden |= {key, as_string(entry.get("id")) or key}
            output = self._numbers.hide(event)
        else:
            output = self._numbers.show(event)
        if event.kind.endswith(".done"):
            self._items.append((entry, raw))
            # Where items have neither position nor id, all events until an own call is done belong to it.
            self._hidden.discard("")
        return output

    def _take_end(self, event: ResponsesEvent) -> bytes:
        self._response = _visible_response(split_object(event.fields.get("response", NULL)), self._tool)
        self._note_response(self._response.fields)
        self._numbers.count_from(event)
        self._end = event
        responses = (*self._earlier_responses, self._response)
        self._numbers.reserve_positions(sum(len(each.output or ()) for each in responses))
        return b""


class ResponsesToolDocument(ToolLoopDocument):
    """A response that is one response object."""

    def __init__(self, tool: str) -> None:
        super().__init__()
        self._tool = tool

    @property
    def response_ids(self) -> tuple[str, ...]:
        """The provider's ids of the rounds, in order."""
        return tuple(name for name in (as_string(document.get("id")) for document in self.documents) if name)

    def read_document(self, document: dict[str, Any]) -> ObservedRound:
        """Reads the items of a response object."""
        items = [(as_mapping(entry), to_json(entry)) for entry in as_list(document.get("output"))]
        finished = type(document.get("output")) is list and document.get("status", "completed") == "completed"
        fields = {"usage": to_json(document.get("usage"))}
        return build_round(items, self._tool, fields, finished=finished)

    def write_document(self) -> bytes:
        """Writes the response object of all rounds."""
        rounds = [_visible_response(split_object(to_json(document)), self._tool) for document in self.documents]
        if rounds[-1].output is None:
            # An error instead of a response: the client gets the error.
            return object_of(_without_own_tool(rounds[-1].fields, self._tool))
        return object_of(merge_rounds(rounds, self._tool))

    def close(self) -> bytes:
        """Returns the response object of all rounds. A single round without own calls keeps its bytes, except for the
        artifact tool in its tools."""
        document = super().close()
        fields = split_object(document)
        visible = _without_own_tool(fields, self._tool)
        return document if visible == fields else object_of(visible)


# -- stored responses --------------------------------------------------------------------------------------------------


def rewrite_document(raw: bytes, client_id: str, insertions: Sequence[ToolRoundInsertion]) -> bytes:
    """Returns the response object under the client's id, with the items of the earlier rounds, without own calls.

    The rounds are those of the insertion that ends with the object's items; without one the object keeps only its own.
    The same bytes where it is no response object.
    """
    fields = split_object(raw)
    return object_of(_rewrite_fields(fields, client_id, insertions)) if "id" in fields else raw


def rewrite_events(block: bytes, client_id: str, insertions: Sequence[ToolRoundInsertion]) -> bytes:
    """Rewrites the response objects in whole events of a stream; the events' numbers stay."""
    return b"".join(
        _rewrite_event(piece, client_id, insertions) if b'"response"' in piece else piece
        for piece in split_events(block)
    )


def _rewrite_event(raw: bytes, client_id: str, insertions: Sequence[ToolRoundInsertion]) -> bytes:
    event = ResponsesEvent(raw)
    response = event.fields.get("response", NULL)
    if not is_object(response):
        return raw
    return event.with_fields({"response": object_of(_rewrite_fields(split_object(response), client_id, insertions))})


def _rewrite_fields(
    fields: dict[str, bytes], client_id: str, insertions: Sequence[ToolRoundInsertion]
) -> dict[str, bytes]:
    fields = {**fields, "id": to_json(client_id)}
    output = list_field(fields, "output")
    insertion = next((one_round for one_round in insertions if _ends_with(one_round, output)), None)
    if insertion is None or not is_list(fields.get("output", NULL)):
        return fields
    answered_ids = {decode_object(wire).get("call_id") for one_round in insertion.rounds for wire in one_round.results}
    earlier_items = [wire for one_round in insertion.rounds[:-1] for wire in one_round.response]
    items = [(decode_object(wire), wire) for wire in (*earlier_items, *output)]
    names = {as_string(entry.get("name")) for entry, _ in items if entry.get("call_id") in answered_ids}
    for name in names:
        fields = _without_own_tool(fields, name)
        items = [(entry, wire) for entry, wire in items if not _is_own_call(entry, name)]
    return {**fields, "output": list_of(wire for _, wire in items)}


def _ends_with(insertion: ToolRoundInsertion, output: Sequence[bytes]) -> bool:
    """Whether the last round of an insertion has these items, apart from those that are not sent back."""
    items = insertion.rounds[-1].response if insertion.rounds else ()
    names = list(map(_item_name, map(decode_object, items)))
    return bool(names) and names == [name for name in map(_item_name, map(decode_object, output)) if name in names]


def _item_name(entry: dict[str, Any]) -> str:
    return as_string(entry.get("id")) or as_string(entry.get("call_id"))
