"""The content blocks of an Anthropic response: collects them from a stream, and builds a round in the request's form.

A response may be sent back as it came, except blank text, thinking at the end, and arguments that are no object.
Sources: the type files and the stream accumulator of the anthropic SDK; the guide to fine-grained tool streaming
for arguments that are no JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from accordion.model.records import Usage
from accordion.protocols.anthropic_messages.blocks import CALLS
from accordion.protocols.anthropic_messages.response import (
    ContentDelta,
    DeltaPattern,
    delta_opening,
    read_messages_event,
)
from accordion.protocols.artifact_placeholders import PlaceholderScanner
from accordion.protocols.json_spans import NULL, fields_of, is_list, is_object, items_of, list_of, object_of
from accordion.protocols.json_values import as_count, as_mapping, as_string, encode
from accordion.protocols.message_keys import decode_json
from accordion.protocols.sse import split_events
from accordion.protocols.tool_loop import ArtifactToolCall, ObservedRound
from accordion.protocols.tool_loop_shared import sum_round_usage

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
        *("_pattern", "_unscanned", "_fields", "_pieces", "_size", "_start", "_unread_events"),
        *("arguments", "id", "kind", "name", "has_unknown_content", "is_own", "client_index"),
    )

    def __init__(self, start: bytes, tool: str, client_index: int) -> None:
        block = decode_json(start)
        if type(block) is not dict:
            raise ValueError("a content block is an object")
        self.kind, self.id, self.name = (as_string(block.get(name)) for name in ("type", "id", "name"))
        self.is_own = self.kind == "tool_use" and self.name == tool
        self.client_index = client_index
        self.arguments = PlaceholderScanner() if self.kind == "tool_use" and not self.is_own else None
        self.has_unknown_content = False
        """Whether it had a delta of an unknown type."""
        self._start = start
        self._pieces: list[str] = []
        self._fields: dict[str, list[bytes]] = {}
        self._pattern: DeltaPattern | None = None
        # Events that passed unread, and their size.
        self._unread_events: list[bytes] = []
        self._size = 0
        # Their arguments that were not scanned for placeholders.
        self._unscanned: list[str] = []

    def can_skip_reading(self, events: bytes) -> bool:
        """Whether these events match the pattern of the block's deltas and pass unread. They are kept, and read when
        the text is needed. A brace in arguments does not match, since it may begin a placeholder."""
        pattern, arguments = self._pattern, self.arguments
        if pattern is None or (arguments is not None and not arguments.is_idle) or pattern.match(events) is None:
            return False
        self._keep(events)
        return True

    def take_similar(self, block: bytes, at: int) -> int:
        """Takes the events from `at` on that match the pattern of the block's deltas; returns their end."""
        pattern, arguments = self._pattern, self.arguments
        is_idle = pattern is not None and (arguments is None or arguments.is_idle)
        match = pattern.run(block, at) if pattern is not None and is_idle else None
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
            self._pattern = DeltaPattern(opening, b"{" if self.arguments is not None else b"")

    def read_skipped(self) -> None:
        """Reads the events that passed unread."""
        if not self._unread_events:
            return
        raw, first_new = b"".join(self._unread_events), len(self._pieces)
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
        if self.arguments is not None:
            self._unscanned += self._pieces[first_new:]

    def scan_skipped_arguments(self) -> None:
        """Feeds the scanner the arguments that passed unread. They have no brace, so nothing is kept back."""
        if self.arguments is not None and self._unscanned:
            self.arguments.feed("".join(self._unscanned))
            self._unscanned.clear()

    def grow(self, delta: ContentDelta) -> None:
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
            as_string(as_mapping(decode_json(self._start)).get("text")) + "".join(self._pieces)
            if self.kind == "text"
            else ""
        )

    @property
    def arguments_text(self) -> str:
        """The arguments of a call, as the model wrote them."""
        text = "".join(self._pieces)
        return text if text.strip() else fields_of(self._start).get("input", NO_INPUT).decode()

    @property
    def wire(self) -> bytes:
        """The JSON of the block, for sending it back."""
        fields = fields_of(self._start)
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
        return self._start if is_same else object_of({**fields, **changed})


def build_round(
    blocks: Sequence[ResponseBlock], *, finished: bool, usage: Usage | None, resolved: bool = False, container: str = ""
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
        resolved=resolved,
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
