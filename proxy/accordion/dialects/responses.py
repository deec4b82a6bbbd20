"""OpenAI Responses: `POST /v1/responses`.

Source: the type files of the openai SDK (`openai/types/responses`). The items are read in items.py.

Besides what keys.py says, the canonical form leaves out an item's `id` where the item says itself what it is: a
message, an item with a `call_id`, or one with encrypted content. Clients drop or keep those ids as they like. Any
other id stands for content that only the provider has. `"type": "message"` is the same as no type.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from accordion.core.conversation import Kept, Message, Part, Text
from accordion.core.errors import AccordionError, ContextOverflow
from accordion.core.records import CallSeen, ReplySeen
from accordion.core.values import replace
from accordion.dialects import responses_writing
from accordion.dialects.base import Dialect, ReadMessage, Tap
from accordion.dialects.items import content, item, ran
from accordion.dialects.keys import read, tidy
from accordion.dialects.legality import responses_problems
from accordion.dialects.responses_reply import call_of, read_response
from accordion.dialects.shared import (
    definitions,
    encode,
    field,
    limit,
    mapping,
    opaque,
    openai_error,
    refused,
    string,
)
from accordion.dialects.tap import BodyTap, StreamTap

# A name that is quoted within a text is escaped there.
_NUMBER = re.compile(rb'"sequence_number"\s*:\s*(\d{1,18})')
_NO_OUTPUT = re.compile(r"No tool output found for (custom )?(?:function |tool )*call (\S+?)\.?(?:\s|$)")
_NO_CALL = re.compile(
    r"No tool call found for (custom )?(?:function |tool )*call output with call_id (\S+?)\.?(?:\s|$)"
)
_NOT_ON_RECORD = "The result of this call is not on record any more."
_PATIENT = frozenset({"program", "mcp_approval_request"})
_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed"})


class Responses(Dialect):
    """The dialect of Responses."""

    name = "responses"
    listing = "input"

    def message(self, raw: bytes) -> ReadMessage:
        """Reads one item. A plain string is a user's message."""
        entry = read(raw)
        if type(entry) is str:
            parts = (Text(entry),) if entry else ()
            return ReadMessage("user", parts, tidy({"role": "user", "content": entry}))
        if type(entry) is not dict:
            return ReadMessage("other", (opaque(entry),), [entry])
        role, read_parts = item(entry, len(raw))
        return ReadMessage(role, read_parts, _canonical(entry))

    def is_preamble(self, message: ReadMessage) -> bool:
        """System and developer items at the start are part of the system prompt."""
        return message.role in {"system", "developer"}

    def preamble(self, fields: Mapping[str, bytes]) -> tuple[Part, ...]:
        """`instructions`."""
        return tuple(content(field(fields, "instructions")))

    def tools(self, fields: Mapping[str, bytes]) -> tuple[str, ...]:
        """Tools, and the schema of the answer."""
        text_format = mapping(mapping(field(fields, "text")).get("format"))
        schema = text_format if text_format.get("type") == "json_schema" else None
        return definitions(field(fields, "tools"), schema)

    def max_output(self, fields: Mapping[str, bytes]) -> int | None:
        """`max_output_tokens`."""
        return limit(fields, "max_output_tokens")

    def previous(self, fields: Mapping[str, bytes]) -> str | None:
        """`previous_response_id`, or the id of the `conversation`."""
        known = field(fields, "previous_response_id") or field(fields, "conversation")
        return string(known) or string(mapping(known).get("id")) or None

    def kept(self, fields: Mapping[str, bytes]) -> Kept:
        """Each reply under its id, and a `conversation`. Whoever asks not to `store` cannot go on from it, and whether
        a provider heeds that is its own affair."""
        alone = field(fields, "previous_response_id") is None and field(fields, "conversation") is not None
        return "object" if alone else "reply"

    def missing(self, refusal: bytes) -> bytes:
        """The output of a call that has none, or the call of an output that has none.

        Source: OpenAI's error texts as clients quote them (openai/codex#17630, microsoft/vscode#320060,
        smallmain/vscode-unify-chat-provider#40); `param` is `input`, `code` null.
        """
        try:
            error = mapping(mapping(read(refusal)).get("error"))
        except ValueError:
            return b""
        text = string(error.get("message"))
        if error.get("param") not in (None, "input"):
            return b""
        if (found := _NO_OUTPUT.search(text)) is not None:
            kind = "custom_tool_call_output" if found[1] == "custom " else "function_call_output"
            return encode({"type": kind, "call_id": found[2], "output": _NOT_ON_RECORD})
        if (found := _NO_CALL.search(text)) is not None:
            if found[1] == "custom ":
                call = {"type": "custom_tool_call", "call_id": found[2], "name": "unknown", "input": ""}
            else:
                call = {"type": "function_call", "call_id": found[2], "name": "unknown", "arguments": "{}"}
            return encode(call)
        return b""

    def error(self, error: AccordionError, request_id: str) -> bytes:
        """`{"error": {message, type, param, code}}`."""
        return encode({"error": _told(error, request_id)})

    def stream_error(self, error: AccordionError, request_id: str, before: bytes = b"") -> bytes:
        """An `error` event. The documented form has message, code and param beside the type; the official SDKs raise
        only on an inner `error`, which the provider sends too: so both are there."""
        numbers = _NUMBER.findall(before)
        return _error_event(_told(error, request_id), int(numbers[-1]) + 1 if numbers else 0)

    def stream_refusal(self, body: bytes) -> bytes:
        """The same with what the provider said, numbered from 0."""
        said = refused(body)
        return _error_event(said["error"], 0) if said else b""

    def edit(self, message: Message, changes: Mapping[int, str | None]) -> bytes | None:
        """An item with parts changed. Reasoning and hosted calls leave as a whole or not at all."""
        return responses_writing.edited(message, changes)

    def text(self, text: str) -> bytes:
        """A `message` item of the user's with one `input_text`."""
        return responses_writing.block(text)

    def joined(self, wires: Sequence[bytes], ours: Collection[int]) -> list[bytes]:
        """The items as they are; a plain string as a message, and ids left out that lead to reasoning that is gone."""
        return responses_writing.sent(wires)

    def marked(self, wire: bytes) -> bytes:
        """As it was: the provider finds its cached prefix by itself."""
        return wire

    def problems(self, messages: Sequence[Message]) -> list[str]:
        """A call for each output before it, an output for each call, reasoning with what it led to."""
        return responses_problems(messages)

    def waits(self, message: Message) -> bool:
        """A program that runs, what somebody is to allow, and a function that the model does not wait for; an output
        that names its tool alone.

        Source: type files of the openai SDK (`program`, `mcp_approval_request`, `async`; `call_id` of an output may be
        left out).
        """
        try:
            entry = mapping(read(message.wire))
        except ValueError:
            return False
        kind = string(entry.get("type"))
        unnamed = kind.endswith("_output") and not entry.get("call_id")
        return unnamed or kind in _PATIENT or entry.get("async") is True

    def tap(self, stream: bool) -> Tap:
        """A tap for events, or for a whole response."""
        return _EventTap() if stream else BodyTap(read_response)


def _error_event(inner: Mapping[str, Any], number: int) -> bytes:
    flat = {name: inner.get(name) for name in ("code", "message", "param")}
    told = {"type": "error", "sequence_number": number, **flat, "error": inner}
    return b"event: error\ndata: " + encode(told) + b"\n\n"


def _told(error: AccordionError, request_id: str) -> dict[str, Any]:
    """The inside of an error; an overflow in the words of this API, which agents look for."""
    inner = openai_error(error, request_id)
    if isinstance(error, ContextOverflow):
        inner["message"] = (
            "Your input exceeds the context window of this model. Please adjust your input and try again. "
            f"(Its maximum context length is {error.limit} tokens; your input resulted in {error.tokens} tokens. "
            f"{error.folding} request id: {request_id})"
        )
        inner["param"] = "input"
    return inner


def _canonical(entry: dict[str, Any]) -> dict[str, Any]:
    out = tidy(entry)
    kind = out.get("type")
    if kind == "message":
        del out["type"]
        kind = None
    if kind is None and "role" not in out:
        out["type"] = "item_reference"
    elif kind is None or "call_id" in out or "encrypted_content" in out:
        out.pop("id", None)
    return out


class _EventTap(StreamTap):
    """Watches events. The last one carries the whole response; the earlier ones count where it never comes."""

    def matters(self, block: bytes) -> bool:
        """Deltas of content say nothing here."""
        return (
            b"response.output_item." in block
            or b"response.completed" in block
            or b"response.created" in block
            or b"response.incomplete" in block
            or b"response.failed" in block
            or b'"error"' in block
            or b"event: error" in block
        )

    def __init__(self) -> None:
        super().__init__()
        self.items: tuple[tuple[str, bytes], ...] = ()
        self.output: tuple[bytes, ...] | None = None
        self._done: list[dict[str, Any]] = []

    def seen(self) -> ReplySeen:
        """What was understood so far."""
        seen = super().seen()
        return replace(seen, items=self.items, output=self.output) if self.items or self.output is not None else seen

    def event(self, data: dict[str, Any]) -> None:
        """Reads one event by its own type."""
        kind = string(data.get("type"))
        if kind.startswith("response.output_item."):
            self._item(entry := mapping(data.get("item")))
            if kind == "response.output_item.done":
                self._done.append(entry)
        elif kind == "response.created":
            response = mapping(data.get("response"))
            self.response_id, self.model = string(response.get("id")), string(response.get("model"))
        elif kind in _ENDS:
            self._end(read_response(mapping(data.get("response")), self._done))
        elif kind == "error":
            self.fail(data)

    def _item(self, entry: dict[str, Any]) -> None:
        if ran(entry):
            self.first = 0
        seen = call_of(entry)
        if seen is not None and seen.call_id:
            self._made(seen)

    def _made(self, seen: CallSeen) -> None:
        """Notes a call. What comes later of it is more: its item is there when it begins and when it is whole."""
        known = self.calls.get(seen.call_id, seen)
        arguments = seen.arguments or known.arguments
        self.calls[seen.call_id] = CallSeen(seen.call_id, known.name or seen.name, arguments)

    def _end(self, seen: ReplySeen) -> None:
        self.ended = True
        self.response_id = seen.response_id or self.response_id
        self.model = seen.model or self.model
        self.usage = seen.usage or self.usage
        self.first = seen.first if self.first is None else self.first
        self.finish, self.error, self.items, self.output = seen.finish, seen.error, seen.items, seen.output
        for made in seen.calls:
            self._made(made)
