"""The streamed response of a Responses tool loop: events in, events out.

Theory of operation. Each event has a sequence number and, if it is about an item, the item's position. `feed` takes
events one by one:

- Events without content of calls or of the response pass unread, as long as nothing was hidden or is kept back.
- `response.created` and the other opening events list the request's tools: the artifact tool is removed from them.
  Those of later rounds are hidden.
- The events of an item that is an own call are hidden (`_hidden`). From the first hidden event on, EventNumbers
  renumbers the others, so that the client sees no gap.
- Deltas of a client call's arguments run through a PlaceholderScanner (`_calls`). An event that waits for an artifact
  stays in `_queue`, and all later events wait for it.
- `response.completed` and the other end events are kept back (`_end`). `continue_response` drops the end event, and the
  numbers continue; `close` writes it, with the items and the usage of all rounds.

Source: the type files of the openai SDK (`openai/types/responses/*_event.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from accordion.protocols.artifact_placeholders import PlaceholderScanner, find_placeholders, replace_placeholders
from accordion.protocols.json_spans import NULL, is_list, is_object, object_of
from accordion.protocols.json_values import as_string, encode, to_json
from accordion.protocols.openai_responses.events import EventNumbers, arguments_delta
from accordion.protocols.openai_responses.response import (
    ARGUMENTS_START,
    DELTA,
    DONE,
    ENDS,
    OPENINGS,
    ResponsesEvent,
    ResponsesParser,
    decode_object,
    has_no_content,
    is_single_event,
    read_arguments_delta,
    split_object,
    text_field,
)
from accordion.protocols.openai_responses.rounds import (
    ResponseObject,
    build_round,
    is_own_call,
    merge_rounds,
    with_arguments,
    without_own_tool,
)
from accordion.protocols.sse import split_events
from accordion.protocols.tool_loop import ArtifactPlaceholder, ObservedRound, ToolLoopResponse
from accordion.protocols.tool_loop_shared import list_field


class ResponsesToolStream(ToolLoopResponse):
    """A response as a stream of events."""

    def __init__(self, tool: str) -> None:
        self._tool, self._tool_name = tool, encode(tool)[1:-1]
        # Events that wait: the first for an artifact, the others for the first event.
        self._queue: deque[ResponsesEvent] = deque()
        self._texts: dict[ArtifactPlaceholder, str | None] = {}
        self._pending: tuple[ArtifactPlaceholder, ...] = ()
        self._parser = ResponsesParser(is_stream=True)
        self._numbers = EventNumbers()
        self._response_ids: list[str] = []
        self._earlier_responses: list[ResponseObject] = []
        self._begin_round()

    def _begin_round(self) -> None:
        self._items: list[tuple[dict[str, Any], bytes]] = []
        self._hidden: set[int | str] = set()
        self._calls: dict[int | str, _StreamedCall] = {}
        self._resolved = False
        self._end: ResponsesEvent | None = None
        self._response = ResponseObject({}, None)
        self._late_events: list[bytes] = []

    @property
    def response_ids(self) -> tuple[str, ...]:
        """The provider's ids of the rounds, in order."""
        return tuple(self._response_ids)

    def feed(self, block: bytes) -> bytes:
        """Takes whole events; returns those that pass, in the same bytes where nothing changes."""
        is_text = self._is_unchanged and not block.startswith(ARGUMENTS_START) and has_no_content(block)
        self.observable_output = b"" if is_text and b"error" not in block else None
        if is_text:
            return block
        return self._feed(block) if is_single_event(block) else b"".join(map(self._feed, split_events(block)))

    def _feed(self, raw: bytes) -> bytes:
        event, is_unchanged = None, self._is_unchanged
        delta = read_arguments_delta(raw) if is_unchanged else None
        if delta is not None:
            # Mostly the same text passes, and nothing else of the event must be read.
            call = self._calls.get(delta.key) or self._calls.setdefault(delta.key, _StreamedCall())
            call.text = call.arguments.feed(delta.delta)
            if call.text == delta.delta and not call.arguments.pending_placeholders:
                return raw
            event = self._parser.read_value(raw)
            event.is_scanned = True
        elif is_unchanged and has_no_content(raw):
            return raw
        self._queue.append(event or self._parser.read_value(raw))
        return self._drain()

    @property
    def _is_unchanged(self) -> bool:
        """Whether events pass as they came, so far."""
        return not (self._numbers.is_changed or self._queue)

    @property
    def pending_placeholders(self) -> tuple[ArtifactPlaceholder, ...]:
        """The placeholders of the first waiting event, each once."""
        return self._pending

    def resolve(self, texts: Sequence[str | None]) -> bytes:
        """Replaces the pending placeholders, also where they come again within the response."""
        self._texts |= dict.fromkeys(self._pending) | dict(zip(self._pending, texts, strict=False))
        self._pending = ()
        return self._drain()

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
        return build_round(items, self._tool, self._response.fields, finished=finished, resolved=self._resolved)

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

    def _drain(self) -> bytes:
        out = []
        while self._queue and not self._pending:
            output = self._take(self._queue[0])
            if output is None:
                break
            self._queue.popleft()
            out.append(output)
        return b"".join(out)

    def _take(self, event: ResponsesEvent) -> bytes | None:
        """Returns the bytes of an event that pass; None where it waits for an artifact."""
        if self._end is not None:
            self._late_events.append(event.raw)
            return b""
        if not event.fields:
            # Comments and markers. A truncated event is useless to the client, and may be of an own call.
            return b"" if event.is_truncated or self._tool_name in event.raw else event.raw
        if event.kind in ENDS:
            return self._take_end(event)
        if is_object(event.fields.get("response", NULL)):
            return self._take_opening(event)
        if is_object(event.fields.get("item", NULL)):
            return self._take_item(event)
        if event.key in self._hidden:
            return self._numbers.hide(event)
        if event.kind == DELTA:
            return self._take_delta(event)
        if event.kind == DONE:
            return self._take_done(event)
        return self._numbers.show(event)

    def _take_opening(self, event: ResponsesEvent) -> bytes:
        response = split_object(event.fields["response"])
        self._note_response(response)
        if self._earlier_responses and event.kind in OPENINGS:
            return self._numbers.hide(event)
        return self._numbers.show(event, self._visible_changes(response))

    def _visible_changes(self, response: Mapping[str, bytes]) -> dict[str, bytes]:
        """Returns the changed fields of an event with a response object; empty where it passes as it is."""
        visible = without_own_tool(response, self._tool)
        if "id" in visible and self._earlier_responses:
            visible["id"] = to_json(self._response_ids[0])
        return {} if visible == response else {"response": object_of(visible)}

    def _note_response(self, response: Mapping[str, bytes]) -> None:
        response_id = text_field(response, "id")
        if response_id and response_id not in self._response_ids[-1:]:
            self._response_ids.append(response_id)

    def _take_item(self, event: ResponsesEvent) -> bytes | None:
        raw = event.fields["item"]
        entry = decode_object(raw)
        key = as_string(entry.get("id")) if event.key == "" else event.key
        output: bytes | None
        if is_own_call(entry, self._tool) or key in self._hidden:
            self._hidden |= {key, as_string(entry.get("id")) or key}
            output = self._numbers.hide(event)
        elif entry.get("type") == "function_call":
            output = self._take_call(event, entry, key)
        else:
            output = self._numbers.show(event)
        if output is not None and event.kind.endswith(".done"):
            self._items.append((entry, raw))
            # Where items have neither position nor id, all events until an own call is done belong to it.
            self._hidden.discard("")
        return output

    def _take_call(self, event: ResponsesEvent, entry: Mapping[str, Any], key: int | str) -> bytes | None:
        """Takes the item of a client call that begins or is done."""
        arguments = entry.get("arguments")
        text = self._resolve_arguments(arguments) if type(arguments) is str else None
        if self._pending:
            return None
        changes = {} if text is None else {"item": with_arguments(event.fields["item"], text)}
        if event.kind.endswith(".done"):
            return self._release_rest(event, key, as_string(entry.get("id"))) + self._numbers.show(event, changes)
        self._calls[key] = _StreamedCall()
        return self._numbers.show(event, changes)

    def _take_delta(self, event: ResponsesEvent) -> bytes | None:
        call = self._calls.setdefault(event.key, _StreamedCall())
        delta = event.text("delta")
        if not event.is_scanned:
            event.is_scanned = True
            call.text = call.arguments.feed(delta)
        if call.arguments.pending_placeholders:
            texts = self._known_texts(call.arguments.pending_placeholders)
            if texts is None:
                return None
            call.text += call.arguments.resolve(texts)
        self._resolved = self._resolved or call.arguments.resolved
        # A piece without text to send stays as an empty delta, so that the numbers need not change.
        return self._numbers.show(event, {} if call.text == delta else {"delta": to_json(call.text)})

    def _take_done(self, event: ResponsesEvent) -> bytes | None:
        text = self._resolve_arguments(event.text("arguments"))
        if self._pending:
            return None
        last_delta = self._release_rest(event, event.key, event.text("item_id"))
        return last_delta + self._numbers.show(event, {} if text is None else {"arguments": to_json(text)})

    def _release_rest(self, event: ResponsesEvent, key: int | str, item_id: str) -> bytes:
        """Returns the rest of a call's arguments, kept back as a possible placeholder, as one more delta."""
        call = self._calls.pop(key, None)
        text = call.arguments.finish() if call is not None else ""
        if not text:
            return b""
        self._numbers.count_from(event)
        return self._numbers.show(arguments_delta(event, item_id, text))

    def _resolve_arguments(self, text: str) -> str | None:
        """Replaces the placeholders in the complete arguments of a call; None where nothing changes, or where some are
        `_pending` now."""
        placeholders = find_placeholders(text)
        texts = self._known_texts(placeholders) if placeholders else None
        if texts is None:
            return None
        replaced = replace_placeholders(text, texts)
        self._resolved = self._resolved or replaced != text
        return None if replaced == text else replaced

    def _known_texts(self, placeholders: tuple[ArtifactPlaceholder, ...]) -> list[str | None] | None:
        """Returns the texts of these placeholders; None where some are not known yet, which are `_pending` then."""
        self._pending = tuple(each for each in dict.fromkeys(placeholders) if each not in self._texts)
        return None if self._pending else [self._texts[each] for each in placeholders]

    def _take_end(self, event: ResponsesEvent) -> bytes | None:
        response = split_object(event.fields.get("response", NULL))
        output: list[bytes] = []
        for raw in list_field(response, "output"):
            entry = decode_object(raw)
            if is_own_call(entry, self._tool):
                continue
            arguments = entry.get("arguments") if entry.get("type") == "function_call" else None
            replaced = self._resolve_arguments(arguments) if type(arguments) is str else None
            if self._pending:
                return None
            output.append(raw if replaced is None else with_arguments(raw, replaced))
        self._note_response(response)
        self._numbers.count_from(event)
        visible = ResponseObject(response, tuple(output) if is_list(response.get("output", NULL)) else None)
        self._end, self._response = event, visible
        self._numbers.reserve_positions(sum(len(each.output or ()) for each in (*self._earlier_responses, visible)))
        return b""


class _StreamedCall:
    """The arguments of a client call as they come; `text` is the part of the newest piece that passes."""

    __slots__ = ("arguments", "text")

    def __init__(self) -> None:
        self.arguments = PlaceholderScanner()
        self.text = ""
