"""The responses of a Chat Completions tool loop: a stream of chunks, or one completion, without the artifact tool's
calls.

Theory of operation of the stream. Each chunk has a delta of the first choice. `feed` adds every delta to a RoundBuilder
and returns the chunk without the artifact tool's calls:

- A chunk that only adds text or arguments, like the one before it, passes unread (ChunkRun). All others are parsed.
- A call is hidden or shown once its name is known; pieces before that are kept back. Shown calls get new indexes, so
  that the hidden ones leave no gap.
- From the finish reason on, events are kept back (`_end_events`): finish, usage and `[DONE]`. `continue_response` drops
  them; `close` writes them, with the usage of all rounds.
- Chunks of later rounds get the first round's id, no second role, and renumbered calls and reasoning blocks.

A chunk in which nothing changes passes in its own bytes.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from accordion.protocols.json_values import arguments_text, as_list, as_mapping, as_string, encode, from_json, to_json
from accordion.protocols.message_keys import decode_json
from accordion.protocols.openai_chat.message_json import BLOCKS, read_parts
from accordion.protocols.openai_chat.response import event_data, find_usage, is_done, read_chunk, write_event
from accordion.protocols.response_parser import BOUND
from accordion.protocols.sse import SseBuffer, event_end
from accordion.protocols.tool_loop import (
    ArtifactToolCall,
    ObservedRound,
    ToolLoopDocument,
    ToolLoopResponse,
    legible_arguments,
    paragraph_break,
    sum_round_usage,
    visible_text,
)

# Fields of a message that are joined over rounds; of all others the last round's value counts.
_JOINED_MESSAGE_FIELDS = frozenset(
    {"content", "refusal", "reasoning_content", "reasoning", "reasoning_details", "thinking_blocks", "annotations"}
)
# Fields of a message that are sent back to the provider, beside content and calls. `reasoning` is not one of them: some
# servers reject it in a request.
_RESENT_FIELDS = (
    "refusal",
    "reasoning_content",
    "reasoning_details",
    "thinking_blocks",
    "function_call",
    "extra_content",
)
# Finish reasons of an unfinished response.
_UNFINISHED = frozenset({"length", "max_tokens", "content_filter", "error", "insufficient_system_resource"})
# Fields of a reasoning block that are joined when it comes in pieces.
_JOINED_FIELDS = frozenset({"text", "summary", "data", "thinking"})


class TextBuffer:
    """Collects a text in pieces, as the inside of a JSON string. `is_present` distinguishes an empty text from none."""

    __slots__ = ("is_present", "raw")

    def __init__(self) -> None:
        self.raw, self.is_present = bytearray(), False

    def add(self, text: str) -> None:
        """Adds the next piece."""
        self.is_present = True
        try:
            self.raw += encode(text)[1:-1]
        except UnicodeError:
            self.raw += json.dumps(text)[1:-1].encode()

    @property
    def text(self) -> str:
        """The complete text; lone surrogates become question marks."""
        quoted = b'"' + bytes(self.raw) + b'"'
        try:
            return str(decode_json(quoted))
        except ValueError:
            return _repair_surrogates(quoted)


def _repair_surrogates(quoted: bytes) -> str:
    try:
        return str(json.loads(quoted.decode(errors="replace"), strict=False)).encode(errors="replace").decode()
    except ValueError:
        return ""


class GrowingCall:
    """One call that grows piece by piece. `is_own` is None until its name is known."""

    __slots__ = ("buffer", "fields", "id", "index", "inner", "is_delayed", "is_own", "kind", "name", "visible")

    def __init__(self, index: int, kind: str) -> None:
        self.index, self.kind = index, kind
        self.id = self.name = ""
        self.is_own: bool | None = None
        self.is_delayed = False
        """Whether some of it was kept back because its name was not known."""
        self.visible: int | None = None
        """Its index for the client."""
        self.buffer = TextBuffer()
        self.fields: dict[str, Any] = {}
        self.inner: dict[str, Any] = {}

    def add(self, entry: Mapping[str, Any]) -> None:
        """Adds the next piece."""
        inner = as_mapping(entry.get(self.kind))
        self.id, self.name = self.id or as_string(entry.get("id")), self.name or as_string(inner.get("name"))
        self.fields |= {key: value for key, value in entry.items() if value is not None and key not in _KNOWN_FIELDS}
        self.inner |= {key: value for key, value in inner.items() if value is not None and key not in _KNOWN_FIELDS}
        text = arguments_text(inner.get(_arguments_field(self.kind)))
        if text:
            self.buffer.add(text)

    def begins_another(self, entry: Mapping[str, Any]) -> bool:
        """Whether an entry begins another call at the same index: servers give parallel calls one index, or none."""
        call_id, inner = as_string(entry.get("id")), as_mapping(entry.get(self.kind))
        if call_id and self.id:
            return call_id != self.id
        name = as_string(inner.get("name"))
        if not name or not self.name:
            return False
        begins_object = arguments_text(inner.get(_arguments_field(self.kind))).lstrip().startswith("{")
        return name != self.name or (begins_object and _is_object(self.buffer.text))

    def entry(self) -> dict[str, Any]:
        """Returns the call so far, as an entry of a message's `tool_calls`."""
        inner = {"name": self.name, _arguments_field(self.kind): self.buffer.text, **self.inner}
        return {"id": self.id, "type": self.kind, **self.fields, self.kind: inner}


_KNOWN_FIELDS = frozenset({"index", "id", "function", "custom", "name", "arguments", "input"})


class RoundBuilder:
    """Builds a round's message, delta by delta."""

    __slots__ = ("_fields", "_open", "_parts", "buffers", "calls")

    def __init__(self) -> None:
        self.calls: list[GrowingCall] = []
        self.buffers = {name: TextBuffer() for name in ("content", "refusal", "reasoning_content", "reasoning")}
        self._open: dict[int, GrowingCall] = {}
        self._parts: list[Any] = []
        self._fields: dict[str, Any] = {}

    def add(self, delta: Mapping[str, Any]) -> None:
        """Adds a delta without its calls."""
        for name, value in delta.items():
            if type(value) is str and name in self.buffers:
                if name == "content" and self._parts:
                    self._parts += [{"type": "text", "text": value}] if value else []
                else:
                    self.buffers[name].add(value)
            elif name == "content" and type(value) is list:
                self._parts += value
            elif value and name in _RESENT_FIELDS:
                self._fields[name] = _merge_field(self._fields.get(name), value)

    def call(self, position: int, entry: Mapping[str, Any]) -> GrowingCall:
        """Adds the entry at `position` of a delta's `tool_calls`; returns its call."""
        given_index = entry.get("index")
        index = given_index if type(given_index) is int else position
        call = self._open.get(index)
        if call is None or call.begins_another(entry):
            call = self._open[index] = GrowingCall(index, "custom" if as_mapping(entry.get("custom")) else "function")
            self.calls.append(call)
        call.add(entry)
        return call

    def visible_index(self, call: GrowingCall) -> int:
        """Returns a call's index within this round for the client: own calls before it do not count."""
        own_indexes = {other.index for other in self.calls if other.is_own}
        visible_indexes = {other.index for other in self.calls if other.is_own is False and other is not call}
        return call.index - sum(index < call.index for index in own_indexes - visible_indexes)

    def count_thinking_blocks(self) -> Counter[str]:
        """Counts the numbered reasoning blocks under each field."""
        indexes = {
            name: [as_mapping(block).get("index") for block in as_list(self._fields.get(name))] for name in BLOCKS
        }
        return Counter(
            {
                name: max([-1, *(position for position in block_indexes if type(position) is int)]) + 1
                for name, block_indexes in indexes.items()
            }
        )

    def last_characters(self) -> dict[str, str]:
        """Returns the last character of each text of the round, by field."""
        texts = {name: buffer.text[-1:] for name, buffer in self.buffers.items() if buffer.raw}
        if self._parts:
            texts["content"] = as_string(as_mapping(self._parts[-1]).get("text"))[-1:]
        return texts

    def build_message(self) -> dict[str, Any]:
        """Returns the message that the deltas make up."""
        fields: dict[str, Any] = {name: buffer.text for name, buffer in self.buffers.items() if buffer.is_present}
        if self._parts:
            content = fields.get("content")
            fields["content"] = [*([{"type": "text", "text": content}] if content else []), *self._parts]
        return {**fields, **self._fields, "tool_calls": [call.entry() for call in self.calls]}


def round_from_message(
    message: Mapping[str, Any], tool: str, id_prefix: str, usage: Mapping[str, Any] | None, *, finished: bool
) -> ObservedRound:
    """Builds a round from a message; `finished` tells whether the model was done.

    Own calls without an id get one with `id_prefix`, since their results must name it; arguments that are no JSON are
    sent back wrapped. The entries have no own calls of an unfinished response, because nobody will answer them.
    """
    calls, own_calls = [], []
    for index, call in enumerate(as_list(message.get("tool_calls"))):
        if tool_name(call) != tool:
            calls.append(call)
            continue
        inner = as_mapping(call.get("function"))
        text = arguments_text(inner.get("arguments"))
        own_calls.append(ArtifactToolCall(as_string(call.get("id")) or f"call_{id_prefix}_{index}", tool, text))
        if finished:
            calls.append(
                {**call, "id": own_calls[-1].call_id, "function": {**inner, "arguments": legible_arguments(text)}}
            )
    ids = (as_string(as_mapping(call).get("id")) for call in calls if tool_name(call) != tool)
    content = {**message, "tool_calls": calls}
    entries, counts = _request_form(content), find_usage({"usage": usage}, [])
    return ObservedRound(entries, tuple(own_calls), tuple(filter(None, ids)), _text(content), finished, counts)


def has_content(delta: Mapping[str, Any]) -> bool:
    """Whether a delta has content beside its role."""
    return any(value for name, value in delta.items() if name != "role")


def renumber_blocks(delta: dict[str, Any], blocks: Mapping[str, int]) -> dict[str, Any]:
    """Adds the counts in `blocks` to the indexes of a delta's reasoning blocks; returns the same object without any."""
    moved_blocks = {
        name: [_renumber(block, count) for block in as_list(delta.get(name))] for name, count in blocks.items()
    }
    moved_blocks = {name: blocks_ for name, blocks_ in moved_blocks.items() if blocks_}
    return {**delta, **moved_blocks} if moved_blocks else delta


def _renumber(block: Any, count: int) -> Any:
    position = as_mapping(block).get("index")
    return {**block, "index": position + count} if type(position) is int else block


def tool_name(call: Any) -> str:
    """Returns the name of the tool that an entry of `tool_calls` calls."""
    call = as_mapping(call)
    return as_string(as_mapping(call.get("function") or call.get("custom")).get("name"))


def _request_form(message: Mapping[str, Any]) -> tuple[bytes, ...]:
    """Returns the assistant message in the request's form, with the fields that providers want back; empty without
    content."""
    request_message: dict[str, Any] = {"role": "assistant", "content": message.get("content")}
    request_message |= {name: message[name] for name in _RESENT_FIELDS if message.get(name)}
    audio = as_mapping(message.get("audio"))
    if audio.get("id"):
        request_message["audio"] = {"id": audio["id"]}
    calls = as_list(message.get("tool_calls"))
    if calls:
        request_message["tool_calls"] = [
            {name: value for name, value in call.items() if name != "index"} if type(call) is dict else call
            for call in calls
        ]
    if len(request_message) == 2 and not request_message["content"]:
        return ()
    if request_message["content"] is None and not calls and "function_call" not in request_message:
        request_message["content"] = ""
    return (to_json(request_message),)


def _text(message: Mapping[str, Any]) -> str:
    """Returns the visible text of a message: its content, then a refusal."""
    return visible_text(read_parts(message.get("content"))) + as_string(message.get("refusal"))


def is_finished(reason: str) -> bool:
    """Whether a response with this finish reason is complete."""
    return reason not in _UNFINISHED


def find_usage_holders(data: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the objects of a chunk or a completion with a `usage`: itself, Groq's field, a choice."""
    holders = [data, data.get("x_groq"), *as_list(data.get("choices"))]
    return [
        holder for holder in holders if type(holder) is dict and holder.get("usage") and as_mapping(holder["usage"])
    ]


def sum_usage(usages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merges the usage objects of a response's rounds."""
    return sum_round_usage(
        usages, "prompt_tokens", "completion_tokens", "completion_tokens_details", "total_tokens"
    )  # fmt: skip


def _arguments_field(kind: str) -> str:
    return "input" if kind == "custom" else "arguments"


def _is_object(text: str) -> bool:
    try:
        return type(decode_json(text)) is dict
    except ValueError:
        return False


def _merge_field(old: Any, new: Any) -> Any:
    """Appends a field of a delta to its earlier value."""
    if type(old) is list and type(new) is list:
        merged_list = list(old)
        for block in new:
            if merged_list and _continues(merged_list[-1], block):
                merged_list[-1] = _join_blocks(merged_list[-1], block)
            else:
                merged_list.append(block)
        return merged_list
    if type(old) is dict and type(new) is dict:
        return {**old, **{name: _merge_field(old.get(name), value) for name, value in new.items() if value is not None}}
    return old + new if type(old) is str and type(new) is str else new


def _continues(block: Any, piece: Any) -> bool:
    if type(block) is not dict or type(piece) is not dict or "index" not in piece:
        return False
    return all(block.get(name) == piece.get(name) for name in ("index", "type"))


def _join_blocks(block: dict[str, Any], piece: dict[str, Any]) -> dict[str, Any]:
    joined_block = dict(block)
    for name, value in piece.items():
        if value is not None:
            old_value = block.get(name)
            is_joined = name in _JOINED_FIELDS and type(old_value) is str and type(value) is str
            joined_block[name] = old_value + value if is_joined else value
    return joined_block


# The inside of a JSON string, followed only by fields without content up to the end of the event, with or without a
# space after commas and colons.
_TEXT = rb'((?:[^"\\]++|\\.)*+)"'
_NO_CONTENT = rb'(?:, ?+"\w++": ?+null|, ?+"role": ?+"assistant")*+\}'
_FIELDS_AFTER_TEXT = rb'\](?:, ?+"(?!error)\w++": ?+(?:null|"[^"\\]*+"|\d++))*+\}(?:\n\n|\r\n\r\n|\r\r)'
_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_TEXT_END = re.compile(_TEXT + _NO_CONTENT + _NO_CONTENT + _FIELDS_AFTER_TEXT, re.DOTALL)
_ARGUMENTS_END = re.compile(_TEXT + rb"\}\}\]" + _NO_CONTENT + _NO_CONTENT + _FIELDS_AFTER_TEXT, re.DOTALL)
_TEXT_START = {
    name: re.compile(rb'"%b"\s*+:\s*+"' % name.encode())
    for name in ("content", "refusal", "reasoning_content", "reasoning", "arguments")
}


class ChunkRun:
    """A run of chunks that each add to the same text: of the content, of reasoning, or of a call's arguments.

    Such chunks have the same first bytes, so after one was read the next need not be: it passes at the price of a
    comparison and one pattern. Any other chunk ends the run.
    """

    __slots__ = ("_buffer", "_end_bytes", "_match_end", "_separator", "_start", "is_text_only")

    def __init__(self) -> None:
        # The bytes before the text of a chunk of this run; empty when there is no run.
        self._start = b""
        # The bytes after the text in the first chunk, and the bytes between two texts; empty where these differ.
        self._end_bytes = self._separator = b""
        self._match_end: Callable[[bytes, int], re.Match[bytes] | None] = _TEXT_END.match
        self._buffer = bytearray()
        self.is_text_only = True
        """Whether the chunks of this run add to a text, not to a call."""

    def end(self) -> None:
        """Ends the run: the next chunk must be read."""
        self._start = b""

    def take(self, block: bytes, start: int = 0) -> int:
        """Takes the chunks of this run from a block of whole events, from `start` on; returns the end of the chunks."""
        first_bytes = self._start
        if not first_bytes or not block.startswith(first_bytes, start):
            return start
        position = self._take_similar(block, start) if self._end_bytes else start
        while block.startswith(first_bytes, position):
            match = self._match_end(block, position + len(first_bytes))
            if match is None:
                break
            self._buffer += match[1]
            position = match.end()
        return position

    def _take_similar(self, block: bytes, start: int) -> int:
        """Takes all chunks of this run at once if they also have the same last bytes; returns the end of the last.

        Without those first and last bytes, only text must be left. A quote in it means that something else is between.
        """
        first_bytes, end_bytes = self._start, self._end_bytes
        end = block.find(end_bytes, block.rfind(first_bytes) + len(first_bytes))
        text = block[start + len(first_bytes) : end].replace(self._separator, b"")
        if end < 0 or (b'"' in text and not _STRING.fullmatch(text)):
            return start
        self._buffer += text
        return end + len(end_bytes)

    def begin(self, event: bytes, delta: dict[str, Any], builder: RoundBuilder) -> None:
        """Starts a run with a chunk that has one choice and only one piece of text. It has passed unchanged and has
        been added to the round."""
        content = [(name, value) for name, value in delta.items() if value is not None and name != "role"]
        if len(content) != 1:
            return
        name, value = content[0]
        call = None
        if name == "tool_calls":
            call = _only_call(value, builder)
            name, value = "arguments", value[0]["function"]["arguments"] if call is not None else None
        if type(value) is not str or name not in _TEXT_START:
            return
        starts = _TEXT_START[name].findall(event)
        match_end = _TEXT_END.match if call is None else _ARGUMENTS_END.match
        start = event.find(starts[0]) + len(starts[0]) if len(starts) == 1 else 0
        if start and (text := match_end(event, start)) is not None and from_json(b'"' + text[1] + b'"') == value:
            self._start, self._match_end, self.is_text_only = event[:start], match_end, call is None
            # Padding makes the end of each chunk different.
            self._end_bytes = b"" if b'"obfuscation"' in event else event[text.end(1) :]
            self._separator = self._end_bytes + self._start
            self._buffer = (builder.buffers[name] if call is None else call.buffer).raw


def _only_call(entries: Any, builder: RoundBuilder) -> GrowingCall | None:
    """Returns the call to which these entries of `tool_calls` add only arguments, if it is the only one at its index
    and has the same index for the client; else None."""
    entry = as_mapping(entries[0]) if type(entries) is list and len(entries) == 1 else {}
    if entry.keys() != {"index", "function"} or as_mapping(entry["function"]).keys() != {"arguments"}:
        return None
    calls = [call for call in builder.calls if call.index == entry["index"]]
    return calls[0] if len(calls) == 1 and calls[0].visible == calls[0].index else None


# Fields that all chunks of a response have in common.
_COMMON = ("id", "object", "created", "model", "system_fingerprint", "service_tier")
_FROM_FIRST = ("id", "created", "system_fingerprint")


class ChunkToolLoop(ToolLoopResponse):
    """A response as a stream of chunks."""

    def __init__(self, tool: str) -> None:
        self._tool = tool
        self._events = SseBuffer(BOUND)
        self._builder = RoundBuilder()
        self._end_events: list[bytes] = []
        self._pending_output = b""
        self._first_chunk: dict[str, Any] = {}
        # The number of complete rounds, of the calls and reasoning blocks that they showed, and their usage.
        self._rounds = self._visible_calls = 0
        self._block_counts = Counter[str]()
        # The last character of each text of earlier rounds, by field, until a text follows it.
        self._last_characters: dict[str, str] = {}
        self._usages: list[dict[str, Any]] = []
        self._usage: dict[str, Any] | None = None
        self._finish, self._has_ended, self._has_failed, self._is_role_sent = "", False, False, False
        self._run = ChunkRun()

    def feed(self, block: bytes) -> bytes:
        """Takes events in blocks of any size."""
        taken_end = self._run.take(block)
        out = block[:taken_end]
        self.non_text_events = observable = b"" if self._run.is_text_only else out
        if taken_end == len(block):
            return out
        remaining_output, remaining_observable = self._take_events(self._events.feed(block[taken_end:]))
        if self._events.pending or self._events.is_mid_event:
            self._run.end()
        pending = self._take_pending()
        self.non_text_events = pending + observable + remaining_observable
        return pending + out + remaining_output

    @property
    def is_round_over(self) -> bool:
        """Whether a finish reason, a last usage or `[DONE]` is kept back."""
        return bool(self._end_events)

    def read_round(self) -> ObservedRound:
        """Returns the round. Own calls without an id get one."""
        self._pending_output += self._flush()
        finished = bool(self._finish or self._has_ended) and not self._has_failed and is_finished(self._finish)
        message = self._builder.build_message()
        return round_from_message(message, self._tool, self._id_prefix(), self._usage, finished=finished)

    def continue_response(self) -> None:
        """Drops the end events of this round; the next chunks continue the response."""
        self._pending_output += self._flush()
        if self._usage:
            self._usages.append(self._usage)
        self._visible_calls += sum(call.is_own is False for call in self._builder.calls)
        self._block_counts += self._builder.count_thinking_blocks()
        self._last_characters |= self._builder.last_characters()
        self._rounds += 1
        self._builder, self._end_events, self._usage = RoundBuilder(), [], None
        self._finish, self._has_ended, self._has_failed = "", False, False
        self._run.end()

    def close(self) -> bytes:
        """Returns the events that are kept back, as the end of the last round."""
        self._pending_output += self._flush()
        out = self._take_pending() + self._show_nameless_calls()
        is_changed = self._rounds or any(call.is_own for call in self._builder.calls)
        events, self._end_events = self._end_events, []
        return out + b"".join([self._write_last_event(event) if is_changed else event for event in events])

    # -- reading -----------------------------------------------------------------

    def _take_events(self, block: bytes) -> tuple[bytes, bytes]:
        """Takes whole events, those of a run together. Returns the bytes that pass, and the observable ones of them."""
        output, observable, position = list[bytes](), list[bytes](), 0
        while position < len(block):
            start, position = position, self._run.take(block, position)
            is_text = position > start and self._run.is_text_only
            if position > start:
                out = block[start:position]
            else:
                position = event_end(block, start)
                out = self._take_event(block[start:position])
            output.append(out)
            observable.append(b"" if is_text else out)
        return b"".join(output), b"".join(observable)

    def _take_event(self, event: bytes) -> bytes:
        """Reads an event; returns the bytes that pass."""
        self._run.end()
        chunk = read_chunk(event)
        if chunk is None:
            return self._take_marker(event, event_data(event))
        if chunk.get("error"):
            self._has_failed = True
            return event
        return self._take_chunk(event, chunk)

    def _take_marker(self, event: bytes, data: bytes) -> bytes:
        if is_done(data):
            self._has_ended = True
            self._end_events.append(event)
            return self._show_nameless_calls() if not self._finish else b""
        # A comment, or an unreadable event, whose content may be missing from the round.
        self._has_failed = self._has_failed or bool(data)
        return event

    def _take_chunk(self, event: bytes, data: dict[str, Any]) -> bytes:
        usage_holders = find_usage_holders(data)
        if usage_holders:
            self._usage = as_mapping(usage_holders[-1]["usage"])
        choices = as_list(data.get("choices"))
        index = next(
            (index for index, choice in enumerate(choices) if type(choice) is dict and not choice.get("index")), None
        )
        if index is None:
            if self._finish or usage_holders:
                self._end_events.append(event)
                return b""
            return self._write_chunk(data, event)
        self._first_chunk = self._first_chunk or data
        choice = as_mapping(choices[index])
        delta, finish = as_mapping(choice.get("delta")), as_string(choice.get("finish_reason"))
        visible_delta = self._take_delta(delta)
        if not finish:
            return self._forward_chunk(
                event, data, index, visible_delta, is_alone=len(choices) == 1 and not usage_holders
            )
        out = self._show_nameless_calls()
        self._finish = finish
        if has_content(visible_delta):
            # The content passes at once, the finish reason is kept back.
            part = {**choice, "delta": visible_delta, "finish_reason": None}
            finish_choice = {**choice, "delta": {}, **({"logprobs": None} if "logprobs" in choice else {})}
            part.pop("usage", None)
            content = {name: value for name, value in data.items() if name not in ("usage", "x_groq")}
            content["choices"] = [*choices[:index], part, *choices[index + 1 :]]
            self._is_role_sent = self._is_role_sent or "role" in visible_delta
            out = self._write_chunk(content, b"") + out
            event = write_event({**data, "choices": [*choices[:index], finish_choice, *choices[index + 1 :]]})
        elif visible_delta is not delta:
            event = write_event(
                {**data, "choices": [*choices[:index], {**choice, "delta": visible_delta}, *choices[index + 1 :]]}
            )
        self._end_events.append(event)
        return out

    def _forward_chunk(
        self, event: bytes, data: dict[str, Any], position: int, visible_delta: dict[str, Any], *, is_alone: bool
    ) -> bytes:
        """Returns a chunk without a finish reason, with `visible_delta` as the delta of the choice at `position`.

        `is_alone` tells that it has no other choice and no usage.
        """
        choices = data["choices"]
        delta = as_mapping(choices[position].get("delta"))
        if (
            not has_content(visible_delta)
            and (visible_delta is not delta or self._finish)
            and ("role" not in visible_delta or self._is_role_sent)
        ):
            if visible_delta is delta:
                self._end_events.append(event)
            return b""
        self._is_role_sent = self._is_role_sent or "role" in visible_delta
        if visible_delta is not delta:
            choices = [*choices[:position], {**choices[position], "delta": visible_delta}, *choices[position + 1 :]]
            return self._write_chunk({**data, "choices": choices}, b"")
        if is_alone and not self._rounds:
            self._run.begin(event, delta, self._builder)
        return self._write_chunk(data, event)

    # -- hiding ------------------------------------------------------------------

    def _take_delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        """Adds a delta to the round; returns its visible part, the same object where nothing is hidden or changed."""
        self._builder.add(delta)
        visible_delta = self._add_paragraph_break(renumber_blocks(delta, self._block_counts))
        calls = as_list(delta.get("tool_calls"))
        if calls:
            entries = [self._visible_entry(position, entry) for position, entry in enumerate(calls)]
            if any(
                visible_entry is not original_entry
                for visible_entry, original_entry in zip(entries, calls, strict=True)
            ):
                visible_delta = {name: value for name, value in visible_delta.items() if name != "tool_calls"}
                visible_calls = [entry for entry in entries if entry is not None]
                if visible_calls:
                    visible_delta["tool_calls"] = visible_calls
        if self._rounds and self._is_role_sent and "role" in visible_delta:
            visible_delta = {name: value for name, value in visible_delta.items() if name != "role"}
        return visible_delta

    def _add_paragraph_break(self, delta: dict[str, Any]) -> dict[str, Any]:
        """Adds a paragraph break before each text that follows one of an earlier round; returns the same object where
        there is none."""
        for name in [name for name in self._last_characters if delta.get(name)]:
            text, last_character = delta[name], self._last_characters.pop(name)
            if type(text) is str and (separator := paragraph_break(last_character, text)):
                delta = {**delta, name: separator + text}
        return delta

    def _visible_entry(self, position: int, entry: Any) -> Any:
        """Returns the visible form of an entry of `tool_calls`; None where it is hidden or kept back."""
        if type(entry) is not dict:
            return entry
        call = self._builder.call(position, entry)
        if call.is_own is None:
            if not call.name:
                call.is_delayed = True
                return None
            call.is_own = call.name == self._tool
            if call.is_delayed and not call.is_own:
                entry = {"index": call.index, **call.entry()}
        if call.is_own:
            return None
        call.visible = self._visible_calls + self._builder.visible_index(call) if call.visible is None else call.visible
        if type(entry.get("index")) is int and entry["index"] != call.visible:
            entry = {**entry, "index": call.visible}
        return entry

    # -- writing -----------------------------------------------------------------

    def _take_pending(self) -> bytes:
        out, self._pending_output = self._pending_output, b""
        return out

    def _write_chunk(self, data: dict[str, Any], event: bytes) -> bytes:
        """Returns the chunk for the client: `event` itself where nothing changes."""
        if not self._rounds:
            return event or write_event(data)
        data = {
            **data,
            **{name: self._first_chunk[name] for name in _FROM_FIRST if name in data and name in self._first_chunk},
        }
        return write_event(self._with_total_usage(data))

    def _with_total_usage(self, data: dict[str, Any]) -> dict[str, Any]:
        """Replaces the chunk's usage by that of all rounds."""
        if not self._usages:
            return data
        for holder in find_usage_holders(data):
            holder["usage"] = sum_usage([*self._usages, holder["usage"]])
        return data

    def _write_last_event(self, event: bytes) -> bytes:
        """Returns an end event of a response with hidden calls."""
        data = read_chunk(event)
        if data is None:
            return event
        is_changed = self._rounds > 0
        has_visible_calls = any(call.is_own is False for call in self._builder.calls)
        for choice in map(as_mapping, as_list(data.get("choices"))):
            if choice.get("finish_reason") in {"tool_calls", "function_call"} and not has_visible_calls:
                choice["finish_reason"], is_changed = "stop", True
        return self._write_chunk(data, b"") if is_changed else event

    def _show_nameless_calls(self) -> bytes:
        """Returns the calls whose names never came, in chunks of the proxy's own. They are complete."""
        common_fields = {name: self._first_chunk[name] for name in _COMMON if name in self._first_chunk}
        out = b""
        for call in self._builder.calls:
            if call.is_own is None:
                call.is_own, call.visible = False, self._visible_calls + self._builder.visible_index(call)
                delta = {"tool_calls": [{**call.entry(), "index": call.visible}]}
                choice = {"index": 0, "delta": delta, "finish_reason": None}
                out += write_event({**common_fields, "choices": [choice]})
        return out

    def _flush(self) -> bytes:
        """Takes a last event that did not end with an empty line."""
        unfinished_event = self._events.flush()
        if not read_chunk(unfinished_event) and not is_done(event_data(unfinished_event)):
            # Nothing, or the beginning of a truncated event.
            self._has_failed = self._has_failed or bool(unfinished_event.strip())
            return b""
        out = self._take_event(unfinished_event)
        return out if out.endswith(b"\n\n") or not out else out + b"\n\n"

    def _id_prefix(self) -> str:
        """Returns the prefix of ids for calls that have none."""
        return f"{as_string(self._first_chunk.get('id'))}_{self._rounds}"


class CompletionToolLoop(ToolLoopDocument):
    """Merges the completions of all rounds into one."""

    def __init__(self, tool: str) -> None:
        super().__init__()
        self._tool = tool

    def read_document(self, document: dict[str, Any]) -> ObservedRound:
        """Reads the first choice; there is no other where the artifact tool is offered."""
        choice, message = _first_choice(document)
        id_prefix, usage_holders = f"{as_string(document.get('id'))}_{len(self.rounds)}", find_usage_holders(document)
        finished = bool(message) and not document.get("error") and is_finished(as_string(choice.get("finish_reason")))
        usage = usage_holders[-1]["usage"] if usage_holders else None
        return round_from_message(message, self._tool, id_prefix, usage, finished=finished)

    def write_document(self) -> bytes:
        """Writes the last completion, with the id of the first, the texts and usage of all, and the client's calls."""
        last = self.documents[-1]
        choice, message = _first_choice(last)
        if not choice:
            return to_json(last)
        for document in reversed(self.documents[:-1]):
            for name, value in _first_choice(document)[1].items():
                if name in _JOINED_MESSAGE_FIELDS:
                    message[name] = _join_field(value, message.get(name))
        calls = [call for call in as_list(message.get("tool_calls")) if tool_name(call) != self._tool]
        if calls:
            message["tool_calls"] = calls
        elif "tool_calls" in message:
            del message["tool_calls"]
        if choice.get("finish_reason") == "tool_calls" and not calls:
            choice["finish_reason"] = "stop"
        first = self.documents[0]
        last |= {name: first[name] for name in ("id", "created", "system_fingerprint") if name in first}
        usages = [holders[-1]["usage"] for holders in map(find_usage_holders, self.documents) if holders]
        for holder in find_usage_holders(last):
            holder["usage"] = sum_usage(usages)
        return to_json(last)


def _first_choice(document: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the first choice, and its message."""
    choices = as_list(document.get("choices"))
    choice = as_mapping(choices[0]) if choices else {}
    return choice, as_mapping(choice.get("message"))


def _join_field(before: Any, after: Any) -> Any:
    """Joins a field of a message with that of an earlier round."""
    if not before or not after:
        return after or before
    if type(before) is str and type(after) is str:
        return before + paragraph_break(before, after) + after
    return before + after if type(before) is list and type(after) is list else after
