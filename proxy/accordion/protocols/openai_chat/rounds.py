"""Builds a round of Chat Completions, from the deltas of a stream or from a message, in the request's form."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from accordion.protocols.artifact_placeholders import PlaceholderScanner
from accordion.protocols.json_values import arguments_text, as_list, as_mapping, as_string, encode, to_json
from accordion.protocols.message_keys import decode_json
from accordion.protocols.openai_chat.parts import BLOCKS, read_parts
from accordion.protocols.openai_chat.response import find_usage
from accordion.protocols.tool_loop import ArtifactToolCall, ObservedRound
from accordion.protocols.tool_loop_shared import (
    legible_arguments,
    sum_round_usage,
    visible_text,
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

    __slots__ = (
        "arguments",
        "buffer",
        "fields",
        "id",
        "index",
        "inner",
        "is_delayed",
        "is_own",
        "kind",
        "name",
        "visible",
    )

    def __init__(self, index: int, kind: str) -> None:
        self.index, self.kind = index, kind
        self.id = self.name = ""
        self.is_own: bool | None = None
        self.is_delayed = False
        """Whether some of it was kept back because its name was not known."""
        self.visible: int | None = None
        """Its index for the client."""
        self.buffer, self.arguments = TextBuffer(), PlaceholderScanner()
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
    sent back wrapped. Own calls of an unfinished response are left out, because nobody will answer them.
    """
    calls, own_calls = [], []
    for index, call in enumerate(as_list(message.get("tool_calls"))):
        is_own = tool_name(call) == tool
        if is_own and finished:
            inner = as_mapping(call.get("function"))
            text = arguments_text(inner.get("arguments"))
            own_calls.append(ArtifactToolCall(as_string(call.get("id")) or f"call_{id_prefix}_{index}", tool, text))
            calls.append(
                {**call, "id": own_calls[-1].call_id, "function": {**inner, "arguments": legible_arguments(text)}}
            )
        elif not is_own:
            calls.append(call)
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


def paragraph_break(before: str, after: str) -> str:
    """Returns the separator of two rounds' texts: an empty line, so that Markdown separates them; nothing if a text is
    empty or white space separates them already. Copies of a response are compared without white space, so a client need
    not keep it."""
    if not before or not after or before[-1].isspace() or after[0].isspace():
        return ""
    return "\n\n"


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
