"""The OpenAI Responses protocol: `POST /v1/responses`.

Theory of operation. A request has a list of items, `input` (or one string), and the system prompt in `instructions`. An
item is a message, a call, a call's output or reasoning; message_json.py reads it into parts and edits it. A request may
continue a stored response (`previous_response_id`, `conversation`), whose items it does not repeat. Responses are
parsed in response.py; the artifact tool is in tools.py.

Besides the equivalences in message_keys.py, the canonical form omits the `id` of an item that has its content: a
message, an item with a `call_id`, or one with encrypted content. Clients drop or keep those ids. Any other id stands
for content that only the provider has. `"type": "message"` is the same as no type.

Source: the type files of the openai SDK (`openai/types/responses`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from accordion.model.conversation import Message, Part, ProviderState, Text
from accordion.model.errors import AccordionError, ContextOverflow
from accordion.protocols.base import ReadMessage, TextPrompt, WireProtocol
from accordion.protocols.json_spans import fields_of, object_of, remove_fields
from accordion.protocols.json_values import (
    as_mapping,
    as_string,
    decode_field,
    encode,
    find_error,
    first_limit,
    opaque_part,
    openai_error,
    tool_definitions,
)
from accordion.protocols.legality import find_responses_problems
from accordion.protocols.message_keys import canonical_object, decode_json
from accordion.protocols.openai_responses import message_json
from accordion.protocols.openai_responses.context_edits import ResponsesContextEdits
from accordion.protocols.openai_responses.message_json import read_content, read_item
from accordion.protocols.openai_responses.response import ResponsesParser

# A name quoted within a text is escaped there, so it cannot match.
_NUMBER = re.compile(rb'"sequence_number"\s*:\s*(\d{1,18})')
_NO_OUTPUT = re.compile(r"No tool output found for (custom )?(?:function |tool )*call (\S+?)\.?(?:\s|$)")
_NO_CALL = re.compile(
    r"No tool call found for (custom )?(?:function |tool )*call output with call_id (\S+?)\.?(?:\s|$)"
)
_LONE_REASONING = re.compile(r"Item '([^']+)' of type 'reasoning' was provided without its required following item")
_NO_REASONING = re.compile(r"Item '([^']+)'(?: of type '[^']*')? was provided without its required 'reasoning' item")
_MISSING_OUTPUT = "The result of this call is not on record any more."
_LATE_ANSWER_TYPES = frozenset({"program", "mcp_approval_request"})


class OpenAIResponses(WireProtocol):
    """The OpenAI Responses protocol."""

    name = "responses"
    title = "Responses"
    family = "openai"
    paths = ("/v1/responses",)
    token_count_paths = ("/v1/responses/input_tokens",)
    compaction_paths = ("/v1/responses/compact",)
    messages_field = "input"
    context_edits = ResponsesContextEdits()

    def read_message(self, raw: bytes) -> ReadMessage:
        """Reads one item. A plain string is a user message."""
        entry = decode_json(raw)
        if type(entry) is str:
            text_parts = (Text(entry),) if entry else ()
            return ReadMessage("user", text_parts, canonical_object({"role": "user", "content": entry}))
        if type(entry) is not dict:
            return ReadMessage("other", (opaque_part(entry),), [entry])
        role, parts = read_item(entry, len(raw))
        return ReadMessage(role, parts, _canonical_item(entry))

    def is_preamble(self, message: ReadMessage) -> bool:
        """System and developer items at the start are part of the system prompt."""
        return message.role in {"system", "developer"}

    def read_preamble(self, fields: Mapping[str, bytes]) -> tuple[Part, ...]:
        """Reads `instructions`."""
        return tuple(read_content(decode_field(fields, "instructions")))

    def read_tools(self, fields: Mapping[str, bytes]) -> tuple[str, ...]:
        """Reads tools, and the schema of the answer."""
        text_format = as_mapping(as_mapping(decode_field(fields, "text")).get("format"))
        schema = text_format if text_format.get("type") == "json_schema" else None
        return tool_definitions(decode_field(fields, "tools"), schema)

    def read_max_output(self, fields: Mapping[str, bytes]) -> int | None:
        """Reads `max_output_tokens`."""
        return first_limit(fields, "max_output_tokens")

    def read_previous(self, fields: Mapping[str, bytes]) -> str | None:
        """Reads `previous_response_id`, or the id of the `conversation`."""
        previous = decode_field(fields, "previous_response_id") or decode_field(fields, "conversation")
        return as_string(previous) or as_string(as_mapping(previous).get("id")) or None

    def provider_state(self, fields: Mapping[str, bytes]) -> ProviderState:
        """Returns `object` for a `conversation`, else `reply`: each response is stored under its id. `store` is
        ignored, since a client that sets it to false does not continue from the response."""
        is_conversation = (
            decode_field(fields, "previous_response_id") is None and decode_field(fields, "conversation") is not None
        )
        return "object" if is_conversation else "reply"

    def is_background(self, fields: Mapping[str, bytes]) -> bool:
        """Reads `background`. Some servers also take a number or a text for true."""
        return decode_field(fields, "background") not in (None, False)

    def missing_entry(self, refusal: bytes) -> bytes:
        """Builds the output of a call that has none, or the call of an output that has none.

        Source: OpenAI's error texts as clients quote them (openai/codex#17630, microsoft/vscode#320060,
        smallmain/vscode-unify-chat-provider#40); `param` is `input`, `code` null.
        """
        text = _error_text(refusal)
        if (match := _NO_OUTPUT.search(text)) is not None:
            kind = "custom_tool_call_output" if match[1] == "custom " else "function_call_output"
            return encode({"type": kind, "call_id": match[2], "output": _MISSING_OUTPUT})
        if (match := _NO_CALL.search(text)) is not None:
            if match[1] == "custom ":
                call = {"type": "custom_tool_call", "call_id": match[2], "name": "unknown", "input": ""}
            else:
                call = {"type": "function_call", "call_id": match[2], "name": "unknown", "arguments": "{}"}
            return encode(call)
        return b""

    def without_refused_reasoning(self, entries: Sequence[bytes], refusal: bytes) -> list[bytes] | None:
        """Removes reasoning that leads to nothing, or the id by which an item requires its reasoning.

        Source: OpenAI's error texts as clients quote them (continuedev/continue#8933, #11466).
        """
        text = _error_text(refusal)
        lone, led = _LONE_REASONING.search(text), _NO_REASONING.search(text)
        match = lone or led
        if match is None:
            return None
        at = next((at for at, wire in enumerate(entries) if as_mapping(decode_json(wire)).get("id") == match[1]), None)
        if at is None:
            return None
        fields = fields_of(entries[at])
        remove_fields(fields, "id")
        return [*entries[:at], *(() if lone else (object_of(fields),)), *entries[at + 1 :]]

    def write_prompt(self, prompt: TextPrompt) -> bytes:
        """Writes instructions and a user message. The provider does not store the response."""
        content = [{"type": "input_text", "text": prompt.text}]
        fields = {
            "model": prompt.model,
            "instructions": prompt.instructions,
            "input": [{"role": "user", "content": content}],
            "max_output_tokens": prompt.max_tokens,
        }
        return encode({**fields, "store": False, "stream": False})

    def render_error(self, error: AccordionError, request_id: str) -> bytes:
        """Writes `{"error": {message, type, param, code}}`."""
        return encode({"error": _error_fields(error, request_id)})

    def render_stream_error(self, error: AccordionError, request_id: str, before: bytes = b"") -> bytes:
        """Writes an `error` event. The documented form has message, code and param beside the type; the official SDKs
        raise only on an inner `error`, which the provider sends too. The event has both."""
        numbers = _NUMBER.findall(before)
        return _error_event(_error_fields(error, request_id), int(numbers[-1]) + 1 if numbers else 0)

    def stream_provider_error(self, body: bytes) -> bytes:
        """Writes an `error` event with the provider's error, numbered 0."""
        error = find_error(body)
        return _error_event(error["error"], 0) if error else b""

    def edit_message(self, message: Message, changes: Mapping[int, str | None]) -> bytes | None:
        """Returns the item with parts changed. Reasoning and hosted calls can only be removed as a whole."""
        return message_json.edit_message(message, changes)

    def text_message(self, text: str) -> bytes:
        """Returns a user's `message` item with one `input_text`."""
        return message_json.text_message(text)

    def join_messages(self, wires: Sequence[bytes], own_positions: Collection[int]) -> list[bytes]:
        """Returns the items, a plain string as a message, and without ids that refer to removed reasoning."""
        return message_json.join_messages(wires)

    def find_problems(self, messages: Sequence[Message]) -> list[str]:
        """Checks that outputs and calls are paired, and that reasoning comes with the item that follows it."""
        return find_responses_problems(messages)

    def allows_late_answers(self, message: Message) -> bool:
        """Whether a message is a program, an approval request, an `async` function, or an output without a call id.

        Source: type files of the openai SDK (`program`, `mcp_approval_request`, `async`; the `call_id` of an output is
        optional).
        """
        try:
            entry = as_mapping(decode_json(message.wire))
        except ValueError:
            return False
        kind = as_string(entry.get("type"))
        is_unpaired_output = kind.endswith("_output") and not entry.get("call_id")
        return is_unpaired_output or kind in _LATE_ANSWER_TYPES or entry.get("async") is True

    def parser(self, stream: bool, *, reads_content: bool = False) -> ResponsesParser:
        """Creates a parser of events, or of a response object."""
        return ResponsesParser(is_stream=stream, reads_content=reads_content)


def _error_event(error: Mapping[str, Any], number: int) -> bytes:
    top_fields = {name: error.get(name) for name in ("code", "message", "param")}
    event = {"type": "error", "sequence_number": number, **top_fields, "error": error}
    return b"event: error\ndata: " + encode(event) + b"\n\n"


def _error_fields(error: AccordionError, request_id: str) -> dict[str, Any]:
    """Returns the inner object of an error; an overflow in the words of this API, which agents search for."""
    error_fields = openai_error(error, request_id)
    if isinstance(error, ContextOverflow):
        error_fields["message"] = (
            "Your input exceeds the context window of this model. Please adjust your input and try again. "
            f"(Its maximum context length is {error.limit} tokens; your input resulted in {error.tokens} tokens. "
            f"{error.folding} request id: {request_id})"
        )
        error_fields["param"] = "input"
    return error_fields


def _canonical_item(entry: dict[str, Any]) -> dict[str, Any]:
    canonical = canonical_object(entry)
    kind = canonical.get("type")
    if kind == "message":
        del canonical["type"]
        kind = None
    if kind is None and "role" not in canonical:
        canonical["type"] = "item_reference"
    elif kind is None or "call_id" in canonical or "encrypted_content" in canonical:
        canonical.pop("id", None)
    return canonical


def _error_text(refusal: bytes) -> str:
    """Returns the message of an error about the list of items; empty where it is another."""
    try:
        error = as_mapping(as_mapping(decode_json(refusal)).get("error"))
    except ValueError:
        return ""
    return as_string(error.get("message")) if error.get("param") in (None, "input") else ""
