"""The streamed response of an Anthropic tool loop: events in, events out.

Theory of operation. A round's events are message_start, then content_block_start / _delta / _stop with an `index` for
each content block, then message_delta and message_stop; `ping` and `error` may come anywhere. `feed` takes them one by
one:

- message_start passes in the first round and is hidden in later ones.
- content_block_start creates a ResponseBlock (response_blocks.py), to which the deltas are added. The events of a block
  that is an own call are hidden; those of later blocks get lower indexes (`_index_shift`), so that the client sees no
  gap.
- Deltas of the open block that only add text pass unread; the block keeps them and reads them when it must.
- Deltas of a client call's arguments run through a PlaceholderScanner. While a block waits for an artifact
(`_waiting`),
  all later events are kept in `_queue`.
- message_delta and message_stop are kept back (`_end_events`). `continue_response` drops them; `close` writes them,
with
  the stop reason and the usage of all rounds.

An event in which nothing changes passes in its own bytes. Sources: the streaming reference of the Messages API, the
type files and the stream accumulator of the anthropic SDK.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from accordion.protocols.anthropic_messages.response import (
    INPUT_COUNTS,
    ContentDelta,
    MessagesEvent,
    MessagesParser,
    arguments_event,
    read_fields,
    with_fields,
    with_index,
)
from accordion.protocols.anthropic_messages.response_blocks import (
    DONE,
    NO_INPUT,
    ResponseBlock,
    build_round,
    stop_reason,
    sum_usage,
)
from accordion.protocols.artifact_placeholders import find_placeholders
from accordion.protocols.json_spans import NULL, fields_of, object_of
from accordion.protocols.json_values import as_mapping, as_string, encode
from accordion.protocols.message_keys import decode_json
from accordion.protocols.response_observer import ResponseObserver
from accordion.protocols.response_parser import BOUND
from accordion.protocols.sse import SseBuffer, event_end
from accordion.protocols.tool_loop import ArtifactPlaceholder, ObservedRound, ToolLoopResponse


class MessagesToolStream(ToolLoopResponse):
    """A response as a stream of events."""

    def __init__(self, tool: str) -> None:
        self._tool = tool
        self._next_index = 0
        """The next index for the client."""
        self._usages: list[dict[str, Any]] = []
        self._waiting_block: ResponseBlock | None = None
        self._queue = b""
        """Events after arguments that wait for an artifact."""
        self._start_round()

    def _start_round(self) -> None:
        """Resets the state of a round."""
        self._events = SseBuffer(BOUND)
        # Whether the last block ended with an event.
        self._is_at_event_end = True
        self._blocks: dict[int, ResponseBlock] = {}
        self._round_blocks: list[ResponseBlock] = []
        # The difference from the provider's index to the client's.
        self._index_shift = self._next_index
        self._parser = MessagesParser(is_stream=True)
        self._observer = ResponseObserver(self._parser)
        self._end_events: list[tuple[str, bytes]] = []
        self._usage: dict[str, Any] = {}
        self._container = ""
        self._has_unknown_content = False
        # The index of the own call that is open and hidden; -1 without one.
        self._hidden_index = -1
        # The open block, if its events pass in their own bytes.
        self._unchanged_block: ResponseBlock | None = None

    def feed(self, block: bytes) -> bytes:
        """Takes events, or pieces of large ones; returns those that pass."""
        self.observable_output = None
        if (
            self._unchanged_block is not None
            and self._is_at_event_end
            and self._unchanged_block.can_skip_reading(block)
        ):
            if self._unchanged_block.is_text_only:
                self.observable_output = b""
            return block
        events = self._events.feed(block)
        self._is_at_event_end = not (self._events.pending or self._events.is_mid_event)
        if self._waiting_block is not None:
            self._queue += events
            return b""
        return self._take_events(events) if events else b""

    @property
    def pending_placeholders(self) -> tuple[ArtifactPlaceholder, ...]:
        """The placeholders in the arguments of the waiting call."""
        return (
            self._waiting_block.arguments.pending_placeholders
            if self._waiting_block is not None and self._waiting_block.arguments
            else ()
        )

    def resolve(self, texts: Sequence[str | None]) -> bytes:
        """Replaces the placeholders; returns the waiting arguments and the events after them."""
        block, self._waiting_block = self._waiting_block, None
        if block is None or block.arguments is None:
            return b""
        out = arguments_event(block.client_index, block.arguments.resolve(texts))
        queue, self._queue = self._queue, b""
        return out + self._take_events(queue)

    @property
    def is_round_over(self) -> bool:
        """Whether a message_delta has come, the end of the round."""
        return bool(self._end_events)

    def read_round(self) -> ObservedRound:
        """Returns the round."""
        observed = self._observer.observation()
        finished = observed.finish in DONE and not self._has_unknown_content and bool(self._end_events)
        resolved = any(block.arguments is not None and block.arguments.resolved for block in self._round_blocks)
        return build_round(
            self._round_blocks, finished=finished, usage=observed.usage, resolved=resolved, container=self._container
        )

    def continue_response(self) -> None:
        """Drops the end events of this round; the next events continue the response."""
        self._usages.append(self._usage)
        self._start_round()

    def close(self) -> bytes:
        """Returns the end events, with the stop reason and the usage of all rounds, and the rest of a truncated
        event."""
        out = self._release_end() + self._forward_rest()
        while placeholders := self.pending_placeholders:
            out += self.resolve([None] * len(placeholders))
        return out + self._release_end()

    # -- events, one by one ---------------------------------------------------------

    def _take_events(self, block: bytes) -> bytes:
        out, observable, position = list[bytes](), list[bytes](), 0
        while position < len(block):
            open_block, start = self._unchanged_block, position
            position = open_block.take_similar(block, start) if open_block is not None else start
            is_text = position > start and open_block is not None and open_block.is_text_only
            if position > start:
                output = block[start:position]
            else:
                position = event_end(block, start)
                output = self._take_event(block[start:position])
            out.append(output)
            observable.append(b"" if is_text else output)
            if self._waiting_block is not None and position < len(block):
                self._queue = block[position:]
                break
        self.observable_output = b"".join(observable)
        return b"".join(out)

    def _take_event(self, piece: bytes) -> bytes:
        value = self._parser.read_value(piece)
        if value is None:
            return self._forward_unreadable(piece)
        kind = value.type
        if kind == "content_block_delta":
            block = self._blocks.get(value.index)
            if block is not None and value.delta is not None and not self._end_events:
                return self._take_delta(block, value.delta, value, piece)
        if kind in {"message_delta", "message_stop"}:
            return self._take_end(value, piece)
        if kind.startswith("content_block_"):
            return self._release_end() + self._take_content_event(kind, value, piece)
        if kind == "message_start":
            self._observer.take(self._parser.parse_event(piece))
            self._add_usage(as_mapping(_value(bytes(value.message))).get("usage"))
            return b"" if self._usages else self._forward_unknown(kind, piece)
        if kind == "error":
            self._observer.take(self._parser.parse_event(piece))
            return self._release_end() + piece
        return piece if kind == "ping" else self._forward_unknown(kind, piece)

    def _take_delta(self, block: ResponseBlock, delta: ContentDelta, event: MessagesEvent, piece: bytes) -> bytes:
        block.grow(delta)
        if block.is_own:
            return b""
        if block is self._unchanged_block:
            block.set_pattern(piece)
        visible_event = _with_client_index(piece, event, block)
        return visible_event if block.arguments is None else self._take_arguments(block, delta, visible_event)

    def _forward_unknown(self, kind: str, piece: bytes) -> bytes:
        """Passes an unknown event, or keeps it back behind the end events."""
        if not self._end_events:
            return piece
        self._end_events.append((kind, piece))
        return b""

    def _take_content_event(self, kind: str, event: MessagesEvent, piece: bytes) -> bytes:
        if kind == "content_block_start":
            return self._take_block_start(event, piece)
        block = self._blocks.get(event.index)
        if block is None:
            self._has_unknown_content = True
            return piece
        is_stop = kind == "content_block_stop"
        # Any other event is a delta without content, or one after the end.
        self._has_unknown_content = self._has_unknown_content or not is_stop
        if block.is_own:
            self._hidden_index = -1 if is_stop else self._hidden_index
            return b""
        remaining_arguments = block.arguments.finish() if is_stop and block.arguments is not None else ""
        return arguments_event(block.client_index, remaining_arguments) + _with_client_index(piece, event, block)

    def _take_block_start(self, event: MessagesEvent, piece: bytes) -> bytes:
        raw = bytes(event.content_block)
        try:
            block = ResponseBlock(raw, self._tool, event.index + self._index_shift)
        except ValueError:
            self._has_unknown_content = True
            return piece
        self._blocks[event.index] = block
        self._round_blocks.append(block)
        if block.is_own:
            self._hidden_index = event.index
            self._index_shift -= 1
            return b""
        self._unchanged_block = block if block.client_index == event.index else None
        self._hidden_index = -1
        self._next_index = max(self._next_index, block.client_index + 1)
        visible_event = _with_client_index(piece, event, block)
        text = block.arguments_text if block.arguments is not None else ""
        if not find_placeholders(text):
            return visible_event
        # The input came complete: it is sent as a delta after the start, so that it can wait.
        visible_event = with_fields(visible_event, {"content_block": object_of({**fields_of(raw), "input": NO_INPUT})})
        return visible_event + self._take_arguments(block, ContentDelta("input_json_delta", partial_json=text), b"")

    def _take_arguments(self, block: ResponseBlock, delta: ContentDelta, event: bytes) -> bytes:
        """Returns the part of a client call's arguments that passes. `event` is their event, empty if they came with
        the start."""
        arguments = block.arguments
        if arguments is None or delta.type != "input_json_delta":
            return event
        block.scan_skipped_arguments()
        out = arguments.feed(delta.partial_json)
        if arguments.pending_placeholders:
            self._waiting_block = block
        return event if event and out == delta.partial_json else arguments_event(block.client_index, out)

    def _take_end(self, value: MessagesEvent, piece: bytes) -> bytes:
        self._observer.take(self._parser.parse_event(piece))
        if value.type == "message_delta":
            self._unchanged_block = None
            self._add_usage(_value(bytes(value.usage)))
            self._container = _container(piece)
            self._end_events.append((value.type, piece))
            return b""
        return self._forward_unknown(value.type, piece)

    def _add_usage(self, usage: Any) -> None:
        self._usage |= {name: value for name, value in as_mapping(usage).items() if value is not None}

    def _forward_unreadable(self, piece: bytes) -> bytes:
        """Passes an unreadable event, unless it may belong to an own call."""
        if b"data:" not in piece and not self._events.is_mid_event:
            # A comment, or a bare name.
            return piece
        self._has_unknown_content = True
        return b"" if self._hidden_index >= 0 else self._forward_unknown("", piece)

    # -- the end --------------------------------------------------------------------

    def _release_end(self) -> bytes:
        """Returns the end events, as the end of the client's response."""
        if not self._end_events:
            return b""
        events, self._end_events = self._end_events, []
        return b"".join(
            [self._write_message_delta(piece) if kind == "message_delta" else piece for kind, piece in events]
        )

    def _write_message_delta(self, piece: bytes) -> bytes:
        """Returns the message_delta that ends all rounds."""
        try:
            fields = read_fields(piece)
            delta = fields_of(fields["delta"])
            reason = as_string(decode_json(delta.get("stop_reason", NULL)))
            usage = as_mapping(decode_json(fields.get("usage", NULL)))
        except (ValueError, KeyError):
            return piece
        changes: dict[str, bytes] = {}
        if (visible_reason := stop_reason(reason, self._round_blocks)) != reason:
            changes["delta"] = object_of({**delta, "stop_reason": encode(visible_reason)})
        if self._usages:
            changes["usage"] = encode(self._total_usage(usage))
        return with_fields(piece, changes) if changes else piece

    def _total_usage(self, usage: dict[str, Any]) -> dict[str, Any]:
        """Returns the usage of all rounds. A client that finds no input here keeps that of the first round, so the last
        round's input is always included."""
        counts = {name: self._usage[name] for name in (*INPUT_COUNTS, "output_tokens") if name in self._usage}
        absent = {
            name: 0 for name in INPUT_COUNTS[1:] if "input_tokens" in counts and any(name in u for u in self._usages)
        }
        known_usage = {name: value for name, value in usage.items() if value is not None}
        return sum_usage([*self._usages, {**absent, **counts, **known_usage}])

    def _forward_rest(self) -> bytes:
        """Returns the beginning of a truncated event, unless it may belong to an own call."""
        unfinished_event = self._events.flush()
        if not unfinished_event.strip() or self._parser.read_value(unfinished_event) is not None:
            return self._take_events(unfinished_event)
        return b"" if self._hidden_index >= 0 or b"content_block_start" in unfinished_event else unfinished_event


def _with_client_index(piece: bytes, event: MessagesEvent, block: ResponseBlock) -> bytes:
    return piece if block.client_index == event.index else with_index(piece, block.client_index)


def _value(raw: bytes) -> Any:
    try:
        return decode_json(raw or NULL)
    except ValueError:
        return None


def _container(piece: bytes) -> str:
    """Returns the container of the provider's own tools from a message_delta; empty without one."""
    if b'"container"' not in piece:
        return ""
    try:
        delta = as_mapping(decode_json(read_fields(piece)["delta"]))
    except (ValueError, KeyError):
        return ""
    return as_string(as_mapping(delta.get("container")).get("id"))
