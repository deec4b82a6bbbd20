"""The responses of an Anthropic tool loop: a stream of events, or one message, without the artifact tool's calls.

Theory of operation of the stream (for its events see response.py). `feed` takes the events of a round one by one:

- message_start passes in the first round and is hidden in later ones.
- content_block_start creates a ResponseBlock, to which the deltas are added. The events of a block that is an own call
  are hidden; those of later blocks get lower indexes (`_index_shift`), so that the client sees no gap.
- Deltas of the open block that only add text or arguments pass unread; the block keeps them and reads them when it
  must.
- message_delta and message_stop are kept back (`_end_events`). `continue_response` drops them; `close` writes them,
  with the stop reason and the usage of all rounds.

An event in which nothing changes passes in its own bytes.

A round is built from its blocks, in the request's form (`build_round`). A response may be sent back as it came, except
blank text, thinking at the end, and arguments that are no object; the guide to fine-grained tool streaming says how
arguments that are no JSON are sent.

Sources: the streaming reference of the Messages API; the type files and the stream accumulator of the anthropic SDK.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from accordion.model.records import Usage
from accordion.protocols.anthropic_messages.message_json import CALLS
from accordion.protocols.anthropic_messages.response import (
    INPUT_COUNTS,
    DeltaPattern,
    EventDelta,
    MessagesEvent,
    delta_opening,
    read_fields,
    read_messages_event,
    read_usage,
    with_fields,
    with_index,
)
from accordion.protocols.json_spans import NULL, fields_of, is_list, is_object, items_of, list_of, object_of
from accordion.protocols.json_values import as_count, as_mapping, as_string, encode, to_json
from accordion.protocols.message_keys import decode_json
from accordion.protocols.response_parser import BOUND
from accordion.protocols.sse import SseBuffer, event_end, split_events
from accordion.protocols.tool_loop import (
    UNREADABLE_ROUND,
    ArtifactToolCall,
    ObservedRound,
    ToolLoopDocument,
    ToolLoopResponse,
    sum_round_usage,
)

NO_INPUT = b"{}"
DONE = frozenset({"end_turn", "tool_use", "stop_sequence"})
"""The stop reasons of a complete response; any other is a limit, a refusal or a pause."""

_THINKING = frozenset({"thinking", "redacted_thinking"})
_TEXT_FIELDS = {"text": "text", "thinking": "thinking"}
_MAX_UNREAD = 64 * 1024
"""Limit of a block's events that are kept unread, in bytes."""


class ResponseBlock:
    """One content block of a response as it grows. `start` is its JSON in content_block_start, `client_index` its index
    for the client. Raises ValueError if `start` is no object."""

    __slots__ = (
        *("_pattern", "_fields", "_pieces", "_size", "_unread_events"),
        *("id", "kind", "name", "has_unknown_content", "is_own", "client_index", "start"),
    )

    def __init__(self, start: bytes, tool: str, client_index: int) -> None:
        block = decode_json(start)
        if type(block) is not dict:
            raise ValueError("a content block is an object")
        self.kind, self.id, self.name = (as_string(block.get(name)) for name in ("type", "id", "name"))
        self.is_own = self.kind == "tool_use" and self.name == tool
        self.client_index = client_index
        self.has_unknown_content = False
        """Whether it had a delta of an unknown type."""
        self.start = start
        self._pieces: list[str] = []
        self._fields: dict[str, list[bytes]] = {}
        self._pattern: DeltaPattern | None = None
        # Events that passed unread, and their size.
        self._unread_events: list[bytes] = []
        self._size = 0

    def can_skip_reading(self, events: bytes) -> bool:
        """Whether these events match the pattern of the block's deltas and pass unread. They are kept, and read when
        the text is needed."""
        if self._pattern is None or self._pattern.match(events) is None:
            return False
        self._keep(events)
        return True

    def take_similar(self, block: bytes, at: int) -> int:
        """Takes the events from `at` on that match the pattern of the block's deltas; returns their end."""
        match = self._pattern.run(block, at) if self._pattern is not None else None
        if match is None:
            return at
        self._keep(match.group())
        return match.end()

    @property
    def is_text_only(self) -> bool:
        """Whether it is a block of text or thinking."""
        return self.kind in {"text", "thinking"}

    def _keep(self, events: bytes) -> None:
        self._unread_events.append(events)
        self._size += len(events)
        if self._size > _MAX_UNREAD:
            self.read_skipped()

    def set_pattern(self, piece: bytes) -> None:
        """Makes a delta the pattern of those that pass unread."""
        opening = delta_opening(piece, self.client_index) if self._pattern is None else b""
        if opening:
            self._pattern = DeltaPattern(opening)

    def read_skipped(self) -> None:
        """Reads the events that passed unread."""
        if not self._unread_events:
            return
        raw = b"".join(self._unread_events)
        self._unread_events.clear()
        self._size = 0
        text = self._pattern.read_text(raw) if self._pattern is not None else None
        if text is not None:
            self._pieces.append(text)
        else:
            for piece in split_events(raw):
                value = read_messages_event(piece)
                if value is None:
                    self.has_unknown_content = True
                elif value.delta is not None:
                    self.grow(value.delta)

    def grow(self, delta: EventDelta) -> None:
        """Adds a delta."""
        if self._unread_events:
            self.read_skipped()
        kind = delta.type
        if kind == "text_delta":
            self._pieces.append(delta.text)
        elif kind == "input_json_delta":
            self._pieces.append(delta.partial_json)
        elif kind == "thinking_delta":
            self._pieces.append(delta.thinking)
        elif kind == "signature_delta":
            self._fields["signature"] = [encode(delta.signature)]
        elif kind == "citations_delta" and bytes(delta.citation):
            self._fields.setdefault("citations", []).append(bytes(delta.citation))
        elif kind == "compaction_delta":
            self._fields |= {
                name: [bytes(value)]
                for name, value in (("content", delta.content), ("encrypted_content", delta.encrypted_content))
                if bytes(value)
            }
        else:
            self.has_unknown_content = True

    @property
    def text(self) -> str:
        """The text of a text block; empty for any other."""
        return (
            as_string(as_mapping(decode_json(self.start)).get("text")) + "".join(self._pieces)
            if self.kind == "text"
            else ""
        )

    @property
    def arguments_text(self) -> str:
        """The arguments of a call, as the model wrote them."""
        text = "".join(self._pieces)
        return text if text.strip() else fields_of(self.start).get("input", NO_INPUT).decode()

    @property
    def wire(self) -> bytes:
        """The JSON of the block, for sending it back."""
        fields = fields_of(self.start)
        changed: dict[str, bytes] = {}
        if self.kind in CALLS:
            changed["input"] = _object(self.arguments_text)
        elif self._pieces and (name := _TEXT_FIELDS.get(self.kind, "")):
            initial_text = as_string(decode_json(fields.get(name, b'""')))
            changed[name] = encode(initial_text + "".join(self._pieces))
        for name, values in self._fields.items():
            before_list = fields.get(name, b"")
            if name == "citations":
                changed[name] = list_of([*(items_of(before_list) if is_list(before_list) else ()), *values])
            else:
                changed[name] = values[-1]
        is_same = all(fields.get(name) == value for name, value in changed.items())
        return self.start if is_same else object_of({**fields, **changed})


def build_round(
    blocks: Sequence[ResponseBlock], *, finished: bool, usage: Usage | None, container: str = ""
) -> ObservedRound:
    """Builds a round from its blocks. Own calls of an unfinished response are left out: nobody answers them."""
    for block in blocks:
        block.read_skipped()
    finished = finished and not any(block.has_unknown_content for block in blocks)
    resent_blocks = [block for block in blocks if finished or not block.is_own]
    resent_blocks = [block for block in resent_blocks if block.kind != "text" or block.text.strip()]
    while resent_blocks and resent_blocks[-1].kind in _THINKING:
        resent_blocks.pop()
    message = object_of({"role": b'"assistant"', "content": list_of(block.wire for block in resent_blocks)})
    return ObservedRound(
        entries=(message,) if resent_blocks else (),
        own_calls=tuple(
            ArtifactToolCall(block.id, block.name, block.arguments_text) for block in blocks if block.is_own
        ),
        client_call_ids=tuple(block.id for block in blocks if block.kind == "tool_use" and not block.is_own),
        text=" ".join(block.text for block in blocks if block.kind == "text"),
        finished=finished,
        usage=usage,
        container=container,
    )


def stop_reason(reason: str, blocks: Sequence[ResponseBlock]) -> str:
    """Returns the stop reason for the visible blocks, where the provider's was `reason`."""
    calls = [block.is_own for block in blocks if block.kind == "tool_use"]
    return "end_turn" if reason == "tool_use" and calls and all(calls) else reason


def sum_usage(usages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merges the usage of all rounds: the last one's input, the output of all, and the requests of the provider's
    tools."""
    usage = sum_round_usage(usages, "input_tokens", "output_tokens", "output_tokens_details")
    tool_counts = [as_mapping(each.get("server_tool_use")) for each in usages]
    names = {name: None for each in tool_counts for name in each}
    if names:
        usage["server_tool_use"] = {name: sum(as_count(each.get(name)) for each in tool_counts) for name in names}
    return usage


def _object(text: str) -> bytes:
    """Returns arguments as an object; invalid ones are wrapped as the provider's guide says."""
    raw = text.strip().encode()
    if raw in {b"", NULL}:
        return NO_INPUT
    try:
        if is_object(raw) and type(decode_json(raw)) is dict:
            return raw
    except ValueError:
        pass
    return encode({"INVALID_JSON": text})


class MessagesToolStream(ToolLoopResponse):
    """A response as a stream of events."""

    def __init__(self, tool: str) -> None:
        self._tool = tool
        self._next_index = 0
        """The next index for the client."""
        self._usages: list[dict[str, Any]] = []
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
        self._end_events: list[tuple[str, bytes]] = []
        self._usage: dict[str, Any] = {}
        self._finish = self._container = ""
        self._has_unknown_content = False
        # The index of the own call that is open and hidden; -1 without one.
        self._hidden_index = -1
        # The open block, if its events pass in their own bytes.
        self._unchanged_block: ResponseBlock | None = None

    def feed(self, block: bytes) -> bytes:
        """Takes events, or pieces of large ones; returns those that pass."""
        self.non_text_events = None
        if (
            self._unchanged_block is not None
            and self._is_at_event_end
            and self._unchanged_block.can_skip_reading(block)
        ):
            if self._unchanged_block.is_text_only:
                self.non_text_events = b""
            return block
        events = self._events.feed(block)
        self._is_at_event_end = not (self._events.pending or self._events.is_mid_event)
        return self._take_events(events) if events else b""

    @property
    def is_round_over(self) -> bool:
        """Whether a message_delta has come, the end of the round."""
        return bool(self._end_events)

    def read_round(self) -> ObservedRound:
        """Returns the round."""
        finished = self._finish in DONE and not self._has_unknown_content and bool(self._end_events)
        usage = read_usage(self._usage)
        return build_round(self._round_blocks, finished=finished, usage=usage, container=self._container)

    def continue_response(self) -> None:
        """Drops the end events of this round; the next events continue the response."""
        self._usages.append(self._usage)
        self._start_round()

    def close(self) -> bytes:
        """Returns the end events, with the stop reason and the usage of all rounds, and the rest of a truncated
        event."""
        return self._release_end() + self._forward_rest() + self._release_end()

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
        self.non_text_events = b"".join(observable)
        return b"".join(out)

    def _take_event(self, piece: bytes) -> bytes:
        value = read_messages_event(piece)
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
            self._add_usage(as_mapping(_value(bytes(value.message))).get("usage"))
            return b"" if self._usages else self._forward_unknown(kind, piece)
        if kind == "error":
            return self._release_end() + piece
        return piece if kind == "ping" else self._forward_unknown(kind, piece)

    def _take_delta(self, block: ResponseBlock, delta: EventDelta, event: MessagesEvent, piece: bytes) -> bytes:
        block.grow(delta)
        if block.is_own:
            return b""
        if block is self._unchanged_block:
            block.set_pattern(piece)
        return _with_client_index(piece, event, block)

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
        return _with_client_index(piece, event, block)

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
        return _with_client_index(piece, event, block)

    def _take_end(self, value: MessagesEvent, piece: bytes) -> bytes:
        if value.type == "message_delta":
            self._unchanged_block = None
            self._add_usage(_value(bytes(value.usage)))
            delta = value.delta or EventDelta()
            self._finish = as_string(delta.stop_reason) or self._finish
            self._container = as_string(as_mapping(delta.container).get("id"))
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
        if not unfinished_event.strip() or read_messages_event(unfinished_event) is not None:
            return self._take_events(unfinished_event)
        return b"" if self._hidden_index >= 0 or b"content_block_start" in unfinished_event else unfinished_event


def _with_client_index(piece: bytes, event: MessagesEvent, block: ResponseBlock) -> bytes:
    return piece if block.client_index == event.index else with_index(piece, block.client_index)


def _value(raw: bytes) -> Any:
    try:
        return decode_json(raw or NULL)
    except ValueError:
        return None


class MessagesToolDocument(ToolLoopDocument):
    """A response that is one message."""

    def __init__(self, tool: str) -> None:
        super().__init__()
        self._tool = tool
        self._messages: list[tuple[dict[str, bytes], list[ResponseBlock]]] = []
        """The fields of each round's message, and its blocks."""

    def read_document(self, document: dict[str, Any]) -> ObservedRound:
        """Reads the blocks of a message."""
        try:
            fields = fields_of(bytes(self._body))
            wires = items_of(fields.get("content", NULL))
            blocks = [ResponseBlock(raw, self._tool, index) for index, raw in enumerate(wires)]
        except ValueError:
            self._messages.append(({}, []))
            return UNREADABLE_ROUND
        self._messages.append((fields, blocks))
        finished = as_string(document.get("stop_reason")) in DONE
        container = as_string(as_mapping(document.get("container")).get("id"))
        usage = read_usage(as_mapping(document.get("usage")))
        return build_round(blocks, finished=finished, usage=usage, container=container)

    def write_document(self) -> bytes:
        """Writes the last message, with the id of the first, the blocks and the usage of all; an error as it came."""
        fields, blocks = self._messages[-1]
        if not fields:
            return bytes(self._body)
        reason = as_string(self.documents[-1].get("stop_reason"))
        usages = [as_mapping(document.get("usage")) for document in self.documents]
        visible_blocks = [block.start for _, each in self._messages for block in each if not block.is_own]
        changed = {
            "id": self._messages[0][0].get("id", NULL),
            "content": list_of(visible_blocks),
            "stop_reason": encode(stop_reason(reason, blocks) or None),
        }
        if len(usages) > 1 and usages[-1]:
            changed["usage"] = to_json(sum_usage(usages))
        return object_of({**fields, **{name: value for name, value in changed.items() if name in fields}})
